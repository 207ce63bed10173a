//! Maglev hashing with weights.
//!
//! Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load Balancer",
//! NSDI 2016, section 3.4. The page docs/maglev.md explains it with pictures.

use std::collections::HashSet;

use crate::pool::{Candidate, NONE};
use crate::prime::is_prime;
use crate::score::hash_name;
use crate::traits::Placement;
use weir_hash::scale;

/// Why a table cannot be built.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The walks of the candidates would not visit every slot.
    #[error("table size {0} is not a prime number")]
    SizeNotPrime(u32),
    /// Some candidate would get no slot.
    #[error("table size {size} is too small for {candidates} backends")]
    SizeTooSmall {
        /// The size asked for, in slots.
        size: u32,
        /// The number of candidates whose weight is not zero.
        candidates: usize,
    },
    /// Two candidates would walk the same slots in the same order.
    #[error("two backends are named {0:?}")]
    DuplicateName(String),
    /// The backend number is the one that marks an empty slot.
    #[error("backend {0:?} has the reserved number {NONE}")]
    ReservedBackend(String),
}

/// A lookup table from the hash of a flow to a backend.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Maglev {
    slots: Vec<u16>,
}

impl Maglev {
    /// Builds a table of `size` slots, a prime. The paper advises a size of at least 100
    /// times the number of backends, for shares that are within 1% of the weights.
    ///
    /// The order of `candidates` does not matter. If no candidate has a weight, every
    /// slot is [`NONE`]. A candidate whose fair share is less than half a slot may get none.
    ///
    /// # Errors
    ///
    /// See [`Error`]; candidates without weight are checked like the others.
    pub fn build(size: u32, candidates: &[Candidate<'_>]) -> Result<Self, Error> {
        let weighted = check(size, candidates)?;
        let mut slots = vec![NONE; size as usize];
        fill(&mut slots, &weighted);
        Ok(Self { slots })
    }

    /// The backend of a flow with this hash; only the low 32 bits count.
    ///
    /// The multiply-shift (Lemire, "Fast Random Integer Generation in an Interval", 2019)
    /// maps them to a slot without a division, with the same result in BPF.
    pub fn lookup(&self, hash: u64) -> Option<u16> {
        let size = self.slots.len() as u64;
        let slot = ((hash & 0xffff_ffff) * size) >> 32;
        let backend = *self.slots.get(slot as usize)?;
        (backend != NONE).then_some(backend)
    }

    /// The table: the backend of each slot, or [`NONE`].
    pub fn slots(&self) -> &[u16] {
        &self.slots
    }

    /// The part of the slots that hold `backend`, from 0 to 1.
    pub fn share(&self, backend: u16) -> f64 {
        let held = self.slots.iter().filter(|&&slot| slot == backend).count();
        held as f64 / self.slots.len() as f64
    }

    /// The part of all flow hashes that the two tables send to different backends, from
    /// 0 to 1. The sizes may differ.
    pub fn disruption(&self, other: &Self) -> f64 {
        let (mut ours, mut theirs) = (0, 0);
        let mut moved = 0;
        let mut from = 0;
        // Between two neighbouring slot boundaries, of either table, nothing changes.
        while from < HASHES {
            let (our_end, their_end) = (self.end_of(ours), other.end_of(theirs));
            let to = our_end.min(their_end);
            if self.slots[ours] != other.slots[theirs] {
                moved += to - from;
            }
            ours += usize::from(to == our_end);
            theirs += usize::from(to == their_end);
            from = to;
        }
        moved as f64 / HASHES as f64
    }

    /// The first hash behind `slot`: the smallest that `lookup` sends to the next one.
    fn end_of(&self, slot: usize) -> u64 {
        ((slot as u64 + 1) << 32).div_ceil(self.slots.len() as u64)
    }
}

/// The number of values of the 32 bits that choose a slot.
const HASHES: u64 = 1 << 32;

/// The candidates that take part, in an order that depends on their names only.
fn check<'a>(size: u32, candidates: &[Candidate<'a>]) -> Result<Vec<Candidate<'a>>, Error> {
    if !is_prime(size) {
        return Err(Error::SizeNotPrime(size));
    }
    let mut names = HashSet::with_capacity(candidates.len());
    for candidate in candidates {
        if !names.insert(candidate.name) {
            return Err(Error::DuplicateName(candidate.name.to_owned()));
        }
        if candidate.backend == NONE {
            return Err(Error::ReservedBackend(candidate.name.to_owned()));
        }
    }
    let mut weighted: Vec<_> = candidates.iter().filter(|c| c.weight > 0).copied().collect();
    if weighted.len() > size as usize {
        return Err(Error::SizeTooSmall { size, candidates: weighted.len() });
    }
    weighted.sort_unstable_by_key(|candidate| candidate.name);
    Ok(weighted)
}

