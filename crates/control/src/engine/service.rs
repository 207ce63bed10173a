//! One service at run time: its pool, its builder, and the log of its states.

use super::EngineError;
use super::beyond::Refusals;
use super::claims::Claims;
use super::cookies::{settings_of, shared_seed};
use super::discover::{Discovery, Found};
use super::half_open::HalfOpen;
use super::held::Held;
use super::loads::Loads;
use super::places::{Salt, Salts};
use super::prefixes::Counted;
use super::shared::Base;
use super::shares::Rising;
use super::sources::Listed;
use super::turn::{InForce, Turn};
use super::update::Trouble;
use super::young::Young;
use crate::config::{
    Affinity, AllDown, Backend, Bounds, DeadConnections, Limits, Protocol, Service, Spoken,
    is_name, no_backend,
};
use crate::store::{Op, StateLog, StateRecord};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::warn;
use weir_fleet::Share;
use weir_hash::HashKey;
use weir_plane::{SourceTable, VipKey};
use weir_steering::{
    BackendId, Build, Event, EventKind, Image, Known, Member, MethodId, Phase, Role, Scheduler,
    ServiceConfig, ServiceId, ServiceState, StateKey,
};
use weir_wire::{FlowKey, map_address};

/// A member of a pool at run time.
#[derive(Clone, Debug)]
pub(super) struct PoolMember {
    pub id: BackendId,
    pub incarnation: u32,
    pub wanted: Backend,
    pub up: bool,
    /// Whether it has been up before, as its check said or as was assumed at the start.
    pub proven: bool,
    /// Since when the health check has it down.
    pub down_since: Option<Instant>,
    /// The weight that it says is its own.
    pub spoken: Option<Spoken>,
    /// It has come up not long ago, and gets a part of its weight.
    pub rising: Option<Rising>,
    /// What the last health check said.
    pub detail: Arc<str>,
    /// It was looked up, and is not the file's or a command's.
    pub found: Option<Found>,
}

/// Which backends count as up although their checks have them down.
#[derive(Clone, Copy)]
enum AsUp {
    Nobody,
    /// Those that have been up.
    Proven,
    /// All, as none has been up.
    All,
}

impl AsUp {
    fn has(self, member: &PoolMember) -> bool {
        match self {
            Self::Nobody => false,
            Self::Proven => member.proven,
            Self::All => true,
        }
    }
}

/// States that a service has room for at first; most of a thousand services have few.
pub(super) const FEWEST_STATES: usize = 256;

/// More pins than this take longer than it takes to arm.
pub(super) const MANY_PINS: usize = 8192;

/// States with their backends.
pub(super) type Pins = Vec<(ServiceState, BackendId)>;

