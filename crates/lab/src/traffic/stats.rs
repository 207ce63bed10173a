//! Counters that the connections write and everybody may read.

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

use super::spec::Kind;
use super::verdict::{Failure, Home, Outcome};

/// Broken connections that are kept with their details; the others are only counted.
pub const BROKEN_KEPT: usize = 100;

/// The details of a broken connection.
#[derive(Clone, Debug, Serialize)]
pub struct BrokenConnection {
    /// The kind of connection that it was.
    pub kind: Kind,
    /// Its source address and port, empty if it got none.
    pub source: String,
    /// The fault that ended it.
    pub reason: Failure,
    /// The backend that gave its first answer.
    pub backend: Option<String>,
    /// Without an answer: the backend whose interface saw its latest SYN or datagram.
    pub began: Option<String>,
    /// How long that one had been dead when it saw it, in seconds, if it was: the balancer was to notice sooner.
    pub dead_for: Option<f64>,
    /// All backends whose interfaces saw a first packet of it, as far as that is still known.
    pub began_at: Vec<String>,
    /// All backends that sent its client a reset.
    pub reset_by: Vec<String>,
    /// Answers that it had got.
    pub answers: u64,
    /// When it started, in seconds since the lab was made.
    pub started: f64,
    /// When it failed, in seconds since the lab was made.
    pub failed: f64,
}

impl BrokenConnection {
    /// Whether its own backend's kernel ended it: one backend saw it begin, and the resets that its client
    /// got came from there. A packet that a balancer takes elsewhere is reset by the backend that it is
    /// taken to. So where a balancer changes nothing but MAC addresses, it has no part in these; Linux before
    /// 6.19 makes some now and then, with any balancer and with none (docs/lab.md).
    pub fn was_reset_at_home(&self) -> bool {
        let [home] = self.began_at.as_slice() else { return false };
        let lives_there = self.backend.as_ref().is_none_or(|backend| backend == home);
        lives_there && self.reset_by.len() == 1 && self.reset_by[0] == *home
    }
}

impl fmt::Display for BrokenConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let home = match (&self.backend, &self.began) {
            (Some(backend), _) => format!("on {backend}"),
            (None, Some(began)) => format!("begun at {began}"),
            (None, None) => "seen at no backend".into(),
        };
        write!(
            f,
            "{} from {} {home}, {:.3}..{:.3} s, {} answers: {}; began at {:?}",
            self.kind.name(),
            self.source,
            self.started,
            self.failed,
            self.answers,
            self.reason,
            self.began_at
        )?;
        if let Some(time) = self.dead_for {
            write!(f, ", dead for {time:.3} s")?;
        }
        write!(f, ", reset by {:?}", self.reset_by)
    }
}

#[derive(Debug, Default)]
struct BackendCounters {
    open: AtomicI64,
    new: AtomicU64,
    answers: AtomicU64,
    inevitable: AtomicU64,
    inevitable_at_start: AtomicU64,
    broken: AtomicU64,
}

#[derive(Debug, Default)]
struct KindCounters {
    started: AtomicU64,
    completed: AtomicU64,
    inevitable: AtomicU64,
    broken: AtomicU64,
    broken_unpromised: AtomicU64,
    broken_untold: AtomicU64,
}

/// Shared counters of one run; see [`Snapshot`] for their meaning.
#[derive(Debug)]
pub struct Stats {
    names: Vec<String>,
    backends: Vec<BackendCounters>,
    kinds: [KindCounters; Kind::ALL.len()],
    /// Kinds of which nobody has promised that they are kept.
    unpromised: Vec<Kind>,
    open: AtomicI64,
    peak: AtomicI64,
    answers: AtomicU64,
    bytes: AtomicU64,
    uploaded: AtomicU64,
    resent: AtomicU64,
    moved: AtomicU64,
    met: AtomicU64,
    untold: AtomicU64,
    connect: Histogram,
    answer: Histogram,
    broken: Mutex<Vec<BrokenConnection>>,
}

