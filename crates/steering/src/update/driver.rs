//! Performs the actions of updates: one driver for every data plane.

use super::machine::{Action, Update};
use super::perform::{self, Perform, Progress};
use super::pins::Pins;
use super::plane::{Built, Draining, Failure, Judgement, Plane, Services};
use crate::ids::{BackendId, ServiceId};
use crate::memory::TrackedFlow;
use crate::state::ServiceState;
use crate::table::Flags;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// What became of a service in a pass.
#[derive(Debug)]
pub struct Outcome<F> {
    /// Number of the service.
    pub service: ServiceId,
    /// Whether packets follow a table that was built in this pass. If not, they follow the one
    /// before.
    pub published: bool,
    /// Pending flows that the published table does not lead to their backends. They are looked up
    /// in the pending table; another update folds them in.
    pub left: usize,
    /// Whether another update has something to clear away: pending flows, flags, pins or the room
    /// of a table.
    pub loose: bool,
    /// Rounds that it took.
    pub rounds: u32,
    /// What could not be done, the first of it. With `published`, what is left undone costs room
    /// or time, and the next update makes up for it.
    pub failure: Option<F>,
}

impl<F> Outcome<F> {
    /// Whether another update is needed, be it with the pool as it is.
    pub fn is_unfinished(&self) -> bool {
        self.failure.is_some() || self.loose
    }
}

/// One service in a pass.
#[derive(Debug)]
struct Lane<F> {
    service: ServiceId,
    update: Update,
    /// Built, and not published yet.
    built: Option<Built>,
    /// There was no room for it when so many lanes had retired.
    full: Option<(u64, F)>,
    published: bool,
    left: usize,
    failure: Option<F>,
}

impl<F> Lane<F> {
    fn new(service: ServiceId, update: Update) -> Self {
        Self { service, update, built: None, full: None, published: false, left: 0, failure: None }
    }

    fn done(&mut self) {
        self.update.took(Progress::Done);
    }

    fn give_up(&mut self, failure: F) {
        self.update.took(Progress::Refused);
        self.failure.get_or_insert(failure);
    }

    fn failed(&mut self, failure: F) {
        if self.update.took(Progress::Failed) {
            self.failure.get_or_insert(failure);
        }
    }
}

/// Pending flows that are taken up in one step: some milliseconds' worth.
const COLLECTED_AT_A_TIME: usize = 8192;

/// A *collect* that goes on for several steps: there may be as many reports as a flood brings.
///
/// That it takes its time does no harm. What is to be collected is what was there when it began, after the grace
/// period. Reports are taken in their order, and those put aside by a place that only goes forward, so none of them
/// is left behind; what came of flows since is found pending, as all are noted until the next table is seen.
#[derive(Debug)]
struct Collecting<S> {
    /// The lanes that it is for: another one that comes to it meanwhile has one of its own.
    services: HashSet<ServiceId>,
    draining: Draining,
    /// What was in the pending table, and in the connection table, and is to be taken up; none: the reports are
    /// not through yet.
    found: Option<std::vec::IntoIter<Found>>,
    drained: bool,
    /// Services for which something could not be taken up.
    refused: BTreeMap<ServiceId, Arc<S>>,
}

/// What is taken up after the reports.
#[derive(Clone, Copy, Debug)]
enum Found {
    /// It is in the connection table.
    Tracked(ServiceState, TrackedFlow),
    /// It is in the pending table.
    Pending(ServiceState, BackendId),
}

impl Found {
    fn state(&self) -> &ServiceState {
        match self {
            Self::Tracked(state, _) | Self::Pending(state, _) => state,
        }
    }
}

impl<S> Collecting<S> {
    fn of(services: HashSet<ServiceId>) -> Self {
        let (draining, found) = (Draining::default(), None);
        Self { services, draining, found, drained: false, refused: BTreeMap::new() }
    }

    /// A service is gone; its number may soon be another one's.
    fn forget(&mut self, service: ServiceId) {
        self.services.remove(&service);
        self.refused.remove(&service);
        if let Some(found) = self.found.take() {
            let others: Vec<_> = found.filter(|found| found.state().service != service).collect();
            self.found = Some(others.into_iter());
        }
    }

