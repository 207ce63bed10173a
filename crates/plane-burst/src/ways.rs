//! How packets get to each backend, in one cache line with what is counted of it.

use crate::ports::{BURST, Fate, Frame};
use std::collections::BTreeMap;
use weir_plane::forward::tunnel::IPIP4;
use weir_plane::forward::{Ipip4, Outer};
use weir_plane::{Backend, LaneCounters, Soft};
use weir_steering::BackendId;

const ETHERNET: usize = 14;
/// What an IPv4 header in front of the packet takes.
const LONGER_IPIP4: u32 = 20;
/// Bytes of two MAC addresses.
const MACS: usize = 12;

/// How frames of the short way get to a backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Kind {
    /// By the long way.
    #[default]
    Long,
    /// With other MAC addresses.
    Link,
    /// In another packet besides.
    Tunnel,
    /// In a packet of IPv4, if the packet itself is one.
    Ipip4,
}

/// A backend, as packets of the short way need it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub struct Way {
    /// Packets, bytes and flows that are not yet among the plane's counters.
    pub counted: LaneCounters,
    /// The next hop's address and ours.
    pub macs: [u8; 12],
    /// The interface that they leave by; 0: the one that they came in by.
    pub device: u32,
    pub kind: Kind,
    /// The largest packet that its tunnel takes for sure, without the outer header.
    pub most: u32,
    /// What goes in front of packets of [`Kind::Ipip4`].
    pub ipip4: Ipip4,
}

/// Puts the packet of a frame, of so many bytes, behind an outer header and MAC addresses, unless it is
/// larger than `most` or its TTL is used up: false then, and nothing is done to it.
#[inline]
pub fn enter(
    outer: &Outer,
    macs: &[u8; MACS],
    most: u32,
    memory: &mut [u8],
    frame: &mut Frame,
    bytes: u32,
) -> bool {
    let at = frame.at as usize + ETHERNET;
    let (before, packet) = memory.split_at_mut(at);
    let ipv4 = packet[0] >> 4 == 4;
    let ttl = packet[if ipv4 { 8 } else { 7 }];
    if ttl <= 1 || bytes > most {
        return false;
    }
    let begin = at - outer.bytes() - MACS;
    let (place, header) = before[begin..].split_at_mut(MACS);
    outer.put(packet, bytes as usize, ipv4, header);
    if let Some(place) = place.first_chunk_mut() {
        *place = *macs;
    }
    frame.len += frame.at - begin as u32;
    frame.at = begin as u32;
    true
}

/// All backends by their numbers.
#[derive(Clone, Debug, Default)]
pub struct Ways {
    pub ways: Vec<Way>,
    /// The outer headers of those behind tunnels.
    pub outer: Vec<Option<Outer>>,
}

impl Ways {
    pub fn new(soft: &Soft) -> Self {
        let backends = &soft.backends;
        let numbers = backends.last_key_value().map_or(0, |(last, _)| last.index() + 1);
        let mut new = Self { ways: vec![Way::default(); numbers], outer: vec![None; numbers] };
        for (id, backend) in backends {
            let (way, outer) = Self::one(soft, *id, backend);
            new.ways[id.index()] = way;
            new.outer[id.index()] = outer;
        }
        new
    }

    fn one(soft: &Soft, id: BackendId, backend: &Backend) -> (Way, Option<Outer>) {
        let Some(hop) = backend.hop.filter(|_| backend.translation.is_none() && !backend.resets)
        else {
            return (Way::default(), None);
        };
        let mut macs = [0; 12];
        macs[..6].copy_from_slice(&hop.next.mac);
        macs[6..].copy_from_slice(&hop.next.source_mac);
        let way = Way { macs, device: hop.ifindex, kind: Kind::Link, ..Way::default() };
        let Some((tunnel, address)) = soft.way(id) else { return (way, None) };
        match Outer::new(&tunnel, address) {
            Ok(outer) => {
                let most = tunnel.most().saturating_sub(tunnel.encapsulation.overhead(address));
                let way = match outer.ipip4() {
                    Some(ipip4) => Way { kind: Kind::Ipip4, ipip4, ..way },
                    None => Way { kind: Kind::Tunnel, ..way },
                };
                (Way { most: most as u32, ..way }, Some(outer))
            }
            Err(_) => (Way::default(), None),
        }
    }

