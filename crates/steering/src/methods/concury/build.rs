//! The build face of Concury: the states of one service, and tables made of them.

use super::codec::Codec;
use super::config::ConcuryConfig;
use super::dip_array;
use super::parcel::Parcel;
use super::states::States;
use super::table::Body;
use crate::BuildError;
use crate::ids::{BackendId, Dcode};
use crate::method::{Armed, Build, Built, Known, Phase};
use crate::pool::{Member, Role};
use crate::registry::{Image, MethodId};
use crate::state::StateKey;
use crate::states::Patience;
use crate::table::{Flags, Header, NO_BACKEND, SLOT_RESERVED, Table};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use weir_hash::{HashKey, Key};

/// How long a TCP flow's SYN may still be repeated after its first (Linux gives up after 127 s).
pub const SYN_SECONDS: u32 = 130;

/// A service that was made for so many states gives their memory back while it has none.
const SMALL: usize = 1024;

/// What the control plane remembers of a connection, or of a client with client affinity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State {
    /// The backend that holds it.
    pub backend: BackendId,
    /// Its Dcode; none until the next build gives it one.
    code: Option<Dcode>,
    /// In which table it may be another one, or the first one, by the tables' count.
    coded: u8,
    /// In which period it was last found armed, by the number that this has here; 0: in none.
    armed: u8,
    born: u32,
    seen: u32,
    /// How far its connection has come, as its packets show.
    pub phase: Phase,
    /// Whether its silence counts.
    watched: bool,
}

impl State {
    /// What is known of the connection.
    pub fn known(&self) -> Known {
        let Self { backend, born, seen, phase, .. } = *self;
        Known { backend, phase, born, seen }
    }

    /// To what its Dcode leads in a DIP array.
    fn entry_in(&self, slots: &[u16]) -> u16 {
        self.code.and_then(|code| slots.get(code.index())).copied().unwrap_or(NO_BACKEND)
    }
}

/// What a build yields beside the table.
#[derive(Clone, Debug)]
pub struct BuildReport<K = StateKey> {
    /// States on reserved Dcodes whose next packet may look like a first one (a repeated SYN, any
    /// datagram, another connection of the same client): the data plane must know them exactly. The
    /// youngest first.
    pub pinned: Vec<(K, BackendId)>,
    /// States that got another Dcode.
    pub recoded: usize,
    /// States whose backend is no member any more: forgotten, inevitably broken. A UDP flow that
    /// goes on elsewhere must be reported anew, so once the table is published the caller takes
    /// these out of the "seen recently" filter.
    pub orphans: Vec<K>,
    /// States that the table leads elsewhere: of those, another balancer that built it knew nothing.
    pub astray: usize,
}

impl<K> Default for BuildReport<K> {
    fn default() -> Self {
        Self { pinned: Vec::new(), recoded: 0, orphans: Vec::new(), astray: 0 }
    }
}

/// One service's states and the last table built of them.
///
/// The same for every [codec](crate::Codec). With [`Codec::Fuse`](crate::Codec::Fuse) a build moves
/// all flows that are not states: whatever must not move has to be a state, or pending.
#[derive(Clone, Debug)]
pub struct Concury<K = StateKey> {
    config: ConcuryConfig,
    states: States<K, State>,
    per_backend: HashMap<BackendId, usize>,
    published: Option<Arc<Image>>,
    /// Counts published tables: a state whose Dcode was given since the last one bears this number.
    tables: u8,
    /// The period and the key under which states were found armed last, and their number for it.
    armed_in: Option<(u64, HashKey)>,
    armed_number: u8,
    draft: Option<Draft<K>>,
    refused: u64,
    /// See [`Build::rest`](crate::Build::rest).
    rest_seconds: u32,
    /// See [`Build::told_of`](crate::Build::told_of).
    told_of: BTreeSet<BackendId>,
}

/// A table that is built and not published, and the states that it has no backend for.
#[derive(Clone, Debug)]
struct Draft<K> {
    image: Arc<Image>,
    orphans: Vec<(K, State)>,
}

