//! The books on one connection, and how they are closed.

use std::time::Instant;

use super::Shared;
use super::spec::Kind;
use super::stats::BrokenConnection;
use super::verdict::{Failure, Home, NOTICED, Outcome, judge};
use crate::witness::{Ends, Key};

/// What is known of a connection that ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account {
    pub(crate) kind: Kind,
    pub(crate) started: Instant,
    /// Its two ends, if it had a port.
    pub(crate) key: Option<Key>,
    /// The backend of its first answer, and when that came.
    pub(crate) backend: Option<(usize, Instant)>,
    pub(crate) answers: u64,
}

impl Account {
    /// Judges it and counts it. If its port is free again at once, `reusable`, what was seen of it is
    /// forgotten.
    pub(crate) fn close(self, shared: &Shared, result: Result<(), Failure>, reusable: bool) {
        let home = self.home(shared);
        let outcome = match result {
            Ok(()) => Outcome::Completed,
            Err(failure) => {
                judge(&shared.events, shared.spec.detection, self.started, home, failure)
            }
        };
        let untold = self.key.is_some_and(|key| !key.udp && shared.lies.meet(key.source.port()));
        let outcome = if untold { outcome.of_untold() } else { outcome };
        let ends = match (&outcome, self.key) {
            (Outcome::Broken(_), Some(key)) => shared.witness.ends(&key, self.started),
            _ => Ends::default(),
        };
        if let Some(key) = self.key.filter(|_| reusable) {
            shared.witness.forget(&key, self.started);
        }
        if let Outcome::Broken(reason) = &outcome {
            let failed = shared.events.elapsed();
            let name = |backend| shared.stats.name(backend).to_string();
            shared.stats.keep_broken(BrokenConnection {
                kind: self.kind,
                source: self.key.map_or(String::new(), |key| key.source.to_string()),
                reason: reason.clone(),
                backend: self.backend.map(|(backend, _)| name(backend)),
                began: match home {
                    Home::Began(backend, _) => Some(name(backend)),
                    Home::Answered(..) | Home::Nowhere => None,
                },
                dead_for: match home {
                    Home::Began(backend, at) => shared.events.dead_for(backend, at),
                    Home::Answered(..) | Home::Nowhere => None,
                }
                .map(|time| time.as_secs_f64()),
                began_at: ends.began.iter().map(|backend| name(*backend)).collect(),
                reset_by: ends.reset.iter().map(|backend| name(*backend)).collect(),
                answers: self.answers,
                started: (failed.saturating_sub(self.started.elapsed())).as_secs_f64(),
                failed: failed.as_secs_f64(),
            });
        }
        if untold {
            shared.stats.untold();
        }
        shared.stats.end(self.kind, home, Some(&outcome));
    }

    /// Where backends do not see who sends: one whose death would excuse this, if it began there.
    fn died_unseen(&self, shared: &Shared) -> Option<Home> {
        let detection = shared.spec.detection;
        let since = self.started.checked_sub(detection).unwrap_or(self.started);
        let dead = |backend: &usize| {
            shared.events.killed_between(*backend, since, self.started + detection, self.started)
                || shared.events.unnoticed_at(*backend, self.started, NOTICED)
                || shared.events.leaving_at(*backend, self.started)
        };
        let backend = shared.witness.hidden().find(dead)?;
        Some(Home::Began(backend, self.started))
    }

    fn home(&self, shared: &Shared) -> Home {
        let seen = |key| shared.witness.latest(&key, self.started);
        match (self.backend, self.key) {
            (Some((backend, first)), _) => Home::Answered(backend, first),
            (None, Some(key)) => {
                let began = seen(key).map(|sight| Home::Began(sight.backend, sight.at));
                began.or_else(|| self.died_unseen(shared)).unwrap_or(Home::Nowhere)
            }
            (None, None) => Home::Nowhere,
        }
    }
}
