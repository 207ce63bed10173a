//! The build face of a service of one balancer: the control plane observes all connections, and
//! what the next rows do not lead home is an exception.
//!
//! Reports, pending flows and grace periods are the update's ([`crate::Update`]), as for concury:
//! when a table is drafted, every flow that has started is a state.

use super::body::{Body, most_elements_of};
use super::build::Placed;
use super::config::Method;
use crate::BuildError;
use crate::ids::BackendId;
use crate::method::{Build, Built, Known, Phase, Publish, ServiceConfig, Settings};
use crate::pool::{Member, Role};
use crate::registry::{Image, MethodId};
use crate::rows::ROWS;
use crate::state::StateKey;
use crate::states::{Observed, ObservedStates, Patience};
use crate::table::{Flags, Header, Table, slot_elements};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use weir_hash::{HashKey, Key, scale};

/// A table that is built and not published, and the states that it has no backend for.
#[derive(Clone, Debug)]
struct Draft {
    image: Arc<Image>,
    orphans: Vec<(StateKey, Observed)>,
}

/// Builds tables of one service.
#[derive(Clone, Debug)]
pub struct ResidueBuilder {
    config: ServiceConfig,
    key: HashKey,
    states: ObservedStates<StateKey>,
    /// Follows the pool of the last draft.
    placed: Option<Placed>,
    published: Option<Arc<Image>>,
    draft: Option<Draft>,
    /// See [`Build::rest`].
    rest_seconds: u32,
    /// See [`Build::told_of`].
    told_of: BTreeSet<BackendId>,
}

impl ResidueBuilder {
    fn patience(&self) -> Patience {
        let ServiceConfig { udp, client_affinity, idle_seconds, .. } = self.config;
        let rest_seconds = self.rest_seconds;
        Patience { idle_seconds, keep_opening: udp || client_affinity, rest_seconds }
    }

    /// Goes on from a published table of the same shape. The states are to be
    /// [restored](Build::restore).
    pub fn new(config: &ServiceConfig, published: Option<Arc<Image>>) -> Self {
        let key = HashKey::from_seed(config.seed);
        let rows = config.settings.get(ROWS) as usize;
        let published = published.filter(|image| {
            let header = image.header();
            header.key == key
                && header.flags().has(Flags::CLIENT) == config.client_affinity
                && body(image).is_some_and(|body| body.rows().len() == rows)
        });
        let states = ObservedStates::new(key, config.capacity, config.max_states);
        let config = config.clone();
        let (placed, draft, rest_seconds, told_of) = (None, None, 0, BTreeSet::new());
        Self { config, key, states, placed, published, draft, rest_seconds, told_of }
    }

    /// The rows of a pool. What a failed draft has left is made anew.
    fn place(&mut self, pool: &[Member]) -> Result<Placed, BuildError> {
        let serving: Vec<Member> =
            pool.iter().filter(|member| member.effective_weight() > 0).cloned().collect();
        if let Some(mut placed) = self.placed.take()
            && placed.follow(&serving).is_ok()
        {
            return Ok(placed);
        }
        let mut placed = Placed::new(self.config.settings.get(ROWS))?;
        placed.follow(&serving)?;
        Ok(placed)
    }

    fn take_back(&mut self, orphans: Vec<(StateKey, Observed)>) {
        for (key, state) in orphans {
            if self.states.get(&key).is_none() {
                self.states.insert(key, state);
            }
        }
    }

    /// Where the published table leads a flow, and whether as an exception.
    fn route(&self, key: &StateKey) -> Option<(u16, bool)> {
        Some(body(self.published.as_ref()?)?.route(key.hash(&self.key)))
    }
}

fn body(image: &Image) -> Option<&Body> {
    match image {
        Image::Residue(table) => Some(table.body()),
        _ => None,
    }
}

/// Whether its end will be said, so that its silence says nothing.
fn is_told(told_of: &BTreeSet<BackendId>, state: &Observed) -> bool {
    !told_of.is_empty() && state.phase != Phase::Closing && told_of.contains(&state.backend)
}

fn known(state: &Observed) -> Known {
    let Observed { backend, phase, seen, .. } = *state;
    Known { backend, phase, born: seen, seen }
}

impl Publish for Method {
    type Body = Body;

    /// With every state an exception.
    fn most_elements(settings: &Settings, states: usize) -> usize {
        slot_elements(settings.get(ROWS) as usize) + most_elements_of(states)
    }

    fn builder(config: &ServiceConfig, published: Option<Arc<Image>>) -> Box<dyn Build> {
        Box::new(ResidueBuilder::new(config, published))
    }
}

impl Build for ResidueBuilder {
    fn method(&self) -> MethodId {
        MethodId::Residue
    }

    fn draft(&mut self, generation: u64, pool: &[Member], _: u32) -> Result<Built, BuildError> {
        self.discard_draft()?;
        let placed = self.place(pool)?;
        let rows = placed.column();
        self.placed = Some(placed);
        let members: HashSet<BackendId> = pool.iter().map(|member| member.backend).collect();
        let orphans = self.states.take(|_, state| members.contains(&state.backend));
        let down: HashSet<BackendId> =
            pool.iter().filter(|m| m.role == Role::Down).map(|m| m.backend).collect();
        let (mut exceptions, mut pinned) = (Vec::new(), Vec::new());
        for (key, state) in self.states.iter() {
            let hash = key.hash(&self.key);
            if rows[scale(hash as u32, rows.len() as u32) as usize] != state.backend.get() {
                exceptions.push((hash, state.backend.get()));
                // A datagram may well belong to a flow that lives there, if the check is wrong.
                if self.config.udp && down.contains(&state.backend) {
                    pinned.push((*key, state.backend));
                }
            }
        }
        let body = match Body::new(rows.to_vec(), &exceptions) {
            Ok(body) => body,
            Err(error) => {
                self.take_back(orphans);
                return Err(error.into());
            }
        };
        let flags = Flags::default()
            .with(Flags::CLIENT, self.config.client_affinity)
            .with(Flags::MARK, !self.config.udp);
        let header = Header::new(self.key, flags, generation, self.states.len() as u64);
        let image = Arc::new(Image::from(Table::new(header, body)));
        let gone = orphans.iter().map(|(key, _)| *key).collect();
        self.draft = Some(Draft { image: image.clone(), orphans });
        Ok(Built { table: image, pinned, orphans: gone, astray: 0 })
    }

