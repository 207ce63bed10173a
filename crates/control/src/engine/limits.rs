//! How large the data plane is, and how it becomes as the file wants it while packets are forwarded.

use super::beyond::Room;
use super::service::ServiceRuntime;
use super::{Engine, EngineError, tolerate};
use crate::config::{self, Config, Service, Source, Table};
use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;
use tracing::{error, info, warn};
use weir_plane::forward::mapping::ORIGINS;
use weir_plane::{Limits, Plane, mapping_places};
use weir_steering::{ELEMENT_BYTES, MethodId, SEEN_WAYS};

/// How often the engine looks after everything else while programs are loaded.
const LOOK_EVERY: Duration = Duration::from_millis(5);

impl<P: Plane> Engine<P> {
    /// Makes room for a configuration that is about to be applied. What it wants smaller stays
    /// until it has been.
    ///
    /// # Errors
    /// If memory cannot be had; all is as before then.
    pub(super) fn grow(&mut self, config: &Config) -> Result<(), EngineError> {
        let now = self.plane.limits();
        self.resize(&self.wanted_limits(config).or_larger(&now))
    }

    /// Gives back what the configuration, which has been applied, does not want. A limit that something in use does
    /// not fit stays, with a warning, and keeps none of the others from its change; the next reload or start tries
    /// it again. What the file does not ask for is kept without a word.
    pub(super) fn fit(&mut self, config: &Config) {
        let Fitted { room, stays, .. } = self.room_of_connections(config);
        let limits = room.in_place(&config.limits);
        for service in self.services.values_mut() {
            service.refusals.room = (room != Room::of(&config.limits)).then_some(room);
            service.set_room(&limits);
        }
        let asked = self.wanted_limits(config);
        let unasked = unasked(config, &asked);
        let mut wanted = asked;
        let mut said = Vec::new();
        if let Some(stays) = stays {
            warn!("{stays}");
            said.push(format!("{stays}, and the next reload or start tries it again"));
        }
        let failed = loop {
            let fitted = self.drain_reports().map_err(Refused::from);
            let Err(Refused { limit, error }) = fitted.and_then(|()| self.resized(&wanted)) else {
                break false;
            };
            // One after the other; none of them twice.
            let now = self.plane.limits();
            let Some(limit) = limit.filter(|limit| keep(&mut wanted, &now, limit)) else {
                warn!(%error, "limits stay as they were");
                said.push(format!(
                    "limits stay as they were, and are tried again at the next reload or start: {error}"
                ));
                break true;
            };
            if unasked.contains(&limit) {
                info!(limit, %error, "memory that no service needs keeps its size");
                continue;
            }
            warn!(%error, "this limit stays as it was");
            said.push(format!(
                "{error}; it stays as it was, and the next reload or start tries it again"
            ));
        };
        if !failed {
            said.extend(self.kept(&asked, &unasked));
        }
        self.oversize = (!said.is_empty()).then(|| said.join("; "));
        // By other limits, or in other memory.
        tolerate("count connections by prefix", self.count_held());
    }

    /// What keeps its size while packets use it, against what the file wants.
    fn kept(&self, wanted: &Limits, unasked: &[&str]) -> Option<String> {
        let now = self.plane.limits();
        let mut said = Vec::new();
        let kept = [
            ("nat_connections", now.mappings != wanted.mappings),
            ("slot_partitions", now.slot_partitions != wanted.slot_partitions),
        ];
        let kept = kept.iter().filter(|(name, is)| *is && !unasked.contains(name));
        let kept: Vec<&str> = kept.map(|(name, _)| *name).collect();
        if !kept.is_empty() {
            let kept = kept.join(" and ");
            warn!(limits = kept, "they keep their size, as connections are in that memory");
            said.push(format!(
                "limits.{kept}: not as the file has it, since that memory is in use: it changes at the next \
                 reload or start without a service that uses it"
            ));
        }
        let (marked, wanted) = (now.marked_flows, self.plane.marked_by(wanted));
        if marked < wanted {
            warn!(marked, wanted, "marks of activity keep their size until weir unload");
            said.push(format!(
                "limits.states_per_service: so many are remembered, and the marks that tell which of them are \
                 alive stay made for {marked} until the next `weir unload`: with more, the rest share \
                 marks, and dead connections may be remembered for longer"
            ));
        }
        (!said.is_empty()).then(|| said.join("; "))
    }

