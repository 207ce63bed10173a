//! Plain packets, told by a few loads from fixed places. Whatever is not plain is
//! [`parse`](weir_wire::parse)'s business.

use crate::ports::BURST;
use weir_lookup::{Work, vectorised};
use weir_steering::StateKey;
use weir_wire::TcpFlags;

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const TCP: u64 = 6;
/// The least that a plain packet of either family takes in its frame.
pub const SHORTEST_IPV4: usize = ETHERNET + IPV4 + 20;
pub const SHORTEST_IPV6: usize = ETHERNET + IPV6 + 20;

/// Flags that are looked at, and what they are in the middle of a connection.
const LOOKED_AT: u64 =
    (TcpFlags::FIN.0 | TcpFlags::SYN.0 | TcpFlags::RST.0 | TcpFlags::ACK.0) as u64;
const MIDDLE: u64 = TcpFlags::ACK.0 as u64;

#[inline(always)]
fn u16_at<const N: usize>(head: &[u8; N], at: usize) -> u16 {
    u16::from_le_bytes([head[at], head[at + 1]])
}

#[inline(always)]
fn u32_at<const N: usize>(head: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}

#[inline(always)]
fn u64_at<const N: usize>(head: &[u8; N], at: usize) -> u64 {
    u64::from(u32_at(head, at)) | u64::from(u32_at(head, at + 4)) << 32
}

/// Whether the TCP header is whole, and the segment in the middle of a connection. `rest`: bytes from the
/// header on.
#[inline(always)]
fn middle(offset: u8, flags: u8, rest: u32) -> bool {
    let header = u32::from(offset >> 4) * 4;
    (header >= 20) & (header <= rest) & (u64::from(flags) & LOOKED_AT == MIDDLE)
}

/// The heads of a burst's frames as numbers, to be looked at many at a time. A frame that is too short for a
/// plain packet has zeros, which are none.
#[derive(Clone, Debug)]
pub struct Heads {
    /// The destination's MAC address, and two bytes of the source's.
    pub macs: [u64; BURST],
    /// From the EtherType on.
    kinds: [u64; BURST],
    /// From the flags of fragments on.
    middles: [u64; BURST],
    /// Source and destination.
    ends: [u64; BURST],
    /// From the ports on.
    ports: [u64; BURST],
    /// Data offset and TCP flags; above them, the bytes of the frame.
    offsets: [u64; BURST],
}

impl Default for Heads {
    fn default() -> Self {
        let none = [0; BURST];
        Self { macs: none, kinds: none, middles: none, ends: none, ports: none, offsets: none }
    }
}

/// What is found out of heads, by the packets' numbers.
#[derive(Clone, Debug)]
pub struct Plain4 {
    /// Whether the packet is plain, over IPv4 and for our first MAC address: all ones, or 0. It is plain if
    /// [`parse`](weir_wire::parse) accepts it, without a VLAN tag or IP options, as a TCP segment with ACK
    /// and without SYN, FIN and RST.
    pub good: [u64; BURST],
    /// The same but for the address.
    pub plain: [u64; BURST],
    /// The word that its flow's key is hashed as: source address, ports; see
    /// [`hash_address`](weir_wire::hash::hash_address).
    pub words: [u64; BURST],
    /// Destination address and port, as they stand in the frame.
    pub to: [u64; BURST],
    /// Bytes from the IP header on, without padding.
    pub bytes: [u32; BURST],
}

impl Default for Plain4 {
    fn default() -> Self {
        let none = [0; BURST];
        Self { good: none, plain: none, words: none, to: none, bytes: [0; BURST] }
    }
}

impl Heads {
    /// Reads the head of a frame of so many bytes.
    #[inline(always)]
    pub fn read(&mut self, at: usize, head: Option<&[u8; SHORTEST_IPV4]>, frame_bytes: u32) {
        let Some(head) = head.filter(|_| frame_bytes as usize >= SHORTEST_IPV4) else {
            (self.kinds[at], self.offsets[at]) = (0, 0);
            return;
        };
        self.macs[at] = u64_at(head, 0);
        self.kinds[at] = u64_at(head, 12);
        self.middles[at] = u64_at(head, 20);
        self.ends[at] = u64_at(head, 26);
        self.ports[at] = u64_at(head, 34);
        self.offsets[at] = u64::from(u16_at(head, 46)) | u64::from(frame_bytes) << 32;
    }

    /// Looks at the first `count` heads; `mac`: what our address is under which bits. Returns whether all
    /// are good, and go to one destination.
    pub fn look(&self, count: usize, mac: (u64, u64), found: &mut Plain4) -> bool {
        vectorised(Look { heads: self, count, mac, found })
    }
}

