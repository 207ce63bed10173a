//! Consistent hashing without a memory.

use super::by_hash;
use crate::{NO_BACKEND, Steer};
use weir_lookup::{HashKey, Key};
use weir_placement::{Anchor, HrwTable, Maglev, NONE, Placement, Ring};

/// Bytes that the lookups of a placement may read.
pub trait Footprint {
    /// From the allocations.
    fn footprint(&self) -> usize;
}

impl Footprint for Maglev {
    fn footprint(&self) -> usize {
        size_of_val(self.slots())
    }
}

impl Footprint for HrwTable {
    /// The column that answers; scores and the other column belong to the build.
    fn footprint(&self) -> usize {
        size_of_val(self.rows())
    }
}

impl Footprint for Ring {
    fn footprint(&self) -> usize {
        self.memory()
    }
}

impl Footprint for Anchor {
    fn footprint(&self) -> usize {
        let tables = self.tables();
        size_of_val(tables.anchor) + size_of_val(tables.successor) + size_of_val(tables.owner)
    }
}

/// Every packet goes where the placement says now: a change breaks the flows that it moves.
///
/// From n to n + 1 backends that is 1 flow in n + 1; a removal moves none but those of the backend
/// that goes. ([`Maglev`] moves some more of both.)
#[derive(Clone, Debug)]
pub struct Consistent<P> {
    key: HashKey,
    placement: P,
}

impl<P> Consistent<P> {
    /// Over a placement. `seed` makes every run with it the same.
    pub fn new(placement: P, seed: u64) -> Self {
        Self { key: HashKey::from_seed(seed), placement }
    }

    /// The placement.
    pub fn placement(&self) -> &P {
        &self.placement
    }

    /// The placement, to change its pool.
    pub fn placement_mut(&mut self) -> &mut P {
        &mut self.placement
    }
}

/// [`NONE`] becomes [`NO_BACKEND`], which no backend's number reaches.
const _: () = assert!(NO_BACKEND < NONE);

impl<K: Key, P: Placement + Footprint> Steer<K> for Consistent<P> {
    #[inline]
    fn steer(&mut self, flow: &K) -> u16 {
        self.placement.lookup(flow.hash(&self.key)).unwrap_or(NO_BACKEND)
    }

    fn steer_batch(&mut self, flows: &[K], out: &mut [u16]) {
        by_hash(&self.key, flows, out, |hashes, out| {
            self.placement.lookup_batch(hashes, out);
            out.iter_mut().for_each(|backend| *backend = (*backend).min(NO_BACKEND));
        });
    }

    fn end(&mut self, _: &K) {}

    fn bytes(&self) -> usize {
        self.placement.footprint()
    }
}
