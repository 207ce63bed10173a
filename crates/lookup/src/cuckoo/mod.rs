//! A (2,4)-cuckoo table of whole keys: what the compact maps are compared with (docs/cuckoo.md).

pub(crate) mod path;

use crate::memory::packed::{Packed, ones};
use crate::{BATCH, HashKey, Key, prefetch};
use path::{Path, SLOTS, Search};
use weir_hash::scale;

/// Share of the slots that is in use at the capacity.
pub(crate) const LOAD: f64 = 0.95;

/// How many buckets hold `capacity` keys at 95 % load. Small tables get a few more, because many
/// of their keys may share both buckets.
pub(crate) fn buckets_for(capacity: usize) -> u32 {
    let buckets = (capacity as f64 / LOAD / SLOTS as f64).ceil() + 8.0;
    assert!(buckets <= f64::from(u32::MAX), "too many buckets");
    buckets as u32
}

/// The two buckets of a hash.
#[inline(always)]
pub(crate) fn pair(hash: u64, buckets: u32) -> [u32; 2] {
    [scale(hash as u32, buckets), scale((hash >> 32) as u32, buckets)]
}

/// An exact map: each key stands in one of two buckets of four, with its value.
///
/// 1.05 (L + l + 1) bits per key for keys of L and values of l (1..=64) bits; one bit says whether
/// a slot is in use. Grows by half when it is full, under another hash key.
///
/// The table is its own view: who looks up by whole keys needs all that the maintainer has, and a
/// key with its value is the whole message (`Gateway` in `weir-fib` sends such).
///
/// ```
/// use weir_lookup::Cuckoo;
///
/// let mut map: Cuckoo<u64> = Cuckoo::new(12, 1000, 1);
/// assert_eq!(map.insert(7, 300), None);
/// assert_eq!(map.insert(7, 301), Some(300));
/// assert_eq!((map.get(&7), map.get(&8)), (Some(301), None));
/// assert_eq!(map.remove(&7), Some(301));
/// ```
#[derive(Clone, Debug)]
pub struct Cuckoo<K> {
    key: HashKey,
    value_bits: u32,
    len: usize,
    capacity: usize,
    buckets: u32,
    /// Empty until the first key comes, which fills the unused slots.
    keys: Vec<[K; SLOTS]>,
    values: Packed,
    occupied: Packed,
    /// Keys for which no path leads to a free slot although half of the slots are free. Only keys
    /// whose hashes agree under every hash key do that.
    crowded: Vec<(K, u64)>,
    search: Search,
}

impl<K: Key> Cuckoo<K> {
    /// A table for values of `value_bits` (1..=64) bits and at first `capacity` keys. `seed` makes
    /// every run with it the same.
    pub fn new(value_bits: u32, capacity: usize, seed: u64) -> Self {
        Self::with_key(value_bits, capacity, HashKey::from_seed(seed))
    }

    fn with_key(value_bits: u32, capacity: usize, key: HashKey) -> Self {
        assert!((1..=64).contains(&value_bits), "a value has 1..=64 bits");
        let buckets = buckets_for(capacity);
        Self {
            key,
            value_bits,
            len: 0,
            capacity: capacity.max(1),
            buckets,
            keys: Vec::new(),
            values: Packed::new(u64::from(buckets) * SLOTS as u64 * u64::from(value_bits)),
            occupied: Packed::new(u64::from(buckets) * SLOTS as u64),
            crowded: Vec::new(),
            search: Search::default(),
        }
    }

    /// Number of keys in the table.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all allocations.
    pub fn bytes(&self) -> usize {
        self.keys.capacity() * size_of::<[K; SLOTS]>()
            + self.values.bytes()
            + self.occupied.bytes()
            + self.crowded.capacity() * size_of::<(K, u64)>()
    }

    #[inline(always)]
    fn used(&self, bucket: u32) -> u64 {
        self.occupied.read(u64::from(bucket) * SLOTS as u64, SLOTS as u32)
    }

    #[inline(always)]
    fn slot_number(bucket: u32, slot: usize) -> u64 {
        u64::from(bucket) * SLOTS as u64 + slot as u64
    }

    #[inline(always)]
    fn value_bit(&self, bucket: u32, slot: usize) -> u64 {
        Self::slot_number(bucket, slot) * u64::from(self.value_bits)
    }

    #[inline(always)]
    fn find_in(&self, key: &K, pair: [u32; 2]) -> Option<(u32, usize)> {
        pair.into_iter().find_map(|bucket| {
            let keys = self.keys.get(bucket as usize)?;
            let used = self.used(bucket);
            let slot = (0..SLOTS).find(|&slot| keys[slot] == *key && used >> slot & 1 != 0)?;
            Some((bucket, slot))
        })
    }

    #[inline(always)]
    fn get_in(&self, key: &K, pair: [u32; 2]) -> Option<u64> {
        match self.find_in(key, pair) {
            Some((bucket, slot)) => {
                Some(self.values.read(self.value_bit(bucket, slot), self.value_bits))
            }
            None => self.crowded_at(key).map(|at| self.crowded[at].1),
        }
    }

    #[inline(always)]
    fn crowded_at(&self, key: &K) -> Option<usize> {
        // An empty list, which it is, costs one comparison.
        self.crowded.iter().position(|(other, _)| other == key)
    }

