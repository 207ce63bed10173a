//! residue: remember only what a change of the pool has left behind (docs/residue.md).
//!
//! * [`Table`]: what packets read. Rows -> backend, an exact map of the *exceptions* (flows that
//!   live where the rows no longer point), and flags that tell which flows need not look there.
//! * [`Residue`]: the build face, one per service.
//! * [`Coordinator`], [`BalancerNode`], [`AgentNode`]: a change across many machines, as pure
//!   state machines. [`crate::Update`] is the sequence; the coordinator has each of its actions
//!   done by every balancer and waits for all of them.
//!
//! Nothing is written when a flow starts, and nothing is foreseen: only a change remembers.

mod agent;
mod balancer;
mod build;
mod coordinator;
mod exceptions;
mod expected;
mod message;
mod table;

pub use agent::{AgentNode, Listing, Request};
pub use balancer::{BalancerNode, Gate, PendingFlows};
pub use build::{Collected, Residue, ResidueConfig, rows_for};
pub use coordinator::{Build, Coordinator, Counts, Waiting, Window};
pub use exceptions::{FLAG_BITS, Flags, Flow, remaining};
pub use expected::{EXCEPTIONS, Leftovers};
pub use message::{Answer, Order, Routes, RowSet, Work};
pub use table::{Published, Table};

use crate::method::Needs;
use crate::registry::MethodId;

/// residue, as the registry lists it.
#[derive(Debug)]
pub struct Method;

impl crate::method::Method for Method {
    const ID: MethodId = MethodId::Residue;
    const NAME: &'static str = "residue";
    const SUMMARY: &'static str = "a table of rows, and an exact map of what changes left behind";
    const NEEDS: Needs = Needs { first_datagrams: true, ..Needs::NOTHING };
}
