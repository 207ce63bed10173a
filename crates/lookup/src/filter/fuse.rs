//! A filter of fingerprints.

use super::Filter;
use crate::{BATCH, Error, Fuse, HashKey, Key};

/// A filter of fingerprints in a [`Fuse`]: 1.13 f bits per key for one alien in 2^f let through,
/// where [`Bloom`](super::Bloom) takes 1.44 f. Built whole, then only read.
///
/// ```
/// use weir_lookup::{Filter, FuseFilter};
///
/// let keys: Vec<u64> = (0..10_000).collect();
/// let filter = FuseFilter::build(8, &keys, 1)?;
/// assert!(keys.iter().all(|key| filter.contains(key)));
/// let passed = (1u64 << 40..(1 << 40) + 10_000).filter(|alien| filter.contains(alien)).count();
/// assert!(passed < 100); // 1 in 256
/// # Ok::<(), weir_lookup::Error>(())
/// ```
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
        self.fuse.bytes()
    }
}

#[inline(always)]
fn fingerprint<K: Key>(hash_key: &HashKey, bits: u32, key: &K) -> u32 {
    (key.hash(hash_key) >> (64 - bits)) as u32
}

impl Filter for FuseFilter {
    #[inline]
    fn contains<K: Key>(&self, key: &K) -> bool {
        self.fuse.get(key) == fingerprint(&self.key, self.bits, key)
    }

    fn contains_batch<K: Key>(&self, keys: &[K], out: &mut [bool]) {
        assert_eq!(keys.len(), out.len(), "one result per key");
        const BLOCK: usize = 8 * BATCH;
        let mut found = [0; BLOCK];
        for (keys, out) in keys.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
            self.fuse.get_batch(keys, &mut found[..keys.len()]);
            for ((out, key), &found) in out.iter_mut().zip(keys).zip(&found) {
                *out = found == fingerprint(&self.key, self.bits, key);
            }
        }
    }
}
