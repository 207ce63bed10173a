//! Backends stand apart from the balancer: not at addresses whose packets come to it, be it as a service or as a source
//! of full NAT. The file is told of its own backends when it is read; here is what comes to a pool otherwise.

use crate::config::{Config, NatSources, Service, Table, Vip};
use crate::engine::service::{PoolMember, ServiceRuntime};
use crate::engine::{Engine, EngineError};
use std::fmt;
use std::net::IpAddr;
use weir_plane::Plane;

/// What the balancer has an address for.
enum Use<'a> {
    /// Packets under full NAT come from it.
    Source,
    /// It is this service's, or within a prefix of it.
    Vip(&'a Service, Vip),
}

impl fmt::Display for Use<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source => {
                f.write_str("is one of balancer.nat_sources, which are the balancer's own")
            }
            Self::Vip(service, vip) if vip.is_host() => {
                write!(f, "is the vip of service {}", service.name)
            }
            Self::Vip(service, vip) => {
                write!(f, "is one of the vip {vip} of service {}", service.name)
            }
        }
    }
}

/// What an address is for, of a balancer with these sources and services; none if it may be a backend's.
fn use_of<'a>(
    address: IpAddr,
    nat: &NatSources,
    services: impl IntoIterator<Item = &'a Service>,
) -> Option<Use<'a>> {
    if nat.addresses.contains(&address) {
        return Some(Use::Source);
    }
    let mut services = services.into_iter();
    services.find_map(|service| Some(Use::Vip(service, service.address_with(address)?)))
}

impl<P: Plane> Engine<P> {
    /// Why an address can be no backend's here, behind that address in a sentence; none if it can.
    pub(in crate::engine) fn not_apart(&self, address: IpAddr) -> Option<String> {
        let services = self.services.values().map(|service| &service.configured);
        use_of(address, &self.config.balancer.nat, services).map(|used| used.to_string())
    }

    /// Refuses a backend at an address whose packets come to the balancer.
    pub(in crate::engine) fn lies_apart(&self, address: IpAddr) -> Result<(), EngineError> {
        match self.not_apart(address) {
            None => Ok(()),
            Some(why) => Err(EngineError::Invalid(format!(
                "address: {address} {why}; give the backend's own address"
            ))),
        }
    }

    /// Refuses a configuration that takes the address of a backend that was looked up: no file lists those. One whose
    /// record is gone leaves anyway.
    pub(in crate::engine) fn leaves_found(&self, config: &Config) -> Result<(), EngineError> {
        for (wanted, now) in config.services.iter().zip(self.pairs(&config.services)) {
            let pool: &[PoolMember] = now.map_or(&[], |now| &now.pool);
            let found = pool
                .iter()
                .filter(|member| !member.is_gone() && ServiceRuntime::keeps_found(wanted, member));
            for member in found {
                let (name, address) = (&member.wanted.name, member.wanted.address);
                let Some(used) = use_of(address, &config.balancer.nat, &config.services) else {
                    continue;
                };
                let (table, field) = match &used {
                    Use::Source => (Table::Balancer, "nat_sources"),
                    Use::Vip(service, _) => (Table::Service(&service.name), "vip"),
                };
                return Err(EngineError::Conflict(format!(
                    "{}{field}: {address} {used}, and the address of backend {name} of service {}, which was looked \
                     up; give another one, or take its record away",
                    self.source().place(table, field),
                    wanted.name
                )));
            }
        }
        Ok(())
    }
}
