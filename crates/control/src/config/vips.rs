//! What a service listens on: addresses and prefixes, a port, a range of ports, or any.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_plane::{Listen, blocks};

use super::{Protocol, Service};

/// An address that clients connect to, or a prefix of such addresses.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(into = "String", try_from = "String")]
#[schemars(with = "String")]
pub struct Vip {
    /// The address, or the prefix's first.
    pub address: IpAddr,
    /// Bits that all addresses of the prefix have in common; all of them if it is one address.
    pub bits: u8,
}

/// Why a text is no address and no prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VipError {
    /// Neither.
    #[error("is not an IP address")]
    NoAddress,
    /// The length of the prefix is none, or one of more addresses than there may be.
    #[error("is no prefix: give a length of 8 to 32 bits of IPv4, or of 16 to 128 of IPv6")]
    Length,
    /// Bits of the address are not of the prefix, which is this one.
    #[error("has bits behind the prefix")]
    Behind(Vip),
}

/// The shortest prefixes: what is shorter is more than anybody's network.
const SHORTEST_IPV4: u8 = 8;
const SHORTEST_IPV6: u8 = 16;

impl Vip {
    /// One address.
    pub fn host(address: IpAddr) -> Self {
        Self { address, bits: Self::whole(address) }
    }

    fn whole(address: IpAddr) -> u8 {
        if address.is_ipv4() { 32 } else { 128 }
    }

    /// Whether it is one address.
    pub fn is_host(&self) -> bool {
        self.bits == Self::whole(self.address)
    }

    /// Whether some address is of both.
    pub fn meets(&self, other: &Self) -> bool {
        if self.bits < other.bits {
            self.contains(other.address)
        } else {
            other.contains(self.address)
        }
    }

    /// Whether an address is one of its.
    pub fn contains(&self, address: IpAddr) -> bool {
        let at =
            |vip: &Self| Listen::new((vip.address, vip.bits), weir_wire::Protocol::Tcp, (0, 0));
        at(self).has_address(&weir_wire::map_address(address))
            && self.address.is_ipv4() == address.is_ipv4()
    }
}

impl fmt::Display for Vip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_host() {
            true => self.address.fmt(f),
            false => write!(f, "{}/{}", self.address, self.bits),
        }
    }
}

impl From<Vip> for String {
    fn from(vip: Vip) -> Self {
        vip.to_string()
    }
}

impl TryFrom<String> for Vip {
    type Error = VipError;

    fn try_from(text: String) -> Result<Self, VipError> {
        text.parse()
    }
}

impl FromStr for Vip {
    type Err = VipError;

    fn from_str(text: &str) -> Result<Self, VipError> {
        let Some((address, bits)) = text.split_once('/') else {
            return text.parse().map(Self::host).map_err(|_| VipError::NoAddress);
        };
        let address: IpAddr = address.parse().map_err(|_| VipError::NoAddress)?;
        let shortest = if address.is_ipv4() { SHORTEST_IPV4 } else { SHORTEST_IPV6 };
        let bits: u8 = bits.parse().map_err(|_| VipError::Length)?;
        if !(shortest..=Self::whole(address)).contains(&bits) {
            return Err(VipError::Length);
        }
        let value = match address {
            IpAddr::V4(v4) => u128::from(u32::from(v4)) << 96,
            IpAddr::V6(v6) => u128::from(v6),
        };
        let behind = u128::MAX.checked_shr(bits.into()).unwrap_or(0);
        if value & behind == 0 {
            return Ok(Self { address, bits });
        }
        let first = value & !behind;
        let address = match address {
            IpAddr::V4(_) => Ipv4Addr::from_bits((first >> 96) as u32).into(),
            IpAddr::V6(_) => Ipv6Addr::from_bits(first).into(),
        };
        Err(VipError::Behind(Self { address, bits }))
    }
}

/// A range of ports, of at least two.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct Ports {
    /// The first one, 1 or more.
    pub first: u16,
    /// The last one.
    pub last: u16,
}

