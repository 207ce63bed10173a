//! Changes of pools that all balancers of a fleet make in step (docs/fleet.md, In step).
//!
//! Services of a method that keeps what changes leave behind follow no pool of this balancer's own: what it has
//! seen of backends, and when, is another than what the others have seen. They follow the pools of the last
//! [`Step`] in the store. The leader writes a step when its own view of a pool is another than that, and takes
//! everybody through its stages.

mod alone;
mod anew;
mod behind;
mod heard;
mod lead;
mod learn;
mod record;
mod waits;

use self::anew::Anew;
use super::service::{PoolMember, ServiceRuntime};
use super::{Engine, PlaneResult, tolerate};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};
use weir_fleet::{Ack, Ask, At, Did, Due, FLIGHT, LEASE, Part, Pools, Share, Stage, Step, StepId};
use weir_plane::Plane;
use weir_steering::{InFleet, Role, ServiceId};

/// Agents that have not said in so long what has begun have not said it in time.
const IN_TIME: Duration = Duration::from_millis(300);
/// And are not waited for. A test is as slow as its machine.
const COLLECT_PATIENCE: Duration = if cfg!(test) { Duration::from_secs(15) } else { IN_TIME };
/// A step in which not everybody has come so far is given up, as long as it has not changed anything.
const PATIENCE: Duration = Duration::from_millis(800);
/// The same of its beginning, in which nothing is kept from starting.
const PREPARE_PATIENCE: Duration = Duration::from_millis(300);
/// The same of *commit*, in which some follow the next pools already: who does not come so far is left behind then, as
/// no new flow starts anywhere meanwhile.
const COMMIT_PATIENCE: Duration = Duration::from_secs(3);
/// The same of who has not said that it knows of *commit*: it may be cut off, and leads flows by the table of before for
/// as long as its lease lasts. One whose lease lives for longer has heard the store since.
const LEASE_PATIENCE: Duration = LEASE.saturating_add(Duration::from_secs(2));
/// Who knows of *commit* and has not come to it says so after this time.
const LATE: Duration = Duration::from_secs(1);
/// What all have said of *freeze* and of *collect* is gone by for so long. Each keeps its word for longer, cut off or not.
const WORD: Duration = Duration::from_secs(4);
/// A table that all are to follow and nobody has, as its builder has died, is built anew after so long.
const LOST: Duration = Duration::from_secs(1);
/// For so long flows are kept from starting while the store does not answer.
const ALONE_PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 300 } else { 3_000 });
/// Of a backend that has gone down by a balancer's own checks the fleet says so sooner, if it does.
const UNHEARD: Duration = Duration::from_millis(1_500);
/// The same where all follow one table, and what a balancer does alone moves nothing but what was the dead one's.
const UNHEARD_SHARED: Duration = Duration::from_millis(400);
/// So many steps are given up as agents have not said in time what has begun; then it goes on without those. It takes
/// ten seconds, in which one that does not answer at all is lost.
const DEAF_STEPS: u32 = 6;
/// But not before they have had so long at last: a machine that is busy for long answers late each time.
const LAST_PATIENCE: Duration = Duration::from_secs(2);
/// And the leader waits for so long where its steps were given up one after the other: for less than a word is kept.
const LONG_PATIENCE: Duration = Duration::from_secs(3);
/// What pauses have come to by then.
const LONG_PAUSE: Duration = Duration::from_millis(if cfg!(test) { 800 } else { 2_000 });
/// What could not be done is tried again after so long, and after twice as long each time.
const AGAIN: Duration = Duration::from_millis(200);
/// But never later than this.
const AGAIN_AT_MOST: Duration = Duration::from_millis(if cfg!(test) { 800 } else { 5_000 });
/// How often a leader looks whether there is something to do of which nobody has told it.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The step that a fleet is in, for `weir fleet status`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StepStatus {
    /// Its number.
    pub number: u64,
    /// How far it is: "prepare", "freeze" (from here on no flow starts at its services), "collect", "commit", or
    /// "done".
    pub stage: Stage,
    /// The services whose pools change.
    pub services: Vec<String>,
    /// The balancers that have not come so far.
    pub waits_for: Vec<String>,
    /// Why the last one was given up, or none can begin: as the leader has it, or, where it says nothing, as the balancer
    /// that was asked can tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What a balancer does in step.
