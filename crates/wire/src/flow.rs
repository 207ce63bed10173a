//! Who is talking to whom: addresses, protocols and the flow key.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// The transport protocols that weir balances.
///
/// The numbers are those of the IP header, so the key has the same bytes in C.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum Protocol {
    /// The Transmission Control Protocol (RFC 9293).
    Tcp = 6,
    /// The User Datagram Protocol (RFC 768).
    Udp = 17,
    /// The Stream Control Transmission Protocol (RFC 9260).
    Sctp = 132,
}

impl Protocol {
    /// The protocol with this IP protocol number, if weir balances it.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            6 => Some(Self::Tcp),
            17 => Some(Self::Udp),
            132 => Some(Self::Sctp),
            _ => None,
        }
    }

    /// The IP protocol number.
    pub const fn number(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `pad` and not `write_str`: tables of flows align this column.
        f.pad(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        })
    }
}

/// The text that was to be a protocol and is none of `tcp`, `udp` and `sctp`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown protocol {0:?}: expected \"tcp\", \"udp\" or \"sctp\"")]
pub struct UnknownProtocol(pub String);

impl FromStr for Protocol {
    type Err = UnknownProtocol;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "tcp" => Ok(Self::Tcp),
            "udp" => Ok(Self::Udp),
            "sctp" => Ok(Self::Sctp),
            other => Err(UnknownProtocol(other.to_owned())),
        }
    }
}

/// The identity of a flow: the five-tuple.
///
/// Addresses are 16 bytes in network order, IPv4 as `::ffff:a.b.c.d` (RFC 4291
/// section 2.5.5.2), so that one key type and one table serve both families.
/// Ports are in host order.
///
/// An IPv6 packet that carries IPv4-mapped addresses on the wire has the key of
/// the IPv4 flow with the same numbers. Such packets are not valid on a network
/// (they exist in the socket API only), and one key for both is harmless: it can
/// at most send them where the IPv4 flow goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct FlowKey {
    /// Address of the sender, for a balanced packet the client's.
    pub src: [u8; 16],
    /// Address of the receiver, for a balanced packet the service's.
    pub dst: [u8; 16],
    /// Source port, host order.
    pub src_port: u16,
    /// Destination port, host order.
    pub dst_port: u16,
    /// Protocol that the ports belong to.
    pub protocol: Protocol,
}

impl FlowKey {
    /// The key of the flow from `src` to `dst`. IPv6 scope and flow label are not part of it.
    pub fn new(src: SocketAddr, dst: SocketAddr, protocol: Protocol) -> Self {
        Self {
            src: map_address(src.ip()),
            dst: map_address(dst.ip()),
            src_port: src.port(),
            dst_port: dst.port(),
            protocol,
        }
    }

    /// The source as a socket address, IPv4 as IPv4.
    pub fn src_socket(&self) -> SocketAddr {
        SocketAddr::new(unmap_address(&self.src), self.src_port)
    }

    /// The destination as a socket address, IPv4 as IPv4.
    pub fn dst_socket(&self) -> SocketAddr {
        SocketAddr::new(unmap_address(&self.dst), self.dst_port)
    }

    /// Whether both ends are IPv4, so the flow's packets are IPv4 packets.
    pub fn is_ipv4(&self) -> bool {
        unmap_address(&self.src).is_ipv4() && unmap_address(&self.dst).is_ipv4()
    }

    /// Whether its source is the address of a single host, and another one than its destination: not nobody's, a
    /// group's, this host's own or reserved, nor one of IPv6 whose first eight bytes are zero. As `is_host_ipv4` and
    /// `is_host_ipv6` of `bpf/messages.h` say it of headers.
    pub fn is_from_host(&self) -> bool {
        let host = if self.is_ipv4() {
            !matches!(self.src[12], 0 | 127 | 224..)
        } else {
            self.src[..8] != [0; 8] && self.src[0] != 0xff
        };
        host && self.src != self.dst
    }
}

impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} -> {}", self.protocol, self.src_socket(), self.dst_socket())
    }
}

/// An address as 16 bytes in network order, IPv4 as `::ffff:a.b.c.d`.
pub fn map_address(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The inverse of [`map_address`]: `::ffff:a.b.c.d` becomes IPv4 again.
pub fn unmap_address(address: &[u8; 16]) -> IpAddr {
    Ipv6Addr::from(*address).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(src: &str, dst: &str, protocol: Protocol) -> FlowKey {
        FlowKey::new(src.parse().unwrap(), dst.parse().unwrap(), protocol)
    }

    #[test]
    fn displays_both_families() {
        let v4 = key("10.0.0.1:5555", "10.0.0.2:80", Protocol::Tcp);
        assert_eq!(v4.to_string(), "tcp 10.0.0.1:5555 -> 10.0.0.2:80");
        assert!(v4.is_ipv4());
        let v6 = key("[2001:db8::1]:5555", "[2001:db8::2]:53", Protocol::Udp);
        assert_eq!(v6.to_string(), "udp [2001:db8::1]:5555 -> [2001:db8::2]:53");
        assert!(!v6.is_ipv4());
    }

    #[test]
    fn sources_that_no_single_host_has_are_told() {
        let is_from_host = |src: &str, dst: &str| key(src, dst, Protocol::Udp).is_from_host();
        for (host, good) in [
            ("10.0.0.1", true),
            ("1.0.0.0", true),
            ("126.255.255.255", true),
            ("128.0.0.1", true),
            ("223.255.255.255", true),
            ("0.0.0.0", false),
            ("0.0.0.1", false),
            ("127.0.0.1", false),
            ("224.0.0.1", false),
            ("240.0.0.1", false),
            ("255.255.255.255", false),
            ("10.0.0.2", false),
        ] {
            assert_eq!(is_from_host(&format!("{host}:5555"), "10.0.0.2:53"), good, "{host}");
        }
        for (host, good) in [
            ("2001:db8::1", true),
            ("fe80::1", true),
            ("64:ff9b::1.2.3.4", true),
            ("::", false),
            ("::1", false),
            ("::ffff:10.0.0.1", false),
            ("ff02::1", false),
            ("2001:db8::2", false),
        ] {
            assert_eq!(is_from_host(&format!("[{host}]:5555"), "[2001:db8::2]:53"), good, "{host}");
        }
    }

    #[test]
    fn ipv4_is_mapped_in_network_order() {
        let address = map_address("1.2.3.4".parse().unwrap());
        assert_eq!(address, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 1, 2, 3, 4]);
        assert_eq!(unmap_address(&address), "1.2.3.4".parse::<IpAddr>().unwrap());
    }

    #[test]
    fn ipv4_compatible_addresses_stay_ipv6() {
        // ::1 and ::1.2.3.4 look like IPv4 to `Ipv6Addr::to_ipv4`; they are not.
        for text in ["::1", "::1.2.3.4", "::"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(unmap_address(&map_address(address)), address);
        }
    }

    #[test]
    fn protocol_text_and_number_round_trip() {
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            assert_eq!(protocol.to_string().parse(), Ok(protocol));
            assert_eq!(Protocol::from_number(protocol.number()), Some(protocol));
        }
        assert_eq!("TCP".parse::<Protocol>(), Err(UnknownProtocol("TCP".into())));
        assert_eq!(Protocol::from_number(1), None);
        assert_eq!(format!("{:>5}|", Protocol::Tcp), "  tcp|");
    }
}
