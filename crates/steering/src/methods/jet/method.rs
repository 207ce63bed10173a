//! Algorithm 1, with the placement asked first.

use super::guide::{Asks, BURST, ByBackend, ByRow, Guide};
use super::warm_up::WarmUp;
use super::{JetError, check_number};
use crate::ConnectionTable;
use crate::connections::Connections;
use crate::decide::{Decide, Decision, Question, Why};
use crate::forwarder::{Parts, steers};
use crate::ids::BackendId;
use crate::memory::{Memory, TrackedFlow};
use crate::table::NO_BACKEND;
use std::time::Duration;
use weir_hash::{HashKey, Key};
use weir_placement::{Candidate, Horizon, HrwTable, Incremental, choose_of_two};

/// What a pass through the connection table did.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Swept {
    /// Flows of the backend that left: inevitably broken.
    pub forgotten: usize,
    /// Flows that need not be tracked any more: safe, and where the placement sends them.
    pub dropped: usize,
    /// Flows that are safe but not where the placement would send them.
    pub strays: usize,
}

/// JET over a [`Guide`]: a placement that knows the horizon, with marks where the connection
/// table has to be asked.
///
/// **The promise.** While backends join only by [`admit`](Self::admit), and no flow is silent for
/// longer than the warm-up period, and the connection table evicts nothing: every packet of a
/// flow goes where its first went, until the flow ends or that backend leaves.
///
/// Under the same conditions the answers are those of the paper's Algorithm 1, packet for packet,
/// and the connection table holds what Algorithm 1's would, but for entries that change no answer
/// (of flows that are safe where they are): [`sweep`](Self::sweep) and whatever includes it drop
/// those. docs/jet.md says what holds in other cases.
///
/// Times are durations since any fixed moment. Changes cost what the placement's do; in addition
/// `retire`, `remove`, `remove_horizon`, `reweight_unforeseen` and `sweep` read the whole
/// connection table and judge each flow once.
#[derive(Clone, Debug)]
pub struct Jet<G, C> {
    table: Guided<G>,
    connections: Connections<C>,
    warm_up: WarmUp,
}

/// The table of JET: a guide, and the key of the flow hash. What is tracked is in the
/// [`Memory`]'s connection table.
#[derive(Clone, Debug)]
pub struct Guided<G> {
    key: HashKey,
    guide: G,
}

/// JET over table-based HRW: a packet of a clean row costs one read of two bytes.
pub type JetTable<C> = Jet<ByRow, C>;

impl<P: Horizon, C: ConnectionTable> Jet<ByBackend<P>, C> {
    /// JET over a placement that holds the first pool (backend numbers below
    /// [`NO_BACKEND`]). Backends on its horizon may join at once: no flow is older.
    pub fn new(placement: P, connections: C, warm_up: Duration) -> Self {
        Self::over(ByBackend::new(placement), connections, warm_up)
    }
}

impl<C: ConnectionTable> JetTable<C> {
    /// The same over a table, with the marks in its rows.
    ///
    /// # Errors
    ///
    /// [`JetError::BackendNumber`].
    pub fn by_row(table: HrwTable, connections: C, warm_up: Duration) -> Result<Self, JetError> {
        Ok(Self::over(ByRow::new(table)?, connections, warm_up))
    }
}

impl<G: Guide, C: ConnectionTable> Jet<G, C> {
    fn over(guide: G, connections: C, warm_up: Duration) -> Self {
        let table = Guided { key: *connections.hash_key(), guide };
        let warm_up = WarmUp::new(warm_up);
        Self { table, connections: Connections(connections), warm_up }
    }

    /// What packets read.
    pub fn table(&self) -> &Guided<G> {
        &self.table
    }

    /// The placement that new flows follow, with the pool and its horizon.
    pub fn placement(&self) -> &G::Placement {
        self.table.guide.placement()
    }

    /// The placement with its marks.
    pub fn guide(&self) -> &G {
        &self.table.guide
    }

    /// The connection table.
    pub fn connections(&self) -> &C {
        &self.connections.0
    }

    /// Announces a backend (ADDHORIZONSERVER). It may join a warm-up period later.
    ///
    /// # Errors
    ///
    /// [`JetError::Pool`], [`JetError::BackendNumber`].
    pub fn add_horizon(&mut self, new: Candidate<'_>, now: Duration) -> Result<(), JetError> {
        check_number(&new)?;
        self.table.guide.change(None, |placement| placement.add_horizon(new))?;
        self.warm_up.announce(new.backend, now);
        Ok(())
    }

