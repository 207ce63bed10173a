//! A membership filter in front of a map, so that most alien keys get no value.

mod maps;
mod shared;

pub use maps::LudoWriter;
pub use shared::{GuardedReader, GuardedShared, MapReader};

use super::Filter;
use crate::{BATCH, Error, Key};

/// Any map: one that gives every key a value, the right one to a key that is in it and any to an
/// alien, or one that tells some or all aliens.
///
/// ```
/// use weir_lookup::{Fuse, Lookup, Othello};
///
/// fn value<M: Lookup<u64>>(map: &M, key: u64) -> Option<M::Value> {
///     let mut out = [None];
///     map.get_batch(&[key], &mut out);
///     out[0]
/// }
///
/// let keys: Vec<u64> = (0..1000).collect();
/// let fuse = Fuse::build(12, &keys, |at| at as u32, 1)?;
/// let mut othello: Othello<u64> = Othello::new(12, 1000, 1);
/// othello.insert(7, 300)?;
/// assert_eq!(value(&fuse, 7), Some(7));
/// assert_eq!(value(&othello.view(), 7), Some(300));
/// # Ok::<(), weir_lookup::Error>(())
/// ```
pub trait Lookup<K: Key> {
    /// What a lookup gives.
    type Value: Copy;

    /// Value of a key, if the map has one for it.
    fn get(&self, key: &K) -> Option<Self::Value>;

    /// Values of many keys.
    ///
    /// # Panics
    /// If the lengths differ.
    fn get_batch(&self, keys: &[K], out: &mut [Option<Self::Value>]);
}

/// The maintainer of a map that other threads read meanwhile.
///
/// ```
/// use weir_lookup::{LudoWriter, MapReader, OthelloShared, SharedMap};
///
/// fn moves(map: &mut impl SharedMap<u64>) -> Result<Option<u64>, weir_lookup::Error> {
///     map.insert(7, 300)?;
///     map.insert(7, 400)
/// }
///
/// let mut map = OthelloShared::new(12, 1000, 1);
/// let mut reader = SharedMap::reader(&map);
/// assert_eq!(moves(&mut map)?, Some(300));
/// assert_eq!(SharedMap::get(&map, &7), Some(400));
/// assert_eq!(MapReader::get(&mut reader, &7u64).map(u64::from), Some(400));
/// # Ok::<(), weir_lookup::Error>(())
/// ```
pub trait SharedMap<K: Key> {
    /// What each of these threads has.
    type Reader: MapReader<K>;

    /// A reader for another thread.
    fn reader(&self) -> Self::Reader;

    /// How many keys fit before the map grows.
    fn capacity(&self) -> usize;

    /// The value of a key; exact.
    fn get(&self, key: &K) -> Option<u64>;

    /// Adds a key or changes its value; returns the former value.
    ///
    /// # Errors
    /// The map's own; nothing is changed then.
    fn insert(&mut self, key: K, value: u64) -> Result<Option<u64>, Error>;

    /// Takes a key out; returns its value.
    ///
    /// # Errors
    /// The map's own.
    fn remove(&mut self, key: &K) -> Result<Option<u64>, Error>;

    /// Calls `visit` with every key.
    fn each_key(&self, visit: impl FnMut(&K));
}

/// A map behind a filter over the same keys: aliens get `None`, but for the few that the filter
/// lets through. Where other threads read while one changes keys, it is [`GuardedShared`].
///
/// ```
/// use weir_lookup::{Fuse, FuseFilter, Guarded};
///
/// let keys: Vec<u64> = (0..10_000).collect();
/// let map = Fuse::build(12, &keys, |number| number as u32 & 0xfff, 1)?;
/// let guarded = Guarded::new(FuseFilter::build(16, &keys, 2)?, map);
/// assert_eq!(guarded.get(&77u64), Some(77));
/// assert_eq!(guarded.get(&(1u64 << 40)), None); // but for 1 alien in 65,536
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Guarded<F, M> {
    /// The filter, which knows the keys.
    pub filter: F,
    /// The map, which has their values.
    pub map: M,
}

