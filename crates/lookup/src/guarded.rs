//! A membership filter in front of a map, so that most alien keys get no value.

use crate::{BATCH, Bloom, CountingBloom, Error, Fuse, HashKey, Key, LudoView, View};

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

/// A map that gives every key a value: the right one to a key that is in it, any to an alien.
pub trait Retrieval {
    /// What a lookup gives.
    type Value: Copy + Default;

    /// Value of a key.
    fn value<K: Key>(&self, key: &K) -> Self::Value;

    /// Values of many keys.
    ///
    /// # Panics
    /// If the lengths differ.
    fn values<K: Key>(&self, keys: &[K], out: &mut [Self::Value]);
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

macro_rules! retrievals {
    ($($map:ty: $value:ty),* $(,)?) => {$(
        impl Retrieval for $map {
            type Value = $value;

            #[inline]
            fn value<K: Key>(&self, key: &K) -> $value {
                self.lookup(key)
            }

            fn values<K: Key>(&self, keys: &[K], out: &mut [$value]) {
                self.lookup_batch(keys, out);
            }
        }
    )*};
}

retrievals!(View: u32, Fuse: u32, LudoView: u64);

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
/// lets through. Whoever changes the map's keys changes the filter's: first in when a key comes,
/// last out when it goes.
#[derive(Clone, Debug)]
pub struct Guarded<F, M> {
    /// The keys.
    pub filter: F,
    /// Their values.
    pub map: M,
}

impl<F: Filter, M: Retrieval> Guarded<F, M> {
    /// Puts a filter in front of a map.
    pub fn new(filter: F, map: M) -> Self {
        Self { filter, map }
    }

    /// The value of a key; `None` for most aliens.
    #[inline]
    pub fn lookup<K: Key>(&self, key: &K) -> Option<M::Value> {
        self.filter.may_contain(key).then(|| self.map.value(key))
    }

    /// As [`lookup`](Self::lookup), for many keys. Only those that pass the filter reach the map.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn lookup_batch<K: Key>(&self, keys: &[K], out: &mut [Option<M::Value>]) {
        assert_eq!(keys.len(), out.len(), "one result per key");
        const BLOCK: usize = 8 * BATCH;
        let (mut passes, mut values) = ([false; BLOCK], [M::Value::default(); BLOCK]);
        let mut passed = Vec::with_capacity(BLOCK.min(keys.len()));
        for (keys, out) in keys.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
            let passes = &mut passes[..keys.len()];
            self.filter.may_contain_batch(keys, passes);
            passed.clear();
            passed
                .extend(keys.iter().zip(&*passes).filter(|(_, pass)| **pass).map(|(key, _)| *key));
            self.map.values(&passed, &mut values[..passed.len()]);
            let mut values = values.iter();
            for (out, &pass) in out.iter_mut().zip(&*passes) {
                *out = if pass { values.next().copied() } else { None };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ludo, Othello};

    const KEYS: u64 = 50_000;

    /// Valid keys get their values, aliens none but for about `rate` of them.
    fn check<F: Filter, M: Retrieval>(guarded: &Guarded<F, M>, rate: f64)
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
