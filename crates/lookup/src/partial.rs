//! Cuckoo tables of digests: the plain one, and the Cuckoo Filtable without key shadowing.

mod filtable;

pub use filtable::{Filtable, FiltableUpdate, FiltableView};

use crate::cuckoo::path::{Path, SLOTS, Search};
use crate::cuckoo::{buckets_for, pair};
use crate::ludo::packed::{Packed, ones};
use crate::{BATCH, Error, HashKey, Key};
use weir_wire::hash::scale;

/// Buckets of four slots, each a digest and a value, without gaps. Digest 0 is an empty slot.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slots {
    pub(crate) buckets: u32,
    pub(crate) digest_bits: u32,
    pub(crate) value_bits: u32,
    packed: Packed,
}

impl Slots {
    fn new(digest_bits: u32, value_bits: u32, capacity: usize) -> Self {
        assert!((1..=32).contains(&digest_bits), "a digest has 1..=32 bits");
        assert!((1..=64).contains(&value_bits), "a value has 1..=64 bits");
        let buckets = buckets_for(capacity);
        let bits = u64::from(buckets) * SLOTS as u64 * u64::from(digest_bits + value_bits);
        Self { buckets, digest_bits, value_bits, packed: Packed::new(bits) }
    }

    #[inline(always)]
    fn bit(&self, bucket: u32, slot: usize) -> u64 {
        (u64::from(bucket) * SLOTS as u64 + slot as u64)
            * u64::from(self.digest_bits + self.value_bits)
    }

    #[inline(always)]
    fn digest(&self, bucket: u32, slot: usize) -> u32 {
        self.packed.read(self.bit(bucket, slot), self.digest_bits) as u32
    }

    #[inline(always)]
    fn value(&self, bucket: u32, slot: usize) -> u64 {
        self.packed.read(self.bit(bucket, slot) + u64::from(self.digest_bits), self.value_bits)
    }

    fn write(&self, bucket: u32, slot: usize, digest: u32, value: u64) {
        let bit = self.bit(bucket, slot);
        self.packed.write(bit, self.digest_bits, digest.into());
        self.packed.write(bit + u64::from(self.digest_bits), self.value_bits, value);
    }

    /// The first slot of two buckets with this digest (0: the first empty one).
    #[inline(always)]
    fn find(&self, digest: u32, pair: [u32; 2]) -> Option<(u32, usize)> {
        pair.into_iter().find_map(|bucket| Some((bucket, self.find_in(digest, bucket)?)))
    }

    #[inline(always)]
    fn find_in(&self, digest: u32, bucket: u32) -> Option<usize> {
        let mut found = 0u32;
        for slot in 0..SLOTS {
            found |= u32::from(self.digest(bucket, slot) == digest) << slot;
        }
        (found != 0).then(|| found.trailing_zeros() as usize)
    }

    #[inline(always)]
    fn fetch(&self, pair: [u32; 2]) {
        for bucket in pair {
            let width = SLOTS as u64 * u64::from(self.digest_bits + self.value_bits);
            self.packed.fetch(self.bit(bucket, 0), width);
        }
    }

    /// A digest from bits of the hash that do not choose buckets: 1..2^digest_bits, or 1 alone.
    #[inline(always)]
    fn digest_of(&self, hash: u64) -> u32 {
        let folded = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let codes = ones(self.digest_bits) as u32;
        1 + scale((folded >> 32) as u32, codes)
    }

    /// The share of (bucket, digest) pairs that `entries` entries make up. No bucket has a digest
    /// twice, so this is the chance that a bucket has a given digest.
    fn digest_share(&self, entries: usize) -> f64 {
        entries as f64 / f64::from(self.buckets) / ones(self.digest_bits) as f64
    }
}

/// Runs keys through hash and two buckets, a batch ahead of the answers.
fn batched<K: Key>(
    (key, slots): (&HashKey, &Slots),
    keys: &[K],
    out: &mut [Option<u64>],
    pair_of: impl Fn(u64) -> [u32; 2],
    answer: impl Fn(&K, u64, [u32; 2]) -> Option<u64>,
) {
    assert_eq!(keys.len(), out.len(), "one result per key");
    let mut ahead = [[(0u64, [0u32; 2]); BATCH]; 2];
    let batches = keys.len().div_ceil(BATCH);
    for step in 0..=batches {
        for (place, item) in ahead[step & 1].iter_mut().zip(keys.iter().skip(step * BATCH)) {
            let hash = item.hash(key);
            *place = (hash, pair_of(hash));
            slots.fetch(place.1);
        }
        let Some(before) = step.checked_sub(1) else { continue };
        let range = before * BATCH..keys.len().min(step * BATCH);
        let items = keys[range.clone()].iter().zip(&ahead[before & 1]);
        for (out, (item, &(hash, pair))) in out[range].iter_mut().zip(items) {
            *out = answer(item, hash, pair);
        }
    }
}

