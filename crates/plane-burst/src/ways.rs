//! How packets get to each backend, in one cache line with what is counted of it.

use crate::ports::{Fate, Frame};
use std::collections::BTreeMap;
use weir_plane::forward::Outer;
use weir_plane::{Backend, LaneCounters, Soft};
use weir_steering::BackendId;

const ETHERNET: usize = 14;

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
        let Some(hop) = backend.hop.filter(|_| backend.translation.is_none()) else {
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
                (Way { kind: Kind::Tunnel, most: most as u32, ..way }, Some(outer))
            }
            Err(_) => (Way::default(), None),
        }
    }

    /// Sends a frame with a packet of so many bytes to the backend of this slot, unless that is the long
    /// way's business: then nothing is done.
    #[inline(always)]
    pub fn forward(
        &mut self,
        memory: &mut [u8],
        frame: &mut Frame,
        slot: u16,
        bytes: u32,
        new: bool,
    ) -> bool {
        let Some(way) = self.ways.get_mut(usize::from(slot)) else { return false };
        match way.kind {
            Kind::Long => return false,
            Kind::Link => {}
            Kind::Tunnel => {
                let Some(Some(outer)) = self.outer.get(usize::from(slot)) else { return false };
                let at = frame.at as usize + ETHERNET;
                let packet = &memory[at..];
                let ipv4 = packet[0] >> 4 == 4;
                let ttl = packet[if ipv4 { 8 } else { 7 }];
                if ttl <= 1 || bytes > way.most {
                    return false;
                }
                let length = outer.bytes();
                let (before, packet) = memory.split_at_mut(at);
                let before = &mut before[at - length..];
                outer.put(packet, bytes as usize, ipv4, before);
                let longer = length as u32 - 2;
                frame.at -= longer;
                frame.len += longer;
            }
        }
        if let Some(head) = memory[frame.at as usize..].first_chunk_mut() {
            *head = way.macs;
        }
        frame.fate = Fate::Send;
        frame.device = way.device;
        way.counted.packets += 1;
        way.counted.bytes += u64::from(bytes);
        way.counted.flows += u64::from(new);
        true
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