impl<K: Key> Concury<K> {
    /// A service without states, of which no table was built yet.
    pub fn new(config: ConcuryConfig) -> Self {
        Self {
            states: States::new(&config),
            per_backend: HashMap::new(),
            published: None,
            tables: 0,
            armed_in: None,
            armed_number: 0,
            draft: None,
            refused: 0,
            rest_seconds: 0,
            told_of: BTreeSet::new(),
            config,
        }
    }

    /// Goes on from a table that an earlier run published: with its hash key, so that no flow looks
    /// new, and its Dcodes, so that the next table differs only where the pool does. The states are
    /// to be [restored](Self::restore). A table of other settings is not taken up.
    pub fn resume(config: ConcuryConfig, image: Arc<Image>) -> Self {
        let mut concury = Self::new(config);
        let same = image.concury().is_some_and(|table| {
            table.body().slots().len() == 1 << config.bits
                && table.header().flags().has(Flags::CLIENT) == config.client_affinity
        });
        if same && let Some(states) = States::after(&config, &image) {
            concury.states = states;
            concury.published = Some(image);
        }
        concury
    }

    /// The settings that it was made with.
    pub fn config(&self) -> &ConcuryConfig {
        &self.config
    }

    /// Number of states.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Whether there are no states.
    pub fn is_empty(&self) -> bool {
        self.states.len() == 0
    }

    /// Flows that were not remembered because of `max_states`.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Number of states that live at a backend.
    pub fn states_of(&self, backend: BackendId) -> usize {
        self.per_backend.get(&backend).copied().unwrap_or(0)
    }

    /// The state with this key, if there is one.
    pub fn get(&self, key: &K) -> Option<&State> {
        self.states.get(key)
    }

    /// All states with their keys, in no order.
    pub fn states(&self) -> impl Iterator<Item = (&K, &State)> {
        self.states.iter()
    }

    /// The table that packets follow: the last one that was built and not discarded.
    pub fn published(&self) -> Option<&Arc<Image>> {
        self.published.as_ref()
    }

    /// Forgets the table that is published, as a restart does: the next build begins anew.
    pub fn forget_published(&mut self) {
        self.published = None;
        self.draft = None;
    }

    /// Bytes of the control structure.
    pub fn control_bytes(&self) -> usize {
        self.states.control_bytes()
    }

    /// Makes room for `states` states in all.
    ///
    /// # Errors
    /// [`BuildError::Lookup`] if no seed works, which does not happen with different keys.
    pub fn reserve(&mut self, states: usize) -> Result<(), BuildError> {
        Ok(self.states.reserve(states)?)
    }

    /// A flow has started at a backend. Returns whether it is remembered.
    ///
    /// # Errors
    /// [`BuildError::Lookup`] as above.
    pub fn start(&mut self, key: K, backend: BackendId, now: u32) -> Result<bool, BuildError> {
        let (code, coded) = (self.code_now(&key, backend), self.next_table());
        if let Some(state) = self.states.get_mut(&key) {
            if state.backend == backend && state.phase != Phase::Closing {
                // A repeated SYN, another connection of the client, a datagram reported again; or
                // a new connection with the ports of one whose end nobody saw, so its SYN may be
                // repeated from now on.
                state.born = now;
                state.seen = now;
                return Ok(true);
            }
            let former = state.backend;
            *state = State {
                backend,
                code,
                coded,
                armed: 0,
                born: now,
                seen: now,
                phase: Phase::Opening,
                watched: false,
            };
            if former != backend {
                self.count(former, false);
                self.count(backend, true);
            }
            return Ok(true);
        }
        if self.states.len() >= self.config.max_states {
            self.refused += 1;
            return Ok(false);
        }
        let phase = Phase::Opening;
        let state =
            State { backend, code, coded, armed: 0, born: now, seen: now, phase, watched: false };
        self.states.insert(key, state)?;
        self.count(backend, true);
        Ok(true)
    }

    /// Takes a state over from an earlier run. How far its connection had come is not known, so it
    /// counts as open.
    ///
    /// # Errors
    /// [`BuildError::Lookup`] as above.
    pub fn restore(&mut self, key: K, backend: BackendId, now: u32) -> Result<(), BuildError> {
        self.start(key, backend, now)?;
        if let Some(state) = self.states.get_mut(&key) {
            state.phase = Phase::Open;
        }
        Ok(())
    }