pub(super) struct ServiceRuntime {
    pub number: ServiceId,
    pub seed: u64,
    pub generation: u64,
    /// What the file wants.
    pub configured: Service,
    /// What commands have put on its lists of sources.
    pub listed: Listed,
    /// What tells its addresses apart.
    pub salts: Salts,
    /// What packets follow.
    pub in_force: InForce,
    /// The way from the latter to the former, if they differ.
    pub turn: Option<Turn>,
    pub left_connections: bool,
    /// Flows that began since the last *collect* may be pending and were not reported.
    pub unreported: bool,
    pub pool: Vec<PoolMember>,
    /// The build face of its method.
    pub builder: Counted,
    pub log: Option<StateLog>,
    /// What that is called: the service's first name.
    pub log_name: String,
    /// Where that stands.
    run_dir: PathBuf,
    /// States that it may have, half-open ones included.
    pub states: usize,
    /// Those that are not half-open.
    most_open: usize,
    /// Those of one source prefix that are not half-open; 0: as many as there are.
    pub most_of_prefix: usize,
    /// Connections that were not remembered because there are so many.
    beyond: u64,
    /// Connections that were not remembered because there are so many of their prefix.
    pub beyond_prefix: u64,
    /// The last of those.
    pub crowded: Option<StateKey>,
    /// Those of which only the SYN was seen.
    pub half_open: HalfOpen,
    /// What has been reported while its states are lent; none: they are here.
    pub kept: Option<VecDeque<(Event, u32)>>,
    /// What counting its connections by prefix takes.
    pub held: Held,
    /// Half-open connections that were forgotten, when that was last said.
    pub forgotten_before: u64,
    /// When there were more half-open connections than there is room for.
    pub flooded: Option<Instant>,
    /// That packets do not find it, or are taken from other sources than they are to be; and why.
    pub unlisted: Option<String>,
    /// The data plane may have been told where QUIC ids lead.
    pub told_ids: bool,
    /// The numbers that the fleet has given to servers, for cookies.
    pub servers: Option<Vec<(String, Option<u64>)>>,
    /// What its scheduler goes by.
    pub loads: Loads,
    /// What is known of what is looked up for it, by the names of entries.
    pub discoveries: BTreeMap<String, Discovery>,
    /// The pool has changed since the last table was published.
    pub dirty: bool,
    /// The backends that were in maintenance at the last look.
    pub away: BTreeSet<String>,
    /// What is to be said of connections that were not remembered.
    pub refusals: Refusals,
    /// Connections of draining backends that there was no room to pin, and when that was so, in seconds.
    pub unpinned: (usize, u32),
    /// Hash key under which its flows are armed in the activity marks.
    pub marked_under: Option<HashKey>,
    /// Other keys under which packets have marked flows since.
    pub marked_since: Vec<HashKey>,
    /// Backends of which all flows are armed.
    pub armed_all_of: BTreeSet<BackendId>,
    /// Flows that began since.
    pub begun_since: usize,
    /// Keys under which the marks were made that are to be read next.
    pub read_under: Vec<HashKey>,
    /// States whose backend is gone. A UDP flow among them must look new again, so that its next
    /// packets are reported.
    pub astray: Vec<StateKey>,
    /// States whose backend has no place in the table that is built and not published.
    pub orphans: Vec<StateKey>,
    /// Backends that have left the pool, and not yet the published table.
    pub leaving: Vec<BackendId>,
    /// Connections that were known of those when they left.
    pub leaves: usize,
    /// Why the last update was not finished, and when it is tried again.
    pub trouble: Option<Trouble>,
    /// Why states could not be written down: a control plane that dies now forgets some.
    pub unwritten: Option<String>,
    /// What was written down of an earlier run's connections and is not there any more.
    pub lost: Option<String>,
    pub last_update: Option<Duration>,
    /// The backends whose agents say what connections they have.
    pub told_of: BTreeSet<BackendId>,
    /// Of those: connections that have begun, and are not told of yet.
    pub young: Young,
    /// Those of them that the table has which is built now.
    pub folded: Vec<(StateKey, BackendId)>,
    /// The pool that all balancers of a fleet have, where they change it in step; none: this one's own counts.
    pub agreed: Option<Vec<Share>>,
    /// Connections that an agent has said to be its backend's, and that are another one's until that has ended.
    pub claims: Claims,
    /// Of those that are told of, the backends whose agents are there.
    pub heard: BTreeSet<BackendId>,
    /// Backends that are dead as this balancer has it, while there is no step that says so.
    pub dead_here: BTreeSet<String>,
    /// Its table is being made without the other balancers.
    pub alone: bool,
    /// The table that packets follow is one that an earlier process has made, maybe without the other balancers.
    pub unsure: bool,
    /// The digest of the rows that its next table is to have, as the leader has made them.
    pub wanted_rows: Option<String>,
    /// When the last step was made here.
    pub agreed_at: Option<Instant>,
    /// The published table came about in step, and no flow is pending.
    pub stepped: bool,
    /// What agents have said in a step that has begun at their backends.
    pub collected: HashMap<StateKey, BackendId>,
    /// The table of the fleet that packets follow, and the one that they are to follow next, where all balancers have
    /// the same.
    pub base: Option<Base>,
    pub next_base: Option<Base>,
    /// The backends without which that is followed, as the configuration here did not have them yet.
    pub unknown: Vec<String>,
    /// A table is built for all.
    pub to_be_shared: bool,
}

impl ServiceRuntime {
    /// The sources that its packets are to be taken from, `Some(None)`: from all. None if what they are was
    /// not read: those in force stay.
    pub(super) fn sources(&self) -> Option<Option<&SourceTable>> {
        match self.lists() {
            None => Some(None),
            Some(lists) => lists.table().map(Some),
        }
    }

