//! A balancer's part of a change.

use super::exceptions::Flow;
use super::message::{Answer, Order, Routes, RowSet, Work};
use super::table::Published;
use crate::decide::{Decide, Decision, Question, Signals, Why};
use crate::ids::BackendId;
use crate::memory::Memory;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_hash::HashKey;
use weir_wire::Reason;

/// What a packet's program reads, at once: the tables and the marks of the change under way.
#[derive(Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Gate<T> {
    /// The table in force.
    pub table: T,
    /// Until flows may start again: the table before it.
    previous: Option<T>,
    /// The next table, as far as it is known.
    prepared: Option<T>,
    rows: RowSet,
    record: bool,
    frozen: bool,
    hold: bool,
    /// Pending flows exist, or may.
    pending: bool,
    /// Frozen without knowing the table before: every row counts as open.
    everywhere: bool,
}

impl<T> Gate<T> {
    fn new(table: T, rows: RowSet) -> Self {
        Self {
            table,
            previous: None,
            prepared: None,
            rows,
            record: false,
            frozen: false,
            hold: false,
            pending: false,
            everywhere: false,
        }
    }

    /// Whether a change is under way, so that packets need more than the table.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.record || self.pending || self.hold
    }

    /// Whether no flow may start in the rows that change hands.
    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Decides a packet: [`Decide::decide`] for any table that can be asked for its routes. The
    /// memory is asked for pending flows, and told of those that start in the open rows.
    pub fn decide<K, M: Memory<K>>(&self, question: &Question<K>, memory: &mut M) -> Decision
    where
        T: Routes<K>,
    {
        let (flow, starts) = (&question.key, question.signals.starts);
        if self.pending
            && let Some(backend) = memory.pending(question)
        {
            return Decision::to(backend.get(), Why::Pending).new_if(starts);
        }
        let exception = self.table.exception(flow);
        let mut backend = exception.unwrap_or_else(|| self.table.points_at(flow));
        let mut why = if exception.is_some() { Why::Exception } else { Why::Row };
        if self.hold
            && let Some(known) = self.prepared.as_ref().and_then(|next| next.exception(flow))
        {
            // It may have started before this table was in force.
            (backend, why) = (known, Why::Prepared);
        }
        let mut note = false;
        if self.is_open() && self.concerns(flow, exception.is_some()) {
            let known = exception.is_some() && !self.is_leaving(flow) || self.is_prepared(flow);
            if !known && (self.frozen && starts || self.hold && !starts) {
                return Decision::drop(Reason::InTransition, Why::InTransition).new_if(starts);
            }
            note = starts && self.record;
        }
        let Some(backend) = BackendId::of_slot(backend) else {
            return Decision::drop(Reason::NoBackend, Why::NoBackend).new_if(starts);
        };
        // Before the packet leaves.
        if note && !memory.note_pending(question, backend) {
            return Decision::drop(Reason::PendingFull, Why::PendingFull).new_if(starts);
        }
        Decision::to(backend.get(), why).new_if(starts).by_row(self.table.row(flow))
    }

    /// Whether the change may route the flow elsewhere: its row is open, or it is or was an
    /// exception (which may leave because its connection has ended).
    fn concerns<K>(&self, flow: &K, exception: bool) -> bool
    where
        T: Routes<K>,
    {
        exception
            || self.everywhere
            || self.rows.contains(self.table.row(flow))
            || self.previous.as_ref().is_some_and(|previous| previous.exception(flow).is_some())
    }

    /// An exception of the table in force that the next one may not have: while it is frozen, a
    /// flow must not start on the strength of it.
    fn is_leaving<K>(&self, flow: &K) -> bool
    where
        T: Routes<K>,
    {
        self.previous.is_none() && !self.everywhere && !self.is_prepared(flow)
    }

    fn is_prepared<K>(&self, flow: &K) -> bool
    where
        T: Routes<K>,
    {
        self.prepared.as_ref().is_some_and(|next| next.exception(flow).is_some())
    }
}

impl<K: Flow> Decide<K> for Gate<Arc<Published<K>>> {
    fn hash_key(&self) -> &HashKey {
        self.table.table.key()
    }

    fn decide<M: Memory<K>>(&self, question: &Question<K>, memory: &mut M) -> Decision {
        if self.is_open() {
            self.decide(question, memory)
        } else {
            self.table.table.decide(question, memory)
        }
    }

