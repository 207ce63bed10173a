//! The Cuckoo Filtable: digests that never shadow a valid key (dissertation 3.4.2).

use super::slots::Slots;
use super::update::{FiltableKind, FiltableUpdate};
use super::view::FiltableView;
use crate::cuckoo::path::{Path, SLOTS, Search};
use crate::cuckoo::{Cuckoo, LOAD, pair};
use crate::memory::packed::ones;
use crate::{Error, HashKey, Key};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

/// By how much a full table grows.
const GROWTH: f64 = 1.5;

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
///
/// Each change leaves one [`FiltableUpdate`] behind ([`update`](Self::update)); applied in order,
/// they keep a view equal to [`view`](Self::view). A table that reaches 95 % load is built anew at
/// 1.5 times the size under another hash key, which is one message too.
///
/// ```
/// use weir_lookup::Filtable;
///
/// let mut table: Filtable<u64> = Filtable::new(10, 12, 1000, 1);
/// let mut view = table.view().clone();
/// table.insert(7, 300)?;
/// view.apply_bytes(&table.update().to_bytes())?;
/// assert_eq!(view.get(&7u64), Some(300)); // always: no key of the table shadows another
/// assert_eq!(view.get(&8u64), None); // nearly always: an alien may share a digest
/// # Ok::<(), weir_lookup::Error>(())
/// ```
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
    rebuilds: u64,
}

impl<K: Key> Filtable<K> {
    /// A table with digests of `digest_bits` (1..=32) and values of `value_bits` (1..=64) bits, and
    /// at first room for `capacity` keys. `seed` makes every run with it the same.
    ///
    /// # Panics
    /// If a width is another.
    pub fn new(digest_bits: u32, value_bits: u32, capacity: usize, seed: u64) -> Self {
        let key = HashKey::from_seed(seed);
        let table = key.hash_word(capacity as u64);
        Self::empty(table, key, Slots::new(digest_bits, value_bits, capacity), capacity)
    }

    fn empty(table: u64, key: HashKey, slots: Slots, capacity: usize) -> Self {
        let (digest_bits, value_bits) = (slots.digest_bits, slots.value_bits);
        let buckets = slots.buckets as usize;
        let level2 = Cuckoo::new(value_bits, 16, key.hash_word(1));
        Self {
            view: FiltableView { table, number: 0, key, slots, level2 },
            hashes: vec![[0; SLOTS]; buckets],
            keys: Vec::new(),
            avoid: HashMap::default(),
            len: 0,
            capacity: capacity.max(1),
            search: Search::default(),
            update: FiltableUpdate::new(table, digest_bits, value_bits),
            rebuilds: 0,
        }
    }

    /// Number of keys, on both levels.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many keys fit before the table grows.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How often the table was built anew.
    pub fn rebuilds(&self) -> u64 {
        self.rebuilds
    }

    /// The table as its readers have it: digests and values, and level 2.
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