    /// The limits in force, by the names that the file has for them: those of the configuration, but for what has stayed
    /// as it was when that was followed.
    pub(super) fn limits_in_force(&self) -> config::Limits {
        let mut limits = self.config.limits.clone();
        if self.oversize.is_none() {
            return limits;
        }
        if let Some(room) = self.services.values().find_map(|service| service.refusals.room) {
            limits = room.in_place(&limits);
        }
        let (now, mut wanted) = (self.plane.limits(), self.wanted_limits(&self.config));
        for limit in unasked(&self.config, &wanted) {
            keep(&mut wanted, &now, limit);
        }
        let bytes = |of: u64| u32::try_from(of).unwrap_or(u32::MAX);
        let (table_bytes, wanted_bytes) = (bytes(now.table_bytes), bytes(wanted.table_bytes));
        // Memory is made of pieces: what is left of one is no difference.
        let all = [
            (&mut limits.services, now.services, wanted.services, 1),
            (&mut limits.backends, now.backends, wanted.backends, 1),
            (&mut limits.pending_flows, now.pending_flows, wanted.pending_flows, 1),
            (&mut limits.unreported_flows, now.unreported_flows, wanted.unreported_flows, 1),
            (&mut limits.tracked_flows, now.tracked_flows, wanted.tracked_flows, 1),
            (&mut limits.answered_flows, now.answered_flows, wanted.answered_flows, 1),
            (&mut limits.slot_partitions, now.slot_partitions, wanted.slot_partitions, 1),
            (&mut limits.nat_connections, now.mappings, wanted.mappings, 1),
            (&mut limits.udp_flows, now.udp_flows, wanted.udp_flows, SEEN_WAYS as u32),
            (&mut limits.event_ring_bytes, now.event_ring_bytes, wanted.event_ring_bytes, 1),
            (&mut limits.table_bytes, table_bytes, wanted_bytes, ELEMENT_BYTES as u32),
            (&mut limits.list_prefixes, now.list_prefixes, wanted.list_prefixes, 1),
        ];
        for (limit, now, wanted, piece) in all {
            if now.abs_diff(wanted) >= piece {
                *limit = now;
            }
        }
        limits
    }

