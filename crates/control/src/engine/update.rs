//! Updates of the services: what the driver of `weir_steering` needs to know of them, and what is
//! made of its outcomes.

use super::lines;
use super::service::{ServiceRuntime, of_target};
use super::step::Commit;
use super::{Engine, EngineError, PlaneResult};
use crate::config::{Affinity, AllDown};
use crate::health::Transition;
use crate::last_good::Instead;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};
use tracing::{debug, warn};
use weir_hash::Key;
use weir_plane::{ArmedFlows, Plane};
use weir_steering::update::{Built, Failure, Judgement, Outcome, Services};
use weir_steering::{Action, Armed, BackendId, Event, ServiceId, ServiceState};

/// An update that has failed is tried again after so long, and after twice as long each time.
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// But never later than this.
const RETRY_AT_MOST: Duration = Duration::from_secs(60);

/// A step of an update that takes as long is in the log of those who ask for it.
const TELLING: Duration = Duration::from_millis(1);

/// How long it is said that there were too many half-open connections.
const FLOOD_IS_OVER: Duration = Duration::from_secs(60);
/// Seconds after which nobody repeats a SYN any more (six times by default, the last after 127 s).
const SYNS_ARE_OVER: u32 = 130;

/// An update that is not finished.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    /// What was in the way.
    pub what: String,
    /// When it is tried again.
    pub again: Instant,
    /// There is something to clear away, even if the pool goes back to what is published.
    pub loose: bool,
    /// How long that was to wait.
    after: Duration,
}

impl Trouble {
    fn new(what: String, loose: bool, before: Option<&Self>) -> Self {
        let after = before.map_or(RETRY_AFTER, |before| (before.after * 2).min(RETRY_AT_MOST));
        Self { what, again: Instant::now() + after, loose, after }
    }
}

/// The services as updates see them.
struct Tables<'a> {
    services: &'a mut BTreeMap<String, ServiceRuntime>,
    names: &'a HashMap<ServiceId, String>,
    now: u32,
    taken: u64,
    /// Connections of a service that may be pinned: half of what there is room for, as the former
    /// ones go only when the next ones stand.
    pins: usize,
    /// Those that need not be, as packets know them otherwise.
    armed: Option<&'a (u64, ArmedFlows)>,
    /// What health checks have said since: packets are kept from those that are down, and nothing more yet.
    late: &'a [Transition],
    /// All balancers of a fleet make this change, and agents have told of all that has begun.
    in_step: bool,
}

impl Tables<'_> {
    fn of(&mut self, number: ServiceId) -> Option<&mut ServiceRuntime> {
        self.services.get_mut(self.names.get(&number)?)
    }

    fn at(&self, number: ServiceId) -> Option<&ServiceRuntime> {
        self.services.get(self.names.get(&number)?)
    }

    fn expect(&mut self, number: ServiceId) -> Result<&mut ServiceRuntime, EngineError> {
        let gone = || EngineError::NotFound(format!("there is no service number {number}"));
        self.of(number).ok_or_else(gone)
    }
}

