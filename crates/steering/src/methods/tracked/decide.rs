//! The lookup face of tracked; the twin of `bpf/methods/tracked.h`.

use super::Method;
use crate::decide::{Decide, Decision, Question, Why};
use crate::ids::BackendId;
use crate::memory::{Memory, NO_CONNECTION, TrackedFlow, live_connection};
use crate::rows::Rows;
use crate::table::{NO_BACKEND, Table};
use weir_hash::{HashKey, Key};
use weir_lookup::BATCH;
use weir_placement::Placement;
use weir_wire::Reason;

/// Packets that are looked up in one go, where the memory can.
const BLOCK: usize = 256;

/// Full connection tracking over any placement: where the connection table has a flow. If it does
/// not, `place` says where a new one goes (a slot of a table, and its number), and the connection
/// table has it from now on.
#[inline(always)]
fn track_all<K: Copy, M: Memory<K>>(
    question: &Question<K>,
    memory: &mut M,
    place: impl FnOnce(u64) -> (u16, Option<u32>),
) -> Decision {
    let starts = question.signals.starts;
    if let Some(backend) = live_connection(question, memory) {
        return Decision::to(backend, Why::Tracked).new_if(starts);
    }
    let (slot, row) = track_new(*question, memory, place);
    let decision = match BackendId::of_slot(slot) {
        None => Decision::drop(Reason::NoBackend, Why::NoBackend).new_if(starts),
        Some(_) => Decision::to(slot, Why::NewlyTracked).new_if(true),
    };
    Decision { row, ..decision }
}

/// Where a flow goes that is not tracked, which it is from now on. By value, and without a decision
/// for an answer, so that on the way of known flows neither has to stand in memory.
#[inline(never)]
fn track_new<K, M: Memory<K>>(
    question: Question<K>,
    memory: &mut M,
    place: impl FnOnce(u64) -> (u16, Option<u32>),
) -> (u16, Option<u32>) {
    let (slot, row) = place(question.hash);
    let backend = BackendId::of_slot(slot);
    match backend.and_then(|backend| Some((backend, memory.incarnation(backend)?))) {
        None => (NO_BACKEND, row),
        Some((backend, incarnation)) => {
            memory.track(&question, TrackedFlow { backend: backend.get(), incarnation });
            (slot, row)
        }
    }
}

/// A burst of packets, all of which ask the connection table.
#[inline(always)]
fn track_burst<K: Key, M: Memory<K>>(
    table: &impl Decide<K>,
    keys: &[K],
    out: &mut [u16],
    memory: &mut M,
) {
    assert_eq!(keys.len(), out.len(), "one answer per packet");
    for (at, answers) in (0..).step_by(BLOCK).zip(out.chunks_mut(BLOCK)) {
        let block = &keys[at..at + answers.len()];
        match memory.connections(block, answers) {
            None => return one_by_one(table, keys, out, memory),
            Some(true) => {}
            Some(false) => fill_in(table, block, answers, memory),
        }
    }
}

/// The packets of a block that were not found, in their order.
#[cold]
fn fill_in<K: Key, M: Memory<K>>(
    table: &impl Decide<K>,
    keys: &[K],
    out: &mut [u16],
    memory: &mut M,
) {
    let mut placed = false;
    for (key, out) in keys.iter().zip(out) {
        let unknown = *out == NO_CONNECTION;
        if unknown || M::SHADOWS && placed {
            let question = Question::later(*key, key.hash(table.hash_key()));
            *out = table.decide(&question, memory).slot();
            placed = true;
        }
    }
}

/// The lines of the next packets are asked for before these are read.
#[inline(always)]
fn one_by_one<K: Key, M: Memory<K>>(
    table: &impl Decide<K>,
    keys: &[K],
    out: &mut [u16],
    memory: &mut M,
) {
    let hash_key = *table.hash_key();
    let fetch = |keys: &[K], memory: &M| {
        let mut hashes = [0; BATCH];
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = key.hash(&hash_key);
            memory.prefetch_connection(*hash);
        }
        hashes
    };
    let mut hashes = fetch(&keys[..BATCH.min(keys.len())], memory);
    for (at, out) in (0..).step_by(BATCH).zip(out.chunks_mut(BATCH)) {
        let (now, later) = keys[at..].split_at(out.len());
        let next = fetch(&later[..BATCH.min(later.len())], memory);
        for ((out, key), &hash) in out.iter_mut().zip(now).zip(&hashes) {
            *out = table.decide(&Question::later(*key, hash), memory).slot();
        }
        hashes = next;
    }
}

/// Full connection tracking over a placement that is no published table.
#[derive(Clone, Debug)]
pub struct Tracking<P> {
    key: HashKey,
    /// Where new flows go.
    pub placement: P,
}

impl<P> Tracking<P> {
    /// Flows are hashed under `key`.
    pub fn new(key: HashKey, placement: P) -> Self {
        Self { key, placement }
    }
}

impl<K: Key, P: Placement> Decide<K> for Tracking<P> {
    #[inline(always)]
    fn hash_key(&self) -> &HashKey {
        &self.key
    }

    #[inline(always)]
    fn decide<M: Memory<K>>(&self, question: &Question<K>, memory: &mut M) -> Decision {
        let place = |hash| (self.placement.lookup(hash).unwrap_or(NO_BACKEND), None);
        track_all(question, memory, place)
    }

    #[inline(always)]
    fn decide_burst<M: Memory<K>>(&self, keys: &[K], out: &mut [u16], memory: &mut M) {
        track_burst(self, keys, out, memory);
    }

    /// Nothing: only first packets read the placement.
    fn bytes(&self) -> usize {
        0
    }
}

impl<K: Key> Decide<K> for Table<Rows<Method>> {
    #[inline(always)]
    fn hash_key(&self) -> &HashKey {
        &self.header().key
    }

    #[inline(always)]
    fn decide<M: Memory<K>>(&self, question: &Question<K>, memory: &mut M) -> Decision {
        track_all(question, memory, |hash| {
            let row = self.body().row(hash);
            (self.body().at(row), Some(row))
        })
    }

    #[inline(always)]
    fn decide_burst<M: Memory<K>>(&self, keys: &[K], out: &mut [u16], memory: &mut M) {
        track_burst(self, keys, out, memory);
    }

    fn bytes(&self) -> usize {
        self.row_bytes()
    }
}
