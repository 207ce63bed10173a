//! Health checks.
//!
//! A [`Checker`] asks each address at its interval: for a TCP connection, for a page by HTTP or HTTPS, for
//! a record of the DNS, for an answer to a datagram, or by a script. Connections are closed with a
//! reset, so that no TIME_WAIT is left behind. Targets that ask the same share one check: a
//! host that stands behind many services is asked once, and they learn of its death together. What
//! counts as up or down is decided for each target by a [`Hysteresis`], a pure state machine. A check
//! that could not be made, for a reason of this host's own ([`Outcome::Unknown`]), decides nothing; nor
//! does one that fails together with most others, if that is wanted ([`Checker::hold_at`]).
//!
//! Checks are tasks of one runtime. What is under way at once is bounded, by what it may need
//! ([`ask`]); so is what is read of an answer.

#![forbid(unsafe_code)]

mod answer;
mod checker;
mod connect;
mod crowd;
mod grpc;
mod http;
#[cfg(test)]
mod kinds;
mod script;
mod stack;
#[cfg(test)]
mod tests;
mod tls;
pub mod told;
mod way;
mod weight;

pub use checker::Checker;
pub use connect::{Outcome, Passed, ask, raise_limits};
pub use way::Way;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::{Spoken, What};

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

    /// Takes a failure that is not to count: what is up stays up.
    pub fn hold(&mut self) {
        self.failures = self.failures.saturating_add(1);
        self.successes = 0;
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
    /// Address and port that are asked.
    pub address: SocketAddr,
    /// The way of a service's packets, if the check is to go by it; none: as this host sends.
    pub way: Option<Arc<Way>>,
    /// What is asked.
    pub what: Arc<What>,
    /// Names of our interfaces that lead to targets: while one of them is not there or down, a
    /// target without a route is unknown, not down.
    pub interfaces: Arc<[String]>,
    /// Time from the start of one check to the start of the next.
    pub interval: Duration,
    /// A check that has not succeeded after this time has failed.
    pub timeout: Duration,
    /// Per cent of the interval by which a check may be late, drawn each time.
    pub jitter: u32,
    /// Successes in a row that bring it up.
    pub rise: u32,
    /// Failures in a row that bring it down.
    pub fall: u32,
    /// Each time that it goes down within this time of coming up, twice as many successes bring it up
    /// again, 64 times as many at most; zero: never.
    pub flap_window: Duration,
    /// By how much a weight that it says must have changed to be told, in per cent of the one before.
    pub weight_step: u32,
    /// The shortest time between two such changes.
    pub weight_every: Duration,
    /// Whether the target counts as up before its first check.
    pub initially_up: bool,
}

/// A target went up or down, or says another weight: what a [`Checker`] reports.
#[derive(Clone, Debug)]
pub struct Transition {
    /// The [`Target::id`] of the target.
    pub id: u64,
    /// Whether it is up now.
    pub up: bool,
    /// The weight that it says is its own, if that has changed.
    pub spoken: Option<Spoken>,
    /// The result that decided, for example `connection refused`.
    pub detail: Arc<str>,
    /// When it was decided.
    pub at: Instant,
}

/// What a [`Checker`] knows of a target at one time.
#[derive(Clone, Debug)]
pub struct Status {
    /// The [`Target::id`] of the target.
    pub id: u64,
    /// Address and port that are connected to.
    pub address: SocketAddr,
    /// Whether the target counts as up.
    pub up: bool,
    /// The last result, for example `connected in 310us`; `None` before the first check.
    pub last_result: Option<Arc<str>>,
    /// When the last check ended.
    pub last_check: Option<Instant>,
    /// When the target went up or down; `None` if it never did.
    pub last_change: Option<Instant>,
    /// Successes since the last failure.
    pub successes: u32,
    /// Failures since the last success.
    pub failures: u32,
    /// Checks that were made, or tried.
    pub checks: u64,
    /// Those of them that failed.
    pub failed: u64,
    /// The last failure, and when it was.
    pub last_error: Option<(Arc<str>, Instant)>,
    /// How long the last success took.
    pub took: Option<Duration>,
    /// When the server's certificate ends, in seconds since 1970.
    pub certificate_ends: Option<i64>,
    /// The weight that it said and that was told last.
    pub spoken: Option<Spoken>,
    /// Whether its last failure did not count, since most checks failed.
    pub held: bool,
    /// Successes in a row that bring it up now.
    pub rise: u32,
    /// Whether the last check could not be made, for a reason of this host's own.
    pub unknown: bool,
}