    fn rows_of(&mut self, pool: &[Member]) -> Result<Option<Vec<u16>>, BuildError> {
        let placed = self.place(pool)?;
        let rows = placed.column().to_vec();
        self.placed = Some(placed);
        Ok(Some(rows))
    }

    fn publish_draft(&mut self) {
        if let Some(draft) = self.draft.take() {
            self.published = Some(draft.image);
        }
    }

    fn discard_draft(&mut self) -> Result<(), BuildError> {
        if let Some(draft) = self.draft.take() {
            self.take_back(draft.orphans);
        }
        Ok(())
    }

    fn published(&self) -> Option<&Arc<Image>> {
        self.published.as_ref()
    }

    fn start(&mut self, key: StateKey, backend: BackendId, now: u32) -> Result<bool, BuildError> {
        Ok(self.states.start(key, backend, now))
    }

    fn restore(&mut self, key: StateKey, backend: BackendId, now: u32) -> Result<(), BuildError> {
        self.states.restore(key, backend, now);
        Ok(())
    }

    fn adopt(&mut self, key: StateKey, state: Known) -> Result<(), BuildError> {
        let Known { backend, phase, seen, .. } = state;
        self.states.remove(&key);
        self.states.insert(key, Observed::new(backend, phase, seen));
        Ok(())
    }

    /// A client outlives its connections.
    fn end(&mut self, key: &StateKey, now: u32) {
        if !self.config.client_affinity {
            self.states.set_phase(key, Phase::Closing, now);
        }
    }

    fn forget(&mut self, key: &StateKey) {
        self.states.remove(key);
    }

    fn forget_backend(&mut self, backend: BackendId) -> Vec<StateKey> {
        let gone = self.states.take(|_, state| state.backend != backend);
        gone.into_iter().map(|(key, _)| key).collect()
    }

    fn sweep(&mut self, now: u32, active: &dyn Fn(&StateKey) -> bool) -> Vec<StateKey> {
        let patience = self.patience();
        let told_of = &self.told_of;
        let idle = self.states.take(|flow, state| {
            is_told(told_of, state) || state.look(patience, || active(flow), now)
        });
        idle.into_iter().map(|(key, _)| key).collect()
    }

    fn rest(&mut self, seconds: u32) {
        if self.rest_seconds != seconds {
            let former = self.patience();
            self.rest_seconds = seconds;
            let states = self.states.iter_mut();
            states.for_each(|(_, state)| former.end_watch(&mut state.seen, &mut state.watched));
        }
    }

    fn told_of(&mut self, backends: &BTreeSet<BackendId>, now: u32) {
        let before = std::mem::replace(&mut self.told_of, backends.clone());
        if before.is_subset(backends) {
            return;
        }
        let lost = |at: &BackendId| before.contains(at) && !backends.contains(at);
        for (_, state) in self.states.iter_mut().filter(|(_, state)| lost(&state.backend)) {
            (state.seen, state.watched) = (now, false);
        }
    }

    fn each_due(&self, now: u32, visit: &mut dyn FnMut(&StateKey, Known)) {
        let patience = self.patience();
        for (key, state) in self.states.iter() {
            if is_told(&self.told_of, state) && state.phase == Phase::Open {
                continue;
            }
            if patience.is_due(key, state.phase, state.seen, state.watched, now) {
                visit(key, known(state));
            }
        }
    }

    fn watch(&mut self, now: u32, since: u32) {
        let patience = self.patience();
        for (key, state) in self.states.iter_mut() {
            let Observed { phase, seen, watched, .. } = state;
            if patience.is_due(key, *phase, *seen, *watched, now) {
                patience.begin_watch(*phase, seen, watched, since);
            }
        }
    }

    fn known(&self, key: &StateKey) -> Option<Known> {
        self.states.get(key).map(known)
    }

    fn each_state(&self, visit: &mut dyn FnMut(&StateKey, Known)) {
        for (key, state) in self.states.iter() {
            visit(key, known(state));
        }
    }

    fn states(&self) -> usize {
        self.states.len()
    }

    fn states_of(&self, backend: BackendId) -> Option<usize> {
        Some(self.states.of_backend(backend))
    }

    fn set_max_states(&mut self, most: usize) {
        self.states.set_most(most);
    }

    fn set_idle_seconds(&mut self, seconds: u32) {
        self.config.idle_seconds = seconds;
    }

    fn refused(&self) -> u64 {
        self.states.refused()
    }

    fn control_bytes(&self) -> usize {
        self.states.bytes()
    }

    fn agrees(&self, key: &StateKey, backend: BackendId) -> bool {
        self.route(key).is_some_and(|(at, _)| at == backend.get())
    }

    fn leads_to(&self, key: &StateKey, backend: BackendId) -> bool {
        self.agrees(key, backend)
    }

    fn on_reserved(&self, key: &StateKey) -> bool {
        self.route(key).is_some_and(|(_, exception)| exception)
    }
}