impl Stats {
    pub(crate) fn new(names: Vec<String>) -> Self {
        Self {
            backends: names.iter().map(|_| BackendCounters::default()).collect(),
            names,
            kinds: Default::default(),
            unpromised: Vec::new(),
            open: AtomicI64::new(0),
            peak: AtomicI64::new(0),
            answers: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            uploaded: AtomicU64::new(0),
            resent: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            met: AtomicU64::new(0),
            untold: AtomicU64::new(0),
            connect: Histogram::default(),
            answer: Histogram::default(),
            broken: Mutex::default(),
        }
    }

    /// Counts apart what breaks of these kinds: nobody has promised that they are kept.
    pub(crate) fn without_promise(mut self, kinds: &[Kind]) -> Self {
        self.unpromised = kinds.to_vec();
        self
    }

    fn is_promised(&self, kind: Kind) -> bool {
        !self.unpromised.contains(&kind)
    }

    /// Whether nobody has promised that this does not happen: that a flow comes to another backend, or is lost.
    /// Nonsense is a fault all the same.
    fn is_apart(&self, kind: Kind, failure: &Failure) -> bool {
        !self.is_promised(kind) && matches!(failure, Failure::Moved { .. } | Failure::Timeout(_))
    }

    /// The backend of this name.
    pub(crate) fn backend(&self, name: &[u8]) -> Option<usize> {
        self.names.iter().position(|known| known.as_bytes() == name)
    }

    pub(crate) fn name(&self, backend: usize) -> &str {
        &self.names[backend]
    }

    /// Connections that a backend has answered and that are still open.
    pub fn open_on(&self, backend: usize) -> u64 {
        self.backends[backend].open.load(Relaxed).max(0) as u64
    }

    pub(crate) fn begin(&self, kind: Kind) {
        self.kinds[kind as usize].started.fetch_add(1, Relaxed);
        let open = self.open.fetch_add(1, Relaxed) + 1;
        self.peak.fetch_max(open, Relaxed);
    }

    pub(crate) fn connected(&self, after: Duration) {
        self.connect.add(after);
    }

    pub(crate) fn resent(&self) {
        self.resent.fetch_add(1, Relaxed);
    }

    /// A client of QUIC goes on from another address and port.
    pub(crate) fn moved(&self) {
        self.moved.fetch_add(1, Relaxed);
    }

    /// What the scenario is about has happened so many times more.
    pub(crate) fn met(&self, times: u64) {
        self.met.fetch_add(times, Relaxed);
    }

    /// A connection has ended that its agent failed to report as it is.
    pub(crate) fn untold(&self) {
        self.untold.fetch_add(1, Relaxed);
    }

    pub(crate) fn first_answer(&self, backend: usize) {
        self.backends[backend].new.fetch_add(1, Relaxed);
        self.backends[backend].open.fetch_add(1, Relaxed);
    }

