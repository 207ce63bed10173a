//! How a connection ended, and whose fault it was.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use serde::{Serialize, Serializer};

use crate::events::PoolEvents;

/// Why a connection failed, as the client saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The connection could not be made.
    Connect(io::ErrorKind),
    /// The connection was reset.
    Reset,
    /// The server closed before its answer was complete.
    Eof,
    /// Nothing came in time; says what was waited for.
    Timeout(&'static str),
    /// An answer came from another backend than the first one.
    Moved {
        /// The other backend.
        to: String,
    },
    /// An answer was not one.
    Garbled(String),
    /// Another error of the client's system, such as no free port: the lab is too small.
    Local(String),
}

impl Failure {
    /// What an I/O error on an established connection means.
    pub(crate) fn of(error: &io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        match error.kind() {
            ConnectionReset | ConnectionAborted | BrokenPipe => Self::Reset,
            UnexpectedEof => Self::Eof,
            _ => Self::Local(error.to_string()),
        }
    }

    /// What an I/O error while connecting means.
    pub(crate) fn of_connect(error: &io::Error) -> Self {
        use io::ErrorKind::{
            ConnectionAborted, ConnectionRefused, ConnectionReset, HostUnreachable,
            NetworkUnreachable, TimedOut,
        };
        match error.kind() {
            kind @ (ConnectionRefused | ConnectionReset | ConnectionAborted | TimedOut
            | HostUnreachable | NetworkUnreachable) => Self::Connect(kind),
            _ => Self::Local(error.to_string()),
        }
    }

    /// Whether the death of the connection's backend explains it.
    fn can_follow_a_kill(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Reset | Self::Eof | Self::Timeout(_) | Self::Moved { .. } => {
                true
            }
            Self::Garbled(_) | Self::Local(_) => false,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(kind) => write!(f, "connect: {kind}"),
            Self::Reset => f.write_str("reset"),
            Self::Eof => f.write_str("closed before the answer was complete"),
            Self::Timeout(what) => write!(f, "timeout: {what}"),
            Self::Moved { to } => write!(f, "moved to {to}"),
            Self::Garbled(what) => write!(f, "garbled answer: {what}"),
            Self::Local(what) => write!(f, "in the client: {what}"),
        }
    }
}

impl Serialize for Failure {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did all that it was to do, on one backend.
    Completed,
    /// It failed, and its own backend was killed while it was alive.
    Inevitable(Failure),
    /// It failed, and nothing excuses it.
    Broken(Failure),
}

/// Judges a connection that started at `started` and has just failed. `backend` is the one that
/// gave its first answer.
///
/// Its own backend excuses it if that was dead at some time of its life: killed later, or killed
/// just before it started and started again since. (A datagram that was sent to a dead backend is
/// sent again, and may be answered when the backend is back, while the balancer's health checks
/// still have it down and new flows go elsewhere.)
///
/// If no answer came, any backend may have been it: one that was killed up to `detection` before
/// the start, which the balancer had not noticed yet, or as long after the start. Later kills are
/// no excuse, however late the failure shows: a first answer takes milliseconds, so a connection
/// that still has none waits for something else.
pub(crate) fn judge(
    events: &PoolEvents,
    detection: Duration,
    started: Instant,
    backend: Option<usize>,
    failure: Failure,
) -> Outcome {
    let killed = match backend {
        Some(backend) => events.dead_since(backend, started),
        None => {
            // Early in the machine's life there may be no instant so long ago.
            let since = started.checked_sub(detection).unwrap_or(started);
            events.any_killed_between(since, started + detection)
        }
    };
    if killed && failure.can_follow_a_kill() {
        Outcome::Inevitable(failure)
    } else {
        Outcome::Broken(failure)
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;

    use super::*;

    const DETECTION: Duration = Duration::from_millis(30);

    fn is_inevitable(
        events: &PoolEvents,
        started: Instant,
        backend: Option<usize>,
        failure: Failure,
    ) -> bool {
        matches!(judge(events, DETECTION, started, backend, failure), Outcome::Inevitable(_))
    }

    #[test]
    fn only_the_death_of_its_own_backend_excuses_a_connection() {
        let events = PoolEvents::default();
        let started = Instant::now();
        assert!(!is_inevitable(&events, started, Some(1), Failure::Reset));
        events.kill(1, || {});
        assert!(is_inevitable(&events, started, Some(1), Failure::Reset));
        assert!(is_inevitable(&events, started, Some(1), Failure::Eof));
        assert!(!is_inevitable(&events, started, Some(2), Failure::Reset));
        // The same backend was killed, and back, before the connection started: not its excuse.
        events.revive(1);
        let later = Instant::now();
        assert!(!is_inevitable(&events, later, Some(1), Failure::Reset));
    }

    #[test]
    fn before_the_first_answer_any_death_near_the_start_excuses() {
        let events = PoolEvents::default();
        let long_before = Instant::now();
        sleep(DETECTION * 2);
        events.kill(1, || {});
        let just_after = Instant::now();
        let refused = Failure::Connect(io::ErrorKind::ConnectionRefused);
        assert!(is_inevitable(&events, just_after, None, refused.clone()));
        sleep(DETECTION * 2);
        let long_after = Instant::now();
        assert!(!is_inevitable(&events, long_after, None, refused.clone()));
        assert!(!is_inevitable(&events, long_before, None, refused));
    }

    #[test]
    fn nonsense_is_never_excused() {
        let events = PoolEvents::default();
        let started = Instant::now();
        events.kill(0, || {});
        let garbled = Failure::Garbled("status 500".into());
        assert!(!is_inevitable(&events, started, Some(0), garbled));
        let local = Failure::Local("no ports".into());
        assert!(!is_inevitable(&events, started, Some(0), local));
    }
}
