//! What the lookup face remembers and reports: a trait, and an implementation in plain memory
//! that mirrors the kernel's maps.

use crate::image::NO_BACKEND;
use crate::state::ServiceState;
use crate::tracked::TrackedFlow;
use std::collections::{HashMap, HashSet};
use weir_wire::FlowKey;
use weir_wire::hash::scale;

/// Start or end of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum EventKind {
    /// The first packet (SYN; for UDP the first one seen).
    Start = 1,
    /// FIN or RST.
    End = 2,
}

/// A report of the data plane.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Event {
    /// Whose flow.
    pub state: ServiceState,
    /// Where it went.
    pub backend: u16,
    /// Start or end.
    pub kind: EventKind,
}

/// The memory of a data plane.
pub trait Memory {
    /// Backend of a flow in the pending table.
    fn pending(&self, state: &ServiceState) -> Option<u16>;
    /// Notes a flow in the pending table; false if it is full.
    fn note_pending(&mut self, state: ServiceState, backend: u16) -> bool;
    /// Backend of a pinned state.
    fn pinned(&self, state: &ServiceState) -> Option<u16>;
    /// Reports a start or an end.
    fn report(&mut self, event: Event);
    /// Marks a flow as active.
    fn mark(&mut self, hash: u64);
    /// Whether a UDP flow was seen recently; it is from now on.
    fn seen_before(&mut self, hash: u64, service: u32) -> bool;
    /// A tracked connection.
    fn connection(&self, flow: &FlowKey) -> Option<TrackedFlow>;
    /// Tracks a connection.
    fn track(&mut self, flow: FlowKey, entry: TrackedFlow);
    /// The present incarnation of a backend, if it is present.
    fn incarnation(&self, backend: u16) -> Option<u32>;
    /// Whether a backend is down by its health check.
    fn is_down(&self, backend: u16) -> bool;
}

/// Tag of a flow in the "seen recently" filter, without the generation in its low two bits.
pub fn seen_tag(hash: u64, service: u32) -> u64 {
    hash.wrapping_add(u64::from(service).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

const SEEN_WAYS: usize = 8;

/// The kernel's maps in plain memory; sizes as they are there.
#[derive(Debug, Default)]
pub struct SoftMemory {
    /// The pending table.
    pub pending: HashMap<ServiceState, u16>,
    /// Its bound.
    pub pending_limit: usize,
    /// Pinned states.
    pub pinned: HashMap<ServiceState, u16>,
    /// Reports, in order.
    pub events: Vec<Event>,
    /// Both halves of the activity bitmap.
    pub marks: Vec<u64>,
    /// The half that is written.
    pub mark_side: u32,
    /// "Seen recently" lines.
    pub seen: Vec<[u64; SEEN_WAYS]>,
    /// Its generation, 1..=3.
    pub seen_generation: u64,
    /// The connection table, unbounded here.
    pub connections: HashMap<FlowKey, TrackedFlow>,
    /// Incarnations of the backends that are present.
    pub incarnations: HashMap<u16, u32>,
    /// Backends that are down by their health checks.
    pub down: HashSet<u16>,
}

impl SoftMemory {
    /// Memory with these sizes.
    pub fn new(pending_limit: usize, mark_words: usize, seen_lines: usize) -> Self {
        Self {
            pending_limit,
            marks: vec![0; mark_words * 2],
            seen: vec![[0; SEEN_WAYS]; seen_lines],
            seen_generation: 1,
            ..Self::default()
        }
    }

    /// Takes a UDP flow out of the "seen recently" filter, so that its next datagram is reported
    /// as a first one.
    pub fn forget_seen(&mut self, hash: u64, service: u32) {
        let tag = seen_tag(hash, service);
        let line = scale((tag >> 32) as u32, self.seen.len() as u32) as usize;
        for entry in &mut self.seen[line] {
            if *entry & !3 == tag & !3 {
                *entry = 0;
            }
        }
    }
}

impl Memory for SoftMemory {
    fn pending(&self, state: &ServiceState) -> Option<u16> {
        self.pending.get(state).copied()
    }

    fn note_pending(&mut self, state: ServiceState, backend: u16) -> bool {
        if self.pending.len() >= self.pending_limit && !self.pending.contains_key(&state) {
            return false;
        }
        self.pending.insert(state, backend);
        true
    }

    fn pinned(&self, state: &ServiceState) -> Option<u16> {
        self.pinned.get(state).copied()
    }

    fn report(&mut self, event: Event) {
        self.events.push(event);
    }

    fn mark(&mut self, hash: u64) {
        let half = self.marks.len() / 2;
        let word = hash as usize & (half - 1);
        self.marks[word + (self.mark_side & 1) as usize * half] |= 1 << (hash >> 58);
    }

    fn seen_before(&mut self, hash: u64, service: u32) -> bool {
        let tag = seen_tag(hash, service);
        let line = scale((tag >> 32) as u32, self.seen.len() as u32) as usize;
        let now = self.seen_generation & 3;
        let before = if now == 1 { 3 } else { now - 1 };
        let alive = |entry: u64| entry & 3 == now || entry & 3 == before;
        let fallback = (tag >> 29) as usize % SEEN_WAYS;
        let tag = tag & !3;
        let line = &mut self.seen[line];
        let mut victim = None;
        for (way, entry) in line.iter_mut().enumerate() {
            if *entry & !3 == tag {
                let known = alive(*entry);
                *entry = tag | now;
                return known;
            }
            if !alive(*entry) && victim.is_none() {
                victim = Some(way);
            }
        }
        line[victim.unwrap_or(fallback)] = tag | now;
        false
    }

    fn connection(&self, flow: &FlowKey) -> Option<TrackedFlow> {
        self.connections.get(flow).copied()
    }

    fn track(&mut self, flow: FlowKey, entry: TrackedFlow) {
        self.connections.insert(flow, entry);
    }

    fn incarnation(&self, backend: u16) -> Option<u32> {
        (backend != NO_BACKEND).then(|| self.incarnations.get(&backend).copied()).flatten()
    }

    fn is_down(&self, backend: u16) -> bool {
        self.down.contains(&backend)
    }
}