    /// An answer is complete; `after` is the time that it took, if that says something.
    pub(crate) fn answer(&self, backend: usize, bytes: u64, after: Option<Duration>) {
        if let Some(after) = after {
            self.answer.add(after);
        }
        self.backends[backend].answers.fetch_add(1, Relaxed);
        self.answers.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// An upload of so many bytes has come to its backend as it was sent.
    pub(crate) fn uploaded(&self, bytes: u64) {
        self.uploaded.fetch_add(bytes, Relaxed);
    }

    /// Closes the books on a connection that was not given up (`None`).
    pub(crate) fn end(&self, kind: Kind, home: Home, outcome: Option<&Outcome>) {
        self.open.fetch_sub(1, Relaxed);
        let answered = match home {
            Home::Answered(backend, _) => Some(&self.backends[backend]),
            Home::Began(..) | Home::Nowhere => None,
        };
        if let Some(counters) = answered {
            counters.open.fetch_sub(1, Relaxed);
        }
        let of_kind = &self.kinds[kind as usize];
        let (kind_counter, backend_counter) = match outcome {
            None => return,
            Some(Outcome::Completed) => (&of_kind.completed, None),
            Some(Outcome::Inevitable(_)) => {
                let of_backend = match home {
                    Home::Answered(backend, _) => Some(&self.backends[backend].inevitable),
                    Home::Began(backend, _) => Some(&self.backends[backend].inevitable_at_start),
                    Home::Nowhere => None,
                };
                (&of_kind.inevitable, of_backend)
            }
            Some(Outcome::Untold(_)) => (&of_kind.broken_untold, None),
            Some(Outcome::Broken(failure)) if self.is_apart(kind, failure) => {
                (&of_kind.broken_unpromised, None)
            }
            Some(Outcome::Broken(_)) => (&of_kind.broken, answered.map(|b| &b.broken)),
        };
        kind_counter.fetch_add(1, Relaxed);
        if let Some(counter) = backend_counter {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// What is counted apart is not kept: it would take the places of what is a fault.
    pub(crate) fn keep_broken(&self, details: BrokenConnection) {
        if self.is_apart(details.kind, &details.reason) {
            return;
        }
        let mut broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        if broken.len() < BROKEN_KEPT {
            broken.push(details);
        }
    }

    /// The first broken connections, [`BROKEN_KEPT`] at most.
    pub fn broken(&self) -> Vec<BrokenConnection> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Those of them that were not among the first `told`.
    pub(crate) fn broken_after(&self, told: usize) -> Vec<BrokenConnection> {
        let broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        broken.get(told..).unwrap_or_default().to_vec()
    }

    /// All counters at about one instant.
    pub fn snapshot(&self) -> Snapshot {
        let kinds: Vec<KindSnapshot> = Kind::ALL
            .iter()
            .zip(&self.kinds)
            .map(|(kind, counters)| KindSnapshot {
                kind: *kind,
                started: counters.started.load(Relaxed),
                completed: counters.completed.load(Relaxed),
                inevitable: counters.inevitable.load(Relaxed),
                broken: counters.broken.load(Relaxed),
                broken_unpromised: counters.broken_unpromised.load(Relaxed),
                broken_untold: counters.broken_untold.load(Relaxed),
                promised: self.is_promised(*kind),
            })
            .collect();
        let total = |of: fn(&KindSnapshot) -> u64| kinds.iter().map(of).sum();
        Snapshot {
            open: self.open.load(Relaxed).max(0) as u64,
            peak: self.peak.load(Relaxed).max(0) as u64,
            started: total(|k| k.started),
            completed: total(|k| k.completed),
            inevitable: total(|k| k.inevitable),
            broken: total(|k| k.broken),
            broken_unpromised: total(|k| k.broken_unpromised),
            broken_untold: total(|k| k.broken_untold),
            untold: self.untold.load(Relaxed),
            answers: self.answers.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            uploaded: self.uploaded.load(Relaxed),
            resent: self.resent.load(Relaxed),
            moved: self.moved.load(Relaxed),
            met: self.met.load(Relaxed),
            connect: self.connect.snapshot(),
            answer: self.answer.snapshot(),
            backends: self
                .names
                .iter()
                .zip(&self.backends)
                .map(|(name, counters)| BackendSnapshot {
                    name: name.clone(),
                    open: counters.open.load(Relaxed).max(0) as u64,
                    new: counters.new.load(Relaxed),
                    answers: counters.answers.load(Relaxed),
                    inevitable: counters.inevitable.load(Relaxed),
                    inevitable_at_start: counters.inevitable_at_start.load(Relaxed),
                    broken: counters.broken.load(Relaxed),
                })
                .collect(),
            kinds,
        }
    }
}

/// The counters of a run at one time. A connection is one of TCP or of QUIC, or a UDP flow.
#[derive(Clone, Debug, Serialize)]
pub struct Snapshot {
    /// Connections begun and not ended, including those that wait for their first answer.
    pub open: u64,
    /// The most that were open at a time.
    pub peak: u64,
    /// Number of connections begun.
    pub started: u64,
    /// Connections that did all that they were to do, on one backend.
    pub completed: u64,
    /// Connections that failed with their backend.
    pub inevitable: u64,
    /// Connections that failed without an excuse.
    pub broken: u64,
    /// Those that came to another backend, or were lost, of kinds for which nothing is promised
    /// ([`TrafficSpec::unpromised`](super::TrafficSpec::unpromised)); no part of `broken`.
    pub broken_unpromised: u64,
    /// Those that failed without an excuse, and whose agents had been made not to report them as they are
    /// ([`Lies`](crate::Lies)); no part of `broken`.
    pub broken_untold: u64,
    /// All such connections that have ended, however they did.
    pub untold: u64,
    /// Number of complete answers.
    pub answers: u64,
    /// Bytes of the bodies of answers.
    pub bytes: u64,
    /// Bytes of uploads that have come to their backends as they were sent, by the hash that the backend says.
    pub uploaded: u64,
    /// Datagrams that had to be sent again.
    pub resent: u64,
    /// How often clients of QUIC went on from another address and port in the middle of a connection.
    pub moved: u64,
    /// How often that happened which the scenario is about; see
    /// [`Scenario::counted`](crate::scenario::Scenario::counted).
    pub met: u64,
    /// Time from connect() to the established connection.
    pub connect: Latency,
    /// Time from a short request to its complete answer. A packet that was lost shows here: TCP
    /// sends it again after 0.2 s or more.
    pub answer: Latency,
    /// The same by backend, in the order of the lab.
    pub backends: Vec<BackendSnapshot>,
    /// The same by kind, in the order of [`Kind::ALL`].
    pub kinds: Vec<KindSnapshot>,
}

impl Snapshot {
    /// Connections that have ended, one way or another.
    pub fn ended(&self) -> u64 {
        let broken = self.broken + self.broken_unpromised + self.broken_untold;
        self.completed + self.inevitable + broken
    }
}

/// The counters of one backend.
#[derive(Clone, Debug, Serialize)]
pub struct BackendSnapshot {
    /// Name of the backend, `b<position>`.
    pub name: String,
    /// Open connections that it has answered.
    pub open: u64,
    /// Connections that got their first answer from it.
    pub new: u64,
    /// Answers that it gave.
    pub answers: u64,
    /// Its connections that failed with it.
    pub inevitable: u64,
    /// Connections that were sent to it, and failed with it before a first answer.
    pub inevitable_at_start: u64,
    /// Its connections that failed without an excuse.
    pub broken: u64,
}

/// The counters of one kind of connection.
#[derive(Clone, Debug, Serialize)]
pub struct KindSnapshot {
    /// The kind that is counted.
    pub kind: Kind,
    /// Number of connections begun.
    pub started: u64,
    /// Number of those that did all that they were to do; see [`Snapshot::completed`].
    pub completed: u64,
    /// Number of those that failed with their backend; see [`Snapshot::inevitable`].
    pub inevitable: u64,
    /// Number of those that failed without an excuse; see [`Snapshot::broken`].
    pub broken: u64,
    /// Number of those that are counted apart; see [`Snapshot::broken_unpromised`].
    pub broken_unpromised: u64,
    /// Number of those that agents failed to report; see [`Snapshot::broken_untold`].
    pub broken_untold: u64,
    /// Whether it is promised that connections of this kind are kept.
    pub promised: bool,
}

/// A distribution of times in milliseconds, read from buckets that are about a fifth wide.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Latency {
    /// Number of times measured.
    pub count: u64,
    /// Milliseconds that half of the times did not exceed.
    pub p50: f64,
    /// Milliseconds that 99 of 100 times did not exceed.
    pub p99: f64,
    /// Milliseconds that 999 of 1,000 times did not exceed.
    pub p999: f64,
    /// The longest time in milliseconds, exactly.
    pub max: f64,
}

/// Buckets for each doubling of the time.
const STEPS: u32 = 4;
const BUCKETS: usize = 128;

#[derive(Debug)]
struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    max: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS], max: AtomicU64::new(0) }
    }
}

