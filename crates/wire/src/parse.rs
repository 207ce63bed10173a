//! From a frame to a flow, or to the reason why not.
//!
//! The parser accepts less than the RFCs allow, where a load balancer has nothing
//! to gain from more. These are policy, not errors of the sender:
//!
//! - More than two VLAN tags, or a tag other than 802.1Q and 802.1ad, is refused.
//! - Fragments are refused: only the first one has ports. What can be done with them
//!   is in [`fragment`](crate::fragment). An IPv6 "atomic" fragment (RFC 6946) is a
//!   whole packet and is accepted.
//! - More than six IPv6 extension headers are refused; the C twin needs a bound.
//!   Within it they may come in any order, as RFC 8200 section 4.1 asks.
//! - IPv4 with an authentication header is `other_protocol`; IPv6 with one is not,
//!   because there it is an extension header like the others.
//! - IPv6 jumbograms (RFC 2675: payload length 0) are not supported, so a payload
//!   length of 0 means what it says.
//! - IPv6 packets with an IPv4-mapped address are refused (RFC 6890: not for the
//!   wire): they would pass for the IPv4 flow.
//! - A UDP length of 0, which also belongs to jumbograms, is refused.
//! - An SCTP packet without a whole chunk header is refused, and of its chunks the first one
//!   alone is read: RFC 9260 section 6.10 lets none stand beside an INIT or a SHUTDOWN COMPLETE.
//!
//! Checksums are not verified. The network card has usually done so already, the
//! backend will do so in any case, and a packet whose ports were damaged on the
//! way can at worst be delivered to a backend that discards it.

use std::net::Ipv4Addr;
use std::ops::{BitOr, Range};

use crate::flow::{FlowKey, Protocol, map_address};
use crate::reason::Reason;

/// The number of VLAN tags that [`parse`] skips before it gives up.
pub const MAX_VLAN_TAGS: u8 = 2;
/// The number of IPv6 extension headers that [`parse`] skips before it gives up.
pub const MAX_IPV6_EXTENSIONS: u8 = 6;

const ETHERNET_LENGTH: usize = 14;
const VLAN_TAG_LENGTH: usize = 4;
const IPV4_MIN_LENGTH: usize = 20;
pub(crate) const IPV6_LENGTH: usize = 40;
pub(crate) const FRAGMENT_LENGTH: usize = 8;
const TCP_MIN_LENGTH: usize = 20;
const UDP_LENGTH: usize = 8;
/// The common header of SCTP and the header of its first chunk (RFC 9260 sections 3.1 and 3.2).
const SCTP_LENGTH: usize = 12 + SCTP_CHUNK_LENGTH;
const SCTP_CHUNK_LENGTH: usize = 4;
/// The type of the SCTP chunk that asks for an association (RFC 9260 section 3.2).
pub const SCTP_INIT: u8 = 1;
/// The type of the SCTP chunk that ends one at once (RFC 9260 section 3.2).
pub const SCTP_ABORT: u8 = 6;
/// The type of the SCTP chunk that is the last of the end that is told to shut down (RFC 9260 section 3.2).
pub const SCTP_SHUTDOWN_ACK: u8 = 8;
/// The type of the SCTP chunk that is the last of the end that told it (RFC 9260 section 3.2).
pub const SCTP_SHUTDOWN_COMPLETE: u8 = 14;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
pub(crate) const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;

