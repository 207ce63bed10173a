//! Plain hashing: methods that remember nothing.

use super::memory::Remembered;
use super::pool::Members;
use super::steered::{Face, Steered};
use crate::flow::Traffic;
use crate::method::{Change, Effects, Gauges};
use weir_hash::HashKey;
use weir_placement::{Candidate, PoolError, Ring as Placement};
use weir_steering::baseline::{Consistent, Ecmp};
use weir_steering::{Decide, Decision, Memory, Question};

const SEED: u64 = 0x666c_6174;

/// Equal-cost multipath ([`Ecmp`]): the hash modulo the number of live servers, each as often as its
/// weight says. A change moves nearly every flow. (This is not the "hash" of Cheetah's figure 2a;
/// that is [`super::Buckets::hash`].)
pub type Modulo = Steered<ModuloFace>;

impl Modulo {
    /// Without servers. `weights`: of all there will ever be; others have the weight 1.
    pub fn new(weights: &[u32]) -> Self {
        Steered::alone(ModuloFace { table: Ecmp::new(SEED), members: Members::new(weights) })
    }
}

/// The build face of [`Modulo`].
#[derive(Debug)]
pub struct ModuloFace {
    table: Ecmp,
    members: Members,
}

impl Face for ModuloFace {
    fn hash_key(&self, _: u16) -> &HashKey {
        Decide::<u64>::hash_key(&self.table)
    }

    fn decide<M: Memory<u64>>(&self, _: u16, question: &Question<u64>, memory: &mut M) -> Decision {
        self.table.decide(question, memory)
    }

    fn change(
        &mut self,
        changes: &[Change],
        _: &mut [Remembered],
        _: &mut Traffic,
        effects: &mut Effects,
    ) {
        changes.iter().for_each(|&change| self.members.follow(change));
        let mut pool: Vec<Candidate<'_>> = self.members.candidates().collect();
        pool.sort_unstable_by_key(|candidate| candidate.backend);
        self.table.set_pool(&pool);
        effects.rows.push(0);
    }

    fn gauges(&self, _: &[Remembered]) -> Gauges {
        Gauges::default()
    }
}

/// Consistent hashing without tracking: [`Consistent`] over a ring of points.
pub type Ring = Steered<RingFace>;

impl Ring {
    /// A ring on which a server has `copies` points per unit of weight (30 in Cheetah's
    /// evaluation), without servers. `weights`: of all there will ever be; others have the weight 1.
    ///
    /// # Errors
    ///
    /// No points, or too many.
    pub fn new(copies: u32, weights: &[u32]) -> Result<Self, PoolError> {
        let table = Consistent::new(Placement::new(copies)?, SEED);
        let members = Members::new(weights);
        Ok(Steered::alone(RingFace { table, members, arcs: Vec::new() }))
    }
}

/// The build face of [`Ring`].
#[derive(Debug)]
pub struct RingFace {
    table: Consistent<Placement>,
    members: Members,
    /// The arcs of the ring, each by its last hash and its server.
    arcs: Vec<(u64, u16)>,
}

/// Rows are the first bits of a hash.
const ROW_BITS: u32 = 16;

impl RingFace {
    /// Names the rows of the arcs that have changed hands.
    fn compare(&mut self, effects: &mut Effects) {
        let arcs: Vec<(u64, u16)> = self.table.placement().arcs().collect();
        let before = std::mem::replace(&mut self.arcs, arcs);
        let owner = |arcs: &[(u64, u16)], at: usize| arcs.get(at).or(arcs.first()).map(|arc| arc.1);
        let (mut old, mut new, mut from) = (0, 0, 0u64);
        loop {
            let next = |arcs: &[(u64, u16)], at: usize| arcs.get(at).map_or(u64::MAX, |arc| arc.0);
            let upto = next(&before, old).min(next(&self.arcs, new));
            if owner(&before, old) != owner(&self.arcs, new) {
                let row = |hash: u64| (hash >> (64 - ROW_BITS)) as u32;
                effects.rows.extend(row(from)..=row(upto));
            }
            if upto == u64::MAX {
                break;
            }
            old += usize::from(next(&before, old) == upto);
            new += usize::from(next(&self.arcs, new) == upto);
            from = upto + 1;
        }
    }
}

impl Face for RingFace {
    fn hash_key(&self, _: u16) -> &HashKey {
        Decide::<u64>::hash_key(&self.table)
    }

    fn decide<M: Memory<u64>>(&self, _: u16, question: &Question<u64>, memory: &mut M) -> Decision {
        self.table.decide(question, memory)
    }

    fn rows(&self) -> usize {
        1 << ROW_BITS
    }

    fn row_of(&self, hash: u64) -> u32 {
        (hash >> (64 - ROW_BITS)) as u32
    }

    fn change(
        &mut self,
        changes: &[Change],
        _: &mut [Remembered],
        _: &mut Traffic,
        effects: &mut Effects,
    ) {
        for &change in changes {
            let done = self.members.place(change, self.table.placement_mut());
            debug_assert!(done.is_ok(), "{change:?}: {done:?}");
        }
        self.compare(effects);
    }

    fn gauges(&self, _: &[Remembered]) -> Gauges {
        Gauges::default()
    }
}
