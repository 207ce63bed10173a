//! The maintainer of a SetSep: whole keys, and updates that build as little as they can.

use super::{BUCKETS, KEYS, MAX_TRIES, SetSep, candidate, seeds, solve};
use crate::memory::packed::ones;
use crate::{Error, HashKey, Key};

/// By how much a full map grows.
const GROWTH: f64 = 1.5;

/// A key with its hash and its value.
#[derive(Clone, Copy, Debug)]
struct Item<K> {
    key: K,
    hash: u64,
    value: u64,
}

/// A map from keys to values of 1..=64 bits that keeps a [`SetSep`] up to date.
///
/// A change of a value finds new seeds for the bits that differ, an insertion for all bits of its
/// group, a removal changes nothing. A group that finds no seed any more has its block built anew,
/// 930 keys or so, and if it still finds none its keys go to the plain table. A map that is full is
/// built anew at 1.5 times the size. None of that is bounded as Ludo's and Othello's updates are,
/// which is what SetSep is compared for (dissertation 4.6.2, Fig. 4.16).
///
/// ```
/// use weir_lookup::SetSepMap;
///
/// let mut map: SetSepMap<u64> = SetSepMap::new(8, 1000, 1);
/// map.insert(7, 200)?;
/// assert_eq!((map.get(&7), map.view().get(&7u64)), (Some(200), 200));
/// assert_eq!(map.get(&8), None); // the maintainer is exact, its view is not
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SetSepMap<K> {
    view: SetSep,
    buckets: Vec<Vec<Item<K>>>,
    len: usize,
    capacity: usize,
    rebuilt_blocks: u64,
    rebuilds: u64,
}

impl<K: Key> SetSepMap<K> {
    /// A map for values of `value_bits` (1..=64) bits and at first `capacity` keys. `seed` makes
    /// every run with it the same.
    ///
    /// # Panics
    /// If the width is another.
    pub fn new(value_bits: u32, capacity: usize, seed: u64) -> Self {
        Self::with_key(value_bits, capacity, HashKey::from_seed(seed))
    }

    fn with_key(value_bits: u32, capacity: usize, key: HashKey) -> Self {
        let view = SetSep::empty(value_bits, capacity, key);
        let buckets = (0..view.buckets).map(|_| Vec::new()).collect();
        let capacity = view.blocks() * KEYS;
        Self { view, buckets, len: 0, capacity, rebuilt_blocks: 0, rebuilds: 0 }
    }

