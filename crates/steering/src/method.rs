//! What a method is.
//!
//! | part | what it is | where |
//! |---|---|---|
//! | configuration | named numbers with their ranges: [`Setting`] | `methods/<name>/mod.rs` |
//! | table | a [`Header`](crate::Header) and a [`Body`] of its own | `table.rs` |
//! | build face | pool and states -> table, and what must be pinned: [`Build`] | `build.rs` |
//! | decision | table, question and memory -> decision: [`Decide`] | `decide.rs` |
//! | answer face | packets from a backend back to a client: [`Answer`], if it needs to see them | `repair.rs` |
//!
//! The [registry](crate::MethodId) lists all methods once; everything that goes by a method's name
//! or number goes through it. docs/add-a-method.md adds one step by step.

use crate::BuildError;
use crate::decide::Decide;
use crate::ids::BackendId;
use crate::methods::cheetah::CookieKeys;
use crate::methods::concury::Parcel;
use crate::pool::Member;
use crate::registry::{Image, MethodId};
use crate::state::StateKey;
use crate::table::{Body, ELEMENT_BYTES, HEADER_BYTES, Table};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// What a method needs from around it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Needs {
    /// The control plane must know every connection: its start, and where it lives.
    pub states: bool,
    /// The data plane must tell first datagrams of a UDP flow from later ones.
    pub first_datagrams: bool,
    /// The data plane must keep a connection table.
    pub connections: bool,
    /// Packets from backends to clients must pass the balancer, which rewrites their timestamps.
    pub timestamps: bool,
}

impl Needs {
    /// Nothing but the table.
    pub const NOTHING: Self =
        Self { states: false, first_datagrams: false, connections: false, timestamps: false };
}

/// What several balancers of the same addresses have to do when a pool changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InFleet {
    /// Each changes its table by itself.
    Alone,
    /// They change their tables in step; each builds its own.
    InStep,
    /// They change their tables in step, and follow one that one of them has built.
    Shared,
}

/// A number that a method can be configured with, or one of a few words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// Its name in configuration files.
    pub name: &'static str,
    /// The least and the largest value.
    pub range: (u32, u32),
    /// The value where none is given.
    pub default: u32,
    /// It must be a prime number.
    pub prime: bool,
    /// What the values are called, from 0 on; none for plain numbers.
    pub words: &'static [&'static str],
}

impl Setting {
    /// A setting that is a number within `range`, both ends included.
    pub const fn number(name: &'static str, range: (u32, u32), default: u32) -> Self {
        Self { name, range, default, prime: false, words: &[] }
    }

    /// A prime number.
    pub const fn prime(name: &'static str, range: (u32, u32), default: u32) -> Self {
        Self { prime: true, ..Self::number(name, range, default) }
    }

    /// One of these words, of which the first is the default.
    pub const fn words(name: &'static str, words: &'static [&'static str]) -> Self {
        Self { words, ..Self::number(name, (0, words.len() as u32 - 1), 0) }
    }

    /// The word for a value, if it has words.
    pub fn word(&self, value: u32) -> Option<&'static str> {
        self.words.get(value as usize).copied()
    }
}

/// The settings of one service: a value for each [`Setting`] of its method.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    method: MethodId,
    values: Vec<u32>,
    cookie_keys: Option<CookieKeys>,
}

/// A setting that cannot be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SettingError {
    /// The method has no such setting.
    #[error("{method} has no setting {name:?}{}", Has(.method.info().settings))]
    Unknown {
        /// The method.
        method: MethodId,
        /// What was given.
        name: String,
    },
    /// The value is out of range.
    #[error("{name} = {value}: give {}..={}", range.start(), range.end())]
    Range {
        /// The setting.
        name: &'static str,
        /// What was given.
        value: u64,
        /// What is possible.
        range: RangeInclusive<u32>,
    },
    /// None of the words.
    #[error("{name} = {value}: give one of {}", words.join(", "))]
    Word {
        /// The setting.
        name: &'static str,
        /// What was given.
        value: String,
        /// What is possible.
        words: &'static [&'static str],
    },
    /// The value is no prime number.
    #[error("{name} = {value}: give a prime number")]
    NotPrime {
        /// The setting.
        name: &'static str,
        /// What was given.
        value: u32,
    },
}