    fn check(&mut self, service: ServiceId, result: Result<(), S>) {
        if let Err(error) = result {
            self.refused.entry(service).or_insert_with(|| Arc::new(error));
        }
    }
}

/// Takes services from their published tables to the next ones, many in one *pass*.
///
/// Each service has an [`Update`] of its own, so what fails for one leaves the others alone. What
/// concerns all of them is done once for all: grace periods, draining reports, reading the pending
/// table and the pins. So a pass over a thousand services waits as often as a pass over one.
///
/// If there is no room for a table or a pin, the service waits until others of the pass have
/// retired their former tables, and only fails when none is left that could.
///
/// `P` and `S` are the errors of the plane and of the services.
#[derive(Debug)]
pub struct Driver<P, S> {
    lanes: Vec<Lane<Failure<P, S>>>,
    /// The pins that each service's published table needs, and the backends that they name, where
    /// known: not after a restart.
    pins: HashMap<ServiceId, Pins>,
    /// Pins that tables before the published ones needed, and these do not.
    stale: HashMap<ServiceId, Vec<ServiceState>>,
    /// Pins that stand beside those that the published tables need.
    beside: HashMap<ServiceId, HashMap<ServiceState, BackendId>>,
    /// Services that may have pins which none of these knows: those of an earlier process, or of a
    /// table that could not be published. The plane is asked for them.
    unread: HashSet<ServiceId>,
    /// Services of which a pin may name another backend than it says there: that of a table which
    /// could not be published.
    doubtful: HashSet<ServiceId>,
    /// Services whose tables let no flow start, the next ones included.
    frozen: HashSet<ServiceId>,
    /// What is being collected.
    collecting: Option<Collecting<S>>,
    /// Counts lanes that have retired.
    retired: u64,
    /// No lane before this one has an action of its own to perform: a pass over thousands does not
    /// look through all of them for each.
    next: usize,
}

impl<P, S> Default for Driver<P, S> {
    fn default() -> Self {
        Self {
            lanes: Vec::new(),
            pins: HashMap::new(),
            stale: HashMap::new(),
            beside: HashMap::new(),
            unread: HashSet::new(),
            doubtful: HashSet::new(),
            frozen: HashSet::new(),
            collecting: None,
            retired: 0,
            next: 0,
        }
    }
}

impl<P, S> Driver<P, S> {
    /// A driver that has published nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A service is gone, and its pins with it.
    pub fn forget(&mut self, service: ServiceId) {
        self.lanes.retain(|lane| lane.service != service);
        self.next = 0;
        self.pins.remove(&service);
        self.stale.remove(&service);
        self.beside.remove(&service);
        self.unread.remove(&service);
        self.doubtful.remove(&service);
        self.frozen.remove(&service);
        if let Some(collecting) = &mut self.collecting {
            collecting.forget(service);
        }
    }

    /// Keeps flows from starting at these services, whatever table is published meanwhile, until they are
    /// [thawed](Self::thaw). A grace period after it none starts any more.
    ///
    /// # Errors
    /// What the plane says; some may be frozen then.
    pub fn freeze(
        &mut self,
        services: &[ServiceId],
        plane: &mut impl Plane<Error = P>,
    ) -> Result<(), P> {
        for service in services {
            plane.freeze(*service, true)?;
            self.frozen.insert(*service);
        }
        Ok(())
    }

    /// Whether no flow starts at a service.
    pub fn is_frozen(&self, service: ServiceId) -> bool {
        self.frozen.contains(&service)
    }

    /// Lets flows start again.
    ///
    /// # Errors
    /// What the plane says; some may still be frozen then.
    pub fn thaw(
        &mut self,
        services: &[ServiceId],
        plane: &mut impl Plane<Error = P>,
    ) -> Result<(), P> {
        for service in services {
            plane.freeze(*service, false)?;
            self.frozen.remove(service);
        }
        Ok(())
    }

    /// The pins of these backends go, as their numbers may be given to others.
    pub fn unpinned(&mut self, backends: &HashSet<BackendId>) {
        for pins in self.pins.values_mut() {
            pins.forget(backends);
        }
        for pins in self.beside.values_mut() {
            pins.retain(|_, backend| !backends.contains(backend));
        }
    }

