//! Who is asked, how often, and who wants to know.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{self, MissedTickBehavior, interval_at};
use tracing::{info, warn};

use super::crowd::{Crowd, Place};
use super::weight::Calm;
use super::{Hysteresis, Outcome, Passed, Status, Target, Transition, Way, ask};
use crate::config::{Spoken, What};
use crate::frames::Frames;

/// Checks with transitions that wait for the receiver before checks do.
const CHANNEL: usize = 1024;
/// 2^64 divided by the golden ratio: multiples of it, modulo 2^64, spread evenly however many
/// there are (Knuth, The Art of Computer Programming, volume 3, section 6.4).
pub(super) const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// Doublings of the successes that one which flaps needs.
const MOST_DOUBLED: u32 = 6;

/// Checks targets until it is dropped.
#[derive(Debug)]
pub struct Checker {
    transitions: mpsc::Sender<Vec<Transition>>,
    targets: Mutex<Targets>,
    crowd: Arc<Crowd>,
    frames: Arc<Frames>,
}

#[derive(Debug, Default)]
struct Targets {
    wanted: BTreeMap<u64, Target>,
    probes: HashMap<Question, Probe>,
    /// Probes ever started at a place in time of their own, which spreads them.
    started: u64,
}

/// What is asked: targets with the same question share its answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Question {
    source: Option<IpAddr>,
    address: SocketAddr,
    way: Option<Arc<Way>>,
    what: Arc<What>,
    interfaces: Arc<[String]>,
    interval: Duration,
    timeout: Duration,
    jitter: u32,
}

impl Question {
    fn of(target: &Target) -> Self {
        Self {
            source: target.source,
            address: target.address,
            way: target.way.clone(),
            what: Arc::clone(&target.what),
            interfaces: Arc::clone(&target.interfaces),
            interval: target.interval,
            timeout: target.timeout,
            jitter: target.jitter,
        }
    }
}

/// What is known of the targets of a question, by id; boxed, since most questions have one, and a node of such a map
/// has room for eleven.
type States = BTreeMap<u64, Box<State>>;

#[derive(Debug)]
struct Probe {
    states: Arc<Mutex<States>>,
    /// When its first check was due.
    first: time::Instant,
    task: JoinHandle<()>,
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Debug)]
pub(super) struct State {
    hysteresis: Hysteresis,
    rise: u32,
    fall: u32,
    flap_window: Duration,
    /// How often it went down again soon after it had come up.
    flaps: u32,
    came_up: Option<Instant>,
    last_result: Option<Arc<str>>,
    last_check: Option<Instant>,
    last_change: Option<Instant>,
    checks: u64,
    failed: u64,
    last_error: Option<(Arc<str>, Instant)>,
    took: Option<Duration>,
    certificate_ends: Option<i64>,
    unknown: bool,
    held: bool,
    calm: Calm,
    weight_step: u32,
    weight_every: Duration,
}

impl State {
    pub(super) fn new(target: &Target) -> Self {
        Self {
            hysteresis: Hysteresis::new(target.rise, target.fall, target.initially_up),
            rise: target.rise,
            fall: target.fall,
            flap_window: target.flap_window,
            flaps: 0,
            came_up: None,
            last_result: None,
            last_check: None,
            last_change: None,
            checks: 0,
            failed: 0,
            last_error: None,
            took: None,
            certificate_ends: None,
            unknown: false,
            held: false,
            calm: Calm::default(),
            weight_step: target.weight_step,
            weight_every: target.weight_every,
        }
    }

    /// Takes a target's settings, and keeps what is known of it.
    fn set(&mut self, target: &Target) {
        (self.rise, self.fall) = (target.rise, target.fall);
        self.flap_window = target.flap_window;
        (self.weight_step, self.weight_every) = (target.weight_step, target.weight_every);
        self.set_thresholds();
    }

    /// Successes in a row that bring it up.
    pub(super) fn rise(&self) -> u32 {
        self.rise.max(1).saturating_mul(1 << self.flaps.min(MOST_DOUBLED))
    }

    /// The weight that an answer says, if it is worth telling.
    fn hear(&mut self, outcome: &Outcome, now: Instant) -> Option<Spoken> {
        let Outcome::Passed(Passed { spoken: Some(said), .. }) = outcome else { return None };
        self.calm.take(*said, self.weight_step, self.weight_every, now)
    }

    fn set_thresholds(&mut self) {
        self.hysteresis.set_thresholds(self.rise(), self.fall);
    }

    /// Whoever goes down soon after it came up has to show more the next time.
    fn damp(&mut self, up: bool, now: Instant) {
        if up {
            self.came_up = Some(now);
            return;
        }
        let soon = self.came_up.is_some_and(|at| now.duration_since(at) < self.flap_window);
        self.flaps = if soon { (self.flaps + 1).min(MOST_DOUBLED) } else { 0 };
        self.set_thresholds();
    }

