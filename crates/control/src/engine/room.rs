//! How much room there is, by the names of `[limits]`, and how much of it is taken: what an operator divides before
//! anything is refused.

use super::Engine;
use super::service::ServiceRuntime;
use super::status::Status;
use crate::config::Lists;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_plane::Plane;

const NAT_CONNECTIONS: &str = "nat_connections";

/// A limit, and how much of it is taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RoomStatus {
    /// Its name in `[limits]`.
    pub limit: String,
    /// How many there is room for now, of all services together.
    pub room: u64,
    /// How many there are; none where nobody counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
}

impl<P: Plane> Engine<P> {
    /// Limits of the whole instance; what nothing needs has no room, and is left out. `pending`: flows that are.
    pub(super) fn room(&self, pending: usize) -> Vec<RoomStatus> {
        let (limits, own) = (self.plane.limits(), self.limits_in_force());
        let services = self.services.values();
        let backends: usize = services.clone().map(|service| service.pool.len()).sum();
        let lists: usize =
            services.filter_map(ServiceRuntime::lists).map(|list: &Lists| list.takes()).sum();
        let all = [
            ("services", limits.services, Some(self.services.len() as u64)),
            ("backends", limits.backends, Some(backends as u64)),
            ("pending_flows", limits.pending_flows, Some(pending as u64)),
            ("unreported_flows", limits.unreported_flows, None),
            ("tracked_flows", limits.tracked_flows, None),
            ("answered_flows", limits.answered_flows, None),
            ("udp_flows", limits.udp_flows, None),
            ("list_prefixes", limits.list_prefixes, Some(lists as u64)),
            (NAT_CONNECTIONS, limits.mappings, self.mapped()),
            ("states_per_service", own.states_per_service, None),
            ("half_open_flows", own.half_open_flows, None),
        ];
        all.into_iter()
            // Memory that nothing needs has one place.
            .filter(|(_, room, _)| *room > 1)
            .map(|(limit, room, used)| RoomStatus { limit: limit.into(), room: room.into(), used })
            .collect()
    }
}

impl Status {
    /// Whether connections under full NAT were counted since the process began: until then it knows none, however
    /// many there are.
    pub fn has_counted_nat(&self) -> bool {
        !self.room.iter().any(|one| one.limit == NAT_CONNECTIONS && one.used.is_none())
    }
}
