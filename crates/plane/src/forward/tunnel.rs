//! The packet as it is, in another one to the backend: IP in IP, GRE, FOU, GUE; each family in each.
//! The twin of `bpf/forward/tunnel.h`; `docs/forwarding.md` shows the formats byte by byte.

use std::net::IpAddr;
use weir_wire::icmp_error::{Cause, IcmpError};
use weir_wire::{FIRST_TTL, Protocol, Reason, fragment, icmp, parse, spread};

const ETHERNET: usize = 14;
const TAG: usize = 4;
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;
const GUE: usize = 4;
const GRE: usize = 4;
const TYPE_IPV4: u16 = 0x0800;
const TYPE_IPV6: u16 = 0x86dd;
const PROTOCOL_IPIP: u8 = 4;
const PROTOCOL_UDP: u8 = 17;
const PROTOCOL_IPV6: u8 = 41;
const PROTOCOL_GRE: u8 = 47;
/// Priority and drop eligibility of a tag, which stay.
const TAG_KEPT: u8 = 0xf0;
/// Of the dynamic ports, RFC 6335; their last bits are the flow's.
const SOURCE_PORTS: u16 = 0xc000;

/// The port at which receivers of FOU usually listen, as in Linux's documents: IANA has given it none.
pub const FOU_PORT: u16 = 5555;
/// The port of GUE (IANA).
pub const GUE_PORT: u16 = 6080;

/// What stands between the outer IP header and the packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Encapsulation {
    /// Nothing: RFC 2003 (4 in 4), RFC 2473 (4 or 6 in 6), RFC 4213 (6 in 4).
    Ipip,
    /// Four bytes that say of which family the packet is: RFC 2784, RFC 7676 in IPv6.
    Gre,
    /// UDP to this port, which says of which family the packet is.
    Fou(u16),
    /// UDP to this port, and four bytes that say it: draft-ietf-intarea-gue-09, variant 0.
    Gue(u16),
}

impl Encapsulation {
    /// Bytes between the outer IP header and the packet.
    pub const fn header_bytes(self) -> usize {
        match self {
            Self::Ipip => 0,
            Self::Gre => GRE,
            Self::Fou(_) => UDP,
            Self::Gue(_) => UDP + GUE,
        }
    }

    /// Bytes by which a packet gets larger on its way to a backend with this address.
    pub const fn overhead(self, backend: IpAddr) -> usize {
        let ip = if backend.is_ipv6() { IPV6 } else { IPV4 };
        ip + self.header_bytes()
    }
}

/// How packets reach a backend that is not on a link of the balancer's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tunnel {
    /// What is put in front of them.
    pub encapsulation: Encapsulation,
    /// The source address of the outer packets, of the backend's family; none if this host has none.
    pub source: Option<IpAddr>,
    /// So many last bits of an IPv4 source are the flow's, up to 31.
    pub spread: u8,
    /// The largest packet that the way there takes, in bytes with the outer header; 0: not known.
    pub mtu: u32,
}

impl Tunnel {
    /// Why a frame that was parsed cannot be sent through it to a backend with this address.
    pub fn refuses(&self, frame: &[u8], backend: IpAddr) -> Option<Reason> {
        let packet = match inside(frame) {
            Ok(packet) => packet,
            Err(reason) => return Some(reason),
        };
        if self.source.is_none() {
            return Some(Reason::NoTunnelSource);
        }
        let ttl = frame[packet.l3 + if packet.ipv4 { 8 } else { 7 }];
        if ttl <= 1 {
            return Some(Reason::TtlExceeded);
        }
        let bytes = packet.bytes + self.encapsulation.overhead(backend);
        (bytes > self.most()).then_some(Reason::TooBig)
    }

    /// The largest packet on the way, with its outer header.
    pub fn most(&self) -> usize {
        match self.mtu {
            0 => u16::MAX.into(),
            mtu => mtu.min(u16::MAX.into()) as usize,
        }
    }

