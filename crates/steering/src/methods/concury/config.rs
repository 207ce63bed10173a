//! Settings of a service.

use super::codec::Codec;

/// Settings of a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConcuryConfig {
    /// What holds the Dcodes. The kernel plane reads only [`Codec::Othello`].
    pub codec: Codec,
    /// Bits of a Dcode, 1..=15.
    pub bits: u32,
    /// States are clients, not flows.
    pub client_affinity: bool,
    /// The service is UDP: flows have no SYN and no FIN.
    pub udp: bool,
    /// Packets mark active flows, so that idle ones can be told (TCP).
    pub mark: bool,
    /// States to make room for at first.
    pub capacity: usize,
    /// States at most; further flows are steered but not remembered.
    pub max_states: usize,
    /// Seconds after which a silent flow is forgotten.
    pub idle_seconds: u32,
    /// Makes every run with it the same.
    pub seed: u64,
}

impl ConcuryConfig {
    /// A TCP service by flow, with as many states as come, none of which is ever idle: what a
    /// bench or a simulation starts from.
    pub fn unbounded(codec: Codec, bits: u32, seed: u64) -> Self {
        Self {
            codec,
            bits,
            client_affinity: false,
            udp: false,
            mark: false,
            capacity: 0,
            max_states: usize::MAX,
            idle_seconds: u32::MAX,
            seed,
        }
    }
}
