//! TCP connect health checks.
//!
//! A [`Checker`] opens a connection to each target at its interval and closes it again, with a
//! reset, so that no TIME_WAIT is left behind. What counts as up or down is decided by a
//! [`Hysteresis`], a pure state machine. A check that could not be made, for a reason of this host's
//! own ([`Outcome::Unknown`]), decides nothing.

#![forbid(unsafe_code)]

mod connect;
#[cfg(test)]
mod tests;

pub use connect::{Outcome, ask, raise_limits};

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval_at};
use tracing::{info, warn};

/// Transitions that wait for the receiver before checks do.
const CHANNEL: usize = 1024;
/// 2^64 divided by the golden ratio: multiples of it, modulo 2^64, spread evenly however many
/// there are (Knuth, The Art of Computer Programming, volume 3, section 6.4).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Turns single results into up or down: `rise` successes in a row bring up what is down,
/// `fall` failures in a row bring down what is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hysteresis {
    rise: u32,
    fall: u32,
    up: bool,
    successes: u32,
    failures: u32,
}

impl Hysteresis {
    /// A machine in the state `up`. A `rise` or `fall` of 0 counts as 1.
    pub fn new(rise: u32, fall: u32, up: bool) -> Self {
        Self { rise: rise.max(1), fall: fall.max(1), up, successes: 0, failures: 0 }
    }

    /// Takes one result; the new state if it changed.
    pub fn observe(&mut self, success: bool) -> Option<bool> {
        if success {
            self.successes = self.successes.saturating_add(1);
            self.failures = 0;
        } else {
            self.failures = self.failures.saturating_add(1);
            self.successes = 0;
        }
        let change = if self.up { self.failures >= self.fall } else { self.successes >= self.rise };
        if !change {
            return None;
        }
        self.up = !self.up;
        Some(self.up)
    }

    /// Whether the state is up.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Successes since the last failure.
    pub fn successes(&self) -> u32 {
        self.successes
    }

    /// Failures since the last success.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Takes other thresholds (0 counts as 1) and keeps the state and the counts.
    pub fn set_thresholds(&mut self, rise: u32, fall: u32) {
        self.rise = rise.max(1);
        self.fall = fall.max(1);
    }
}

/// An address to check, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Number chosen by the caller, one for each target; reports carry it.
    pub id: u64,
    /// Our address to connect from; `None` lets the kernel choose. It must not be an address that
    /// the target holds too, such as a service's: the answer would never leave the target.
    pub source: Option<IpAddr>,
    /// Address and port that are connected to.
    pub address: SocketAddr,
    /// Names of our interfaces that lead to targets: while one of them is not there or down, a
    /// target without a route is unknown, not down.
    pub interfaces: Arc<[String]>,
    /// Time from the start of one check to the start of the next.
    pub interval: Duration,
    /// A connection that is not established after this time has failed.
    pub timeout: Duration,
    /// Successes in a row that bring it up.
    pub rise: u32,
    /// Failures in a row that bring it down.
    pub fall: u32,
    /// Whether the target counts as up before its first check.
    pub initially_up: bool,
}

/// A target went up or down: what a [`Checker`] reports.
#[derive(Clone, Debug)]
pub struct Transition {
    /// The [`Target::id`] of the target.
    pub id: u64,
    /// Whether it is up now.
    pub up: bool,
    /// The result that decided, for example `connection refused`.
    pub detail: String,
    /// When it was decided.
    pub at: Instant,
}

/// What a [`Checker`] knows of a target at one time.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// The [`Target::id`] of the target.
    pub id: u64,
    /// Address and port that are connected to.
    pub address: SocketAddr,
    /// Whether the target counts as up.
    pub up: bool,
    /// The last result, for example `connected in 310us`; `None` before the first check.
    pub last_result: Option<String>,
    /// When the last check ended.
    #[serde(skip)]
    pub last_check: Option<Instant>,
    /// When the target went up or down; `None` if it never did.
    #[serde(skip)]
    pub last_change: Option<Instant>,
    /// Successes since the last failure.
    pub successes: u32,
    /// Failures since the last success.
    pub failures: u32,
    /// Checks that were made, or tried.
    pub checks: u64,
    /// Whether the last check could not be made, for a reason of this host's own.
    pub unknown: bool,
}

/// Checks targets until it is dropped.
#[derive(Debug)]
pub struct Checker {
    transitions: mpsc::Sender<Transition>,
    targets: Mutex<Targets>,
}

#[derive(Debug, Default)]
struct Targets {
    running: HashMap<u64, Running>,
    /// Targets ever started, which spreads their phases.
    started: u64,
}

