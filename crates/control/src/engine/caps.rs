//! How many new flows services take, as packets meet it and as it is shown.

use super::service::ServiceRuntime;
use super::{Engine, EngineError, PlaneResult};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use weir_hash::HashKey;
use weir_plane::{CappedFlows, FlowCaps, FlowRoom, Plane};
use weir_wire::{FlowKey, Reason, unmap_address};

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
    /// Connections that each prefix of sources may hold; none: any number.
    pub source_connections: Option<u32>,
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
    /// As their prefix held as many connections as it may.
    pub capped_connections: u64,
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
    /// What becomes of a SYN of this flow just now by the service's rates.
    pub(super) fn room_for(
        &self,
        service: &ServiceRuntime,
        flow: &FlowKey,
    ) -> Result<Option<String>, EngineError> {
        let Some(flows) = service.configured.new_flows else { return Ok(None) };
        if self.plane.flow_caps(service.number) != service.caps() {
            return Ok(Some("the rates of the file are not in force yet".into()));
        }
        let Some(room) = self.plane.flow_room(service.number, &flow.src).plane()? else {
            return Ok(None);
        };
        let bits = match unmap_address(&flow.src) {
            IpAddr::V4(_) => flows.ipv4_prefix,
            IpAddr::V6(_) => flows.ipv6_prefix,
        };
        // In the order in which packets meet them.
        let refused = match room {
            FlowRoom { connections: Some(0), .. } => {
                let reason = Reason::SourceConnectionCap;
                let why = format!("its /{bits} holds as many connections as it may");
                return Ok(Some(format!("dropped as {reason}, as {why}")));
            }
            FlowRoom { source: Some(0), .. } => {
                Some((Reason::SourceFlowCap, format!("its /{bits} has")))
            }
            FlowRoom { all: Some(0), .. } => Some((Reason::NewFlowCap, "all sources have".into())),
            _ => None,
        };
        Ok(Some(match refused {
            Some((reason, who)) => {
                format!("dropped as {reason}, as {who} begun as many as it takes")
            }
            None => {
                let of = |room: Option<u64>, whose: String| {
                    room.map(|room| format!("{room} more of {whose}"))
                };
                let all = of(room.all, "all sources".into());
                let source = of(room.source, format!("its /{bits}"));
                let left: Vec<String> = source.into_iter().chain(all).collect();
                let mut said = String::from("taken");
                if !left.is_empty() {
                    said += &format!(": at once {}", left.join(", and "));
                }
                if let Some(room) = room.connections {
                    said += &format!("; its /{bits} may hold {room} connections more");
                }
                said
            }
        }))
    }

    pub(super) fn new_flow_status(&self, service: &ServiceRuntime) -> Option<NewFlowStatus> {
        let flows = service.configured.new_flows?;
        let CappedFlows { all, source, connections } = self.plane.capped_flows(service.number);
        Some(NewFlowStatus {
            per_second: flows.all.map(|rate| rate.per_second),
            burst: flows.all.map(|rate| rate.burst),
            source_per_second: flows.source.map(|rate| rate.per_second),
            source_burst: flows.source.map(|rate| rate.burst),
            source_connections: flows.source_connections,
            ipv4_prefix: flows.ipv4_prefix,
            ipv6_prefix: flows.ipv6_prefix,
            in_force: self.plane.flow_caps(service.number) == service.caps(),
            capped: all,
            capped_of_source: source,
            capped_connections: connections,
        })
    }
}
