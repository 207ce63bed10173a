//! Concury (docs/concury.md; Concury sections 5.2 to 5.6).

mod build;
mod codec;
mod config;
mod decide;
mod dense;
mod dip_array;
mod forwarder;
mod states;

pub use build::{BuildReport, Concury, Phase, State};
pub use codec::{Codec, Codes};
pub use config::ConcuryConfig;
pub use decide::place_again;
pub(crate) use decide::steer;
pub use forwarder::Forwarder;
