//! The connection table of `weir_steering`.

use super::uses::Uses;
use super::{Release, Tracked};
use crate::flow::Traffic;
use weir_hash::HashKey;
use weir_hash::Key;
use weir_steering::{AnyTable, BackendId, ConnectionTable, Lru, TrackedFlow};

/// [`weir_steering::Lru`], whose buckets evict the least recently used of six, or the one that
/// grows.
///
/// Before an insertion into a full bucket the flows in it are asked for their last packets, and the
/// table is told of them, oldest first. Then it is as if every packet had been played: the order
/// in one bucket depends on nothing else.
#[derive(Debug)]
pub struct Buckets {
    table: AnyTable<Tracked>,
    release: Release,
    uses: Uses,
    /// The uses of a bucket, so as not to allocate for each.
    scratch: Vec<(f64, Tracked)>,
}

impl Buckets {
    /// An empty table.
    pub fn new(capacity: usize, release: Release, key: HashKey) -> Self {
        let capacity = (capacity < 1 << 28).then_some(capacity);
        let table = AnyTable::new(key, capacity);
        Self { table, release, uses: Uses::default(), scratch: Vec::new() }
    }

    fn hash(&self, flow: Tracked) -> u64 {
        flow.hash(self.table.hash_key())
    }

    pub fn peek(&self, flow: Tracked) -> Option<TrackedFlow> {
        let backend = self.table.peek(self.hash(flow), &flow)?;
        Some(TrackedFlow::new(BackendId::new(backend)?, 0))
    }

    pub fn get(&mut self, flow: Tracked) -> Option<TrackedFlow> {
        let backend = self.table.get(self.hash(flow), &flow)?;
        Some(TrackedFlow::new(BackendId::new(backend)?, 0))
    }

    pub fn prepare(&mut self, flow: Tracked, traffic: &mut Traffic, gone: &mut Vec<u32>) {
        let hash = self.hash(flow);
        let Self { table: AnyTable::Lru(table), uses, scratch, .. } = self else {
            return;
        };
        if table.victim(hash).is_none() || table.peek(hash, &flow).is_some() {
            return;
        }
        use_in_order(table, hash, uses, scratch, traffic);
        if let Some(&victim) = table.victim(hash) {
            if uses.lives(victim) {
                gone.push(victim.slot);
            }
            uses.forget(victim.id);
        }
    }

    pub fn insert(&mut self, flow: Tracked, entry: TrackedFlow) {
        self.table.insert(self.hash(flow), flow, entry.backend.get());
    }

    fn remove(&mut self, flow: Tracked) {
        self.uses.forget(flow.id);
        self.table.remove(self.hash(flow), &flow);
    }

    pub fn end(&mut self, flow: Tracked, traffic: &mut Traffic) {
        match self.release {
            Release::AtEnd => self.remove(flow),
            Release::Never => self.end_elsewhere(flow, traffic),
        }
    }

    pub fn end_elsewhere(&mut self, flow: Tracked, traffic: &mut Traffic) {
        if self.peek(flow).is_some() {
            self.uses.stops(flow, true, traffic);
        }
    }

    pub fn leaves(&mut self, flow: Tracked, traffic: &mut Traffic) {
        if self.peek(flow).is_some() {
            self.uses.stops(flow, false, traffic);
        }
    }

    pub fn comes(&mut self, flow: Tracked, now: f64) {
        self.uses.comes(flow, now);
    }

    pub fn retain(&mut self, mut keep: impl FnMut(u64, u16) -> bool, gone: &mut Vec<u32>) {
        let uses = &mut self.uses;
        self.table.retain(|&flow, server| {
            let keep = keep(flow.id, server);
            if !keep {
                gone.extend(uses.lives(flow).then_some(flow.slot));
                uses.forget(flow.id);
            }
            keep
        });
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn evictions(&self) -> u64 {
        self.table.evictions()
    }
}

/// Tells the table of the last packet of each flow in a bucket, oldest first.
fn use_in_order(
    table: &mut Lru<Tracked>,
    hash: u64,
    uses: &Uses,
    scratch: &mut Vec<(f64, Tracked)>,
    traffic: &mut Traffic,
) {
    scratch.clear();
    scratch.extend(table.peers(hash).map(|(&peer, _)| (0.0, peer)));
    scratch.iter_mut().for_each(|(last, peer)| *last = uses.last(*peer, traffic));
    scratch.sort_by(|a, b| a.0.total_cmp(&b.0));
    let key = *table.hash_key();
    for (_, peer) in scratch {
        table.get(peer.hash(&key), peer);
    }
}