pub(super) struct Stepping {
    /// What the store has, and since when.
    step: Option<Arc<Step>>,
    step_at: i64,
    since: Instant,
    /// The pools that packets followed before a restart.
    kept: Arc<Pools>,
    /// What was said and done in it.
    part: Part,
    /// The one of which it was said that this balancer is late with *commit*.
    late: Option<StepId>,
    /// The one of which it was said that this balancer lags.
    lagged: Option<StepId>,
    /// Why the others have gone on without this balancer, if they have: a table that it cannot get.
    left_behind: Option<String>,
    /// When this balancer has written *freeze* or *collect* as the leader of a term, and of which step.
    led: Option<(At, u64, Instant)>,
    /// When this process began.
    born: Instant,
    /// Since when no flow starts, and the question to the agents.
    frozen_at: Instant,
    asked: Option<(u64, Instant)>,
    /// Steps one after the other in which agents have not said in time what has begun.
    deaf: u32,
    /// When what failed is tried again, and how long that is.
    again: Option<(Instant, Duration)>,
    /// The same of the leader's steps.
    lead_again: Option<(Instant, Duration)>,
    /// The leader: a step is on its way to the store.
    writing: bool,
    /// When it has looked last, and that there is something new to look at.
    looked: Instant,
    pub news: bool,
    /// Why nothing can be changed at the moment.
    why: Option<String>,
    /// Whose agents are waited for.
    misses: Option<String>,
    /// The change of the configuration by which packets were led last in a step, and since when the pools of a later one
    /// wait.
    pub(super) made: u64,
    pending: Option<Instant>,
    /// The question that agents had not answered when it was said last who had not, and whether that was the end.
    named: (u64, bool),
    /// Who did not come so far in the last step.
    silent: Vec<String>,
    /// Since when the store does not answer, and whether it has said since which step it has.
    alone: Option<Instant>,
    heard: bool,
    /// The store has an earlier step than the one that is followed here, or none.
    outlived: bool,
    /// The leader: what is to be made anew although no pool has changed.
    anew: Anew,
    /// Something of this process stands in the log of steps.
    noted: bool,
    /// What does, for tests.
    #[cfg(test)]
    pub marks: Vec<weir_fleet::Mark>,
}

impl Stepping {
    /// Goes on from the last step whose pools were in force here, and the one that the store has, as far as it
    /// answers. A store that was restored from an old copy has one that is over for all others, too.
    pub fn new(kept: Option<Step>, step: Option<Step>) -> Self {
        let at = |step: &Step| (step.id(), step.stage);
        let earlier = |step: &Step| kept.as_ref().is_some_and(|kept| at(step) < at(kept));
        let step = step.filter(|step| !earlier(step)).or_else(|| kept.clone());
        let kept = Arc::new(kept.map_or_else(Pools::new, |kept| kept.pools));
        Self {
            kept,
            step: step.map(Arc::new),
            step_at: 0,
            since: Instant::now(),
            part: Part::default(),
            late: None,
            lagged: None,
            left_behind: None,
            led: None,
            born: Instant::now(),
            frozen_at: Instant::now(),
            asked: None,
            deaf: 0,
            again: None,
            lead_again: None,
            writing: false,
            looked: Instant::now(),
            news: true,
            why: None,
            misses: None,
            made: 0,
            pending: None,
            named: (0, false),
            silent: Vec::new(),
            alone: None,
            heard: false,
            outlived: false,
            anew: Anew::default(),
            noted: false,
            #[cfg(test)]
            marks: Vec::new(),
        }
    }

    /// How far which step is.
    fn at(&self) -> Option<At> {
        self.step.as_ref().map(|step| step.at())
    }

    /// Whether this balancer has said that it takes part in a step that is not over.
    pub fn is_in_step(&self) -> bool {
        self.part.is_in_step(self.at())
    }

    /// Whether there is something to do every millisecond.
    fn is_busy(&self) -> bool {
        self.frozen.is_some() || self.is_in_step()
    }

    /// The last step for which nothing is left to do here.
    #[cfg(test)]
    pub fn done_for(&self) -> u64 {
        self.over.map_or(0, |(_, number)| number)
    }

    fn is_over(&self) -> bool {
        self.step.as_ref().is_none_or(|step| step.stage == Stage::Done)
    }

    fn wait(&mut self) {
        self.again = later(self.again);
    }

    fn waits(&self) -> bool {
        self.again.is_some_and(|(until, _)| Instant::now() < until)
    }

    /// A step is over for which no flow started here: whether agents have said in time what had begun. Nothing is said
    /// of them where it was given up before they were asked, or had time to answer.
    fn count_deaf(&mut self) {
        let Some(id) = self.frozen else { return };
        let asked = self.asked.is_some_and(|(_, at)| at.elapsed() >= IN_TIME);
        match self.acked.filter(|(said, _)| *said == id) {
            Some((_, Stage::Freeze)) if asked => self.deaf += 1,
            Some((_, Stage::Collect | Stage::Commit)) => self.deaf = 0,
            _ => {}
        }
    }

    /// Steps one after the other in which agents have not said in time what has begun.
    #[cfg(test)]
    pub fn deaf(&self) -> u32 {
        self.deaf
    }