/// The work of [`Heads::look`].
struct Look<'a> {
    heads: &'a Heads,
    count: usize,
    mac: (u64, u64),
    found: &'a mut Plain4,
}

impl Work for Look<'_> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let Self { heads, count, mac: (own, bits), found } = self;
        let count = count.min(BURST);
        let (mut all, mut differ, first) =
            (u64::MAX, 0, heads.ends[0] >> 32 | port(heads.ports[0]));
        for at in 0..count {
            let (kind, offset) = (heads.kinds[at], heads.offsets[at]);
            let bytes = kind >> 24 & 0xff00 | kind >> 40 & 0xff;
            let header = (offset & 0xf0) >> 2;
            // EtherType, version and header length; more fragments, their offset, and the protocol; flags.
            let plain = (kind & 0x00ff_ffff == 0x0045_0008)
                & (heads.middles[at] & 0xff00_ff3f == TCP << 24)
                & (offset & LOOKED_AT << 8 == MIDDLE << 8)
                & (header >= 20)
                & (header + IPV4 as u64 <= bytes)
                & (bytes + ETHERNET as u64 <= offset >> 32);
            let good = plain & (heads.macs[at] & bits == own);
            let to = heads.ends[at] >> 32 | port(heads.ports[at]);
            found.plain[at] = if plain { u64::MAX } else { 0 };
            found.good[at] = if good { u64::MAX } else { 0 };
            found.words[at] = heads.ends[at] << 32 | heads.ports[at] & 0xffff_ffff;
            found.to[at] = to;
            found.bytes[at] = bytes as u32;
            all &= found.good[at];
            differ |= to ^ first;
        }
        all == u64::MAX && differ == 0
    }
}

/// A packet that [`Plain4::good`] is true of, by itself: its bytes from the IP header on.
#[inline(always)]
pub fn plain4(
    head: &[u8; SHORTEST_IPV4],
    frame_bytes: u32,
    (own, bits): (u64, u64),
) -> Option<u32> {
    let (kind, middle) = (u64_at(head, 12), u64_at(head, 20));
    let bytes = u32::from(u16_at(head, 16).swap_bytes());
    let (offset, flags) = (head[46], head[47]);
    let header = u32::from(offset >> 4) * 4;
    let plain = (kind & 0x00ff_ffff == 0x0045_0008)
        & (middle & 0xff00_ff3f == TCP << 24)
        & (u64::from(flags) & LOOKED_AT == MIDDLE)
        & (header >= 20)
        & (header + IPV4 as u32 <= bytes)
        & (bytes + ETHERNET as u32 <= frame_bytes)
        & (u64_at(head, 0) & bits == own);
    plain.then_some(bytes)
}

/// The destination's port as it stands in [`Plain4::to`].
#[inline(always)]
fn port(ports: u64) -> u64 {
    (ports & 0xffff_0000) << 16
}

/// A plain packet over IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plain6 {
    /// The key of its flow.
    pub key: StateKey,
    /// Destination address: its bytes in the frame, as two words.
    pub to: [u64; 2],
    /// Bytes from the IP header on, without padding.
    pub bytes: u32,
}

/// As [`Plain4::plain`] says it, over IPv6: without extension headers.
#[inline(always)]
pub fn plain6(head: &[u8; SHORTEST_IPV6], frame_bytes: u32) -> Option<Plain6> {
    let kind = u32_at(head, 12) & 0x00f0_ffff == 0x0060_dd86;
    let payload = u32::from(u16_at(head, 18).swap_bytes());
    let fits = payload + (ETHERNET + IPV6) as u32 <= frame_bytes;
    let segment = middle(head[66], head[67], payload);
    let mapped = |at| u64_at(head, at) == 0 && u32_at(head, at + 8) == 0xffff_0000;
    let plain = kind & (u64::from(head[20]) == TCP) & fits & segment;
    if !plain || mapped(22) || mapped(38) {
        return None;
    }
    let mut address = [0; 16];
    address.copy_from_slice(&head[22..38]);
    let key = StateKey {
        address,
        src_port: u16_at(head, 54).swap_bytes(),
        dst_port: u16_at(head, 56).swap_bytes(),
    };
    let to = [u64_at(head, 38), u64_at(head, 46)];
    Some(Plain6 { key, to, bytes: payload + IPV6 as u32 })
}