    /// Takes a state over as it is.
    ///
    /// # Errors
    /// [`BuildError::Lookup`] as above.
    pub fn adopt(&mut self, key: K, known: Known) -> Result<(), BuildError> {
        let Known { backend, phase, born, seen } = known;
        self.forget(&key);
        let code = self.code_now(&key, backend);
        let coded = self.next_table();
        let state = State { backend, code, coded, armed: 0, born, seen, phase, watched: false };
        self.states.insert(key, state)?;
        self.count(backend, true);
        Ok(())
    }

    /// FIN or RST was seen. A client outlives its connections.
    pub fn end(&mut self, key: &K, now: u32) {
        if self.config.client_affinity {
            return;
        }
        if let Some(state) = self.states.get_mut(key) {
            state.phase = Phase::Closing;
            state.seen = now;
        }
    }

    /// Forgets a state of which it is known that no more packets come; returns its backend.
    pub fn forget(&mut self, key: &K) -> Option<BackendId> {
        let state = self.states.remove(key)?;
        self.count(state.backend, false);
        Some(state.backend)
    }

    /// Forgets all states of a backend that is gone: they are inevitably broken.
    pub fn forget_backend(&mut self, backend: BackendId) -> Vec<K> {
        let keys: Vec<K> =
            self.states.iter().filter(|(_, s)| s.backend == backend).map(|(k, _)| *k).collect();
        for key in &keys {
            self.states.remove(key);
        }
        self.per_backend.remove(&backend);
        keys
    }

    /// Looks at every state: `active` tells whether the data plane has seen a packet of the flow
    /// since the last call. Forgets the idle ones and returns them.
    pub fn sweep(&mut self, now: u32, active: impl Fn(&K) -> bool) -> Vec<K> {
        let patience = self.patience();
        let mut idle = Vec::new();
        let mut gone = Vec::new();
        let told_of = &self.told_of;
        self.states.retain(|key, state| {
            let told = !told_of.is_empty() && told_of.contains(&state.backend);
            let State { phase, seen, watched, .. } = state;
            if told && *phase != Phase::Closing {
                return true;
            }
            let keep = patience.look(phase, seen, watched, || active(key), now);
            if !keep {
                idle.push(*key);
                gone.push(state.backend);
            }
            keep
        });
        gone.into_iter().for_each(|backend| self.count(backend, false));
        idle
    }

    fn patience(&self) -> Patience {
        Patience {
            idle_seconds: self.config.idle_seconds,
            keep_opening: self.config.udp || self.config.client_affinity || !self.config.mark,
            rest_seconds: self.rest_seconds,
        }
    }

    /// Builds the table of a pool from all states, and takes it for published: for callers whose
    /// publishing cannot fail. The others [draft](Self::draft) it.
    ///
    /// # Errors
    /// As [`draft`](Self::draft).
    pub fn build(
        &mut self,
        generation: u64,
        members: &[Member],
        now: u32,
    ) -> Result<(Arc<Image>, BuildReport<K>), BuildError> {
        let built = self.draft(generation, members, now)?;
        self.publish_draft();
        Ok(built)
    }

    /// The table drafted last is published: from now on packets follow it.
    pub fn publish_draft(&mut self) {
        if let Some(draft) = self.draft.take() {
            // Where room was asked for it stays.
            if self.config.capacity <= SMALL {
                self.states.rest(&draft.image, self.config.seed, self.config.max_states);
            }
            self.published = Some(draft.image);
            self.tables = self.tables.wrapping_add(1);
        }
    }

    /// The table drafted last cannot be published: the one before stays. States whose backend the
    /// draft had no place for are known again, unless their keys have been used anew.
    ///
    /// # Errors
    /// [`BuildError::Lookup`] if no seed works, which does not happen with different keys.
    pub fn discard_draft(&mut self) -> Result<(), BuildError> {
        let orphans = self.draft.take().map_or_else(Vec::new, |draft| draft.orphans);
        self.take_back(orphans)
    }