impl Histogram {
    fn add(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.max.fetch_max(micros, Relaxed);
        self.buckets[bucket(micros)].fetch_add(1, Relaxed);
    }

    fn snapshot(&self) -> Latency {
        let counts: Vec<u64> = self.buckets.iter().map(|b| b.load(Relaxed)).collect();
        let count: u64 = counts.iter().sum();
        let max = self.max.load(Relaxed) as f64 / 1000.0;
        let quantile = |q: f64| {
            let rank = (count as f64 * q).ceil() as u64;
            let mut seen = 0;
            let index = counts.iter().position(|n| {
                seen += n;
                seen >= rank
            });
            index.map_or(0.0, |i| upper_edge(i) / 1000.0).min(max)
        };
        Latency { count, p50: quantile(0.5), p99: quantile(0.99), p999: quantile(0.999), max }
    }
}

fn bucket(micros: u64) -> usize {
    let position = (micros.max(1) as f64).log2() * f64::from(STEPS);
    (position.floor() as usize).min(BUCKETS - 1)
}

/// The longest time that a bucket counts, in microseconds.
fn upper_edge(bucket: usize) -> f64 {
    ((bucket + 1) as f64 / f64::from(STEPS)).exp2()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn quantiles_are_within_a_bucket() {
        let histogram = Histogram::default();
        for micros in 1..=1000 {
            histogram.add(Duration::from_micros(micros));
        }
        let latency = histogram.snapshot();
        assert_eq!(latency.count, 1000);
        assert!((0.5..0.6).contains(&latency.p50), "{latency:?}");
        assert!((0.99..=1.0).contains(&latency.p99), "{latency:?}");
        assert_eq!(latency.max, 1.0);
        assert_eq!(Histogram::default().snapshot().p99, 0.0);
    }

    #[test]
    fn books_balance() {
        let stats = Stats::new(vec!["b0".into(), "b1".into()]);
        for _ in 0..3 {
            stats.begin(Kind::Short);
        }
        assert_eq!(stats.backend(b"b1"), Some(1));
        assert_eq!(stats.backend(b"b9"), None);
        stats.first_answer(1);
        stats.answer(1, 3, None);
        assert_eq!(stats.open_on(1), 1);
        stats.end(Kind::Short, Home::Answered(1, Instant::now()), Some(&Outcome::Completed));
        stats.end(Kind::Short, Home::Nowhere, Some(&Outcome::Broken(Failure::Reset)));
        stats.end(Kind::Short, Home::Nowhere, None);
        let now = stats.snapshot();
        assert_eq!((now.started, now.open, now.peak), (3, 0, 3));
        assert_eq!((now.completed, now.broken, now.ended()), (1, 1, 2));
        assert_eq!(now.backends[1].new, 1);
        assert_eq!(now.backends[1].open, 0);
    }

    #[test]
    fn what_nobody_promised_is_counted_apart() {
        let stats = Stats::new(vec!["b0".into()]).without_promise(&[Kind::Udp]);
        let moved = || Failure::Moved { to: "b1".into() };
        let nonsense = || Failure::Garbled("?".into());
        for (kind, failure) in [
            (Kind::Udp, moved()),
            (Kind::Udp, Failure::Timeout("answer to a datagram")),
            (Kind::Udp, nonsense()),
            (Kind::Short, moved()),
        ] {
            stats.begin(kind);
            stats.first_answer(0);
            let broken = Outcome::Broken(failure.clone());
            stats.end(kind, Home::Answered(0, Instant::now()), Some(&broken));
            stats.keep_broken(BrokenConnection {
                kind,
                source: String::new(),
                reason: failure,
                backend: None,
                began: None,
                dead_for: None,
                began_at: Vec::new(),
                reset_by: Vec::new(),
                answers: 1,
                started: 0.0,
                failed: 0.0,
            });
        }
        let now = stats.snapshot();
        assert_eq!((now.broken, now.broken_unpromised, now.ended(), now.open), (2, 2, 4, 0));
        assert_eq!((now.backends[0].open, now.backends[0].broken), (0, 2));
        let udp = &now.kinds[Kind::Udp as usize];
        assert_eq!((udp.broken, udp.broken_unpromised, udp.promised), (1, 2, false));
        let kept: Vec<Failure> = stats.broken().into_iter().map(|one| one.reason).collect();
        assert_eq!(kept, [nonsense(), moved()]);
    }

    #[test]
    fn what_is_inevitable_belongs_to_a_backend() {
        let stats = Stats::new(vec!["b0".into(), "b1".into()]);
        let excused = Outcome::Inevitable(Failure::Reset);
        stats.begin(Kind::Short);
        stats.begin(Kind::Short);
        stats.first_answer(0);
        stats.end(Kind::Short, Home::Answered(0, Instant::now()), Some(&excused));
        stats.end(Kind::Short, Home::Began(1, Instant::now()), Some(&excused));
        let now = stats.snapshot();
        assert_eq!((now.open, now.inevitable, now.backends[1].open), (0, 2, 0));
        let counts = |b: &BackendSnapshot| (b.inevitable, b.inevitable_at_start);
        assert_eq!(now.backends.iter().map(counts).collect::<Vec<_>>(), [(1, 0), (0, 1)]);
    }
}