impl Services for Tables<'_> {
    type Error = EngineError;

    fn report(&mut self, event: &Event) -> Result<(), EngineError> {
        self.taken += 1;
        let now = self.now;
        let Some(service) = self.of(event.state.service) else { return Ok(()) };
        service.remembered(|service| service.take_event(event, now))
    }

    fn collect(&mut self, state: &ServiceState, backend: BackendId) -> Result<(), EngineError> {
        let now = self.now;
        let Some(service) = self.of(state.service) else { return Ok(()) };
        // One that is known there tells nothing new, and may have ended since: it must not count
        // as a beginning again, or a draining backend would get what looks like it.
        let known = service.known(&state.key);
        if known.is_some_and(|known| known.backend == backend) {
            return Ok(());
        }
        service.remembered(|service| service.start(state.key, backend, now))
    }

    fn take_connection(
        &mut self,
        state: &ServiceState,
        backend: BackendId,
        ended: bool,
    ) -> Result<(), EngineError> {
        self.collect(state, backend)?;
        if let Some(service) = self.of(state.service) {
            service.told_end(&state.key, ended);
        }
        Ok(())
    }

    fn takes_connections(&self, service: ServiceId) -> bool {
        self.at(service).is_some_and(ServiceRuntime::takes_connections)
    }

    fn avoids(&self, service: ServiceId) -> bool {
        let avoids = |service: &ServiceRuntime| service.pool.iter().any(|member| !member.up);
        // In step, no table leads there.
        self.at(service).is_some_and(|service| service.agreed.is_none() && avoids(service))
    }

    fn keeps_off(&self, service: ServiceId) -> bool {
        let is_up = |id| {
            let member = self.at(service).and_then(|service| service.by_id(id));
            let agreed = self.at(service).is_some_and(|service| service.agreed.is_some());
            !agreed && member.is_some_and(|member| member.up)
        };
        let down = self.late.iter().filter(|one| !one.up).map(|one| of_target(one.id));
        down.filter(|(of, _)| *of == service).filter_map(|(_, backend)| backend).any(is_up)
    }

    fn knows(&self, state: &ServiceState, backend: BackendId) -> bool {
        let known = self.at(state.service).and_then(|service| service.known(&state.key));
        known.is_some_and(|known| known.backend == backend)
    }

    fn build(&mut self, number: ServiceId) -> Result<Built, EngineError> {
        let (now, pins) = (self.now, self.pins);
        let armed = self
            .armed
            .map_or(Armed::NONE, |(period, armed)| Armed { period: *period, has: &*armed.has });
        let (image, pins, tracked) = self.expect(number)?.build(now, pins, armed)?;
        debug!(service = number.0, states = image.header().states, "table built");
        Ok(Built { image, pins, tracked })
    }

    fn published(&mut self, number: ServiceId) -> Vec<u64> {
        let now = self.now;
        let Some(service) = self.of(number) else { return Vec::new() };
        let strangers = service.published(now);
        let udp = service.configured.protocol == crate::config::Protocol::Udp;
        match service.builder.published() {
            Some(image) if udp => {
                let key = image.header().key;
                strangers.iter().map(|state| state.hash(&key)).collect()
            }
            _ => Vec::new(),
        }
    }

    fn discard(&mut self, number: ServiceId) {
        if let Some(service) = self.of(number)
            && let Err(error) = service.discard()
        {
            warn!(service = service.configured.name, %error, "cannot go back to the former table");
        }
    }

    fn judge(&self, state: &ServiceState, backend: BackendId) -> Judgement {
        let Some(service) = self.at(state.service) else { return Judgement::Lost };
        let Some(member) = service.by_id(backend) else { return Judgement::Lost };
        let builder = &service.builder;
        let by_client = service.in_force.affinity == Affinity::Client;
        if by_client != (state.key.src_port == 0 && state.key.dst_port == 0) {
            // Noted before the affinity was another: packets do not ask for it any more.
            return Judgement::Lost;
        }
        if builder.method().info().tracks_all {
            return Judgement::Tracked;
        }
        if service.is_unreported(&state.key, backend) {
            return Judgement::Apart;
        }
        if !service.takes_as_up(member) && builder.leads_to(&state.key, backend) {
            Judgement::Lost
        } else if builder.agrees(&state.key, backend) {
            Judgement::Agreed
        } else if self.in_step && service.is_elsewhere_by_now(&state.key, backend) {
            Judgement::Lost
        } else if builder.on_reserved(&state.key) {
            Judgement::Reserved
        } else {
            Judgement::Apart
        }
    }
}

