//! Highest random weight hashing (rendezvous hashing), weighted.
//!
//! Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", 1998; the
//! logarithmic method for weights: Schindler and Schomaker, "Weighted distributed hash
//! tables", 2005. JET on it: Algorithm 2. The arithmetic is in `score.rs`.

use crate::pool::{Best, Candidate, PoolError, Pools, Roster};
use crate::traits::{Horizon, Incremental, Placement, Verdict};

/// Every backend draws a score for the flow, and the best one gets it.
///
/// No table, no preparation, exact shares, and the reference for [`crate::HrwTable`]; but a
/// lookup costs a hash and a logarithm per backend.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Hrw {
    pools: Pools,
}

/// Flows that are looked up together: the backends pass by once for all of them.
const BATCH: usize = 8;

impl Hrw {
    /// No backend is in the pool; every lookup answers `None` until a backend is added.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Placement for Hrw {
    fn lookup(&self, hash: u64) -> Option<u16> {
        self.pools.working.best(hash).backend()
    }

    fn lookup_batch(&self, hashes: &[u64], out: &mut [u16]) {
        assert_eq!(hashes.len(), out.len(), "one answer per hash");
        for (hashes, out) in hashes.chunks(BATCH).zip(out.chunks_mut(BATCH)) {
            let mut best = [Best::NOBODY; BATCH];
            for member in self.pools.working.iter() {
                for (best, &hash) in best.iter_mut().zip(hashes) {
                    *best = Best::min(*best, Roster::score(member, hash));
                }
            }
            for (answer, best) in out.iter_mut().zip(best) {
                *answer = best.backend;
            }
        }
    }
}

impl Incremental for Hrw {
    fn add(&mut self, candidate: Candidate<'_>) -> Result<(), PoolError> {
        self.pools.add(self.pools.check(&candidate)?);
        Ok(())
    }

    fn remove(&mut self, backend: u16) -> Result<(), PoolError> {
        self.pools.remove(backend).map(|_| ())
    }

    fn reweight(&mut self, backend: u16, weight: u32) -> Result<(), PoolError> {
        self.pools.reweight(backend, weight).map(|_| ())
    }
}

impl Horizon for Hrw {
    fn verdict(&self, hash: u64) -> Option<Verdict> {
        let best = self.pools.working.best(hash);
        let may_differ = self.pools.horizon.best(hash) < best;
        best.backend().map(|backend| Verdict { backend, may_differ })
    }

    fn lookup_all(&self, hash: u64) -> Option<u16> {
        Best::min(self.pools.working.best(hash), self.pools.horizon.best(hash)).backend()
    }

    fn add_horizon(&mut self, candidate: Candidate<'_>) -> Result<(), PoolError> {
        self.pools.add_horizon(self.pools.check(&candidate)?);
        Ok(())
    }

    fn remove_horizon(&mut self, backend: u16) -> Result<(), PoolError> {
        self.pools.remove_horizon(backend).map(|_| ())
    }

    fn admit(&mut self, backend: u16) -> Result<(), PoolError> {
        self.pools.admit(backend).map(|_| ())
    }

    fn retire(&mut self, backend: u16) -> Result<(), PoolError> {
        self.pools.retire(backend).map(|_| ())
    }
}
