//! A service whose backends' agents say what connections there are (`states = "agents"`).
//!
//! Of a backend that is *told of*, connections are states when its agent says that they are open, and until it
//! says that they have ended. The balancer's own reports of SYNs go aside ([`Young`](super::young::Young)). A
//! backend whose agent says nothing is observed, as all are without agents.

use super::EngineError;
use super::service::{ServiceRuntime, record};
use crate::config::{Limits, Protocol, States};
use crate::store::Op;
use std::collections::HashSet;
use tracing::{debug, info};
use weir_rpc::message::Kind;
use weir_steering::{BackendId, Known, Phase, StateKey};

/// For so long after its SYN a SYN may come again; older connections count as that old.
const SYN_SECONDS: u32 = 130;
/// A report of a SYN that comes so long after the agent has said that its connection is open is about that
/// connection, and only late.
const LATE_SECONDS: u32 = 2;
/// Of `limits.half_open_flows`, those that are kept aside where agents tell: they need to last for handshakes
/// only.
const YOUNG_SHARE: u32 = 16;
const LEAST_YOUNG: u32 = 4096;

/// What became of something that an agent said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Told {
    /// It is known now.
    Taken,
    /// It is another backend's connection, as that one's agent or the balancer's own eyes say.
    Others,
    /// There are too many.
    Beyond,
}

impl ServiceRuntime {
    /// Whether it goes by what agents say. Also while packets still follow another method, whose states the next one is
    /// given; not if that one has none.
    pub fn asks_agents(&self) -> bool {
        self.configured.states == States::Agents
            && self.configured.protocol == Protocol::Tcp
            && self.configured.method.id().needs().states
            && self.in_force.method.id().needs().states
            && self.in_force.affinity == self.configured.affinity
    }

    /// Whether a backend's agent says what connections it has.
    pub fn is_told_of(&self, backend: BackendId) -> bool {
        self.told_of.contains(&backend)
    }

    pub fn set_young(&mut self, limits: &Limits) {
        let budget = (limits.half_open_flows / YOUNG_SHARE).max(LEAST_YOUNG);
        self.young.set_budget(budget as usize);
    }

    /// The build face is another one, or the backends that are told of are.
    pub fn tell_builder(&mut self, now: u32) {
        self.builder.told_of(&self.told_of, now);
    }

    /// An agent says that a connection is open at its backend. `dumped`: it has been for some time.
    ///
    /// # Errors
    /// [`EngineError`], if it cannot be remembered or written down.
    pub fn opened(
        &mut self,
        key: StateKey,
        backend: BackendId,
        dumped: bool,
        now: u32,
    ) -> Result<Told, EngineError> {
        let begun = self.young.get(&key);
        let known = self.builder.known(&key);
        // In step with other balancers, the first packet that went there may have gone by one of those.
        if let Some(begun) = begun
            && begun.backend != backend
            && self.agreed.is_none()
        {
            // The balancer has sent its SYN elsewhere.
            return Ok(Told::Others);
        }
        match known {
            Some(known) if known.backend == backend => {
                self.young.remove(&key);
                if known.phase == Phase::Open {
                    return Ok(Told::Taken);
                }
            }
            // Who is known to be elsewhere, and has not been seen to begin here, is there.
            Some(known)
                if known.phase != Phase::Closing
                    && (begun.is_none() || self.agreed.is_some())
                    && !self.is_dead_in_step(known.backend)
                    && !self.is_led_away(&key, known.backend, backend) =>
            {
                // The end of that one may be on its way: agents are heard in no order.
                if self.agreed.is_some() && !self.claims.insert(key, backend, self.pool.len()) {
                    debug!(backend = backend.get(), "names more of others' than it has room for");
                }
                return Ok(Told::Others);
            }
            Some(_) => {}
            None => {
                if self.is_beyond(&key, backend) {
                    return Ok(Told::Beyond);
                }
            }
        }
        let born = match (known, begun) {
            (_, Some(begun)) if begun.backend == backend => begun.born,
            (Some(known), _) if known.backend == backend => known.born,
            _ if dumped => now.saturating_sub(SYN_SECONDS),
            _ => now,
        };
        self.young.remove(&key);
        self.claims.remove(&key, backend);
        self.builder.adopt(key, Known { backend, phase: Phase::Open, born, seen: now })?;
        self.ended_unremembered(&key);
        if let Some(log) = &mut self.log {
            log.append(&record(Op::Add, &key, Some(backend), now))?;
        }
        Ok(Told::Taken)
    }