/// A cuckoo table that stores digests and no keys (partial-key cuckoo hashing).
///
/// 1.05 (d + l) bits per key for digests of d and values of l bits. Two keys with one digest and a
/// bucket in common are one entry: the later one's value is given for both ([`insert`](Self::insert)
/// reports it). An entry's other bucket follows from its digest, so it can be moved without its key.
#[derive(Clone, Debug)]
pub struct PartialCuckoo {
    key: HashKey,
    len: usize,
    capacity: usize,
    slots: Slots,
    search: Search,
}

impl PartialCuckoo {
    /// A table of `capacity` entries at 95 % load, with digests of `digest_bits` (1..=32) and
    /// values of `value_bits` (1..=64) bits.
    pub fn new(digest_bits: u32, value_bits: u32, capacity: usize, seed: u64) -> Self {
        let slots = Slots::new(digest_bits, value_bits, capacity);
        let key = HashKey::from_seed(seed);
        Self { key, len: 0, capacity: capacity.max(1), slots, search: Search::default() }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all allocations.
    pub fn bytes(&self) -> usize {
        self.slots.packed.bytes()
    }

    /// The chance that an unknown key is answered. Its two buckets belong to its digest alone, and
    /// one of them at most has it.
    pub fn false_positive_rate(&self) -> f64 {
        2.0 * self.slots.digest_share(self.len)
    }

    #[inline(always)]
    fn pair(&self, hash: u64, digest: u32) -> [u32; 2] {
        let first = scale((hash >> 32) as u32, self.slots.buckets);
        [first, self.other(first, digest)]
    }

    /// The two buckets of a digest add up to a number that follows from it, modulo their count.
    #[inline(always)]
    fn other(&self, bucket: u32, digest: u32) -> u32 {
        let count = self.slots.buckets;
        let sum = scale(digest.wrapping_mul(0x9e37_79b1), count);
        if sum >= bucket { sum - bucket } else { sum + (count - bucket) }
    }

    #[inline(always)]
    fn place(&self, hash: u64) -> (u32, [u32; 2]) {
        let digest = self.slots.digest_of(hash);
        (digest, self.pair(hash, digest))
    }

    /// The value of a key, or of another with the same digest.
    #[inline]
    pub fn get<K: Key>(&self, key: &K) -> Option<u64> {
        let (digest, pair) = self.place(key.hash(&self.key));
        self.slots.find(digest, pair).map(|(bucket, slot)| self.slots.value(bucket, slot))
    }

    /// The values of many keys.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn lookup_batch<K: Key>(&self, keys: &[K], out: &mut [Option<u64>]) {
        batched(
            (&self.key, &self.slots),
            keys,
            out,
            |hash| self.place(hash).1,
            |_, hash, pair| {
                let (bucket, slot) = self.slots.find(self.slots.digest_of(hash), pair)?;
                Some(self.slots.value(bucket, slot))
            },
        );
    }

    /// Adds an entry, or replaces the value of the one that has the key's digest: the key's own,
    /// or another's that it shadows. Returns that one's value.
    ///
    /// # Errors
    /// [`Error::Full`] at the capacity.
    pub fn insert<K: Key>(&mut self, key: &K, value: u64) -> Result<Option<u64>, Error> {
        let (digest, pair) = self.place(key.hash(&self.key));
        if let Some((bucket, slot)) = self.slots.find(digest, pair) {
            let former = self.slots.value(bucket, slot);
            self.slots.write(bucket, slot, digest, value);
            return Ok(Some(former));
        }
        let full = Error::Full { entries: self.len, slots: self.slots.buckets as usize * SLOTS };
        if self.len == self.capacity {
            return Err(full);
        }
        let mut search = std::mem::take(&mut self.search);
        let (slots, mut chosen) = (&self.slots, Path::default());
        let found = search.find(
            pair,
            |bucket| slots.find_in(0, bucket).is_some(),
            |bucket, slot| self.other(bucket, slots.digest(bucket, slot)),
            |path| {
                chosen = *path;
                true
            },
        );
        self.search = search;
        if !found {
            return Err(full);
        }
        move_along(&self.slots, &chosen, digest, value);
        self.len += 1;
        Ok(None)
    }

    /// Removes the entry with the key's digest; returns its value. The key must be in the table, or
    /// another key's entry may go.
    pub fn remove<K: Key>(&mut self, key: &K) -> Option<u64> {
        let (digest, pair) = self.place(key.hash(&self.key));
        let (bucket, slot) = self.slots.find(digest, pair)?;
        let former = self.slots.value(bucket, slot);
        self.slots.write(bucket, slot, 0, 0);
        self.len -= 1;
        Some(former)
    }
}

/// Moves the entries of a path, last one first, and writes a new one at its root.
fn move_along(slots: &Slots, path: &Path, digest: u32, value: u64) {
    let last = path.buckets[path.len - 1];
    let mut free = slots.find_in(0, last).unwrap_or(0);
    for at in (0..path.len).rev() {
        let bucket = path.buckets[at];
        match at.checked_sub(1) {
            Some(before) => {
                let (from, slot) = (path.buckets[before], usize::from(path.slots[before]));
                slots.write(bucket, free, slots.digest(from, slot), slots.value(from, slot));
                free = slot;
            }
            None => slots.write(bucket, free, digest, value),
        }
    }
}
