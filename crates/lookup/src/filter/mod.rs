//! Filters, which say whether a key may be in a set, and maps behind them.

pub(crate) mod bloom;
mod fuse;
mod guarded;

pub use bloom::{
    Bloom, BloomFeed, BloomKind, BloomReader, BloomShared, BloomUpdate, BloomView, CountingBloom,
};
pub use fuse::FuseFilter;
pub use guarded::{
    Guarded, GuardedReader, GuardedShared, Lookup, LudoWriter, MapReader, SharedMap,
};

use crate::Key;

/// A set that never says no to a key that is in it.
///
/// ```
/// use weir_lookup::{Bloom, Filter, FuseFilter};
///
/// fn pass(filter: &impl Filter, keys: &[u64]) -> usize {
///     let mut out = vec![false; keys.len()];
///     filter.contains_batch(keys, &mut out);
///     out.iter().filter(|pass| **pass).count()
/// }
///
/// let keys: Vec<u64> = (0..1000).collect();
/// let mut bloom = Bloom::new(1000, 10.0, 1);
/// keys.iter().for_each(|key| bloom.insert(key));
/// assert_eq!(pass(&bloom, &keys), 1000);
/// assert_eq!(pass(&FuseFilter::build(8, &keys, 1)?, &keys), 1000);
/// # Ok::<(), weir_lookup::Error>(())
/// ```
pub trait Filter {
    /// Whether a key may be in the set.
    fn contains<K: Key>(&self, key: &K) -> bool;

    /// Asks for many keys at once.
    ///
    /// # Panics
    /// If the lengths differ.
    fn contains_batch<K: Key>(&self, keys: &[K], out: &mut [bool]) {
        assert_eq!(keys.len(), out.len(), "one result per key");
        out.iter_mut().zip(keys).for_each(|(out, key)| *out = self.contains(key));
    }
}

impl Filter for Bloom {
    #[inline]
    fn contains<K: Key>(&self, key: &K) -> bool {
        self.contains(key)
    }

    fn contains_batch<K: Key>(&self, keys: &[K], out: &mut [bool]) {
        self.contains_batch(keys, out);
    }
}

impl Filter for CountingBloom {
    #[inline]
    fn contains<K: Key>(&self, key: &K) -> bool {
        self.contains(key)
    }
}

impl Filter for BloomView {
    #[inline]
    fn contains<K: Key>(&self, key: &K) -> bool {
        self.contains(key)
    }

    fn contains_batch<K: Key>(&self, keys: &[K], out: &mut [bool]) {
        self.contains_batch(keys, out);
    }
}