/// The flag byte of a TCP header (byte 13). Zero for UDP. Of an SCTP packet the flags that a segment with
/// the same meaning would have ([`TcpFlags::of_sctp`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// FIN: the sender has no more data.
    pub const FIN: Self = Self(1);
    /// SYN: the sender opens a connection and gives its first sequence number.
    pub const SYN: Self = Self(2);
    /// RST: the connection is void, at once and both ways.
    pub const RST: Self = Self(4);
    /// PSH: the receiver should hand the data to its application at once.
    pub const PSH: Self = Self(8);
    /// ACK: the acknowledgment number counts, as in every packet but the first.
    pub const ACK: Self = Self(16);

    /// What an SCTP packet says of its association by the type of its first chunk and its verification
    /// tag: SYN if it asks for one, which is an INIT, whose tag is 0 (RFC 9260 section 8.5.1); RST and ACK
    /// of an ABORT; FIN and ACK of the last chunk that either end sends when it is shut down; else ACK.
    pub const fn of_sctp(chunk: u8, tag: u32) -> Self {
        match chunk {
            SCTP_INIT if tag == 0 => Self::SYN,
            SCTP_ABORT => Self(Self::RST.0 | Self::ACK.0),
            SCTP_SHUTDOWN_ACK | SCTP_SHUTDOWN_COMPLETE => Self(Self::FIN.0 | Self::ACK.0),
            _ => Self::ACK,
        }
    }

    /// Whether any flag of `other` is set.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether the packet asks for a new connection: SYN without ACK, RST or FIN.
    pub const fn starts(self) -> bool {
        self.0 & (Self::SYN.0 | Self::ACK.0 | Self::RST.0 | Self::FIN.0) == Self::SYN.0
    }

    /// Whether the packet ends the connection, or its sender's half: FIN or RST.
    pub const fn ends(self) -> bool {
        self.0 & (Self::FIN.0 | Self::RST.0) != 0
    }
}

impl BitOr for TcpFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// An accepted packet. Offsets and lengths are in bytes and lie within the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Addresses, ports and protocol, from the IP header and the transport header.
    pub flow: FlowKey,
    /// The TCP flags, zero for UDP; of SCTP what stands for them.
    pub tcp_flags: TcpFlags,
    /// Where the IP header starts, from the start of the frame.
    pub l3_offset: u16,
    /// Where the transport header starts, from the start of the frame.
    pub l4_offset: u16,
    /// How many VLAN tags precede the IP header: 0 to [`MAX_VLAN_TAGS`].
    pub vlan_tags: u8,
    /// The length of the IP packet, its header included and Ethernet padding not.
    pub ip_length: u32,
}

/// A frame that was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}", reason.description())]
pub struct Rejected {
    /// The first fault found, from the link layer upwards.
    pub reason: Reason,
    /// The destination, once the fixed IP header was read and found credible, so
    /// that the rejection can be counted for the service that it concerns.
    pub dst: Option<[u8; 16]>,
}

impl Rejected {
    /// A frame that was rejected before it had a destination.
    const fn early(reason: Reason) -> Self {
        Self { reason, dst: None }
    }
}

/// What the IP header says about the packet and where its transport header is.
struct Network {
    src: [u8; 16],
    dst: [u8; 16],
    ip_length: u32,
    l4: Layer4,
}

/// The place of the transport header and the end of what belongs to it.
struct Layer4 {
    protocol: Protocol,
    start: usize,
    end: usize,
}

/// Reads the flow and the offsets of an Ethernet frame.
///
/// `frame` starts at the destination MAC address and may be longer than the IP
/// packet (Ethernet padding), but not shorter.
///
/// # Errors
///
/// [`Rejected`] with the first reason found, from the link layer upwards. The
/// reason is always one below 32 and never [`Reason::NoService`].
pub fn parse(frame: &[u8]) -> Result<Packet, Rejected> {
    let (ethertype, l3, vlan_tags) = link(frame).map_err(Rejected::early)?;
    let network = match ethertype {
        ETHERTYPE_IPV4 => ipv4(frame, l3)?,
        ETHERTYPE_IPV6 => ipv6(frame, l3)?,
        _ => return Err(Rejected::early(Reason::NotIp)),
    };
    let Network { src, dst, l4, .. } = network;
    let (src_port, dst_port, tcp_flags) = transport(frame, l4.protocol, l4.start..l4.end, true)
        .map_err(|reason| Rejected { reason, dst: Some(dst) })?;
    Ok(Packet {
        flow: FlowKey { src, dst, src_port, dst_port, protocol: l4.protocol },
        tcp_flags,
        // The largest offset is that of six IPv6 extension headers of 2048 bytes
        // behind two VLAN tags, 12,350 bytes: neither cast can truncate.
        l3_offset: l3 as u16,
        l4_offset: l4.start as u16,
        vlan_tags,
        ip_length: network.ip_length,
    })
}