impl Ports {
    /// Whether some port is of both.
    pub fn meets(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Whether a port is one of them.
    pub fn contains(&self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl FromStr for Ports {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (first, last) = text.split_once('-').ok_or(())?;
        let port = |text: &str| text.trim().parse::<u16>().map_err(|_| ());
        let (first, last) = (port(first)?, port(last)?);
        if first == 0 || first >= last {
            return Err(());
        }
        Ok(Self { first, last })
    }
}

impl Protocol {
    /// As packets have it.
    pub fn on_the_wire(self) -> weir_wire::Protocol {
        match self {
            Self::Tcp => weir_wire::Protocol::Tcp,
            Self::Udp => weir_wire::Protocol::Udp,
            Self::Sctp => weir_wire::Protocol::Sctp,
        }
    }
}

/// What some addresses, and a port, a range or any port, are listened on by: a place for each address and
/// block of ports.
pub(crate) fn places(
    vips: &[Vip],
    protocol: weir_wire::Protocol,
    (port, ports): (Option<u16>, Option<Ports>),
) -> Vec<Listen> {
    let blocks = match (port, ports) {
        (Some(port), _) => vec![(port, 16)],
        (None, Some(Ports { first, last })) => blocks(first, last),
        (None, None) => vec![(0, 0)],
    };
    let of = |vip: &Vip| {
        let vip = *vip;
        blocks
            .clone()
            .into_iter()
            .map(move |block| Listen::new((vip.address, vip.bits), protocol, block))
    };
    vips.iter().flat_map(of).collect()
}

impl Service {
    /// The addresses and prefixes that clients connect to, at least one.
    pub fn addresses(&self) -> Vec<Vip> {
        if self.vips.is_empty() { vec![Vip::host(self.vip)] } else { self.vips.clone() }
    }

    /// Which of them an address is, or is within.
    pub fn address_with(&self, address: IpAddr) -> Option<Vip> {
        if self.vips.is_empty() {
            return (self.vip == address).then(|| Vip::host(address));
        }
        self.vips.iter().find(|vip| vip.contains(address)).copied()
    }

    /// Those that are one address.
    pub fn hosts(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses().into_iter().filter(Vip::is_host).map(|vip| vip.address)
    }

    /// The address at which it is asked for a backend, of a prefix the first: one of the backend's family,
    /// where there is any.
    pub fn address_for(&self, backend: IpAddr) -> IpAddr {
        let all = self.addresses().into_iter().map(|vip| vip.address);
        let same = |vip: &IpAddr| vip.is_ipv4() == backend.is_ipv4();
        all.into_iter().find(same).unwrap_or(self.vip)
    }

    /// Whether clients of a family connect to it.
    pub fn has_family(&self, ipv4: bool) -> bool {
        self.addresses().iter().any(|vip| vip.address.is_ipv4() == ipv4)
    }

    /// The addresses in words.
    pub fn address_text(&self) -> String {
        let all: Vec<String> = self.addresses().iter().map(ToString::to_string).collect();
        all.join(", ")
    }

    /// The port or ports in words.
    pub fn port_text(&self) -> String {
        match (self.port, self.ports) {
            (Some(port), _) => port.to_string(),
            (None, Some(ports)) => ports.to_string(),
            (None, None) => "any".into(),
        }
    }

    /// All places that it listens on.
    pub fn places(&self) -> Vec<Listen> {
        places(&self.addresses(), self.protocol.on_the_wire(), (self.port, self.ports))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_prefixes_are_read_as_they_are_written() {
        for good in ["10.0.0.1", "10.0.0.0/24", "10.0.0.0/8", "2001:db8::1", "2001:db8::/32"] {
            assert_eq!(good.parse::<Vip>().map(|vip| vip.to_string()).as_deref(), Ok(good));
        }
        assert_eq!("10.0.0.1/32".parse(), Ok(Vip::host([10, 0, 0, 1].into())));
        for (wrong, why) in [
            ("ten", VipError::NoAddress),
            ("ten/8", VipError::NoAddress),
            ("10.0.0.0/33", VipError::Length),
            ("10.0.0.0/", VipError::Length),
            ("0.0.0.0/0", VipError::Length),
            ("2001:db8::/8", VipError::Length),
            ("10.0.0.1/24", VipError::Behind("10.0.0.0/24".parse().unwrap())),
            ("10.9.8.7/9", VipError::Behind("10.0.0.0/9".parse().unwrap())),
            ("2001:db8::1/64", VipError::Behind("2001:db8::/64".parse().unwrap())),
        ] {
            assert_eq!(wrong.parse::<Vip>(), Err(why), "{wrong}");
        }
        let net: Vip = "10.0.0.0/24".parse().expect("a prefix");
        assert!(net.contains([10, 0, 0, 255].into()) && !net.contains([10, 0, 1, 0].into()));
        assert!(!net.contains("::a00:1".parse().expect("an address")));
    }

    #[test]
    fn ranges_have_a_first_and_a_last_port() {
        assert_eq!("8000-8999".parse(), Ok(Ports { first: 8000, last: 8999 }));
        for wrong in ["", "80", "0-9", "9-8", "80-80", "1-65536", "a-b"] {
            assert_eq!(wrong.parse::<Ports>(), Err(()), "{wrong}");
        }
    }

    const HEAD: &str = "[balancer]\ninterfaces = [\"eth0\"]\n";

    fn service(name: &str, lines: &str) -> String {
        format!(
            "[[service]]\nname = {name:?}\n{lines}\n[service.check]\nenabled = false\n\
             [[service.backend]]\nname = \"b\"\naddress = \"10.9.0.1\"\n"
        )
    }

    fn read(services: &[&str]) -> Result<Vec<Service>, String> {
        let all: Vec<String> =
            services.iter().zip(["a", "b"]).map(|(lines, name)| service(name, lines)).collect();
        let read = super::super::Config::parse(&(HEAD.to_owned() + &all.concat()), "weir.toml");
        read.map(|config| config.services).map_err(|error| error.to_string())
    }

    #[test]
    fn a_service_may_have_several_addresses_and_a_range_of_ports() {
        let wide = r#"vip = ["10.0.0.1", "2001:db8::/64"]
port = "8000-8999""#;
        let all = read(&[wide]).expect("it is as it should be");
        assert_eq!(
            (all[0].address_text(), all[0].port_text()),
            ("10.0.0.1, 2001:db8::/64".into(), "8000-8999".into())
        );
        assert_eq!(all[0].places().len(), 12);
        // It comes back as it went, and what is one address is written as it always was.
        let text = serde_json::to_string(&all[0]).expect("JSON");
        assert_eq!(serde_json::from_str::<Service>(&text).expect("the same"), all[0]);
        let plain = read(&["vip = [\"10.0.0.1\"]\nport = 80"]).expect("it is as it should be");
        assert_eq!(plain, read(&["vip = \"10.0.0.1/32\"\nport = 80"]).expect("the same"));
        let text = serde_json::to_string(&plain[0]).expect("JSON");
        assert!(!text.contains("vips") && !text.contains("ports"), "{text}");
    }

    /// Both names, and what both have.
    #[test]
    fn whose_a_packet_is_must_be_told() {
        let at = |vip: &str, port: &str| format!("vip = {vip}\n{port}");
        let clash = [
            (
                at(r#""10.0.0.0/24""#, "port = 80"),
                at(r#""10.0.0.0/24""#, "port = 80"),
                "10.0.0.0/24 tcp port 80",
            ),
            (
                at(r#"["10.0.0.1", "10.0.0.2"]"#, "any_port = true"),
                at(r#"["10.0.0.3", "10.0.0.2"]"#, "any_port = true"),
                "10.0.0.2 tcp any port",
            ),
            (
                at(r#""10.0.0.1""#, "port = \"8000-8999\""),
                at(r#""10.0.0.1""#, "port = \"8999-9000\""),
                "10.0.0.1 tcp ports 8999-9000 belongs to service \"a\" already, which has ports 8000-8999",
            ),
        ];
        for (one, other, words) in clash {
            let said = read(&[&one, &other]).expect_err("it is refused");
            assert!(said.contains("service \"b\"") && said.contains(words), "{said}");
            assert!(said.contains("service \"a\""), "{said}");
        }
        let apart = [
            (at(r#""10.0.0.0/24""#, "port = 80"), at(r#""10.0.0.1""#, "port = 80")),
            (at(r#""10.0.0.0/24""#, "port = 80"), at(r#""10.0.0.0/25""#, "port = 80")),
            (at(r#""10.0.0.1""#, "port = \"8000-8999\""), at(r#""10.0.0.1""#, "port = 8500")),
            (at(r#""10.0.0.1""#, "port = \"8000-8999\""), at(r#""10.0.0.1""#, "any_port = true")),
            (
                at(r#""10.0.0.1""#, "port = \"8000-8999\""),
                at(r#""10.0.0.1""#, "port = \"9000-9001\""),
            ),
            (at(r#""10.0.0.1""#, "port = \"80-90\""), at(r#""10.0.0.0/24""#, "port = \"85-99\"")),
        ];
        for (one, other) in apart {
            read(&[&one, &other]).unwrap_or_else(|error| panic!("{one} and {other}: {error}"));
        }
    }

    #[test]
    fn what_does_not_go_with_several_addresses_is_refused() {
        for (lines, words) in [
            ("vip = []\nport = 80", "vip: the list is empty"),
            (
                "vip = [\"10.0.0.1\", \"10.0.0.1\"]\nport = 80",
                "10.0.0.1 is listed twice; remove one",
            ),
            (
                "vip = [\"10.0.0.0/24\", \"10.0.0.9\"]\nport = 80",
                "10.0.0.9 is in 10.0.0.0/24 already",
            ),
            (
                "vip = \"10.9.0.0/16\"\nport = 80",
                "10.9.0.1 is one of the service's own vip 10.9.0.0/16",
            ),
            (
                "vip = [\"2001:db8::1\", \"2001:db8::2\"]\nport = 80",
                "is not of the family of the vip",
            ),
            (
                "vip = \"10.9.16.1/24\"\nport = 80",
                "10.9.16.1/24 has bits behind the prefix; write 10.9.16.0/24",
            ),
            (
                "vip = [\"10.0.0.1\", \"10.0.0.2\"]\nport = 80\nforward = \"nat\"",
                "do not go with forward = \"nat\"",
            ),
            (
                "vip = \"10.0.0.1\"\nport = \"80-90\"\nforward = \"nat\"",
                "the range of ports 80-90 does not go with",
            ),
            (
                "vip = \"10.0.0.0/24\"\nport = 80\nmethod = \"cheetah\"",
                "does not go with method = \"cheetah\"",
            ),
            (
                "vip = [\"10.0.0.1\", \"2001:db8::1\"]\nport = 80\nforward = \"nat\"",
                "addresses of both families do not go with forward = \"nat\"",
            ),
            (
                "vip = [\"10.0.0.1\", \"2001:db8::1\"]\nport = 80\nforward = \"fullnat\"",
                "addresses of both families do not go with forward = \"fullnat\"",
            ),
            (
                "vip = [\"10.0.0.1\", \"10.0.0.2\"]\nport = 80\nstates = \"agents\"",
                "do not go with states = \"agents\"",
            ),
            ("vip = 80\nport = 80", "a text in quotes, or a list of such"),
            ("vip = [80]\nport = 80", "expected a text in quotes"),
        ] {
            let said = read(&[lines]).expect_err(lines);
            assert!(said.contains(words), "{lines}: {said}");
        }
        // Both families of one service go with cookies, which tell one address of each.
        read(&["vip = [\"10.0.0.1\", \"2001:db8::1\"]\nport = 80\nmethod = \"cheetah\""])
            .expect("fine");
    }

    /// What packets ask for, and what there is room for, is bounded.
    #[test]
    fn too_many_kinds_and_places_are_refused() {
        let many: Vec<String> = (0..200).map(|n| format!("\"10.1.0.{n}\"")).collect();
        let lines = format!("vip = [{}]\nport = \"1-4000\"", many.join(", "));
        let said = read(&[&lines]).expect_err("there is no such room");
        assert!(said.contains("addresses and blocks of ports of all services"), "{said}");
        let nets: Vec<String> =
            (9..=32).map(|bits| format!("\"{}.0.0.0/{bits}\"", bits * 2)).collect();
        let lines = format!("vip = [{}]\nport = \"8000-8999\"", nets.join(", "));
        let said = read(&[&lines]).expect_err("more than 64");
        assert!(said.contains("more than 64 kinds"), "{said}");
    }
}