impl<P: Plane> Engine<P> {
    /// Publishes new tables for every service whose pool has changed, and for those whose last
    /// update was not finished and is to be tried again now. Returns what failed, by service.
    pub(super) fn publish_due(&mut self) -> Vec<EngineError> {
        let (now, seconds) = (Instant::now(), self.now());
        let mut any = false;
        for service in self.services.values_mut() {
            service.dirty |= service.builder.due(seconds);
            any |= service.dirty || service.trouble.is_some();
        }
        if !any {
            return Vec::new();
        }
        let due = |service: &&ServiceRuntime| {
            // First what costs least: there may be thousands, in each turn.
            service.trouble.as_ref().map_or(service.dirty, |trouble| trouble.again <= now)
                && !self.is_settling(service)
                && !self.waits_in_step(service)
        };
        let due: Vec<ServiceId> = self.services.values().filter(due).map(|s| s.number).collect();
        self.publish(&due)
    }

    /// Publishes a service's new table, whatever was to be waited for.
    ///
    /// # Errors
    /// [`EngineError::Unpublished`].
    pub(super) fn update(&mut self, name: &str) -> Result<(), EngineError> {
        let number = self.service(name)?.number;
        self.publish(&[number]).into_iter().next().map_or(Ok(()), Err)
    }

    /// One pass over these services. Returns what failed, by service.
    pub(super) fn publish(&mut self, numbers: &[ServiceId]) -> Vec<EngineError> {
        if numbers.is_empty() {
            return Vec::new();
        }
        let numbers = self.those_not_in_step(numbers);
        if numbers.is_empty() {
            return Vec::new();
        }
        let numbers = &numbers[..];
        let started = Instant::now();
        let now = self.now();
        let names = numbers.iter().filter_map(|number| self.names.get(number).cloned());
        names.collect::<Vec<_>>().iter().for_each(|name| self.tell_loads(name));
        let mut failures = Vec::new();
        let mut ready = Vec::new();
        for &number in numbers {
            match self.forget_leftovers(number) {
                Ok(()) => ready.push(number),
                Err(error) => failures.push(error),
            }
        }
        if ready.is_empty() {
            return failures;
        }
        let numbers = ready;
        self.arm_for(&numbers);
        let armed = self.armed();
        // Where all follow one table, every connection on Dcodes that take none is pinned.
        let shared = self.services.values().filter(|one| one.agreed.is_some() && one.is_shared());
        let pins = self.plane.pin_limit() / 2 / shared.count().max(1);
        // In step with others no flow starts meanwhile; and none is pending, where the table before came about so, but
        // entries of flows that are over.
        let in_step = |number: &ServiceId| {
            let service = self.names.get(number).and_then(|name| self.services.get(name));
            self.commits == Some(Commit::InStep)
                && service.is_some_and(|service| service.stepped && service.trouble.is_none())
        };
        let (short, whole): (Vec<_>, Vec<_>) = numbers.iter().copied().partition(in_step);
        let turns = |number: &ServiceId| {
            let service = self.names.get(number).and_then(|name| self.services.get(name));
            service.is_some_and(|service| service.turn.is_some())
        };
        self.turns = numbers.iter().any(turns);
        self.driver.begin_frozen(short);
        self.driver.begin(whole);
        loop {
            let begun = Instant::now();
            if let Some(number) = self.driver.builds() {
                self.build_apart(number, now, pins, armed.as_ref());
            }
            let (services, names) = (&mut self.services, &self.names);
            let (armed, late) = (armed.as_ref(), &self.late[..]);
            let in_step = self.commits == Some(Commit::InStep);
            let mut tables = Tables { services, names, now, taken: 0, pins, armed, late, in_step };
            let action = self.driver.step(&mut self.plane, &mut tables);
            self.events_taken += tables.taken;
            let Some(action) = action else { break };
            let took = begun.elapsed();
            if took >= TELLING {
                debug!(?action, microseconds = took.as_micros() as u64, "a step of an update");
            }
            self.cleared |= action == Action::SetFlags { record: false, pending: false };
            // A backend that is found down then has flows noted that are forgotten at once.
            if !self.driver.is_clearing() {
                self.attend(true);
                self.take_meanwhile();
            }
        }
        self.turns = false;
        let outcomes = self.driver.outcomes();
        // Only these can have become so: a balancer has thousands of others.
        let updated = numbers.iter().filter_map(|number| self.names.get(number));
        let mut updated = updated.filter_map(|name| self.services.get(name));
        self.rekeyed |= updated.any(|service| service.is_rekeyed() || service.is_unarmed());
        for outcome in outcomes {
            failures.extend(self.take_outcome(outcome, started.elapsed()));
        }
        let names = numbers.iter().filter_map(|number| self.names.get(number).cloned());
        let names: Vec<String> = names.collect();
        self.save_some_later(names.iter().map(String::as_str));
        // After the outcomes, which say that the pools are as they were published.
        self.catch_up();
        failures
    }