    /// The message to the sender of a frame that was refused for this reason, and the reason if it is sent;
    /// none if nobody is told.
    pub fn message(
        &self,
        frame: &[u8],
        backend: IpAddr,
        refused: Reason,
    ) -> Option<(IcmpError, Reason)> {
        let (cause, told) = match refused {
            Reason::TooBig => {
                let largest = self.most().saturating_sub(self.encapsulation.overhead(backend));
                (Cause::TooBig(largest as u32), Reason::TooBigTold)
            }
            Reason::TtlExceeded => (Cause::TtlExceeded, Reason::TtlTold),
            _ => return None,
        };
        IcmpError::about(frame, cause).map(|message| (message, told))
    }

    /// Makes a frame that was refused the message to its sender. One that is too big has entered the
    /// tunnel, as a router may do before it finds that out (RFC 1812 section 4.3.2.3).
    pub fn tell(&self, frame: &mut Vec<u8>, backend: IpAddr) {
        let Some(refused) = self.refuses(frame, backend) else { return };
        let Some((message, _)) = self.message(frame, backend, refused) else { return };
        if let (Reason::TooBig, Ok(InFrame { l3, ipv4, .. })) = (refused, inside(frame)) {
            enter(&mut frame[l3..], ipv4, false);
        }
        message.put(frame);
    }

    /// Puts the packet of a frame into another one to a backend with this address. The MAC addresses are
    /// as before; VLAN tags go, and `tag` comes in front, as on the wire.
    ///
    /// # Errors
    /// Why it cannot; the frame is as it was then.
    pub fn encapsulate(
        &self,
        frame: &mut Vec<u8>,
        backend: IpAddr,
        tag: Option<[u8; TAG]>,
    ) -> Result<(), Reason> {
        if let Some(reason) = self.refuses(frame, backend) {
            return Err(reason);
        }
        let InFrame { l3, bytes, ipv4: is_ipv4 } = inside(frame)?;
        let outer = Outer::new(self, backend)?;
        let mut before = frame[..12].to_vec();
        if let Some(mut tag) = tag {
            if l3 > ETHERNET {
                tag[2] |= frame[ETHERNET] & TAG_KEPT;
            }
            before.extend(tag);
        }
        let at = before.len();
        before.resize(at + outer.bytes(), 0);
        outer.put(&mut frame[l3..], bytes, is_ipv4, &mut before[at..]);
        frame.splice(..l3, before);
        Ok(())
    }
}

/// Bytes of the longest of what [`Outer::put`] writes: EtherType, IPv6, UDP and GUE.
const LONGEST: usize = 2 + IPV6 + UDP + GUE;
/// Where the outer IP header stands in it.
const IP: usize = 2;

/// A tunnel to one backend, with what its outer headers have in common worked out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outer {
    /// EtherType, IP header, and what is between it and the packet, without what packets differ in.
    common: [u8; LONGEST],
    /// So many of them.
    length: usize,
    /// Of an IPv4 header, without what packets differ in.
    sum: u32,
    /// The bits of an IPv4 source that are the flow's.
    varied: u32,
    encapsulation: Encapsulation,
    ipv6: bool,
    /// Whether anything in it is the flow's.
    hashed: bool,
}

