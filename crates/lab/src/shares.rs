//! Whether new connections follow the weights, while the pool changes all the time.

use std::time::Duration;

use crate::churn::Place;

/// New connections that a backend was due, before its ratio says more than chance.
const ENOUGH: f64 = 100.0;

/// Compares the new connections of backends that stay as they are.
///
/// Between two looks, the backends that have served since before, settled and with one weight, got
/// so many new connections together; each of them was due its weight's share of these. What others
/// do in the meantime (join, die, drain) takes from all of them alike, so it need not be known.
#[derive(Debug)]
pub(crate) struct Shares {
    settle: Duration,
    backends: Vec<Backend>,
}

#[derive(Debug, Default)]
struct Backend {
    /// What it was at the last look, and since when; no time is "from the start".
    standing: Option<(Place, u32)>,
    since: Option<Duration>,
    settled: bool,
    new: u64,
    got: u64,
    due: f64,
}

impl Shares {
    /// For so many backends; `settle` is the time after which new connections follow a change.
    pub(crate) fn new(backends: usize, settle: Duration) -> Self {
        Self { settle, backends: (0..backends).map(|_| Backend::default()).collect() }
    }

    /// Takes a look at `now`: what each backend is, and how many connections began there so far.
    pub(crate) fn look(&mut self, now: Duration, standings: &[(Place, u32)], new: &[u64]) {
        let mut counted = Vec::new();
        for ((backend, standing), new) in self.backends.iter_mut().zip(standings).zip(new) {
            if backend.standing.is_some_and(|before| before != *standing) {
                backend.since = Some(now);
            }
            backend.standing = Some(*standing);
            let (place, weight) = *standing;
            let long_ago = backend.since.is_none_or(|since| now - since >= self.settle);
            let settled = place == Place::Serving && weight > 0 && long_ago;
            let more = new.saturating_sub(backend.new);
            backend.new = *new;
            if std::mem::replace(&mut backend.settled, settled) && settled {
                counted.push((backend, more, f64::from(weight)));
            }
        }
        // A backend by itself has its share whatever it gets.
        if counted.len() < 2 {
            return;
        }
        let all: u64 = counted.iter().map(|(_, more, _)| more).sum();
        let weights: f64 = counted.iter().map(|(.., weight)| weight).sum();
        for (backend, more, weight) in counted {
            backend.got += more;
            backend.due += all as f64 * weight / weights;
        }
    }

    /// The largest ratio of what a backend got to what it was due; none if no backend was due
    /// enough.
    pub(crate) fn imbalance(&self) -> Option<f64> {
        let due = self.backends.iter().filter(|backend| backend.due >= ENOUGH);
        due.map(|backend| backend.got as f64 / backend.due).max_by(f64::total_cmp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Place::{Dead, Serving};

    const SETTLE: Duration = Duration::from_secs(3);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn shares_are_of_weights() {
        let mut shares = Shares::new(3, SETTLE);
        let standings = [(Serving, 1), (Serving, 3), (Dead, 9)];
        shares.look(at(0), &standings, &[0, 0, 0]);
        assert_eq!(shares.imbalance(), None);
        shares.look(at(1), &standings, &[200, 600, 50]);
        assert_eq!(shares.imbalance(), Some(1.0));
        shares.look(at(2), &standings, &[600, 1000, 50]);
        // 600 of 1,600 where a quarter is due.
        assert_eq!(shares.imbalance(), Some(1.5));
    }

    #[test]
    fn a_change_counts_for_nobody_until_it_has_settled() {
        let mut shares = Shares::new(3, SETTLE);
        let (before, after) = (
            [(Serving, 1), (Serving, 1), (Serving, 1)],
            [(Serving, 1), (Serving, 1), (Serving, 9)],
        );
        shares.look(at(0), &before, &[0, 0, 0]);
        shares.look(at(1), &after, &[500, 500, 0]);
        shares.look(at(3), &after, &[1000, 1000, 2000]);
        assert_eq!(shares.imbalance(), Some(1.0));
        // Settled from this look on, so what came before it is not counted yet.
        shares.look(at(4), &after, &[1100, 1100, 2000]);
        assert_eq!(shares.imbalance(), Some(1.0));
        shares.look(at(5), &after, &[1100, 1100, 3100]);
        assert!(shares.imbalance().unwrap() > 1.1, "{shares:?}");
    }

    #[test]
    fn one_backend_by_itself_and_few_connections_say_nothing() {
        let mut shares = Shares::new(2, SETTLE);
        for (second, new) in [(0, [0, 0]), (1, [900, 0])] {
            shares.look(at(second), &[(Serving, 1), (Dead, 1)], &new);
        }
        assert_eq!(shares.imbalance(), None);
        let mut shares = Shares::new(2, SETTLE);
        for (second, new) in [(0, [0, 0]), (1, [90, 20])] {
            shares.look(at(second), &[(Serving, 1), (Serving, 1)], &new);
        }
        assert_eq!(shares.imbalance(), None);
    }
}
