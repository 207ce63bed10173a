//! The lookup face of JET over its published table.

use super::table::{ASK, Body, TRACK};
use crate::decide::{Decide, Decision, Question, Why};
use crate::ids::BackendId;
use crate::memory::{Memory, TrackedFlow, counts};
use crate::table::{self, HEADER_BYTES, SLOT_BACKEND, Table};
use weir_hash::{HashKey, Key};
use weir_wire::Reason;

impl Table<Body> {
    /// A packet of a row whose flows may be in the connection table.
    ///
    /// A first packet that does not follow an entry, which an earlier connection with the same ports
    /// has left, replaces it: the packets after it would follow it, once the backend is no longer
    /// down for them.
    #[inline(never)]
    fn ask<K, M: Memory<K>>(&self, question: Question<K>, row: u32, memory: &mut M) -> (u16, Why) {
        let known = memory.connection(&question);
        if let Some(known) = known
            && counts(known, &question, memory)
        {
            return (known.backend.get(), Why::Tracked);
        }
        let (owner, start) =
            (self.body().owners()[row as usize], self.body().starts()[row as usize]);
        let slot = if question.signals.starts { start } else { owner } & SLOT_BACKEND;
        let Some(backend) = BackendId::of_slot(slot) else {
            return (slot, Why::NoBackend);
        };
        let remembers = start & TRACK != 0 || known.is_some();
        if remembers && question.signals.quoted {
            return (slot, Why::UnknownQuote);
        }
        if remembers && let Some(incarnation) = memory.incarnation(backend) {
            memory.track(&question, TrackedFlow::new(backend, incarnation));
            return (slot, Why::NewlyTracked);
        }
        (slot, Why::Row)
    }
}

impl<K: Key> Decide<K> for Table<Body> {
    #[inline(always)]
    fn hash_key(&self) -> &HashKey {
        &self.header().key
    }

    #[inline(always)]
    fn decide<M: Memory<K>>(&self, question: &Question<K>, memory: &mut M) -> Decision {
        let row = self.body().row(question.hash);
        let owner = self.body().owners()[row as usize];
        let (slot, why) =
            if owner & ASK == 0 { (owner, Why::Row) } else { self.ask(*question, row, memory) };
        let decision = match why {
            Why::UnknownQuote => Decision::drop(Reason::UnknownQuote, why),
            _ => Decision::to(slot, why),
        };
        decision.by_row(row).new_if(question.signals.starts)
    }

    #[inline(always)]
    fn may_remember(&self, question: &Question<K>) -> bool {
        self.body().owners()[self.body().row(question.hash) as usize] & ASK != 0
    }

    fn bytes(&self) -> usize {
        HEADER_BYTES + table::Body::bytes(self.body())
    }
}
