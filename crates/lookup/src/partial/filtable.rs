//! The Cuckoo Filtable: digests that never shadow a valid key (dissertation 3.4.2).

use super::{Slots, batched, pair};
use crate::cuckoo::Cuckoo;
use crate::cuckoo::path::{Path, SLOTS, Search};
use crate::ludo::packed::ones;
use crate::{Error, HashKey, Key};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

/// What a change of a [`Filtable`] does to its views: slots to be written, then whole keys.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FiltableUpdate<K> {
    number: u64,
    /// Bucket, slot, digest, value.
    slots: Vec<(u32, u8, u32, u64)>,
    keys: Vec<(K, Option<u64>)>,
}

impl<K> FiltableUpdate<K> {
    /// The number of the change; the first one has number 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// How many slots of level 1 are written.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// How many keys of level 2 come, change or go.
    pub fn keys(&self) -> usize {
        self.keys.len()
    }
}

/// The lookup face of a [`Filtable`]: digests and values, and a table of whole keys behind them.
#[derive(Clone, Debug)]
pub struct FiltableView<K> {
    key: HashKey,
    number: u64,
    slots: Slots,
    level2: Cuckoo<K>,
}

impl<K: Key> FiltableView<K> {
    /// The value of a key. An unknown key gets one with the chance of
    /// [`false_positive_rate`](Filtable::false_positive_rate).
    #[inline]
    pub fn get(&self, key: &K) -> Option<u64> {
        let hash = key.hash(&self.key);
        self.answer(key, hash, pair(hash, self.slots.buckets))
    }

    #[inline(always)]
    fn answer(&self, key: &K, hash: u64, pair: [u32; 2]) -> Option<u64> {
        match self.slots.find(self.slots.digest_of(hash), pair) {
            Some((bucket, slot)) => Some(self.slots.value(bucket, slot)),
            None if self.level2.is_empty() => None,
            None => self.level2.get(key),
        }
    }

    /// The values of many keys.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn lookup_batch(&self, keys: &[K], out: &mut [Option<u64>]) {
        batched(
            (&self.key, &self.slots),
            keys,
            out,
            |hash| pair(hash, self.slots.buckets),
            |key, hash, pair| self.answer(key, hash, pair),
        );
    }

    /// Applies the next update of the table that the view was copied from.
    ///
    /// Returns whether it was the next one; if not, nothing is changed.
    #[must_use]
    pub fn apply(&mut self, update: &FiltableUpdate<K>) -> bool {
        if update.number != self.number + 1 {
            return false;
        }
        self.number = update.number;
        for &(bucket, slot, digest, value) in &update.slots {
            self.slots.write(bucket, slot.into(), digest, value);
        }
        for &(key, value) in &update.keys {
            match value {
                Some(value) => drop(self.level2.insert(key, value)),
                None => drop(self.level2.remove(&key)),
            }
        }
        true
    }

    /// Keys of level 2.
    pub fn level2_len(&self) -> usize {
        self.level2.len()
    }

    /// Bytes of all allocations.
    pub fn bytes(&self) -> usize {
        self.slots.packed.bytes() + self.level2.bytes()
    }

    /// Whether both answer every key alike, slot for slot.
    pub fn same_as(&self, other: &Self) -> bool {
        let same = |(key, value): (K, u64)| other.level2.get(&key) == Some(value);
        self.slots == other.slots
            && self.level2.len() == other.level2.len()
            && self.level2.iter().all(same)
    }
}

/// The keys of a collision-avoidance set with one digest.
#[derive(Clone, Copy, Debug)]
struct Avoid {
    keys: u32,
    /// Hash of the one of them that stands in level 1; there is one at most, and then no other.
    level1: Option<u64>,
}

/// The maintainer of a two-level table: digests in level 1, keys whose digests collide in level 2.
///
/// The *collision-avoidance set* of a bucket holds all valid keys that could stand there. A new key
/// whose digest is in the sets of its two buckets goes to level 2, and the key that it collides
/// with goes there too, if it stands in level 1. So no valid key ever meets another one's digest.
#[derive(Clone, Debug)]
pub struct Filtable<K> {
    view: FiltableView<K>,
    hashes: Vec<[u64; SLOTS]>,
    /// Empty until the first key comes, which fills the unused slots.
    keys: Vec<[K; SLOTS]>,
    avoid: HashMap<(u32, u32), Avoid, BuildHasherDefault<WordHasher>>,
    len: usize,
    capacity: usize,
    search: Search,
    update: FiltableUpdate<K>,
}

