//! One hash table with digests: Maglev's connection table.

use super::{Batch, Table, stored, value};
use crate::memory::pages::Pages;
use crate::{Error, HashKey, Key, prefetch, vectorised};
use std::hint::select_unpredictable;
use weir_hash::scale;

/// Share of the slots that is in use at the capacity. (2,4)-cuckoo hashing works up to 98 %.
const LOAD: f64 = 0.95;

/// Buckets added, because many keys of a small table may share their two buckets. With 4, one table
/// of 16 keys in 70,000 could not hold them; with 16, none of 2.6 million tables of 1 to 10,000.
const SLACK: usize = 16;

/// Buckets that an insertion looks at before it gives up: all chains of up to five moves.
const SEARCH: usize = 4096;

/// Turns a digest into a second position. Any odd number with about half of its bits set.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// One cache line. A value is stored inverted: 0 is an empty slot.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Bucket<const SLOTS: usize> {
    digests: [u64; SLOTS],
    values: [u16; SLOTS],
}

impl<const SLOTS: usize> Bucket<SLOTS> {
    /// The stored value of a digest, or 0. A digest stands in a bucket at most once.
    #[inline(always)]
    fn find(&self, digest: u64) -> u16 {
        let mut found = 0;
        for (other, value) in self.digests.iter().zip(&self.values) {
            found |= select_unpredictable(*other == digest, *value, 0);
        }
        found
    }

    fn slot_of(&self, digest: u64) -> Option<usize> {
        (0..SLOTS).find(|&slot| self.values[slot] != 0 && self.digests[slot] == digest)
    }

    fn empty_slot(&self) -> Option<usize> {
        self.values.iter().position(|&value| value == 0)
    }
}

/// A (2,4)-cuckoo table from 64-bit digests to 16-bit values, one cache line per bucket.
///
/// Each entry stands in one of two buckets; an insertion that finds both full moves entries to
/// their other buckets along the shortest path (breadth-first search). `DigestCuckoo<6>` puts six
/// slots into the line, which (2,4) leaves partly empty. See `docs/digest.md`.
///
/// ```
/// use weir_lookup::{DigestCuckoo, MISS};
///
/// let mut table: DigestCuckoo = DigestCuckoo::new(1000, 1);
/// table.insert(&7u64, 300)?;
/// assert_eq!((table.get(&7u64), table.get(&8u64)), (Some(300), None));
/// let mut found = [0; 2];
/// table.get_batch(&[7u64, 8], &mut found);
/// assert_eq!(found, [300, MISS]);
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Clone)]
pub struct DigestCuckoo<const SLOTS: usize = 4> {
    key: HashKey,
    digest_mask: u64,
    entries: usize,
    buckets: Pages<Bucket<SLOTS>>,
}

impl DigestCuckoo {
    /// A table that holds `capacity` keys at 95 % load. `seed` makes every run with it the same.
    pub fn new(capacity: usize, seed: u64) -> Self {
        Self::with_digest_bits(capacity, 64, seed)
    }
}

impl<const SLOTS: usize> DigestCuckoo<SLOTS> {
    /// As `new`, with shorter digests (1..=64 bits), which make false hits frequent enough to be
    /// counted. The memory stays the same.
    pub fn with_digest_bits(capacity: usize, bits: u32, seed: u64) -> Self {
        assert!((1..=64).contains(&bits), "a digest has 1..=64 bits");
        let buckets = (capacity as f64 / LOAD / SLOTS as f64).ceil() as usize + SLACK;
        assert!(u32::try_from(buckets).is_ok(), "too many buckets");
        let empty = Bucket { digests: [0; SLOTS], values: [0; SLOTS] };
        Self {
            key: HashKey::from_seed(seed),
            digest_mask: u64::MAX >> (64 - bits),
            entries: 0,
            buckets: Pages::filled(empty, buckets),
        }
    }

    /// Number of entries in the table.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Number of slots, in use or free.
    pub fn slots(&self) -> usize {
        self.buckets.len() * SLOTS
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        self.buckets.allocated()
    }

    /// The chance that an unknown key is answered: about one digest in `2^bits` for each of the
    /// entries that stand in its two buckets.
    pub fn false_hit_rate(&self) -> f64 {
        let compared = 2.0 * self.entries as f64 / self.buckets.len() as f64;
        1.0 - (1.0 - 1.0 / (self.digest_mask as f64 + 1.0)).powf(compared)
    }

    #[inline(always)]
    fn digest(&self, hash: u64) -> u64 {
        hash & self.digest_mask
    }

    #[inline(always)]
    fn first(&self, hash: u64) -> usize {
        scale((hash >> 32) as u32, self.buckets.len() as u32) as usize
    }

    /// The other bucket of an entry, of which only the digest is known: two buckets of an entry add
    /// up to a number that depends on the digest, modulo their count.
    #[inline(always)]
    fn other(&self, bucket: usize, digest: u64) -> usize {
        let count = self.buckets.len();
        let sum = scale((digest.wrapping_mul(SPREAD) >> 32) as u32, count as u32) as usize;
        if sum >= bucket { sum - bucket } else { sum + count - bucket }
    }

    /// Digest and both buckets of a key.
    #[inline(always)]
    fn locate<K: Key>(&self, key: &K) -> (u64, usize, usize) {
        let hash = key.hash(&self.key);
        let (digest, first) = (self.digest(hash), self.first(hash));
        (digest, first, self.other(first, digest))
    }