    fn take_back(&mut self, orphans: Vec<(K, State)>) -> Result<(), BuildError> {
        for (key, state) in orphans {
            if self.states.get(&key).is_none() {
                self.states.insert(key, State { coded: self.tables, armed: 0, ..state })?;
                self.count(state.backend, true);
            }
        }
        Ok(())
    }

    /// Builds the table of a pool from all states. It counts as published when
    /// [`publish_draft`](Self::publish_draft) says so, or as never built when
    /// [`discard_draft`](Self::discard_draft) does. A draft that is neither is discarded by the
    /// next one.
    ///
    /// # Errors
    /// [`BuildError::TooFewDcodes`] if the pool does not fit; nothing has changed then.
    /// [`BuildError::Lookup`] if the key type's hash is broken; the former table stays.
    pub fn draft(
        &mut self,
        generation: u64,
        members: &[Member],
        now: u32,
    ) -> Result<(Arc<Image>, BuildReport<K>), BuildError> {
        self.draft_beside(generation, members, now, Armed::NONE)
    }

    /// As [`draft`](Self::draft), where packets know of some flows that they live. These keep their places
    /// on reserved Dcodes without pins.
    ///
    /// # Errors
    /// As [`draft`](Self::draft).
    pub fn draft_beside(
        &mut self,
        generation: u64,
        members: &[Member],
        now: u32,
        armed: Armed<'_>,
    ) -> Result<(Arc<Image>, BuildReport<K>), BuildError> {
        self.discard_draft()?;
        let previous = match self.table() {
            Some(table) => table.body().slots().to_vec(),
            None => vec![NO_BACKEND; 1 << self.config.bits],
        };
        let slots = dip_array::assign(&previous, members, |backend| self.states_of(backend) > 0)?;
        let mut report = BuildReport::default();
        let orphans = self.recode(&slots, &mut report);
        let former = self.published.as_deref();
        // Every state has one by now, and by the published table, too, if it was not given since.
        let (code, tables) = (|state: &State| state.code.map_or(0, Dcode::cell), self.tables);
        // With a draft that was discarded since it began, the one after that was to be the first with it.
        let may = |state: &State| matches!(state.coded.wrapping_sub(tables), 0 | 1);
        let (key, codes) = match self.states.export(former, self.config.bits, may, code) {
            Ok(exported) => exported,
            Err(error) => {
                self.take_back(orphans)?;
                return Err(error.into());
            }
        };
        self.pin(&slots, members, now, (armed, key), &mut report);
        let flags = Flags::default()
            .with(Flags::CLIENT, self.config.client_affinity)
            .with(Flags::MARK, self.config.mark && !self.config.udp);
        let header = Header::new(key, flags, generation, self.states.len() as u64);
        let table = Table::new(header, Body::new(slots, codes, fallback(members)));
        let image = Arc::new(Image::from(table));
        self.draft = Some(Draft { image: image.clone(), orphans });
        Ok((image, report))
    }

    /// As [`draft`](Self::draft), of a table that another balancer has built, with the Dcodes of those reserved that
    /// take no new flows. All states on these are pinned, and the table says so ([`Flags::EXACT`]): a new flow there
    /// goes the same way at every balancer.
    ///
    /// # Errors
    /// [`BuildError::Parcel`] if it does not suit the settings; nothing has changed then.
    pub fn draft_of(
        &mut self,
        generation: u64,
        members: &[Member],
        parcel: &Parcel,
    ) -> Result<(Arc<Image>, BuildReport<K>), BuildError> {
        self.discard_draft()?;
        let (found, wanted) = (parcel.bits(), self.config.bits);
        if found != wanted || self.config.codec != Codec::Othello {
            return Err(BuildError::Parcel { found, wanted });
        }
        let places: HashMap<&str, (BackendId, bool)> = members
            .iter()
            .map(|m| (m.name.as_str(), (m.backend, m.effective_weight() > 0)))
            .collect();
        let body = parcel.body(|name| places.get(name).copied(), fallback(members));
        let mut report = BuildReport::default();
        let orphans = self.follow(&body, parcel.key(), members, &mut report);
        let flags = Flags::EXACT
            | if self.config.client_affinity { Flags::CLIENT } else { 0 }
            | if self.config.mark && !self.config.udp { Flags::MARK } else { 0 };
        let header = Header::new(*parcel.key(), Flags(flags), generation, self.states.len() as u64);
        let image = Arc::new(Image::from(Table::new(header, body)));
        self.draft = Some(Draft { image: image.clone(), orphans });
        Ok((image, report))
    }

