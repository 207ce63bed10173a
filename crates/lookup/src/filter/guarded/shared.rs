//! A filter in front of a map that many threads read while one changes both.

use super::SharedMap;
use crate::filter::bloom::{BloomFeed, BloomReader, BloomShared};
use crate::{BATCH, Error, Key};

/// By how much a full filter grows.
const GROWTH: f64 = 1.5;

/// What a reader's thread asks: as a map, but through a handle of its own.
///
/// ```
/// use weir_lookup::{MapReader, OthelloShared};
///
/// fn all<R: MapReader<u64>>(reader: &mut R, keys: &[u64]) -> Vec<Option<R::Value>> {
///     let mut out = vec![None; keys.len()];
///     reader.get_batch(keys, &mut out);
///     out
/// }
///
/// let mut map: OthelloShared<u64> = OthelloShared::new(12, 1000, 1);
/// let mut reader = map.reader();
/// map.insert(7, 300)?;
/// let found = std::thread::spawn(move || all(&mut reader, &[7])).join().expect("it ends");
/// assert_eq!(found.len(), 1);
/// assert!(found[0].is_some_and(|value| u64::from(value) == 300));
/// # Ok::<(), weir_lookup::Error>(())
/// ```
pub trait MapReader<K: Key> {
    /// What a lookup gives.
    type Value: Copy;

    /// Value of a key, if the map has one for it.
    fn get(&mut self, key: &K) -> Option<Self::Value>;

    /// Values of many keys.
    ///
    /// # Panics
    /// If the lengths differ.
    fn get_batch(&mut self, keys: &[K], out: &mut [Option<Self::Value>]);
}

/// The maintainer of a map ([`OthelloShared`](crate::OthelloShared),
/// [`LudoWriter`](crate::LudoWriter)) behind a filter of the same keys, both read meanwhile.
///
/// The filter is the gate. A key that comes is put into the map first, then the gate opens for it;
/// when it goes, the gate shuts first. So a key that a reader lets pass has its value in the map:
/// a key that is in all the time always gets its value, one that comes or goes gets its value or
/// `None`, and an alien passes at the filter's rate. (Opened first, the gate would let a new key
/// through to a map that does not know it yet.)
///
/// A filter that has more keys than it was made for is built anew at 1.5 times the size.
///
/// ```
/// use weir_lookup::{GuardedShared, OthelloShared};
/// let mut table = GuardedShared::new(OthelloShared::new(12, 1000, 1), 12.0, 2);
/// let mut reader = table.reader();
/// table.insert(7u64, 300).unwrap();
/// assert_eq!(reader.get(&7u64), Some(300));
/// table.remove(&7).unwrap();
/// assert_eq!(reader.get(&7u64), None);
/// ```
#[derive(Debug)]
pub struct GuardedShared<M> {
    map: M,
    feed: BloomFeed,
    filter: BloomShared,
}

/// A reader of a [`GuardedShared`]; each thread has its own.
///
/// ```
/// use weir_lookup::{GuardedShared, OthelloShared};
///
/// let mut table = GuardedShared::new(OthelloShared::new(12, 1000, 1), 12.0, 2);
/// let mut reader = table.reader();
/// table.insert(7u64, 300)?;
/// let found = std::thread::spawn(move || {
///     let mut found = [None; 2];
///     reader.get_batch(&[7u64, 7], &mut found);
///     found
/// });
/// assert_eq!(found.join().unwrap(), [Some(300), Some(300)]);
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct GuardedReader<R> {
    filter: BloomReader,
    map: R,
}

impl<M> GuardedShared<M> {
    /// Puts a filter with `bits_per_key` bits for each key in front of a map, which may hold keys
    /// already. `seed` makes every run with it the same.
    pub fn new<K: Key>(map: M, bits_per_key: f64, seed: u64) -> Self
    where
        M: SharedMap<K>,
    {
        let mut feed = BloomFeed::new(map.capacity().max(64), bits_per_key, seed);
        map.each_key(|key| feed.insert(key));
        let filter = BloomShared::new(feed.view());
        Self { map, feed, filter }
    }