    /// Enters an outcome, which if it is `held` counts for nothing; whether it went up or down by it.
    pub(super) fn note(
        &mut self,
        outcome: &Outcome,
        held: bool,
        words: &Arc<str>,
        now: Instant,
    ) -> Option<bool> {
        self.unknown = matches!(outcome, Outcome::Unknown(_));
        self.held = held && self.hysteresis.is_up();
        self.checks += 1;
        self.last_result = Some(Arc::clone(words));
        self.last_check = Some(now);
        let change = match outcome {
            Outcome::Passed(Passed { took, certificate_ends, .. }) => {
                self.took = Some(*took);
                self.certificate_ends = *certificate_ends;
                self.hysteresis.observe(true)
            }
            Outcome::Failed(_) => {
                self.failed += 1;
                self.last_error = Some((Arc::clone(words), now));
                if self.held {
                    self.hysteresis.hold();
                    None
                } else {
                    self.hysteresis.observe(false)
                }
            }
            Outcome::Unknown(_) => None,
        };
        if let Some(up) = change {
            self.last_change = Some(now);
            self.damp(up, now);
        }
        change
    }
}

impl Checker {
    /// A checker without targets, and where it reports: all that one check has decided, together. If
    /// nobody receives, checks wait.
    pub fn new() -> (Self, mpsc::Receiver<Vec<Transition>>) {
        let (transitions, receiver) = mpsc::channel(CHANNEL);
        let checker = Self {
            transitions,
            targets: Mutex::default(),
            crowd: Arc::default(),
            frames: Arc::default(),
        };
        (checker, receiver)
    }

    /// While so many per cent of the checks of all that is up fail at once, none of them takes anything
    /// down: this host's own network is the suspect. 0: they always count, as they do where there are
    /// fewer than three.
    pub fn hold_at(&self, percent: u32) {
        self.crowd.hold_at(percent);
    }

    /// How many checks fail, and of how many, if none of them counts for that.
    pub fn held(&self) -> Option<(usize, usize)> {
        self.crowd.held()
    }

    /// Replaces the set of targets. A target whose id and address stay keeps its state, its
    /// counts and (if its interval stays) its place in time, and takes the other settings from
    /// the next check on; any other begins anew. Of several targets with one id the last
    /// counts. A transition of a removed target may still be on its way.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn set_targets(&self, wanted: Vec<Target>) {
        self.set_targets_among(0..=u64::MAX, wanted);
    }

    /// As [`set_targets`](Self::set_targets), of the targets with these ids; all others stay.
    ///
    /// # Panics
    /// As above.
    pub fn set_targets_among(&self, ids: RangeInclusive<u64>, wanted: Vec<Target>) {
        let mut targets = lock(&self.targets);
        let wanted: BTreeMap<u64, Target> = wanted.into_iter().map(|one| (one.id, one)).collect();
        let gone: Vec<u64> = targets
            .wanted
            .range(ids)
            .map(|(id, _)| *id)
            .filter(|id| !wanted.contains_key(id))
            .collect();
        for id in gone {
            targets.remove(id);
        }
        for target in wanted.into_values() {
            targets.set(target, &self.transitions, (&self.crowd, &self.frames));
        }
    }

    /// The state of every target, by id.
    pub fn snapshot(&self) -> Vec<Status> {
        let targets = lock(&self.targets);
        let mut all = Vec::with_capacity(targets.wanted.len());
        for (question, probe) in &targets.probes {
            all.extend(lock(&probe.states).iter().map(|(&id, state)| Status {
                id,
                address: question.address,
                up: state.hysteresis.is_up(),
                last_result: state.last_result.clone(),
                last_check: state.last_check,
                last_change: state.last_change,
                successes: state.hysteresis.successes(),
                failures: state.hysteresis.failures(),
                checks: state.checks,
                failed: state.failed,
                last_error: state.last_error.clone(),
                took: state.took,
                certificate_ends: state.certificate_ends,
                unknown: state.unknown,
                spoken: state.calm.told(),
                held: state.held,
                rise: state.rise(),
            }));
        }
        // Each of them is moved once.
        all.sort_by_cached_key(|status| status.id);
        all
    }
}

impl Targets {
    /// Removes a target, and its probe if it was the last one's; what was known of it, and when its
    /// checks began.
    fn remove(&mut self, id: u64) -> Option<(Target, State, time::Instant)> {
        let target = self.wanted.remove(&id)?;
        let question = Question::of(&target);
        let probe = self.probes.get(&question)?;
        let first = probe.first;
        let mut states = lock(&probe.states);
        let state = states.remove(&id);
        let last = states.is_empty();
        drop(states);
        if last {
            self.probes.remove(&question);
        }
        state.map(|state| (target, *state, first))
    }