    /// Builds the table of a service with so many states that it takes long, while the engine attends to others.
    /// One that changes its method is built in one step: both build faces are to know what begins.
    fn build_apart(
        &mut self,
        number: ServiceId,
        now: u32,
        pins: usize,
        armed: Option<&(u64, ArmedFlows)>,
    ) {
        let name = self.names.get(&number);
        let Some(service) = name.and_then(|name| self.services.get_mut(name)) else { return };
        // Not where nothing may be attended to just now, as pending flows of another one have been settled.
        let clears = self.driver.is_clearing();
        if clears || service.turn.is_some() || !service.has_many_states() {
            return;
        }
        let armed = armed
            .map_or(Armed::NONE, |(period, armed)| Armed { period: *period, has: &*armed.has });
        let drafted = match service.begin_draft(now) {
            Ok(draft) => self.lend(number, move |states| draft.make(states, now, armed)),
            Err(error) => return self.driver.built(number, Err(error)),
        };
        let name = self.names.get(&number);
        let Some(service) = name.and_then(|name| self.services.get_mut(name)) else { return };
        let built = match drafted {
            Some(Ok(built)) => service.take_draft(built, now, pins),
            Some(Err(error)) => Err(error.into()),
            None => return,
        };
        if built.is_err() {
            service.unfold_young();
        }
        let built = built.map(|(image, pins)| {
            debug!(service = number.0, states = image.header().states, "table built");
            Built::new(image, pins)
        });
        self.driver.built(number, built);
    }

    /// Before many connections of one of these services stay at a backend that takes no new ones, packets are
    /// told which they are: a first packet does not move them then, and that takes a tenth of the time that
    /// pins take. What cannot be told so is pinned.
    fn arm_for(&mut self, numbers: &[ServiceId]) {
        let services = numbers.iter().filter_map(|number| self.names.get(number));
        let mut services = services.filter_map(|name| self.services.get(name));
        // Marks of the period before that nobody has read yet are not given up.
        if self.unread.is_some() || !services.any(ServiceRuntime::is_better_armed) {
            return;
        }
        let begun = Instant::now();
        match self.flip_marks(self.now()) {
            Ok(side) => {
                debug!(microseconds = begun.elapsed().as_micros() as u64, "connections told");
                self.unread = Some(side);
                // What was marked until now is read as soon as there is time.
                self.rekeyed = true;
            }
            Err(error) => warn!(%error, "cannot tell packets which connections live"),
        }
    }

    /// The connections that packets know, if there is room for all that there are: one that is known stays
    /// so in the periods to come.
    fn armed(&self) -> Option<(u64, ArmedFlows)> {
        let with_states = self.services.values().filter(|service| service.builder.states() > 0);
        let marked = with_states.filter(|service| service.marks_under().is_some());
        let states: usize = marked.map(|service| service.builder.states()).sum();
        match self.plane.armed() {
            Ok(armed) => (states <= armed.room).then_some((self.periods, armed)),
            Err(error) => {
                warn!(%error, "cannot read which connections packets know");
                None
            }
        }
    }

