//! Concury (docs/concury.md; Concury sections 5.2 to 5.6).

mod build;
mod decide;
mod dip_array;

pub use build::{BuildReport, Concury, ConcuryConfig, Phase, State};
pub use decide::place_again;
pub(crate) use decide::steer;
