//! Updates: from a changed pool to a published table, without losing a flow that is starting.
//!
//! - [`Update`] is the protocol, *record, collect, commit*, as a pure state machine: what is done
//!   next, and what after an action that failed.
//! - [`step`] performs its next action, on whatever [`Perform`]s it: nobody else reads actions.
//! - [`Driver`] runs it for many services at once, over a [`Plane`] (a data plane) and the
//!   [`Services`] (their states and tables).
//!
//! ```text
//!  Services                    Driver                       Plane
//!  states, tables   ◄───   one Update each,    ───►   flags, grace periods, reports,
//!                          shared grace periods       pending, pins, published tables
//! ```

mod collect;
mod driver;
mod kept;
mod machine;
mod perform;
mod pins;
mod plane;
mod publish;
mod settle;

/// What the driver's actions consist of. It goes through them without a pause; the model that
/// tests/interleavings.rs explores runs the same ones, with packets between them.
pub mod parts {
    pub use super::collect::{Collected, Collecting, Found};
    pub use super::kept::{Kept, unpin};
    pub use super::pins::Pins;
    pub use super::publish::{Part, Publishing};
    pub use super::settle::{Settling, settled};
}

pub use driver::{Driver, Outcome};
pub use machine::{Action, Update};
pub use perform::{Perform, Progress, go_on, step};
pub use plane::{Built, Draining, Failure, Judgement, Plane, Services};
