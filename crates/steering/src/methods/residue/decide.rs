//! The lookup face of residue over its published table.

use super::body::{Body, MARK};
use crate::decide::{Decide, Decision, HASHED, Question, Signals, Why, hash_burst};
use crate::ids::BackendId;
use crate::memory::{EventKind, Memory};
use crate::rows::another_row;
use crate::table::{self, Flags, HEADER_BYTES, NO_BACKEND, SLOT_BACKEND, Table};
use weir_hash::{HashKey, Key};
use weir_wire::Reason;

impl Table<Body> {
    /// Rows with exceptions, starts, ends, and any packet while the pending table is in use. By
    /// value, so that on the way of all other packets the question need not stand in memory.
    #[inline(never)]
    fn settle<K, M: Memory<K>>(
        &self,
        row: u16,
        question: Question<K>,
        memory: &mut M,
    ) -> (u16, Why) {
        let (flags, question) = (self.header().flags(), &question);
        let Signals { starts, ends, .. } = question.signals;
        let exception = self.body().exception(row, question.hash).and_then(BackendId::new);
        let mut backend = exception.or(BackendId::of_slot(row));
        let mut why = if exception.is_some() { Why::Exception } else { Why::Row };
        let mut note = starts && flags.has(Flags::RECORD);
        let asked = flags.has(Flags::PENDING) || exception.is_some();
        if let Some(known) = asked.then(|| memory.pending(question)).flatten() {
            (backend, why, note) = (Some(known), Why::Pending, false);
        } else if starts && flags.has(Flags::FROZEN) {
            return (NO_BACKEND, Why::InTransition);
        } else if let Some(at) = exception
            && starts
            && memory.is_down(at)
        {
            match memory.pinned(question) {
                Some(known) => (backend, why) = (Some(known), Why::Pinned),
                // The exception would lead its later packets back: it has to be noted.
                None => (backend, why, note) = (BackendId::of_slot(row), Why::PlacedAgain, true),
            }
        } else if let Some(down) = backend
            && exception.is_none()
            && starts
            && flags.has(Flags::PENDING)
            && memory.is_down(down)
        {
            // No table may have been published that says so.
            let other = |hash| {
                let at = self.body().row(hash);
                (BackendId::of_slot(self.body().rows()[at as usize]), at)
            };
            let other = another_row(&self.header().key, question.hash, other, memory);
            backend = other.map_or(backend, |(other, _)| Some(other));
            (why, note) = (Why::PlacedAgain, true);
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
        if ends {
            memory.report(question, backend, EventKind::End);
        }
        (backend.get(), why)
    }
}

/// Calls `visit` with the number of each bit that is set.
#[inline(always)]
fn each_bit(mut bits: u64, mut visit: impl FnMut(usize)) {
    while bits != 0 {
        visit(bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}

impl Table<Body> {
    /// Of the rows of a burst's flows, takes the marks off, and lets `settle` say where the exceptions go.
    /// The flags of all marked rows are asked for first, and then the lines of those that may be exceptions.
    #[inline]
    fn except(&self, hashes: &[u64], rows: &mut [u16], mut settle: impl FnMut(usize, u16) -> u16) {
        let body = self.body();
        let mut marked = 0u64;
        for (at, row) in rows.iter().enumerate() {
            marked |= u64::from(row & MARK != 0) << at;
        }
        each_bit(marked, |at| body.fetch_flags(hashes[at]));
        let mut flagged = 0;
        each_bit(marked, |at| {
            if body.fetch_line(hashes[at]) {
                flagged |= 1u64 << at;
            } else {
                rows[at] &= SLOT_BACKEND;
            }
        });
        each_bit(flagged, |at| rows[at] = settle(at, rows[at]) & SLOT_BACKEND);
    }
}

impl<K: Key> Decide<K> for Table<Body> {
    #[inline(always)]
    fn hash_key(&self) -> &HashKey {
        &self.header().key
    }

    #[inline(always)]
    fn decide<M: Memory<K>>(&self, question: &Question<K>, memory: &mut M) -> Decision {
        let at = self.body().row(question.hash);
        let (row, flags) = (self.body().rows()[at as usize], self.header().flags());
        let Signals { starts, ends, .. } = question.signals;
        if flags.has(Flags::MARK) && !starts {
            memory.mark(question);
        }
        let plain = row & MARK == 0 && row != NO_BACKEND && !starts && !ends;
        let (slot, why) = if plain && !flags.has(Flags::PENDING) {
            (row & SLOT_BACKEND, Why::Row)
        } else {
            self.settle(row, *question, memory)
        };
        let decision = match why {
            Why::NoBackend => Decision::drop(Reason::NoBackend, why),
            Why::PendingFull => Decision::drop(Reason::PendingFull, why),
            Why::InTransition => Decision::drop(Reason::InTransition, why),
            _ => Decision::to(slot, why),
        };
        decision.new_if(starts).by_row(at)
    }

    #[inline]
    fn decide_burst<M: Memory<K>>(&self, keys: &[K], out: &mut [u16], memory: &mut M) {
        assert_eq!(keys.len(), out.len(), "one answer per packet");
        let mut hashes = [0; HASHED];
        for (keys, out) in keys.chunks(HASHED).zip(out.chunks_mut(HASHED)) {
            hash_burst(&self.header().key, keys, &mut hashes);
            let (hashes, flags) = (&hashes[..keys.len()], self.header().flags());
            if flags.has(Flags::MARK) {
                memory.fetch_marks(hashes);
            }
            let mut all = 0;
            for (out, hash) in out.iter_mut().zip(hashes) {
                *out = self.body().rows()[self.body().row(*hash) as usize];
                all |= *out;
            }
            let later = |(key, hash): (&K, &u64)| Question::later(*key, *hash);
            if flags.has(Flags::MARK) {
                memory.mark_burst(keys, hashes);
            }
            let flows = keys.iter().zip(hashes);
            if flags.has(Flags::PENDING) {
                for (flow, out) in flows.zip(out) {
                    *out = self.settle(*out, later(flow), memory).0;
                }
            } else if all & MARK != 0 {
                self.except(hashes, out, |at, row| {
                    self.settle(row, later((&keys[at], &hashes[at])), memory).0
                });
            }
        }
    }

    fn bytes(&self) -> usize {
        HEADER_BYTES + table::Body::bytes(self.body())
    }
}
