//! JET: just enough tracking for connection consistency (docs/jet.md).
//!
//! Mendelson, Vargaftik, Lorenz, Barabash, Keslassy, Orda, "Load Balancing with JET: Just Enough
//! Tracking for Connection Consistency", CoNEXT 2021.
//!
//! A consistent hash and the *horizon*, the backends that may join next, tell which flows a
//! foreseen change could move: those whose backend differs between CH(W) and CH(W + H). Only
//! these *unsafe* flows are tracked, about |H| / (|W| + |H|) of them.
//!
//! * [`Jet`]: over any [`Horizon`](weir_placement::Horizon) placement. [`JetTable`] is the form
//!   in which a packet of a clean table row costs one read.
//! * [`AnyJet`]: placement and connection table chosen at run time, by [`JetConfig`].
//! * [`JetBuilder`]: tables of rows that a plane publishes ([`Body`]), worked out by any of these
//!   placements.
//! * [`FullTracking`]: every flow in the same table, over any placement: what JET is measured
//!   against.

mod any;
mod build;
mod columns;
mod config;
mod decide;
mod full;
mod guide;
mod method;
mod table;
mod warm_up;

pub use crate::rows::ROWS;
pub use any::{AnyJet, JetConfig, PlacementKind};
pub use build::JetBuilder;
pub(crate) use columns::Columns;
pub(crate) use config::PLACEMENT_SETTING;
pub use config::{Method, PLACEMENT, WARM_UP};
pub use full::FullTracking;
pub use guide::{Asks, BURST, ByBackend, ByRow, Guide};
pub use method::{Guided, Jet, JetTable, Swept};
pub use table::Body;

use crate::method::Needs;
use crate::registry::MethodId;

use crate::table::NO_BACKEND;
use std::time::Duration;
use weir_placement::{Candidate, PoolError};

/// Why JET refuses a change, or to exist. Nothing has changed then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JetError {
    /// The placement refuses the change.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The backend has not been on the horizon for long enough.
    #[error(
        "backend {backend} may join in {left:?}: flows that its arrival will move may not have \
         sent a packet since it was announced, and so are not tracked"
    )]
    TooEarly {
        /// The backend to be admitted.
        backend: u16,
        /// How long to wait.
        left: Duration,
    },
    /// Maglev cannot tell which flows a change will move.
    #[error(
        "JET cannot run on Maglev: its table flips some flows between backends that a change \
         does not concern, even when a backend is removed, and nothing tells which before the \
         new table is built; every flow would have to be tracked. Use table, anchor, ring or \
         hrw, or track every flow"
    )]
    MaglevFlips,
    /// A backend has a number that no table entry can hold.
    #[error("backend number {0} is not below {NO_BACKEND}")]
    BackendNumber(u16),
}

fn check_number(candidate: &Candidate<'_>) -> Result<(), JetError> {
    let Candidate { backend, .. } = *candidate;
    if backend < NO_BACKEND { Ok(()) } else { Err(JetError::BackendNumber(backend)) }
}

/// Full tracking, as the registry lists it.
#[derive(Debug)]
pub struct FullMethod;

impl crate::method::Method for FullMethod {
    const ID: MethodId = MethodId::FullTracking;
    const NAME: &'static str = "full-tracking";
    const SUMMARY: &'static str = "a connection table over any placement";
    const NEEDS: Needs = Needs { connections: true, ..Needs::NOTHING };
}