    /// Sends the frames with these numbers to the backends of these slots. Returns those that are the long
    /// way's business, to which nothing is done: bit i is the i-th. `bytes`: of the packets, by the frames'
    /// numbers.
    #[inline]
    pub fn forward(
        &mut self,
        memory: &mut [u8],
        frames: &mut [Frame],
        packets: &[u8],
        slots: &[u16; BURST],
        bytes: &[u32; BURST],
    ) -> u64 {
        let (mut tunnels, mut long) = (0u64, 0u64);
        for (at, (&number, &slot)) in packets.iter().zip(slots).enumerate() {
            let number = usize::from(number) % BURST;
            let (frame, bytes) = (&mut frames[number], bytes[number]);
            let Some(way) = self.ways.get_mut(usize::from(slot)) else {
                long |= 1 << at;
                continue;
            };
            match way.kind {
                Kind::Link => {
                    if let Some(head) = memory[frame.at as usize..].first_chunk_mut() {
                        *head = way.macs;
                    }
                }
                Kind::Ipip4 => {
                    let begin = frame.at.wrapping_sub(LONGER_IPIP4);
                    let head = memory.get_mut(begin as usize..).and_then(<[u8]>::first_chunk_mut);
                    let put = |head: &mut [u8; IPIP4]| way.ipip4.put(head, &way.macs, bytes);
                    if bytes > way.most || !head.is_some_and(put) {
                        tunnels |= 1 << at;
                        continue;
                    }
                    frame.at = begin;
                    frame.len += LONGER_IPIP4;
                }
                Kind::Tunnel => {
                    tunnels |= 1 << at;
                    continue;
                }
                Kind::Long => {
                    long |= 1 << at;
                    continue;
                }
            }
            (frame.fate, frame.device) = (Fate::Send, way.device);
            way.counted.packets += 1;
            way.counted.bytes += u64::from(bytes);
        }
        while tunnels != 0 {
            let at = tunnels.trailing_zeros() as usize;
            tunnels &= tunnels - 1;
            let number = usize::from(packets[at]) % BURST;
            let frame = &mut frames[number];
            if self.enter(memory, frame, slots[at], bytes[number]) {
                let way = &mut self.ways[usize::from(slots[at])];
                (frame.fate, frame.device) = (Fate::Send, way.device);
                way.counted.packets += 1;
                way.counted.bytes += u64::from(bytes[number]);
            } else {
                long |= 1 << at;
            }
        }
        long
    }

    /// Puts the packet of a frame into its backend's tunnel, if that takes it for sure.
    #[inline]
    fn enter(&self, memory: &mut [u8], frame: &mut Frame, slot: u16, bytes: u32) -> bool {
        let slot = usize::from(slot);
        let (way, Some(Some(outer))) = (&self.ways[slot], self.outer.get(slot)) else {
            return false;
        };
        enter(outer, &way.macs, way.most, memory, frame, bytes)
    }

    /// Adds what has been counted to the plane's counters, and counts from 0.
    pub fn give_counted(&mut self, lanes: &mut BTreeMap<BackendId, LaneCounters>) {
        for (number, way) in self.ways.iter_mut().enumerate() {
            let counted = std::mem::take(&mut way.counted);
            if counted.packets > 0
                && let Some(id) = BackendId::new(number as u16)
            {
                let lane = lanes.entry(id).or_default();
                lane.packets += counted.packets;
                lane.bytes += counted.bytes;
                lane.flows += counted.flows;
            }
        }
    }
}