    /// Gives each state the Dcode that it has by this table, and notes those to be pinned. Takes out, and returns, the
    /// states whose backend is no member.
    fn follow(
        &mut self,
        body: &Body,
        hash_key: &HashKey,
        members: &[Member],
        report: &mut BuildReport<K>,
    ) -> Vec<(K, State)> {
        let there: HashSet<BackendId> = members.iter().map(|member| member.backend).collect();
        let (mut orphans, mut pinned) = (Vec::new(), Vec::new());
        let tables = self.tables;
        let (keys, states) = self.states.entries_mut();
        for (key, state) in keys.iter().zip(states) {
            if !there.contains(&state.backend) {
                orphans.push((*key, *state));
                continue;
            }
            let code = body.code(key.hash(hash_key));
            let entry = body.slot(code);
            let leads = BackendId::of_slot(entry) == Some(state.backend);
            (state.code, state.coded) = (leads.then_some(code), tables);
            if entry & SLOT_RESERVED != 0 {
                pinned.push((state.born, *key, state.backend));
            } else if !leads {
                report.astray += 1;
            }
        }
        for (key, state) in &orphans {
            self.states.remove(key);
            self.count(state.backend, false);
            report.orphans.push(*key);
        }
        pinned.sort_by_key(|(born, ..)| std::cmp::Reverse(*born));
        report.pinned = pinned.into_iter().map(|(_, key, backend)| (key, backend)).collect();
        orphans
    }

    /// Whether packets of a flow that is pending at `backend` would go there by the published
    /// table alone, so that the pending entry can go.
    pub fn agrees(&self, key: &K, backend: BackendId) -> bool {
        self.published.as_ref().is_some_and(|image| backend == entry_of(image, key))
    }

    /// Whether the published table leads a flow's packets to a backend, first ones apart.
    pub fn leads_to(&self, key: &K, backend: BackendId) -> bool {
        self.published
            .as_ref()
            .is_some_and(|image| BackendId::of_slot(entry_of(image, key)) == Some(backend))
    }

    /// Whether a flow falls on a reserved Dcode, where packets consult the pending table anyway.
    pub fn on_reserved(&self, key: &K) -> bool {
        self.published.as_ref().is_some_and(|image| entry_of(image, key) & SLOT_RESERVED != 0)
    }

    /// The table after which a state that begins now is in each: if one is drafted, it lacks it.
    fn next_table(&self) -> u8 {
        self.tables.wrapping_add(u8::from(self.draft.is_some()))
    }

    fn table(&self) -> Option<&Table<Body>> {
        self.published.as_ref()?.concury()
    }

    /// Gives each state whose Dcode does not lead to its backend one that does. Codes are drawn
    /// by the key's hash, so a backend's states spread over its Dcodes. Takes out, and returns,
    /// the states whose backend has none.
    fn recode(&mut self, slots: &[u16], report: &mut BuildReport<K>) -> Vec<(K, State)> {
        let mut codes: HashMap<BackendId, Vec<Dcode>> = HashMap::new();
        for (code, slot) in slots.iter().enumerate() {
            if let Some(backend) = BackendId::of_slot(*slot) {
                codes.entry(backend).or_default().push(Dcode::of_cell(code as u32));
            }
        }
        let (spread, tables) = (HashKey::from_seed(self.config.seed), self.tables);
        let mut orphans = Vec::new();
        let (keys, states) = self.states.entries_mut();
        for (key, state) in keys.iter().zip(states) {
            let entry = state.entry_in(slots);
            if BackendId::of_slot(entry) == Some(state.backend) {
                continue;
            }
            match codes.get(&state.backend) {
                Some(own) => {
                    state.code = Some(own[key.hash(&spread) as usize % own.len()]);
                    state.coded = tables;
                    report.recoded += 1;
                }
                None => orphans.push((*key, *state)),
            }
        }
        for (key, state) in &orphans {
            self.states.remove(key);
            self.count(state.backend, false);
            report.orphans.push(*key);
        }
        orphans
    }