    /// In step with other balancers, of two backends whose agents have named the same connection: whether packets go
    /// to the second one by the table that all follow. An agent that makes connections up, and is heard first, takes
    /// none from whoever has them.
    fn is_led_away(&self, key: &StateKey, first: BackendId, second: BackendId) -> bool {
        self.agreed.is_some()
            && self.builder.leads_to(key, second)
            && !self.builder.leads_to(key, first)
    }

    /// Whether there is no room for one more: in all, of its source prefix, or of its backend, which may not
    /// have more than half as long as there are others.
    fn is_beyond(&mut self, key: &StateKey, backend: BackendId) -> bool {
        let open = self.builder.states().saturating_sub(self.half_open.waiting());
        let most = self.most_open();
        let own = self.builder.states_of(backend).unwrap_or(0);
        if open >= most || (self.pool.len() > 1 && own >= most.div_ceil(2)) {
            self.count_beyond(*key);
            return true;
        }
        if self.is_crowded(key) {
            self.count_beyond_prefix(*key);
            return true;
        }
        false
    }

    /// An agent says that a connection has ended.
    ///
    /// # Errors
    /// [`EngineError::Store`].
    pub fn ended(
        &mut self,
        key: &StateKey,
        backend: BackendId,
        kind: Kind,
        now: u32,
    ) -> Result<(), EngineError> {
        self.young.ended(key, backend);
        let Some(known) = self.builder.known(key).filter(|known| known.backend == backend) else {
            self.claims.remove(key, backend);
            self.ended_unremembered(key);
            return Ok(());
        };
        // In step with other balancers it is gone for all at once: each would forget it in a time of its own.
        if kind == Kind::Lingers && self.agreed.is_none() {
            return self.end(key, known, now);
        }
        self.builder.forget(key);
        self.release(key, known);
        let said = self.log_removed(&[*key], now);
        self.give_to_claimant(key, false, now)?;
        said
    }

    /// In step with other balancers: whether all have agreed that a backend is no more, or dead, and no agent is
    /// there that will say that its connections have ended.
    fn is_dead_in_step(&self, backend: BackendId) -> bool {
        let Some(agreed) = &self.agreed else { return false };
        let Some(member) = self.by_id(backend) else { return true };
        if self.heard.contains(&backend) {
            return false;
        }
        let share = agreed.iter().find(|share| share.name == member.wanted.name);
        share.is_none_or(|share| share.down)
    }

    /// A connection is nobody's any more: it is that backend's whose agent has named it before. Of several, that one's to
    /// which its packets go, and else the first one's: which comes after it has to wait for that one's end.
    fn give_to_claimant(
        &mut self,
        key: &StateKey,
        dumped: bool,
        now: u32,
    ) -> Result<(), EngineError> {
        let mut claims = self.claims.of(key).to_vec();
        claims.sort_by_key(|claim| !self.builder.leads_to(key, *claim));
        for claim in claims {
            if self.by_id(claim).is_none() {
                self.claims.remove(key, claim);
            } else if self.opened(*key, claim, dumped, now)? == Told::Taken {
                break;
            }
        }
        Ok(())
    }

    /// In step, when agents have told of all that there is: whether a flow that is pending at a backend has ended
    /// there, or is another one's of the same addresses and ports by now, as agents say.
    pub fn is_elsewhere_by_now(&self, key: &StateKey, backend: BackendId) -> bool {
        match self.builder.known(key) {
            Some(known) => known.backend != backend,
            None => self.agreed.is_some() && self.is_told_of(backend),
        }
    }

    /// Before a table is built: what agents have named goes to them from those who are dead.
    fn take_from_the_dead(&mut self, now: u32) -> Result<(), EngineError> {
        let lost = |key: &StateKey| {
            let known = self.builder.known(key);
            known.is_none_or(|known| self.is_dead_in_step(known.backend))
        };
        let due: Vec<StateKey> = self.claims.keys().filter(|key| lost(key)).copied().collect();
        due.iter().try_for_each(|key| self.give_to_claimant(key, true, now))
    }

    /// An agent has said all that its backend holds. What it has not named is no connection, or one that has
    /// just begun. From now on the backend is told of.
    ///
    /// # Errors
    /// [`EngineError::Store`].
    pub fn dumped(
        &mut self,
        backend: BackendId,
        found: &HashSet<StateKey>,
        now: u32,
    ) -> Result<(), EngineError> {
        let (mut gone, mut begun) = (Vec::new(), Vec::new());
        self.builder.each_state(&mut |key, known| {
            if known.backend != backend || known.phase == Phase::Closing || found.contains(key) {
                return;
            }
            gone.push(*key);
            if now.saturating_sub(known.born) < SYN_SECONDS / 2 {
                begun.push((*key, known.born));
            }
        });
        gone.iter().for_each(|key| self.builder.forget(key));
        let logged = self.log_removed(&gone, now);
        // Another agent may have named some of them before.
        for key in &gone {
            self.give_to_claimant(key, true, now)?;
        }
        begun.retain(|(key, _)| self.builder.known(key).is_none());
        begun.into_iter().for_each(|(key, born)| self.young.push(key, backend, born));
        let (service, gone_now) = (&self.configured.name, gone.len());
        info!(service, backend = backend.get(), open = found.len(), gone_now, "told all");
        self.claims.keep_of(backend, found);
        self.young.listed(backend, found);
        self.told_of.insert(backend);
        self.tell_builder(now);
        logged
    }