/// A setting that does not suit the pool.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{wrong}: {right}")]
pub struct Misfit {
    /// The setting's name in configuration files.
    pub setting: &'static str,
    /// What is wrong.
    pub wrong: String,
    /// What to do about it.
    pub right: String,
}

/// Lists settings in a message.
struct Has(&'static [Setting]);

impl fmt::Display for Has {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("; it has none"),
            all => {
                let names: Vec<_> = all.iter().map(|setting| setting.name).collect();
                write!(f, "; it has {}", names.join(", "))
            }
        }
    }
}

impl Settings {
    /// The defaults of a method.
    pub fn of(method: MethodId) -> Self {
        let values = method.info().settings.iter().map(|setting| setting.default).collect();
        Self { method, values, cookie_keys: None }
    }

    /// The same with keys of cookies that may change under connections; only stateless Cheetah looks at them.
    #[must_use]
    pub fn with_cookie_keys(self, cookie_keys: Option<CookieKeys>) -> Self {
        Self { cookie_keys, ..self }
    }

    /// The keys of cookies, where a cookie says which of them it was made by.
    pub fn cookie_keys(&self) -> Option<CookieKeys> {
        self.cookie_keys
    }

    /// The method whose settings these are.
    pub fn method(&self) -> MethodId {
        self.method
    }

    /// The value of a setting; 0 if the method has none of that name.
    pub fn get(&self, name: &str) -> u32 {
        self.iter().find(|(setting, _)| setting.name == name).map_or(0, |(_, value)| value)
    }

    /// The word that a setting stands at; `None` if the method has none of that name, or it has no
    /// words.
    pub fn word(&self, name: &str) -> Option<&'static str> {
        self.iter().find(|(setting, _)| setting.name == name)?.0.word(self.get(name))
    }

    /// Bytes that a published table of a service with these settings takes at most, header and whole
    /// elements, with so many states; `None` if tables of the method cannot be published.
    pub fn most_table_bytes(&self, states: usize) -> Option<usize> {
        let elements = self.method.info().most_elements?(self, states);
        Some(HEADER_BYTES + elements * ELEMENT_BYTES)
    }

    /// All settings with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Setting, u32)> {
        self.method.info().settings.iter().zip(self.values.iter().copied())
    }

    /// Sets one, checked.
    ///
    /// # Errors
    /// [`SettingError`]; nothing has changed then.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), SettingError> {
        let (at, setting) = self.find(name)?;
        let Setting { name, range: (least, most), prime, .. } = *setting;
        let range = least..=most;
        let Some(small) = u32::try_from(value).ok().filter(|value| range.contains(value)) else {
            return Err(SettingError::Range { name, value, range });
        };
        if prime && !is_prime(small.into()) {
            return Err(SettingError::NotPrime { name, value: small });
        }
        self.values[at] = small;
        Ok(())
    }

    /// Sets one that has words, by its word.
    ///
    /// # Errors
    /// [`SettingError`]; nothing has changed then.
    pub fn set_word(&mut self, name: &str, word: &str) -> Result<(), SettingError> {
        let (at, &Setting { name, words, .. }) = self.find(name)?;
        let value = words.iter().position(|known| *known == word);
        let value =
            value.ok_or_else(|| SettingError::Word { name, value: word.to_owned(), words })?;
        self.values[at] = value as u32;
        Ok(())
    }

    fn find(&self, name: &str) -> Result<(usize, &'static Setting), SettingError> {
        let mut all = self.method.info().settings.iter().enumerate();
        let unknown = || SettingError::Unknown { method: self.method, name: name.into() };
        all.find(|(_, setting)| setting.name == name).ok_or_else(unknown)
    }
}

