//! How packets reach the backends of a service.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};
use weir_plane::forward::mapping::ORIGINS;
use weir_plane::forward::{Encapsulation, Origin, Ports, Segments};

use super::{Backend, Protocol, Service};

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
    /// With the backend's address and port in the place of the service's.
    Nat,
    /// The same, and an address and port of the balancer's in the place of the client's.
    FullNat,
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
            Self::Nat => "nat",
            Self::FullNat => "fullnat",
        }
    }

    /// The UDP port that backends listen at, if there is one.
    pub fn port(self) -> Option<u16> {
        match self {
            Self::Fou(port) | Self::Gue(port) => Some(port),
            Self::L2 | Self::Ipip | Self::Gre | Self::Nat | Self::FullNat => None,
        }
    }

    /// What packets are put into; none if they go as they are.
    pub fn encapsulation(self) -> Option<Encapsulation> {
        match self {
            Self::L2 | Self::Nat | Self::FullNat => None,
            Self::Ipip => Some(Encapsulation::Ipip),
            Self::Gre => Some(Encapsulation::Gre),
            Self::Fou(port) => Some(Encapsulation::Fou(port)),
            Self::Gue(port) => Some(Encapsulation::Gue(port)),
        }
    }

    /// Whether packets are put into others, so that backends may be of another family than their service.
    pub fn is_tunnel(self) -> bool {
        self.encapsulation().is_some()
    }

    /// Whether packets get the backend's address and port, and its answers the service's.
    pub fn is_nat(self) -> bool {
        matches!(self, Self::Nat | Self::FullNat)
    }

    /// Whether they get an address of the balancer's, too, to which the backends answer.
    pub fn is_full_nat(self) -> bool {
        self == Self::FullNat
    }

    /// Whether backends may be behind routers.
    pub fn passes_routers(self) -> bool {
        self != Self::L2
    }
}

impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        self.port().map_or(Ok(()), |port| write!(f, " to port {port}"))
    }
}

/// The sources that packets under full NAT get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NatSources {
    /// The balancer's addresses, in the order of the file.
    pub addresses: Vec<IpAddr>,
    /// The first port of each that is for connections, and the last one.
    pub ports: (u16, u16),
    /// Whether connections are written to a log.
    pub log: bool,
}

/// Below those that Linux gives the host's own connections (`ip_local_port_range`), above those that are
/// somebody's.
impl Default for NatSources {
    fn default() -> Self {
        Self { addresses: Vec::new(), ports: (1024, 32_767), log: false }
    }
}

/// Addresses of each family at most.
pub const MOST_NAT_SOURCES: usize = ORIGINS / 2;

impl NatSources {
    /// Those that packets to backends of a family get; none, if there is no address.
    pub fn of_family(&self, ipv4: bool) -> Option<Ports> {
        let count = self.addresses.iter().filter(|address| address.is_ipv4() == ipv4).count();
        let (first_port, last) = self.ports;
        (count > 0).then_some(Ports {
            first: if ipv4 { 0 } else { MOST_NAT_SOURCES as u16 },
            addresses: count as u16,
            first_port,
            ports: u32::from(last - first_port) + 1,
        })
    }

    /// Those of some of the addresses, all of one family; none, if these do not stand one after the other.
    pub fn some(&self, own: &[IpAddr]) -> Option<Ports> {
        let ipv4 = own.first()?.is_ipv4();
        let all = self.of_family(ipv4)?;
        let of_family = self.addresses.iter().filter(|address| address.is_ipv4() == ipv4);
        let taken: Vec<bool> = of_family.map(|address| own.contains(address)).collect();
        let first = taken.iter().position(|taken| *taken)?;
        let addresses = taken[first..].iter().take_while(|taken| **taken).count();
        (addresses == own.len()).then_some(Ports {
            first: all.first + first as u16,
            addresses: addresses as u16,
            ..all
        })
    }