    /// Nobody tells of a backend any more: its connections are observed from now on, and those that have begun
    /// are states.
    ///
    /// # Errors
    /// [`EngineError`], if one cannot be remembered.
    pub fn untold(&mut self, backend: BackendId, now: u32) -> Result<(), EngineError> {
        if !self.told_of.remove(&backend) {
            return Ok(());
        }
        self.tell_builder(now);
        self.claims.keep_of(backend, &HashSet::new());
        for (key, begun) in self.young.take_of(backend) {
            if self.builder.known(&key).is_some_and(|known| known.backend == backend) {
                continue;
            }
            self.start(key, backend, begun.born)?;
            if begun.alive {
                let (phase, born) = (Phase::Open, begun.born);
                self.builder.adopt(key, Known { backend, phase, born, seen: now })?;
            }
        }
        Ok(())
    }

    /// A SYN went to a backend that is told of.
    pub fn begins(&mut self, key: StateKey, backend: BackendId, now: u32) {
        let late = |known: &Known| {
            known.backend == backend
                && known.phase == Phase::Open
                && now.saturating_sub(known.born) <= LATE_SECONDS
        };
        if !self.builder.known(&key).is_some_and(|known| late(&known)) {
            self.young.push(key, backend, now);
        }
    }

    /// An agent says that a connection is half-open at its backend, whichever balancer its SYN has passed.
    ///
    /// It is kept aside as if its SYN had passed here, from now on: it may have begun long ago, and its
    /// handshake goes on. What is known to be elsewhere stays there.
    pub fn half_open_at(&mut self, key: StateKey, backend: BackendId, now: u32) {
        // Of a backend that has left, or whose agent has not listed what is open, nothing is kept aside.
        if self.by_id(backend).is_none() || !self.is_told_of(backend) {
            return;
        }
        // Of two that name it, the one to which its packets go.
        let other = self.collected.get(&key).copied();
        if other.is_none_or(|other| !self.is_led_away(&key, backend, other)) {
            self.collected.insert(key, backend);
        }
        if self.agreed.is_some() {
            return;
        }
        let lives = self.builder.known(&key).is_some_and(|known| known.phase != Phase::Closing);
        let elsewhere = self.young.get(&key).is_some_and(|begun| begun.backend != backend);
        if !lives && !elsewhere {
            self.young.push(key, backend, now);
        }
    }

    /// Has those that have begun among the states, for the table that is built now. In step with other balancers
    /// these are the ones that agents have said to have begun, which all balancers are told alike.
    ///
    /// # Errors
    /// [`EngineError::Build`].
    pub fn fold_young(&mut self, now: u32) -> Result<(), EngineError> {
        self.take_from_the_dead(now)?;
        let seen = self.young.each().map(|(key, begun)| (*key, begun.backend, begun.born));
        let said = self.collected.iter().map(|(key, backend)| (*key, *backend, now));
        let agreed = self.agreed.is_some();
        // Where it makes a table without the others, nobody was asked, and what was seen here has to do.
        let in_step = agreed && !self.alone;
        let begun = seen.filter(|_| !in_step).chain(said.filter(|_| in_step));
        for (key, backend, born) in begun {
            // What an agent has said to be open at its backend, and not to have ended, stays there.
            let stays = |known: Known| {
                known.backend == backend
                    || agreed && known.phase == Phase::Open && self.heard.contains(&known.backend)
            };
            let known = self.builder.known(&key).filter(|known| known.phase != Phase::Closing);
            if known.is_some_and(stays) {
                continue;
            }
            if self.builder.start(key, backend, born)? {
                self.claims.remove(&key, backend);
                self.folded.push((key, backend));
            }
        }
        Ok(())
    }

    /// The table is built, and seen or discarded: they are no states again, but for those that an agent has
    /// said to be open meanwhile.
    pub fn unfold_young(&mut self) {
        for (key, backend) in std::mem::take(&mut self.folded) {
            let opening = |known: Known| known.backend == backend && known.phase == Phase::Opening;
            if self.is_told_of(backend) && self.builder.known(&key).is_some_and(opening) {
                self.builder.forget(&key);
            }
        }
    }
}