    /// `may_wait`: where there is no room for its log, it is begun later.
    pub fn new(
        ((number, seed), may_wait): ((ServiceId, u64), bool),
        configured: Service,
        log_name: String,
        limits: &Limits,
        run_dir: &Path,
        published: Option<Image>,
        now: u32,
    ) -> Result<(Self, Vec<StateRecord>), EngineError> {
        let (mut log, mut records, mut unwritten) = (None, Vec::new(), None);
        if configured.method.id().needs().states {
            let path = log_path(run_dir, &log_name);
            match StateLog::open(&path) {
                Ok((opened, found)) => (log, records) = (Some(opened), found),
                // There is nothing in it to be lost. Flows are forwarded all the same.
                Err(error) if may_wait && error.is_full() && !path.exists() => {
                    warn!(service = configured.name, %error, "cannot write down states");
                    unwritten = Some(error.to_string());
                }
                Err(error) => return Err(error.into()),
            }
        }
        let states = room_of(&configured, limits);
        let told_ids = published.is_some();
        let config = config_of(&configured, seed, states, records.len().max(FEWEST_STATES), now);
        let builder = configured.method.builder(&config, published.map(Arc::new));
        let mut builder = Counted::new(builder, seed ^ u64::from(now));
        let most_of_prefix = limits.states_per_prefix as usize;
        builder.count_prefixes(most_of_prefix > 0);
        let marked_under = builder.published().map(|image| image.header().key);
        let mut half_open = HalfOpen::default();
        half_open.set_budget(limits.half_open_flows as usize);
        let mut runtime = Self {
            number,
            seed,
            generation: 0,
            listed: Listed::default(),
            salts: Salts::of(&configured),
            in_force: InForce::of(&configured),
            turn: None,
            left_connections: false,
            unreported: false,
            configured,
            log_name,
            run_dir: run_dir.to_owned(),
            states,
            most_open: limits.states_per_service as usize,
            most_of_prefix,
            beyond: 0,
            beyond_prefix: 0,
            crowded: None,
            half_open,
            kept: None,
            held: Held::default(),
            forgotten_before: 0,
            flooded: None,
            unlisted: None,
            told_ids,
            servers: None,
            pool: Vec::new(),
            builder,
            log,
            loads: Loads::default(),
            discoveries: BTreeMap::new(),
            dirty: true,
            away: BTreeSet::new(),
            refusals: Refusals::default(),
            unpinned: (0, 0),
            marked_under,
            marked_since: Vec::new(),
            armed_all_of: BTreeSet::new(),
            begun_since: 0,
            read_under: Vec::new(),
            astray: Vec::new(),
            orphans: Vec::new(),
            leaving: Vec::new(),
            leaves: 0,
            trouble: None,
            unwritten,
            lost: None,
            last_update: None,
            told_of: BTreeSet::new(),
            young: Young::default(),
            folded: Vec::new(),
            agreed: None,
            claims: Claims::default(),
            heard: BTreeSet::new(),
            dead_here: BTreeSet::new(),
            alone: false,
            unsure: false,
            wanted_rows: None,
            agreed_at: None,
            stepped: false,
            collected: HashMap::new(),
            base: None,
            next_base: None,
            unknown: Vec::new(),
            to_be_shared: false,
        };
        runtime.set_young(limits);
        Ok((runtime, records))
    }

    /// What the next build face is made of.
    pub fn service_config(&self, capacity: usize, now: u32) -> ServiceConfig {
        config_of(&self.configured, self.seed, self.states, capacity, now)
    }

    /// Forgets connections that are silent for as long as is configured now.
    pub fn set_idle_time(&mut self) {
        self.builder.set_idle_seconds(idle_seconds(&self.configured));
    }

    /// Remembers so many connections at most from now on.
    pub fn set_room(&mut self, limits: &Limits) {
        self.states = room_of(&self.configured, limits);
        self.most_open = limits.states_per_service as usize;
        self.most_of_prefix = limits.states_per_prefix as usize;
        self.count_prefixes();
        self.builder.set_max_states(self.states);
        self.half_open.set_budget(limits.half_open_flows as usize);
        self.set_young(limits);
    }

    /// States that it may have which are not half-open.
    pub fn most_open(&self) -> usize {
        self.most_open
    }

    /// A connection was not remembered because there are so many.
    pub fn count_beyond(&mut self, key: StateKey) {
        self.beyond += 1;
        self.refusals.all.began(key);
    }

    /// Counts its states by prefix, if there is a limit to that.
    pub fn count_prefixes(&mut self) {
        self.builder.count_prefixes(self.most_of_prefix > 0);
    }

    /// Connections that were not remembered because there were too many.
    pub fn refused(&self) -> u64 {
        self.builder.refused() + self.beyond
    }

    /// The method that the file wants.
    pub fn method_wanted(&self) -> MethodId {
        self.configured.method.id()
    }

    pub fn is_by_client(&self) -> bool {
        self.configured.affinity == Affinity::Client
    }

    /// The address and port that it listens on, of several the first; of a range of ports, any.
    pub fn vip(&self) -> VipKey {
        vip_of(&self.configured)
    }