    /// Before packets of a service follow the connection table, what stands there of an earlier time goes:
    /// a process that was killed between the table of another method and its clearing away has left it.
    /// A connection that begins after *collect* is noted as pending, but packets ask the connection table
    /// first, and would follow what is left of a former connection of the same addresses and ports.
    fn forget_leftovers(&mut self, number: ServiceId) -> Result<(), EngineError> {
        let Some(name) = self.names.get(&number) else { return Ok(()) };
        let Some(service) = self.services.get_mut(name) else { return Ok(()) };
        if !service.begins_connections() {
            return Ok(());
        }
        let forgotten = self.plane.forget_connections(number).plane();
        if let Err(error) = &forgotten {
            let what = format!("cannot clear the connection table: {error}");
            let trouble = Trouble::new(what, false, service.trouble.as_ref());
            let (what, seconds) = (&trouble.what, trouble.after.as_secs());
            warn!(service = name, what, seconds, "update not begun; tried again");
            service.trouble = Some(trouble);
        }
        forgotten
    }

    fn take_outcome(
        &mut self,
        outcome: Outcome<Failure<P::Error, EngineError>>,
        took: Duration,
    ) -> Option<EngineError> {
        let name = self.names.get(&outcome.service)?.clone();
        let limit = match &outcome.failure {
            Some(Failure::Plane { source, .. }) => P::limit_of(source),
            _ => None,
        };
        // The file is read for it.
        let place = limit.map(|limit| self.place_of_limit(limit)).unwrap_or_default();
        let learning = self.is_learning();
        let service = self.services.get_mut(&name)?;
        let before = service.trouble.take();
        let left = outcome.left;
        let unfinished = outcome.is_unfinished();
        let (published, generation) = (outcome.published, service.generation);
        if published {
            // A whole update may have left pending flows to be asked for.
            service.stepped = self.commits == Some(Commit::InStep) && !unfinished;
            // In step, the leader compares it with what the fleet has agreed on. While packets are not taken yet
            // nothing is compared, and no table waits for a step: it would be made again and again.
            service.dirty = service.agreed.is_some() && !learning;
            service.last_update = Some(took);
            let states = service.builder.method().needs().states;
            let gone = std::mem::take(&mut service.leaves);
            self.lines.published(&lines::Table {
                service: &name,
                generation,
                rounds: outcome.rounds,
                took,
                kept: states.then(|| service.builder.states()),
                left: (gone > 0).then_some(gone),
            });
        }
        if published && service.left_connections() {
            // They would be taken for true if such a method came back.
            if let Err(error) = self.plane.forget_connections(outcome.service) {
                warn!(service = name, %error, "entries of the connection table are left");
            }
        }
        let leaving = if published { std::mem::take(&mut service.leaving) } else { Vec::new() };
        if unfinished {
            let what = match &outcome.failure {
                Some(failure) => format!("{place}{failure}"),
                None => format!("{left} flows that started meanwhile are still pending"),
            };
            let trouble = Trouble::new(what, outcome.loose, before.as_ref());
            let (what, seconds) = (&trouble.what, trouble.after.as_secs());
            warn!(service = name, published, what, seconds, "update not finished; tried again");
            service.trouble = Some(trouble);
        }
        for id in leaving {
            if let Err(error) = self.forget_backends(&HashSet::from([id])) {
                self.keep_leaving(&name, id, &error);
            }
        }
        let failure = outcome.failure.filter(|_| !published)?;
        Some(EngineError::Unpublished {
            service: name,
            action: failure.action(),
            source: match place.is_empty() {
                true => Box::new(failure),
                false => Box::new(EngineError::Limit { place, source: Box::new(failure) }),
            },
        })
    }

    /// A backend is gone, and what the data plane remembers of it is not: its number is not given
    /// out again before that is.
    fn keep_leaving(&mut self, name: &str, id: BackendId, error: &EngineError) {
        let Some(service) = self.services.get_mut(name) else { return };
        service.leaving.push(id);
        let what = format!("cannot forget backend number {id}: {error}");
        warn!(service = name, what);
        service.trouble.get_or_insert_with(|| Trouble::new(what, true, None));
    }