    /// How long the leader's last pause is, if its last step was given up.
    #[cfg(test)]
    pub fn pause_of_leader(&self) -> Option<Duration> {
        self.lead_again.map(|(_, after)| after)
    }

    /// The leader tries again later.
    fn pause(&mut self) {
        self.lead_again = later(self.lead_again);
    }

    /// Its last steps were given up, one after the other.
    fn has_paused_long(&self) -> bool {
        self.lead_again.is_some_and(|(_, after)| after >= LONG_PAUSE)
    }

    fn pauses(&self) -> bool {
        self.lead_again.is_some_and(|(until, _)| Instant::now() < until)
    }
}

impl Deref for Stepping {
    type Target = Part;

    fn deref(&self) -> &Part {
        &self.part
    }
}

impl DerefMut for Stepping {
    fn deref_mut(&mut self) -> &mut Part {
        &mut self.part
    }
}

/// How a table comes about whose pool other balancers have, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Commit {
    /// By a step.
    InStep,
    /// Without the others, since the store does not answer.
    Alone,
}

/// When to try again, and after how long, after the last time.
fn later(before: Option<(Instant, Duration)>) -> Option<(Instant, Duration)> {
    let after = before.map_or(AGAIN, |(_, after)| (after * 2).min(AGAIN_AT_MOST));
    Some((Instant::now() + after, after))
}

/// A pool as it stands in a step.
fn shares_of(service: &ServiceRuntime) -> Vec<Share> {
    let members = service.own_members().into_iter().map(|member| Share {
        name: member.name,
        weight: member.weight,
        drains: member.role == Role::Draining,
        down: member.role == Role::Down,
    });
    let mut shares: Vec<Share> = members.collect();
    shares.sort_by(|one, other| one.name.cmp(&other.name));
    shares
}

impl<P: Plane> Engine<P> {
    /// Whether a service's pool changes in step with the other balancers.
    pub(super) fn is_in_step(&self, service: &ServiceRuntime) -> bool {
        self.fleet.is_some() && service.changes_in_step()
    }

    /// Whether a service waits for a step: its table is not made anew before.
    pub(super) fn waits_in_step(&self, service: &ServiceRuntime) -> bool {
        self.is_in_step(service)
            && service.agreed.is_some()
            && service.builder.published().is_some()
            && !self.is_learning()
    }

    /// Of these services, those whose tables may be made anew now. The others wait for a step, and keep the table
    /// that they have.
    pub(super) fn those_not_in_step(&mut self, numbers: &[ServiceId]) -> Vec<ServiceId> {
        let Some(fleet) = &self.fleet else { return numbers.to_vec() };
        if self.commits.is_some() {
            return numbers.to_vec();
        }
        let (step, kept) = (fleet.stepping.step.clone(), fleet.stepping.kept.clone());
        let latest = |name: &str| step.as_ref().and_then(|step| step.pool_at(step.stage, name));
        let table = |name: &str| step.as_ref().and_then(|step| step.table_at(step.stage, name));
        let rows = |name: &str| step.as_ref().and_then(|step| step.rows_at(step.stage, name));
        let learning = self.is_learning();
        let awaits = step.as_ref().is_some_and(|step| fleet.awaits_configuration(step));
        let mut ready = Vec::new();
        for &number in numbers {
            let Some(name) = self.names.get(&number).cloned() else { continue };
            let name = name.as_str();
            let Some(service) = self.services.get_mut(name) else { continue };
            if !service.changes_in_step() {
                // It did, maybe.
                (service.agreed, service.base, service.next_base) = (None, None, None);
                // Rows of a table that is in step; what comes now is no such table.
                service.wanted_rows = None;
                ready.push(number);
                continue;
            }
            // Before there is a table, or a packet that comes here, nothing can be led astray.
            let fresh = service.builder.published().is_none() || learning;
            if fresh {
                (service.agreed, service.wanted_rows) =
                    (latest(name).cloned(), rows(name).cloned());
            } else if service.agreed.is_none() {
                service.agreed = kept.get(name).cloned();
                service.unsure = service.agreed.is_some();
                service.base_of_published(&self.shelf);
            }
            let (agreed, shared) = (service.agreed.is_some(), service.is_shared());
            let here = match table(name).filter(|_| fresh && agreed && shared) {
                // A table without them would lead their connections to others.
                Some(_)
                    if awaits && service.agreed.iter().any(|pool| service.lacks_one_of(pool)) =>
                {
                    false
                }
                Some(digest) => self.table_is_here(name, digest),
                None => !shared,
            };
            if fresh && agreed && here {
                ready.push(number);
            }
        }
        ready
    }

