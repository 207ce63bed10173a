//! Consistent hashing without a memory.

use super::by_hash;
use crate::decide::{Decide, Decision, Question, Why};
use crate::forwarder::table_alone;
use crate::memory::Memory;
use crate::table::NO_BACKEND;
use weir_hash::{HashKey, Key};
use weir_placement::{Anchor, HrwTable, Maglev, NONE, Placement, Ring};

/// Bytes that the lookups of a placement may read.
pub trait Footprint {
    /// Bytes that lookups may read, from the allocations.
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

    /// The placement that answers.
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

table_alone!([K: Key, P: Placement + Footprint] Consistent<P>, K);

impl<K: Key, P: Placement + Footprint> Decide<K> for Consistent<P> {
    #[inline(always)]
    fn hash_key(&self) -> &HashKey {
        &self.key
    }

    #[inline(always)]
    fn decide<M: Memory<K>>(&self, question: &Question<K>, _: &mut M) -> Decision {
        let placed = self.placement.lookup(question.hash).unwrap_or(NO_BACKEND);
        Decision::to(placed, Why::Row).new_if(question.signals.starts)
    }

    fn decide_burst<M: Memory<K>>(&self, keys: &[K], out: &mut [u16], _: &mut M) {
        by_hash(&self.key, keys, out, |hashes, out| {
            self.placement.lookup_batch(hashes, out);
            out.iter_mut().for_each(|backend| *backend = (*backend).min(NO_BACKEND));
        });
    }

    fn bytes(&self) -> usize {
        self.placement.footprint()
    }
}
