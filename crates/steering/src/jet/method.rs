//! Algorithm 1, with the placement asked first.

use super::guide::{Asks, BURST, ByBackend, ByRow, Guide};
use super::warm_up::WarmUp;
use super::{JetError, check_number};
use crate::image::NO_BACKEND;
use crate::{ConnectionTable, Steer};
use std::time::Duration;
use weir_lookup::Key;
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
    guide: G,
    connections: C,
    warm_up: WarmUp,
}

/// JET over table-based HRW: a packet of a clean row costs one read of two bytes.
pub type JetTable<C> = Jet<ByRow, C>;

impl<P: Horizon, C: ConnectionTable> Jet<ByBackend<P>, C> {
    /// JET over a placement that holds the first pool (backend numbers below
    /// [`NO_BACKEND`]). Backends on its horizon may join at once: no flow is older.
    pub fn new(placement: P, connections: C, warm_up: Duration) -> Self {
        let guide = ByBackend::new(placement);
        Self { guide, connections, warm_up: WarmUp::new(warm_up) }
    }
}

impl<C: ConnectionTable> JetTable<C> {
    /// The same over a table, with the marks in its rows.
    ///
    /// # Errors
    ///
    /// [`JetError::BackendNumber`].
    pub fn by_row(table: HrwTable, connections: C, warm_up: Duration) -> Result<Self, JetError> {
        let guide = ByRow::new(table)?;
        Ok(Self { guide, connections, warm_up: WarmUp::new(warm_up) })
    }
}

impl<G: Guide, C: ConnectionTable> Jet<G, C> {
    /// The placement.
    pub fn placement(&self) -> &G::Placement {
        self.guide.placement()
    }

    /// The placement with its marks.
    pub fn guide(&self) -> &G {
        &self.guide
    }

    /// The connection table.
    pub fn connections(&self) -> &C {
        &self.connections
    }

    /// Announces a backend (ADDHORIZONSERVER). It may join a warm-up period later.
    ///
    /// # Errors
    ///
    /// [`JetError::Pool`], [`JetError::BackendNumber`].
    pub fn add_horizon(&mut self, new: Candidate<'_>, now: Duration) -> Result<(), JetError> {
        check_number(&new)?;
        self.guide.change(None, |placement| placement.add_horizon(new))?;
        self.warm_up.announce(new.backend, now);
        Ok(())
    }

    /// Takes a backend off the horizon, for good (REMOVEHORIZONSERVER).
    ///
    /// # Errors
    ///
    /// [`JetError::Pool`].
    pub fn remove_horizon(&mut self, backend: u16) -> Result<Swept, JetError> {
        self.guide.change(None, |placement| placement.remove_horizon(backend))?;
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
        self.guide.change(Some(backend), |placement| placement.admit(backend))?;
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
        self.guide.change(None, |placement| placement.retire(backend))?;
        Ok(self.sweep_without(backend))
    }

    /// A working backend is gone for good: [`retire`](Self::retire) and
    /// [`remove_horizon`](Self::remove_horizon) at once.
    ///
    /// # Errors
    ///
    /// [`JetError::Pool`].
    pub fn remove(&mut self, backend: u16) -> Result<Swept, JetError> {
        self.guide.change(None, |placement| {
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
        self.guide.change(Some(new.backend), |placement| placement.add(new))?;
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
        self.guide.change(None, |placement| placement.reweight(backend, weight))?;
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
        let key = *self.connections.hash_key();
        let guide = &mut self.guide;
        guide.clear_marks();
        self.connections.retain(|flow, backend| {
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
    /// flows and half of the unsafe rest. Later packets go through [`Steer`]. **A first packet
    /// that is repeated** may find other loads, and an untracked flow then another backend: only
    /// for protocols where the backends' answer decides which copy counts, or where the caller
    /// knows that it is the first.
    pub fn steer_first<L: PartialOrd>(
        &mut self,
        flow: &C::Flow,
        load: impl FnMut(u16) -> L,
    ) -> u16 {
        let hash = flow.hash(self.connections.hash_key());
        if let Some(backend) = self.connections.get(hash, flow) {
            return backend;
        }
        let Some(choice) = choose_of_two(self.guide.placement(), hash, load) else {
            return NO_BACKEND;
        };
        if choice.track {
            self.connections.insert(hash, *flow, choice.backend);
            let (backend, ask) = self.guide.guide(hash);
            if !ask {
                self.guide.mark(hash, backend);
            }
        }
        choice.backend
    }

    /// The packet of a flow that may be in the connection table, or has to get there.
    #[inline(always)]
    fn ask(&mut self, hash: u64, flow: &C::Flow, backend: u16) -> u16 {
        match self.connections.get(hash, flow) {
            Some(tracked) => tracked,
            None => self.track(hash, flow, backend),
        }
    }

    #[cold]
    #[inline(never)]
    fn track(&mut self, hash: u64, flow: &C::Flow, backend: u16) -> u16 {
        let verdict = self.guide.placement().verdict(hash);
        if verdict.is_some_and(|verdict| verdict.may_differ) {
            self.connections.insert(hash, *flow, backend);
        }
        backend
    }

    fn burst(&mut self, flows: &[C::Flow], out: &mut [u16]) {
        let mut hashes = [0; BURST];
        let hashes = &mut hashes[..flows.len()];
        for (hash, flow) in hashes.iter_mut().zip(flows) {
            *hash = flow.hash(self.connections.hash_key());
        }
        let mut asks = Asks::default();
        self.guide.guide_batch(hashes, out, &mut asks);
        asks.positions().for_each(|i| self.connections.prefetch(hashes[i]));
        for i in asks.positions() {
            out[i] = self.ask(hashes[i], &flows[i], out[i]);
        }
    }
}

impl<G: Guide, C: ConnectionTable> Steer<C::Flow> for Jet<G, C> {
    fn steer(&mut self, flow: &C::Flow) -> u16 {
        let hash = flow.hash(self.connections.hash_key());
        let (backend, ask) = self.guide.guide(hash);
        if ask { self.ask(hash, flow, backend) } else { backend }
    }

    fn steer_batch(&mut self, flows: &[C::Flow], out: &mut [u16]) {
        assert_eq!(flows.len(), out.len(), "one answer per packet");
        for (flows, out) in flows.chunks(BURST).zip(out.chunks_mut(BURST)) {
            self.burst(flows, out);
        }
    }

    fn end(&mut self, flow: &C::Flow) {
        let hash = flow.hash(self.connections.hash_key());
        if self.guide.guide(hash).1 {
            self.connections.remove(hash, flow);
        }
    }

    /// Connection table and marks; in table mode that is all that a packet reads.
    fn bytes(&self) -> usize {
        self.guide.bytes() + self.connections.bytes()
    }
}