impl Outer {
    /// Of a tunnel to a backend with this address.
    ///
    /// # Errors
    /// [`Reason::NoTunnelSource`] without an address of the backend's family that it could begin at.
    pub fn new(tunnel: &Tunnel, backend: IpAddr) -> Result<Self, Reason> {
        let encapsulation = tunnel.encapsulation;
        let mut common = [0; LONGEST];
        let (mut sum, mut varied) = (0, 0);
        let (kind, header) = common.split_at_mut(IP);
        match (tunnel.source, backend) {
            (Some(IpAddr::V6(source)), IpAddr::V6(backend)) => {
                kind.copy_from_slice(&TYPE_IPV6.to_be_bytes());
                header[7] = FIRST_TTL;
                header[8..24].copy_from_slice(&source.octets());
                header[24..40].copy_from_slice(&backend.octets());
            }
            (Some(IpAddr::V4(source)), IpAddr::V4(backend)) => {
                kind.copy_from_slice(&TYPE_IPV4.to_be_bytes());
                // DF is set, whether or not it is inside (RFC 2003 section 3.1), and the identification
                // is 0 (RFC 6864).
                header[..9].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, FIRST_TTL]);
                header[12..16].copy_from_slice(&source.octets());
                header[16..20].copy_from_slice(&backend.octets());
                varied = (1 << (tunnel.spread & 31)) - 1;
                // All but the source.
                let words =
                    header[..12].as_chunks::<2>().0.iter().chain(header[16..20].as_chunks().0);
                sum = words.map(|word| u32::from(u16::from_be_bytes(*word))).sum();
            }
            // The control plane gives it an address of the other's family.
            _ => return Err(Reason::NoTunnelSource),
        }
        let ipv6 = backend.is_ipv6();
        let inside = &mut header[if ipv6 { IPV6 } else { IPV4 }..];
        if let Encapsulation::Fou(port) | Encapsulation::Gue(port) = encapsulation {
            // No checksum: RFC 6935 in IPv6.
            inside[2..4].copy_from_slice(&port.to_be_bytes());
        }
        let length = IP + encapsulation.overhead(backend);
        let ports = matches!(encapsulation, Encapsulation::Fou(_) | Encapsulation::Gue(_));
        let hashed = ipv6 || ports || varied != 0;
        Ok(Self { common, length, sum, varied, encapsulation, ipv6, hashed })
    }

    /// Bytes that [`put`](Self::put) writes: an EtherType, and what the packet becomes larger by.
    #[inline(always)]
    pub fn bytes(&self) -> usize {
        self.length
    }

    /// Writes what goes in front of a packet of so many bytes, from the EtherType on, and takes one from
    /// the packet's TTL, which is above 1.
    ///
    /// # Panics
    /// If `to` has fewer than [`bytes`](Self::bytes), or the packet fewer than its header.
    #[inline(always)]
    pub fn put(&self, packet: &mut [u8], bytes: usize, ipv4: bool, to: &mut [u8]) {
        let inner = enter(packet, ipv4, self.hashed);
        let protocol = match self.encapsulation {
            Encapsulation::Ipip => inner.protocol,
            Encapsulation::Gre => PROTOCOL_GRE,
            Encapsulation::Fou(_) | Encapsulation::Gue(_) => PROTOCOL_UDP,
        };
        let at = if self.ipv6 {
            to[..self.length].copy_from_slice(&self.common[..self.length]);
            let header = &mut to[IP..];
            let length = bytes + self.encapsulation.header_bytes();
            let first = 6 << 28 | u32::from(inner.tos) << 20 | inner.hash & 0xf_ffff;
            header[..4].copy_from_slice(&first.to_be_bytes());
            header[4..6].copy_from_slice(&(length as u16).to_be_bytes());
            header[6] = protocol;
            IPV6
        } else {
            let Some((common, more)) = self.common[..self.length].split_first_chunk() else {
                return;
            };
            let common: &[u8; IP + IPV4] = common;
            let Some((head, rest)) = to[..self.length].split_first_chunk_mut() else { return };
            let head: &mut [u8; IP + IPV4] = head;
            if !rest.is_empty() {
                rest.copy_from_slice(more);
            }
            let length = (self.length - IP + bytes) as u16;
            let [s0, s1, s2, s3] = [14, 15, 16, 17].map(|at| common[at]);
            let source = u32::from_be_bytes([s0, s1, s2, s3]) | inner.hash & self.varied;
            let words =
                [inner.tos.into(), length.into(), protocol.into(), source >> 16, source & 0xffff];
            let sum = self.sum + words.iter().sum::<u32>();
            // Fewer than 2^16 carries, of which another one may come.
            let sum = (sum >> 16) + (sum & 0xffff);
            let check = !((sum >> 16) + (sum & 0xffff)) as u16;
            let [length_high, length_low] = length.to_be_bytes();
            let [check_high, check_low] = check.to_be_bytes();
            // Word by word: what is put together in memory in parts is slow to read as a whole.
            head[..2].copy_from_slice(&common[..2]);
            let first = u32::from_le_bytes([common[2], inner.tos, length_high, length_low]);
            head[2..6].copy_from_slice(&first.to_le_bytes());
            head[6..10].copy_from_slice(&common[6..10]);
            let third = u32::from_le_bytes([FIRST_TTL, protocol, check_high, check_low]);
            head[10..14].copy_from_slice(&third.to_le_bytes());
            head[14..18].copy_from_slice(&source.to_be_bytes());
            head[18..22].copy_from_slice(&common[18..22]);
            IPV4
        };
        if self.encapsulation != Encapsulation::Ipip {
            self.put_header(&mut to[IP + at..], &inner, bytes);
        }
    }

    /// What is between the outer IP header and the packet.
    #[inline(always)]
    fn put_header(&self, to: &mut [u8], inner: &Inner, bytes: usize) {
        let gue = match self.encapsulation {
            Encapsulation::Ipip => return,
            Encapsulation::Gre => {
                let kind = if inner.protocol == PROTOCOL_IPIP { TYPE_IPV4 } else { TYPE_IPV6 };
                return to[2..4].copy_from_slice(&kind.to_be_bytes());
            }
            Encapsulation::Fou(_) => false,
            Encapsulation::Gue(_) => true,
        };
        let from = SOURCE_PORTS | inner.hash as u16 & !SOURCE_PORTS;
        let length = (self.encapsulation.header_bytes() + bytes) as u16;
        to[..2].copy_from_slice(&from.to_be_bytes());
        to[4..6].copy_from_slice(&length.to_be_bytes());
        if gue {
            to[9] = inner.protocol;
        }
    }
}