/// One candidate's walk over the table: `position`, `position + skip`, ... modulo the size.
///
/// 16 bytes and nothing else, because building is a race of all walks against the cache:
/// 500 of them take 8 KiB.
struct Walk {
    position: u32,
    skip: u32,
    credit: u32,
    weight: u32,
}

impl Walk {
    fn new(candidate: &Candidate<'_>, max_weight: u32, size: u32) -> Self {
        let hash = hash_name(candidate.name);
        // The two halves serve as the paper's two hash functions.
        let (high, low) = ((hash >> 32) as u32, hash as u32);
        Self {
            position: high % size,
            skip: low % (size - 1) + 1,
            // Half a turn in advance rounds the number of turns to the nearest.
            credit: max_weight / 2,
            weight: candidate.weight,
        }
    }

    /// Whether it is this candidate's turn in the next round: `weight` times in
    /// `max_weight` rounds, evenly spread.
    fn takes_turn(&mut self, max_weight: u32) -> bool {
        // credit < max_weight, so `missing` does not underflow and nothing overflows.
        let missing = max_weight - self.credit;
        if self.weight >= missing {
            self.credit = self.weight - missing;
            true
        } else {
            self.credit += self.weight;
            false
        }
    }

    /// The slot to try, and a step to the next one.
    fn step(&mut self, size: u32) -> usize {
        let slot = self.position;
        // The same as (position + skip) % size, without overflow and without a division.
        let to_end = size - self.skip;
        self.position = if slot >= to_end { slot - to_end } else { slot + self.skip };
        slot as usize
    }
}

