//! TCP connect health checks.
//!
//! A [`Checker`] opens a connection to each address at its interval and closes it again, with a
//! reset, so that no TIME_WAIT is left behind. Targets that ask the same share one connection: a
//! host that stands behind many services is asked once, and they learn of its death together. What
//! counts as up or down is decided for each target by a [`Hysteresis`], a pure state machine. A check
//! that could not be made, for a reason of this host's own ([`Outcome::Unknown`]), decides nothing.

#![forbid(unsafe_code)]

mod checker;
mod connect;
#[cfg(test)]
mod tests;

pub use checker::Checker;
pub use connect::{Outcome, ask, raise_limits};

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

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
    pub detail: Arc<str>,
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