    /// Something has changed since the last update failed: it need not wait any longer.
    pub fn try_at_once(&mut self) {
        if let Some(trouble) = &mut self.trouble {
            trouble.again = Instant::now();
        }
    }

    /// What health checks call a backend of this service.
    pub fn target(&self, backend: BackendId) -> u64 {
        self.targets().start() | u64::from(backend.get())
    }

    /// What health checks may call its backends.
    pub fn targets(&self) -> RangeInclusive<u64> {
        let first = u64::from(self.number.0) << 16;
        first..=first | u64::from(u16::MAX)
    }

    pub fn member(&self, name: &str) -> Option<&PoolMember> {
        self.pool.iter().find(|member| member.wanted.name == name)
    }

    pub fn member_mut(&mut self, name: &str) -> Option<&mut PoolMember> {
        self.pool.iter_mut().find(|member| member.wanted.name == name)
    }

    pub fn by_id(&self, id: BackendId) -> Option<&PoolMember> {
        self.pool.iter().find(|member| member.id == id)
    }

    /// The name of a backend.
    pub fn name_of(&self, backend: BackendId) -> Option<String> {
        self.by_id(backend).map(|member| member.wanted.name.clone())
    }

    /// Connections of a backend, those included that have begun and of which its agent has not told yet; `None` if
    /// the method has no states.
    pub fn states_of(&self, backend: BackendId) -> Option<usize> {
        Some(self.builder.states_of(backend)? + self.young.of(backend))
    }

    /// A backend has left the pool, which the next table is made of.
    pub fn leave(&mut self, backend: BackendId) {
        self.leaves += self.states_of(backend).unwrap_or(0);
        self.leaving.push(backend);
    }

    /// What the control plane knows of a flow.
    pub fn known(&self, key: &StateKey) -> Option<Known> {
        self.builder.known(key)
    }

    /// The pool as steering sees it: where balancers change it in step, as they have agreed. A backend that they
    /// have not agreed on yet gets nothing.
    pub fn members(&self) -> Vec<Member> {
        let Some(agreed) = &self.agreed else { return self.own_members() };
        let shares: HashMap<&str, &Share> =
            agreed.iter().map(|share| (share.name.as_str(), share)).collect();
        let dead = |role: Role| role == Role::Down;
        let own: Vec<bool> = match self.dead_here.is_empty() {
            true => vec![false; self.pool.len()],
            false => self.own_members().iter().map(|member| dead(member.role)).collect(),
        };
        let member = |(member, dead): (&PoolMember, &bool)| {
            let share = shares.get(member.wanted.name.as_str());
            let role = match share {
                Some(share) if share.down || self.keeps_off(member, *dead) => Role::Down,
                Some(share) if !share.drains => Role::Serving,
                _ => Role::Draining,
            };
            let (backend, name) = (member.id, member.wanted.name.clone());
            Member { backend, name, weight: share.map_or(0, |share| share.weight), role }
        };
        self.pool.iter().zip(&own).map(member).collect()
    }

    /// The pool as this balancer sees it.
    pub fn own_members(&self) -> Vec<Member> {
        let as_up = self.down_as_up();
        let follows = self.scheduler().0 == Scheduler::Awrr;
        let factor = |id| if follows { self.loads.factor(id) } else { 1 };
        self.pool
            .iter()
            .zip(self.weights())
            .map(|(member, weight)| Member {
                backend: member.id,
                name: member.wanted.name.clone(),
                weight: weight.saturating_mul(factor(member.id)),
                role: match (
                    member.up || as_up.has(member),
                    self.drains(member) || self.is_spare(member),
                ) {
                    (false, _) => Role::Down,
                    (true, true) => Role::Draining,
                    (true, false) => Role::Serving,
                },
            })
            .collect()
    }

    /// Whether it is a backup that another makes needless: it keeps what connections it has.
    pub fn is_spare(&self, member: &PoolMember) -> bool {
        let serves = |other: &PoolMember| !other.wanted.backup && self.takes_new(other) && other.up;
        // With all of them down, the others are the likelier ones to be well.
        member.wanted.backup && (!member.up || self.pool.iter().any(serves))
    }

