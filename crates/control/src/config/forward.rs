//! How packets reach the backends of a service.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};
use weir_plane::forward::{Encapsulation, Segments};

/// How packets reach the backends of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Forward {
    /// As they are, with other MAC addresses: backends are on a link of the balancer's.
    #[default]
    L2,
    /// In another IP packet, of the backend's family.
    Ipip,
    /// The same with a header that says which family is inside.
    Gre,
    /// In UDP, to this port.
    Fou(u16),
    /// In UDP, to this port, with a header that says which family is inside.
    Gue(u16),
}

impl Forward {
    /// The name used in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::L2 => "l2",
            Self::Ipip => "ipip",
            Self::Gre => "gre",
            Self::Fou(_) => "fou",
            Self::Gue(_) => "gue",
        }
    }

    /// The UDP port that backends listen at, if there is one.
    pub fn port(self) -> Option<u16> {
        match self {
            Self::Fou(port) | Self::Gue(port) => Some(port),
            Self::L2 | Self::Ipip | Self::Gre => None,
        }
    }

    /// What packets are put into; none if they go as they are.
    pub fn encapsulation(self) -> Option<Encapsulation> {
        match self {
            Self::L2 => None,
            Self::Ipip => Some(Encapsulation::Ipip),
            Self::Gre => Some(Encapsulation::Gre),
            Self::Fou(port) => Some(Encapsulation::Fou(port)),
            Self::Gue(port) => Some(Encapsulation::Gue(port)),
        }
    }

    /// Whether backends may be behind routers, and of another family than their service.
    pub fn is_tunnel(self) -> bool {
        self != Self::L2
    }
}

impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        self.port().map_or(Ok(()), |port| write!(f, " to port {port}"))
    }
}

/// How large segments the SYNs of a service may ask for, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mss {
    /// What the way to the backend takes.
    Auto,
    /// So many bytes.
    Most(u16),
}

impl From<Mss> for Segments {
    fn from(mss: Mss) -> Self {
        match mss {
            Mss::Auto => Self::Auto,
            Mss::Most(most) => Self::Most(most),
        }
    }
}

/// The source address of tunnels over IPv4, or a prefix whose last bits are the flow's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelSource {
    /// The address, or the prefix's first.
    pub address: Ipv4Addr,
    /// Bits that vary with the flow, 0 to 31.
    pub spread: u8,
}

/// Where the tunnels of this host begin, by family, if the file says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelSources {
    /// Of IPv4.
    pub v4: Option<TunnelSource>,
    /// Of IPv6.
    pub v6: Option<std::net::Ipv6Addr>,
}

impl TunnelSources {
    /// Where the tunnel to a backend begins, with the bits that vary; `found`: the address that this host
    /// would send from.
    pub fn towards(&self, backend: IpAddr, found: Option<IpAddr>) -> (Option<IpAddr>, u8) {
        match (backend, self.v4, self.v6) {
            (IpAddr::V4(_), Some(v4), _) => (Some(v4.address.into()), v4.spread),
            (IpAddr::V6(_), _, Some(v6)) => (Some(v6.into()), 0),
            _ => (found.filter(|found| found.is_ipv4() == backend.is_ipv4()), 0),
        }
    }
}