/// Whether a number is prime, by trial division.
pub fn is_prime(n: u64) -> bool {
    n >= 2 && (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d))
}

/// The least prime number that is not less.
pub fn next_prime(n: u64) -> u64 {
    (n.max(2)..).find(|&n| is_prime(n)).unwrap_or(2)
}

/// A service, as a method's build face has to know it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceConfig {
    /// The method and its settings.
    pub settings: Settings,
    /// States are clients, not flows.
    pub client_affinity: bool,
    /// The service is UDP: flows have no SYN and no FIN.
    pub udp: bool,
    /// Outlives restarts: hash keys that must not change are drawn from it.
    pub seed: u64,
    /// Another one in each run.
    pub nonce: u64,
    /// States to make room for at first.
    pub capacity: usize,
    /// States at most; further flows are steered but not remembered.
    pub max_states: usize,
    /// Seconds after which a silent flow is forgotten.
    pub idle_seconds: u32,
}

/// A method, as the registry lists it.
pub trait Method {
    /// Its number, for ever: tables carry it.
    const ID: MethodId;
    /// Its name in configurations and commands.
    const NAME: &'static str;
    /// What it is, in half a sentence.
    const SUMMARY: &'static str;
    /// What it needs from around it.
    const NEEDS: Needs;
    /// What it can be configured with.
    const SETTINGS: &'static [Setting] = &[];
    /// The data plane's connection table has every connection of the service, with its backend.
    const TRACKS_ALL: bool = false;
    /// What several balancers of the same addresses have to do when a pool changes.
    const IN_FLEET: InFleet = InFleet::Alone;

    /// What a row of its table is called: `Dcode 17`, `slot 4 of the Maglev table`.
    fn row_name(row: u32) -> String {
        format!("row {row}")
    }

    /// Whether so many backends fit into tables of these settings.
    ///
    /// # Errors
    /// [`Misfit`], if there are too many.
    fn fits(settings: &Settings, backends: usize) -> Result<(), Misfit> {
        let _ = (settings, backends);
        Ok(())
    }
}

/// A method whose tables can be published. The plane in user space runs every one of them, the
/// kernel plane those that have a program there.
pub trait Publish: Method {
    /// What its tables hold. They decide: [`Decide`].
    type Body: Body;

    /// Elements that the body of a table of these settings fills at most, with so many states and any pool
    /// that [`fits`](Method::fits).
    fn most_elements(settings: &Settings, states: usize) -> usize;

    /// The build face of a service. `published` is the table that an earlier run left in force, if
    /// there is one: whatever can go on from it does.
    fn builder(config: &ServiceConfig, published: Option<Arc<Image>>) -> Box<dyn Build>;
}

/// Makes sure that the tables of a published method decide, whatever tells flows apart.
pub(crate) const fn decides<M: Publish>()
where
    Table<M::Body>: Decide<StateKey> + Decide<u64>,
{
}

/// What a build made.
#[derive(Clone, Debug)]
pub struct Built<K = StateKey> {
    /// The table, to be published.
    pub table: Arc<Image>,
    /// Flows that the data plane must know exactly, with their backends: to be pinned before the
    /// table is seen. When no packet sees the former table any more, all other pins of the
    /// service go. Those first that need it most.
    pub pinned: Vec<(K, BackendId)>,
    /// States whose backend is no member any more: forgotten, inevitably broken. A UDP flow that
    /// goes on elsewhere must be reported anew, so once the table is published the caller takes
    /// these out of the "seen recently" filter.
    pub orphans: Vec<K>,
    /// States that the table leads elsewhere, as it was built by another balancer that knew nothing of them.
    pub astray: usize,
}

impl<K> Built<K> {
    /// A table that needs nothing beside it.
    pub fn alone(table: Image) -> Self {
        Self { table: Arc::new(table), pinned: Vec::new(), orphans: Vec::new(), astray: 0 }
    }
}

