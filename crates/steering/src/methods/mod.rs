//! The methods, each in a folder of its own.

pub mod baseline;
pub mod cheetah;
pub mod concury;
#[cfg(feature = "example")]
pub mod example;
pub mod jet;
pub mod residue;
pub mod tracked;