    /// Whether a balancer that has just come has to wait before it takes packets.
    pub(super) fn waits_for_step(&self) -> bool {
        let in_step = self.services.values().any(|service| self.is_in_step(service));
        let of = |fleet: &super::fleet::Fleet| {
            let step = fleet.stepping.step.as_ref();
            let lacks = |(name, digest): (&String, &String)| {
                let service = self.services.get(name).filter(|service| service.is_shared());
                service.is_some_and(|service| service.lacks(digest))
            };
            !fleet.stepping.is_over() || step.is_some_and(|step| step.tables.iter().any(lacks))
        };
        in_step && self.fleet.as_ref().is_some_and(of)
    }

    /// Before packets are taken in the midst of a step, which was waited for as long as may be.
    pub(super) fn freeze_for_step(&mut self) {
        if !self.waits_for_step() {
            return;
        }
        let services = self.in_step(None);
        tolerate(
            "keep flows from starting",
            self.driver.freeze(&services, &mut self.plane).plane(),
        );
        if let Some(stepping) = self.stepping() {
            stepping.thawed = false;
        }
    }

    /// How long the engine may sleep.
    pub(super) fn most_sleep(&self, usual: Duration) -> Duration {
        match self.fleet.as_ref().is_some_and(|fleet| fleet.stepping.is_busy()) {
            true => Duration::from_millis(1),
            false => usual,
        }
    }

    /// Does what is next.
    pub(super) fn go_on_in_step(&mut self) {
        if self.fleet.is_none() {
            return;
        }
        self.look_whether_found_frozen();
        if self.settles() || self.is_learning() {
            self.let_start_again();
            // It may have waited for the end of a step alone, which the others wait for.
            if self.is_learning() {
                self.look_whether_step_moved();
                self.go_on_learning();
            }
            return self.lead_step();
        }
        if !self.is_left_alone() {
            self.follow_step();
            self.lead_step();
        }
        self.keep_off_the_dead();
    }

    /// A process before this one may have kept flows from starting, for a step that has been given up since, or was over:
    /// they need not wait until agents have listed what they hold.
    fn let_start_again(&mut self) {
        let Some(fleet) = self.fleet.as_ref().filter(|fleet| !fleet.stepping.thawed) else {
            return;
        };
        let step = fleet.stepping.step.clone().filter(|step| step.stage == Stage::Done);
        let reachable = fleet.with_report(|report| report.reachable);
        let Some(step) = step.filter(|_| reachable && self.settles()) else { return };
        let follows = |(name, pool): (&String, &Vec<Share>)| {
            let Some(service) = self.services.get(name).filter(|one| self.is_in_step(one)) else {
                return true;
            };
            let table = || step.tables.get(name).is_some_and(|digest| !service.lacks(digest));
            service.agreed.as_ref() == Some(pool)
                && service.builder.published().is_some()
                && (!service.is_shared() || table())
        };
        if step.pools.iter().all(follows) {
            self.has_thawed(&step);
        }
    }

    fn stepping(&mut self) -> Option<&mut Stepping> {
        self.fleet.as_mut().map(|fleet| &mut fleet.stepping)
    }

    /// Numbers of the services in step; `named`: of those in these pools.
    fn in_step(&self, named: Option<&Pools>) -> Vec<ServiceId> {
        let concerned = |name: &String| named.is_none_or(|pools| pools.contains_key(name));
        let all = self
            .services
            .iter()
            .filter(|(name, service)| concerned(name) && self.is_in_step(service));
        all.map(|(_, service)| service.number).collect()
    }

    fn follow_step(&mut self) {
        let Some(stepping) = self.stepping() else { return };
        let Some(step) = stepping.step.clone() else { return };
        let (over, due, now) =
            (stepping.over == Some(step.id()), stepping.due(step.at()), Instant::now());
        let left = |service: &ServiceRuntime| {
            service.is_left(now) || service.has_joined() || service.has_missed_turn(&step)
        };
        if over {
            let reachable = self
                .fleet
                .as_ref()
                .is_some_and(|fleet| fleet.with_report(|report| report.reachable));
            if !reachable || !self.services.values().any(left) {
                return;
            }
        }
        match due {
            Due::Prepare => {
                // Not before it follows what the others do.
                let follows =
                    self.fleet.as_ref().is_some_and(|fleet| fleet.change() == step.change);
                if follows
                    && self.can_step()
                    && self.misses_nobody(&step.next)
                    && self.has_made_up(&step)
                    && self.has_thawed(&step)
                {
                    self.acknowledge(&step);
                }
            }
            Due::Nothing => {}
            Due::Freeze => {
                if self.has_frozen(&step, &step.next) {
                    self.acknowledge(&step);
                }
            }
            Due::Collect => {
                if self.has_collected_for(&step, &step.next) {
                    self.acknowledge(&step);
                }
            }
            Due::Commit => {
                if self.has_committed(&step, &step.next) {
                    self.acknowledge(&step);
                } else {
                    self.say_late(&step);
                }
            }
            Due::End => {
                // A table that nobody has any more is for the next step to replace, which the leader begins.
                let lost = self.has_lost_table();
                if self.has_made_up(&step) || lost && self.leads() {
                    if self.has_thawed(&step) {
                        self.step_is_over(&step);
                    }
                } else if (lost || self.still_lacks_table()) && self.has_thawed(&step) {
                    // It is left behind, and nobody's new flows wait for that.
                    self.goes_on_behind(&step);
                }
            }
        }
    }

