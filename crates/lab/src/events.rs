//! What the traffic driver may know about the pool: which backends were killed or left, and when.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The log of kills and removals of one lab.
///
/// A kill takes a while: it is in the log before it begins, and its end is noted when nothing of
/// the backend is left. So a connection can neither see the effect of a kill that is not in the
/// log, nor start on a backend that is being killed and have no excuse.
#[derive(Debug)]
pub struct PoolEvents {
    origin: Instant,
    kills: Mutex<Vec<Kill>>,
    removals: Mutex<Vec<Removal>>,
    /// Whether somebody asks the balancer which deaths it has noticed.
    watched: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
struct Kill {
    backend: usize,
    began: Instant,
    /// `None` while it is under way.
    ended: Option<Instant>,
    /// When the backend listened again; `None` while it is dead.
    revived: Option<Instant>,
    /// When the balancer was seen to know of it.
    noticed: Option<Instant>,
}

/// A backend without connections leaves the pool.
#[derive(Clone, Copy, Debug)]
struct Removal {
    backend: usize,
    /// When nobody sat on it.
    began: Instant,
    /// `None` while it is under way.
    ended: Option<Instant>,
}

impl Default for PoolEvents {
    fn default() -> Self {
        Self {
            origin: Instant::now(),
            kills: Mutex::default(),
            removals: Mutex::default(),
            watched: AtomicBool::new(false),
        }
    }
}

impl PoolEvents {
    /// Runs what kills a backend, and notes it. [`Backend::kill`](crate::Backend::kill) does this
    /// by itself; a caller that takes a backend away by other means does it here.
    pub fn kill<T>(&self, backend: usize, how: impl FnOnce() -> T) -> T {
        let index = {
            let mut kills = self.lock();
            let (began, ended, revived, noticed) = (Instant::now(), None, None, None);
            kills.push(Kill { backend, began, ended, revived, noticed });
            kills.len() - 1
        };
        let result = how();
        self.lock()[index].ended = Some(Instant::now());
        result
    }

    /// Runs what takes a backend out of the pool on which nobody sat at `empty`, and notes it.
    pub fn remove<T>(&self, backend: usize, empty: Instant, how: impl FnOnce() -> T) -> T {
        let removals = || self.removals.lock().unwrap_or_else(PoisonError::into_inner);
        let index = {
            let mut removals = removals();
            removals.push(Removal { backend, began: empty, ended: None });
            removals.len() - 1
        };
        let result = how();
        removals()[index].ended = Some(Instant::now());
        result
    }

    /// Whether this backend was about to leave the pool at `then`.
    pub fn leaving_at(&self, backend: usize, then: Instant) -> bool {
        self.leaving_within(backend, then, Duration::ZERO)
    }

    /// Whether this backend was about to leave the pool at `then`, or at most so much later.
    pub fn leaving_within(&self, backend: usize, then: Instant, later: Duration) -> bool {
        let removals = self.removals.lock().unwrap_or_else(PoisonError::into_inner);
        removals.iter().any(|removal| {
            removal.backend == backend
                && removal.began <= then + later
                && removal.ended.is_none_or(|ended| ended >= then)
        })
    }

    /// Notes that a backend's servers listen again.
    pub fn revive(&self, backend: usize) {
        let now = Instant::now();
        let mut kills = self.lock();
        for kill in kills.iter_mut().filter(|kill| kill.backend == backend) {
            kill.revived.get_or_insert(now);
        }
    }

    /// Whether this backend was dead at some time from `since` on.
    pub fn dead_since(&self, backend: usize, since: Instant) -> bool {
        self.any(|kill| kill.backend == backend && kill.revived.is_none_or(|at| at >= since))
    }

    /// How long before `then` this backend was killed, if it was and did not listen again before.
    pub fn dead_for(&self, backend: usize, then: Instant) -> Option<Duration> {
        let kills = self.lock();
        let dead = kills.iter().filter(|kill| {
            kill.backend == backend && kill.revived.is_none_or(|revived| revived >= then)
        });
        dead.filter_map(|kill| then.checked_duration_since(kill.began)).min()
    }

    /// Whether this backend was killed at or after `since`.
    pub fn killed_since(&self, backend: usize, since: Instant) -> bool {
        self.any(|kill| kill.backend == backend && kill.ended.is_none_or(|ended| ended >= since))
    }

    /// Whether this backend was killed from `since` to `until`, and did not listen again before
    /// `then`.
    pub fn killed_between(
        &self,
        backend: usize,
        since: Instant,
        until: Instant,
        then: Instant,
    ) -> bool {
        self.any(|kill| {
            kill.backend == backend
                && kill.began <= until
                && kill.ended.is_none_or(|ended| ended >= since)
                && kill.revived.is_none_or(|at| at >= then)
        })
    }

    /// From now on somebody says which deaths the balancer has noticed.
    pub(crate) fn watch(&self) {
        self.watched.store(true, Relaxed);
    }

    /// Backends that are dead, and of which the balancer is not known to have noticed it.
    pub(crate) fn unnoticed(&self) -> Vec<usize> {
        let kills = self.lock();
        let open = kills.iter().filter(|kill| {
            kill.ended.is_some() && kill.revived.is_none() && kill.noticed.is_none()
        });
        open.map(|kill| kill.backend).collect()
    }

