//! What is announced to routers, and through whom.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use weir_announce::SpeakerConfig;

/// What is announced, and through whom.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Announce {
    /// The speaker, with what routes are announced with.
    pub speaker: SpeakerConfig,
    /// How long a balancer that has just begun holds its routes back; zero to an hour.
    pub learn_delay: Duration,
    /// Whether routes are withdrawn when `weir run` ends.
    pub withdraw_at_stop: bool,
}