    fn set(
        &mut self,
        target: Target,
        transitions: &mpsc::Sender<Vec<Transition>>,
        (crowd, frames): (&Arc<Crowd>, &Arc<Frames>),
    ) {
        if self.wanted.get(&target.id) == Some(&target) {
            return;
        }
        let before = self.remove(target.id).filter(|(old, ..)| old.address == target.address);
        let (state, first) = match before {
            Some((old, mut state, first)) => {
                state.set(&target);
                (state, (old.interval == target.interval).then_some(first))
            }
            None => (State::new(&target), None),
        };
        let question = Question::of(&target);
        if !self.probes.contains_key(&question) {
            let first = first.unwrap_or_else(|| self.next_place(question.interval));
            let place = Place::new(Arc::clone(crowd));
            let probe = Probe::start(
                question.clone(),
                first,
                place,
                (transitions.clone(), Arc::clone(frames)),
            );
            self.probes.insert(question.clone(), probe);
        }
        if let Some(probe) = self.probes.get(&question) {
            lock(&probe.states).insert(target.id, Box::new(state));
        }
        self.wanted.insert(target.id, target);
    }

    /// The first check comes after a share of the interval that differs between probes.
    fn next_place(&mut self, interval: Duration) -> time::Instant {
        self.started += 1;
        let phase = self.started.wrapping_mul(GOLDEN);
        time::Instant::now() + interval.mul_f64(phase as f64 / 2f64.powi(64))
    }
}

impl Probe {
    /// Asks for ever, one check at a time; `first`: when the first one is, or was, due.
    fn start(question: Question, first: time::Instant, place: Place, means: Means) -> Self {
        let states = Arc::default();
        let task = watch_over(question, first, Arc::clone(&states), place, means);
        Self { states, first, task: tokio::spawn(task) }
    }
}

/// Where a probe tells what it has decided, and what it may need to ask.
type Means = (mpsc::Sender<Vec<Transition>>, Arc<Frames>);

/// A panic while the lock was held cannot have left the plain values in it half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn watch_over(
    question: Question,
    first: time::Instant,
    states: Arc<Mutex<States>>,
    mut place: Place,
    (transitions, frames): Means,
) {
    let Question { source, address, way, what, interfaces, interval, timeout, jitter } = question;
    // tokio's interval panics at zero.
    let every = interval.max(Duration::from_millis(1));
    let mut ticks = interval_at(next_after(first, every), every);
    // A check that took longer than its interval delays the next and is not made up for.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        if jitter > 0 {
            let share = f64::from(jitter) / 100.0 * rand::random::<f64>();
            time::sleep(every.mul_f64(share)).await;
        }
        let way = way.as_deref().map(|way| (way, &*frames));
        // Ten kilobytes, for all that a check may be, are there while it is made, and not between two.
        let asked = Box::pin(ask(source, address, &what, timeout, (&interfaces, way)));
        let outcome = asked.await;
        let changes = note(&states, address, every, &mut place, &outcome);
        if !changes.is_empty() && transitions.send(changes).await.is_err() {
            return;
        }
    }
}

/// The first time from now on at which a check is due.
fn next_after(first: time::Instant, every: Duration) -> time::Instant {
    let since = first.elapsed();
    let into = since.as_nanos() % every.as_nanos().max(1);
    match u64::try_from(into) {
        Ok(into) if into > 0 => first + since - Duration::from_nanos(into) + every,
        _ => first + since,
    }
}

/// Enters an outcome for all who want to know; the transitions that it decides.
fn note(
    states: &Mutex<States>,
    address: SocketAddr,
    every: Duration,
    place: &mut Place,
    outcome: &Outcome,
) -> Vec<Transition> {
    let words: Arc<str> = outcome.to_string().into();
    let unknown = matches!(outcome, Outcome::Unknown(_));
    let at = Instant::now();
    let mut states = lock(states);
    if states.values().any(|state| state.unknown != unknown) {
        let detail = &*words;
        if unknown {
            warn!(%address, detail, "health unknown: the backend stays as it was");
        } else {
            info!(%address, detail, "health known again");
        }
    }
    let up = states.values().any(|state| state.hysteresis.is_up());
    // What has just gone down still says that many fail at once.
    let counted = (up || place.until.is_some_and(|until| at < until)) && !unknown;
    let held = place.enter(counted, matches!(outcome, Outcome::Failed(_)));
    if held && !states.values().any(|state| state.held) {
        warn!(%address, detail = &*words, "most checks fail at once: the backend stays as it was");
    }
    if up {
        let falls = states.values().map(|state| state.fall).max().unwrap_or(1);
        place.until = Some(at + every * (falls + 1));
    }
    let decided = |(&id, state): (&u64, &mut Box<State>)| {
        let (changed, spoken) = (state.note(outcome, held, &words, at), state.hear(outcome, at));
        let up = changed.or_else(|| spoken.map(|_| state.hysteresis.is_up()))?;
        Some(Transition { id, up, spoken, detail: Arc::clone(&words), at })
    };
    states.iter_mut().filter_map(decided).collect()
}
