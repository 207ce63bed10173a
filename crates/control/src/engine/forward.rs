//! How packets reach backends: next hops, and tunnels.

use super::{Engine, EngineError};
use crate::config::{Config, Forward, Service, Table, place_of};
use crate::neigh::{self, NeighError, Neighbour};
use std::collections::BTreeSet;
use std::net::IpAddr;
use weir_plane::Plane;
use weir_plane::forward::Tunnel;

/// What is known of the way to a backend.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reached {
    /// Where frames go; none if that is not resolved yet.
    pub next: Option<Neighbour>,
    /// The router in between, if there is one.
    pub gateway: Option<IpAddr>,
    /// What packets are put into.
    pub tunnel: Option<Tunnel>,
}

impl<P: Plane> Engine<P> {
    /// The way to a backend of a service that forwards so.
    pub(super) fn reach(&self, address: IpAddr, forward: Forward) -> Result<Reached, NeighError> {
        if !forward.is_tunnel() {
            return Ok(Reached { next: (self.resolve)(address)?, gateway: None, tunnel: None });
        }
        let path = (self.path)(address, &self.vips())?;
        let tunnel = self.tunnel(address, forward, Some(&path));
        Ok(Reached { next: path.next, gateway: path.gateway, tunnel })
    }

    /// Whose frames those to a backend are: its own, or those of the router that leads there.
    pub(super) fn first_of(&self, backend: IpAddr) -> IpAddr {
        self.gateways.get(&backend).copied().unwrap_or(backend)
    }

    /// The tunnel to a backend, with what is known of the way.
    pub(super) fn tunnel(
        &self,
        address: IpAddr,
        forward: Forward,
        path: Option<&neigh::Path>,
    ) -> Option<Tunnel> {
        let encapsulation = forward.encapsulation()?;
        let sources = self.config.balancer.tunnel_sources();
        let (source, spread) = sources.towards(address, path.and_then(|path| path.source));
        Some(Tunnel { encapsulation, source, spread, mtu: path.map_or(0, |path| path.mtu) })
    }

    /// The addresses of the services. Backends have them, too: an answer to one of them stays there, and
    /// what comes from one is taken for their own.
    pub(super) fn vips(&self) -> BTreeSet<IpAddr> {
        self.services.values().map(|service| service.configured.vip).collect()
    }

    /// Refuses a configuration that gives up a tunnel which its backends cannot do without.
    pub(super) fn keeps_tunnels(&self, config: &Config) -> Result<(), EngineError> {
        let there = |wanted: &Service| {
            let mut all = self.services.values().map(|service| &service.configured);
            all.find(|now| {
                (now.vip, now.protocol, now.port) == (wanted.vip, wanted.protocol, wanted.port)
            })
        };
        for wanted in config.services.iter().filter(|wanted| !wanted.forward.is_tunnel()) {
            if !there(wanted).is_some_and(|now| now.forward.is_tunnel()) {
                continue;
            }
            for backend in &wanted.backends {
                if let Err(error @ NeighError::Gateway { .. }) = (self.resolve)(backend.address) {
                    let (service, name) = (&wanted.name, &backend.name);
                    let place = place_of(&self.config_path, Table::Service(service), "forward");
                    return Err(EngineError::Conflict(format!(
                        "{place}service {service}: backend {name}: {error}. Nothing has changed"
                    )));
                }
            }
        }
        Ok(())
    }
}
