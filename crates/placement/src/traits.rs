//! The three faces of a placement.

use crate::pool::{Candidate, NONE, PoolError};

/// A pure function from the hash of a flow to a backend.
///
/// The hash must be uniform and must not be in the hands of outsiders (`weir_hash`):
/// who can choose it chooses the backend.
pub trait Placement {
    /// The backend of a flow with this hash; `None` if no backend has weight.
    fn lookup(&self, hash: u64) -> Option<u16>;

    /// The backends of many flows, [`NONE`] for none: the same answers as [`Self::lookup`],
    /// with the memory reads of several flows under way at once where that helps.
    ///
    /// # Panics
    ///
    /// If the two slices differ in length.
    fn lookup_batch(&self, hashes: &[u64], out: &mut [u16]) {
        assert_eq!(hashes.len(), out.len(), "one answer per hash");
        for (answer, &hash) in out.iter_mut().zip(hashes) {
            *answer = self.lookup(hash).unwrap_or(NONE);
        }
    }
}

/// A placement that follows changes of its pool with minimal disruption: an `add` moves flows
/// only to the new backend, a `remove` only those of the backend that goes.
pub trait Incremental: Placement {
    /// Adds a working backend. Weight zero: it is known but gets nothing.
    ///
    /// # Errors
    ///
    /// A name or number that is already in the pool, the reserved number, or no room.
    fn add(&mut self, candidate: Candidate<'_>) -> Result<(), PoolError>;

    /// Adds working backends, which comes to the same as one after the other, and takes less time where each change
    /// goes through the whole table.
    ///
    /// # Errors
    ///
    /// As [`Self::add`]; those before the one that is refused are added.
    fn add_all(&mut self, candidates: &[Candidate<'_>]) -> Result<(), PoolError> {
        candidates.iter().try_for_each(|candidate| self.add(*candidate))
    }

    /// Removes a working backend for good.
    ///
    /// # Errors
    ///
    /// [`PoolError::NotWorking`].
    fn remove(&mut self, backend: u16) -> Result<(), PoolError>;

    /// Changes the weight of a working backend. Flows move to it (more weight) or from it
    /// (less), and nowhere else.
    ///
    /// # Errors
    ///
    /// [`PoolError::NotWorking`], or no room; then nothing changed.
    fn reweight(&mut self, backend: u16, weight: u32) -> Result<(), PoolError>;
}

/// What JET needs to know of a flow (JET, Algorithm 1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// CH(W, k): where the flow goes.
    pub backend: u16,
    /// CH(W, k) != CH(W + H, k): the flow is *unsafe*, it must be tracked.
    pub may_differ: bool,
}

/// An incremental placement that also knows the horizon H: the backends that may join W next
/// (JET, section 2 and Algorithms 2-5).
///
/// The promise: a flow for which `may_differ` is false keeps its backend whichever of the
/// horizon's backends are admitted, in whichever order. [`Incremental::add`] of a backend
/// that was not in the horizon breaks that promise for the flows that move to it.
pub trait Horizon: Incremental {
    /// Where the flow goes, and whether it must be tracked; `None` if no working backend has
    /// weight.
    fn verdict(&self, hash: u64) -> Option<Verdict>;

    /// The verdicts of many flows: the same answers as [`Self::verdict`], with the memory reads
    /// of several flows under way at once where that helps.
    ///
    /// # Panics
    ///
    /// If the two slices differ in length.
    fn verdict_batch(&self, hashes: &[u64], out: &mut [Option<Verdict>]) {
        assert_eq!(hashes.len(), out.len(), "one answer per hash");
        for (answer, &hash) in out.iter_mut().zip(hashes) {
            *answer = self.verdict(hash);
        }
    }

    /// CH(W + H, k): where the flow would go if all of the horizon were admitted. (For
    /// [`crate::Anchor`]: admitted in the order of its horizon list.)
    fn lookup_all(&self, hash: u64) -> Option<u16>;

    /// Puts a new backend on the horizon (ADDHORIZONSERVER).
    ///
    /// # Errors
    ///
    /// As [`Incremental::add`].
    fn add_horizon(&mut self, candidate: Candidate<'_>) -> Result<(), PoolError>;

    /// Puts new backends on the horizon: to [`Self::add_horizon`] what [`Incremental::add_all`] is to `add`.
    ///
    /// # Errors
    ///
    /// As [`Incremental::add_all`].
    fn add_all_horizon(&mut self, candidates: &[Candidate<'_>]) -> Result<(), PoolError> {
        candidates.iter().try_for_each(|candidate| self.add_horizon(*candidate))
    }

    /// Takes a backend off the horizon, for good (REMOVEHORIZONSERVER).
    ///
    /// # Errors
    ///
    /// [`PoolError::NotInHorizon`].
    fn remove_horizon(&mut self, backend: u16) -> Result<(), PoolError>;

    /// Moves a backend from the horizon to the working set (ADDWORKINGSERVER).
    ///
    /// # Errors
    ///
    /// [`PoolError::NotInHorizon`].
    fn admit(&mut self, backend: u16) -> Result<(), PoolError>;

    /// Moves a backend from the working set to the horizon (REMOVEWORKINGSERVER).
    ///
    /// # Errors
    ///
    /// [`PoolError::NotWorking`].
    fn retire(&mut self, backend: u16) -> Result<(), PoolError>;
}