    /// Takes a backend off the horizon, for good (REMOVEHORIZONSERVER).
    ///
    /// # Errors
    ///
    /// [`JetError::Pool`].
    pub fn remove_horizon(&mut self, backend: u16) -> Result<Swept, JetError> {
        self.table.guide.change(None, |placement| placement.remove_horizon(backend))?;
        self.warm_up.leave(backend);
        Ok(self.sweep())
    }

    /// Lets a backend of the horizon join (ADDWORKINGSERVER).
    ///
    /// # Errors
    ///
    /// [`JetError::TooEarly`] if it was announced less than the warm-up period ago, or if there
    /// was an unforeseen change since; [`JetError::Pool`].
    pub fn admit(&mut self, backend: u16, now: Duration) -> Result<(), JetError> {
        self.warm_up.check(backend, now)?;
        self.table.guide.change(Some(backend), |placement| placement.admit(backend))?;
        self.warm_up.leave(backend);
        Ok(())
    }

    /// A backend has failed or is taken away, and may come back (REMOVEWORKINGSERVER): it goes to
    /// the horizon, its flows are forgotten. It may join again at once.
    ///
    /// # Errors
    ///
    /// [`JetError::Pool`].
    pub fn retire(&mut self, backend: u16) -> Result<Swept, JetError> {
        self.table.guide.change(None, |placement| placement.retire(backend))?;
        Ok(self.sweep_without(backend))
    }

    /// A working backend is gone for good: [`retire`](Self::retire) and
    /// [`remove_horizon`](Self::remove_horizon) at once.
    ///
    /// # Errors
    ///
    /// [`JetError::Pool`].
    pub fn remove(&mut self, backend: u16) -> Result<Swept, JetError> {
        self.table.guide.change(None, |placement| {
            placement.retire(backend)?;
            placement.remove_horizon(backend)
        })?;
        Ok(self.sweep_without(backend))
    }

    /// Adds a working backend that was not on the horizon. **It breaks the untracked flows that
    /// move to it**: about its share of all flows. Everybody on the horizon warms up again.
    ///
    /// # Errors
    ///
    /// [`JetError::Pool`], [`JetError::BackendNumber`].
    pub fn add_unforeseen(&mut self, new: Candidate<'_>, now: Duration) -> Result<(), JetError> {
        check_number(&new)?;
        self.table.guide.change(Some(new.backend), |placement| placement.add(new))?;
        self.warm_up.disturb(now);
        Ok(())
    }

    /// Changes the weight of a working backend. **It breaks the untracked flows that move.**
    /// Everybody on the horizon warms up again.
    ///
    /// # Errors
    ///
    /// [`JetError::Pool`].
    pub fn reweight_unforeseen(
        &mut self,
        backend: u16,
        weight: u32,
        now: Duration,
    ) -> Result<Swept, JetError> {
        self.table.guide.change(None, |placement| placement.reweight(backend, weight))?;
        self.warm_up.disturb(now);
        Ok(self.sweep())
    }

    /// Drops entries that are not needed any more, and works out anew which packets must ask the
    /// connection table. Answers do not change; packets get cheaper.
    ///
    /// Worth a call now and then after backends have joined.
    pub fn sweep(&mut self) -> Swept {
        self.sweep_without(NO_BACKEND)
    }

    /// [`sweep`](Self::sweep), and forgets the flows of a backend that left.
    fn sweep_without(&mut self, gone: u16) -> Swept {
        let mut swept = Swept::default();
        let key = *self.connections.0.hash_key();
        let guide = &mut self.table.guide;
        guide.clear_marks();
        self.connections.0.retain(|flow, backend| {
            if backend == gone {
                swept.forgotten += 1;
                return false;
            }
            let hash = flow.hash(&key);
            match guide.placement().verdict(hash) {
                Some(verdict) if verdict.may_differ => true,
                Some(verdict) if verdict.backend == backend => {
                    swept.dropped += 1;
                    false
                }
                Some(verdict) => {
                    swept.strays += 1;
                    guide.mark(hash, verdict.backend);
                    true
                }
                None => true,
            }
        });
        swept
    }