    /// What has become of a backend, in a word.
    pub fn state_of(&self, member: &PoolMember) -> &'static str {
        match (member.up, member.wanted.drain) {
            (false, _) => "down",
            (true, _) if self.away_until(member).is_some() => "maintenance",
            (true, _) if member.is_gone() => "draining",
            (true, true) => "draining",
            (true, false) if self.is_spare(member) => "backup",
            (true, false) => "up",
        }
    }

    /// What new connections meet if the checks have down every backend that could take them; `None`
    /// if one is up, or none could.
    pub fn all_down(&self) -> Option<AllDown> {
        // Without any check nobody is down by one.
        let own = || self.configured.backend_checks.values().flatten().next();
        let all_down = self.configured.check.as_ref().or_else(own)?.all_down;
        let mut takers = self.pool.iter().filter(|member| self.takes_new(member));
        let first = takers.next()?;
        (!first.up && takers.all(|member| !member.up)).then_some(all_down)
    }

    /// Whether packets for a backend are answered by resets: it is down, and with nobody up there is no better
    /// place for its clients.
    pub fn resets(&self, member: &PoolMember) -> bool {
        let takes = |member: &PoolMember| member.up && self.takes_new(member);
        let check = (!member.up).then(|| self.configured.check_of(&member.wanted)).flatten();
        check.is_some_and(|check| check.dead_connections == DeadConnections::Reset)
            && self.pool.iter().any(takes)
            && !self.counts_as_up(member)
    }

    /// Who gets new connections although its check has it down.
    fn down_as_up(&self) -> AsUp {
        if self.all_down() != Some(AllDown::Keep) {
            return AsUp::Nobody;
        }
        // A check that has never passed may say that there is nothing at the address.
        let mut takers =
            self.pool.iter().filter(|member| self.takes_new(member) && !self.is_spare(member));
        if takers.any(|member| member.proven) { AsUp::Proven } else { AsUp::All }
    }

    /// Whether a backend may get new connections as far as its check is concerned.
    pub fn takes_as_up(&self, member: &PoolMember) -> bool {
        member.up || self.down_as_up().has(member)
    }

    /// Takes up a report of the data plane. What is stored here before the report counts as
    /// consumed survives a crash; seen twice, it does no harm.
    pub fn take_event(&mut self, event: &Event, now: u32) -> Result<(), EngineError> {
        if self.kept.is_some() {
            return self.keep_event(event, now);
        }
        match event.kind {
            EventKind::Start => self.start(event.state.key, event.backend, now),
            EventKind::End => {
                // What an agent says of its connections no packet says, whoever sent it.
                match self.builder.known(&event.state.key) {
                    Some(known)
                        if !self.is_told_of(known.backend)
                            && !self.is_reset_of_another(event, known) =>
                    {
                        self.end(&event.state.key, known, now)
                    }
                    Some(_) => Ok(()),
                    None => {
                        self.connection_ended_unremembered(&event.state.key);
                        Ok(())
                    }
                }
            }
        }
    }

    /// Whether a report of an end may be of a reset that the balancer has sent for a backend that is down, where a
    /// connection with the same addresses and ports has begun elsewhere since.
    fn is_reset_of_another(&self, event: &Event, known: Known) -> bool {
        known.backend != event.backend
            && self.by_id(event.backend).is_some_and(|member| self.resets(member))
    }

    /// A connection has ended, or one half of it. That is written down, too: whoever reads the log forgets it as
    /// soon as this process would have.
    pub fn end(&mut self, key: &StateKey, known: Known, now: u32) -> Result<(), EngineError> {
        self.builder.end(key, now);
        let ends = self.builder.known(key).is_some_and(|known| known.phase == Phase::Closing);
        if ends {
            self.release(key, known);
        }
        if let Some(log) = &mut self.log
            && ends
            && known.phase != Phase::Closing
        {
            let ended = record(Op::Add, key, Some(known.backend), now);
            log.append(&StateRecord { flags: ENDED, ..ended })?;
        }
        Ok(())
    }

    /// Keeps apart what cannot be written down from what cannot be remembered. The former is said
    /// once and shown by `weir status`; tables hold those flows all the same.
    ///
    /// # Errors
    /// What is no [`EngineError::Store`].
    pub fn remembered(
        &mut self,
        take: impl FnOnce(&mut Self) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        match take(self) {
            Err(error @ EngineError::Store(_)) => {
                self.written(Err(error));
                Ok(())
            }
            taken => taken,
        }
    }

    /// What could not be written down is tried again, all of it.
    pub fn write_again(&mut self, now: u32) {
        if self.unwritten.is_some() {
            let written = self.begin_log().and_then(|()| self.rewrite_log(now));
            self.written(written);
        }
    }

    /// Begins the log that a start has found no room for.
    fn begin_log(&mut self) -> Result<(), EngineError> {
        if self.log.is_none() && self.in_force.method.id().needs().states {
            self.log = Some(StateLog::open(log_path(&self.run_dir, &self.log_name))?.0);
        }
        Ok(())
    }

    /// After the pool of before is back: what has come to its members since it was `changed` stays, such as what
    /// checks have said of them, and the numbers that they were given for it.
    pub fn keep_what_was_said(&mut self, changed: &[PoolMember], now: &[PoolMember]) {
        let place = |one: &PoolMember| (one.wanted.address, one.wanted.port);
        for member in &mut self.pool {
            let same = |one: &&PoolMember| {
                one.wanted.name == member.wanted.name && place(one) == place(member)
            };
            let (changed, now) = (changed.iter().find(same), now.iter().find(same));
            let (Some(changed), Some(now)) = (changed, now) else { continue };
            member.proven |= now.proven;
            if (now.up, now.spoken) != (changed.up, changed.spoken) {
                self.dirty = true;
                let PoolMember { up, down_since, spoken, rising, detail, .. } = now.clone();
                *member = PoolMember { up, down_since, spoken, rising, detail, ..member.clone() };
            }
            if now.id != changed.id {
                self.dirty = true;
                (member.id, member.incarnation) = (now.id, now.incarnation);
            }
        }
    }

    pub fn written(&mut self, written: Result<(), EngineError>) {
        if let Err(error) = written {
            if self.unwritten.is_none() {
                warn!(service = self.configured.name, %error, "cannot write down states");
            }
            self.unwritten = Some(error.to_string());
        }
    }

    /// A flow has started at a backend.
    pub fn start(
        &mut self,
        key: StateKey,
        backend: BackendId,
        now: u32,
    ) -> Result<(), EngineError> {
        if self.by_id(backend).is_none() {
            // The backend was removed while the report was on its way: inevitably broken.
            self.astray.push(key);
            return Ok(());
        }
        if self.told(key, backend) {
            return Ok(());
        }
        if self.is_told_of(backend) {
            self.begins(key, backend, now);
            return Ok(());
        }
        let known = self.builder.known(&key);
        let tells = self.tells_half_open();
        let open = self.builder.states().saturating_sub(self.half_open.waiting());
        if tells && known.is_none() && open >= self.most_open {
            self.count_beyond(key);
            return Ok(());
        }
        if known.is_none() && self.is_crowded(&key) {
            self.count_beyond_prefix(key);
            return Ok(());
        }
        let known = known.filter(|state| state.backend == backend);
        if !self.builder.start(key, backend, now)? {
            self.refusals.all.began(key);
            return Ok(());
        }
        // It begins, or its SYN was repeated.
        let half_open = tells
            && known.is_none_or(|state| match state.phase {
                Phase::Opening => state.born != now,
                Phase::Open => false,
                Phase::Closing => true,
            });
        if half_open {
            self.half_open.push(key, now);
        }
        self.ended_unremembered(&key);
        // A flow that cannot be written down is lost only if the control plane dies.
        self.begun_since += usize::from(known.is_none());
        // One with the ports of another that has ended is not taken for that.
        if known.is_none_or(|state| state.phase == Phase::Closing)
            && let Some(log) = &mut self.log
        {
            let flags = if half_open { HALF_OPEN } else { 0 };
            log.append(&StateRecord { flags, ..record(Op::Add, &key, Some(backend), now) })?;
        }
        Ok(())
    }

    /// Whether the source prefix of a connection has as many as it may. Half-open ones have a budget of
    /// their own, so that SYNs in the name of a prefix take nothing from its connections.
    pub fn is_crowded(&self, key: &StateKey) -> bool {
        if self.most_of_prefix == 0 {
            return false;
        }
        let held = self.builder.of_prefix(key);
        held >= self.most_of_prefix
            && held.saturating_sub(self.half_open.waiting_of(key)) >= self.most_of_prefix
    }

    /// Removes states from the log: they are idle, or their backend is gone.
    pub fn log_removed(&mut self, keys: &[StateKey], now: u32) -> Result<(), EngineError> {
        let Some(log) = &mut self.log else { return Ok(()) };
        for key in keys {
            log.append(&record(Op::Remove, key, None, now))?;
        }
        if log.should_compact(self.builder.states()) {
            log.begin_to_compact(live_records(&*self.builder, now))?;
        }
        Ok(())
    }

    /// Writes a part of the log that is to take the place of one with much in it that is over. Returns whether there
    /// is such a log.
    pub fn go_on_compacting(&mut self) -> bool {
        let Some(log) = self.log.as_mut().filter(|log| log.is_compacting()) else { return false };
        let written = log.go_on_compacting(RECORDS_AT_A_TIME);
        self.written(written.map_err(EngineError::from));
        true
    }

    /// Writes all states down anew.
    pub fn rewrite_log(&mut self, now: u32) -> Result<(), EngineError> {
        let Some(log) = &mut self.log else { return Ok(()) };
        write_anew(log, &*self.builder, now)?;
        // All that is known has been written anew.
        self.unwritten = None;
        Ok(())
    }

    /// The table built last is published. Returns states that have no backend any more.
    pub fn published(&mut self, now: u32) -> Vec<StateKey> {
        self.generation += 1;
        let shared = self.makes_shared();
        self.base = self.next_base.take().or(self.base.take()).filter(|_| shared);
        self.unknown = self.unknown_members();
        match self.turned(now) {
            Ok(true) => {}
            Ok(false) => {
                self.builder.publish_draft();
                self.unreported = false;
            }
            failed => self.written(failed.map(drop)),
        }
        self.unfold_young();
        self.young.moved();
        // Before the next period begins there may be other keys yet.
        if let Some(key) = self.hash_key().filter(|key| !self.marked_since.contains(key)) {
            self.marked_since.push(key);
        }
        // Packets mark by its key from now on, whether or not a sweep has begun a period yet.
        self.marked_under = self.marked_under.or_else(|| self.hash_key());
        let mut orphans = std::mem::take(&mut self.orphans);
        // Not those that have begun anew since the table was drafted.
        orphans.retain(|key| self.builder.known(key).is_none());
        let logged = self.log_removed(&orphans, now);
        self.written(logged);
        orphans.append(&mut self.astray);
        orphans
    }

    /// The table built last cannot be published: the one before stays.
    pub fn discard(&mut self) -> Result<(), EngineError> {
        self.orphans.clear();
        let discarded = match self.not_turned() {
            true => Ok(()),
            false => self.builder.discard_draft(),
        };
        self.unfold_young();
        Ok(discarded?)
    }

    /// What the destination port of a flow's state is XORed with.
    pub fn salt_of(&self, flow: &FlowKey) -> u16 {
        let places = self.salts.places(&self.configured);
        let takes = places.iter().filter(|at| at.takes(flow));
        takes.max_by_key(|at| at.exactness()).map_or(0, |at| at.salt_of(&flow.dst))
    }

    /// The salts of its addresses in their order; none if it has one address without.
    pub fn salts_shown(&self) -> Vec<u16> {
        let addresses = self.configured.addresses();
        let all: Vec<u16> = addresses.iter().map(|vip| self.salts.get(vip)).collect();
        if all.iter().all(|salt| *salt == 0) { Vec::new() } else { all }
    }

    /// Forgets what is known of connections to addresses that it has no more, whose salts others get.
    pub fn forget_addresses(&mut self, given: &[Salt], now: u32) {
        // With more than one port nothing says whose a state is.
        let Some(port) = self.configured.port.filter(|_| !given.is_empty() && !self.is_by_client())
        else {
            return;
        };
        let mut gone = Vec::new();
        self.builder.each_state(&mut |key, _| {
            if given.iter().any(|one| one.has(key, port)) {
                gone.push(*key);
            }
        });
        gone.iter().for_each(|key| self.builder.forget(key));
        self.dirty |= !gone.is_empty();
        let logged = self.log_removed(&gone, now);
        self.written(logged);
    }

    /// Checks that a backend could be added, beside `others` at once: what a file may not say, a command may not
    /// either.
    pub fn may_add(&self, wanted: &Backend, others: usize) -> Result<(), EngineError> {
        let &Backend { ref name, address, port, .. } = wanted;
        let service = &self.configured.name;
        let vips = self.configured.addresses();
        let refuse = |wrong: String| Err(EngineError::Conflict(wrong));
        let invalid = |wrong: String| Err(EngineError::Invalid(wrong));
        if !is_name(name) {
            return invalid(format!(
                "{name:?} is not a name; use 1 to 64 letters, digits and - _ ."
            ));
        }
        if self.member(name).is_some() {
            return refuse(format!("service {service} already has a backend {name}"));
        }
        if let Some(quic) = &self.configured.quic {
            let there = self.pool.iter().map(|member| member.wanted.name.as_str());
            if let Some((one, other, length)) = quic.clash(there.chain([name.as_str()])) {
                let why = format!(
                    "backends {one} and {other} would have one server id of {length} bytes"
                );
                return refuse(format!(
                    "{why}; use another name, or set server_ids in [service.quic]"
                ));
            }
        }
        if let Some(why) = no_backend(address) {
            return invalid(format!(
                "address: {address} {why}; give the backend's own, which packets are sent to"
            ));
        }
        let family = self.configured.has_family(address.is_ipv4());
        if !family && !self.configured.forward.is_tunnel() {
            let family = if address.is_ipv4() { "IPv6" } else { "IPv4" };
            let vip = self.configured.address_text();
            return invalid(format!(
                "service {service}: its address {vip} is {family}, so its backends' must be too; \
                 {address} is not"
            ));
        }
        if let Some(vip) = vips.iter().find(|vip| vip.contains(address)) {
            let is = if vip.is_host() { "the".into() } else { format!("of {vip}, a") };
            return invalid(format!(
                "{address} is {is} vip of service {service} itself; give the backend's own address"
            ));
        }
        if port.is_some() && !self.configured.forward.is_nat() {
            let forward = self.configured.forward;
            return invalid(format!(
                "service {service}: forward = \"{}\" leaves the port as it is; give none",
                forward.name()
            ));
        }
        if port == Some(0) {
            return invalid("0 is not a port; give 1..65535".into());
        }
        if port.is_some() && self.configured.port.is_none() {
            return invalid(format!(
                "service {service} is one of any port, which leaves the port as it is; give none"
            ));
        }
        let there = |m: &&PoolMember| (m.wanted.address, m.wanted.port) == (address, port);
        if let Some(other) = self.pool.iter().find(there) {
            let other = &other.wanted.name;
            return refuse(format!("service {service}: backend {other} has address {address}"));
        }
        if let Err(misfit) = self.configured.method.fits(self.pool.len() + others + 1) {
            return refuse(format!("service {service}: {misfit}"));
        }
        Ok(())
    }
}