/// Bytes from where a frame begins that is to have an IPv4 header in front of an IPv4 packet, to the end of
/// the packet's own header.
pub const IPIP4: usize = ETHERNET + IPV4 + IPV4;

/// The most frequent of all: IPv4 in IPv4, with nothing of the flow's in the outer header. The same as
/// [`Outer::put`], at fixed places.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ipip4 {
    /// Of the outer header, without what packets differ in.
    sum: u32,
    /// Source and destination, as they stand in the header.
    ends: [u8; 8],
}

impl Ipip4 {
    /// Writes what goes in front of a packet of so many bytes, MAC addresses included, and takes one from the
    /// packet's TTL. Does nothing and returns false if the packet is none of IPv4, or its TTL is used up.
    #[inline(always)]
    pub fn put(&self, frame: &mut [u8; IPIP4], macs: &[u8; 12], bytes: u32) -> bool {
        const INNER: usize = ETHERNET + IPV4;
        let (kind, tos, ttl) = (frame[INNER], frame[INNER + 1], frame[INNER + 8]);
        if kind >> 4 != 4 || ttl <= 1 {
            return false;
        }
        let check = u32::from(u16::from_le_bytes([frame[INNER + 10], frame[INNER + 11]])) + 1;
        let check = (check + u32::from(check >= 0xffff)) as u16;
        frame[INNER + 10..INNER + 12].copy_from_slice(&check.to_le_bytes());
        frame[INNER + 8] = ttl - 1;
        let length = bytes as u16 + IPV4 as u16;
        let sum = self.sum + u32::from(tos) + u32::from(length);
        let sum = (sum >> 16) + (sum & 0xffff);
        let check = !((sum >> 16) + (sum & 0xffff)) as u16;
        let ([length_high, length_low], [check_high, check_low]) =
            (length.to_be_bytes(), check.to_be_bytes());
        frame[..12].copy_from_slice(macs);
        frame[12..14].copy_from_slice(&TYPE_IPV4.to_be_bytes());
        let words = [
            u64::from_le_bytes([0x45, tos, length_high, length_low, 0, 0, 0x40, 0]),
            u64::from(u32::from_le_bytes([FIRST_TTL, PROTOCOL_IPIP, check_high, check_low])),
        ];
        frame[14..22].copy_from_slice(&words[0].to_le_bytes());
        frame[22..26].copy_from_slice(&(words[1] as u32).to_le_bytes());
        frame[26..34].copy_from_slice(&self.ends);
        true
    }
}

