//! Exact connection tables: flow -> backend, in contiguous memory.
//!
//! Both forms are arrays of buckets of one cache line (for `u64` flows: six flows and their
//! backends). A lookup compares whole flows, so it never answers for another flow, and reads one
//! line in nearly every case. The caller brings the flow's hash, which it has computed for the
//! placement anyway, and may [`prefetch`](ConnectionTable::prefetch) the line of a packet while
//! it works on others.
//!
//! | form | room | when it is full |
//! |---|---|---|
//! | [`Unbounded`] | grows | doubles |
//! | [`Lru`] | fixed | the least recently used flow *of the bucket* goes |
//!
//! [`TrackedFlows`] is the table of a whole plane: flows of all services, with what a plane knows of each
//! beside its backend, in either form.

mod any;
mod bucket;
mod lru;
mod memory;
mod tracked;
mod unbounded;

pub use any::AnyTable;
pub use lru::Lru;
pub use memory::Connections;
pub use tracked::TrackedFlows;
pub use unbounded::Unbounded;

use weir_hash::{HashKey, Key};

/// Slots of a bucket unless said otherwise: with `u64` flows a bucket is one cache line.
pub const SLOTS: usize = 6;

/// An exact table from flows to backends.
///
/// `hash` is always [`Key::hash`] of the flow under [`hash_key`](Self::hash_key); with another
/// number a flow is not found again. Backends are below [`NO_BACKEND`](crate::NO_BACKEND).
pub trait ConnectionTable {
    /// What tells a flow from all others.
    type Flow: Key;

    /// The key under which flows are hashed.
    fn hash_key(&self) -> &HashKey;

    /// Asks for the cache line that [`get`](Self::get) will read first.
    fn prefetch(&self, hash: u64);

    /// The backend of a flow; the flow counts as used now.
    fn get(&mut self, hash: u64, flow: &Self::Flow) -> Option<u16>;

    /// The backend of a flow, without a trace.
    fn peek(&self, hash: u64, flow: &Self::Flow) -> Option<u16>;

    /// Notes a flow, or another backend for a flow that is there; it counts as used now.
    fn insert(&mut self, hash: u64, flow: Self::Flow, backend: u16);

    /// Forgets a flow, and says where it was.
    fn remove(&mut self, hash: u64, flow: &Self::Flow) -> Option<u16>;

    /// Forgets all entries that are not to be kept; returns how many. Reads the whole table.
    fn retain(&mut self, keep: impl FnMut(&Self::Flow, u16) -> bool) -> usize;

    /// Forgets all flows of a backend; returns how many. Reads the whole table.
    fn forget_backend(&mut self, backend: u16) -> usize {
        self.retain(|_, other| other != backend)
    }

    /// Shows all entries, in no order.
    fn for_each(&self, visit: impl FnMut(&Self::Flow, u16));

    /// The number of flows.
    fn len(&self) -> usize;

    /// Whether there is no flow.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The largest number of flows; `None` if it grows.
    fn capacity(&self) -> Option<usize>;

    /// Entries that were given up for lack of room so far. Where there is no room at all, that
    /// is every new entry.
    fn evictions(&self) -> u64;

    /// Bytes of the buckets.
    fn bytes(&self) -> usize;
}

/// The 32 bits of a hash that choose the bucket, by multiply-shift.
///
/// The flows of a table are not a random sample: JET tracks those of certain table rows (low bits
/// of the hash), or of certain arcs of a ring (high bits). The product spreads both.
#[inline(always)]
fn spread(hash: u64) -> u32 {
    (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}