    /// Why limits would stay larger than a configuration wants them, if it were followed now; none if they would not, or
    /// if that is known only then.
    pub(super) fn too_small(&self, config: &Config, from: &Source) -> Option<String> {
        let stays = self.room_of_connections(config).stays;
        let all: Vec<String> = stays.into_iter().chain(self.misfit(config, from)).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// How many connections services may have once a configuration is followed: as many as it says, but where more are
    /// remembered than it has room for. Whoever is remembered is not forgotten, and those that come would not be: they
    /// would break with the next change of the pool.
    pub(super) fn room_of_connections(&self, config: &Config) -> Fitted {
        let wanted = Room::of(&config.limits);
        let (mut room, mut stays, mut notes) = (wanted, None, Vec::new());
        let all = || self.services.values();
        let largest = |of: fn(&ServiceRuntime) -> usize| {
            all().map(|service| (of(service), &service.configured.name)).max()
        };
        let Some(before) = all().map(ServiceRuntime::room).reduce(Room::or_larger) else {
            return Fitted { room, stays, notes };
        };
        let beyond = |most: u32, of: fn(&ServiceRuntime) -> usize| {
            largest(of).filter(|(held, _)| *held > most as usize)
        };
        if let Some((open, service)) = beyond(wanted.states_per_service, ServiceRuntime::open) {
            let most = wanted.states_per_service;
            let held = Room { states_per_service: count(open), ..before };
            let kept = before.or_larger(held).or_larger(wanted);
            room.states_per_service = kept.states_per_service;
            // What the file does not say goes with what it says.
            if wanted.half_open_flows == config::Limits::default_half_open(most) {
                room.half_open_flows = kept.half_open_flows;
            }
            if wanted.states_per_prefix == config::Limits::default_of_prefix(most) {
                room.states_per_prefix = kept.states_per_prefix;
            }
            let place = self.place_of_limit("states_per_service");
            stays = Some(format!(
                "{place}limits: states_per_service: {most} is less than the {open} connections that service \
                 {service:?} has; it stays {}",
                room.states_per_service
            ));
        }
        let lowered = room.half_open_flows < before.half_open_flows;
        let half_open = beyond(room.half_open_flows, |service| service.half_open.waiting());
        if let Some((held, service)) = half_open.filter(|_| lowered) {
            let (place, most) = (self.place_of_limit("half_open_flows"), room.half_open_flows);
            notes.push(format!(
                "{place}limits: half_open_flows: service {service:?} has {held} half-open connections, and {most} is \
                 less: the oldest are forgotten, and a handshake that takes longer may break when the pool changes"
            ));
        }
        let most = room.states_per_prefix;
        let lowered = most > 0
            && room != room.or_larger(Room { states_per_prefix: before.states_per_prefix, ..room });
        let of_prefix = if lowered { beyond(most, ServiceRuntime::open_of_prefix) } else { None };
        if let Some((held, service)) = of_prefix {
            let place = self.place_of_limit("states_per_prefix");
            notes.push(format!(
                "{place}limits: states_per_prefix: service {service:?} has {held} connections of one source prefix, \
                 and {most} is less: those stay, and from now on no new connection of such a prefix is remembered; \
                 a change of the pool may break it"
            ));
        }
        Fitted { room, stays, notes }
    }

    fn misfit(&self, config: &Config, from: &Source) -> Option<String> {
        let wanted = self.wanted_limits(config);
        let refused = self.plane.fits_into(&wanted).err()?;
        if P::limit_of(&refused).is_some_and(|limit| unasked(config, &wanted).contains(&limit)) {
            return None;
        }
        Some(of_limits::<P>(from, refused).to_string())
    }

    /// Has all tables side by side in memory of the same size, if one has found no room in a row, though there is
    /// enough in sum, and the others could not be moved out of its way. The update that has failed by that is
    /// tried again as any other.
    pub(super) fn pack(&mut self) {
        let (from, limits) = (self.source(), self.plane.limits());
        let refused = |error| of_limits::<P>(&from, error);
        let packed = match self.plane.prepare_packing() {
            Ok(None) => return,
            Ok(Some(prepare)) => self.beside("resize", prepare).and_then(|prepared| {
                let prepared = prepared.map_err(refused)?;
                self.plane.resize_prepared(&limits, prepared).map_err(refused)
            }),
            Err(error) => Err(refused(error)),
        };
        match packed {
            Ok(()) => {
                info!("tables stand side by side, in memory of the same size");
                self.count_anew();
            }
            Err(error) => error!(%error, "cannot put tables side by side"),
        }
    }

    /// Counters of connections by prefix begin at 0 with every program.
    pub(super) fn count_anew(&mut self) {
        super::tolerate("count connections by prefix", self.count_held());
    }

    /// Where the file has a limit, or is to have it.
    pub(super) fn place_of_limit(&self, limit: &str) -> String {
        self.source().place(Table::Limits, limit)
    }

    /// What a configuration wants, with what commands have added to it. At a start that is written down, and not
    /// taken up yet.
    fn wanted_limits(&self, config: &Config) -> Limits {
        let saved = self.document.services.values().any(|service| service.sources.is_some());
        let listed = saved || self.services.values().any(|service| !service.listed.is_empty());
        let wanted = wanted(config);
        let list_prefixes = if listed { config.limits.list_prefixes } else { wanted.list_prefixes };
        // There is no memory for so many, which nobody has asked for: that keeps nothing else from its change.
        let states = self.states_in_all();
        let states = if states < self.unmarked { 0 } else { states };
        let marked_flows = wanted.marked_flows.max(states);
        Limits { list_prefixes, marked_flows, ..wanted }
    }

    /// Connections that are remembered, of all services: each is to have a mark of its own.
    fn states_in_all(&self) -> u32 {
        let all: usize = self.services.values().map(|service| service.builder.states()).sum();
        u32::try_from(all).unwrap_or(u32::MAX)
    }

    /// Makes the marks by which packets tell who is alive large enough for the connections of all services, where
    /// there are more by now than one may have. If there is no memory, that is tried again when there are twice
    /// as many.
    pub(super) fn grow_marks(&mut self) {
        let (now, states) = (self.plane.limits(), self.states_in_all());
        let wanted = Limits { marked_flows: states, ..now };
        if self.plane.marked_by(&wanted) <= now.marked_flows || states < self.unmarked {
            return;
        }
        match self.resize(&wanted) {
            Ok(()) => {
                self.unmarked = 0;
                self.count_anew();
            }
            Err(error) => {
                warn!(%error, states, "marks of activity are too few for all connections");
                self.unmarked = states.saturating_mul(2);
            }
        }
    }

    /// Whose the highest number of a backend is that would be beyond this limit, and what gives it back.
    fn holder_beyond(&self, limit: u32) -> String {
        let services = self.services.values();
        let all = services.flat_map(|service| service.pool.iter().map(move |one| (service, one)));
        match all.max_by_key(|(_, member)| member.id.get()) {
            Some((service, member)) if u32::from(member.id.get()) >= limit => format!(
                "backend {} of service {} has it for as long as it is there; removed and added again it gets the \
                 lowest number that is free, and weir unload before weir run gives all of them anew",
                member.wanted.name, service.configured.name
            ),
            _ => "its backend was removed, and it is free when nothing leads there any more: weir reload \
                  tries it again"
                .into(),
        }
    }

    fn resize(&mut self, limits: &Limits) -> Result<(), EngineError> {
        self.resized(limits).map_err(|refused| refused.error)
    }

    fn resized(&mut self, limits: &Limits) -> Result<(), Refused> {
        let before = self.plane.limits();
        if before == *limits {
            return Ok(());
        }
        let from = self.source();
        let beyond =
            (limits.backends < before.backends).then(|| self.holder_beyond(limits.backends));
        let refused = |error: P::Error| {
            let limit = P::limit_of(&error);
            let error = match (of_limits::<P>(&from, error), &beyond) {
                (EngineError::Limit { place, source }, Some(who)) if limit == Some("backends") => {
                    EngineError::Limit { place, source: format!("{source}: {who}").into() }
                }
                (error, _) => error,
            };
            Refused { limit, error }
        };
        // At a start nobody waits, and reports have to wait until it is known what they are about.
        let running = self.urgent.is_some();
        if running {
            // Where somebody else has just changed limits, the memory from before that goes with its last reports.
            tolerate("take reports", self.take_some_reports().map(drop));
        }
        match running.then(|| self.plane.prepare_resize(limits)).transpose().map_err(refused)? {
            Some(Some(prepare)) => {
                let prepared = self.beside("resize", prepare)?.map_err(refused)?;
                self.plane.resize_prepared(limits, prepared).map_err(refused)?;
            }
            _ => self.plane.resize(limits).map_err(refused)?,
        }
        let now = self.plane.limits();
        if now != before {
            info!(?before, ?now, "the data plane has other limits");
        }
        Ok(())
    }
}

impl<P: Plane> Engine<P> {
    /// Does something on another thread that takes seconds. Meanwhile health checks are heeded, reports taken and
    /// questions answered; whoever wants a change waits.
    pub(super) fn beside<T: Send + 'static>(
        &mut self,
        thread: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        let worker = thread::Builder::new().name(thread.into()).spawn(work);
        let worker = worker.map_err(|error| EngineError::Plane(Box::new(error)))?;
        while !worker.is_finished() {
            self.attend(false);
            tolerate("read reports", self.drain_reports());
            for failure in self.publish_due() {
                error!(%failure, "cannot publish");
            }
            self.follow_network();
            self.turn_clock();
            thread::sleep(LOOK_EVERY);
        }
        Ok(worker.join().unwrap_or_else(|panic| resume_unwind(panic)))
    }
}

