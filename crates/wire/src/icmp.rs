//! ICMP errors about packets that a service's backends have sent.
//!
//! A router that cannot pass on a backend's answer tells the answer's source, which is the service's
//! address: so its error comes to the balancer. It quotes the packet, at least the IP header and 8
//! bytes of what follows (RFC 792; RFC 4443 section 2.4), and these name the connection.
//!
//! Read are the errors that end hosts act upon: destination unreachable, of which "fragmentation
//! needed" is one, time exceeded and parameter problem, and for IPv6 packet too big. A quoted later
//! fragment has no ports, and names nothing.

use crate::flow::{FlowKey, Protocol};
use crate::parse::{
    FRAGMENT, FRAGMENT_LENGTH, IPV6_LENGTH, address, be16, bytes, ends_of_ipv4, icmp_of,
};
use crate::tcp_options;

const ICMP_LENGTH: usize = 8;
const IPV4_MIN_LENGTH: usize = 20;
/// What is quoted of a transport header at least.
const QUOTED_BYTES: usize = 8;

/// Bytes of an ICMP header of these errors; the quoted packet follows it.
pub const HEADER_BYTES: usize = ICMP_LENGTH;

/// An ICMP error about a packet from its own destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quoted {
    /// The connection, as its client's packets have it: towards the address that the error is for.
    pub flow: FlowKey,
    /// TSval of the quoted packet, if it is TCP with a timestamp option (RFC 7323) and its whole
    /// header is quoted.
    pub value: Option<u32>,
    /// Where the IP header of the error starts, from the start of the frame.
    pub l3_offset: u16,
    /// Where its ICMP header starts, from the start of the frame.
    pub icmp_offset: u16,
    /// Where the quoted transport header starts, from the start of the frame.
    pub quoted_l4_offset: u16,
    /// The length of the error's IP packet, its header included.
    pub ip_length: u32,
}

/// Reads the error of a frame. `None` if the frame is none, or quotes no packet with ports that came
/// from the address that it is sent to.
pub fn quoted(frame: &[u8]) -> Option<Quoted> {
    let icmp = icmp_of(frame)?;
    let message = &frame[icmp.start..icmp.end];
    let header: &[u8; ICMP_LENGTH] = message.first_chunk()?;
    let quote = &message[ICMP_LENGTH..];
    let (from, to, protocol, segment) = if icmp.ipv6 {
        matches!(header[0], 1..=4).then_some(())?;
        ipv6(quote)?
    } else {
        matches!(header[0], 3 | 11 | 12).then_some(())?;
        ipv4(quote)?
    };
    let protocol = Protocol::from_number(protocol)?;
    let ports: &[u8; QUOTED_BYTES] = segment.first_chunk()?;
    if from != icmp.dst {
        return None;
    }
    let value = match protocol {
        Protocol::Tcp => tcp_options::find(segment).ok().flatten().map(|found| found.value),
        Protocol::Udp | Protocol::Sctp => None,
    };
    let (src_port, dst_port) = (be16(ports[2], ports[3]), be16(ports[0], ports[1]));
    let flow = FlowKey { src: to, dst: from, src_port, dst_port, protocol };
    Some(Quoted {
        flow,
        value,
        l3_offset: icmp.l3 as u16,
        icmp_offset: icmp.start as u16,
        quoted_l4_offset: (icmp.end - segment.len()) as u16,
        ip_length: icmp.ip_length,
    })
}

/// The smallest MTU of a way over IPv4 that is believed: 552 bytes, less than which no sender need make of its packets
/// (Linux sends these without DF then), in the largest tunnel.
pub const LEAST_PATH_IPV4: u32 = 584;
/// Nobody need send smaller packets over IPv6 (RFC 8200 section 5).
const LEAST_PATH_IPV6: u32 = 1280;
/// IP in IP, UDP, IPv6 in IP, GRE: what tunnels send.
const OUTER: [u8; 4] = [4, 17, 41, 47];

/// A router's word on the MTU of a way, with which it refuses a packet of a tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooBig {
    /// Where the tunnel leads, IPv4 mapped.
    pub to: [u8; 16],
    /// What the next link takes, in bytes; no less than what everybody must take.
    pub mtu: u32,
}

/// Reads the error of a frame, if it is one about a packet of a tunnel from the address that it is sent to
/// and says what would fit: RFC 1191 section 4, RFC 4443 section 3.2.
pub fn too_big(frame: &[u8]) -> Option<TooBig> {
    let icmp = icmp_of(frame)?;
    let message = &frame[icmp.start..icmp.end];
    let header: &[u8; ICMP_LENGTH] = message.first_chunk()?;
    let quote = &message[ICMP_LENGTH..];
    let [.., m0, m1, m2, m3] = *header;
    let (from, to, protocol, mtu) = if icmp.ipv6 {
        let ip: &[u8; IPV6_LENGTH] = quote.first_chunk()?;
        (header[0] == 2 && ip[0] >> 4 == 6).then_some(())?;
        let mtu = u32::from_be_bytes([m0, m1, m2, m3]);
        (address(ip, 8), address(ip, 24), ip[6], mtu.max(LEAST_PATH_IPV6))
    } else {
        let ip: &[u8; IPV4_MIN_LENGTH] = quote.first_chunk()?;
        (header[..2] == [3, 4] && ip[0] >> 4 == 4).then_some(())?;
        let (src, dst) = ends_of_ipv4(ip);
        // Routers of before RFC 1191 do not say it.
        let mtu = Some(u32::from(be16(m2, m3))).filter(|mtu| *mtu > 0)?;
        (src, dst, ip[9], mtu.max(LEAST_PATH_IPV4))
    };
    (from == icmp.dst && OUTER.contains(&protocol)).then_some(TooBig { to, mtu })
}

/// Source, destination, protocol and what follows the header.
type Packet<'a> = ([u8; 16], [u8; 16], u8, &'a [u8]);

fn ipv4(quote: &[u8]) -> Option<Packet<'_>> {
    let header: &[u8; IPV4_MIN_LENGTH] = quote.first_chunk()?;
    let length = usize::from(header[0] & 15) * 4;
    if header[0] >> 4 != 4 || length < IPV4_MIN_LENGTH || be16(header[6], header[7]) & 0x1fff != 0 {
        return None;
    }
    let (src, dst) = ends_of_ipv4(header);
    Some((src, dst, header[9], quote.get(length..)?))
}

fn ipv6(quote: &[u8]) -> Option<Packet<'_>> {
    let header: &[u8; IPV6_LENGTH] = quote.first_chunk()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let (mut next, mut rest) = (header[6], &quote[IPV6_LENGTH..]);
    if next == FRAGMENT {
        let fragment: &[u8; FRAGMENT_LENGTH] = bytes(rest, 0)?;
        if be16(fragment[2], fragment[3]) & 0xfff8 != 0 {
            return None;
        }
        (next, rest) = (fragment[0], &rest[FRAGMENT_LENGTH..]);
    }
    Some((address(header, 8), address(header, 24), next, rest))
}
