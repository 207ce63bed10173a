//! From a flow's hash to its Dcode: two structures that hold the same map.

use weir_hash::{HashKey, Key};
use weir_lookup::{Fuse, View};

/// Which structure holds the Dcodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Codec {
    /// Two arrays of cells, 2.33 l bits per state. Its graph is kept, so a build changes only what
    /// must change.
    #[default]
    Othello = 0,
    /// Three cells of one array, 1.13 l bits per state, built whole each time (docs/fuse.md).
    Fuse = 1,
}

/// The Dcodes of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Codes {
    /// By Othello. The view's hash key is that of the table's flows.
    Othello(View),
    /// By a fuse over flow hashes; its hash key is its own.
    Fuse(Fuse),
}

/// A flow hash as a key of a fuse.
///
/// A fuse that cannot be peeled needs another seed, but the flow hash must not change: marks, the
/// "seen recently" filter and what is pending are known by it. So the fuse has a key of its own,
/// and mixes flow hashes, which are uniform already, by one product and one shift. That is a
/// bijection: two flows collide here only if their flow hashes are equal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FlowHash(pub u64);

impl Key for FlowHash {
    #[inline(always)]
    fn hash(&self, key: &HashKey) -> u64 {
        let product = self.0.wrapping_mul(key.words()[2]);
        product ^ (product >> 32)
    }
}

impl Codes {
    /// Which structure it is.
    pub fn codec(&self) -> Codec {
        match self {
            Self::Othello(_) => Codec::Othello,
            Self::Fuse(_) => Codec::Fuse,
        }
    }

    /// Bits of a Dcode.
    pub fn bits(&self) -> u32 {
        match self {
            Self::Othello(view) => view.geometry().bits,
            Self::Fuse(fuse) => fuse.shape().bits,
        }
    }

    /// The packed cells, as they are published.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Othello(view) => view.as_bytes(),
            Self::Fuse(fuse) => fuse.as_bytes(),
        }
    }

    /// The Dcode of a flow by its hash under the table's key: the one that was built in, or an
    /// arbitrary one.
    #[inline]
    pub fn lookup_hash(&self, hash: u64) -> u32 {
        match self {
            Self::Othello(view) => view.get_hash(hash),
            Self::Fuse(fuse) => fuse.get(&FlowHash(hash)),
        }
    }

    /// What `finish` makes of the Dcodes of many flows, whose hashes under the table's key `hash`
    /// computes, with the cache misses of 32 lookups under way at a time.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn lookup_batch_with<K, R>(
        &self,
        flows: &[K],
        out: &mut [R],
        hash: impl Fn(&K) -> u64,
        finish: impl FnMut(u32) -> R,
    ) {
        match self {
            Self::Othello(view) => view.get_batch_with(flows, out, hash, finish),
            Self::Fuse(fuse) => {
                let mixed = |flow: &K| FlowHash(hash(flow)).hash(fuse.hash_key());
                fuse.get_batch_with(flows, out, mixed, finish);
            }
        }
    }
}