/// Records of a log that are written anew in one turn: a few milliseconds.
const RECORDS_AT_A_TIME: usize = 1 << 15;

/// Writes all states of a build face down, in place of what stands in the log.
pub(super) fn write_anew(
    log: &mut StateLog,
    builder: &dyn Build,
    now: u32,
) -> Result<(), EngineError> {
    Ok(log.compact(live_records(builder, now))?)
}

/// All states of a build face, as they are written down.
fn live_records(builder: &dyn Build, now: u32) -> Vec<StateRecord> {
    let mut all = Vec::with_capacity(builder.states());
    builder.each_state(&mut |key, known| {
        let flags = match known.phase {
            Phase::Opening => HALF_OPEN,
            Phase::Open => 0,
            Phase::Closing => ENDED,
        };
        all.push(StateRecord { flags, ..record(Op::Add, key, Some(known.backend), now) });
    });
    all
}

/// Where the states of a service are written down.
pub(super) fn log_path(run_dir: &Path, log_name: &str) -> PathBuf {
    run_dir.join(format!("states-{log_name}.log"))
}

/// The service and the backend of what health checks call by this number: [`ServiceRuntime::target`].
pub fn of_target(id: u64) -> (ServiceId, Option<BackendId>) {
    (ServiceId((id >> 16) as u32), BackendId::new(id as u16))
}