    /// All of them by their numbers, those of IPv4 in the first half.
    pub fn origins(&self) -> Vec<Option<Origin>> {
        let mut all = vec![None; ORIGINS];
        let (mut v4, mut v6) = (0, MOST_NAT_SOURCES);
        let (first_port, last_port) = self.ports;
        for &address in &self.addresses {
            let next = if address.is_ipv4() { &mut v4 } else { &mut v6 };
            all[*next] = Some(Origin { address, first_port, last_port });
            *next += 1;
        }
        let used = all.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        all.truncate(used);
        all
    }
}

impl Service {
    /// The sources that packets to a backend get, if they get one: its own, or all of its family.
    pub fn nat_ports_to(&self, backend: &Backend, nat: &NatSources) -> Option<Ports> {
        if !self.forward.is_full_nat() {
            return None;
        }
        nat.some(&backend.nat_sources).or_else(|| nat.of_family(backend.address.is_ipv4()))
    }
}

/// Where a translated backend's answers come from, and what they become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answers {
    /// The backend's address.
    pub from: IpAddr,
    /// The protocol of the answers and of the service, TCP or UDP.
    pub protocol: Protocol,
    /// The backend's port; none: any.
    pub port: Option<u16>,
    /// The service's address.
    pub vip: IpAddr,
    /// The service's port; none: any, which stays.
    pub service_port: Option<u16>,
}

impl Answers {
    /// Of a backend of a service with this address and port; `own`: the port that the backend has of its
    /// own.
    pub fn of(
        (vip, service_port): (IpAddr, Option<u16>),
        protocol: Protocol,
        from: IpAddr,
        own: Option<u16>,
    ) -> Self {
        let port = service_port.map(|port| own.unwrap_or(port));
        Self { from, protocol, port, vip, service_port }
    }

    /// Whether an answer could be one of either's.
    pub fn meets(&self, other: &Self) -> bool {
        if (self.from, self.protocol) != (other.from, other.protocol) {
            return false;
        }
        match (self.port, other.port) {
            (None, None) => true,
            (Some(one), Some(another)) => one == another,
            // One of any port has what others leave, as long as they become the same.
            (Some(_), None) => self.vip != other.vip || self.port != self.service_port,
            (None, Some(_)) => self.vip != other.vip || other.port != other.service_port,
        }
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TunnelSource {
    /// The address, or the prefix's first.
    pub address: Ipv4Addr,
    /// Bits that vary with the flow, 0 to 31.
    pub spread: u8,
}

/// Where the tunnels of this host begin, by family, if the file says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TunnelSources {
    /// Where those over IPv4 begin: an address, or a prefix whose last bits are the flow's.
    pub v4: Option<TunnelSource>,
    /// The address where those over IPv6 begin.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What the data plane is told is a range of numbers.
    #[test]
    fn some_sources_are_those_that_stand_together() {
        let address = |text: &str| -> IpAddr { text.parse().expect("an address") };
        let all = ["10.0.0.1", "2001:db8::1", "10.0.0.2", "10.0.0.3", "2001:db8::2"].map(address);
        let nat = NatSources { addresses: all.to_vec(), ..NatSources::default() };
        let some = |own: &[&str]| {
            let own: Vec<IpAddr> = own.iter().map(|one| address(one)).collect();
            nat.some(&own).map(|ports| (usize::from(ports.first), ports.addresses))
        };
        assert_eq!(some(&["10.0.0.2"]), Some((1, 1)));
        assert_eq!(some(&["10.0.0.3", "10.0.0.2"]), Some((1, 2)));
        assert_eq!(some(&["10.0.0.1", "10.0.0.3"]), None);
        assert_eq!(some(&["10.0.0.3", "10.0.0.4"]), None);
        assert_eq!(some(&["2001:db8::1", "2001:db8::2"]), Some((MOST_NAT_SOURCES, 2)));
        assert_eq!(some(&[]), None);
        let ports = nat.some(&[address("10.0.0.3")]).expect("it is there");
        let origin = nat.origins()[usize::from(ports.first)].expect("it has a number");
        assert_eq!(origin.address, address("10.0.0.3"));
    }
}