    /// The value of a key, or of another one with the same digest and buckets.
    #[inline]
    pub fn get<K: Key>(&self, key: &K) -> Option<u16> {
        // Both lines are read at once: which of them holds the key is a coin toss, so a branch on
        // the first one's answer would be mispredicted often, after a wait for memory.
        let (digest, first, second) = self.locate(key);
        value(self.buckets[first].find(digest) | self.buckets[second].find(digest))
    }

    /// Values of many keys ([`MISS`](crate::MISS) for those not found), with the cache misses of 32
    /// lookups under way at a time. First buckets first, then second ones where that was no use.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn get_batch<K: Key>(&self, keys: &[K], out: &mut [u32]) {
        vectorised(Batch { table: self, keys, out });
    }

    /// Asks for the two cache lines that [`get`](Self::get) will read.
    #[inline]
    pub fn prefetch<K: Key>(&self, key: &K) {
        let (_, first, second) = self.locate(key);
        prefetch(&self.buckets, first);
        prefetch(&self.buckets, second);
    }

    /// Adds a key or replaces its value; returns the former value. A key with the digest and the
    /// buckets of another one takes over its entry.
    ///
    /// # Errors
    /// [`Error::Full`] if no free slot can be reached, [`Error::ReservedValue`] for 65,535. The
    /// table is unchanged then.
    pub fn insert<K: Key>(&mut self, key: &K, new: u16) -> Result<Option<u16>, Error> {
        let new = stored(new)?;
        let (digest, first, second) = self.locate(key);
        for bucket in [first, second] {
            if let Some(slot) = self.buckets[bucket].slot_of(digest) {
                let old = std::mem::replace(&mut self.buckets[bucket].values[slot], new);
                return Ok(value(old));
            }
        }
        let (bucket, slot) = self
            .make_room(first, second)
            .ok_or(Error::Full { entries: self.entries, slots: self.slots() })?;
        self.buckets[bucket].digests[slot] = digest;
        self.buckets[bucket].values[slot] = new;
        self.entries += 1;
        Ok(None)
    }

    /// Removes the entry of a key, or of another one with the same digest and buckets.
    pub fn remove<K: Key>(&mut self, key: &K) -> Option<u16> {
        let (digest, first, second) = self.locate(key);
        for bucket in [first, second] {
            let bucket = &mut self.buckets[bucket];
            if let Some(slot) = bucket.slot_of(digest) {
                self.entries -= 1;
                return value(std::mem::take(&mut bucket.values[slot]));
            }
        }
        None
    }

    /// A free slot in one of two buckets, after moving others out of the way if need be.
    fn make_room(&mut self, first: usize, second: usize) -> Option<(usize, usize)> {
        // Each step is a bucket, and the step and slot from which an entry would move to it.
        let mut steps: Vec<(usize, usize, usize)> = Vec::new();
        steps.extend([(first, usize::MAX, 0), (second, usize::MAX, 0)]);
        let mut at = 0;
        while let Some(&(bucket, ..)) = steps.get(at) {
            if let Some(slot) = self.buckets[bucket].empty_slot() {
                return Some(self.move_along(&steps, at, slot));
            }
            if steps.len() < SEARCH {
                for slot in 0..SLOTS {
                    let next = self.other(bucket, self.buckets[bucket].digests[slot]);
                    // A path that returns to a bucket would move an entry that is gone by then.
                    if !on_path(&steps, at, next) {
                        steps.push((next, at, slot));
                    }
                }
            }
            at += 1;
        }
        None
    }

    /// Moves entries along the path that ends at step `at`, where `slot` is free, last one first;
    /// returns what is free then.
    fn move_along(
        &mut self,
        steps: &[(usize, usize, usize)],
        mut at: usize,
        mut slot: usize,
    ) -> (usize, usize) {
        loop {
            let (bucket, from, from_slot) = steps[at];
            let Some(&(from_bucket, ..)) = steps.get(from) else {
                return (bucket, slot);
            };
            self.buckets[bucket].digests[slot] = self.buckets[from_bucket].digests[from_slot];
            self.buckets[bucket].values[slot] = self.buckets[from_bucket].values[from_slot];
            self.buckets[from_bucket].values[from_slot] = 0;
            (at, slot) = (from, from_slot);
        }
    }
}

impl<const SLOTS: usize> super::Bucket for Bucket<SLOTS> {
    #[inline(always)]
    fn find(&self, digest: u64) -> u16 {
        self.find(digest)
    }
}

impl<const SLOTS: usize> Table for DigestCuckoo<SLOTS> {
    type Bucket = Bucket<SLOTS>;

    const WAYS: usize = 2;

    #[inline(always)]
    fn key(&self) -> &HashKey {
        &self.key
    }

    #[inline(always)]
    fn buckets(&self, _: usize) -> &[Bucket<SLOTS>] {
        &self.buckets
    }

    #[inline(always)]
    fn place(&self, way: usize, hash: u64) -> (u64, u32) {
        let (digest, first) = (self.digest(hash), self.first(hash));
        (digest, if way == 0 { first } else { self.other(first, digest) } as u32)
    }
}

fn on_path(steps: &[(usize, usize, usize)], mut at: usize, bucket: usize) -> bool {
    while let Some(&(other, from, _)) = steps.get(at) {
        if other == bucket {
            return true;
        }
        at = from;
    }
    false
}
