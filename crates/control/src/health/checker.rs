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

use super::{Hysteresis, Outcome, Status, Target, Transition, ask};

/// Checks with transitions that wait for the receiver before checks do.
const CHANNEL: usize = 1024;
/// 2^64 divided by the golden ratio: multiples of it, modulo 2^64, spread evenly however many
/// there are (Knuth, The Art of Computer Programming, volume 3, section 6.4).
pub(super) const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Checks targets until it is dropped.
#[derive(Debug)]
pub struct Checker {
    transitions: mpsc::Sender<Vec<Transition>>,
    targets: Mutex<Targets>,
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
    interfaces: Arc<[String]>,
    interval: Duration,
    timeout: Duration,
}

impl Question {
    fn of(target: &Target) -> Self {
        Self {
            source: target.source,
            address: target.address,
            interfaces: Arc::clone(&target.interfaces),
            interval: target.interval,
            timeout: target.timeout,
        }
    }
}

/// What is known of the targets of a question, by id.
type States = BTreeMap<u64, State>;

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
struct State {
    hysteresis: Hysteresis,
    last_result: Option<Arc<str>>,
    last_check: Option<Instant>,
    last_change: Option<Instant>,
    checks: u64,
    unknown: bool,
}

impl State {
    fn new(target: &Target) -> Self {
        Self {
            hysteresis: Hysteresis::new(target.rise, target.fall, target.initially_up),
            last_result: None,
            last_check: None,
            last_change: None,
            checks: 0,
            unknown: false,
        }
    }

    /// Enters an outcome; whether it went up or down by it.
    fn note(&mut self, outcome: &Outcome, words: &Arc<str>, now: Instant) -> Option<bool> {
        self.unknown = matches!(outcome, Outcome::Unknown(_));
        self.checks += 1;
        self.last_result = Some(Arc::clone(words));
        self.last_check = Some(now);
        let change = match outcome {
            Outcome::Connected(_) => self.hysteresis.observe(true),
            Outcome::Failed(_) => self.hysteresis.observe(false),
            Outcome::Unknown(_) => None,
        };
        if change.is_some() {
            self.last_change = Some(now);
        }
        change
    }
}

impl Checker {
    /// A checker without targets, and where it reports: all that one check has decided, together. If
    /// nobody receives, checks wait.
    pub fn new() -> (Self, mpsc::Receiver<Vec<Transition>>) {
        let (transitions, receiver) = mpsc::channel(CHANNEL);
        let checker = Self { transitions, targets: Mutex::default() };
        (checker, receiver)
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
            targets.set(target, &self.transitions);
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
                last_result: state.last_result.as_deref().map(str::to_owned),
                last_check: state.last_check,
                last_change: state.last_change,
                successes: state.hysteresis.successes(),
                failures: state.hysteresis.failures(),
                checks: state.checks,
                unknown: state.unknown,
            }));
        }
        all.sort_by_key(|status| status.id);
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
        state.map(|state| (target, state, first))
    }

    fn set(&mut self, target: Target, transitions: &mpsc::Sender<Vec<Transition>>) {
        if self.wanted.get(&target.id) == Some(&target) {
            return;
        }
        let before = self.remove(target.id).filter(|(old, ..)| old.address == target.address);
        let (state, first) = match before {
            Some((old, mut state, first)) => {
                state.hysteresis.set_thresholds(target.rise, target.fall);
                (state, (old.interval == target.interval).then_some(first))
            }
            None => (State::new(&target), None),
        };
        let question = Question::of(&target);
        if !self.probes.contains_key(&question) {
            let first = first.unwrap_or_else(|| self.next_place(question.interval));
            let probe = Probe::start(question.clone(), first, transitions.clone());
            self.probes.insert(question.clone(), probe);
        }
        if let Some(probe) = self.probes.get(&question) {
            lock(&probe.states).insert(target.id, state);
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
    fn start(
        question: Question,
        first: time::Instant,
        transitions: mpsc::Sender<Vec<Transition>>,
    ) -> Self {
        let states = Arc::default();
        let task = watch_over(question, first, Arc::clone(&states), transitions);
        Self { states, first, task: tokio::spawn(task) }
    }
}

/// A panic while the lock was held cannot have left the plain values in it half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn watch_over(
    question: Question,
    first: time::Instant,
    states: Arc<Mutex<States>>,
    transitions: mpsc::Sender<Vec<Transition>>,
) {
    let Question { source, address, interfaces, interval, timeout } = question;
    // tokio's interval panics at zero.
    let every = interval.max(Duration::from_millis(1));
    let mut ticks = interval_at(next_after(first, every), every);
    // A check that took longer than its interval delays the next and is not made up for.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        let outcome = ask(source, address, timeout, &interfaces).await;
        let changes = note(&states, address, &outcome);
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
fn note(states: &Mutex<States>, address: SocketAddr, outcome: &Outcome) -> Vec<Transition> {
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
    let decided = |(&id, state): (&u64, &mut State)| {
        let up = state.note(outcome, &words, at)?;
        Some(Transition { id, up, detail: Arc::clone(&words), at })
    };
    states.iter_mut().filter_map(decided).collect()
}