pub(super) fn idle_seconds(service: &Service) -> u32 {
    service.idle_timeout.as_secs().min(u64::from(u32::MAX)) as u32
}

fn config_of(
    service: &Service,
    seed: u64,
    max_states: usize,
    capacity: usize,
    now: u32,
) -> ServiceConfig {
    let seed = shared_seed(service).unwrap_or(seed);
    ServiceConfig {
        settings: settings_of(service),
        client_affinity: service.affinity == Affinity::Client,
        udp: service.protocol == Protocol::Udp,
        seed,
        nonce: seed ^ u64::from(now),
        capacity,
        max_states,
        idle_seconds: idle_seconds(service),
    }
}

/// What a configured service listens on, of several addresses the first.
pub(super) fn vip_of(service: &Service) -> VipKey {
    VipKey {
        address: map_address(service.vip),
        protocol: service.protocol.on_the_wire(),
        port: service.port,
    }
}

/// States that a service may have in all.
fn room_of(service: &Service, limits: &Limits) -> usize {
    Bounds::from(limits).most_states(service.protocol, service.affinity) as usize
}

/// Flag of a record: only the SYN of the connection was seen.
pub(super) const HALF_OPEN: u8 = 1;
/// The connection has ended, or one half of it; one that goes on is remembered while it does.
pub(super) const ENDED: u8 = 2;

/// `backend`: where the state lives; a record that removes it names none.
pub(super) fn record(
    op: Op,
    key: &StateKey,
    backend: Option<BackendId>,
    seconds: u32,
) -> StateRecord {
    let backend = backend.map_or(0, BackendId::get);
    StateRecord { op, key: key.to_bytes(), backend, seconds, flags: 0 }
}