/// In every round each candidate whose turn it is takes the first free slot on its walk.
fn fill(slots: &mut [u16], weighted: &[Candidate<'_>]) {
    let size = slots.len() as u32;
    let Some(max_weight) = weighted.iter().map(|candidate| candidate.weight).max() else {
        return;
    };
    let mut walks: Vec<Walk> =
        weighted.iter().map(|candidate| Walk::new(candidate, max_weight, size)).collect();
    let mut free = slots.len();
    loop {
        for (walk, candidate) in walks.iter_mut().zip(weighted) {
            if !walk.takes_turn(max_weight) {
                continue;
            }
            // Ends, because a slot is free and a walk visits all slots: the size is prime.
            let mut slot = walk.step(size);
            while slots[slot] != NONE {
                slot = walk.step(size);
            }
            slots[slot] = candidate.backend;
            free -= 1;
            if free == 0 {
                return;
            }
        }
    }
}

impl Placement for Maglev {
    fn lookup(&self, hash: u64) -> Option<u16> {
        Self::lookup(self, hash)
    }

    fn lookup_batch(&self, hashes: &[u64], out: &mut [u16]) {
        assert_eq!(hashes.len(), out.len(), "one answer per hash");
        let size = self.slots.len() as u32;
        // No branch: the processor overlaps the reads.
        for (answer, &hash) in out.iter_mut().zip(hashes) {
            *answer = self.slots[scale(hash as u32, size) as usize];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u32 = 65_537;

    fn candidate(name: &str, backend: u16, weight: u32) -> Candidate<'_> {
        Candidate { name, backend, weight }
    }

    /// The paper's pseudocode for equal weights, word for word, as the oracle.
    fn populate_as_in_the_paper(size: u32, candidates: &[Candidate<'_>]) -> Vec<u16> {
        let n = candidates.len();
        let size64 = u64::from(size);
        let permutation: Vec<Vec<u64>> = candidates
            .iter()
            .map(|candidate| {
                let hash = hash_name(candidate.name);
                let offset = (hash >> 32) % size64;
                let skip = (hash & 0xffff_ffff) % (size64 - 1) + 1;
                (0..size64).map(|j| (offset + j * skip) % size64).collect()
            })
            .collect();
        let mut next = vec![0; n];
        let mut entry = vec![NONE; size as usize];
        let mut filled = 0;
        loop {
            for i in 0..n {
                let mut c = permutation[i][next[i]] as usize;
                while entry[c] != NONE {
                    next[i] += 1;
                    c = permutation[i][next[i]] as usize;
                }
                entry[c] = candidates[i].backend;
                next[i] += 1;
                filled += 1;
                if filled == size {
                    return entry;
                }
            }
        }
    }

    #[test]
    fn equal_weights_give_the_table_of_the_paper() {
        let names: Vec<String> = (0..100).map(|i| format!("backend-{i:03}")).collect();
        for (n, size) in [(1, 2), (2, 2), (3, 7), (7, 7), (13, 101), (100, 10_007)] {
            let pool: Vec<_> = (0..n).map(|i| candidate(&names[i], i as u16, 5)).collect();
            let table = Maglev::build(size, &pool).unwrap();
            assert_eq!(table.slots(), populate_as_in_the_paper(size, &pool), "{n} in {size}");
        }
    }

    /// The pictures in docs/maglev.md.
    #[test]
    fn the_pictures_are_right() {
        let table = |pool: &[(&str, u32)]| {
            let pool: Vec<_> = pool
                .iter()
                .map(|&(name, weight)| candidate(name, u16::from(name.as_bytes()[0]), weight))
                .collect();
            let slots = Maglev::build(11, &pool).unwrap().slots;
            slots.iter().map(|&slot| slot as u8 as char).collect::<String>()
        };
        assert_eq!(table(&[("A", 1), ("B", 1), ("C", 1)]), "BACCCBBAABA");
        assert_eq!(table(&[("B", 1), ("C", 1)]), "CBCCCBBBBBC");
        assert_eq!(table(&[("A", 1), ("B", 1), ("C", 2)]), "BCCCCBCAABA");
    }

    #[test]
    fn without_weight_there_is_no_backend() {
        for pool in [&[][..], &[candidate("a", 1, 0)]] {
            let table = Maglev::build(7, pool).unwrap();
            assert_eq!(table.slots(), [NONE; 7]);
            assert_eq!(table.lookup(0x1234_5678), None);
        }
    }

    #[test]
    fn errors_name_the_cause() {
        let (a, b) = (candidate("a", 1, 1), candidate("b", 2, 1));
        let error = |size, pool: &[_]| Maglev::build(size, pool).unwrap_err();
        assert_eq!(error(65_536, &[a]), Error::SizeNotPrime(65_536));
        assert_eq!(error(0, &[a]), Error::SizeNotPrime(0));
        assert_eq!(error(7, &[a, b, a]), Error::DuplicateName("a".into()));
        let c = candidate("c", 3, 1);
        let (size, candidates) = (2, 3);
        assert_eq!(error(2, &[a, b, c]), Error::SizeTooSmall { size, candidates });
        let reserved = candidate("z", NONE, 0);
        assert_eq!(error(7, &[reserved]), Error::ReservedBackend("z".into()));
    }

    #[test]
    fn lookup_uses_the_low_half_of_the_hash() {
        let pool = [candidate("a", 0, 1), candidate("b", 1, 1), candidate("c", 2, 1)];
        let table = Maglev::build(SIZE, &pool).unwrap();
        let (first, last) = (table.slots()[0], table.slots()[SIZE as usize - 1]);
        assert_eq!(table.lookup(0xffff_ffff_0000_0000), Some(first));
        assert_eq!(table.lookup(0x0000_0000_ffff_ffff), Some(last));
        // The boundaries that `disruption` uses are those of `lookup`.
        for slot in [0, 1, 2, 1000, SIZE as usize - 2] {
            let end = table.end_of(slot);
            let slot_of = |hash: u64| (hash * u64::from(SIZE)) >> 32;
            assert_eq!(slot_of(end - 1), slot as u64);
            assert_eq!(slot_of(end), slot as u64 + 1);
        }
        assert_eq!(table.end_of(SIZE as usize - 1), HASHES);
    }

    #[test]
    fn extreme_weights_do_not_overflow() {
        let pool = [candidate("a", 0, u32::MAX), candidate("b", 1, u32::MAX - 1)];
        let table = Maglev::build(SIZE, &pool).unwrap();
        assert!((table.share(0) - 0.5).abs() < 0.0001);
    }

    #[test]
    fn disruption_between_sizes_is_by_hash() {
        let pool = [candidate("a", 0, 1)];
        let small = Maglev::build(7, &pool).unwrap();
        let large = Maglev::build(SIZE, &pool).unwrap();
        assert_eq!(small.disruption(&large), 0.0);
        let other = Maglev::build(101, &[candidate("a", 1, 1)]).unwrap();
        assert_eq!(small.disruption(&other), 1.0);
    }
}
