//! Placement: which backend a *new* flow goes to.
//!
//! A [`Placement`] is a pure function of a flow's hash and a table that was built from
//! the pool. It remembers nothing: what keeps the packets of a flow together when
//! the pool changes is the steering method above it. A [`Scheduler`] does remember: whose
//! turn it is, or how loaded each backend is; it needs a steering method that does not ask
//! twice.
//!
//! [`Maglev`], [`HrwTable`], [`Ring`], [`Anchor`] and [`Hrw`] are placements. All but Maglev are
//! [`Incremental`] and know a [`Horizon`], which JET needs. The page docs/placement.md has the
//! pictures and the measured figures.
//!
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod anchor;
mod anchor_log;
mod hrw;
mod hrw_table;
mod maglev;
mod pool;
mod prime;
mod ring;
mod scheduler;
mod score;
mod traits;
mod two_choices;

pub use anchor::{Anchor, AnchorTables};
pub use anchor_log::{LogError, Operation};
pub use hrw::Hrw;
pub use hrw_table::HrwTable;
pub use maglev::{Error, Maglev};
pub use pool::{Candidate, NONE, PoolError};
pub use prime::{is_prime, next_prime};
pub use ring::Ring;
pub use scheduler::{
    Awrr, Hashed, LeastLoaded, Metric, PowerOfTwo, RoundRobin, Scheduler, WeightedRoundRobin,
};
pub use traits::{Horizon, Incremental, Placement, Verdict};
pub use two_choices::{Choice, choose_of_two};