    /// Makes packets follow the pools that are in force, where they do not: this balancer was away for some of the
    /// stages, or somebody has died. Returns whether they do.
    fn has_made_up(&mut self, step: &Step) -> bool {
        let now = Instant::now();
        let is_behind = |(name, pool): &(&String, &Vec<Share>)| {
            self.services.get(*name).is_some_and(|service| {
                let held = service.waits_to_turn(step);
                let shared = if held { service.follows_shared() } else { service.is_shared() };
                let table = shared.then(|| step.tables.get(*name));
                // One without a table gets its first by a step, and so does one whose settings have changed.
                let may = if held { service.can_be_held() } else { table != Some(None) };
                self.is_in_step(service)
                    && may
                    && (service.agreed.as_ref() != Some(*pool)
                        || service.unsure
                        || service.has_joined()
                        || service.has_missed_turn(step)
                        || service.is_left(now)
                        || service.builder.published().is_none()
                        || table.flatten().is_some_and(|digest| service.lacks(digest)))
            })
        };
        let behind = step.pools.iter().filter(is_behind);
        let mut behind: Pools = behind.map(|(name, pool)| (name.clone(), pool.clone())).collect();
        if step.stage < Stage::Commit {
            // They get another one soon, and this one may be lost. Or it has not come for so long that the others have gone
            // on: the step is not to wait for it, of whatever services it is.
            let left = self.is_left_behind();
            let all = behind.keys().filter(|name| left || step.next.contains_key(*name)).cloned();
            for name in all.collect::<Vec<_>>() {
                let none = step.next.contains_key(&name)
                    && self.services.get(&name).is_none_or(|one| one.builder.published().is_none());
                let digest = step.tables.get(&name);
                if digest.is_some_and(|digest| none || !self.table_is_here(&name, digest)) {
                    behind.remove(&name);
                }
            }
        }
        if behind.is_empty() {
            if !self.is_left_behind() {
                self.table_is_found();
            }
            return true;
        }
        for name in behind.keys() {
            if let Some(service) = self.services.get_mut(name) {
                // Another method that the others have not come to is not for this one alone.
                let held = service.waits_to_turn(step);
                service.hold_turn(held);
            }
        }
        let done = self.has_committed(step, &behind);
        self.services.values_mut().for_each(|service| service.hold_turn(false));
        done
    }

    /// Whether a table that is in force has not come for so long that nobody has it, or none comes through.
    fn has_lost_table(&self) -> bool {
        let lacks = self.fleet.as_ref().and_then(|fleet| fleet.fetching.lacks_for());
        lacks.is_some_and(|lacks| lacks >= LOST)
    }

    fn leads(&self) -> bool {
        self.fleet.as_ref().is_some_and(|fleet| fleet.leads().0)
    }

    /// Whether this balancer could take part in a step.
    pub(super) fn can_step(&self) -> bool {
        let followed = self.fleet.as_ref().is_some_and(|fleet| fleet.is_followed());
        followed && !self.settles() && !self.is_learning() && self.can_get_tables()
    }

    /// Whether it could get the tables that all are to have alike. Who cannot is named, and not left behind in each
    /// step.
    pub(super) fn can_get_tables(&self) -> bool {
        self.calls_others() || !self.services.values().any(ServiceRuntime::is_shared)
    }

    /// Says that it knows of *commit*, and cannot come to it yet: nobody waits for its lease then.
    fn say_late(&mut self, step: &Step) {
        let Some(fleet) = &mut self.fleet else { return };
        let stepping = &fleet.stepping;
        let id = step.id();
        let left = stepping.left.map(|id| (id, Stage::Prepare));
        let Some((_, stage)) = stepping.acked.or(left).filter(|(said, _)| *said == id) else {
            return;
        };
        if stepping.late == Some(id) || stepping.since.elapsed() < LATE {
            return;
        }
        let lags = stepping.lagged == Some(id);
        let ack = Ack { id: fleet.id().to_owned(), step: id, stage, late: true, lags };
        if fleet.asks().is_some_and(|asks| asks.try_send(Ask::Ack(ack)).is_ok()) {
            fleet.stepping.late = Some(id);
            fleet.note_left_behind();
        }
    }

