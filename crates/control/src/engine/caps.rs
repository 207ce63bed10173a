//! How many new flows services take, as packets meet it and as it is shown.

use super::Engine;
use super::service::ServiceRuntime;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_hash::HashKey;
use weir_plane::{CappedFlows, FlowCaps, Plane};

/// What tells the key of a service's buckets from its others.
const CAPS: u64 = 0x6e65_775f_666c_6f77;

/// How many new flows a service takes, and how many it did not.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub struct NewFlowStatus {
    /// In a second, from all sources together; none: any number.
    pub per_second: Option<u32>,
    /// At once.
    pub burst: Option<u32>,
    /// In a second, from each prefix of sources; none: any number.
    pub source_per_second: Option<u32>,
    /// At once.
    pub source_burst: Option<u32>,
    /// Bits of a prefix of IPv4.
    pub ipv4_prefix: u8,
    /// Bits of a prefix of IPv6.
    pub ipv6_prefix: u8,
    /// Whether packets meet that already.
    pub in_force: bool,
    /// New flows that were not taken, as the service had taken as many as it takes.
    pub capped: u64,
    /// As their prefix had.
    pub capped_of_source: u64,
}

impl ServiceRuntime {
    /// How many new flows are to be taken; none: any number. Where the buckets of prefixes are, nobody knows who
    /// does not know the seed.
    pub(super) fn caps(&self) -> Option<FlowCaps> {
        let key = HashKey::from_seed(self.seed.wrapping_add(CAPS));
        self.configured.new_flows.map(|flows| flows.caps(key))
    }
}

impl<P: Plane> Engine<P> {
    pub(super) fn new_flow_status(&self, service: &ServiceRuntime) -> Option<NewFlowStatus> {
        let flows = service.configured.new_flows?;
        let CappedFlows { all, source } = self.plane.capped_flows(service.number);
        Some(NewFlowStatus {
            per_second: flows.all.map(|rate| rate.per_second),
            burst: flows.all.map(|rate| rate.burst),
            source_per_second: flows.source.map(|rate| rate.per_second),
            source_burst: flows.source.map(|rate| rate.burst),
            ipv4_prefix: flows.ipv4_prefix,
            ipv6_prefix: flows.ipv6_prefix,
            in_force: self.plane.flow_caps(service.number) == service.caps(),
            capped: all,
            capped_of_source: source,
        })
    }
}