    /// Notes that the balancer sends nothing new to a backend that is dead.
    pub(crate) fn notice(&self, backend: usize) {
        let now = Instant::now();
        for kill in self.lock().iter_mut().filter(|kill| kill.backend == backend) {
            if kill.revived.is_none() {
                kill.noticed.get_or_insert(now);
            }
        }
    }

    /// Whether this backend was dead at `then`, and the balancer had not noticed it, though for no longer than
    /// `most`. Nobody knows if nobody watches.
    pub fn unnoticed_at(&self, backend: usize, then: Instant, most: Duration) -> bool {
        self.watched.load(Relaxed)
            && self.any(|kill| {
                kill.backend == backend
                    && kill.began <= then
                    && then - kill.began <= most
                    && kill.revived.is_none_or(|at| at >= then)
                    && kill.noticed.is_none_or(|at| at >= then)
            })
    }

    /// How long deaths took until the balancer had noticed, of those that it has, the shortest first.
    pub fn notice_times(&self) -> Vec<Duration> {
        let kills = self.lock();
        let times = kills.iter().filter_map(|kill| Some(kill.noticed? - kill.began));
        let mut times: Vec<Duration> = times.collect();
        times.sort();
        times
    }

    /// Time since the lab was made, the clock of all reports.
    pub fn elapsed(&self) -> Duration {
        self.origin.elapsed()
    }

    fn any(&self, matches: impl Fn(&Kill) -> bool) -> bool {
        self.lock().iter().any(matches)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Kill>> {
        self.kills.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_are_found_by_backend_and_time() {
        let events = PoolEvents::default();
        let before = Instant::now();
        assert!(!events.killed_between(2, before, Instant::now(), before));
        events.kill(2, || {});
        let after = Instant::now();
        assert!(events.killed_since(2, before));
        assert!(!events.killed_since(1, before));
        assert!(!events.killed_since(2, after));
        assert!(events.killed_between(2, before, after, after));
        assert!(!events.killed_between(1, before, after, after));
        assert!(!events.killed_between(2, after, after, after));
        assert!(!events.killed_between(2, before, before, after));
        events.revive(2);
        assert!(events.killed_between(2, before, after, after));
        assert!(!events.killed_between(2, before, after, Instant::now()));
    }

    #[test]
    fn a_backend_is_dead_from_its_kill_until_it_is_started() {
        let events = PoolEvents::default();
        events.kill(0, || {});
        let dead = Instant::now();
        assert!(events.dead_since(0, dead) && !events.dead_since(1, dead));
        assert!(events.dead_for(0, dead).is_some() && events.dead_for(1, dead).is_none());
        events.revive(0);
        assert!(events.dead_for(0, Instant::now()).is_none());
        assert!(events.dead_since(0, dead));
        assert!(!events.dead_since(0, Instant::now()));
    }

    #[test]
    fn a_death_excuses_until_the_balancer_has_noticed_it() {
        let (events, long) = (PoolEvents::default(), Duration::from_secs(600));
        let before = Instant::now();
        std::thread::sleep(Duration::from_millis(2));
        events.kill(2, || {});
        let dead = Instant::now();
        assert!(!events.unnoticed_at(2, dead, long), "nobody watches");
        events.watch();
        assert_eq!(events.unnoticed(), [2]);
        assert!(events.unnoticed_at(2, dead, long) && !events.unnoticed_at(1, dead, long));
        assert!(
            !events.unnoticed_at(2, before, long) && !events.unnoticed_at(2, dead, Duration::ZERO)
        );
        events.notice(2);
        std::thread::sleep(Duration::from_millis(2));
        assert!(events.unnoticed_at(2, dead, long) && events.unnoticed().is_empty());
        assert!(!events.unnoticed_at(2, Instant::now(), long));
        assert_eq!(events.notice_times().len(), 1);
        // The next death is another one.
        events.revive(2);
        events.kill(2, || {});
        assert!(events.unnoticed_at(2, Instant::now(), long));
        events.revive(2);
        assert!(events.unnoticed().is_empty());
        events.notice(2);
        assert_eq!(events.notice_times().len(), 1);
    }

    #[test]
    fn a_backend_is_leaving_from_when_it_was_empty_until_it_has_left() {
        let events = PoolEvents::default();
        let before = Instant::now();
        std::thread::sleep(Duration::from_millis(2));
        let (empty, later) = (Instant::now(), Duration::from_secs(60));
        let during = events.remove(3, empty, || {
            let during = Instant::now();
            assert!(events.leaving_at(3, during) && !events.leaving_at(2, during));
            let within = |backend| events.leaving_within(backend, before, later);
            assert!(within(3) && !within(2));
            during
        });
        std::thread::sleep(Duration::from_millis(2));
        assert!(events.leaving_at(3, empty) && events.leaving_at(3, during));
        assert!(!events.leaving_at(3, before) && !events.leaving_at(3, Instant::now()));
    }

    #[test]
    fn a_connection_that_starts_while_its_backend_is_killed_has_an_excuse() {
        let events = PoolEvents::default();
        let started = events.kill(0, || {
            let started = Instant::now();
            assert!(events.killed_since(0, started));
            started
        });
        assert!(events.killed_since(0, started));
    }
}
