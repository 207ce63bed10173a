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
#[cfg(test)]
mod mutants;
mod pool;
mod queue;
mod report;
mod requests;
mod scenario;
pub mod trace;
mod world;
mod zipf;

pub use distribution::{DistributionError, StepCdf};
pub use engine::{simulate, simulate_with};
pub use flow::Traffic;
pub use method::Method;
pub use pool::Departure;
pub use report::{Outcome, Percentiles, Report, Row, RunSeries, Sample, Series};
pub use requests::{Demand, Discipline, QueueSpec};
pub use scenario::{
    BUILTIN, EventSpec, MethodSpec, OneOrMany, PoolSpec, Progress, ReweightSpec, Scenario,
    ScenarioError, SettingSpec, Size, TrafficSpec, builtin, builtin_text, run, run_file, run_with,
};
pub use world::{Action, Engine, Feedback, LoadKind, Orphans, Scripted, World};
pub use zipf::{Zipf, ZipfError};