    fn pin(
        &mut self,
        slots: &[u16],
        members: &[Member],
        now: u32,
        (armed, hash_key): (Armed<'_>, HashKey),
        report: &mut BuildReport<K>,
    ) {
        if !slots.iter().any(|slot| slot & SLOT_RESERVED != 0) {
            return;
        }
        let any_packet = self.config.udp || self.config.client_affinity;
        let down = |id: BackendId| members.iter().any(|m| m.backend == id && m.role == Role::Down);
        let down: HashSet<BackendId> =
            self.per_backend.keys().copied().filter(|id| down(*id)).collect();
        // Where packets mark flows they ask for armed ones, too.
        let stays = self.config.mark && !any_packet;
        let seen_armed = self.number_of(armed.period, hash_key);
        let mut pinned = Vec::new();
        let (keys, states) = self.states.entries_mut();
        for (key, state) in keys.iter().zip(states) {
            let slot = state.entry_in(slots);
            let reserved = slot & SLOT_RESERVED != 0;
            // A SYN to a backend that is down is better placed elsewhere. A datagram says less:
            // it may well belong to a flow that lives there, if the health check is wrong.
            let down = !self.config.udp && down.contains(&state.backend);
            let over = state.phase == Phase::Closing || down;
            let young = any_packet || now.saturating_sub(state.born) < SYN_SECONDS;
            if !reserved || over || !young || (stays && state.armed == seen_armed) {
                continue;
            }
            if stays && (armed.has)(key.hash(&hash_key)) {
                state.armed = seen_armed;
            } else {
                pinned.push((state.born, *key, state.backend));
            }
        }
        pinned.sort_by_key(|(born, ..)| std::cmp::Reverse(*born));
        report.pinned = pinned.into_iter().map(|(_, key, backend)| (key, backend)).collect();
    }

    /// The number that states bear which were found armed in this period under this key. No state bears one
    /// of a period before the last 254.
    fn number_of(&mut self, period: u64, key: HashKey) -> u8 {
        if self.armed_in != Some((period, key)) {
            self.armed_in = Some((period, key));
            self.armed_number = self.armed_number.wrapping_add(1);
            if self.armed_number == 0 {
                self.armed_number = 1;
                self.states.entries_mut().1.iter_mut().for_each(|state| state.armed = 0);
            }
        }
        self.armed_number
    }

    /// The Dcode that a flow has by the published table, if that leads to its backend.
    fn code_now(&self, key: &K, backend: BackendId) -> Option<Dcode> {
        let table = self.table()?;
        let code = table.body().code(key.hash(&table.header().key));
        (backend == table.body().slot(code)).then_some(code)
    }

    fn count(&mut self, backend: BackendId, more: bool) {
        let count = self.per_backend.entry(backend).or_default();
        *count = if more { *count + 1 } else { count.saturating_sub(1) };
    }
}

impl<K> From<(Arc<Image>, BuildReport<K>)> for Built<K> {
    fn from((table, report): (Arc<Image>, BuildReport<K>)) -> Self {
        let BuildReport { pinned, orphans, astray, .. } = report;
        Self { table, pinned, orphans, astray }
    }
}

fn entry_of<K: Key>(image: &Image, key: &K) -> u16 {
    image.entry(key.hash(&image.header().key))
}

/// The same by name, whatever numbers backends have.
fn fallback(members: &[Member]) -> Option<BackendId> {
    members
        .iter()
        .filter(|m| m.effective_weight() > 0)
        .max_by_key(|m| (m.effective_weight(), &m.name))
        .map(|m| m.backend)
}

/// What the control plane uses.
impl<K: Key + Send> Build<K> for Concury<K> {
    fn method(&self) -> MethodId {
        MethodId::Concury
    }

    fn draft(
        &mut self,
        generation: u64,
        members: &[Member],
        now: u32,
    ) -> Result<Built<K>, BuildError> {
        self.draft_beside(generation, members, now, Armed::NONE).map(Built::from)
    }

    fn draft_beside(
        &mut self,
        generation: u64,
        members: &[Member],
        now: u32,
        armed: Armed<'_>,
    ) -> Result<Built<K>, BuildError> {
        self.draft_beside(generation, members, now, armed).map(Built::from)
    }