    fn decide_burst<M: Memory<K>>(&self, keys: &[K], out: &mut [u16], memory: &mut M) {
        if !self.is_open() {
            return self.table.table.decide_burst(keys, out, memory);
        }
        assert_eq!(keys.len(), out.len(), "one answer per packet");
        for (key, out) in keys.iter().zip(out) {
            let question = Question::later(*key, key.hash(self.table.table.key()));
            *out = self.decide(&question, memory).slot();
        }
    }

    fn bytes(&self) -> usize {
        Decide::<K>::bytes(&self.table.table)
    }
}

/// The pending flows of a balancer as the memory of its decisions.
#[derive(Debug)]
pub struct PendingFlows<'a, K>(pub &'a mut BTreeMap<K, u16>);

impl<K: Copy + Ord> Memory<K> for PendingFlows<'_, K> {
    fn pending(&mut self, question: &Question<K>) -> Option<BackendId> {
        self.0.get(&question.key).copied().and_then(BackendId::new)
    }

    fn note_pending(&mut self, question: &Question<K>, backend: BackendId) -> bool {
        self.0.insert(question.key, backend.get());
        true
    }
}

/// A balancer: pure, driven by orders, packets and the end of grace periods.
#[derive(Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct BalancerNode<K, T> {
    /// Counts its starts, and the ends of its leases.
    incarnation: u32,
    gate: Option<Gate<T>>,
    pending: BTreeMap<K, u16>,
    epoch: u64,
    /// The next order of the epoch.
    next: u32,
    /// The answer to the last order, and whether its grace period is over.
    answer: Option<Answer<K, T>>,
    waits: bool,
    /// The order asked for the pending flows.
    gathers: bool,
}

impl<K: Copy + Ord, T: Routes<K> + Clone> BalancerNode<K, T> {
    /// A balancer that has just started. It forwards nothing until it is given a table.
    /// `incarnation` is higher than at its last start.
    pub fn new(incarnation: u32) -> Self {
        Self {
            incarnation,
            gate: None,
            pending: BTreeMap::new(),
            epoch: 0,
            next: 0,
            answer: None,
            waits: false,
            gathers: false,
        }
    }

    /// Counts its starts, and the ends of its leases. As long as there is no table, it is to be
    /// told to the coordinator ([`Coordinator::hello`](super::Coordinator::hello)).
    pub fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// What packets are decided by; `None` if there is no table.
    pub fn gate(&self) -> Option<&Gate<T>> {
        self.gate.as_ref()
    }

    /// The epoch, and the number of the order that comes next.
    pub fn position(&self) -> (u64, u32) {
        (self.epoch, self.next)
    }

    /// Epoch and number of the order that a grace period is needed for.
    pub fn waits_for_grace(&self) -> Option<(u64, u32)> {
        self.waits.then(|| (self.epoch, self.next - 1))
    }

    /// Flows that have started since *record*, with their backends.
    pub fn pending(&self) -> &BTreeMap<K, u16> {
        &self.pending
    }

    /// Decides a packet with what is in force now, and notes it if need be. `starts` says that the
    /// packet may start a flow (a SYN; for UDP, a flow not seen recently).
    pub fn packet(&mut self, flow: &K, starts: bool) -> Decision {
        let signals = if starts { Signals::FIRST } else { Signals::LATER };
        // The table hashes for itself.
        let question = Question { signals, ..Question::later(*flow, 0) };
        match &self.gate {
            None => Decision::drop(Reason::NoTable, Why::NoTable).new_if(starts),
            Some(gate) => gate.decide(&question, &mut PendingFlows(&mut self.pending)),
        }
    }

    /// Notes a flow that starts.
    pub fn note(&mut self, flow: K, backend: u16) {
        self.pending.insert(flow, backend);
    }

    /// A time limit: the balancer has heard nothing for as long as the coordinator waits before it
    /// goes on without it. It forwards nothing until it is given a table again.
    pub fn lease_ended(&mut self) {
        self.gate = None;
        self.pending.clear();
        self.incarnation += 1;
        (self.answer, self.waits) = (None, false);
    }