/// How many connections services may have.
pub(super) struct Fitted {
    pub room: Room,
    /// Why it is not what the file says.
    pub stays: Option<String>,
    /// What becomes of those that are beyond what it says, a sentence each.
    pub notes: Vec<String>,
}

impl Room {
    fn or_larger(self, other: Self) -> Self {
        // 0 is no limit.
        let prefixes = [self.states_per_prefix, other.states_per_prefix];
        let none = prefixes.contains(&0);
        Self {
            states_per_service: self.states_per_service.max(other.states_per_service),
            half_open_flows: self.half_open_flows.max(other.half_open_flows),
            states_per_prefix: if none { 0 } else { prefixes[0].max(prefixes[1]) },
        }
    }
}

impl ServiceRuntime {
    /// The limits of its connections.
    fn room(&self) -> Room {
        Room {
            states_per_service: count(self.most_open()),
            half_open_flows: count(self.half_open.budget()),
            states_per_prefix: count(self.most_of_prefix),
        }
    }

    /// Connections that it has. Those that are half-open may be open by now: that is seen with the next look.
    fn open(&self) -> usize {
        self.builder.states()
    }

    /// Those of one prefix at least, of that which has most.
    fn open_of_prefix(&self) -> usize {
        self.builder.most_of_prefix().saturating_sub(self.half_open.waiting())
    }
}