    /// Pins states beside those that a service's published table needs; they go when the next one does not need
    /// them.
    ///
    /// # Errors
    /// What the plane says; some may be pinned then.
    pub fn pin_beside(
        &mut self,
        service: ServiceId,
        pins: &[(ServiceState, BackendId)],
        plane: &mut impl Plane<Error = P>,
    ) -> Result<(), P> {
        let needed = self.pins.get(&service);
        let at = |state: &ServiceState| needed.and_then(|pins| pins.at(state));
        let beside = self.beside.entry(service).or_default();
        let stands = |(state, backend): &&(ServiceState, BackendId)| {
            at(state) == Some(*backend) || beside.get(state) == Some(backend)
        };
        let missing: Vec<_> = pins.iter().filter(|pin| !stands(pin)).copied().collect();
        match plane.pin(&missing) {
            Ok(()) => beside.extend(missing),
            Err(error) => {
                // What stands of them is found when pins are read.
                self.unread.insert(service);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Adds services to the pass. One that is in it already goes on where it is.
    pub fn begin(&mut self, services: impl IntoIterator<Item = ServiceId>) {
        self.begin_by(services, Update::begin());
    }

    /// As [`begin`](Self::begin), of services that are [frozen](Self::freeze), with a grace period since, and have no
    /// pending flows but some that are over.
    pub fn begin_frozen(&mut self, services: impl IntoIterator<Item = ServiceId>) {
        self.begin_by(services, Update::begin_frozen());
    }

    fn begin_by(&mut self, services: impl IntoIterator<Item = ServiceId>, update: Update) {
        let mut there: HashSet<ServiceId> = self.lanes.iter().map(|lane| lane.service).collect();
        let new = services.into_iter().filter(|service| there.insert(*service));
        self.lanes.extend(new.map(|service| Lane::new(service, update)));
    }

    /// The service whose table comes to be built by the next [step](Self::step), if one does. It takes long if there
    /// are many states: whoever has something else to do meanwhile builds it apart, and says what became of it.
    pub fn builds(&self) -> Option<ServiceId> {
        let lane = &self.lanes[self.next_alone()?];
        (lane.update.action() == Some(Action::Publish) && lane.built.is_none())
            .then_some(lane.service)
    }

    /// The table of a service that [comes to be built](Self::builds) has been built, or cannot be. What is reported
    /// from then on until it is published is not in it, and need not be: it is pending.
    pub fn built(&mut self, service: ServiceId, built: Result<Built, S>) {
        let action = Action::Publish;
        let Some(lane) = self.at(action).find(|lane| lane.service == service) else { return };
        match built {
            Ok(built) => lane.built = Some(built),
            Err(error) => lane.failed(Failure::Service { action, source: Arc::new(error) }),
        }
    }

    /// Whether the pass is over.
    pub fn is_idle(&self) -> bool {
        self.lanes.iter().all(|lane| lane.update.action().is_none())
    }

    /// Whether pending flows have been settled, and packets still ask for them. What is noted now is forgotten.
    pub fn is_clearing(&self) -> bool {
        let clear = Action::SetFlags { record: false, pending: false };
        let rest = &self.lanes[self.next.min(self.lanes.len())..];
        rest.iter().any(|lane| lane.update.action() == Some(clear))
    }

    /// The services of a pass that is over: what became of each.
    pub fn outcomes(&mut self) -> Vec<Outcome<Failure<P, S>>> {
        self.next = 0;
        let over = self.lanes.extract_if(.., |lane| lane.update.action().is_none());
        over.map(|lane| Outcome {
            service: lane.service,
            published: lane.published,
            left: lane.left,
            loose: lane.left > 0 || lane.update.is_loose(),
            rounds: lane.update.round() + 1,
            failure: lane.failure,
        })
        .collect()
    }

    /// A whole pass over these services.
    pub fn run(
        &mut self,
        services: impl IntoIterator<Item = ServiceId>,
        plane: &mut impl Plane<Error = P>,
        tables: &mut impl Services<Error = S>,
    ) -> Vec<Outcome<Failure<P, S>>> {
        self.begin(services);
        while self.step(plane, tables).is_some() {}
        self.outcomes()
    }

    /// Performs one action: of one service, or one that all share that have come to it. Returns
    /// what it was, or `None` if the pass is over.
    pub fn step(
        &mut self,
        plane: &mut impl Plane<Error = P>,
        services: &mut impl Services<Error = S>,
    ) -> Option<Action> {
        let at = if let Some(at) = self.next_alone() {
            self.next = at;
            at
        } else {
            // What all share is what gives lanes actions of their own again.
            self.next = 0;
            let shared = [Action::Collect, Action::Retire, Action::Grace, Action::Settle];
            let first = |action: &Action| {
                self.lanes.iter().position(|lane| lane.update.action() == Some(*action))
            };
            match shared.iter().find_map(first) {
                Some(at) => at,
                None => return self.give_up_one(services),
            }
        };
        perform::step(&mut Turn { driver: self, at, plane, services }).map(|(action, _)| action)
    }

    /// The first lane that has an action of its own to perform.
    fn next_alone(&self) -> Option<usize> {
        let retired = self.retired;
        let alone = |lane: &Lane<_>| match lane.update.action() {
            Some(Action::SetFlags { .. }) => true,
            Some(Action::Publish) => lane.full.as_ref().is_none_or(|(then, _)| *then < retired),
            _ => false,
        };
        let from = self.next.min(self.lanes.len());
        Some(from + self.lanes[from..].iter().position(alone)?)
    }

    /// The lanes that have come to an action.
    fn at(&mut self, action: Action) -> impl Iterator<Item = &mut Lane<Failure<P, S>>> {
        self.lanes.iter_mut().filter(move |lane| lane.update.action() == Some(action))
    }

    /// An action that could not be performed for any of the lanes.
    fn all_failed(&mut self, action: Action, error: P) {
        let source = Arc::new(error);
        for lane in self.at(action) {
            lane.failed(Failure::Plane { action, source: source.clone() });
        }
    }

    fn grace(&mut self, plane: &mut impl Plane<Error = P>) {
        match plane.grace() {
            Ok(()) => self.at(Action::Grace).for_each(Lane::done),
            Err(error) => self.all_failed(Action::Grace, error),
        }
    }

    /// A part of it: the lanes go on when the last one is over.
    fn collect(
        &mut self,
        plane: &mut impl Plane<Error = P>,
        services: &mut impl Services<Error = S>,
    ) {
        let action = Action::Collect;
        let lanes = || self.lanes.iter().filter(|lane| lane.update.action() == Some(action));
        let begun = self.collecting.take();
        let mut collecting =
            begun.unwrap_or_else(|| Collecting::of(lanes().map(|lane| lane.service).collect()));
        match collect_part(&mut collecting, plane, services) {
            Ok(true) => self.collecting = Some(collecting),
            Ok(false) => {
                let Collecting { services, refused, .. } = collecting;
                for lane in self.at(action).filter(|lane| services.contains(&lane.service)) {
                    match refused.get(&lane.service) {
                        None => lane.done(),
                        Some(source) => {
                            lane.give_up(Failure::Service { action, source: source.clone() });
                        }
                    }
                }
            }
            Err(error) => self.all_failed(action, error),
        }
    }

    fn publish<D: Plane<Error = P>>(
        &mut self,
        at: usize,
        plane: &mut D,
        services: &mut impl Services<Error = S>,
    ) {
        let action = Action::Publish;
        let lane = &mut self.lanes[at];
        let service = lane.service;
        lane.full = None;
        let built = match lane.built.take().map_or_else(|| services.build(service), Ok) {
            Ok(built) => built,
            Err(error) => {
                return lane.failed(Failure::Service { action, source: Arc::new(error) });
            }
        };
        // Pinned before the table that reserves their Dcodes is seen, and tracked before one whose
        // packets ask for connections.
        let records = !lane.update.is_frozen();
        let flags =
            built.image.header().flags().with(Flags::FROZEN, self.frozen.contains(&service));
        let flags = flags.with(Flags::RECORD, records).with(Flags::PENDING, records).0;
        // Those of the table before stand already.
        let there = self.pins.get(&service).filter(|_| !self.doubtful.contains(&service));
        let next = Pins::of(&built.pins);
        let (missing, stale) = next.beside(there);
        let shown = plane
            .pin(&missing)
            .and_then(|()| plane.track(&built.tracked))
            .and_then(|()| plane.show(service, &built.image, Flags(flags)));
        match shown {
            Ok(()) => {
                let strangers = services.published(service);
                plane.forget_seen(service, &strangers);
                if there.is_some() {
                    self.stale.entry(service).or_default().extend(stale);
                } else {
                    self.unread.insert(service);
                }
                let beside = self.beside.remove(&service).unwrap_or_default();
                self.stale.entry(service).or_default().extend(beside.into_keys());
                self.pins.insert(service, next);
                self.doubtful.remove(&service);
                lane.published = true;
                lane.done();
            }
            Err(error) => {
                let full = D::is_full(&error);
                self.doubtful.insert(service);
                let failure = Failure::Plane { action, source: Arc::new(error) };
                if full {
                    (lane.built, lane.full) = (Some(built), Some((self.retired, failure)));
                } else {
                    services.discard(service);
                    lane.failed(failure);
                }
            }
        }
    }

    /// All that is left waits for room, and nobody is left who could make any: one of them fails.
    fn give_up_one(&mut self, services: &mut impl Services<Error = S>) -> Option<Action> {
        let lane = self.lanes.iter_mut().find(|lane| lane.full.is_some())?;
        let (_, failure) = lane.full.take()?;
        lane.built = None;
        services.discard(lane.service);
        lane.failed(failure);
        Some(Action::Publish)
    }

    /// Removes the pins that no published table needs. Where publishing has failed, these are the
    /// pins of the table that was to be.
    fn retire(&mut self, plane: &mut impl Plane<Error = P>, services: &impl Services<Error = S>) {
        let retiring: HashSet<ServiceId> =
            self.at(Action::Retire).map(|lane| lane.service).collect();
        if let Err(error) = self.unpin_stale(&retiring, plane, services) {
            return self.all_failed(Action::Retire, error);
        }
        for lane in self.lanes.iter_mut().filter(|lane| retiring.contains(&lane.service)) {
            plane.retire(lane.service);
            lane.done();
        }
        self.retired += 1;
    }

    /// Of services whose pins are all known these are removed; for the others the plane is read.
    fn unpin_stale(
        &mut self,
        retiring: &HashSet<ServiceId>,
        plane: &mut impl Plane<Error = P>,
        services: &impl Services<Error = S>,
    ) -> Result<(), P> {
        let is_known = |service: &ServiceId| {
            self.pins.contains_key(service)
                && !self.unread.contains(service)
                && !self.doubtful.contains(service)
        };
        let (known, unread): (Vec<ServiceId>, Vec<ServiceId>) =
            retiring.iter().partition(|service| is_known(service));
        let of_known = known.iter().filter_map(|service| self.stale.get(service)).flatten();
        // A key may be needed again since.
        let beside = |state: &ServiceState| {
            self.beside.get(&state.service).is_some_and(|pins| pins.contains_key(state))
        };
        let needed = |state: &ServiceState, backend: BackendId| match self.pins.get(&state.service)
        {
            Some(pins) => pins.at(state).is_some() || beside(state),
            None => services.knows(state, backend),
        };
        let over = |state: &&ServiceState| {
            let pins = self.pins.get(&state.service);
            pins.is_none_or(|pins| pins.at(state).is_none()) && !beside(state)
        };
        let mut stale: Vec<ServiceState> = of_known.filter(over).copied().collect();
        if !unread.is_empty() {
            let found = plane.pinned()?.into_iter();
            let found =
                found.filter(|(state, at)| unread.contains(&state.service) && !needed(state, *at));
            stale.extend(found.map(|(state, _)| state));
        }
        plane.unpin(&stale)?;
        for service in retiring {
            self.stale.remove(service);
            // What a table that failed has left is known only when another one stands.
            if !self.doubtful.contains(service) {
                self.unread.remove(service);
            }
        }
        Ok(())
    }

    fn settle(&mut self, plane: &mut impl Plane<Error = P>, services: &impl Services<Error = S>) {
        let action = Action::Settle;
        let settling: BTreeMap<ServiceId, bool> = self
            .at(action)
            .map(|lane| (lane.service, lane.published && !lane.update.has_failed()))
            .collect();
        let mut left: BTreeMap<ServiceId, usize> = BTreeMap::new();
        let settled = plane.pending().and_then(|pending| {
            let (mut over, mut tracked) = (Vec::new(), Vec::new());
            for (state, backend) in pending {
                let Some(&in_force) = settling.get(&state.service) else { continue };
                match services.judge(&state, backend) {
                    Judgement::Agreed => over.push(state),
                    Judgement::Tracked => tracked.push((state, backend)),
                    // Gone from a pool that may not be in force: the flow may live.
                    Judgement::Lost if in_force => over.push(state),
                    Judgement::Reserved => {}
                    Judgement::Lost | Judgement::Apart => {
                        *left.entry(state.service).or_default() += 1;
                    }
                }
            }
            plane.track(&tracked)?;
            over.extend(tracked.into_iter().map(|(state, _)| state));
            plane.forget_pending(&over)
        });
        if let Err(error) = settled {
            return self.all_failed(action, error);
        }
        for lane in self.at(action) {
            // Where no flow starts meanwhile there is nothing that another round would find.
            let frozen = lane.update.is_frozen();
            lane.left = left.get(&lane.service).copied().filter(|_| !frozen).unwrap_or(0);
            let avoids = lane.update.has_failed() && services.avoids(lane.service);
            let avoids = avoids || services.keeps_off(lane.service);
            lane.update.took(Progress::Settled { left: lane.left, avoids });
        }
    }
}

/// Some reports, or then all that is pending, or then some of that, into the states. Returns whether there is more.
fn collect_part<D: Plane, T: Services>(
    collecting: &mut Collecting<T::Error>,
    plane: &mut D,
    services: &mut T,
) -> Result<bool, D::Error> {
    if !collecting.drained {
        let mut draining = collecting.draining;
        let more = plane.drain_part(&mut draining, &mut |event| {
            collecting.check(event.state.service, services.report(event));
        })?;
        (collecting.draining, collecting.drained) = (draining, !more);
        return Ok(true);
    }
    let Some(found) = &mut collecting.found else {
        let mut found = Vec::new();
        for &service in &collecting.services {
            if services.takes_connections(service) {
                let connections = plane.connections(service)?.into_iter();
                found.extend(connections.map(|(state, flow)| Found::Tracked(state, flow)));
            }
        }
        let pending = plane.pending()?.into_iter();
        let of = pending.filter(|(state, _)| collecting.services.contains(&state.service));
        found.extend(of.map(|(state, backend)| Found::Pending(state, backend)));
        let any = !found.is_empty();
        collecting.found = Some(found.into_iter());
        return Ok(any);
    };
    let part: Vec<_> = found.by_ref().take(COLLECTED_AT_A_TIME).collect();
    let more = !found.as_slice().is_empty();
    for found in part {
        let taken = match &found {
            Found::Tracked(state, flow) => {
                services.take_connection(state, flow.backend, flow.ended)
            }
            Found::Pending(state, backend) => services.collect(state, *backend),
        };
        collecting.check(found.state().service, taken);
    }
    Ok(more)
}

/// An action of a pass: of one lane, or of all that have come to it, of which `at` is the first. Each lane
/// is told what became of its own, as a failure has a reason.
struct Turn<'a, D: Plane, T: Services> {
    driver: &'a mut Driver<D::Error, T::Error>,
    at: usize,
    plane: &'a mut D,
    services: &'a mut T,
}

impl<D: Plane, T: Services> Perform for Turn<'_, D, T> {
    fn update(&mut self) -> &mut Update {
        &mut self.driver.lanes[self.at].update
    }

    fn set_flags(&mut self, record: bool, pending: bool) -> Progress {
        let lane = &mut self.driver.lanes[self.at];
        match self.plane.set_flags(lane.service, record, pending) {
            Ok(()) => lane.done(),
            Err(error) => {
                let action = Action::SetFlags { record, pending };
                lane.failed(Failure::Plane { action, source: Arc::new(error) });
            }
        }
        Progress::UnderWay
    }

    fn grace(&mut self) -> Progress {
        self.driver.grace(self.plane);
        Progress::UnderWay
    }

    fn collect(&mut self) -> Progress {
        self.driver.collect(self.plane, self.services);
        Progress::UnderWay
    }

    fn publish(&mut self) -> Progress {
        self.driver.publish(self.at, self.plane, self.services);
        Progress::UnderWay
    }

    fn retire(&mut self) -> Progress {
        self.driver.retire(self.plane, self.services);
        Progress::UnderWay
    }

    fn settle(&mut self) -> Progress {
        self.driver.settle(self.plane, self.services);
        Progress::UnderWay
    }
}
