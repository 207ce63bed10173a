//! The maintainer: whole keys, updates, and the messages for views.

use super::Shape;
use super::core::{AHEAD, Core, Place};
use super::update::{LudoKind, LudoUpdate};
use super::view::LudoView;
use crate::Error;
use crate::memory::packed::ones;
use crate::{HashKey, Key};
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// By how much a full table grows.
const GROWTH: f64 = 1.5;

/// Hash keys that are tried before equal hashes of different keys are an error.
const MAX_TRIES: u32 = 16;

/// Items whose first memory has come, and of which more is on its way.
const NEAR: usize = 9;

/// Items whose buckets have come, so that it can be told which keys will move.
const CLOSE: usize = 4;

/// A map from keys to values of 1..=64 bits that feeds [`LudoView`]s.
///
/// Each change leaves one [`LudoUpdate`] behind ([`update`](Self::update)); applied in order, they
/// keep a view equal to [`view`](Self::view). A table that reaches 95 % load is built anew at 1.5
/// times the size, which is one message too.
///
/// Values stand in the table's own view only; the maintainer adds keys, hashes and the graph of
/// the bucket locator: 40 bytes for a key of 8, apart from the view.
///
/// ```
/// use weir_lookup::Ludo;
///
/// let mut table: Ludo<u64> = Ludo::new(12, 10_000, 1)?;
/// for key in 0..10_000 {
///     table.insert(key, key % 4096)?;
/// }
/// let mut view = table.view().clone(); // elsewhere; no keys in it
/// assert_eq!(view.get(&5000u64), 5000 % 4096);
/// assert!(view.bytes() * 8 < 10_000 * 17);
///
/// table.change(&7, 99)?; // constant time, and one message
/// view.apply_bytes(&table.update().to_bytes())?;
/// assert_eq!((table.get(&7), view.get(&7u64)), (Some(99), 99));
/// assert_eq!(table.get(&70_000), None); // the table is exact, the view is not
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Ludo<K> {
    core: Core<K>,
    len: usize,
    capacity: usize,
    update: LudoUpdate,
    rng: ChaCha8Rng,
    rebuilds: u64,
}

/// One change for [`Ludo::change_batch`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LudoChange<K> {
    /// Adds a key or changes its value.
    Insert(K, u64),
    /// Changes a key's value.
    Change(K, u64),
    /// Takes a key out.
    Remove(K),
}

impl<K: Copy> LudoChange<K> {
    fn key(&self) -> K {
        match *self {
            Self::Insert(key, _) | Self::Change(key, _) | Self::Remove(key) => key,
        }
    }
}

/// What became of a table so far.
///
/// ```
/// use weir_lookup::Ludo;
///
/// let items: Vec<(u64, u64)> = (0..10_000).map(|key| (key, key & 0xfff)).collect();
/// let stats = Ludo::build(12, &items, 1)?.stats();
/// assert_eq!(stats.fill.iter().sum::<usize>(), stats.buckets);
/// let keys: usize = stats.fill.iter().enumerate().map(|(keys, buckets)| keys * buckets).sum();
/// assert_eq!(keys + stats.fallback, 10_000);
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LudoStats {
    /// Number of buckets.
    pub buckets: usize,
    /// Buckets with 0, 1, ... 4 keys.
    pub fill: [usize; 5],
    /// Buckets whose seed stands in the overflow table.
    pub overflow: usize,
    /// Keys in the fallback table.
    pub fallback: usize,
    /// How often the table was built anew.
    pub rebuilds: u64,
}