    fn acknowledge(&mut self, step: &Step) {
        let said = (step.id(), step.stage);
        if self.fleet.as_ref().is_none_or(|fleet| fleet.stepping.acked == Some(said)) {
            return;
        }
        let (lags, lacks) = (self.lags(step), self.lacks_any(step));
        let Some(fleet) = &mut self.fleet else { return };
        let (id, stage) = (fleet.id().to_owned(), step.stage);
        let ack = Ack { id, step: step.id(), stage, late: false, lags };
        // Where there is no room it is said the next time.
        if fleet.asks().is_some_and(|asks| asks.try_send(Ask::Ack(ack)).is_ok()) {
            fleet.stepping.acked = Some(said);
            fleet.stepping.lagged = lags.then(|| step.id());
            if !lags && stage == Stage::Commit && !lacks {
                fleet.stepping.left_behind = None;
            }
            debug!(step = step.number, stage = ?step.stage, after = ?fleet.stepping.since.elapsed(), "in step");
            self.note(step.id(), Did::Says(step.stage));
        }
    }

    /// Keeps flows from starting at the services of these pools. Returns whether those that have started before have
    /// come to their backends.
    fn has_frozen(&mut self, step: &Step, pools: &Pools) -> bool {
        let Some(stepping) = self.stepping() else { return false };
        let (waits, frozen, since) = (stepping.waits(), stepping.frozen, stepping.frozen_at);
        let services = self.in_step(Some(pools));
        if frozen == Some(step.id())
            && services.iter().all(|service| self.driver.is_frozen(*service))
        {
            return since.elapsed() >= FLIGHT;
        }
        if waits {
            return false;
        }
        let done = self.driver.freeze(&services, &mut self.plane);
        if let Err(error) = done.and_then(|()| self.plane.grace()).plane() {
            warn!(%error, "cannot keep flows from starting");
            if let Some(stepping) = self.stepping() {
                stepping.wait();
            }
            return false;
        }
        let frozen = |service: &&mut ServiceRuntime| services.contains(&service.number);
        self.services.values_mut().filter(frozen).for_each(|one| one.collected.clear());
        if let Some(stepping) = self.stepping() {
            (stepping.frozen, stepping.asked) = (Some(step.id()), None);
            stepping.frozen_at = Instant::now();
        }
        self.note(step.id(), Did::Freezes);
        false
    }

    /// The same, and learns what has begun. Returns whether that is done.
    fn has_collected_for(&mut self, step: &Step, pools: &Pools) -> bool {
        if !self.has_frozen(step, pools) {
            return false;
        }
        let asked = self.stepping().and_then(|stepping| stepping.asked);
        let acked = self.stepping().and_then(|stepping| stepping.acked);
        let said = acked.is_some_and(|(id, at)| id == step.id() && at >= Stage::Collect);
        if said && asked.is_some() && step.stage < Stage::Done {
            // Nothing has begun since, and nobody who is gone by now takes back what was told.
            return true;
        }
        let (number, at) = asked.unwrap_or_else(|| {
            // First what a backend that has just joined holds.
            self.look_at_agents();
            let asked = (self.collect_from_agents(), Instant::now());
            if let Some(stepping) = self.stepping() {
                stepping.asked = Some(asked);
            }
            asked
        });
        let (needed, doubted) = self.agents_of(pools);
        // What the agent of one that is down says is worth a wait, and no more.
        let doubts = || at.elapsed() < COLLECT_PATIENCE && !self.has_collected_of(number, &doubted);
        let missed = needed.iter().any(|address| self.misses(*address));
        if self.has_collected_of(number, &needed) && !missed && !doubts() {
            return true;
        }
        if at.elapsed() < COLLECT_PATIENCE {
            return false;
        }
        // What they have not told may break. It costs nothing but time to begin again, a few times.
        let deaf = self.stepping().map_or(0, |stepping| stepping.deaf);
        let goes_on = step.stage != Stage::Collect
            || deaf >= DEAF_STEPS && at.elapsed() >= LAST_PATIENCE.max(COLLECT_PATIENCE);
        let now = (number, goes_on);
        let said = |stepping: &mut Stepping| std::mem::replace(&mut stepping.named, now);
        if self.stepping().map(said) != Some(now) {
            let (agents, lost_at) = self.unsaid(number, pools);
            let step = step.number;
            match goes_on {
                true => {
                    warn!(
                        step,
                        agents, lost_at, "a change goes on without what these have not said"
                    );
                }
                false => info!(step, agents, lost_at, "agents have not said yet what has begun"),
            }
        }
        goes_on
    }

