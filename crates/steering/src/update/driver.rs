//! Performs the actions of updates: one driver for every data plane.

use super::collect::Collecting;
use super::kept::{self, Kept};
use super::machine::{Action, Update};
use super::perform::{self, Perform, Progress};
use super::plane::{Built, Failure, Plane, Services};
use super::publish::Publishing;
use super::settle::{Settling, settled};
use crate::ids::{BackendId, ServiceId};
use crate::state::ServiceState;
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
    /// What stands of each service's pins.
    kept: HashMap<ServiceId, Kept>,
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
            kept: HashMap::new(),
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
        self.kept.remove(&service);
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
        self.kept.values_mut().for_each(|kept| kept.unpinned(backends));
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
        self.kept.entry(service).or_default().pin_beside(pins, plane)
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
        match collecting.part(plane, services) {
            Ok(true) => self.collecting = Some(collecting),
            Ok(false) => {
                for lane in self.at(action).filter(|lane| collecting.is_for(lane.service)) {
                    match collecting.refused(lane.service) {
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
        let kept = self.kept.entry(service).or_default();
        let (records, frozen) = (!lane.update.is_frozen(), self.frozen.contains(&service));
        let mut publishing = Publishing::of(service, built, kept, records, frozen);
        let error = loop {
            match publishing.part(plane) {
                Ok(true) => {}
                Ok(false) => {
                    publishing.shown(kept, plane, services);
                    lane.published = true;
                    return lane.done();
                }
                Err(error) => break error,
            }
        };
        let full = D::is_full(&error);
        let built = publishing.refused(kept);
        let failure = Failure::Plane { action, source: Arc::new(error) };
        if full {
            (lane.built, lane.full) = (Some(built), Some((self.retired, failure)));
        } else {
            services.discard(service);
            lane.failed(failure);
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

    /// Frees tables, and removes the pins that no published table needs.
    fn retire(&mut self, plane: &mut impl Plane<Error = P>, services: &impl Services<Error = S>) {
        let retiring: HashSet<ServiceId> =
            self.at(Action::Retire).map(|lane| lane.service).collect();
        let of_these = retiring.iter();
        let of_these =
            of_these.map(|service| (*service, self.kept.remove(service).unwrap_or_default()));
        let mut of_these = of_these.collect();
        let unpinned = kept::unpin(&mut of_these, plane, services);
        self.kept.extend(of_these);
        if let Err(error) = unpinned {
            return self.all_failed(Action::Retire, error);
        }
        for lane in self.lanes.iter_mut().filter(|lane| retiring.contains(&lane.service)) {
            plane.retire(lane.service);
            lane.done();
        }
        self.retired += 1;
    }

    fn settle(&mut self, plane: &mut impl Plane<Error = P>, services: &impl Services<Error = S>) {
        let action = Action::Settle;
        let in_force: BTreeMap<ServiceId, bool> = self
            .at(action)
            .map(|lane| (lane.service, lane.published && !lane.update.has_failed()))
            .collect();
        let settling = plane.pending().and_then(|pending| {
            let mut settling = Settling::of(pending, &in_force, services);
            plane.track(&settling.tracked)?;
            settling.over.extend(settling.tracked.drain(..).map(|(state, _)| state));
            plane.forget_pending(&settling.over)?;
            Ok(settling)
        });
        let left = match settling {
            Ok(settling) => settling.left,
            Err(error) => return self.all_failed(action, error),
        };
        for lane in self.at(action) {
            let left = left.get(&lane.service).copied().unwrap_or(0);
            let progress = settled(&lane.update, lane.service, left, services);
            if let Progress::Settled { left, .. } = progress {
                lane.left = left;
            }
            lane.update.took(progress);
        }
    }
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
