//! What a balancer's file says of a host that is one of its backends: what an agent there makes ready.

use crate::config::{Config, ConfigError, Protocol, Service, Vip};
use crate::neigh::{self, NeighError, Taken};
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use weir_host::Finding;
use weir_host::prefix::by_hand;
use weir_plane::forward::Encapsulation;

/// Why a file says nothing of this host that an agent could do.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The file is not good.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The host does not tell its addresses or interfaces.
    #[error(transparent)]
    Host(#[from] NeighError),
    /// Services with a backend here have addresses by prefix only.
    #[error("{}: {}. There is nothing else for an agent to do here", path.display(), in_words(passed_over))]
    Prefixes {
        /// The file.
        path: PathBuf,
        /// What they have.
        passed_over: Vec<PassedOver>,
    },
    /// Packets come with the backend's own address.
    #[error(
        "{}: service {service:?} has forward = {forward:?}: its backends need no agent",
        path.display()
    )]
    Translated {
        /// The file.
        path: PathBuf,
        /// The service.
        service: String,
        /// How its packets come.
        forward: &'static str,
    },
    /// No service has an address of this host among its backends.
    #[error(
        "{}: no service has a backend with an address of this host ({own}); give the \
         services' addresses with --vip if the backend was added by a command",
        path.display()
    )]
    Elsewhere {
        /// The file.
        path: PathBuf,
        /// The host's addresses.
        own: String,
    },
    /// The backend's address is on no interface that packets come by.
    #[error(
        "{}: the backend's address is on lo here; give the interfaces by which packets come \
         with --interface",
        .0.display()
    )]
    OnLoopback(PathBuf),
}

/// A place where a service is served: one of its addresses, with its port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Listener {
    /// The address.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    /// Whether it is one of UDP.
    pub udp: bool,
}

/// A prefix of a service that has a backend here: it is not made this host's by an agent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PassedOver {
    service: String,
    prefix: Vip,
    /// What is to be done in the agent's place.
    by_hand: String,
}

impl PassedOver {
    fn of(service: &Service, prefix: Vip) -> Self {
        let tunnel = service.forward.is_tunnel().then(|| service.forward.name());
        let by_hand = by_hand(&prefix.to_string(), tunnel);
        Self { service: service.name.clone(), prefix, by_hand }
    }

    /// Whether this host takes packets for it by now, for `weir doctor`.
    pub fn look(&self) -> Finding {
        let Self { service, prefix, by_hand } = self;
        match neigh::taken(prefix.address) {
            Some(Taken::Answers) => {
                Finding::ok("vip", format!("service {service}: {prefix} is this host's"))
            }
            _ => Finding::warn(
                "vip",
                format!("service {service}: {prefix} is not this host's, and no agent makes it so"),
                by_hand.as_str(),
            ),
        }
    }
}

impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service, prefix, by_hand } = self;
        write!(
            f,
            "service {service}: vip: {prefix} is a prefix, which an agent does not make this host's; by hand: \
             {by_hand}"
        )
    }
}

