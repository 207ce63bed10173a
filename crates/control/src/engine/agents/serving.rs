//! What agents are told beside the places that they tell of: how packets come to their backends, for which they make
//! their hosts ready (docs/agent.md), and how the servers there make QUIC ids (docs/quic.md).

use super::super::Engine;
use super::{Order, Over};
use crate::config::{Forward, Key, Protocol, QuicConfig, Service};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use tracing::debug;
use weir_plane::Plane;
use weir_rpc::quic;
use weir_rpc::serving::{Prefix, Served, Transport, Way, message};

/// How packets come that are forwarded so; none: with the backend's own address, for which nothing is to be done.
fn way(forward: Forward) -> Option<Way> {
    match forward {
        Forward::L2 => Some(Way::Plain),
        Forward::Ipip => Some(Way::Ipip),
        Forward::Gre => Some(Way::Gre),
        Forward::Fou(port) => Some(Way::Fou(port)),
        Forward::Gue(port) => Some(Way::Gue(port)),
        Forward::Nat | Forward::FullNat => None,
    }
}

/// A service, as the agent of its backend at this address is told of it.
fn served(service: &Service, backend: IpAddr) -> Option<Served> {
    let way = way(service.forward)?;
    let prefix = |vip: crate::config::Vip| Prefix { address: vip.address, bits: vip.bits };
    Some(Served {
        service: service.name.clone(),
        backend,
        vips: service.addresses().into_iter().map(prefix).collect(),
        transport: match service.protocol {
            Protocol::Tcp => Transport::Tcp,
            Protocol::Udp => Transport::Udp,
            Protocol::Sctp => Transport::Sctp,
        },
        port: service.port,
        way: Some(way),
        timestamps: service.is_stamped_by_backends(),
    })
}

/// How the server of a backend makes QUIC ids, if packets of the service are led by them.
fn quic_service(service: &Service, backend: &str, address: IpAddr) -> Option<quic::Service> {
    let asked = service.quic.as_ref()?;
    let config = |one: &QuicConfig| quic::Config {
        config_id: one.config_id,
        server_id: asked.server_id(backend, one.server_id_length.into()).as_bytes().to_vec(),
        nonce_length: one.nonce_length,
        key: one.key.as_ref().and_then(Key::bytes).map(quic::Key),
        encode_length: one.encode_length,
    };
    Some(quic::Service {
        service: service.name.clone(),
        backend: backend.to_owned(),
        address,
        issue: asked.issue,
        configs: asked.configs.iter().map(config).collect(),
    })
}

/// What the agent of an address is told.
#[derive(Debug, Default)]
struct Of {
    served: Vec<Served>,
    quic: Vec<quic::Service>,
}

/// What agents of these addresses are told, of each address.
type ByAddress = HashMap<IpAddr, Of>;

/// What an agent was told last.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Said {
    pub serving: weir_rpc::Serving,
    pub quic: weir_rpc::QuicLb,
}

fn said_of(name: &str, addresses: &[IpAddr], all: &ByAddress) -> Said {
    let own = || addresses.iter().filter_map(|address| all.get(address));
    let mut served: Vec<Served> = own().flat_map(|of| of.served.iter().cloned()).collect();
    served.sort();
    served.dedup();
    let mut ids: Vec<quic::Service> = own().flat_map(|of| of.quic.iter().cloned()).collect();
    ids.sort();
    ids.dedup();
    let ((serving, left), (quic, more)) = (message(&served), quic::message(&ids));
    if left + more > 0 {
        debug!(
            agent = name,
            left, more, "there is no room for all services that have its backends"
        );
    }
    Said { serving, quic }
}

impl<P: Plane> Engine<P> {
    /// What agents of these addresses are told, whoever says what connections there are.
    fn said(&self, wanted: &HashSet<IpAddr>) -> ByAddress {
        let mut all = ByAddress::new();
        if wanted.is_empty() {
            return all;
        }
        for service in self.services.values() {
            let configured = &service.configured;
            for member in &service.pool {
                let address = member.wanted.address;
                if !wanted.contains(&address) {
                    continue;
                }
                let of = all.entry(address).or_default();
                of.served.extend(served(configured, address));
                of.quic.extend(quic_service(configured, &member.wanted.name, address));
            }
        }
        all
    }

    /// The same for an agent that calls.
    pub(super) fn said_to(&self, name: &str, addresses: &[IpAddr]) -> Said {
        said_of(name, addresses, &self.said(&addresses.iter().copied().collect()))
    }

    /// Tells agents what is something else by now.
    pub(super) fn tell_serving(&mut self) {
        let speakers = self.agents.speakers.values();
        let wanted = speakers.flat_map(|one| one.newcomer.addresses.iter().copied()).collect();
        let all = self.said(&wanted);
        let mut deaf = Vec::new();
        for (session, one) in &mut self.agents.speakers {
            let now = said_of(&one.newcomer.name, &one.newcomer.addresses, &all);
            let Said { serving, quic } = &now;
            let serving = (*serving != one.said.serving).then(|| Order::Serving(serving.clone()));
            let quic = (*quic != one.said.quic).then(|| Order::QuicLb(quic.clone()));
            one.said = now;
            let orders = &one.newcomer.orders;
            if serving.into_iter().chain(quic).any(|order| orders.try_send(order).is_err()) {
                deaf.push(*session);
            }
        }
        for session in deaf {
            self.agents.lose(session, Over::Deaf);
        }
    }
}
