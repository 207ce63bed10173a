//! Measurements: lookups of steering methods and of compact maps, updates, the XDP program, burst planes,
//! connections beside the kernel's own ways, the control plane, health checks.
//!
//! Things that are compared are measured in one run, in turn, and reported as medians with their
//! spread: this machine may be shared and noisy. Each module has a request, a function that
//! measures and hands over rows as they are ready, and its report, for JSON; rows know how they look
//! to people and as comma-separated values. Nothing here prints.
#![forbid(unsafe_code)]

mod blocks;
pub mod checks;
pub mod control;
mod error;
pub mod fleet;
mod instance;
pub mod instructions;
pub mod lookup;
pub mod maps;
pub mod neighbour;
pub mod plane;
mod stats;
pub mod throughput;
pub mod update;
pub mod xdp;

pub use error::{Error, Result};
pub use neighbour::Company;
pub use stats::Spread;

/// Adds a line to a string; writing to one cannot fail.
macro_rules! put {
    ($out:expr $(, $($rest:tt)*)?) => {{
        use std::fmt::Write;
        let _ = writeln!($out $(, $($rest)*)?);
    }};
}
use put;