/// Flows that packets know to live ([`Memory::is_armed`](crate::Memory::is_armed)).
#[derive(Clone, Copy)]
pub struct Armed<'a> {
    /// Another number whenever some may have gone from among them.
    pub period: u64,
    /// Whether one is among them, by its hash under the key of the table that is built.
    pub has: &'a (dyn Fn(u64) -> bool + Sync),
}

impl Armed<'_> {
    /// None at all.
    pub const NONE: Self = Self { period: 0, has: &|_| false };
}

/// The published table and the draft of the next one, for build faces that keep nothing else.
#[derive(Clone, Debug, Default)]
pub struct Drafts {
    published: Option<Arc<Image>>,
    draft: Option<Arc<Image>>,
}

impl Drafts {
    /// Keeps a table as the draft.
    pub fn draft<K>(&mut self, table: Image) -> Built<K> {
        let built = Built::alone(table);
        self.draft = Some(built.table.clone());
        built
    }

    /// The draft is in force now: it takes the place of the published table.
    pub fn publish(&mut self) {
        self.published = self.draft.take().or(self.published.take());
    }

    /// Forgets the draft; the published table stays.
    pub fn discard(&mut self) {
        self.draft = None;
    }

    /// The table that packets follow; `None` before the first.
    pub fn published(&self) -> Option<&Arc<Image>> {
        self.published.as_ref()
    }
}

/// Where a connection is in its life, as far as the balancer can see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Its SYN was seen, nothing else.
    Opening,
    /// More packets were seen.
    Open,
    /// FIN or RST was seen.
    Closing,
}

/// A state, as far as a control plane wants to know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// Where it lives.
    pub backend: BackendId,
    /// How far its connection has come, as its packets show.
    pub phase: Phase,
    /// When its first packet came last, in seconds; where that is not kept, as `seen`.
    pub born: u32,
    /// When it was seen alive last, in seconds.
    pub seen: u32,
}

/// Whether a connection is worth [telling](Build::tell_connections), by its flow and its backend.
pub type Elsewhere<K = StateKey> = Box<dyn FnMut(&K, BackendId) -> bool + Send>;

/// The build face of a method: one service's states, and tables made of them.
///
/// A method that needs no states ([`Needs::states`]) has only to [`build`](Self::build); what it
/// is told of flows it forgets, and it has no pending ones.
pub trait Build<K = StateKey>: Send {
    /// The method.
    fn method(&self) -> MethodId;

    /// Builds the table of a pool from all states. It counts as published when
    /// [`publish_draft`](Self::publish_draft) says so, or as never built when
    /// [`discard_draft`](Self::discard_draft) does. A draft that is neither is discarded by the
    /// next one. `now` is in seconds.
    ///
    /// # Errors
    /// [`BuildError`] if the pool does not fit. The former table stays.
    fn draft(
        &mut self,
        generation: u64,
        members: &[Member],
        now: u32,
    ) -> Result<Built<K>, BuildError>;

    /// As [`draft`](Self::draft), where packets know of some connections that they live. A first packet does
    /// not move these, so they need not be pinned.
    ///
    /// # Errors
    /// As [`draft`](Self::draft).
    fn draft_beside(
        &mut self,
        generation: u64,
        members: &[Member],
        now: u32,
        armed: Armed<'_>,
    ) -> Result<Built<K>, BuildError> {
        let _ = armed;
        self.draft(generation, members, now)
    }

    /// As [`draft`](Self::draft), of a table that another balancer has built and all of a fleet follow
    /// ([`InFleet::Shared`]).
    ///
    /// # Errors
    /// [`BuildError::Parcel`] if it does not suit the settings, or the method has no such tables.
    fn draft_of(
        &mut self,
        generation: u64,
        members: &[Member],
        parcel: &Parcel,
    ) -> Result<Built<K>, BuildError> {
        let _ = (generation, members);
        Err(BuildError::Parcel { found: parcel.bits(), wanted: 0 })
    }