    /// Whether all agents are there that were there not long ago and could say what has begun at the backends of
    /// these pools that are up. If not, it is said whom a change waits for.
    fn misses_nobody(&mut self, pools: &Pools) -> bool {
        self.await_agents();
        let names = self.up_where(pools, |address| self.misses(address));
        let Some(stepping) = self.stepping() else { return true };
        stepping.misses = (!names.is_empty()).then(|| {
            let names = names.join(", ");
            format!("a change of pools in step waits for the agents of {names} to call again")
        });
        names.is_empty()
    }

    /// Names of the agents that are there and have not answered a question, and of the backends of these pools whose
    /// agents are lost.
    pub(super) fn unsaid(&self, number: u64, pools: &Pools) -> (String, String) {
        let lost = self.up_where(pools, |address| self.has_lost_agent(address));
        (self.missing_collect(number).join(", "), lost.join(", "))
    }

    /// Names of the backends of these pools that are up and have such an address.
    fn up_where(&self, pools: &Pools, is_so: impl Fn(IpAddr) -> bool) -> Vec<String> {
        let mut names = BTreeSet::new();
        for (name, pool) in pools {
            let Some(service) = self.services.get(name) else { continue };
            let up = pool.iter().filter(|share| !share.down);
            let members = up.filter_map(|share| service.member(&share.name));
            let found = members.filter(|member| is_so(member.wanted.address));
            names.extend(found.map(|member| member.wanted.name.clone()));
        }
        names.into_iter().collect()
    }

    /// Addresses of backends whose agents are to answer, and of those that are there, whoever is down.
    fn agents_of(&self, pools: &Pools) -> (HashSet<IpAddr>, HashSet<IpAddr>) {
        let (mut needed, mut doubted) = (HashSet::new(), HashSet::new());
        for (name, pool) in pools {
            let Some(service) = self.services.get(name) else { continue };
            // Whoever is down as well does not answer.
            let up = pool.iter().filter(|share| !share.down);
            let members = up.filter_map(|share| service.member(&share.name));
            needed.extend(members.map(|member| member.wanted.address));
            let doubtful = |member: &&PoolMember| service.heard.contains(&member.id);
            doubted.extend(service.pool.iter().filter(doubtful).map(|one| one.wanted.address));
        }
        (needed, doubted)
    }

    /// Whether these pools have backends of which the configuration that is still on its way here tells: a table without
    /// them would lead their connections to others. Where that configuration cannot be followed, its part of them is
    /// done without.
    fn awaits_members(&self, step: &Step, pools: &Pools) -> bool {
        let Some(fleet) = &self.fleet else { return false };
        fleet.awaits_configuration(step)
            && pools.iter().any(|(name, pool)| {
                self.services.get(name).is_some_and(|service| service.lacks_one_of(pool))
            })
    }

    /// Makes packets follow these pools. Returns whether they do.
    fn has_committed(&mut self, step: &Step, pools: &Pools) -> bool {
        let Some(stepping) = self.stepping() else { return false };
        let ready = step.stage == Stage::Commit && stepping.committed == Some(step.id());
        if ready {
            return true;
        }
        if stepping.waits() {
            return false;
        }
        // Who comes late lets flows start until it can follow.
        let late = step.stage == Stage::Done;
        if self.awaits_members(step, pools) {
            // It may have come in a step whose end was not heard of.
            if !self.fleet.as_ref().is_some_and(|fleet| fleet.stepping.is_in_step()) {
                self.take_up_held();
            }
            return false;
        }
        if late && !self.tables_are_here(step, step.stage, pools)
            || !self.has_collected_for(step, pools)
            || !self.tables_are_here(step, step.stage, pools)
        {
            return false;
        }
        let services = self.in_step(Some(pools));
        for number in &services {
            let Some(name) = self.names.get(number) else { continue };
            let Some(service) = self.services.get_mut(name) else { continue };
            service.agreed = pools.get(name).cloned();
            (service.agreed_at, service.dirty) = (Some(Instant::now()), true);
            service.unsure = false;
            service.dead_here.clear();
            service.wanted_rows = step.rows_at(step.stage, name).cloned();
        }
        let begun = Instant::now();
        self.commits = Some(Commit::InStep);
        let failures = self.publish(&services);
        self.commits = None;
        let concerned = |service: &&mut ServiceRuntime| services.contains(&service.number);
        self.services.values_mut().filter(concerned).for_each(|one| one.wanted_rows = None);
        for failure in &failures {
            warn!(%failure, step = step.number, "not in step yet; tried again");
        }
        let Some(stepping) = self.stepping() else { return false };
        if !failures.is_empty() {
            stepping.wait();
            return false;
        }
        stepping.again = None;
        // Who makes up for another step before *commit* has not come to that by it.
        if step.stage == Stage::Commit {
            (stepping.committed, stepping.made) = (Some(step.id()), step.change);
        }
        debug!(step = step.number, took = ?begun.elapsed(), "committed");
        self.note_tables(step, &services);
        self.mark_as_agreed(&services);
        for number in &services {
            let Some(name) = self.names.get(number) else { continue };
            if let Some(service) = self.services.get_mut(name) {
                service.collected.clear();
                // What has changed since the step began is compared with it.
                service.dirty = true;
            }
        }
        true
    }