    /// A map of different keys, built whole.
    ///
    /// # Errors
    /// [`Error::KeysCollide`] if two keys are equal, or the key type's hash is broken.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn build(value_bits: u32, items: &[(K, u64)], seed: u64) -> Result<Self, Error> {
        let mut map = Self::new(value_bits, 0, seed);
        map.rebuild(items.len(), items.iter().copied())?;
        map.rebuilds = 0;
        Ok(map)
    }

    /// Number of keys in the map.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many keys fit before the map grows.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How often a block was built anew for a group, and how often the whole map.
    pub fn rebuilds(&self) -> (u64, u64) {
        (self.rebuilt_blocks, self.rebuilds)
    }

    /// The lookup face: the map without keys.
    pub fn view(&self) -> &SetSep {
        &self.view
    }

    /// Bucket of a key, its hash, and its place in the bucket.
    fn find(&self, key: &K) -> (usize, u64, Option<usize>) {
        let hash = key.hash(&self.view.key);
        let bucket = self.view.bucket(hash) as usize;
        (bucket, hash, self.buckets[bucket].iter().position(|item| item.key == *key))
    }

    /// The value of a key; exact.
    pub fn get(&self, key: &K) -> Option<u64> {
        let (bucket, _, at) = self.find(key);
        at.map(|at| self.buckets[bucket][at].value)
    }

    /// All keys with their values, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (K, u64)> + '_ {
        self.buckets.iter().flatten().map(|item| (item.key, item.value))
    }

    /// Adds a key or changes its value, of which the low bits count; returns the former value.
    ///
    /// # Errors
    /// [`Error::KeysCollide`] if the key type's hash is broken; nothing is changed then.
    pub fn insert(&mut self, key: K, value: u64) -> Result<Option<u64>, Error> {
        let value = value & ones(self.view.value_bits);
        let (bucket, hash, at) = self.find(&key);
        if let Some(at) = at {
            let item = &mut self.buckets[bucket][at];
            let former = std::mem::replace(&mut item.value, value);
            self.change(bucket, hash, former ^ value, value);
            return Ok(Some(former));
        }
        let twin = self.buckets[bucket].iter().any(|item| item.hash == hash);
        if twin || self.len == self.capacity {
            let factor = if twin { 1.0 } else { GROWTH };
            let capacity = (self.capacity as f64 * factor) as usize;
            return self.rebuild(capacity, [(key, value)].into_iter()).map(|()| None);
        }
        self.buckets[bucket].push(Item { key, hash, value });
        self.len += 1;
        self.settle(bucket);
        Ok(None)
    }

    /// Takes a key out; returns its value.
    pub fn remove(&mut self, key: &K) -> Option<u64> {
        let (bucket, hash, at) = self.find(key);
        let item = self.buckets[bucket].swap_remove(at?);
        self.len -= 1;
        self.view.forget(hash);
        Some(item.value)
    }

    /// Hashes and values of the keys of a bucket's group, and where the group begins.
    fn group_of(&self, bucket: usize) -> (u64, Vec<(u64, u64)>) {
        let first = bucket / BUCKETS * BUCKETS;
        let group = |bucket: usize| {
            let choice = self.view.blocks.read(self.view.choice_bit(bucket), 2) as usize;
            candidate(bucket % BUCKETS, choice)
        };
        let own = group(bucket);
        let buckets = (first..first + BUCKETS).filter(|&other| group(other) == own);
        let items = buckets.flat_map(|bucket| &self.buckets[bucket]);
        let items = items.map(|item| (item.hash, item.value)).collect();
        (self.view.group_bit(bucket / BUCKETS, own), items)
    }

    /// Changes some bits of the value of a key of this bucket.
    fn change(&mut self, bucket: usize, hash: u64, bits: u64, value: u64) {
        let (start, items) = self.group_of(bucket);
        if self.view.is_failed(start) {
            self.view.remember(hash, value);
            return;
        }
        for bit in (0..self.view.value_bits).filter(|bit| bits >> bit & 1 != 0) {
            match solve(&items, bit, seeds(bit)) {
                Some(field) => self.view.write(start, bit, field),
                None => return self.settle(bucket),
            }
        }
    }

    /// Builds the group of a bucket anew, or its block.
    fn settle(&mut self, bucket: usize) {
        let (start, items) = self.group_of(bucket);
        let had_failed = self.view.is_failed(start);
        if self.view.build_group(start, &items) {
            if had_failed {
                items.iter().for_each(|&(hash, _)| self.view.forget(hash));
            }
        } else if had_failed {
            // A new choice of groups was tried before.
            items.iter().for_each(|&(hash, value)| self.view.remember(hash, value));
        } else {
            self.rebuild_block(bucket / BUCKETS);
            self.rebuilt_blocks += 1;
        }
    }

    fn rebuild_block(&mut self, block: usize) {
        let buckets = block * BUCKETS..(block + 1) * BUCKETS;
        let items = || {
            let numbered = (0u32..).zip(&self.buckets[buckets.clone()]);
            numbered.flat_map(|(at, items)| items.iter().map(move |i| (at, i.hash, i.value)))
        };
        if !self.view.fallback.is_empty() {
            items().for_each(|(_, hash, _)| self.view.forget(hash));
        }
        let failed = self.view.build_block(block, items());
        failed.into_iter().for_each(|(hash, value)| self.view.remember(hash, value));
    }

    /// The whole map with new keys, under another hash key.
    fn rebuild(
        &mut self,
        capacity: usize,
        new: impl Iterator<Item = (K, u64)> + Clone,
    ) -> Result<(), Error> {
        let ones = ones(self.view.value_bits);
        let mut hash_key = self.view.key;
        let mut len = 0;
        for _ in 0..MAX_TRIES {
            hash_key = HashKey::from_seed(hash_key.hash_word(self.rebuilds));
            let mut next = Self::with_key(self.view.value_bits, capacity, hash_key);
            let mut alone = true;
            for (key, value) in self.iter().chain(new.clone()) {
                let (bucket, hash, _) = next.find(&key);
                let bucket = &mut next.buckets[bucket];
                alone &= bucket.iter().all(|item| item.hash != hash);
                bucket.push(Item { key, hash, value: value & ones });
                next.len += 1;
            }
            if alone {
                (0..next.view.blocks()).for_each(|block| next.rebuild_block(block));
                (next.rebuilt_blocks, next.rebuilds) = (self.rebuilt_blocks, self.rebuilds + 1);
                *self = next;
                return Ok(());
            }
            len = next.len;
        }
        Err(Error::KeysCollide { keys: len, tries: MAX_TRIES })
    }

    /// Bytes of the maintainer's own allocations, its view's included.
    pub fn control_bytes(&self) -> usize {
        let items: usize = self.buckets.iter().map(Vec::capacity).sum();
        self.view.bytes()
            + self.buckets.capacity() * size_of::<Vec<Item<K>>>()
            + items * size_of::<Item<K>>()
    }
}

impl SetSep {
    /// Puts a key into the plain table, or changes its value there.
    fn remember(&mut self, hash: u64, value: u64) {
        match self.fallback.binary_search_by_key(&hash, |&(hash, _)| hash) {
            Ok(at) => self.fallback[at].1 = value,
            Err(at) => self.fallback.insert(at, (hash, value)),
        }
    }

    /// Takes a key out of the plain table, if it is there.
    fn forget(&mut self, hash: u64) {
        if let Ok(at) = self.fallback.binary_search_by_key(&hash, |&(hash, _)| hash) {
            self.fallback.remove(at);
        }
    }
}