/// The key of the flow whose [`Plain4::word`] this is.
#[inline(always)]
pub fn key_of_word(word: u64) -> StateKey {
    let mut address = [0; 16];
    address[10..12].fill(0xff);
    address[12..].copy_from_slice(&((word >> 32) as u32).to_le_bytes());
    let port = |at: u32| u16::from_be((word >> at) as u16);
    StateKey { address, src_port: port(0), dst_port: port(16) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;
    use weir_hash::{HashKey, Key};
    use weir_wire::craft::Frame;
    use weir_wire::{FlowKey, Protocol, parse};

    fn flow(rng: &mut ChaCha8Rng, ipv6: bool) -> FlowKey {
        let address = |rng: &mut ChaCha8Rng| match ipv6 {
            true => std::net::IpAddr::from(rng.random::<[u8; 16]>()),
            false => std::net::IpAddr::from(rng.random::<[u8; 4]>()),
        };
        let protocol = if rng.random_ratio(1, 8) { Protocol::Udp } else { Protocol::Tcp };
        let ends = [0, 1].map(|_| (address(rng), rng.random()).into());
        FlowKey::new(ends[0], ends[1], protocol)
    }

    /// Frames with up to two bytes changed, cut or padded: what is plain is what `parse` says of it, and of
    /// what `parse` accepts in the middle of a connection everything is plain that can be.
    #[test]
    fn plain_is_what_parse_accepts() {
        let mut rng = ChaCha8Rng::seed_from_u64(14);
        let hash = HashKey::from_seed(3);
        let (mut heads, mut looked) = (Heads::default(), Plain4::default());
        let (mut plain, mut refused) = ([0; 2], 0);
        for _ in 0..400_000 {
            let ipv6 = rng.random();
            let flow = flow(&mut rng, ipv6);
            let flags = if rng.random_ratio(1, 4) { rng.random() } else { 0x10 };
            let mut frame =
                Frame::new(flow).tcp_flags(TcpFlags(flags)).payload(rng.random_range(0..9));
            if rng.random_ratio(1, 20) {
                frame = frame.vlan(7);
            }
            let mut frame = frame.build();
            for _ in 0..rng.random_range(0..3) {
                let at = rng.random_range(12..frame.len());
                frame[at] = rng.random();
            }
            if rng.random_ratio(1, 20) {
                frame.truncate(rng.random_range(12..=frame.len()));
            }
            frame.resize(frame.len() + rng.random_range(0..6), 0xee);
            let bytes = frame.len() as u32;
            let known = parse(&frame).ok();
            let middle = known.filter(|packet| {
                let headers = if packet.flow.is_ipv4() { IPV4 } else { IPV6 };
                packet.flow.protocol == Protocol::Tcp
                    && u64::from(packet.tcp_flags.0) & LOOKED_AT == MIDDLE
                    && packet.vlan_tags == 0
                    && usize::from(packet.l4_offset) == ETHERNET + headers
            });
            let at = rng.random_range(0..BURST);
            heads.read(at, frame.first_chunk(), bytes);
            let all = heads.look(at + 1, (0, 0), &mut looked);
            let found4 = (looked.plain[at] != 0).then_some(at);
            let alone = frame.first_chunk().and_then(|head| plain4(head, bytes, (0, 0)));
            assert_eq!(alone, found4.map(|at| looked.bytes[at]), "{frame:02x?}");
            assert!(found4.is_some() || !all);
            let found6 = frame.first_chunk().and_then(|head| plain6(head, bytes));
            let Some(packet) = middle else {
                assert_eq!((found4, found6.map(|_| ())), (None, None), "{frame:02x?}");
                refused += 1;
                continue;
            };
            let key = StateKey::of_flow(&packet.flow);
            if packet.flow.is_ipv4() {
                let at = found4.expect("it is plain");
                let word = looked.words[at];
                assert_eq!((key_of_word(word), looked.bytes[at]), (key, packet.ip_length));
                assert_eq!(hash.hash_word(word), key.hash(&hash));
                let mut to = [0; 8];
                to[..4].copy_from_slice(&packet.flow.dst[12..]);
                to[4..6].copy_from_slice(&packet.flow.dst_port.to_be_bytes());
                assert_eq!(looked.to[at].to_le_bytes(), to);
                plain[0] += 1;
            } else {
                let found = found6.expect("it is plain");
                assert_eq!((found.key, found.bytes), (key, packet.ip_length));
                assert_eq!(found.to.map(u64::to_le_bytes).concat(), packet.flow.dst);
                plain[1] += 1;
            }
        }
        assert!(plain[0] > 50_000 && plain[1] > 50_000 && refused > 50_000, "{plain:?} {refused}");
    }
}