    /// Tells packets which backends are down, as the step has it.
    fn mark_as_agreed(&mut self, services: &[ServiceId]) {
        let mut marks = Vec::new();
        for service in
            services.iter().filter_map(|number| self.services.get(self.names.get(number)?))
        {
            marks.extend(service.pool.iter().map(|one| (one.id, service.counts_as_up(one))));
        }
        for (id, up) in marks {
            if self.plane.backend(id).is_some_and(|now| now.up != up) {
                self.mark(id, up);
            }
        }
    }

    /// Lets flows start. Returns whether they do.
    fn has_thawed(&mut self, step: &Step) -> bool {
        let Some(stepping) = self.stepping() else { return false };
        let (frozen, thawed, since) = (stepping.frozen, stepping.thawed, stepping.frozen_at);
        if frozen.is_none() && thawed {
            return true;
        }
        let services = self.in_step(None);
        if let Err(error) = self.driver.thaw(&services, &mut self.plane).plane() {
            warn!(%error, "cannot let flows start again; tried again");
            return false;
        }
        let Some(stepping) = self.stepping() else { return false };
        stepping.count_deaf();
        (stepping.frozen, stepping.asked, stepping.thawed) = (None, None, true);
        if let Some(id) = frozen {
            let over = id != step.id() || step.stage == Stage::Done;
            self.note(id, if over { Did::Starts } else { Did::StartsAlone });
            let (pools, frozen) = (step.pools.len(), since.elapsed());
            info!(step = step.number, pools, ?frozen, "flows start again");
        }
        true
    }

    /// A restart goes on from here.
    fn step_is_over(&mut self, step: &Arc<Step>) {
        let Some(fleet) = &mut self.fleet else { return };
        let stepping = &mut fleet.stepping;
        (stepping.committed, stepping.over) = (Some(step.id()), Some(step.id()));
        stepping.left_behind = None;
        fleet.fetching.found();
        tolerate("keep the pools of the fleet for a restart", fleet.keep_step(step));
        let services = &self.services;
        self.shelf.keep(|name| services.get(name).is_some_and(ServiceRuntime::lends));
        self.take_up_held();
    }
}

impl ServiceRuntime {
    /// Whether balancers of a fleet change its pool in step.
    pub fn changes_in_step(&self) -> bool {
        self.configured.method.id().info().in_fleet != InFleet::Alone
    }

    /// Whether the fleet has not said for so long that a backend is down, which this balancer has found down then,
    /// that it may go by that alone. Where the fleet has just said that it is up, its checks here may be later.
    fn is_unheard(&self, member: &PoolMember, since: Instant) -> bool {
        let most = if self.follows_shared() { UNHEARD_SHARED } else { UNHEARD };
        let Some(agreed) = self.agreed_at.filter(|agreed| *agreed >= since) else {
            return since.elapsed() >= most;
        };
        let check = self.configured.check_of(&member.wanted);
        let later = check.map(|check| check.interval * (check.rise + 2));
        agreed.elapsed() >= later.unwrap_or_default().max(most)
    }

    /// Whether this balancer alone keeps flows from a backend, which is `dead` now as it has it, or not. Where all follow
    /// one table it does until there is another one.
    pub fn keeps_off(&self, member: &PoolMember, dead: bool) -> bool {
        (dead || self.follows_shared()) && self.dead_here.contains(&member.wanted.name)
    }

    /// Whether it keeps flows from somebody whom it has found alive again: that takes a new table.
    pub fn waits_for_table(&self) -> bool {
        let dead = |name: &String| self.member(name).is_some_and(|member| !member.up);
        self.follows_shared() && !self.dead_here.is_empty() && !self.dead_here.iter().any(dead)
    }

    /// Whether something of its last table is left undone, and it is time to try that again.
    fn is_left(&self, now: Instant) -> bool {
        let trouble = self.agreed.as_ref().and(self.trouble.as_ref());
        trouble.is_some_and(|trouble| trouble.again <= now)
    }

    /// Whether packets are to take a backend for up. In step, as the leader has it.
    pub fn counts_as_up(&self, member: &super::service::PoolMember) -> bool {
        match &self.agreed {
            None => member.up,
            Some(agreed) => {
                let share = agreed.iter().find(|share| share.name == member.wanted.name);
                !self.keeps_off(member, !member.up) && share.is_none_or(|share| !share.down)
            }
        }
    }
}