    /// Carries out an order. Returns the answer if it has been carried out already; otherwise
    /// it comes from [`grace_ended`](Self::grace_ended). Orders that are late are ignored.
    /// So are those to another incarnation: a late order must not give a table of yesterday to a
    /// balancer that has just started.
    pub fn receive(&mut self, order: &Order<T>) -> Option<Answer<K, T>> {
        if order.incarnation != self.incarnation && !matches!(order.work, Work::Report) {
            return None;
        }
        if (order.epoch, order.step + 1) == (self.epoch, self.next) {
            return if self.waits { None } else { self.answer.clone() };
        }
        let follows = order.epoch == self.epoch && order.step == self.next && self.next > 0;
        let begins = order.epoch > self.epoch && order.step == 0;
        if !follows && !begins || follows && (self.waits || self.answer.is_none()) {
            return None;
        }
        if !self.carry_out(&order.work) {
            return None;
        }
        (self.epoch, self.next, self.waits) = (order.epoch, order.step + 1, true);
        self.gathers = matches!(order.work, Work::Gather | Work::Freeze);
        let state = match order.work {
            Work::Report => self.gate.as_ref().map(|gate| (gate.table.clone(), gate.rows.clone())),
            _ => None,
        };
        let &Order { epoch, step, .. } = order;
        let incarnation = self.incarnation;
        self.answer = Some(Answer { epoch, step, incarnation, pending: Vec::new(), state });
        None
    }

    /// Every packet that had begun when an order was carried out is decided: the answer to it.
    /// `None` if another order has come since.
    pub fn grace_ended(&mut self, epoch: u64, step: u32) -> Option<Answer<K, T>> {
        if self.waits_for_grace() != Some((epoch, step)) {
            return None;
        }
        self.waits = false;
        if let Some(answer) = &mut self.answer
            && self.gathers
        {
            answer.pending = self.pending.iter().map(|(&flow, &backend)| (flow, backend)).collect();
        }
        self.answer.clone()
    }

    /// False if the order needs a table and there is none.
    fn carry_out(&mut self, work: &Work<T>) -> bool {
        match work {
            Work::Report => return true,
            Work::Open { base, rows, dead } => {
                self.forget_lost(dead);
                // Another round of the same change does not end what holds back.
                let same = |gate: &Gate<T>| gate.table.generation() == base.generation();
                let hold = self.gate.as_ref().is_some_and(|gate| gate.hold && same(gate));
                self.gate = Some(Gate {
                    record: true,
                    pending: true,
                    hold,
                    ..Gate::new(base.clone(), rows.clone())
                });
                return true;
            }
            Work::Commit { next, rows, freeze, dead } => {
                self.forget_lost(dead);
                self.commit(next, rows, *freeze);
                return true;
            }
            _ => {}
        }
        let Some(gate) = &mut self.gate else {
            return false;
        };
        match work {
            Work::Prepare { next, hold } => {
                gate.prepared = Some(next.clone());
                gate.hold = *hold;
            }
            Work::Freeze => gate.frozen = true,
            Work::Stop => {
                (gate.record, gate.frozen, gate.everywhere) = (false, false, false);
                gate.previous = None;
            }
            Work::Clear => {
                (gate.pending, gate.hold, gate.rows) = (false, false, RowSet::default());
                self.pending.clear();
            }
            _ => {}
        }
        true
    }

    fn forget_lost(&mut self, dead: &[u16]) {
        self.pending.retain(|_, backend| !dead.contains(backend));
    }

    fn commit(&mut self, next: &T, rows: &RowSet, freeze: bool) {
        let before = self.gate.take();
        let same = |gate: &Gate<T>| gate.table.generation() == next.generation();
        let mut gate = Gate::new(next.clone(), rows.clone());
        (gate.record, gate.pending, gate.frozen) = (true, true, freeze);
        match before {
            // An order repeated by a restarted coordinator.
            Some(before) if same(&before) => {
                (gate.previous, gate.everywhere) = (before.previous, before.everywhere);
                gate.hold = before.hold;
            }
            Some(before) => {
                gate.hold = before.hold;
                // Two tables in one window (a backend died in it): one of them is not at hand.
                gate.everywhere = before.everywhere || before.previous.is_some() && freeze;
                gate.previous = freeze.then_some(before.table);
            }
            None => gate.everywhere = freeze,
        }
        self.gate = Some(gate);
    }
}
