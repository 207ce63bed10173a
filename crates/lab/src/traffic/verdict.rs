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
    /// It failed, and its backend's agent had been made not to report it as it is: balancers could not know.
    Untold(Failure),
    /// It failed, and nothing excuses it.
    Broken(Failure),
}

impl Outcome {
    /// The same of a connection that its agent fails to report as it is. An answer that is none is a fault all the
    /// same.
    pub(crate) fn of_untold(self) -> Self {
        match self {
            Self::Broken(failure) if failure.can_follow_a_kill() => Self::Untold(failure),
            outcome => outcome,
        }
    }
}

/// Where a connection has its home, as far as anybody can know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// The backend that gave its first answer, and when that came.
    Answered(usize, Instant),
    /// It got no answer; this backend's interface saw its latest SYN (or datagram), at that time.
    Began(usize, Instant),
    /// It got no answer, and no backend saw a SYN of it.
    Nowhere,
}

/// By then a balancer has noticed that a backend is dead, also one whose control plane had to be started first.
pub(crate) const NOTICED: Duration = Duration::from_secs(30);

/// Judges a connection that started at `started` and has just failed.
///
/// Its own backend excuses it, and nobody else. One that answered does if it was dead at some time
/// of the connection's life: killed later, or killed just before it started and started again
/// since. (A datagram that was sent to a dead backend is sent again, and may be answered when the
/// backend is back, while the balancer's health checks still have it down and new flows go
/// elsewhere.) So does its leaving the pool, if the first answer came, or the SYN, while it was being
/// removed: nobody sat on it before, and all that led there was a flow before with the same ports,
/// which the balancer still knew. Whom it had answered before, it must not lose.
///
/// If no answer came, its own backend is the one whose interface saw its latest SYN. Its death
/// excuses if it came up to `detection` before the start, which the balancer had not noticed yet,
/// or as long after the SYN; where somebody asks the balancer, also for as long as it has not noticed, up to
/// [`NOTICED`]: how soon checks see a death on a busy machine is no matter of connections. Later kills are no excuse, however late the failure shows: a first
/// answer takes milliseconds, so a connection that still has none waits for something else. A
/// death that the balancer should have noticed is none either. So does its leaving the pool up to `detection` after
/// the SYN: whom it has not answered yet does not count as one of those that sit on it.
///
/// A SYN that no backend saw has no excuse at all. Killing a backend takes its servers and leaves
/// its interface, where every SYN is seen whoever listens; so one that is seen nowhere was lost
/// before it reached any backend, and no backend's death explains that.
pub(crate) fn judge(
    events: &PoolEvents,
    detection: Duration,
    started: Instant,
    home: Home,
    failure: Failure,
) -> Outcome {
    let killed = match home {
        Home::Answered(backend, first) => {
            events.dead_since(backend, started) || events.leaving_at(backend, first)
        }
        Home::Began(backend, at) => {
            // Early in the machine's life there may be no instant so long ago.
            let since = started.checked_sub(detection).unwrap_or(started);
            events.killed_between(backend, since, at + detection, started)
                || events.unnoticed_at(backend, started, NOTICED)
                || events.leaving_within(backend, at, detection)
        }
        Home::Nowhere => false,
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

    use super::Home::{Began, Nowhere};
    use super::*;

    fn answered(backend: usize) -> Home {
        Home::Answered(backend, Instant::now())
    }

    const DETECTION: Duration = Duration::from_millis(200);

    fn is_inevitable(events: &PoolEvents, started: Instant, home: Home, failure: &Failure) -> bool {
        let outcome = judge(events, DETECTION, started, home, failure.clone());
        matches!(outcome, Outcome::Inevitable(_))
    }

    fn refused() -> Failure {
        Failure::Connect(io::ErrorKind::ConnectionRefused)
    }

    #[test]
    fn only_the_death_of_its_own_backend_excuses_a_connection() {
        let events = PoolEvents::default();
        let started = Instant::now();
        assert!(!is_inevitable(&events, started, answered(1), &Failure::Reset));
        events.kill(1, || {});
        assert!(is_inevitable(&events, started, answered(1), &Failure::Reset));
        assert!(is_inevitable(&events, started, answered(1), &Failure::Eof));
        assert!(!is_inevitable(&events, started, answered(2), &Failure::Reset));
        // The same backend was killed, and back, before the connection started: not its excuse.
        events.revive(1);
        let later = Instant::now();
        assert!(!is_inevitable(&events, later, answered(1), &Failure::Reset));
    }

    #[test]
    fn a_flow_that_met_a_backend_that_was_leaving_has_an_excuse() {
        let events = PoolEvents::default();
        let started = Instant::now();
        let before = answered(1);
        sleep(DETECTION / 8);
        let (during, other) = events.remove(1, Instant::now(), || (answered(1), answered(2)));
        sleep(DETECTION / 8);
        let moved = Failure::Moved { to: "b3".into() };
        assert!(is_inevitable(&events, started, during, &moved));
        // Its SYN was there before, and it was not answered in time to be counted; or it came when that one had left.
        let soon = Duration::from_secs(60);
        let judged = |home| judge(&events, soon, started, home, Failure::Reset);
        assert_eq!(judged(Began(1, started)), Outcome::Inevitable(Failure::Reset));
        for home in [Began(2, started), Began(1, Instant::now())] {
            assert_eq!(judged(home), Outcome::Broken(Failure::Reset));
        }
        // It sat there before, or elsewhere, or went to a backend that had left.
        for home in [before, other, answered(1)] {
            assert!(!is_inevitable(&events, started, home, &moved));
        }
    }

    #[test]
    fn before_the_first_answer_only_the_backend_that_saw_the_syn_excuses() {
        let events = PoolEvents::default();
        let started = Instant::now();
        let failures = [refused(), Failure::Reset, Failure::Eof, Failure::Timeout("connect")];
        let all = |home| failures.iter().all(|one| is_inevitable(&events, started, home, one));
        let none = |home| !failures.iter().any(|one| is_inevitable(&events, started, home, one));
        let began = |backend| Began(backend, Instant::now());
        assert!(none(began(1)) && none(began(2)) && none(Nowhere));
        events.kill(2, || {});
        // A SYN at b1, and b2 dies: the flow was taken from a backend that lives.
        assert!(none(began(1)));
        assert!(all(began(2)));
        // The SYN was lost while a backend died: not by that backend.
        assert!(none(Nowhere));
        events.kill(1, || {});
        assert!(all(began(1)));
        assert!(none(Nowhere));
    }

    #[test]
    fn a_syn_to_a_backend_that_was_killed_a_moment_ago_is_excused() {
        let events = PoolEvents::default();
        events.kill(1, || {});
        sleep(DETECTION / 8);
        let started = Instant::now();
        assert!(is_inevitable(&events, started, Began(1, started), &refused()));
        assert!(!is_inevitable(&events, started, Began(0, started), &refused()));
        // It listens again: who comes now has no excuse, who came before has.
        events.revive(1);
        assert!(is_inevitable(&events, started, Began(1, started), &refused()));
        let later = Instant::now();
        assert!(!is_inevitable(&events, later, Began(1, later), &refused()));
    }

    #[test]
    fn a_death_long_before_or_after_is_no_excuse_without_an_answer() {
        let events = PoolEvents::default();
        let long_before = Instant::now();
        sleep(DETECTION * 2);
        events.kill(1, || {});
        // It waited for something else before.
        assert!(!is_inevitable(&events, long_before, Began(1, long_before), &refused()));
        // Its latest SYN is what counts: repeated, it went to a backend that died just then.
        let repeated = Instant::now();
        assert!(is_inevitable(&events, long_before, Began(1, repeated), &refused()));
        sleep(DETECTION * 2);
        // The balancer has had the time to notice.
        let long_after = Instant::now();
        assert!(!is_inevitable(&events, long_after, Began(1, long_after), &refused()));
    }

    #[test]
    fn a_death_that_the_balancer_has_not_noticed_is_an_excuse() {
        let events = PoolEvents::default();
        events.watch();
        events.kill(1, || {});
        sleep(DETECTION * 2);
        let started = Instant::now();
        assert!(is_inevitable(&events, started, Began(1, started), &refused()));
        assert!(!is_inevitable(&events, started, Began(0, started), &refused()));
        assert!(!is_inevitable(&events, started, Nowhere, &refused()));
        events.notice(1);
        sleep(Duration::from_millis(2));
        let later = Instant::now();
        assert!(!is_inevitable(&events, later, Began(1, later), &refused()));
    }

    #[test]
    fn what_agents_fail_to_report_is_counted_apart() {
        let broken = |failure: Failure| Outcome::Broken(failure).of_untold();
        assert_eq!(broken(Failure::Reset), Outcome::Untold(Failure::Reset));
        let moved = Failure::Moved { to: "b1".into() };
        assert_eq!(broken(moved.clone()), Outcome::Untold(moved));
        let nonsense = Failure::Garbled("status 500".into());
        assert_eq!(broken(nonsense.clone()), Outcome::Broken(nonsense));
        let inevitable = Outcome::Inevitable(Failure::Eof);
        assert_eq!(inevitable.clone().of_untold(), inevitable);
        assert_eq!(Outcome::Completed.of_untold(), Outcome::Completed);
    }

    #[test]
    fn nonsense_is_never_excused() {
        let events = PoolEvents::default();
        let started = Instant::now();
        events.kill(0, || {});
        for failure in [Failure::Garbled("status 500".into()), Failure::Local("no ports".into())] {
            for home in [answered(0), Began(0, started), Nowhere] {
                assert!(!is_inevitable(&events, started, home, &failure));
            }
        }
    }
}
