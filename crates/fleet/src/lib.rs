//! What balancers of one fleet share, and the store that they share it by (docs/fleet.md).
//!
//! Balancers decide alike if they have the same configuration, the same seeds and the same numbers. That is
//! all that is shared: one [`Document`] in etcd, replaced as a whole by one transaction. Nothing is written
//! for a connection.
//!
//! - [`text`]: which part of a configuration file is shared, and how commands change it.
//! - [`Document`]: the shared configuration, with what it does not say and all must have alike.
//! - [`Step`]: a change of pools that all of them make in step.
//! - [`Part`], [`Step::led`]: what each does in one, as the model checker has it, too.
//! - [`replay`]: whether what balancers have done in steps keeps to the rules.
//! - [`Cache`]: the last document that was followed, on a balancer's own disc.
//! - [`Store`]: etcd, as far as a fleet uses it.
//! - [`Keeper`]: the task of a balancer that keeps it in touch with the store, and goes on without.

#![forbid(unsafe_code)]

mod cache;
mod certificate;
mod config;
mod document;
mod error;
mod keeper;
mod part;
mod replay;
mod report;
mod step;
mod store;
mod terms;
pub mod text;

pub use cache::{Cache, cache_path};
pub use config::{StoreConfig, TlsFiles};
pub use document::{Document, Keys, Numbered};
pub use error::FleetError;
pub use keeper::{Ask, Asks, Ends, Keeper, LEASE, News};
pub use part::{Apart, At, Due, Lead, Leading, Part, Patience, Silence};
pub use replay::{Did, Mark, Replayed, TARGET, replay};
pub use report::{Leader, Report, ServiceSign, Sign};
pub use step::{Ack, FLIGHT, Pools, Share, Stage, Step, StepId};
pub use store::{Seat, Seen, Store};
