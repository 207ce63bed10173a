//! A membership filter in front of a map, so that most alien keys get no value.

mod maps;
mod shared;

pub use maps::LudoWriter;
pub use shared::{GuardedReader, GuardedShared, MapReader};

use crate::{BATCH, Bloom, BloomView, CountingBloom, Error, Fuse, HashKey, Key};

/// A set that never says no to a key that is in it.
pub trait Filter {
    /// Whether a key may be in the set.
    fn may_contain<K: Key>(&self, key: &K) -> bool;

    /// Asks for many keys at once.
    ///
    /// # Panics
    /// If the lengths differ.
    fn may_contain_batch<K: Key>(&self, keys: &[K], out: &mut [bool]) {
        assert_eq!(keys.len(), out.len(), "one result per key");
        out.iter_mut().zip(keys).for_each(|(out, key)| *out = self.may_contain(key));
    }
}

/// Any map: one that gives every key a value, the right one to a key that is in it and any to an
/// alien, or one that tells some or all aliens.
pub trait Lookup<K: Key> {
    /// What a lookup gives.
    type Value: Copy;

    /// Value of a key, if the map has one for it.
    fn value(&self, key: &K) -> Option<Self::Value>;

    /// Values of many keys.
    ///
    /// # Panics
    /// If the lengths differ.
    fn values(&self, keys: &[K], out: &mut [Option<Self::Value>]);
}

/// The maintainer of a map that other threads read meanwhile.
pub trait SharedMap<K: Key> {
    /// What each of these threads has.
    type Reader: MapReader<K>;
    /// Why a change was refused.
    type Error;

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
    fn insert(&mut self, key: K, value: u64) -> Result<Option<u64>, Self::Error>;

    /// Takes a key out; returns its value.
    ///
    /// # Errors
    /// The map's own.
    fn remove(&mut self, key: &K) -> Result<Option<u64>, Self::Error>;

    /// Visits all keys.
    fn each_key(&self, visit: impl FnMut(&K));
}

impl Filter for Bloom {
    #[inline]
    fn may_contain<K: Key>(&self, key: &K) -> bool {
        self.contains(key)
    }

    fn may_contain_batch<K: Key>(&self, keys: &[K], out: &mut [bool]) {
        self.contains_batch(keys, out);
    }
}

impl Filter for CountingBloom {
    #[inline]
    fn may_contain<K: Key>(&self, key: &K) -> bool {
        self.contains(key)
    }
}

impl Filter for BloomView {
    #[inline]
    fn may_contain<K: Key>(&self, key: &K) -> bool {
        self.contains(key)
    }

    fn may_contain_batch<K: Key>(&self, keys: &[K], out: &mut [bool]) {
        self.contains_batch(keys, out);
    }
}

/// A filter of fingerprints in a [`Fuse`]: 1.13 f bits per key for one alien in 2^f let through,
/// where [`Bloom`] takes 1.44 f. Built whole, then only read.
#[derive(Clone, Debug)]
pub struct FuseFilter {
    key: HashKey,
    bits: u32,
    fuse: Fuse,
}

impl FuseFilter {
    /// A filter for these keys, all different, with fingerprints of `bits` (1..=32) bits. `seed`
    /// makes every run with it the same.
    ///
    /// # Errors
    /// As [`Fuse::build`].
    pub fn build<K: Key>(bits: u32, keys: &[K], seed: u64) -> Result<Self, Error> {
        let key = HashKey::from_seed(!seed);
        let fuse = Fuse::build(bits, keys, |at| fingerprint(&key, bits, &keys[at]), seed)?;
        Ok(Self { key, bits, fuse })
    }

    /// Bytes of all allocations.
    pub fn bytes(&self) -> usize {
        self.fuse.bytes().len()
    }
}

#[inline(always)]
fn fingerprint<K: Key>(hash_key: &HashKey, bits: u32, key: &K) -> u32 {
    (key.hash(hash_key) >> (64 - bits)) as u32
}

impl Filter for FuseFilter {
    #[inline]
    fn may_contain<K: Key>(&self, key: &K) -> bool {
        self.fuse.lookup(key) == fingerprint(&self.key, self.bits, key)
    }

    fn may_contain_batch<K: Key>(&self, keys: &[K], out: &mut [bool]) {
        assert_eq!(keys.len(), out.len(), "one result per key");
        const BLOCK: usize = 8 * BATCH;
        let mut found = [0; BLOCK];
        for (keys, out) in keys.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
            self.fuse.lookup_batch(keys, &mut found[..keys.len()]);
            for ((out, key), &found) in out.iter_mut().zip(keys).zip(&found) {
                *out = found == fingerprint(&self.key, self.bits, key);
            }
        }
    }
}

/// A map behind a filter over the same keys: aliens get `None`, but for the few that the filter
/// lets through. Where other threads read while one changes keys, it is [`GuardedShared`].
#[derive(Clone, Debug)]
pub struct Guarded<F, M> {
    /// The keys.
    pub filter: F,
    /// Their values.
    pub map: M,
}

impl<F: Filter, M> Guarded<F, M> {
    /// Puts a filter in front of a map.
    pub fn new(filter: F, map: M) -> Self {
        Self { filter, map }
    }

    /// The value of a key; `None` for most aliens.
    #[inline]
    pub fn lookup<K: Key>(&self, key: &K) -> Option<M::Value>
    where
        M: Lookup<K>,
    {
        if self.filter.may_contain(key) { self.map.value(key) } else { None }
    }

    /// As [`lookup`](Self::lookup), for many keys. Only those that pass the filter reach the map.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn lookup_batch<K: Key>(&self, keys: &[K], out: &mut [Option<M::Value>])
    where
        M: Lookup<K>,
    {
        assert_eq!(keys.len(), out.len(), "one result per key");
        const BLOCK: usize = 8 * BATCH;
        let mut passes = [false; BLOCK];
        for (keys, out) in keys.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
            let passes = &mut passes[..keys.len()];
            self.filter.may_contain_batch(keys, passes);
            spread(keys, passes, out, |keys, out| self.map.values(keys, out));
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
    use crate::{Ludo, Othello};

    const KEYS: u64 = 50_000;

    /// Valid keys get their values, aliens none but for about `rate` of them.
    fn check<F: Filter, M: Lookup<u64>>(guarded: &Guarded<F, M>, rate: f64)
    where
        M::Value: Into<u64>,
    {
        let keys: Vec<u64> = (0..4 * KEYS).map(|key| key ^ (key & 1) << 40).collect();
        let mut out = vec![None; keys.len()];
        guarded.lookup_batch(&keys, &mut out);
        let mut aliens = 0;
        for (key, found) in keys.iter().zip(out) {
            let found = found.map(Into::into);
            assert_eq!(guarded.lookup(key).map(Into::into), found);
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
