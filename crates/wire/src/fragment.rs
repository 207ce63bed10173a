//! Fragments: which packet they are of, and what the first one says about it.
//!
//! Only the first fragment has ports. A balancer that decides by ports decides that one, and lets the
//! others follow it by what they share: addresses and identification, in IPv4 also the protocol
//! (RFC 791; RFC 8200 section 4.5). In IPv6 the fragment header has to be the last in front of TCP, UDP
//! or SCTP. It nearly always is, and RFC 7112 wants at least all headers in the first fragment.

use crate::flow::{FlowKey, Protocol};
use crate::parse::{
    FRAGMENT, FRAGMENT_LENGTH, IPV6_LENGTH, Packet, address, be16, bytes, ends_of_ipv4,
    ipv6_extension_length, link, parse, transport,
};
use crate::reason::Reason;

/// What the fragments of a packet share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct FragmentKey {
    /// Source address, IPv4 mapped.
    pub src: [u8; 16],
    /// Destination address, IPv4 mapped.
    pub dst: [u8; 16],
    /// The identification; 16 bits in IPv4.
    pub id: u32,
    /// The protocol in IPv4. In IPv6, where it does not count, that of a fragment header.
    pub protocol: u8,
}

/// What a fragment says of itself (RFC 791, RFC 8200 section 4.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// Which packet it is of.
    pub key: FragmentKey,
    /// What the first one says: the packet's flow and flags, with the fragment's own length; or why it
    /// says nothing, [`Reason::FirstFragment`] if it is of another protocol. Of the others always
    /// [`Reason::LaterFragment`].
    pub packet: Result<Packet, Reason>,
    /// Where the IP header starts, from the start of the frame.
    pub l3_offset: u16,
    /// The length of the fragment, its IP header included.
    pub ip_length: u32,
    /// The protocol of what it is a part of, as far as it says.
    pub protocol: u8,
}

/// Reads the fragment of a frame. `None` if the frame is none, or is refused by [`parse`] for another
/// reason.
pub fn fragment(frame: &[u8]) -> Option<Fragment> {
    let refused = parse(frame).err()?.reason;
    if !matches!(refused, Reason::FirstFragment | Reason::LaterFragment) {
        return None;
    }
    let (_, l3, vlan_tags) = link(frame).ok()?;
    let (key, next, l4, ip_length) =
        if frame.get(l3)? >> 4 == 4 { ipv4(frame, l3)? } else { ipv6(frame, l3)? };
    let first = || {
        let protocol = Protocol::from_number(next).ok_or(Reason::FirstFragment)?;
        let end = l3 + ip_length;
        let (src_port, dst_port, tcp_flags) = transport(frame, protocol, l4.min(end)..end, false)?;
        let FragmentKey { src, dst, .. } = key;
        Ok(Packet {
            flow: FlowKey { src, dst, src_port, dst_port, protocol },
            tcp_flags,
            l3_offset: l3 as u16,
            l4_offset: l4 as u16,
            vlan_tags,
            ip_length: ip_length as u32,
        })
    };
    let packet = if refused == Reason::LaterFragment { Err(refused) } else { first() };
    let (l3_offset, ip_length) = (l3 as u16, ip_length as u32);
    Some(Fragment { key, packet, l3_offset, ip_length, protocol: next })
}

/// Which packet it is of, the protocol of what is in it, where that begins, and the length of all.
type Read = (FragmentKey, u8, usize, usize);

fn ipv4(frame: &[u8], l3: usize) -> Option<Read> {
    let header: &[u8; 20] = bytes(frame, l3)?;
    let (src, dst) = ends_of_ipv4(header);
    // As it stands in memory, like the ports of a flow in the kernel plane.
    let id = u16::from_le_bytes([header[4], header[5]]).into();
    let key = FragmentKey { src, dst, id, protocol: header[9] };
    let l4 = l3 + usize::from(header[0] & 15) * 4;
    Some((key, header[9], l4, be16(header[2], header[3]).into()))
}