/// Where the ICMP message of a frame is.
pub(crate) struct Icmp {
    pub l3: usize,
    pub start: usize,
    /// The end of the IP packet.
    pub end: usize,
    pub ip_length: u32,
    pub ipv6: bool,
    pub dst: [u8; 16],
}

/// The ICMP message of a frame, if it carries one in a whole packet, under the checks of [`parse`].
pub(crate) fn icmp_of(frame: &[u8]) -> Option<Icmp> {
    let (ethertype, l3, _) = link(frame).ok()?;
    let ipv6 = ethertype == ETHERTYPE_IPV6;
    let refused = match ethertype {
        ETHERTYPE_IPV4 => ipv4(frame, l3).err()?,
        ETHERTYPE_IPV6 => self::ipv6(frame, l3).err()?,
        _ => return None,
    };
    if refused.reason != Reason::OtherProtocol {
        return None;
    }
    let (protocol, start, ip_length) = if ipv6 {
        let header: &[u8; IPV6_LENGTH] = bytes(frame, l3)?;
        let length = IPV6_LENGTH + usize::from(be16(header[4], header[5]));
        let packet = frame.get(..l3 + length)?;
        let (mut offset, mut next) = (l3 + IPV6_LENGTH, header[6]);
        while is_extension(next) {
            let length = ipv6_extension_length(packet, offset, next).ok()?;
            next = packet[offset];
            offset += length;
        }
        (next, offset, length)
    } else {
        let header: &[u8; IPV4_MIN_LENGTH] = bytes(frame, l3)?;
        let length = usize::from(be16(header[2], header[3]));
        (header[9], l3 + usize::from(header[0] & 0x0f) * 4, length)
    };
    let wanted = if ipv6 { ICMPV6 } else { ICMP };
    let dst = refused.dst?;
    let end = l3 + ip_length;
    (protocol == wanted).then_some(Icmp { l3, start, end, ip_length: ip_length as u32, ipv6, dst })
}

/// The EtherType of the payload, the payload's offset and the number of VLAN tags.
pub(crate) fn link(frame: &[u8]) -> Result<(u16, usize, u8), Reason> {
    let Some(header) = bytes::<ETHERNET_LENGTH>(frame, 0) else {
        return Err(Reason::TruncatedEthernet);
    };
    let mut ethertype = be16(header[12], header[13]);
    let mut offset = ETHERNET_LENGTH;
    let mut tags = 0;
    while matches!(ethertype, ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN) {
        if tags == MAX_VLAN_TAGS {
            return Err(Reason::TooManyVlans);
        }
        let Some(tag) = bytes::<VLAN_TAG_LENGTH>(frame, offset) else {
            return Err(Reason::TruncatedVlan);
        };
        ethertype = be16(tag[2], tag[3]);
        offset += VLAN_TAG_LENGTH;
        tags += 1;
    }
    Ok((ethertype, offset, tags))
}

fn ipv4(frame: &[u8], l3: usize) -> Result<Network, Rejected> {
    let Some(header) = bytes::<IPV4_MIN_LENGTH>(frame, l3) else {
        return Err(Rejected::early(Reason::TruncatedIpv4));
    };
    if header[0] >> 4 != 4 {
        return Err(Rejected::early(Reason::BadIpv4Version));
    }
    let header_length = usize::from(header[0] & 0x0f) * 4;
    if header_length < IPV4_MIN_LENGTH {
        return Err(Rejected::early(Reason::BadIpv4HeaderLength));
    }

    let (src, dst) = ends_of_ipv4(header);
    let reject = |reason| Err(Rejected { reason, dst: Some(dst) });
    if frame.len() < l3 + header_length {
        return reject(Reason::TruncatedIpv4);
    }
    let total_length = be16(header[2], header[3]);
    let end = l3 + usize::from(total_length);
    if usize::from(total_length) < header_length || end > frame.len() {
        return reject(Reason::BadIpv4Length);
    }
    let fragment = be16(header[6], header[7]);
    if fragment & 0x1fff != 0 {
        return reject(Reason::LaterFragment);
    }
    if fragment & 0x2000 != 0 {
        return reject(Reason::FirstFragment);
    }
    let Some(protocol) = Protocol::from_number(header[9]) else {
        return reject(Reason::OtherProtocol);
    };
    Ok(Network {
        src,
        dst,
        ip_length: u32::from(total_length),
        l4: Layer4 { protocol, start: l3 + header_length, end },
    })
}