impl<F: Filter, M> Guarded<F, M> {
    /// Puts a filter in front of a map.
    pub fn new(filter: F, map: M) -> Self {
        Self { filter, map }
    }

    /// The value of a key; `None` for most aliens.
    #[inline]
    pub fn get<K: Key>(&self, key: &K) -> Option<M::Value>
    where
        M: Lookup<K>,
    {
        if self.filter.contains(key) { self.map.get(key) } else { None }
    }

    /// As [`get`](Self::get), for many keys. Only those that pass the filter reach the map.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn get_batch<K: Key>(&self, keys: &[K], out: &mut [Option<M::Value>])
    where
        M: Lookup<K>,
    {
        assert_eq!(keys.len(), out.len(), "one result per key");
        const BLOCK: usize = 8 * BATCH;
        let mut passes = [false; BLOCK];
        for (keys, out) in keys.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
            let passes = &mut passes[..keys.len()];
            self.filter.contains_batch(keys, passes);
            spread(keys, passes, out, |keys, out| self.map.get_batch(keys, out));
        }
    }
}

/// Answers for the keys that pass, from one call for them alone; `None` for the others.
fn spread<K: Key, V: Copy>(
    keys: &[K],
    passes: &[bool],
    out: &mut [Option<V>],
    answers: impl FnOnce(&[K], &mut [Option<V>]),
) {
    let passing = keys.iter().zip(passes).filter(|(_, pass)| **pass).map(|(key, _)| *key);
    let passed: Vec<K> = passing.collect();
    // The answers come first, then each goes to its place, the last one first: none is behind its
    // place.
    answers(&passed, &mut out[..passed.len()]);
    let mut next = passed.len();
    for at in (0..keys.len()).rev() {
        out[at] = if passes[at] {
            next -= 1;
            out[next]
        } else {
            None
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bloom, CountingBloom, Fuse, FuseFilter, Ludo, Othello};

    const KEYS: u64 = 50_000;

    /// Valid keys get their values, aliens none but for about `rate` of them.
    fn check<F: Filter, M: Lookup<u64>>(guarded: &Guarded<F, M>, rate: f64)
    where
        M::Value: Into<u64>,
    {
        let keys: Vec<u64> = (0..4 * KEYS).map(|key| key ^ (key & 1) << 40).collect();
        let mut out = vec![None; keys.len()];
        guarded.get_batch(&keys, &mut out);
        let mut aliens = 0;
        for (key, found) in keys.iter().zip(out) {
            let found = found.map(Into::into);
            assert_eq!(guarded.get(key).map(Into::into), found);
            if *key < KEYS {
                assert_eq!(found, Some(key & 0xfff));
            } else {
                aliens += u64::from(found.is_some());
            }
        }
        let let_through = aliens as f64 / (4 * KEYS - KEYS / 2) as f64;
        println!("{let_through:.5} of aliens, {rate:.5} expected");
        // 175,000 aliens: six standard deviations are 0.0009 at these rates.
        assert!((let_through - rate).abs() < 0.001, "{let_through} and not {rate}");
    }

    #[test]
    fn aliens_are_kept_out_at_the_filters_rate() {
        let keys: Vec<u64> = (0..KEYS).collect();
        let mut othello = Othello::new(12, keys.len(), 1);
        let mut ludo = Ludo::new(12, keys.len(), 2).unwrap();
        let mut bloom = Bloom::new(keys.len(), 12.0, 3);
        let mut counting = CountingBloom::new(keys.len(), 12.0, 3);
        for &key in &keys {
            othello.insert(key, (key & 0xfff) as u32).unwrap();
            ludo.insert(key, key & 0xfff).unwrap();
            bloom.insert(&key);
            counting.insert(&key, |_| ());
        }
        let fuse = Fuse::build(12, &keys, |at| at as u32 & 0xfff, 4).unwrap();
        let filter = FuseFilter::build(8, &keys, 5).unwrap();
        let rate = bloom.false_positive_rate();
        check(&Guarded::new(bloom, ludo.view().clone()), rate);
        check(&Guarded::new(counting, fuse), rate);
        check(&Guarded::new(filter, othello.view()), 1.0 / 256.0);
    }
}