    /// A reader for another thread.
    pub fn reader<K: Key>(&self) -> GuardedReader<M::Reader>
    where
        M: SharedMap<K>,
    {
        GuardedReader { filter: self.filter.reader(), map: self.map.reader() }
    }

    /// The map behind the filter.
    pub fn map(&self) -> &M {
        &self.map
    }

    /// The value of a key; exact.
    pub fn get<K: Key>(&self, key: &K) -> Option<u64>
    where
        M: SharedMap<K>,
    {
        self.map.get(key)
    }

    /// Adds a key or changes its value; returns the former value. Lookups that begin after this has
    /// returned see it.
    ///
    /// # Errors
    /// As the map's; nothing is changed then.
    pub fn insert<K: Key>(&mut self, key: K, value: u64) -> Result<Option<u64>, Error>
    where
        M: SharedMap<K>,
    {
        let former = self.map.insert(key, value)?;
        if former.is_none() {
            if self.feed.len() < self.feed.capacity() {
                self.feed.insert(&key);
            } else {
                let capacity = (self.feed.len() as f64 * GROWTH).ceil() as usize;
                let mut keys = Vec::with_capacity(self.feed.len() + 1);
                self.map.each_key(|key| keys.push(*key));
                self.feed.rebuild(capacity, keys.into_iter());
            }
            self.filter.perform(self.feed.update());
        }
        Ok(former)
    }

    /// Takes a key out; returns its value.
    ///
    /// # Errors
    /// As the map's.
    pub fn remove<K: Key>(&mut self, key: &K) -> Result<Option<u64>, Error>
    where
        M: SharedMap<K>,
    {
        if self.map.get(key).is_none() {
            return Ok(None);
        }
        self.feed.remove(key);
        self.filter.perform(self.feed.update());
        self.map.remove(key)
    }

    /// The chance that an alien gets a value.
    pub fn false_positive_rate(&self) -> f64 {
        self.feed.false_positive_rate()
    }

    /// Bytes of the filter that readers read.
    pub fn filter_bytes(&self) -> usize {
        self.filter.bytes()
    }
}

impl<R> GuardedReader<R> {
    /// A reader of a map and of the filter before it, where both are fed by messages
    /// ([`LudoShared`](crate::LudoShared), [`SetShared`](crate::SetShared)). Who applies them does it
    /// in the order of [`GuardedShared`]: for a key that comes the map's message first, for one that
    /// goes the filter's.
    pub fn new(filter: BloomReader, map: R) -> Self {
        Self { filter, map }
    }

    /// The value of a key; `None` for most aliens.
    #[inline]
    pub fn get<K: Key>(&mut self, key: &K) -> Option<R::Value>
    where
        R: MapReader<K>,
    {
        loop {
            let departures = self.filter.departures();
            if !self.filter.contains(key) {
                return None;
            }
            let value = self.map.get(key);
            // If keys have gone meanwhile, it may have been this one, and its cells another's, also
            // if it is back by now.
            if !self.filter.departed_since(departures) {
                return value;
            }
        }
    }

    /// As [`get`](Self::get), for many keys. Only those that pass the filter reach the map.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn get_batch<K: Key>(&mut self, keys: &[K], out: &mut [Option<R::Value>])
    where
        R: MapReader<K>,
    {
        assert_eq!(keys.len(), out.len(), "one result per key");
        const BLOCK: usize = 8 * BATCH;
        let mut passes = [false; BLOCK];
        for (keys, out) in keys.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
            let departures = self.filter.departures();
            let passes = &mut passes[..keys.len()];
            self.filter.contains_batch(keys, passes);
            super::spread(keys, passes, out, |keys, out| self.map.get_batch(keys, out));
            if self.filter.departed_since(departures) {
                for (key, out) in keys.iter().zip(out).filter(|(_, out)| out.is_some()) {
                    *out = self.get(key);
                }
            }
        }
    }
}
