//! The lookup face of tracked; the twin of `bpf/methods/tracked.h`.

use super::Method;
use crate::decide::{Decide, Decision, Question, Why};
use crate::ids::BackendId;
use crate::memory::{Memory, NO_CONNECTION, TrackedFlow, live_connection};
use crate::rows::{Rows, another_row};
use crate::schedule::{pick, recount};
use crate::table::{Flags, NO_BACKEND, Table};
use weir_hash::{HashKey, Key};
use weir_lookup::BATCH;
use weir_placement::Placement;
use weir_wire::Reason;

/// Packets that are looked up in one go, where the memory can.
const BLOCK: usize = 256;

/// The slot that a new flow gets, the row if it came from one, and why.
type Placed = (u16, Option<u32>, Why);

/// Full connection tracking over any placement: where the connection table has a flow. If it does
/// not, `place` says where a new one goes, and the connection table has it from now on. `flags` are
/// those of the published table.
#[inline(always)]
fn track_all<K: Copy, M: Memory<K>>(
    question: &Question<K>,
    memory: &mut M,
    flags: Flags,
    place: impl FnOnce(&Question<K>, &mut M) -> Placed,
) -> Decision {
    let starts = question.signals.starts;
    if let Some(backend) = live_connection(question, memory) {
        let keeps_count = M::ENDS || flags.has(Flags::COUNTS);
        if keeps_count && (starts || question.signals.ends) {
            recount(question, memory, flags);
        }
        return Decision::to(backend.get(), Why::Tracked).new_if(starts);
    }
    let (slot, row, why) = track_new(*question, memory, flags, place);
    let decision = match why {
        Why::NoBackend => Decision::drop(Reason::NoBackend, why).new_if(starts),
        Why::PendingFull => Decision::drop(Reason::PendingFull, why).new_if(starts),
        Why::UnknownQuote => Decision::drop(Reason::UnknownQuote, why),
        _ => Decision::to(slot, why).new_if(true),
    };
    Decision { row, ..decision }
}

/// Where a flow goes that is not tracked, which it is from now on. By value, and without a decision
/// for an answer, so that on the way of known flows neither has to stand in memory.
///
/// While the service is given a table of another method, the flow is noted as pending besides; and
/// after that, one that began under the former method is found there.
#[inline(never)]
fn track_new<K, M: Memory<K>>(
    question: Question<K>,
    memory: &mut M,
    flags: Flags,
    place: impl FnOnce(&Question<K>, &mut M) -> Placed,
) -> Placed {
    let asked = flags.has(Flags::PENDING);
    let pending = asked.then(|| memory.pending(&question)).flatten();
    let (slot, row, why) = match pending {
        Some(backend) => (backend.get(), None, Why::Pending),
        None if question.signals.quoted => return (NO_BACKEND, None, Why::UnknownQuote),
        None => place(&question, memory),
    };
    let backend = BackendId::of_slot(slot);
    let Some((backend, incarnation)) =
        backend.and_then(|backend| Some((backend, memory.incarnation(backend)?)))
    else {
        return (NO_BACKEND, row, Why::NoBackend);
    };
    let note = pending.is_none() && flags.has(Flags::RECORD);
    if note && !memory.note_pending(&question, backend) {
        return (NO_BACKEND, row, Why::PendingFull);
    }
    let open = flags.has(Flags::COUNTS) && !question.signals.ends;
    memory.track(&question, TrackedFlow { open, ..TrackedFlow::new(backend, incarnation) });
    if open {
        memory.count(backend, true);
    }
    (slot, row, why)
}

impl Table<Rows<Method>> {
    /// Where a new flow goes. What ends a flow that nobody knows begins none, and takes nobody's turn.
    fn place<K, M: Memory<K>>(&self, question: &Question<K>, memory: &mut M) -> Placed {
        let (header, hash) = (self.header(), question.hash);
        let flags = header.flags();
        if flags.0 & Flags::SCHEDULER != 0 && !question.signals.ends {
            let picked = pick(flags, &header.key, question, self.body().rows(), memory);
            return (BackendId::to_slot(picked), None, Why::Scheduled);
        }
        let row = self.body().row(hash);
        let slot = self.body().at(row);
        if BackendId::of_slot(slot).is_none_or(|id| !memory.is_down(id)) {
            return (slot, Some(row), Why::NewlyTracked);
        }
        let other = |hash| {
            let row = self.body().row(hash);
            (BackendId::of_slot(self.body().at(row)), row)
        };
        match another_row(&self.header().key, hash, other, memory) {
            Some((backend, row)) => (backend.get(), Some(row), Why::NewlyTracked),
            None => (slot, Some(row), Why::NewlyTracked),
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
        let place = |question: &Question<K>, _: &mut M| {
            let slot = self.placement.lookup(question.hash).unwrap_or(NO_BACKEND);
            (slot, None, Why::NewlyTracked)
        };
        track_all(question, memory, Flags::default(), place)
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
        let flags = self.header().flags();
        track_all(question, memory, flags, |question, memory| self.place(question, memory))
    }

    #[inline(always)]
    fn decide_burst<M: Memory<K>>(&self, keys: &[K], out: &mut [u16], memory: &mut M) {
        track_burst(self, keys, out, memory);
    }

    fn bytes(&self) -> usize {
        self.row_bytes()
    }
}
