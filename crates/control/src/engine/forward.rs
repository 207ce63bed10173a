//! How packets reach backends: next hops, tunnels, and other addresses.

mod apart;

use super::service::ServiceRuntime;
use super::{Engine, EngineError, PlaneResult};
use crate::config::{Answers, Backend, Config, Forward, NatSources, Protocol, Service, Table};
use crate::neigh::{self, NeighError, Neighbour};
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use weir_plane::forward::{Ports, Segments, Translation, Tunnel};
use weir_plane::{Listen, Plane, Translated, Translations, VipKey};
use weir_wire::map_address;

/// What is known of the way to a backend.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reached {
    /// Where frames go; none if that is not resolved yet.
    pub next: Option<Neighbour>,
    /// The router in between, if there is one.
    pub gateway: Option<IpAddr>,
    /// What packets are put into.
    pub tunnel: Option<Tunnel>,
    /// The largest packet that the way there takes; 0: not known.
    pub mtu: u32,
}

/// What a service says of the way to a backend: how packets reach it, how large segments may be, and which sources
/// they get.
pub(super) type Way = (Forward, Option<Segments>, Option<Ports>);

pub(super) fn way_of(service: &Service, backend: &Backend, nat: &NatSources) -> Way {
    (service.forward, service.segments(), service.nat_ports_to(backend, nat))
}

/// How packets are made a backend's own, if they are. `ports`: the sources that they get.
pub(super) fn translation(
    forward: Forward,
    backend: &Backend,
    mtu: u32,
    ports: Option<Ports>,
) -> Option<Translation> {
    forward.is_nat().then_some(Translation { port: backend.port, mtu, ports })
}

fn key((address, protocol, port): (IpAddr, Protocol, Option<u16>)) -> VipKey {
    VipKey { address: map_address(address), protocol: protocol.on_the_wire(), port }
}

impl<P: Plane> Engine<P> {
    /// The way to a backend of a service that forwards so. `vips`: the addresses of the services.
    pub(super) fn reach(
        &self,
        address: IpAddr,
        forward: Forward,
        vips: &BTreeSet<IpAddr>,
    ) -> Result<Reached, NeighError> {
        if !forward.passes_routers() {
            let next = (self.resolve)(address)?;
            return Ok(Reached { next, gateway: None, tunnel: None, mtu: 0 });
        }
        let path = (self.path)(address, vips)?;
        let tunnel = self.tunnel(address, forward, Some(&path));
        Ok(Reached { next: path.next, gateway: path.gateway, tunnel, mtu: path.mtu })
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
        let all = self.services.values().flat_map(|service| service.configured.addresses());
        all.map(|vip| vip.address).collect()
    }

    /// Whose answers are translated, and to what. A backend that is leaving gives way to one that is there.
    fn translations(&self) -> Translations {
        let translated =
            || self.services.values().filter(|one| one.configured.forward == Forward::Nat);
        let mut all = Translations::new();
        let of = |service: &ServiceRuntime, id| {
            let limits = service.configured.segments().map(|_| id);
            Translated { service: service.vip(), limits }
        };
        for service in translated() {
            for id in &service.leaving {
                let Some(backend) = self.plane.backend(*id) else { continue };
                let Some(Translation { port, .. }) = backend.translation else { continue };
                let Service { vip, protocol, port: listens, .. } = service.configured;
                let answers = Answers::of((vip, listens), protocol, backend.address, port);
                all.insert(key((answers.from, protocol, answers.port)), of(service, *id));
            }
        }
        for service in translated() {
            for member in &service.pool {
                if let Some(answers) = service.configured.answers_of(&member.wanted) {
                    let from = (answers.from, answers.protocol, answers.port);
                    all.insert(key(from), of(service, member.id));
                }
            }
        }
        all
    }

    /// Tells the plane whose answers are translated.
    pub(super) fn tell_translations(&mut self) -> Result<(), EngineError> {
        let wanted = self.translations();
        if self.translated.as_ref() == Some(&wanted) {
            return Ok(());
        }
        self.translated = None;
        self.plane.set_translations(&wanted).plane().map_err(|error| {
            EngineError::Unfinished(format!("answers of translated backends: {error}"))
        })?;
        self.translated = Some(wanted);
        Ok(())
    }

    /// Refuses a backend whose answers could be another service's.
    pub(super) fn answers_apart(
        &self,
        service: &str,
        backend: &Backend,
    ) -> Result<(), EngineError> {
        let Some(mine) = self.service(service)?.configured.answers_of(backend) else {
            return Ok(());
        };
        for other in self.services.values() {
            let configured = &other.configured;
            for member in &other.pool {
                let theirs = configured.answers_of(&member.wanted);
                if theirs.is_some_and(|theirs| theirs.meets(&mine)) {
                    let (name, service) = (&member.wanted.name, &configured.name);
                    let port =
                        mine.port.map_or_else(|| "any port".into(), |one| format!("port {one}"));
                    return Err(EngineError::Conflict(format!(
                        "backend {name} of service {service} has {} and {} {port}, too: whose an answer \
                         from there is could not be told; give another port",
                        mine.from,
                        mine.protocol.name()
                    )));
                }
            }
        }
        Ok(())
    }

    /// Refuses a configuration by which packets would be sent to where a backend cannot get them: one that
    /// joins, or that gives up a tunnel which it cannot do without. What was there before stays: routes may
    /// have changed under it, and nothing is gained by refusing the rest.
    pub(super) fn reaches(&self, config: &Config) -> Result<(), EngineError> {
        neigh::together(|| self.reaches_all(config))
    }

    fn reaches_all(&self, config: &Config) -> Result<(), EngineError> {
        let mut holders: HashMap<Listen, usize> = HashMap::new();
        let services: Vec<&ServiceRuntime> = self.services.values().collect();
        for (number, service) in services.iter().enumerate() {
            for at in service.configured.places() {
                holders.entry(at).or_insert(number);
            }
        }
        // The first of those that have a place in common with it.
        let there = |wanted: &Service| {
            let places = wanted.places();
            let first = places.iter().filter_map(|at| holders.get(at)).min();
            first.map(|number| services[*number])
        };
        for wanted in config.services.iter().filter(|one| !one.forward.passes_routers()) {
            let now = there(wanted);
            let stays = |backend: &Backend| {
                now.is_some_and(|now| {
                    !now.configured.forward.passes_routers()
                        && now.pool.iter().any(|member| member.wanted.address == backend.address)
                })
            };
            for backend in wanted.backends.iter().filter(|one| !stays(one)) {
                if let Err(error) = self.on_a_link(backend.address) {
                    let (service, name) = (&wanted.name, &backend.name);
                    let place = self.source().place(Table::Service(service), "forward");
                    return Err(EngineError::Conflict(format!(
                        "{place}service {service}: backend {name}: {error}. Nothing has changed"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Whether frames can be sent to an address as they are, as far as routes say.
    pub(super) fn on_a_link(&self, address: IpAddr) -> Result<(), NeighError> {
        use NeighError::{Broadcast, Gateway, Local};
        match (self.resolve)(address) {
            Err(error @ (Gateway { .. } | Local { .. } | Broadcast { .. })) => Err(error),
            _ => Ok(()),
        }
    }
}