/// Source and destination.
pub(crate) fn ends_of_ipv4(header: &[u8; IPV4_MIN_LENGTH]) -> ([u8; 16], [u8; 16]) {
    let [.., s0, s1, s2, s3, d0, d1, d2, d3] = *header;
    let src = map_address(Ipv4Addr::new(s0, s1, s2, s3).into());
    (src, map_address(Ipv4Addr::new(d0, d1, d2, d3).into()))
}

fn ipv6(frame: &[u8], l3: usize) -> Result<Network, Rejected> {
    let Some(header) = bytes::<IPV6_LENGTH>(frame, l3) else {
        return Err(Rejected::early(Reason::TruncatedIpv6));
    };
    if header[0] >> 4 != 6 {
        return Err(Rejected::early(Reason::BadIpv6Version));
    }

    let src = address(header, 8);
    let dst = address(header, 24);
    // RFC 6890: not for the wire. It would pass for the IPv4 flow with the same addresses.
    if is_mapped(&src) || is_mapped(&dst) {
        return Err(Rejected::early(Reason::MappedAddress));
    }
    let reject = |reason| Rejected { reason, dst: Some(dst) };
    let ip_length = IPV6_LENGTH + usize::from(be16(header[4], header[5]));
    let Some(packet) = frame.get(..l3 + ip_length) else {
        return Err(reject(Reason::BadIpv6Length));
    };
    let l4 = ipv6_extensions(packet, l3 + IPV6_LENGTH, header[6]).map_err(reject)?;
    Ok(Network { src, dst, ip_length: ip_length as u32, l4 })
}

/// Whether an address is `::ffff:0:0/96`.
fn is_mapped(address: &[u8; 16]) -> bool {
    address[..10] == [0; 10] && address[10..12] == [0xff; 2]
}

/// Walks the extension headers of `packet`, which ends where the IPv6 packet does.
fn ipv6_extensions(packet: &[u8], start: usize, next_header: u8) -> Result<Layer4, Reason> {
    let mut offset = start;
    let mut next_header = next_header;
    let mut extensions = 0;
    loop {
        if let Some(protocol) = Protocol::from_number(next_header) {
            return Ok(Layer4 { protocol, start: offset, end: packet.len() });
        }
        if !is_extension(next_header) {
            return Err(Reason::OtherProtocol);
        }
        if extensions == MAX_IPV6_EXTENSIONS {
            return Err(Reason::TooManyIpv6Extensions);
        }
        let length = ipv6_extension_length(packet, offset, next_header)?;
        next_header = packet[offset];
        offset += length;
        extensions += 1;
    }
}

const fn is_extension(next_header: u8) -> bool {
    matches!(next_header, HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION_OPTIONS)
}

/// The length of the extension header of type `kind` at `offset`; all of it is in `packet`.
pub(crate) fn ipv6_extension_length(
    packet: &[u8],
    offset: usize,
    kind: u8,
) -> Result<usize, Reason> {
    if kind == FRAGMENT {
        let Some(header) = bytes::<FRAGMENT_LENGTH>(packet, offset) else {
            return Err(Reason::TruncatedIpv6Extension);
        };
        let fragment = be16(header[2], header[3]);
        if fragment & 0xfff8 != 0 {
            return Err(Reason::LaterFragment);
        }
        if fragment & 1 != 0 {
            return Err(Reason::FirstFragment);
        }
        return Ok(FRAGMENT_LENGTH);
    }
    let Some(&[_, units]) = bytes::<2>(packet, offset) else {
        return Err(Reason::TruncatedIpv6Extension);
    };
    let length = match kind {
        // RFC 4302 section 2.2: in units of 4 bytes, minus 2.
        AUTHENTICATION => (usize::from(units) + 2) * 4,
        // RFC 8200 section 4.3: in units of 8 bytes, the first not counted.
        _ => (usize::from(units) + 1) * 8,
    };
    if offset + length > packet.len() {
        return Err(Reason::TruncatedIpv6Extension);
    }
    Ok(length)
}