fn count(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

/// Limits that cannot be had.
struct Refused {
    /// Which of them, by its name in the file, if it is one.
    limit: Option<&'static str>,
    error: EngineError,
}

impl From<EngineError> for Refused {
    fn from(error: EngineError) -> Self {
        Self { limit: None, error }
    }
}

/// Lets a limit stay as it is now. Returns whether it was to change.
fn keep(limits: &mut Limits, now: &Limits, limit: &str) -> bool {
    let before = *limits;
    match limit {
        "services" => limits.services = now.services,
        "table_bytes" => limits.table_bytes = now.table_bytes,
        // The translations are of as many.
        "backends" => (limits.backends, limits.translations) = (now.backends, now.translations),
        "pending_flows" => limits.pending_flows = now.pending_flows,
        "unreported_flows" => limits.unreported_flows = now.unreported_flows,
        "tracked_flows" => limits.tracked_flows = now.tracked_flows,
        "answered_flows" => limits.answered_flows = now.answered_flows,
        "slot_partitions" => limits.slot_partitions = now.slot_partitions,
        "nat_connections" => limits.mappings = now.mappings,
        "udp_flows" => limits.udp_flows = now.udp_flows,
        "event_ring_bytes" => limits.event_ring_bytes = now.event_ring_bytes,
        "list_prefixes" => limits.list_prefixes = now.list_prefixes,
        _ => {}
    }
    *limits != before
}

/// What a plane says; with the place in the file, if it is about one of its limits.
pub(super) fn of_limits<P: Plane>(from: &Source, error: P::Error) -> EngineError {
    match P::limit_of(&error) {
        Some(limit) => {
            let place = from.place(Table::Limits, limit);
            EngineError::Limit { place, source: Box::new(error) }
        }
        None if P::is_busy(&error) => EngineError::Busy(Box::new(error)),
        None => EngineError::Plane(Box::new(error)),
    }
}

/// Limits that no service of a configuration needs, whatever the file says of them.
fn unasked(config: &Config, wanted: &Limits) -> Vec<&'static str> {
    let any = |needs: fn(&Service) -> bool| config.services.iter().any(needs);
    let needed = [
        ("answered_flows", any(Service::answers_pass)),
        ("slot_partitions", any(|service| service.method.id() == MethodId::CheetahStateful)),
        ("nat_connections", any(|service| service.forward.is_full_nat())),
        // Commands make lists, too.
        ("list_prefixes", wanted.list_prefixes > 1),
    ];
    needed.into_iter().filter(|(_, needed)| !needed).map(|(limit, _)| limit).collect()
}

/// What the file wants.
pub(crate) fn wanted(config: &Config) -> Limits {
    let given = &config.limits;
    let mut methods = config.services.iter().map(|service| service.method.id());
    let answers = config.services.iter().any(Service::answers_pass);
    let translated = config.services.iter().any(|service| service.forward.is_nat());
    let full_nat = config.services.iter().any(|service| service.forward.is_full_nat());
    let listed = config.services.iter().any(|service| service.lists.is_some());
    let slots = methods.any(|method| method == MethodId::CheetahStateful);
    Limits {
        services: given.services,
        table_bytes: given.table_bytes.into(),
        backends: given.backends,
        pending_flows: given.pending_flows,
        unreported_flows: given.unreported_flows,
        tracked_flows: given.tracked_flows,
        // Nobody else asks that memory.
        answered_flows: if answers { given.answered_flows } else { 1 },
        slot_partitions: if slots { given.slot_partitions } else { 1 },
        // And the balancer's own addresses.
        translations: if translated { given.backends + ORIGINS as u32 } else { 1 },
        mappings: if full_nat { mapping_places(given.nat_connections) / 2 } else { 1 },
        udp_flows: given.udp_flows,
        event_ring_bytes: given.event_ring_bytes,
        marked_flows: given.states_per_service,
        list_prefixes: if listed { given.list_prefixes } else { 1 },
        ..Limits::default()
    }
}