    /// All keys with their values, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (K, u64)> + '_ {
        let slots = &self.view.slots;
        let used = slots.all().filter(|&(bucket, slot)| slots.digest(bucket, slot) != 0);
        let level1 = used
            .map(|(bucket, slot)| (self.keys[bucket as usize][slot], slots.value(bucket, slot)));
        level1.chain(self.view.level2.iter())
    }

    fn begin(&mut self, kind: FiltableKind) {
        self.view.number += 1;
        self.update.begin(kind, self.view.number);
    }

    fn clear(&mut self, bucket: u32, slot: usize) {
        self.view.slots.write(bucket, slot, 0, 0);
        self.update.cleared.push((bucket, slot as u8));
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
    /// [`Error::Full`] if the table is full and cannot be made larger, as its buckets are numbered
    /// with 32 bits; nothing is changed then.
    pub fn insert(&mut self, key: K, value: u64) -> Result<Option<u64>, Error> {
        let value = value & ones(self.view.slots.value_bits);
        let hash = key.hash(&self.view.key);
        if let Some((bucket, slot)) = self.find(&key, hash) {
            let former = self.view.slots.value(bucket, slot);
            self.begin(FiltableKind::Change);
            self.view.slots.write(bucket, slot, self.view.slots.digest_of(hash), value);
            self.update.path.push((bucket, slot as u8));
            self.update.value = value;
            return Ok(Some(former));
        }
        if self.view.level2.get(&key).is_some() {
            self.begin(FiltableKind::Change);
            return Ok(self.write_key(key, Some(value)));
        }
        if self.len == self.capacity {
            let capacity = (self.capacity as f64 * GROWTH).ceil() as usize;
            return self.rebuild(capacity, Some((key, value))).map(|()| None);
        }
        self.begin(FiltableKind::Insert);
        self.add(key, hash, value);
        Ok(None)
    }

    /// Adds a key that is not in the table. One for which no path leads to a free slot goes to level
    /// 2 as well, which always has room.
    fn add(&mut self, key: K, hash: u64, value: u64) {
        let alone = self.join_sets(hash);
        if !(alone && self.place(hash, key, value)) {
            self.write_key(key, Some(value));
        }
        self.len += 1;
    }

    /// Builds the table anew for `capacity` keys, to make it larger before many keys come or smaller
    /// after many went. Keys of level 2 whose collisions have gone come back to level 1.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn resize(&mut self, capacity: usize) -> Result<(), Error> {
        self.rebuild(capacity.max(self.len), None)
    }

    /// One change: all keys, and a new one, under another hash key. O(n).
    fn rebuild(&mut self, capacity: usize, new: Option<(K, u64)>) -> Result<(), Error> {
        let FiltableView { table, number, key, ref slots, .. } = self.view;
        if capacity as f64 / LOAD / SLOTS as f64 + 9.0 >= f64::from(u32::MAX) {
            let slots = slots.buckets as usize * SLOTS;
            return Err(Error::Full { entries: self.len, slots });
        }
        let key = HashKey::from_seed(key.hash_word(number));
        let slots = Slots::new(slots.digest_bits, slots.value_bits, capacity);
        let mut next = Self::empty(table, key, slots, capacity);
        for (key, value) in self.iter().chain(new) {
            next.update.begin(FiltableKind::Insert, 0);
            next.add(key, key.hash(&next.view.key), value);
        }
        next.view.number = number + 1;
        next.update.begin(FiltableKind::Rebuild, number + 1);
        next.update.whole = Some(Box::new(next.view.clone()));
        next.rebuilds = self.rebuilds + 1;
        *self = next;
        Ok(())
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
            self.clear(bucket, slot);
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
        let places = self.view.slots.places(&path);
        let places = &places[..path.len];
        let digest = self.view.slots.digest_of(hash);
        self.view.slots.shift(places, digest, value);
        for step in places.windows(2).rev() {
            let [(from, old), (to, new)] =
                [step[0], step[1]].map(|(b, s)| (b as usize, s as usize));
            self.hashes[to][new] = self.hashes[from][old];
            self.keys[to][new] = self.keys[from][old];
        }
        let (bucket, slot) = (places[0].0 as usize, usize::from(places[0].1));
        self.hashes[bucket][slot] = hash;
        self.keys[bucket][slot] = key;
        (self.update.digest, self.update.value) = (digest, value);
        self.update.path.extend(places);
        self.note_level1(hash, digest, Some(hash));
        true
    }

    /// Takes a key out; returns its value. (Keys of level 2 stay there, also when the key that they
    /// collided with has gone, until the table is built anew.)
    pub fn remove(&mut self, key: &K) -> Option<u64> {
        let hash = key.hash(&self.view.key);
        let digest = self.view.slots.digest_of(hash);
        let former = match self.find(key, hash) {
            Some((bucket, slot)) => {
                let former = self.view.slots.value(bucket, slot);
                self.begin(FiltableKind::Remove);
                self.clear(bucket, slot);
                self.note_level1(hash, digest, None);
                former
            }
            None => {
                let former = self.view.level2.get(key)?;
                self.begin(FiltableKind::Remove);
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