    #[inline(always)]
    fn pair(&self, key: &K) -> [u32; 2] {
        pair(key.hash(&self.key), self.buckets)
    }

    /// The value of a key.
    #[inline]
    pub fn get(&self, key: &K) -> Option<u64> {
        self.get_in(key, self.pair(key))
    }

    /// The values of many keys; their buckets are prefetched a batch ahead.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn get_batch(&self, keys: &[K], out: &mut [Option<u64>]) {
        assert_eq!(keys.len(), out.len(), "one result per key");
        let mut ahead = [[[0u32; 2]; BATCH]; 2];
        let batches = keys.len().div_ceil(BATCH);
        for step in 0..=batches {
            let pairs = &mut ahead[step & 1];
            for (pair, key) in pairs.iter_mut().zip(keys.iter().skip(step * BATCH)) {
                *pair = self.pair(key);
                for &bucket in &*pair {
                    prefetch(&self.keys, bucket as usize);
                    self.values.fetch(self.value_bit(bucket, 0), 4 * u64::from(self.value_bits));
                }
            }
            let Some(before) = step.checked_sub(1) else { continue };
            let range = before * BATCH..keys.len().min(step * BATCH);
            let pairs = &ahead[before & 1];
            for ((out, key), &pair) in out[range.clone()].iter_mut().zip(&keys[range]).zip(pairs) {
                *out = self.get_in(key, pair);
            }
        }
    }

    /// Adds a key or changes its value (the low `value_bits` bits); returns the former value.
    pub fn insert(&mut self, key: K, value: u64) -> Option<u64> {
        let pair = self.pair(&key);
        let value = value & ones(self.value_bits);
        if let Some((bucket, slot)) = self.find_in(&key, pair) {
            let bit = self.value_bit(bucket, slot);
            let former = self.values.read(bit, self.value_bits);
            self.values.write(bit, self.value_bits, value);
            return Some(former);
        }
        if let Some(at) = self.crowded_at(&key) {
            return Some(std::mem::replace(&mut self.crowded[at].1, value));
        }
        if self.len == self.capacity {
            self.grow();
        }
        while !self.place(key, value) {
            if self.len < self.capacity / 2 {
                self.crowded.push((key, value));
                break;
            }
            self.grow();
        }
        self.len += 1;
        None
    }

    fn place(&mut self, key: K, value: u64) -> bool {
        if self.keys.is_empty() {
            self.keys = vec![[key; SLOTS]; self.buckets as usize];
        }
        let mut search = std::mem::take(&mut self.search);
        let mut chosen = Path::default();
        let found = search.find(
            self.pair(&key),
            |bucket| self.used(bucket) != 15,
            |bucket, slot| {
                let [first, second] = self.pair(&self.keys[bucket as usize][slot]);
                if first == bucket { second } else { first }
            },
            |path| {
                chosen = *path;
                true
            },
        );
        self.search = search;
        if found {
            self.commit(&chosen, key, value);
        }
        found
    }

    fn commit(&mut self, path: &Path, key: K, value: u64) {
        let last = path.buckets[path.len - 1];
        let mut free = self.used(last).trailing_ones() as usize;
        for at in (0..path.len).rev() {
            let (entry, value) = match at.checked_sub(1) {
                Some(before) => {
                    let (bucket, slot) = (path.buckets[before], usize::from(path.slots[before]));
                    let bit = self.value_bit(bucket, slot);
                    let value = self.values.read(bit, self.value_bits);
                    (self.keys[bucket as usize][slot], value)
                }
                None => (key, value),
            };
            let bucket = path.buckets[at];
            self.keys[bucket as usize][free] = entry;
            self.values.write(self.value_bit(bucket, free), self.value_bits, value);
            self.occupied.write(Self::slot_number(bucket, free), 1, 1);
            if at > 0 {
                free = usize::from(path.slots[at - 1]);
            }
        }
    }

    fn grow(&mut self) {
        let key = HashKey::from_seed(self.key.hash_word(self.capacity as u64));
        let mut larger = Self::with_key(self.value_bits, self.capacity * 3 / 2 + 4, key);
        for (key, value) in self.iter() {
            larger.insert(key, value);
        }
        *self = larger;
    }

    /// Takes a key out; returns its value.
    pub fn remove(&mut self, key: &K) -> Option<u64> {
        let Some((bucket, slot)) = self.find_in(key, self.pair(key)) else {
            let at = self.crowded_at(key)?;
            self.len -= 1;
            return Some(self.crowded.swap_remove(at).1);
        };
        self.occupied.write(Self::slot_number(bucket, slot), 1, 0);
        self.len -= 1;
        Some(self.values.read(self.value_bit(bucket, slot), self.value_bits))
    }

    /// All keys with their values, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (K, u64)> + '_ {
        let slots = self.keys.iter().zip(0u32..).flat_map(move |(keys, bucket)| {
            (0..SLOTS).filter(move |slot| self.used(bucket) >> slot & 1 != 0).map(move |slot| {
                (keys[slot], self.values.read(self.value_bit(bucket, slot), self.value_bits))
            })
        });
        slots.chain(self.crowded.iter().copied())
    }
}