fn in_words(passed_over: &[PassedOver]) -> String {
    passed_over.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// What this host is to be, by a file: of the services that have an address of it among their backends.
#[derive(Debug)]
pub struct Served {
    path: PathBuf,
    /// The services' addresses.
    pub addresses: Vec<IpAddr>,
    /// The tunnels that their packets come in.
    pub tunnels: Vec<Encapsulation>,
    /// Where the kernel tells whether somebody listens.
    pub listeners: BTreeSet<Listener>,
    /// Addresses of services whose cookies the backends write, each with its port unless it has all.
    pub stamped: Vec<(IpAddr, Option<u16>)>,
    /// What somebody else must see to.
    pub passed_over: Vec<PassedOver>,
    /// Numbers of the interfaces that have the backends' addresses.
    links: BTreeSet<u32>,
}

impl Served {
    /// By a file and this host's addresses.
    ///
    /// # Errors
    /// [`BackendError`].
    pub fn here(path: &Path) -> Result<Self, BackendError> {
        Self::of(path, &Config::load(path)?, &neigh::addresses()?)
    }

    fn of(path: &Path, config: &Config, own: &[(u32, IpAddr)]) -> Result<Self, BackendError> {
        let holders = |address: IpAddr| own.iter().filter(move |(_, one)| *one == address);
        let mut served = Self {
            path: path.to_owned(),
            addresses: Vec::new(),
            tunnels: Vec::new(),
            listeners: BTreeSet::new(),
            stamped: Vec::new(),
            passed_over: Vec::new(),
            links: BTreeSet::new(),
        };
        let mut translated = None;
        for service in &config.services {
            let here = service.backends.iter().find(|one| holders(one.address).next().is_some());
            let Some(backend) = here else { continue };
            if service.forward.is_nat() {
                translated = Some((service.name.clone(), service.forward.name()));
                continue;
            }
            let prefixes = service.addresses().into_iter().filter(|vip| !vip.is_host());
            served.passed_over.extend(prefixes.map(|prefix| PassedOver::of(service, prefix)));
            if service.hosts().next().is_none() {
                continue;
            }
            served.links.extend(holders(backend.address).map(|(index, _)| *index));
            served.addresses.extend(service.hosts());
            served.tunnels.extend(service.forward.encapsulation());
            // Where the kernel lists who listens there is not asked for SCTP.
            if let Some(port) = service.port.filter(|_| service.protocol != Protocol::Sctp) {
                let udp = service.protocol == Protocol::Udp;
                let listeners = service.hosts().map(|address| Listener { address, port, udp });
                served.listeners.extend(listeners);
            }
            if service.is_stamped_by_backends() {
                served.stamped.extend(service.hosts().map(|address| (address, service.port)));
            }
        }
        if !served.addresses.is_empty() {
            return Ok(served);
        }
        let path = path.to_owned();
        if !served.passed_over.is_empty() {
            return Err(BackendError::Prefixes { path, passed_over: served.passed_over });
        }
        if let Some((service, forward)) = translated {
            return Err(BackendError::Translated { path, service, forward });
        }
        let own: BTreeSet<String> =
            own.iter().filter(|one| !one.1.is_loopback()).map(|one| one.1.to_string()).collect();
        let own = own.into_iter().collect::<Vec<_>>().join(", ");
        Err(BackendError::Elsewhere { path, own })
    }

    /// The interfaces that have the backends' addresses.
    ///
    /// # Errors
    /// [`BackendError`]; also if packets must come by another one.
    pub fn interfaces(&self) -> Result<Vec<String>, BackendError> {
        let names = self.links.iter().copied().map(neigh::interface_by_index);
        let names = names.map(|found| found.map(|interface| interface.name));
        let mut names: Vec<String> = names.collect::<Result<_, _>>()?;
        names.retain(|name| name != "lo");
        if names.is_empty() {
            return Err(BackendError::OnLoopback(self.path.clone()));
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(forward: &str, own: &str) -> Result<Served, BackendError> {
        served_at(&[("web", "\"10.0.0.1\"", forward)], own)
    }

    fn served_at(services: &[(&str, &str, &str)], own: &str) -> Result<Served, BackendError> {
        let services: String = services
            .iter()
            .map(|(name, vip, forward)| {
                format!(
                    "[[service]]\nname = \"{name}\"\nvip = {vip}\nport = 80\nforward = \"{forward}\"\n\
                     [[service.backend]]\nname = \"b1\"\naddress = \"10.0.0.11\"\n"
                )
            })
            .collect();
        let text = format!("[balancer]\nname = \"b\"\ninterfaces = [\"eth0\"]\n{services}");
        let config = Config::parse(&text, "weir.toml").unwrap();
        Served::of(Path::new("weir.toml"), &config, &[(7, own.parse().unwrap())])
    }

    #[test]
    fn a_host_is_a_backend_by_its_address() {
        let here = served("gue", "10.0.0.11").unwrap();
        let vip: IpAddr = "10.0.0.1".parse().unwrap();
        assert_eq!((here.addresses, here.tunnels.len()), (vec![vip], 1));
        let listener = Listener { address: vip, port: 80, udp: false };
        assert_eq!(Vec::from_iter(here.listeners), [listener]);
        assert_eq!(Vec::from_iter(here.links), [7]);
        let said = served("gue", "10.0.0.12").unwrap_err().to_string();
        assert!(said.contains("an address of this host (10.0.0.12)"), "{said}");
        let said = served("nat", "10.0.0.11").unwrap_err().to_string();
        assert!(said.ends_with("has forward = \"nat\": its backends need no agent"), "{said}");
    }

    /// A prefix keeps nobody from the rest, also of its own service.
    #[test]
    fn what_can_be_done_is_done_beside_prefixes() {
        let wide = ("wide", "[\"10.0.0.2\", \"10.1.0.0/24\"]", "l2");
        let far = ("far", "\"10.2.0.0/24\"", "ipip");
        let web = ("web", "\"10.0.0.1\"", "gue");
        let here = served_at(&[web, wide, far], "10.0.0.11").unwrap();
        let addresses: Vec<String> = here.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(here.tunnels, [Encapsulation::Gue(6080)]);
        let said = in_words(&here.passed_over);
        for words in [
            "service wide: vip: 10.1.0.0/24 is a prefix",
            "ip route add local 10.1.0.0/24 dev lo; service far: ",
            "ip route add local 10.2.0.0/24 dev lo, and a tunnel device of the kernel's",
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
        let said = served_at(&[far], "10.0.0.11").unwrap_err().to_string();
        assert!(said.starts_with("weir.toml: service far: vip: 10.2.0.0/24"), "{said}");
        assert!(said.ends_with("nothing else for an agent to do here"), "{said}");
    }
}