impl Outer {
    /// What this is at fixed places, if it is IPv4 in IPv4 without anything of the flow's.
    pub fn ipip4(&self) -> Option<Ipip4> {
        if self.encapsulation != Encapsulation::Ipip || self.hashed {
            return None;
        }
        let ends: [u8; 8] = *self.common[IP + 12..].first_chunk()?;
        let source = u32::from(u16::from_be_bytes([ends[0], ends[1]]))
            + u32::from(u16::from_be_bytes([ends[2], ends[3]]));
        Some(Ipip4 { sum: self.sum + source + u32::from(PROTOCOL_IPIP), ends })
    }
}

/// The packet of a frame that is forwarded.
struct InFrame {
    l3: usize,
    bytes: usize,
    ipv4: bool,
}

/// Where it is: one of a flow, a fragment of one, or an ICMP error about one.
fn inside(frame: &[u8]) -> Result<InFrame, Reason> {
    let (l3, bytes) = match parse(frame) {
        Ok(packet) => (packet.l3_offset, packet.ip_length),
        Err(rejected) => match (fragment(frame), icmp::quoted(frame)) {
            (Some(fragment), _) => (fragment.l3_offset, fragment.ip_length),
            (_, Some(error)) => (error.l3_offset, error.ip_length),
            _ => return Err(rejected.reason),
        },
    };
    let ipv4 = frame[usize::from(l3)] >> 4 == 4;
    Ok(InFrame { l3: l3.into(), bytes: bytes as usize, ipv4 })
}

/// What the outer header takes from the packet.
struct Inner {
    hash: u32,
    tos: u8,
    /// Of the packet, in another one.
    protocol: u8,
}

/// Looks at a packet, and takes one from its TTL as a router does: whatever loop it may be in ends.
/// `hashed`: the hash is wanted.
#[inline(always)]
fn enter(packet: &mut [u8], is_ipv4: bool, hashed: bool) -> Inner {
    if is_ipv4 {
        let hash = if hashed { hash_ipv4(packet) } else { 0 };
        let header = &mut packet[..IPV4];
        let tos = header[1];
        // RFC 1624: the word of TTL and protocol is less by 0x0100, so the sum is more. As the kernel
        // has it, and so the BPF program.
        let check = u32::from(u16::from_le_bytes([header[10], header[11]])) + 1;
        let check = (check + u32::from(check >= 0xffff)) as u16;
        header[10..12].copy_from_slice(&check.to_le_bytes());
        header[8] -= 1;
        return Inner { hash, tos, protocol: PROTOCOL_IPIP };
    }
    let hash = if hashed { hash_ipv6(packet) } else { 0 };
    let tos = packet[0] << 4 | packet[1] >> 4;
    packet[7] -= 1;
    Inner { hash, tos, protocol: PROTOCOL_IPV6 }
}

fn word32(packet: &[u8], at: usize) -> u32 {
    packet[at..].first_chunk().map_or(0, |bytes: &[u8; 4]| u32::from_le_bytes(*bytes))
}

fn word64(packet: &[u8], at: usize) -> u64 {
    packet[at..].first_chunk().map_or(0, |bytes: &[u8; 8]| u64::from_le_bytes(*bytes))
}

fn hash_ipv4(packet: &[u8]) -> u32 {
    // All fragments of a packet go one way.
    let whole = u16::from_be_bytes([packet[6], packet[7]]) & 0x3fff == 0;
    let ports = if whole { word32(packet, usize::from(packet[0] & 15) * 4) } else { 0 };
    spread([0, word32(packet, 12).into()], word32(packet, 16).into(), ports)
}

