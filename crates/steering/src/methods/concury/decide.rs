//! The lookup face of Concury; the twin of `bpf/methods/concury.h`.

use super::table::{Body, table_bytes};
use crate::decide::{Decide, Decision, HASHED, Question, Signals, Why, hash_burst};
use crate::ids::BackendId;
use crate::memory::{EventKind, Memory};
use crate::table::{Flags, NO_BACKEND, SLOT_RESERVED, Table};
use weir_hash::{HashKey, Key};
use weir_wire::Reason;

/// Dcodes, or rows, that a new flow tries after it fell on one that takes none. With half of them such,
/// all tries fail once in 16 million times.
pub const SECOND_TRIES: usize = 24;
/// Added to a hash before it is mixed again for the next try.
pub const NEXT_TRY: u64 = 0x9e37_79b9_7f4a_7c15;

impl Table<Body> {
    /// Backend of a new flow that fell on the Dcode of a backend that takes none: further Dcodes from
    /// its hash.
    fn place_again<K, M: Memory<K>>(&self, hash: u64, memory: &mut M) -> Option<BackendId> {
        let mut hash = hash;
        for _ in 0..SECOND_TRIES {
            hash = self.header().key.mix(hash.wrapping_add(NEXT_TRY));
            let entry = self.body().slot_by(hash);
            let backend = BackendId::of_slot(entry);
            if entry & SLOT_RESERVED == 0 && !backend.is_some_and(|id| memory.is_down(id)) {
                return backend;
            }
        }
        self.body().fallback()
    }

    /// The decision for a packet whose Dcode leads to this slot.
    #[inline(always)]
    fn settle<K: Copy, M: Memory<K>>(
        &self,
        entry: u16,
        question: &Question<K>,
        memory: &mut M,
    ) -> Decision {
        let Signals { starts, ends, .. } = question.signals;
        // Below NO_BACKEND there is neither the reserved bit nor the lack of a backend.
        if entry < NO_BACKEND && !starts && !ends && !self.header().flags().has(Flags::PENDING) {
            return Decision::to(entry, Why::Row);
        }
        let (slot, why) = self.settle_slowly(entry, *question, memory);
        let decision = match why {
            Why::NoBackend => Decision::drop(Reason::NoBackend, why),
            Why::PendingFull => Decision::drop(Reason::PendingFull, why),
            Why::InTransition => Decision::drop(Reason::InTransition, why),
            _ => Decision::to(slot, why),
        };
        decision.new_if(starts)
    }

    /// Starts, ends, reserved Dcodes, and any packet while the pending table is in use. By value,
    /// and without a decision for an answer, so that on the way of all other packets neither has
    /// to stand in memory.
    #[inline(never)]
    fn settle_slowly<K, M: Memory<K>>(
        &self,
        entry: u16,
        question: Question<K>,
        memory: &mut M,
    ) -> (u16, Why) {
        let (flags, question) = (self.header().flags(), &question);
        let starts = question.signals.starts;
        let reserved = entry & SLOT_RESERVED != 0;
        let mut backend = BackendId::of_slot(entry);
        let mut why = if reserved { Why::Reserved } else { Why::Row };
        let mut note = starts && flags.has(Flags::RECORD);
        let asked = flags.has(Flags::PENDING) || reserved;
        // While packets ask for pending flows anyway, a backend that is down gets no new one, even
        // if no table can be published that says so.
        let mut avoid = || {
            let down = |backend| memory.is_down(backend);
            reserved || flags.has(Flags::PENDING) && backend.is_some_and(down)
        };
        let avoid = starts && avoid();
        if let Some(known) = asked.then(|| memory.pending(question)).flatten() {
            (backend, why, note) = (Some(known), Why::Pending, false);
        } else if starts && flags.has(Flags::FROZEN) {
            return (NO_BACKEND, Why::InTransition);
        } else if reserved && flags.has(Flags::EXACT) {
            match memory.pinned(question) {
                // Its later packets would find the pin.
                Some(known) if starts && memory.is_down(known) => {
                    (backend, why, note) =
                        (self.place_again(question.hash, memory), Why::PlacedAgain, true);
                }
                Some(known) => (backend, why) = (Some(known), Why::Pinned),
                // Its later packets are placed as this one is, here and at every balancer with this table.
                None => {
                    (backend, why) = (self.place_again(question.hash, memory), Why::PlacedAgain);
                }
            }
        } else if avoid {
            if let Some(known) = memory.pinned(question) {
                (backend, why) = (Some(known), Why::Pinned);
            } else if flags.has(Flags::MARK)
                && memory.is_armed(question)
                && backend.is_some_and(|backend| !memory.is_down(backend))
            {
                // A connection lives there: whoever sent this SYN must not move it.
                why = Why::Reserved;
            } else {
                (backend, why, note) =
                    (self.place_again(question.hash, memory), Why::PlacedAgain, true);
            }
        }
        let Some(backend) = backend else {
            return (NO_BACKEND, Why::NoBackend);
        };
        if note && !memory.note_pending(question, backend) {
            return (NO_BACKEND, Why::PendingFull);
        }
        if starts {
            memory.report(question, backend, EventKind::Start);
        }
        if question.signals.ends {
            memory.report(question, backend, EventKind::End);
        }
        (backend.get(), why)
    }
}

impl<K: Key> Decide<K> for Table<Body> {
    #[inline(always)]
    fn hash_key(&self) -> &HashKey {
        &self.header().key
    }

    #[inline(always)]
    fn decide<M: Memory<K>>(&self, question: &Question<K>, memory: &mut M) -> Decision {
        let code = self.body().code(question.hash);
        if self.header().flags().has(Flags::MARK) && !question.signals.starts {
            memory.mark(question);
        }
        self.settle(self.body().slot(code), question, memory).by_row(code.cell())
    }

    #[inline]
    fn decide_burst<M: Memory<K>>(&self, keys: &[K], out: &mut [u16], memory: &mut M) {
        assert_eq!(keys.len(), out.len(), "one answer per packet");
        let (slots, mut hashes) = (self.body().slots(), [0; HASHED]);
        for (keys, out) in keys.chunks(HASHED).zip(out.chunks_mut(HASHED)) {
            hash_burst(&self.header().key, keys, &mut hashes);
            let (hashes, flags) = (&hashes[..keys.len()], self.header().flags());
            if flags.has(Flags::MARK) {
                memory.fetch_marks(hashes);
            }
            let mut all = 0;
            let slot = |code: u32| {
                let entry = slots[code as usize & (slots.len() - 1)];
                all |= entry;
                entry
            };
            self.body().codes().lookup_batch_with(hashes, out, |hash| *hash, slot);
            let later = |(key, hash): (&K, &u64)| Question::later(*key, *hash);
            if flags.has(Flags::MARK) {
                memory.mark_burst(keys, hashes);
            }
            // Hardly ever: an update is under way, or a backend of one of these flows drains.
            if flags.has(Flags::PENDING) || all & SLOT_RESERVED != 0 {
                for (flow, out) in keys.iter().zip(hashes).zip(out) {
                    *out = self.settle(*out, &later(flow), memory).slot();
                }
            }
        }
    }

    fn bytes(&self) -> usize {
        table_bytes(self.body())
    }
}
