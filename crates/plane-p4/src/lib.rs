//! A plane on a programmable switch: `p4/weir.p4`, and who fills it (docs/p4.md).
//!
//! - [`layout`]: the switch's registers and tables, by name and size.
//! - [`Write`], [`Target`]: what can be done to a switch. [`Switch`] does it over Thrift, [`Model`]
//!   in memory, and decides frames from these registers alone, as the program does.
//! - [`encode`]: a table of `weir-steering` as registers and entries.
//! - [`P4`]: the [`Plane`](weir_plane::Plane) that a control plane drives.
//! - [`resources`]: what it takes of a switch.
#![forbid(unsafe_code)]

pub mod encode;
mod error;
pub mod layout;
mod methods;
mod model;
mod plane;
mod program;
mod ranges;
pub mod resources;
mod state;
mod switch;
mod target;
mod thrift;

pub use error::Error;
pub use methods::{METHODS, fits, slots_of};
pub use model::Model;
pub use plane::P4;
pub use program::FILES;
pub use switch::Switch;
pub use target::{Action, Target, Write};
