//! Connection tables under simulation.
//!
//! The lazy engine does not play packets that change nothing but how recently an entry was used.
//! So a table is *prepared* before an insertion: it asks [`Traffic`] when the entries that might
//! have to go were used last, and is then in the state that all those packets would have left.

mod buckets;
mod exact;
mod kernel;
mod uses;

pub(super) use buckets::Buckets;
pub(super) use exact::Exact;
pub(super) use kernel::Kernel;

use crate::flow::Traffic;
use crate::method::FlowRef;
use weir_hash::HashKey;
use weir_steering::TrackedFlow;

/// When the entry of a flow that has ended leaves the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Release {
    /// At once (a FIN was seen).
    #[default]
    AtEnd,
    /// Only by eviction.
    Never,
}

/// Which entry has to go when a connection table is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Eviction {
    /// The least recently used of a bucket of six: the table of `weir_steering`, which data planes
    /// in user space have.
    #[default]
    Buckets,
    /// The least recently used of all: what the papers assume. No data plane of ours has it.
    Exact,
    /// As the kernel's LRU hash map does it, of which the XDP program's table is one.
    Kernel,
}

/// The connection table that each balancer of a method has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connections {
    /// The most flows that it holds; from 2^28 on as many as come.
    pub capacity: usize,
    /// Who has to go when it is full.
    pub eviction: Eviction,
    /// When flows that have ended leave it.
    pub release: Release,
}

impl Connections {
    /// A table for so many flows.
    pub const fn new(capacity: usize, eviction: Eviction, release: Release) -> Self {
        Self { capacity, eviction, release }
    }
}

/// A flow as tables under simulation know it: they tell it by its id alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tracked {
    pub id: u64,
    pub slot: u32,
}

impl PartialEq for Tracked {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Tracked {}

impl std::hash::Hash for Tracked {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl weir_hash::Key for Tracked {
    #[inline(always)]
    fn hash(&self, key: &HashKey) -> u64 {
        self.id.hash(key)
    }
}

impl From<FlowRef> for Tracked {
    fn from(flow: FlowRef) -> Self {
        Self { id: flow.id, slot: flow.slot }
    }
}

/// Flow -> server, for at most so many flows.
#[derive(Debug)]
pub enum Table {
    Buckets(Buckets),
    Exact(Exact),
    Kernel(Kernel),
}

macro_rules! each {
    ($self:expr, $table:ident => $call:expr) => {
        match $self {
            Table::Buckets($table) => $call,
            Table::Exact($table) => $call,
            Table::Kernel($table) => $call,
        }
    };
}

impl Table {
    /// An empty table. From 2^28 flows on it is one that grows. `key`: what flows are hashed under
    /// where the hash says who shares a bucket.
    pub fn new(eviction: Eviction, capacity: usize, release: Release, key: HashKey) -> Self {
        match eviction {
            Eviction::Buckets => Self::Buckets(Buckets::new(capacity, release, key)),
            Eviction::Exact => Self::Exact(Exact::new(capacity, release)),
            Eviction::Kernel => Self::Kernel(Kernel::new(capacity, release)),
        }
    }

    /// The entry of a flow, without a trace.
    pub fn peek(&self, flow: Tracked) -> Option<TrackedFlow> {
        each!(self, table => table.peek(flow))
    }

    /// The same for a packet that is played: the entry counts as used now.
    pub fn get(&mut self, flow: Tracked) -> Option<TrackedFlow> {
        match self {
            Self::Buckets(table) => table.get(flow),
            // They ask the traffic for all uses.
            Self::Exact(table) => table.peek(flow),
            Self::Kernel(table) => table.peek(flow),
        }
    }

    /// Makes room for a flow that is not there, or chooses who will have to go when it is
    /// inserted, now. `gone` gets the slots of the flows that live and lose their entries.
    pub fn prepare(&mut self, flow: Tracked, traffic: &mut Traffic, gone: &mut Vec<u32>) {
        each!(self, table => table.prepare(flow, traffic, gone));
    }

    /// Notes a flow that the table is prepared for.
    pub fn insert(&mut self, flow: Tracked, entry: TrackedFlow) {
        each!(self, table => table.insert(flow, entry));
    }

    /// A server is gone. The kernel's entries stay, and count for nothing; the other tables' go.
    /// `gone` gets the slots of the flows, of those that live.
    pub fn forget(&mut self, server: u16, gone: &mut Vec<u32>) {
        match self {
            Self::Kernel(table) => table.list(server, gone),
            Self::Buckets(_) | Self::Exact(_) => self.retain(|_, at| at != server, gone),
        }
    }

    /// The flow has ended, and its last packet passed here.
    pub fn end(&mut self, flow: Tracked, traffic: &mut Traffic) {
        each!(self, table => table.end(flow, traffic));
    }

    /// The flow has ended while its packets went to another table: nobody tells this one.
    pub fn end_elsewhere(&mut self, flow: Tracked, traffic: &mut Traffic) {
        each!(self, table => table.end_elsewhere(flow, traffic));
    }

    /// The flow's packets go to another table from now on.
    pub fn leaves(&mut self, flow: Tracked, traffic: &mut Traffic) {
        each!(self, table => table.leaves(flow, traffic));
    }

    /// The flow's packets come here from now on.
    pub fn comes(&mut self, flow: Tracked, now: f64) {
        each!(self, table => table.comes(flow, now));
    }

    /// Forgets the entries that are not to be kept, by flow id and server. `gone` gets the slots
    /// of their flows, of those that live.
    pub fn retain(&mut self, keep: impl FnMut(u64, u16) -> bool, gone: &mut Vec<u32>) {
        each!(self, table => table.retain(keep, gone));
    }

    /// Whether entries say which use of its server's number they mean.
    pub fn tells_incarnations(&self) -> bool {
        !matches!(self, Self::Buckets(_))
    }

    /// Number of flows that have an entry.
    pub fn len(&self) -> usize {
        each!(self, table => table.len())
    }

    /// Entries that were given up for lack of room.
    pub fn evictions(&self) -> u64 {
        each!(self, table => table.evictions())
    }
}

#[cfg(test)]
mod tests;