/// Source port, destination port and TCP flags. Of a datagram or a packet of chunks that is not there as a
/// `whole`, the length may be larger than what is.
pub(crate) fn transport(
    frame: &[u8],
    protocol: Protocol,
    place: Range<usize>,
    whole: bool,
) -> Result<(u16, u16, TcpFlags), Reason> {
    // `start <= end <= frame.len()` was checked with the IP header.
    let segment = &frame[place];
    match protocol {
        Protocol::Tcp => {
            let Some(header) = bytes::<TCP_MIN_LENGTH>(segment, 0) else {
                return Err(Reason::TruncatedTcp);
            };
            let header_length = usize::from(header[12] >> 4) * 4;
            if header_length < TCP_MIN_LENGTH || header_length > segment.len() {
                return Err(Reason::BadTcpOffset);
            }
            Ok((be16(header[0], header[1]), be16(header[2], header[3]), TcpFlags(header[13])))
        }
        Protocol::Udp => {
            let Some(header) = bytes::<UDP_LENGTH>(segment, 0) else {
                return Err(Reason::TruncatedUdp);
            };
            let length = usize::from(be16(header[4], header[5]));
            if length < UDP_LENGTH || whole && length > segment.len() {
                return Err(Reason::BadUdpLength);
            }
            Ok((be16(header[0], header[1]), be16(header[2], header[3]), TcpFlags::default()))
        }
        Protocol::Sctp => {
            let Some(header) = bytes::<SCTP_LENGTH>(segment, 0) else {
                return Err(Reason::TruncatedSctp);
            };
            let [s0, s1, d0, d1, t0, t1, t2, t3, _, _, _, _, chunk, _, l0, l1] = *header;
            let (length, left) = (usize::from(be16(l0, l1)), segment.len() + SCTP_CHUNK_LENGTH);
            if length < SCTP_CHUNK_LENGTH || whole && length + SCTP_LENGTH > left {
                return Err(Reason::BadSctpChunk);
            }
            let flags = TcpFlags::of_sctp(chunk, u32::from_be_bytes([t0, t1, t2, t3]));
            Ok((be16(s0, s1), be16(d0, d1), flags))
        }
    }
}

/// The `N` bytes at `offset`, if all of them exist.
pub(crate) fn bytes<const N: usize>(data: &[u8], offset: usize) -> Option<&[u8; N]> {
    data.get(offset..)?.first_chunk()
}

/// The 16 bytes of an IPv6 header at `offset`, which is 8 or 24.
pub(crate) fn address(header: &[u8; IPV6_LENGTH], offset: usize) -> [u8; 16] {
    let mut address = [0; 16];
    address.copy_from_slice(&header[offset..offset + 16]);
    address
}

