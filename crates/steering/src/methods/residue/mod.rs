//! residue: remember only what a change of the pool has left behind (docs/residue.md).
//!
//! * [`Table`]: what packets read. Rows -> backend, an exact map of the *exceptions* (flows that
//!   live where the rows no longer point), and flags that tell which flows need not look there.
//! * [`Residue`]: the build face, one per service.
//! * [`Coordinator`], [`BalancerNode`], [`AgentNode`]: a change across many machines, as pure
//!   state machines. [`crate::Update`] is the sequence; the coordinator has each of its actions
//!   done by every balancer and waits for all of them.
//!
//! * [`ResidueBuilder`], [`Body`]: a service of one balancer whose control plane observes the
//!   connections itself, with tables that a plane publishes.
//!
//! Nothing is written when a flow starts, and nothing is foreseen: only a change remembers.

mod agent;
mod balancer;
mod body;
mod build;
mod config;
mod coordinator;
mod decide;
mod exceptions;
mod expected;
mod lines;
mod message;
mod service;
mod table;

pub use agent::{AgentNode, Listing, Request};
pub use balancer::{BalancerNode, Gate, PendingFlows};
pub use body::Body;
pub use build::{Collected, Residue, ResidueConfig, rows_for};
pub use config::Method;
pub use coordinator::{Build, Coordinator, Counts, Waiting, Window};
pub use exceptions::{FLAG_BITS, Flags, Flow, remaining};
pub use expected::{EXCEPTIONS, Leftovers};
pub use lines::{LINE_ENTRIES, LINE_PROBES};
pub use message::{Answer, Order, Routes, RowSet, Work};
pub use service::ResidueBuilder;
pub use table::{Published, Table};
