//! What becomes of packets for a backend once it is decided that they go there: where their frames are sent, or why
//! nowhere.

use super::Explanation;
use crate::config::PlaneKind;
use crate::engine::Engine;
use crate::engine::service::{PoolMember, ServiceRuntime};
use crate::neigh::{self, NeighError};
use std::net::{IpAddr, SocketAddr};
use weir_plane::forward::NextHop;
use weir_plane::{Hop, Plane};
use weir_steering::{BackendId, Note};
use weir_wire::{FlowKey, Reason, unmap_address};

impl Explanation {
    /// Its packets go nowhere, for this reason.
    pub(crate) fn is_dropped(&mut self, reason: Reason) {
        self.dropped = Some(reason.name().into());
    }

    /// No client can have sent its packets to its backend, so that full NAT gives them no source.
    pub(crate) fn has_no_client(&mut self, flow: &FlowKey) {
        let source = SocketAddr::from((unmap_address(&flow.src), flow.src_port));
        self.from = Some(format!("{source} gets none: no client has it"));
        // What is dropped before that goes by another reason.
        if self.dropped.is_none() {
            self.is_dropped(Reason::NoClient);
        }
    }

    /// What the decision asked and told, with the names of backends. What is dropped behind it was marked all the same,
    /// and whoever reads that takes it for forwarded.
    pub(crate) fn has_asked(&mut self, notes: &[Note], name: impl Fn(BackendId) -> Option<String>) {
        let dropped = self.dropped.is_some();
        let shown = notes.iter().filter(|note| !(dropped && **note == Note::Mark));
        self.asked = shown.map(|note| note.words(&name)).collect();
    }
}

impl<P: Plane> Engine<P> {
    /// Says where frames for a backend go. As packets find it: by the kernel's routes and neighbours, and where those
    /// have no answer by what the plane was told before.
    pub(super) fn explain_hop(
        &self,
        service: &ServiceRuntime,
        member: &PoolMember,
        said: &mut Explanation,
    ) {
        let address = member.wanted.address;
        let known = self.plane.backend(member.id);
        if known.is_some_and(|known| known.resets) {
            said.next_hop = Some("none is needed: its connections are answered by resets".into());
            said.is_dropped(Reason::DeadBackend);
            return;
        }
        let told = known.and_then(|known| known.hop);
        let (found, lack) = match self.hop_now(address, service) {
            Ok(answer) => answer,
            Err(error @ NeighError::Gateway { .. }) => {
                said.next_hop = Some(format!("none that would take them: {error}"));
                said.is_dropped(Reason::BehindGateway);
                return;
            }
            Err(error) => (None, Some(error.to_string())),
        };
        let Some(hop) = found.or(told) else {
            let lack = lack.map_or_else(String::new, |lack| format!(": {lack}"));
            said.next_hop = Some(format!("none is known{lack}"));
            said.is_dropped(Reason::NoNextHop);
            return;
        };
        let links = (self.links)().unwrap_or_default();
        let interface = links.iter().find(|link| link.index == hop.ifindex);
        let name = match (interface, hop.ifindex) {
            (Some(interface), _) => interface.name.clone(),
            (None, 0) => "the interface that they come by".into(),
            (None, number) => format!("interface number {number}"),
        };
        let mac = hop.next.mac.map(|octet| format!("{octet:02x}")).join(":");
        let router = self.gateways.get(&address);
        let router = router.map_or_else(String::new, |router| format!(" (the router {router})"));
        let last = lack.filter(|_| found.is_none());
        let last = last.map_or_else(String::new, |lack| format!(", as it was last known: {lack}"));
        said.next_hop = Some(format!("{mac} by {name}{router}{last}"));
        // A switch has ports, and no interfaces that frames could be lost by.
        let refuses = |interface: &neigh::Interface| neigh::way_out(interface, &links).is_err();
        if self.config.balancer.plane != PlaneKind::P4
            && !self.is_generic()
            && interface.is_some_and(refuses)
        {
            said.is_dropped(Reason::NoWayOut);
        }
    }

    /// The next hop that the kernel knows now, if it does; and why not. A switch is not asked: it has no routes, but what
    /// it was told.
    fn hop_now(
        &self,
        address: IpAddr,
        service: &ServiceRuntime,
    ) -> Result<(Option<Hop>, Option<String>), NeighError> {
        if self.config.balancer.plane == PlaneKind::P4 {
            return Ok((None, self.unreachable.get(&address).cloned()));
        }
        let reached = self.reach(address, service.configured.forward, &self.vips())?;
        let hop = reached.next.map(|found| {
            let next = NextHop { mac: found.mac, source_mac: found.source_mac };
            Hop { next, ifindex: found.ifindex }
        });
        let first = reached.gateway.unwrap_or(address);
        let by = if first.is_ipv4() { "ARP" } else { "neighbour discovery" };
        Ok((hop, Some(format!("{first} has not answered {by}"))))
    }
}
