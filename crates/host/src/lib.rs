//! What the control plane and the agent ask of the host that they run on, and how they say what is
//! wrong with it.
#![forbid(unsafe_code)]

pub mod files;
pub mod finding;
pub mod prefix;
pub mod rtnetlink;

pub use finding::{Finding, Verdict};
