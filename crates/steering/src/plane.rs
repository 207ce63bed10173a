//! A whole data plane in plain memory: frames in, verdicts and counters out. The oracle of the
//! BPF program, and the data plane of tests that need none.

use crate::image::Image;
use crate::lookup::decide;
use crate::memory::SoftMemory;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use weir_wire::{Protocol, Reason, parse};

/// What a service listens on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct VipKey {
    /// Address, IPv4 mapped.
    pub address: [u8; 16],
    /// Protocol.
    pub protocol: Protocol,
    /// Port; `None` for any.
    pub port: Option<u16>,
}

/// What happened to a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// To a backend.
    Forwarded(u16),
    /// To the kernel.
    Passed(Reason),
    /// Nowhere.
    Dropped(Reason),
}

/// Counters of a backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LaneCounters {
    /// Packets forwarded.
    pub packets: u64,
    /// Bytes of them, from the IP header on.
    pub bytes: u64,
    /// Flows that started.
    pub flows: u64,
}

/// All counters.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// By backend.
    pub lanes: BTreeMap<u16, LaneCounters>,
    /// Packets left to the kernel, by reason.
    pub passed: BTreeMap<Reason, u64>,
    /// Packets dropped, by reason.
    pub dropped: BTreeMap<Reason, u64>,
}

/// A data plane in plain memory.
#[derive(Debug, Default)]
pub struct Plane {
    /// Services by what they listen on.
    pub vips: HashMap<VipKey, u32>,
    /// Published tables by service.
    pub tables: HashMap<u32, Arc<Image>>,
    /// Everything that is remembered.
    pub memory: SoftMemory,
    /// MAC addresses it answers to; empty: any.
    pub own_macs: Vec<[u8; 6]>,
    /// Counters.
    pub counters: Counters,
}

impl Plane {
    /// Takes one frame through the data plane.
    pub fn process(&mut self, frame: &[u8]) -> Outcome {
        let outcome = self.outcome(frame);
        match outcome {
            Outcome::Forwarded(_) => {}
            Outcome::Passed(reason) => *self.counters.passed.entry(reason).or_default() += 1,
            Outcome::Dropped(reason) => *self.counters.dropped.entry(reason).or_default() += 1,
        }
        outcome
    }

    fn outcome(&mut self, frame: &[u8]) -> Outcome {
        let packet = match parse(frame) {
            Ok(packet) => packet,
            Err(rejected) => {
                let ours = rejected.reason != Reason::OtherProtocol
                    && rejected.dst.is_some_and(|dst| self.is_vip(&dst));
                return if ours {
                    Outcome::Dropped(rejected.reason)
                } else {
                    Outcome::Passed(rejected.reason)
                };
            }
        };
        let flow = &packet.flow;
        let exact =
            VipKey { address: flow.dst, protocol: flow.protocol, port: Some(flow.dst_port) };
        let any = VipKey { port: None, ..exact };
        let Some(&service) = self.vips.get(&exact).or_else(|| self.vips.get(&any)) else {
            return Outcome::Passed(Reason::NoService);
        };
        if !self.own_macs.is_empty() && !self.own_macs.iter().any(|mac| frame.starts_with(mac)) {
            return Outcome::Passed(Reason::OtherHost);
        }
        let Some(image) = self.tables.get(&service).cloned() else {
            return Outcome::Dropped(Reason::NoTable);
        };
        let decision = decide(&image, service, flow, packet.tcp_flags, &mut self.memory);
        match decision.backend {
            Err(reason) => Outcome::Dropped(reason),
            Ok(backend) => {
                let lane = self.counters.lanes.entry(backend).or_default();
                lane.packets += 1;
                lane.bytes += u64::from(packet.ip_length);
                lane.flows += u64::from(decision.new);
                Outcome::Forwarded(backend)
            }
        }
    }

    fn is_vip(&self, address: &[u8; 16]) -> bool {
        self.vips.keys().any(|vip| vip.address == *address)
    }
}
