//! Event-driven simulation of steering methods.
//!
//! A [`World`] (flows, servers, the history of the pool) is played with a [`Method`]; the
//! [`Outcome`] counts the connections that broke. [`Scenario`] files describe worlds and methods;
//! [`run`] plays them all and makes a [`Report`]. [`trace`] plays packets of a trace.
//!
//! The model, what is exact and what is not, and the published figures beside ours:
//! docs/sim.md.

#![forbid(unsafe_code)]

mod distribution;
mod engine;
mod flow;
pub mod method;
pub mod methods;
mod pool;
mod queue;
mod report;
mod scenario;
pub mod trace;
mod zipf;

pub use distribution::{DistributionError, StepCdf};
pub use engine::{Engine, Orphans, World, simulate};
pub use flow::Traffic;
pub use method::Method;
pub use pool::Departure;
pub use report::{Outcome, Report, Row, Series};
pub use scenario::{MethodSpec, Scenario, ScenarioError, run, run_file};
pub use zipf::{Zipf, ZipfError};
