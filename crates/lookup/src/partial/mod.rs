//! Cuckoo tables of digests: the plain one, and the Cuckoo Filtable without key shadowing.

mod filtable;
mod slots;
mod snapshot;
mod update;
mod view;

pub use filtable::Filtable;
pub use update::{FiltableKind, FiltableUpdate};
pub use view::FiltableView;

use crate::cuckoo::path::{Path, SLOTS, Search};
use crate::{Error, HashKey, Key};
use slots::{Slots, batched};
use weir_hash::scale;

/// A cuckoo table that stores digests and no keys (partial-key cuckoo hashing).
///
/// 1.05 (d + l) bits per key for digests of d and values of l bits. Two keys with one digest and a
/// bucket in common are one entry: the later one's value is given for both ([`insert`](Self::insert)
/// reports it). An entry's other bucket follows from its digest, so it can be moved without its key.
///
/// It cannot grow: which of more buckets an entry belongs to would follow from the hash of its key,
/// which is not kept. A table whose maintainer has the keys is [`Filtable`].
///
/// ```
/// use weir_lookup::PartialCuckoo;
///
/// let mut map = PartialCuckoo::new(16, 12, 1000, 1);
/// map.insert(&7u64, 300)?;
/// assert_eq!(map.get(&7u64), Some(300));
/// assert_eq!(map.get(&8u64), None);
/// assert!(map.false_positive_rate() < 8.0 / 65_536.0); // an alien that gets a value all the same
/// # Ok::<(), weir_lookup::Error>(())
/// ```
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

    /// Number of entries; keys that share one count once.
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
    pub fn get_batch<K: Key>(&self, keys: &[K], out: &mut [Option<u64>]) {
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
    /// [`Error::Full`] at the capacity, or if no path leads to a free slot; nothing is changed then.
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
        let places = self.slots.places(&chosen);
        self.slots.shift(&places[..chosen.len], digest, value);
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
