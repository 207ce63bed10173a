//! Backends that are looked up in the domain name system.

use super::{Service, Vip, human};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Where backends of a service are looked up: `[[service.discover]]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Discover {
    /// Name, unique in the service; those of its backends begin with it.
    pub name: String,
    /// What is asked for.
    pub records: Records,
    /// The port that packets of its backends get, where they are translated; none: the one that they have.
    /// SRV records have their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The weight of each of its backends. SRV records have their own.
    pub weight: u16,
    /// Under full NAT, which of the balancer's sources packets of its backends get; none: all of their family.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nat_sources: Vec<IpAddr>,
    /// The name servers that are asked; none: those of this host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<SocketAddr>,
    /// It is asked again after so long at the latest, and earlier if the answer is valid for less.
    #[serde(with = "human")]
    pub every: Duration,
    /// Backends that it may find, at most; of more, those with the lowest addresses that are not there yet are
    /// left out.
    pub most: u16,
    /// A backend whose record is gone keeps its connections for so long at most.
    #[serde(with = "human")]
    pub leave_after: Duration,
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Records {
    /// Addresses of a name: A or AAAA records, of the family of the service.
    Dns(String),
    /// Targets of a service (RFC 2782), with ports, priorities and weights; and their addresses.
    Srv(String),
}

impl fmt::Display for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(name) => write!(f, "dns {name}"),
            Self::Srv(name) => write!(f, "srv {name}"),
        }
    }
}

impl Discover {
    /// What a backend with this address is called; `port`: if another one may have the same address.
    pub fn backend_name(&self, address: IpAddr, port: Option<u16>) -> String {
        // Colons are not for names.
        let address = address.to_string().replace(':', "-");
        match port {
            Some(port) => format!("{}-{address}-{port}", self.name),
            None => format!("{}-{address}", self.name),
        }
    }
}

impl Service {
    /// The entry of this name.
    pub fn discover_named(&self, name: &str) -> Option<&Discover> {
        self.discover.iter().find(|one| one.name == name)
    }

    /// Whether backends are asked for by their IPv4 addresses, or by those of IPv6.
    pub fn discovers_ipv4(&self) -> bool {
        self.addresses().first().is_none_or(|vip: &Vip| vip.address.is_ipv4())
    }
}