    /// What is not as it should be, for `weir status`.
    pub(super) fn troubles(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (name, service) in &self.services {
            if let Some(Trouble { what, again, .. }) = &service.trouble {
                let seconds = again.saturating_duration_since(Instant::now()).as_secs();
                let behind = if service.dirty {
                    "its pool has changed, and packets follow the table before"
                } else {
                    "its table is published"
                };
                found.push(format!("service {name}: {what}; {behind}; tried again in {seconds} s"));
            }
            if let Some(why) = &service.unlisted {
                found.push(format!("service {name}: {why}; tried again"));
            }
            if let Some(turn) = &service.turn {
                found.push(format!("service {name}: {}", turn.stands(service)));
            }
            found.extend(service.said_of_unremembered());
            if service.flooded.is_some_and(|at| at.elapsed() < FLOOD_IS_OVER) {
                found.push(format!(
                    "service {name}: more half-open connections than limits.half_open_flows: the \
                     oldest are forgotten ({} by now), and a handshake that takes longer may break \
                     when the pool changes; is this a flood of SYNs?",
                    service.half_open.forgotten
                ));
            }
            let (unpinned, at) = service.unpinned;
            if unpinned > 0 && self.now().saturating_sub(at) < SYNS_ARE_OVER {
                let [whose, then] = service.of_unpinned();
                found.push(format!(
                    "service {name}: {unpinned} {whose} are not pinned, beyond the half of \
                     limits.unreported_flows that one service may pin: {then}"
                ));
            }
            if let Some(all_down) = service.all_down() {
                let then = match all_down {
                    AllDown::Keep => "they take new connections all the same (all_down = \"keep\")",
                    AllDown::Refuse => "new connections are dropped (all_down = \"refuse\")",
                };
                found.push(format!(
                    "service {name}: every backend that may take new connections is down by its check; \
                     {then}"
                ));
            }
            if let Some(what) = &service.lost {
                found.push(format!(
                    "service {name}: {what}, and may break with the next change of the pool; this goes with \
                     the next start"
                ));
            }
            if let Some(what) = &service.unwritten {
                found.push(format!(
                    "service {name}: {what}; a control plane that dies now forgets connections"
                ));
            }
        }
        found.extend(self.unrecorded.said(self.now()));
        found.extend(self.network.said());
        if let Some(Instead { number, why, .. }) = &self.instead {
            found.push(format!(
                "{} would be refused, and the configuration of change {number} goes on; mend it, and weir reload: \
                 {why}",
                self.config_path.display()
            ));
        }
        if !self.untaken.is_empty() {
            let numbers: Vec<String> = self.untaken.iter().map(ToString::to_string).collect();
            found.push(format!(
                "the data plane did not take back what came to nothing: backend number {} stays taken; tried again \
                 every second",
                numbers.join(", ")
            ));
        }
        found.extend(self.oversize.clone());
        if let Some(why) = &self.unguarded {
            found.push(format!(
                "the guard goes by the services from before the memory was made anew: packets of services that \
                 have come since may be answered by this host where they come by an interface without the program, \
                 for a moment; tried again every second: {why}"
            ));
        }
        found.extend(self.unkept.clone());
        if let Some((what, _)) = &self.unsaved {
            found.push(format!("{what}; a control plane that dies now forgets changes"));
        }
        if let Some(why) = self.history.unsaved() {
            found.push(format!(
                "the last changes are done and not in the history, which cannot be written: {why}; tried again, and \
                 a start before that does not know of them"
            ));
        }
        found
    }

    pub(super) fn service(&self, name: &str) -> Result<&ServiceRuntime, EngineError> {
        self.services.get(name).ok_or_else(|| unknown(name))
    }

    pub(super) fn service_mut(&mut self, name: &str) -> Result<&mut ServiceRuntime, EngineError> {
        self.services.get_mut(name).ok_or_else(|| unknown(name))
    }
}

fn unknown(name: &str) -> EngineError {
    EngineError::NotFound(format!("there is no service {name}; `weir status` lists them"))
}