    /// The backend of each row that the next table of this pool has, of a method whose rows go by the pool alone. No
    /// state is looked at, and nothing is drafted; none with other methods.
    ///
    /// # Errors
    /// [`BuildError`] if the pool does not fit.
    fn rows_of(&mut self, members: &[Member]) -> Result<Option<Vec<u16>>, BuildError> {
        let _ = members;
        Ok(None)
    }

    /// The table drafted last is published: from now on packets follow it.
    fn publish_draft(&mut self);

    /// The table drafted last cannot be published: the one before stays.
    ///
    /// # Errors
    /// [`BuildError::Lookup`] if states that the draft had no place for cannot be taken back.
    fn discard_draft(&mut self) -> Result<(), BuildError>;

    /// Builds a table that is published at once.
    ///
    /// # Errors
    /// As [`draft`](Self::draft).
    fn build(
        &mut self,
        generation: u64,
        members: &[Member],
        now: u32,
    ) -> Result<Built<K>, BuildError> {
        let built = self.draft(generation, members, now)?;
        self.publish_draft();
        Ok(built)
    }

    /// The table that is published.
    fn published(&self) -> Option<&Arc<Image>>;

    /// From the next table on servers have these numbers in cookies: each the one of its place, with the
    /// departure by which it left, if it did. Balancers with the same numbers read each other's cookies. No
    /// matter for methods without cookies.
    fn number_servers(&mut self, servers: &[(String, Option<u64>)]) {
        let _ = servers;
    }

    /// Goes on with numbers that servers had in an earlier run, in the same form, where no table of that run is
    /// left to read them from. No matter for methods without cookies.
    fn resume_numbers(&mut self, servers: &[(String, Option<u64>)]) {
        let _ = servers;
    }

    /// The numbers that servers have, in the same form, once these are the members; empty for methods
    /// without cookies.
    fn numbered(&self, members: &[Member]) -> Vec<(String, Option<u64>)> {
        let _ = members;
        Vec::new()
    }

    /// Whether another table of the same pool is due, because time has passed.
    fn due(&self, now: u32) -> bool {
        let _ = now;
        false
    }

    /// Whether packets ask the data plane's connection table for flows that were put there once and would
    /// not be put there now: then it is worth [telling](Self::tell_connections) which are left.
    fn asks_for_former(&self) -> bool {
        false
    }

    /// In the next table packets ask for all flows that the data plane's connection table may have: the service
    /// gets addresses or ports, of which it may have some of an earlier time that were not
    /// [told](Self::tell_connections). That table is [due](Self::due).
    fn ask_again(&mut self) {}

    /// Which connections are worth telling, by the published table; it is asked on another thread. What is
    /// left out changes nothing.
    fn elsewhere(&self) -> Elsewhere<K> {
        Box::new(|_, _| true)
    }

    /// Tells which connections of the service the data plane's connection table has at backends that are
    /// still the ones they began at, each with its backend. It was read when every packet that saw a table
    /// before the published one had been decided, and each that was there from beginning to end is among
    /// them. If packets need to ask for fewer flows then, another table is [due](Self::due).
    fn tell_connections(&mut self, connections: &mut dyn Iterator<Item = (K, BackendId)>) {
        let _ = connections;
    }

    /// A flow has started at a backend. Whether that is remembered.
    ///
    /// # Errors
    /// [`BuildError::Lookup`] if the states have no room for it.
    fn start(&mut self, key: K, backend: BackendId, now: u32) -> Result<bool, BuildError> {
        let _ = (key, backend, now);
        Ok(false)
    }