    fn draft_of(
        &mut self,
        generation: u64,
        members: &[Member],
        parcel: &Parcel,
    ) -> Result<Built<K>, BuildError> {
        self.draft_of(generation, members, parcel).map(Built::from)
    }

    fn publish_draft(&mut self) {
        self.publish_draft();
    }

    fn discard_draft(&mut self) -> Result<(), BuildError> {
        self.discard_draft()
    }

    fn published(&self) -> Option<&Arc<Image>> {
        self.published()
    }

    fn start(&mut self, key: K, backend: BackendId, now: u32) -> Result<bool, BuildError> {
        self.start(key, backend, now)
    }

    fn restore(&mut self, key: K, backend: BackendId, now: u32) -> Result<(), BuildError> {
        self.restore(key, backend, now)
    }

    fn adopt(&mut self, key: K, state: Known) -> Result<(), BuildError> {
        self.adopt(key, state)
    }

    fn end(&mut self, key: &K, now: u32) {
        self.end(key, now);
    }

    fn forget(&mut self, key: &K) {
        self.forget(key);
    }

    fn forget_backend(&mut self, backend: BackendId) -> Vec<K> {
        self.forget_backend(backend)
    }

    fn sweep(&mut self, now: u32, active: &dyn Fn(&K) -> bool) -> Vec<K> {
        self.sweep(now, active)
    }

    fn rest(&mut self, seconds: u32) {
        if self.rest_seconds != seconds {
            let former = self.patience();
            self.rest_seconds = seconds;
            let states = self.states.entries_mut().1.iter_mut();
            states.for_each(|state| former.end_watch(&mut state.seen, &mut state.watched));
        }
    }

    fn told_of(&mut self, backends: &BTreeSet<BackendId>, now: u32) {
        let before = std::mem::replace(&mut self.told_of, backends.clone());
        if before.is_subset(backends) {
            return;
        }
        let states = self.states.entries_mut().1.iter_mut();
        let told_before = |state: &&mut State| {
            before.contains(&state.backend) && !backends.contains(&state.backend)
        };
        for state in states.filter(told_before) {
            (state.seen, state.watched) = (now, false);
        }
    }

    fn each_due(&self, now: u32, visit: &mut dyn FnMut(&K, Known)) {
        let patience = self.patience();
        for (key, state) in self.states() {
            if self.told_of.contains(&state.backend) && state.phase == Phase::Open {
                continue;
            }
            if patience.is_due(key, state.phase, state.seen, state.watched, now) {
                visit(key, state.known());
            }
        }
    }

    fn watch(&mut self, now: u32, since: u32) {
        let patience = self.patience();
        let (keys, states) = self.states.entries_mut();
        for (key, state) in keys.iter().zip(states) {
            let State { phase, seen, watched, .. } = state;
            if patience.is_due(key, *phase, *seen, *watched, now) {
                patience.begin_watch(*phase, seen, watched, since);
            }
        }
    }

    fn known(&self, key: &K) -> Option<Known> {
        self.get(key).map(State::known)
    }

    fn each_state(&self, visit: &mut dyn FnMut(&K, Known)) {
        for (key, state) in self.states() {
            visit(key, state.known());
        }
    }

    fn states(&self) -> usize {
        self.len()
    }

    fn states_of(&self, backend: BackendId) -> Option<usize> {
        Some(self.states_of(backend))
    }

    fn set_max_states(&mut self, most: usize) {
        self.config.max_states = most;
        self.states.never_beyond(most);
    }

    fn set_idle_seconds(&mut self, seconds: u32) {
        self.config.idle_seconds = seconds;
    }

    fn refused(&self) -> u64 {
        self.refused()
    }

    fn control_bytes(&self) -> usize {
        self.control_bytes()
    }

    fn agrees(&self, key: &K, backend: BackendId) -> bool {
        self.agrees(key, backend)
    }

    fn leads_to(&self, key: &K, backend: BackendId) -> bool {
        self.leads_to(key, backend)
    }

    fn on_reserved(&self, key: &K) -> bool {
        self.on_reserved(key)
    }
}