impl<K: Key> Ludo<K> {
    /// A table for values of `value_bits` (1..=64) bits and at first `capacity` keys. `seed` makes
    /// every run with it the same.
    ///
    /// # Errors
    /// [`Error::TooLarge`] from 920 million keys on.
    pub fn new(value_bits: u32, capacity: usize, seed: u64) -> Result<Self, Error> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let table = rng.next_u64();
        let shape = Shape::new(value_bits, capacity)?;
        let core = Core::new(table, HashKey::from_rng(&mut rng), shape);
        let update = LudoUpdate::new(table);
        Ok(Self { core, len: 0, capacity: capacity.max(1), update, rng, rebuilds: 0 })
    }

    /// A table of all these items, at 95 % load.
    ///
    /// # Errors
    /// As [`new`](Self::new) and [`insert`](Self::insert).
    pub fn build(value_bits: u32, items: &[(K, u64)], seed: u64) -> Result<Self, Error> {
        let mut table = Self::new(value_bits, items.len(), seed)?;
        table.insert_batch(items, |_| ())?;
        Ok(table)
    }

    /// Number of keys in the table.
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

    /// Width of a value in bits, 1 to 64.
    pub fn value_bits(&self) -> u32 {
        self.core.view.value_bits()
    }

    /// The view whole; to be cloned, or sent as bytes.
    pub fn view(&self) -> &LudoView {
        &self.core.view
    }

    /// The message of the last change. (It is written over by the next one.)
    pub fn update(&self) -> &LudoUpdate {
        &self.update
    }

    /// The value of a key, or `None` if the key is not in the table.
    pub fn get(&self, key: &K) -> Option<u64> {
        match self.core.find(key, self.core.hash(key)) {
            Place::Slot(bucket, slot) => Some(self.core.view.tables.value(bucket, slot.into())),
            Place::Fallback(at) => self.core.view.extras.fallback(self.core.fallback[at].0),
            Place::Twin | Place::Nowhere => None,
        }
    }

    /// Adds a key or changes its value; returns the former value.
    ///
    /// # Errors
    /// [`Error::ValueTooWide`]; [`Error::TooLarge`] if the table cannot grow further;
    /// [`Error::KeysCollide`] if the key type's hash is broken. The table is unchanged then.
    #[inline]
    pub fn insert(&mut self, key: K, value: u64) -> Result<Option<u64>, Error> {
        let hash = self.core.hash(&key);
        self.core.fetch_all(hash);
        self.insert_hashed(key, hash, value)
    }

    fn insert_hashed(&mut self, key: K, hash: u64, value: u64) -> Result<Option<u64>, Error> {
        let bits = self.value_bits();
        if value & !ones(bits) != 0 {
            return Err(Error::ValueTooWide { value, bits });
        }
        let place = self.core.find(&key, hash);
        match place {
            Place::Slot(..) | Place::Fallback(_) => Ok(Some(self.change_at(place, value))),
            Place::Twin => self.rebuild(self.capacity, true, Some((key, value))),
            Place::Nowhere if self.len == self.capacity => {
                let grown = (self.capacity as f64 * GROWTH).ceil() as usize + 1;
                self.rebuild(grown, false, Some((key, value)))
            }
            Place::Nowhere => {
                let number = self.core.view.number + 1;
                if self.core.insert(key, hash, value, &mut self.update, number).is_err() {
                    let grown = (self.capacity as f64 * 1.1).ceil() as usize + 1;
                    return self.rebuild(grown, false, Some((key, value)));
                }
                self.len += 1;
                Ok(None)
            }
        }
    }

    /// Adds or changes many items; see [`change_batch`](Self::change_batch).
    ///
    /// # Errors
    /// As [`insert`](Self::insert), for the first item that fails; those before it are in.
    pub fn insert_batch(
        &mut self,
        items: &[(K, u64)],
        mut each: impl FnMut(&LudoUpdate),
    ) -> Result<(), Error> {
        self.ahead(
            items,
            |item| item.0,
            |table, &(key, value), hash| {
                table.insert_hashed(key, hash, value)?;
                each(&table.update);
                Ok(())
            },
        )
    }

    /// Makes many changes in order, with the memory of the next ones on its way; shows the message
    /// of each change to `each`. A key that is not there is neither changed nor removed.
    ///
    /// # Errors
    /// As [`insert`](Self::insert), for the first change that fails; those before it are made.
    pub fn change_batch(
        &mut self,
        changes: &[LudoChange<K>],
        mut each: impl FnMut(&LudoUpdate),
    ) -> Result<(), Error> {
        self.ahead(changes, LudoChange::key, |table, change, hash| {
            let done = match *change {
                LudoChange::Insert(key, value) => {
                    table.insert_hashed(key, hash, value)?;
                    true
                }
                LudoChange::Change(key, value) => table.change_hashed(&key, hash, value)?.is_some(),
                LudoChange::Remove(key) => table.remove_hashed(&key, hash).is_some(),
            };
            if done {
                each(&table.update);
            }
            Ok(())
        })
    }

    /// Runs `work` on each item while the first memory that later items touch is on its way
    /// ([`AHEAD`] items ahead), then what that memory names ([`NEAR`] and [`CLOSE`] items ahead).
    fn ahead<T>(
        &mut self,
        items: &[T],
        key_of: impl Fn(&T) -> K,
        mut work: impl FnMut(&mut Self, &T, u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut hashes = [0u64; AHEAD];
        let mut hash_key = self.core.view.tables.key;
        for step in 0..items.len() + AHEAD {
            if let Some((at, item)) =
                step.checked_sub(AHEAD).and_then(|at| Some((at, items.get(at)?)))
            {
                work(self, item, hashes[at % AHEAD])?;
            }
            if hash_key != self.core.view.tables.key {
                // A new hash key: what was hashed ahead is hashed again.
                hash_key = self.core.view.tables.key;
                for at in (step + 1).saturating_sub(AHEAD)..step.min(items.len()) {
                    hashes[at % AHEAD] = key_of(&items[at]).hash(&hash_key);
                }
            }
            if let Some(item) = items.get(step) {
                hashes[step % AHEAD] = key_of(item).hash(&hash_key);
                self.core.fetch(hashes[step % AHEAD]);
            }
            if let Some(at) = step.checked_sub(AHEAD - NEAR).filter(|&at| at < items.len()) {
                self.core.fetch_next(hashes[at % AHEAD]);
            }
            if let Some(at) = step.checked_sub(AHEAD - CLOSE).filter(|&at| at < items.len()) {
                self.core.fetch_path(hashes[at % AHEAD]);
            }
        }
        Ok(())
    }

    /// Changes the value of a key; returns the former one, or `None` if the key is not there.
    ///
    /// # Errors
    /// [`Error::ValueTooWide`]; the table is unchanged then.
    pub fn change(&mut self, key: &K, value: u64) -> Result<Option<u64>, Error> {
        self.change_hashed(key, self.core.hash(key), value)
    }

    fn change_hashed(&mut self, key: &K, hash: u64, value: u64) -> Result<Option<u64>, Error> {
        let bits = self.value_bits();
        if value & !ones(bits) != 0 {
            return Err(Error::ValueTooWide { value, bits });
        }
        match self.core.find(key, hash) {
            Place::Twin | Place::Nowhere => Ok(None),
            place => Ok(Some(self.change_at(place, value))),
        }
    }

    fn change_at(&mut self, place: Place, value: u64) -> u64 {
        let view = &mut self.core.view;
        self.update.begin(LudoKind::Change, view.number + 1, value);
        let former = match place {
            Place::Slot(bucket, slot) => {
                self.update.slot = Some((bucket, slot));
                view.tables.value(bucket, slot.into())
            }
            Place::Fallback(at) => {
                let hash = self.core.fallback[at].0;
                self.update.fallback = Some(hash);
                view.extras.fallback(hash).unwrap_or_default()
            }
            Place::Twin | Place::Nowhere => 0,
        };
        view.apply_rest(&self.update);
        former
    }

    /// Takes a key out; returns its value. Lookups of that key get arbitrary values from then on.
    pub fn remove(&mut self, key: &K) -> Option<u64> {
        let hash = self.core.hash(key);
        self.core.fetch_all(hash);
        self.remove_hashed(key, hash)
    }

    fn remove_hashed(&mut self, key: &K, hash: u64) -> Option<u64> {
        let core = &mut self.core;
        let place = core.find(key, hash);
        if matches!(place, Place::Twin | Place::Nowhere) {
            return None;
        }
        self.update.begin(LudoKind::Remove, core.view.number + 1, 0);
        let former = match place {
            Place::Slot(bucket, slot) => {
                core.source.remove(bucket, slot);
                core.forest.remove(core.view.tables.shape.cells_of(hash));
                core.view.tables.value(bucket, slot.into())
            }
            Place::Fallback(at) => {
                core.fallback.swap_remove(at);
                self.update.fallback = Some(hash);
                core.view.extras.fallback(hash)?
            }
            Place::Twin | Place::Nowhere => return None,
        };
        core.view.apply_rest(&self.update);
        self.len -= 1;
        Some(former)
    }

    /// Builds the table anew for `capacity` keys, to make it larger before many keys come or
    /// smaller after many went.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::KeysCollide`]; the table is unchanged then.
    pub fn resize(&mut self, capacity: usize) -> Result<(), Error> {
        self.rebuild(capacity.max(self.len), false, None).map(drop)
    }

    /// All keys with their values, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (K, u64)> + '_ {
        let view = &self.core.view;
        let slots = self.core.source.entries();
        let fallback = self.core.fallback.iter();
        slots
            .map(|(bucket, slot, _, key)| (key, view.tables.value(bucket, slot)))
            .chain(fallback.map(|&(hash, key)| (key, view.extras.fallback(hash).unwrap_or(0))))
    }

    /// What became of the table so far.
    pub fn stats(&self) -> LudoStats {
        let view = &self.core.view;
        LudoStats {
            buckets: view.tables.shape.buckets as usize,
            fill: self.core.source.fill(),
            overflow: view.extras.overflow.len(),
            fallback: view.extras.fallback.len(),
            rebuilds: self.rebuilds,
        }
    }

    /// Bytes of the maintainer's own allocations, its view's included.
    pub fn control_bytes(&self) -> usize {
        self.core.view.bytes() + self.core.forest.bytes() + self.core.source.bytes()
    }

    /// Builds the table anew, larger or under a new hash key, with one more item.
    fn rebuild(
        &mut self,
        mut capacity: usize,
        new_key: bool,
        item: Option<(K, u64)>,
    ) -> Result<Option<u64>, Error> {
        let keys = self.len + usize::from(item.is_some());
        let number = self.core.view.number + 1;
        for attempt in 0..MAX_TRIES {
            capacity = capacity.max(keys).max(1);
            let shape = Shape::new(self.value_bits(), capacity)?;
            let hash_key = match new_key || attempt > 0 {
                true => HashKey::from_rng(&mut self.rng),
                false => self.core.view.tables.key,
            };
            let Some(mut core) = self.core.copy_into(hash_key, shape, item, &mut self.update)
            else {
                capacity += capacity / 50;
                continue;
            };
            core.view.number = number;
            self.update.begin(LudoKind::Rebuild, number, 0);
            self.update.whole = Some(core.view.to_bytes());
            self.core = core;
            (self.len, self.capacity) = (keys, capacity);
            self.rebuilds += 1;
            return Ok(None);
        }
        Err(Error::KeysCollide { keys, tries: MAX_TRIES })
    }
}