impl<K: Key> Filtable<K> {
    /// A table of `capacity` keys, with digests of `digest_bits` (1..=32) and values of
    /// `value_bits` (1..=64) bits.
    pub fn new(digest_bits: u32, value_bits: u32, capacity: usize, seed: u64) -> Self {
        let slots = Slots::new(digest_bits, value_bits, capacity);
        let buckets = slots.buckets as usize;
        let level2 = Cuckoo::new(value_bits, 16, seed ^ 1);
        Self {
            view: FiltableView { key: HashKey::from_seed(seed), number: 0, slots, level2 },
            hashes: vec![[0; SLOTS]; buckets],
            keys: Vec::new(),
            avoid: HashMap::default(),
            len: 0,
            capacity: capacity.max(1),
            search: Search::default(),
            update: FiltableUpdate { number: 0, slots: Vec::new(), keys: Vec::new() },
        }
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The view whole.
    pub fn view(&self) -> &FiltableView<K> {
        &self.view
    }

    /// The message of the last change.
    pub fn update(&self) -> &FiltableUpdate<K> {
        &self.update
    }

    /// The chance that a key that is not in the table gets a value. Equation 3.8 takes all slots for
    /// independent; here no bucket has a digest twice, and `2^f - 1` digests are in use.
    pub fn false_positive_rate(&self) -> f64 {
        let level1 = self.len - self.view.level2.len();
        1.0 - (1.0 - self.view.slots.digest_share(level1)).powi(2)
    }

    fn pair(&self, hash: u64) -> [u32; 2] {
        pair(hash, self.view.slots.buckets)
    }

    /// Where a key stands in level 1.
    fn find(&self, key: &K, hash: u64) -> Option<(u32, usize)> {
        let (bucket, slot) = self.find_hash(hash)?;
        (self.keys[bucket as usize][slot] == *key).then_some((bucket, slot))
    }

    fn find_hash(&self, hash: u64) -> Option<(u32, usize)> {
        let place = self.view.slots.find(self.view.slots.digest_of(hash), self.pair(hash))?;
        (self.hashes[place.0 as usize][place.1] == hash).then_some(place)
    }

    /// The value of a key; `None` for a key that is not in the table.
    pub fn get(&self, key: &K) -> Option<u64> {
        match self.find(key, key.hash(&self.view.key)) {
            Some((bucket, slot)) => Some(self.view.slots.value(bucket, slot)),
            None => self.view.level2.get(key),
        }
    }

    fn begin(&mut self) {
        self.view.number += 1;
        self.update.number = self.view.number;
        self.update.slots.clear();
        self.update.keys.clear();
    }

    fn write(&mut self, bucket: u32, slot: usize, digest: u32, value: u64) {
        self.view.slots.write(bucket, slot, digest, value);
        self.update.slots.push((bucket, slot as u8, digest, value));
    }

    fn write_key(&mut self, key: K, value: Option<u64>) -> Option<u64> {
        self.update.keys.push((key, value));
        match value {
            Some(value) => self.view.level2.insert(key, value),
            None => self.view.level2.remove(&key),
        }
    }

    /// Adds a key or changes its value (the low `value_bits` bits); returns the former value.
    ///
    /// # Errors
    /// [`Error::Full`] at the capacity; nothing is changed then.
    pub fn insert(&mut self, key: K, value: u64) -> Result<Option<u64>, Error> {
        let value = value & ones(self.view.slots.value_bits);
        let hash = key.hash(&self.view.key);
        if let Some((bucket, slot)) = self.find(&key, hash) {
            let former = self.view.slots.value(bucket, slot);
            self.begin();
            self.write(bucket, slot, self.view.slots.digest_of(hash), value);
            return Ok(Some(former));
        }
        if self.view.level2.get(&key).is_some() {
            self.begin();
            return Ok(self.write_key(key, Some(value)));
        }
        if self.len == self.capacity {
            let slots = self.view.slots.buckets as usize * SLOTS;
            return Err(Error::Full { entries: self.len, slots });
        }
        self.begin();
        let alone = self.join_sets(hash);
        if !(alone && self.place(hash, key, value)) {
            self.write_key(key, Some(value));
        }
        self.len += 1;
        Ok(None)
    }

    /// Enters a key into the sets of its buckets. Keys of level 1 that it collides with go to level
    /// 2. Tells whether there was no collision.
    fn join_sets(&mut self, hash: u64) -> bool {
        let digest = self.view.slots.digest_of(hash);
        let mut alone = true;
        for bucket in distinct(self.pair(hash)) {
            let set = self.avoid.entry((bucket, digest));
            let set = set.or_insert(Avoid { keys: 0, level1: None });
            alone &= set.keys == 0;
            set.keys += 1;
            if let Some(other) = set.level1.take() {
                self.demote(other, digest);
            }
        }
        alone
    }

    /// Moves a key from level 1 to level 2.
    fn demote(&mut self, hash: u64, digest: u32) {
        self.note_level1(hash, digest, None);
        if let Some((bucket, slot)) = self.find_hash(hash) {
            let (key, value) =
                (self.keys[bucket as usize][slot], self.view.slots.value(bucket, slot));
            self.write(bucket, slot, 0, 0);
            self.write_key(key, Some(value));
        }
    }

    fn note_level1(&mut self, hash: u64, digest: u32, level1: Option<u64>) {
        for bucket in self.pair(hash) {
            if let Some(set) = self.avoid.get_mut(&(bucket, digest)) {
                set.level1 = level1;
            }
        }
    }

    /// Puts a key into level 1, if there is a path to a free slot.
    fn place(&mut self, hash: u64, key: K, value: u64) -> bool {
        if self.keys.is_empty() {
            self.keys = vec![[key; SLOTS]; self.hashes.len()];
        }
        let mut search = std::mem::take(&mut self.search);
        let mut path = Path::default();
        let slots = &self.view.slots;
        let found = search.find(
            self.pair(hash),
            |bucket| slots.find_in(0, bucket).is_some(),
            |bucket, slot| {
                let [first, second] = self.pair(self.hashes[bucket as usize][slot]);
                if first == bucket { second } else { first }
            },
            |proposed| {
                path = *proposed;
                true
            },
        );
        self.search = search;
        if !found {
            return false;
        }
        let last = path.buckets[path.len - 1];
        let mut free = self.view.slots.find_in(0, last).unwrap_or(0);
        for at in (0..path.len).rev() {
            let to = path.buckets[at];
            let (entry, next) = match at.checked_sub(1) {
                Some(before) => {
                    let (from, slot) =
                        (path.buckets[before] as usize, usize::from(path.slots[before]));
                    let value = self.view.slots.value(from as u32, slot);
                    ((self.hashes[from][slot], self.keys[from][slot], value), slot)
                }
                None => ((hash, key, value), 0),
            };
            let digest = self.view.slots.digest_of(entry.0);
            self.write(to, free, digest, entry.2);
            self.hashes[to as usize][free] = entry.0;
            self.keys[to as usize][free] = entry.1;
            free = next;
        }
        self.note_level1(hash, self.view.slots.digest_of(hash), Some(hash));
        true
    }

    /// Takes a key out; returns its value. (Keys of level 2 stay there, also when the key that they
    /// collided with has gone.)
    pub fn remove(&mut self, key: &K) -> Option<u64> {
        let hash = key.hash(&self.view.key);
        let digest = self.view.slots.digest_of(hash);
        let former = match self.find(key, hash) {
            Some((bucket, slot)) => {
                let former = self.view.slots.value(bucket, slot);
                self.begin();
                self.write(bucket, slot, 0, 0);
                self.note_level1(hash, digest, None);
                former
            }
            None => {
                let former = self.view.level2.get(key)?;
                self.begin();
                self.write_key(*key, None);
                former
            }
        };
        for bucket in distinct(self.pair(hash)) {
            if let Entry::Occupied(mut set) = self.avoid.entry((bucket, digest)) {
                set.get_mut().keys -= 1;
                if set.get().keys == 0 {
                    set.remove();
                }
            }
        }
        self.len -= 1;
        Some(former)
    }

    /// Bytes of the maintainer's own allocations, its view's included.
    pub fn control_bytes(&self) -> usize {
        // An entry of the standard table takes its size and one byte.
        self.view.bytes()
            + self.hashes.capacity() * size_of::<[u64; SLOTS]>()
            + self.keys.capacity() * size_of::<[K; SLOTS]>()
            + self.avoid.capacity() * (size_of::<((u32, u32), Avoid)>() + 1)
    }
}

/// A key's two buckets may be one.
fn distinct([first, second]: [u32; 2]) -> impl Iterator<Item = u32> {
    std::iter::once(first).chain((second != first).then_some(second))
}

/// Mixes two words that are hashes already.
#[derive(Clone, Default, Debug)]
struct WordHasher(u64);

impl Hasher for WordHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(byte.into()));
    }

    fn write_u32(&mut self, word: u32) {
        let mixed = (self.0 ^ u64::from(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 29);
    }

    fn finish(&self) -> u64 {
        self.0.wrapping_mul(0xd6e8_feb8_6659_fd93)
    }
}