fn hash_ipv6(packet: &[u8]) -> u32 {
    let known = Protocol::from_number(packet[6]).is_some();
    let ports = if known { word32(packet, IPV6) } else { 0 };
    spread([word64(packet, 8), word64(packet, 16)], word64(packet, 32), ports)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_wire::checksum::Checksum;
    use weir_wire::craft::Frame;
    use weir_wire::{FlowKey, Protocol};

    const SOURCE: &str = "192.0.2.1";
    const BACKEND: &str = "198.51.100.7";
    const SOURCE6: &str = "2001:db8:1::1";
    const BACKEND6: &str = "2001:db8:2::7";

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn tunnel(encapsulation: Encapsulation, ipv6: bool) -> (Tunnel, IpAddr) {
        let (source, backend) = if ipv6 { (SOURCE6, BACKEND6) } else { (SOURCE, BACKEND) };
        (Tunnel { encapsulation, source: Some(ip(source)), spread: 0, mtu: 0 }, ip(backend))
    }

    /// 40 bytes of IPv4, or 60 of IPv6, with DSCP 46, ECT(1), TTL 9.
    fn frame(ipv6: bool) -> Vec<u8> {
        let ends = if ipv6 {
            ("[2001:db8::1]:5555", "[2001:db8::2]:80")
        } else {
            ("10.0.0.1:5555", "10.0.0.2:80")
        };
        let parse = |text: &str| text.parse().expect("an address");
        let flow = FlowKey::new(parse(ends.0), parse(ends.1), Protocol::Tcp);
        let mut frame = Frame::new(flow).build();
        if ipv6 {
            (frame[14], frame[15], frame[21]) = (0x6b, 0x90, 9);
        } else {
            (frame[15], frame[22]) = (0xb9, 9);
            frame[24..26].fill(0);
            let check = Checksum::default().add_bytes(&frame[14..34]).finish();
            frame[24..26].copy_from_slice(&check.to_be_bytes());
        }
        frame
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// What stands between the MAC addresses and the packet, which has one less of TTL and a checksum
    /// that holds.
    fn outer(encapsulation: Encapsulation, ipv6: bool, inner6: bool) -> String {
        let before = frame(inner6);
        let (tunnel, backend) = tunnel(encapsulation, ipv6);
        let mut after = before.clone();
        assert_eq!(tunnel.encapsulate(&mut after, backend, None), Ok(()));
        let added = encapsulation.overhead(backend);
        assert_eq!(after.len(), before.len() + added);
        assert_eq!(after[..12], before[..12]);
        let packet = &after[14 + added..];
        if inner6 {
            assert_eq!(packet[7], 8);
            assert_eq!((&packet[..7], &packet[8..]), (&before[14..21], &before[22..]));
        } else {
            assert_eq!(packet[8], 8);
            assert_eq!((&packet[..8], &packet[12..]), (&before[14..22], &before[26..]));
            assert_eq!(Checksum::default().add_bytes(&packet[..20]).finish(), 0);
        }
        hex(&after[12..14 + added])
    }

    /// Computed apart from this code, of the RFCs' figures.
    #[test]
    fn the_formats_are_those_of_the_rfcs() {
        let ends6 = "20010db800010000000000000000000120010db8000200000000000000000007";
        assert_eq!(
            outer(Encapsulation::Ipip, false, false),
            "080045b9003c0000400040044dc9c0000201c6336407"
        );
        assert_eq!(
            outer(Encapsulation::Ipip, true, true),
            format!("86dd6b9b56c3003c2940{ends6}"),
            "protocol 41, and a flow label"
        );
        assert_eq!(
            outer(Encapsulation::Ipip, true, false),
            format!("86dd6b96c94500280440{ends6}"),
            "protocol 4"
        );
        assert!(outer(Encapsulation::Ipip, false, true).starts_with("080045b90050000040004029"));
        assert_eq!(
            outer(Encapsulation::Gre, false, true),
            "080045b9005400004000402f4d86c0000201c6336407000086dd"
        );
        assert_eq!(
            outer(Encapsulation::Gre, true, false),
            format!("86dd6b96c945002c2f40{ends6}00000800")
        );
        // Source port 0xc945 of the flow, destination, length, no checksum; variant 0, no options,
        // protocol 4, no flags.
        assert_eq!(
            outer(Encapsulation::Gue(GUE_PORT), false, false),
            "080045b900480000400040114db0c0000201c6336407c94517c00034000000040000"
        );
        assert_eq!(
            outer(Encapsulation::Gue(GUE_PORT), true, true),
            format!("86dd6b9b56c300481140{ends6}d6c317c000480000{}", "00290000")
        );
        assert_eq!(
            outer(Encapsulation::Fou(FOU_PORT), true, false),
            format!("86dd6b96c94500301140{ends6}c94515b300300000")
        );
    }

    /// All eight bits of DSCP and ECN, of each family in each: RFC 6040's normal mode copies, CE included.
    #[test]
    fn dscp_and_ecn_are_copied() {
        for tos in 0..=u8::MAX {
            for (inner6, ipv6) in [(false, false), (false, true), (true, false), (true, true)] {
                let mut frame = frame(inner6);
                if inner6 {
                    (frame[14], frame[15]) = (0x60 | tos >> 4, tos << 4);
                } else {
                    frame[15] = tos;
                }
                let (tunnel, backend) = tunnel(Encapsulation::Ipip, ipv6);
                tunnel.encapsulate(&mut frame, backend, None).expect("it fits");
                let found = if ipv6 { frame[14] << 4 | frame[15] >> 4 } else { frame[15] };
                assert_eq!(found, tos);
            }
        }
    }

    #[test]
    fn a_loop_ends() {
        for ipv6 in [false, true] {
            let at = if ipv6 { 21 } else { 22 };
            let (tunnel, backend) = tunnel(Encapsulation::Ipip, false);
            for (ttl, refused) in [(0, true), (1, true), (2, false)] {
                let mut frame = frame(ipv6);
                frame[at] = ttl;
                let before = frame.clone();
                let done = tunnel.encapsulate(&mut frame, backend, None);
                assert_eq!(done.is_err(), refused);
                if refused {
                    assert_eq!(done, Err(Reason::TtlExceeded));
                    assert_eq!(frame, before);
                }
            }
        }
    }

    /// Padding of a short frame is no part of the packet.
    #[test]
    fn the_way_takes_so_much_and_no_more() {
        let (whole, backend) = tunnel(Encapsulation::Gue(1), false);
        for (mtu, refused) in [(71, true), (72, false), (0, false), (100_000, false)] {
            let mut frame = frame(false);
            frame.resize(70, 0xee);
            let tunnel = Tunnel { mtu, ..whole };
            let done = tunnel.encapsulate(&mut frame, backend, None);
            assert_eq!(done, if refused { Err(Reason::TooBig) } else { Ok(()) });
        }
    }

    #[test]
    fn tags_come_off_and_the_way_s_goes_on_with_the_priority() {
        let (tunnel, backend) = tunnel(Encapsulation::Ipip, false);
        let plain = frame(false);
        let mut wanted = plain.clone();
        tunnel.encapsulate(&mut wanted, backend, Some([0x81, 0, 0xa1, 0x23])).expect("it fits");
        let mut tagged = plain.clone();
        tagged.splice(12..12, [0x88, 0xa8, 0xa0, 7, 0x81, 0, 0, 9]);
        tunnel.encapsulate(&mut tagged, backend, Some([0x81, 0, 1, 0x23])).expect("it fits");
        assert_eq!(tagged, wanted);
        assert_eq!(tagged[12..18], [0x81, 0, 0xa1, 0x23, 8, 0]);
    }

    /// Without a field that routers would look at, the source may be the flow's.
    #[test]
    fn a_source_may_vary_with_the_flow() {
        let (tunnel, backend) = tunnel(Encapsulation::Ipip, false);
        let tunnel = Tunnel { source: Some(ip("172.16.0.0")), spread: 16, ..tunnel };
        let mut frame = frame(false);
        tunnel.encapsulate(&mut frame, backend, None).expect("it fits");
        assert_eq!(frame[26..30], [172, 16, 0xc9, 0x45]);
        assert_eq!(Checksum::default().add_bytes(&frame[14..34]).finish(), 0);
        let nowhere = Tunnel { source: None, ..tunnel };
        let mut frame = self::frame(false);
        assert_eq!(nowhere.encapsulate(&mut frame, backend, None), Err(Reason::NoTunnelSource));
    }
}