#[derive(Debug)]
struct Running {
    settings: watch::Sender<Target>,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Debug)]
struct State {
    hysteresis: Hysteresis,
    last_result: Option<String>,
    last_check: Option<Instant>,
    last_change: Option<Instant>,
    checks: u64,
    unknown: bool,
}

impl Checker {
    /// A checker without targets, and where it reports. If nobody receives, checks wait.
    pub fn new() -> (Self, mpsc::Receiver<Transition>) {
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
        let mut targets = lock(&self.targets);
        let wanted: HashMap<u64, Target> = wanted.into_iter().map(|one| (one.id, one)).collect();
        targets.running.retain(|id, running| {
            let address = running.settings.borrow().address;
            wanted.get(id).is_some_and(|one| one.address == address)
        });
        for (id, target) in wanted {
            if let Some(running) = targets.running.get(&id) {
                running.settings.send_if_modified(|now| {
                    let changed = *now != target;
                    *now = target;
                    changed
                });
                continue;
            }
            targets.started += 1;
            let phase = targets.started.wrapping_mul(GOLDEN);
            let running = self.start(target, phase);
            targets.running.insert(id, running);
        }
    }

    /// The state of every target, by id.
    pub fn snapshot(&self) -> Vec<Status> {
        let targets = lock(&self.targets);
        let mut all: Vec<Status> = targets
            .running
            .iter()
            .map(|(&id, running)| {
                let state = lock(&running.state);
                Status {
                    id,
                    address: running.settings.borrow().address,
                    up: state.hysteresis.is_up(),
                    last_result: state.last_result.clone(),
                    last_check: state.last_check,
                    last_change: state.last_change,
                    successes: state.hysteresis.successes(),
                    failures: state.hysteresis.failures(),
                    checks: state.checks,
                    unknown: state.unknown,
                }
            })
            .collect();
        all.sort_by_key(|status| status.id);
        all
    }

    fn start(&self, target: Target, phase: u64) -> Running {
        let state = Arc::new(Mutex::new(State {
            hysteresis: Hysteresis::new(target.rise, target.fall, target.initially_up),
            last_result: None,
            last_check: None,
            last_change: None,
            checks: 0,
            unknown: false,
        }));
        let (settings, receiver) = watch::channel(target);
        let task = watch_over(receiver, Arc::clone(&state), self.transitions.clone(), phase);
        Running { settings, state, task: tokio::spawn(task) }
    }
}

/// A panic while the lock was held cannot have left the plain values in it half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks one target for ever, one check at a time.
async fn watch_over(
    mut settings: watch::Receiver<Target>,
    state: Arc<Mutex<State>>,
    transitions: mpsc::Sender<Transition>,
    phase: u64,
) {
    loop {
        let every = settings.borrow_and_update().interval;
        // The first check comes after a share of the interval that differs between targets.
        let share = every.mul_f64(phase as f64 / 2f64.powi(64));
        // tokio's interval panics at zero.
        let every = every.max(Duration::from_millis(1));
        let mut ticks = interval_at(tokio::time::Instant::now() + share, every);
        // A check that took longer than its interval delays the next and is not made up for.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            let target = settings.borrow_and_update().clone();
            if target.interval.max(Duration::from_millis(1)) != every {
                break;
            }
            let outcome =
                ask(target.source, target.address, target.timeout, &target.interfaces).await;
            if let Some(transition) = note(&state, &target, outcome)
                && transitions.send(transition).await.is_err()
            {
                return;
            }
        }
    }
}

/// Enters an outcome; the transition that it decides, if it does.
fn note(state: &Mutex<State>, target: &Target, outcome: Outcome) -> Option<Transition> {
    let detail = outcome.to_string();
    let (address, unknown) = (target.address, matches!(outcome, Outcome::Unknown(_)));
    let now = Instant::now();
    let mut state = lock(state);
    if unknown != state.unknown {
        if unknown {
            warn!(%address, detail, "health unknown: the backend stays as it was");
        } else {
            info!(%address, detail, "health known again");
        }
    }
    state.unknown = unknown;
    state.checks += 1;
    state.hysteresis.set_thresholds(target.rise, target.fall);
    state.last_result = Some(detail.clone());
    state.last_check = Some(now);
    let success = match outcome {
        Outcome::Connected(_) => true,
        Outcome::Failed(_) => false,
        Outcome::Unknown(_) => return None,
    };
    let up = state.hysteresis.observe(success)?;
    state.last_change = Some(now);
    Some(Transition { id: target.id, up, detail, at: now })
}