    /// Takes a state over from an earlier run.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    fn restore(&mut self, key: K, backend: BackendId, now: u32) -> Result<(), BuildError> {
        let _ = (key, backend, now);
        Ok(())
    }

    /// Takes a state over from another builder of the same service, as it is.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    fn adopt(&mut self, key: K, state: Known) -> Result<(), BuildError> {
        let _ = (key, state);
        Ok(())
    }

    /// The end of a flow was seen; late packets may still come.
    fn end(&mut self, key: &K, now: u32) {
        let _ = (key, now);
    }

    /// Forgets a state of which it is known that no more packets come, as a backend says that holds
    /// the connection.
    fn forget(&mut self, key: &K) {
        let _ = key;
    }

    /// Forgets all states of a backend that is gone: they are inevitably broken. Returns them.
    fn forget_backend(&mut self, backend: BackendId) -> Vec<K> {
        let _ = backend;
        Vec::new()
    }

    /// Looks at every state: `active` tells whether the data plane has seen a packet of the flow
    /// since the last call. Forgets the idle ones and returns them.
    fn sweep(&mut self, now: u32, active: &dyn Fn(&K) -> bool) -> Vec<K> {
        let _ = (now, active);
        Vec::new()
    }

    /// An open flow that was seen alive is not watched for up to so many seconds: the data plane need not
    /// notice its packets, and its silence counts only from where its watch [begins](Self::watch). 0, as
    /// it is at first: all are always watched.
    fn rest(&mut self, seconds: u32) {
        let _ = seconds;
    }

    /// From now on it is told of the connections of these backends, of which each has ended when that
    /// is [said](Self::forget), and not when it is silent; of all others their silence counts from now on.
    fn told_of(&mut self, backends: &BTreeSet<BackendId>, now: u32) {
        let _ = (backends, now);
    }

    /// Shows the states that are to be watched from now on.
    fn each_due(&self, now: u32, visit: &mut dyn FnMut(&K, Known)) {
        let _ = now;
        self.each_state(visit);
    }

    /// The states that [`each_due`](Self::each_due) has shown for `now` have been watched since `since`
    /// at the latest.
    fn watch(&mut self, now: u32, since: u32) {
        let _ = (now, since);
    }

    /// A state.
    fn known(&self, key: &K) -> Option<Known> {
        let _ = key;
        None
    }

    /// Shows all states with what is known of them.
    fn each_state(&self, visit: &mut dyn FnMut(&K, Known)) {
        let _ = visit;
    }

    /// Number of states.
    fn states(&self) -> usize {
        0
    }

    /// States of a backend; `None` if the method has no states.
    fn states_of(&self, backend: BackendId) -> Option<usize> {
        let _ = backend;
        None
    }

    /// Remembers so many states at most from now on ([`ServiceConfig::max_states`]). Those that are
    /// there stay.
    fn set_max_states(&mut self, most: usize) {
        let _ = most;
    }

    /// Forgets flows that are silent for so many seconds from now on
    /// ([`ServiceConfig::idle_seconds`]). Where tables say it, the next one does.
    fn set_idle_seconds(&mut self, seconds: u32) {
        let _ = seconds;
    }

    /// Flows that were not remembered because there were too many.
    fn refused(&self) -> u64 {
        0
    }

    /// Bytes of the control structure.
    fn control_bytes(&self) -> usize {
        0
    }

    /// Whether packets of a flow that is pending at `backend` would go there by the published
    /// table alone, so that the pending entry can go.
    fn agrees(&self, key: &K, backend: BackendId) -> bool {
        let _ = (key, backend);
        true
    }

    /// Whether the published table leads a flow's packets to a backend, first ones apart.
    fn leads_to(&self, key: &K, backend: BackendId) -> bool {
        let _ = (key, backend);
        true
    }

    /// Whether a flow falls on a reserved row, where packets ask the pending table anyway.
    fn on_reserved(&self, key: &K) -> bool {
        let _ = key;
        false
    }
}

/// The answer face: packets from a backend back to a client, where they pass the balancer.
///
/// One per connection. Both directions are rewritten, so that the client carries what the
/// balancer wants to read, and the backend sees what it sent.
pub trait Answer {
    /// The TSval to send to the client instead of the backend's `tsval`. `cookie` is
    /// [`Decision::cookie`](crate::Decision::cookie) of the connection's first packet.
    fn outgoing(&mut self, tsval: u32, cookie: u16) -> u32;

    /// The TSecr that the backend must get instead of the client's `tsecr`.
    fn incoming(&mut self, tsecr: u32) -> u32;
}