    /// Where the *first* packet of a flow goes: to the less loaded of two backends, of which the
    /// placement's is one (JET, section 6.3). `load` is any measure per unit of weight.
    ///
    /// A flow that goes to the other backend is tracked, safe or not: in all about half of the
    /// flows and half of the unsafe rest. Later packets go through [`Steer`](crate::Steer). **A first packet
    /// that is repeated** may find other loads, and an untracked flow then another backend: only
    /// for protocols where the backends' answer decides which copy counts, or where the caller
    /// knows that it is the first.
    pub fn steer_first<L: PartialOrd>(
        &mut self,
        flow: &C::Flow,
        load: impl FnMut(u16) -> L,
    ) -> u16 {
        let hash = flow.hash(self.connections.0.hash_key());
        if let Some(backend) = self.connections.0.get(hash, flow) {
            return backend;
        }
        let Some(choice) = choose_of_two(self.table.guide.placement(), hash, load) else {
            return NO_BACKEND;
        };
        if choice.track {
            self.connections.0.insert(hash, *flow, choice.backend);
            let (backend, ask) = self.table.guide.guide(hash);
            if !ask {
                self.table.guide.mark(hash, backend);
            }
        }
        choice.backend
    }
}

impl<K: Key, G: Guide> Decide<K> for Guided<G> {
    #[inline(always)]
    fn hash_key(&self) -> &HashKey {
        &self.key
    }

    #[inline(always)]
    fn decide<M: Memory<K>>(&self, question: &Question<K>, memory: &mut M) -> Decision {
        let (backend, ask) = self.guide.guide(question.hash);
        let decision =
            if ask { self.ask(question, backend, memory) } else { Decision::to(backend, Why::Row) };
        decision.new_if(question.signals.starts)
    }

    #[inline(always)]
    fn decide_burst<M: Memory<K>>(&self, keys: &[K], out: &mut [u16], memory: &mut M) {
        assert_eq!(keys.len(), out.len(), "one answer per packet");
        for (keys, out) in keys.chunks(BURST).zip(out.chunks_mut(BURST)) {
            self.burst(keys, out, memory);
        }
    }

    #[inline(always)]
    fn may_remember(&self, question: &Question<K>) -> bool {
        self.guide.guide(question.hash).1
    }

    fn bytes(&self) -> usize {
        self.guide.bytes()
    }
}

impl<G: Guide> Guided<G> {
    /// The packet of a flow that may be in the connection table, or has to get there.
    #[inline(always)]
    fn ask<K: Copy, M: Memory<K>>(
        &self,
        question: &Question<K>,
        backend: u16,
        memory: &mut M,
    ) -> Decision {
        match memory.connection(question) {
            Some(tracked) => Decision::to(tracked.backend.get(), Why::Tracked),
            None if self.track(*question, backend, memory) => {
                Decision::to(backend, Why::NewlyTracked)
            }
            None => Decision::to(backend, Why::Row),
        }
    }

    /// Tracks a flow if it is unsafe. By value, and without a decision for an answer, so that on
    /// the way of the other flows neither has to stand in memory.
    #[cold]
    #[inline(never)]
    fn track<K, M: Memory<K>>(&self, question: Question<K>, backend: u16, memory: &mut M) -> bool {
        let verdict = self.guide.placement().verdict(question.hash);
        let unsafe_flow = verdict.is_some_and(|verdict| verdict.may_differ);
        if unsafe_flow && let Some(backend) = BackendId::new(backend) {
            memory.track(&question, TrackedFlow::new(backend, 0));
        }
        unsafe_flow
    }

    #[inline]
    fn burst<K: Key, M: Memory<K>>(&self, keys: &[K], out: &mut [u16], memory: &mut M) {
        let mut hashes = [0; BURST];
        let hashes = &mut hashes[..keys.len()];
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = key.hash(&self.key);
        }
        let mut asks = Asks::default();
        self.guide.guide_batch(hashes, out, &mut asks);
        asks.positions().for_each(|i| memory.prefetch_connection(hashes[i]));
        for i in asks.positions() {
            out[i] = self.ask(&Question::later(keys[i], hashes[i]), out[i], memory).slot();
        }
    }
}

steers!([G: Guide, C: ConnectionTable] Jet<G, C>, C::Flow);

impl<G: Guide, C: ConnectionTable> Parts<C::Flow> for Jet<G, C> {
    type Table = Guided<G>;
    type Memory = Connections<C>;

    #[inline(always)]
    fn with_parts<R>(&mut self, run: impl FnOnce(&Guided<G>, &mut Connections<C>) -> R) -> R {
        run(&self.table, &mut self.connections)
    }

    /// Connection table and marks; in table mode that is all that a packet reads.
    fn bytes(&self) -> usize {
        self.table.guide.bytes() + self.connections.0.bytes()
    }
}