pub(crate) const fn be16(high: u8, low: u8) -> u16 {
    u16::from_be_bytes([high, low])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::craft::Frame;

    const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

    const L3: usize = ETHERNET_LENGTH;

    fn flow4(protocol: Protocol) -> FlowKey {
        let [src, dst] = ["10.0.0.1:5555", "10.0.0.2:80"].map(|a| a.parse().unwrap());
        FlowKey::new(src, dst, protocol)
    }

    fn flow6(protocol: Protocol) -> FlowKey {
        let [src, dst] = ["[2001:db8::1]:5555", "[2001:db8::2]:80"].map(|a| a.parse().unwrap());
        FlowKey::new(src, dst, protocol)
    }

    fn tcp4() -> Vec<u8> {
        Frame::new(flow4(Protocol::Tcp)).payload(8).build()
    }

    fn udp4() -> Vec<u8> {
        Frame::new(flow4(Protocol::Udp)).payload(8).build()
    }

    fn sctp4() -> Vec<u8> {
        Frame::new(flow4(Protocol::Sctp)).payload(8).build()
    }

    fn tcp6() -> Vec<u8> {
        Frame::new(flow6(Protocol::Tcp)).payload(8).build()
    }

    /// The frame with the bytes at `offset` replaced.
    fn with(mut frame: Vec<u8>, offset: usize, bytes: &[u8]) -> Vec<u8> {
        frame[offset..offset + bytes.len()].copy_from_slice(bytes);
        frame
    }

    fn cut(mut frame: Vec<u8>, length: usize) -> Vec<u8> {
        frame.truncate(length);
        frame
    }

    fn vlans(count: u16) -> Vec<u8> {
        let frame = Frame::new(flow4(Protocol::Tcp));
        (0..count).fold(frame, Frame::vlan).build()
    }

    /// An IPv6 packet whose extension headers are `(type, bytes after the next-header byte)`.
    fn with_extensions(extensions: &[(u8, &[u8])], last: u8, rest: &[u8]) -> Vec<u8> {
        let mut payload = Vec::new();
        for (i, (_, tail)) in extensions.iter().enumerate() {
            payload.push(extensions.get(i + 1).map_or(last, |(kind, _)| *kind));
            payload.extend(*tail);
        }
        payload.extend(rest);
        let first = extensions.first().map_or(last, |(kind, _)| *kind);
        let mut frame = cut(tcp6(), L3 + IPV6_LENGTH);
        frame = with(frame, L3 + 4, &(payload.len() as u16).to_be_bytes());
        frame = with(frame, L3 + 6, &[first]);
        frame.extend(payload);
        frame
    }

    const OPTIONS: (u8, &[u8]) = (DESTINATION_OPTIONS, &[0, 1, 4, 0, 0, 0, 0]);
    const ATOMIC: (u8, &[u8]) = (FRAGMENT, &[0, 0, 0, 0, 0, 0, 1]);
    const UDP: &[u8] = &[0x15, 0xb3, 0, 80, 0, 8, 0, 0];

    /// One frame that is refused and what the refusal must say.
    struct Case {
        description: &'static str,
        frame: Vec<u8>,
        reason: Reason,
        dst_known: bool,
    }

    fn case(reason: Reason, dst_known: bool, description: &'static str, frame: Vec<u8>) -> Case {
        Case { description, frame, reason, dst_known }
    }

    fn link_cases() -> Vec<Case> {
        use Reason::*;
        let not_ip = with(tcp4(), 12, &[0x08, 0x06]);
        let other_tag = with(vlans(1), 12, &[0x91, 0x00]);
        vec![
            case(NotIp, false, "ARP", not_ip),
            case(NotIp, false, "tag type 0x9100", other_tag),
            case(TruncatedEthernet, false, "no bytes", Vec::new()),
            case(TruncatedEthernet, false, "13 bytes", cut(tcp4(), 13)),
            case(TruncatedVlan, false, "tag cut", cut(vlans(1), 17)),
            case(TruncatedVlan, false, "second tag cut", cut(vlans(2), 21)),
            case(TooManyVlans, false, "three tags", vlans(3)),
            // The third tag is refused for being there, not for being cut.
            case(TooManyVlans, false, "third tag cut", cut(vlans(3), 22)),
        ]
    }

    fn ipv4_cases() -> Vec<Case> {
        use Reason::*;
        let total = |length: u16| with(tcp4(), L3 + 2, &length.to_be_bytes());
        let fragment = |field: u16| with(tcp4(), L3 + 6, &field.to_be_bytes());
        vec![
            case(TruncatedIpv4, false, "19 bytes", cut(tcp4(), L3 + 19)),
            case(TruncatedIpv4, true, "options cut", cut(with(tcp4(), L3, &[0x4f]), L3 + 59)),
            case(BadIpv4Version, false, "version 6", with(tcp4(), L3, &[0x65])),
            case(BadIpv4HeaderLength, false, "IHL 4", with(tcp4(), L3, &[0x44])),
            case(BadIpv4Length, true, "total length 19", total(19)),
            case(BadIpv4Length, true, "total length one too long", total(49)),
            case(FirstFragment, true, "more fragments", fragment(0x2000)),
            case(LaterFragment, true, "last fragment", fragment(0x0001)),
            case(LaterFragment, true, "middle fragment", fragment(0x3fff)),
            case(OtherProtocol, true, "ICMP", with(tcp4(), L3 + 9, &[1])),
            case(OtherProtocol, true, "AH over IPv4", with(tcp4(), L3 + 9, &[51])),
        ]
    }

    fn ipv6_cases() -> Vec<Case> {
        use Reason::*;
        let payload = |length: u16| with(tcp6(), L3 + 4, &length.to_be_bytes());
        let first = with_extensions(&[(FRAGMENT, &[0, 0, 1, 0, 0, 0, 1])], 17, UDP);
        let later = with_extensions(&[(FRAGMENT, &[0, 0, 8, 0, 0, 0, 1])], 17, UDP);
        let long = with_extensions(&[(ROUTING, &[2, 0, 0, 0, 0, 0, 0])], 17, UDP);
        let long_ah = with_extensions(&[(AUTHENTICATION, &[3, 0, 0, 0, 0, 0, 0])], 17, UDP);
        let seven = with_extensions(&[OPTIONS; 7], 17, UDP);
        let seventh_cut = with_extensions(&[OPTIONS; 6], HOP_BY_HOP, &[]);
        vec![
            case(TruncatedIpv6, false, "39 bytes", cut(tcp6(), L3 + 39)),
            case(BadIpv6Version, false, "version 4", with(tcp6(), L3, &[0x40])),
            case(MappedAddress, false, "mapped source", with(tcp6(), L3 + 8, &MAPPED)),
            case(MappedAddress, false, "mapped destination", with(tcp6(), L3 + 24, &MAPPED)),
            case(BadIpv6Length, true, "one too long", payload(29)),
            case(OtherProtocol, true, "ICMPv6", with(tcp6(), L3 + 6, &[58])),
            case(OtherProtocol, true, "no next header", with(tcp6(), L3 + 6, &[59])),
            case(TruncatedIpv6Extension, true, "options too long", long),
            case(TruncatedIpv6Extension, true, "AH too long", long_ah),
            case(
                TruncatedIpv6Extension,
                true,
                "one byte of options",
                with_extensions(&[], HOP_BY_HOP, &[17]),
            ),
            case(
                TruncatedIpv6Extension,
                true,
                "seven bytes of fragment header",
                with_extensions(&[], FRAGMENT, &[17, 0, 0, 0, 0, 0, 0]),
            ),
            case(TooManyIpv6Extensions, true, "seven headers", seven),
            case(TooManyIpv6Extensions, true, "seventh is cut", seventh_cut),
            case(FirstFragment, true, "IPv6 first fragment", first),
            case(LaterFragment, true, "IPv6 later fragment", later),
            case(TruncatedTcp, true, "payload length 0", payload(0)),
        ]
    }

    fn transport_cases() -> Vec<Case> {
        use Reason::*;
        let l4 = L3 + IPV4_MIN_LENGTH;
        let total = |frame, length: u16| with(frame, L3 + 2, &length.to_be_bytes());
        vec![
            case(TruncatedTcp, true, "nothing behind the IPv4 header", cut(total(tcp4(), 20), l4)),
            // The bytes exist, but they are behind the end of the IP packet.
            case(TruncatedTcp, true, "19 bytes of TCP", total(tcp4(), 39)),
            case(BadTcpOffset, true, "offset 4", with(tcp4(), l4 + 12, &[0x40])),
            case(BadTcpOffset, true, "offset 8", with(tcp4(), l4 + 12, &[0x80])),
            case(TruncatedUdp, true, "7 bytes of UDP", total(udp4(), 27)),
            case(BadUdpLength, true, "length 7", with(udp4(), l4 + 4, &[0, 7])),
            case(BadUdpLength, true, "length 0", with(udp4(), l4 + 4, &[0, 0])),
            case(BadUdpLength, true, "length 17", with(udp4(), l4 + 4, &[0, 17])),
            case(TruncatedSctp, true, "no chunk", total(sctp4(), 32)),
            case(TruncatedSctp, true, "15 bytes of SCTP", total(sctp4(), 35)),
            case(BadSctpChunk, true, "chunk of 3 bytes", with(sctp4(), l4 + 14, &[0, 3])),
            case(BadSctpChunk, true, "one too long", with(sctp4(), l4 + 14, &[0, 13])),
        ]
    }

    #[test]
    fn every_reason_has_its_frame() {
        let mut cases = link_cases();
        cases.extend(ipv4_cases());
        cases.extend(ipv6_cases());
        cases.extend(transport_cases());
        for case in &cases {
            let rejected = parse(&case.frame).expect_err(case.description);
            assert_eq!(rejected.reason, case.reason, "{}", case.description);
            let dst = match rejected.reason {
                _ if !case.dst_known => None,
                _ if case.frame[12] == 0x86 => Some(flow6(Protocol::Tcp).dst),
                _ => Some(flow4(Protocol::Tcp).dst),
            };
            assert_eq!(rejected.dst, dst, "{}", case.description);
        }
        for &reason in Reason::ALL {
            let elsewhere = matches!(
                reason,
                Reason::NoService | Reason::OtherHost | Reason::Answer | Reason::TtlExceeded
            );
            let from_parse = !reason.is_steering() && !elsewhere;
            let tested = cases.iter().any(|case| case.reason == reason);
            assert_eq!(tested, from_parse, "{reason}");
        }
    }

    #[test]
    fn accepts_up_to_six_extensions_in_any_order() {
        let ah: (u8, &[u8]) = (AUTHENTICATION, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let hop_by_hop: (u8, &[u8]) = (HOP_BY_HOP, &[0, 1, 4, 0, 0, 0, 0]);
        let routing: (u8, &[u8]) = (ROUTING, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let chain = [OPTIONS, ah, ATOMIC, hop_by_hop, routing, OPTIONS];
        let frame = with_extensions(&chain, 17, UDP);
        let packet = parse(&frame).unwrap();
        assert_eq!(packet.flow, flow6(Protocol::Udp));
        let extensions = 8 + 12 + 8 + 8 + 16 + 8;
        assert_eq!(usize::from(packet.l4_offset), L3 + 40 + extensions);
        assert_eq!(packet.ip_length as usize, 40 + extensions + UDP.len());
    }

    #[test]
    fn padding_is_not_part_of_the_packet() {
        let mut frame = udp4();
        frame.resize(64, 0xaa);
        let packet = parse(&frame).unwrap();
        assert_eq!(packet.ip_length, 36);
        assert_eq!(packet.flow, flow4(Protocol::Udp));
    }

    #[test]
    fn the_first_chunk_tells_what_becomes_of_an_association() {
        let l4 = L3 + IPV4_MIN_LENGTH;
        let (syn, fin) = (TcpFlags::SYN, TcpFlags::FIN | TcpFlags::ACK);
        let (rst, ack) = (TcpFlags::RST | TcpFlags::ACK, TcpFlags::ACK);
        // INIT with and without a tag, ABORT, SHUTDOWN and what answers it, COOKIE ECHO, DATA.
        let kinds = [(1, 0, syn), (1, 9, ack), (6, 9, rst), (6, 0, rst), (7, 9, ack), (8, 9, fin)];
        for (kind, tag, flags) in kinds.into_iter().chain([(14, 9, fin), (10, 9, ack), (0, 0, ack)])
        {
            let frame = with(with(sctp4(), l4 + 12, &[kind]), l4 + 4, &[0, 0, 0, tag]);
            let packet = parse(&frame).unwrap();
            assert_eq!((packet.flow, packet.tcp_flags), (flow4(Protocol::Sctp), flags), "{kind}");
        }
        // A chunk may be as long as the packet and no longer; one without content has four bytes.
        for length in [4, 12] {
            assert!(parse(&with(sctp4(), l4 + 14, &[0, length])).is_ok());
        }
    }

    #[test]
    fn flags_tell_starts_and_ends() {
        let (syn, ack) = (TcpFlags::SYN, TcpFlags::ACK);
        assert!(syn.starts() && (syn | TcpFlags::PSH).starts());
        for other in [ack, TcpFlags::RST, TcpFlags::FIN] {
            assert!(!(syn | other).starts() && !other.starts());
        }
        assert!((ack | TcpFlags::FIN).ends() && TcpFlags::RST.ends());
        assert!(!syn.ends() && !ack.ends() && syn.intersects(syn | ack));
    }
}