fn ipv6(frame: &[u8], l3: usize) -> Option<Read> {
    let header: &[u8; IPV6_LENGTH] = bytes(frame, l3)?;
    let ip_length = IPV6_LENGTH + usize::from(be16(header[4], header[5]));
    let packet = frame.get(..l3 + ip_length)?;
    let (mut at, mut kind) = (l3 + IPV6_LENGTH, header[6]);
    // An atomic fragment may stand before the one that was refused.
    while let Ok(length) = ipv6_extension_length(packet, at, kind) {
        kind = packet[at];
        at += length;
    }
    let fragment: &[u8; FRAGMENT_LENGTH] = bytes(packet, at)?;
    let [next, _, _, _, a, b, c, d] = *fragment;
    let key = FragmentKey {
        src: address(header, 8),
        dst: address(header, 24),
        id: u32::from_le_bytes([a, b, c, d]),
        protocol: FRAGMENT,
    };
    Some((key, next, at + FRAGMENT_LENGTH, ip_length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::craft::{self, Frame};
    use crate::parse::TcpFlags;

    fn flow(ipv6: bool, protocol: Protocol) -> FlowKey {
        let (src, dst) = if ipv6 {
            ("[2001:db8::1]:5555", "[2001:db8::2]:53")
        } else {
            ("10.0.0.1:5555", "10.0.0.2:53")
        };
        FlowKey::new(src.parse().unwrap(), dst.parse().unwrap(), protocol)
    }

    #[test]
    fn all_fragments_of_a_packet_have_one_key_and_the_first_has_its_flow() {
        for (ipv6, protocol) in [
            (false, Protocol::Udp),
            (true, Protocol::Udp),
            (false, Protocol::Tcp),
            (true, Protocol::Tcp),
            (false, Protocol::Sctp),
            (true, Protocol::Sctp),
        ] {
            let flow = flow(ipv6, protocol);
            let whole = Frame::new(flow).tcp_flags(TcpFlags::SYN).vlan(7).payload(3000).build();
            let parts = craft::fragments(&whole, 0x1234_5678, 1200);
            assert_eq!(parts.len(), 3);
            let read: Vec<_> = parts.iter().map(|part| fragment(part).unwrap()).collect();
            assert!(read.iter().all(|part| part.key == read[0].key), "{read:?}");
            let packet = read[0].packet.unwrap();
            assert_eq!((packet.flow, packet.l3_offset), (flow, 18));
            let wanted = if protocol == Protocol::Udp { TcpFlags(0) } else { TcpFlags::SYN };
            assert_eq!(packet.tcp_flags, wanted);
            assert!(read[1..].iter().all(|part| part.packet == Err(Reason::LaterFragment)));
            let other = craft::fragments(&whole, 0x1234_5679, 1200);
            assert_ne!(fragment(&other[0]).unwrap().key, read[0].key);
            assert_eq!(fragment(&whole), None, "it is no fragment");
        }
    }

    #[test]
    fn a_first_fragment_without_ports_says_why() {
        for ipv6 in [false, true] {
            let whole = Frame::new(flow(ipv6, Protocol::Udp)).payload(100).build();
            let mut icmp = craft::fragments(&whole, 7, 56);
            // The protocol, or the next header of the fragment header.
            icmp[0][if ipv6 { 54 } else { 23 }] = 1;
            let of = |frame: &[u8]| fragment(frame).unwrap().packet;
            assert_eq!(of(&icmp[0]), Err(Reason::FirstFragment));
            let tcp = Frame::new(flow(ipv6, Protocol::Tcp)).payload(100).build();
            let tiny = craft::fragments(&tcp, 7, 16);
            assert_eq!(of(&tiny[0]), Err(Reason::TruncatedTcp), "RFC 1858: part of a header");
            let sctp = Frame::new(flow(ipv6, Protocol::Sctp)).payload(100).build();
            let tiny = craft::fragments(&sctp, 7, 8);
            assert_eq!(of(&tiny[0]), Err(Reason::TruncatedSctp));
        }
    }
}
