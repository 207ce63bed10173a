//! Lines of a log that others can cause: no more than so many of a kind in a second, and how many there were besides.
//! Whoever calls a thousand times fills no log, and nothing that happens goes unsaid.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);

/// Lines of one kind.
#[derive(Debug)]
pub struct Pace {
    most: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When the second began in which these were said.
    since: Option<Instant>,
    said: u32,
    unsaid: u64,
}

impl Pace {
    /// So many in a second.
    pub const fn new(most: u32) -> Self {
        Self { most, state: Mutex::new(State { since: None, said: 0, unsaid: 0 }) }
    }

    /// Whether one more may be said: how many were not since the last that was. None: it is counted.
    pub fn take(&self) -> Option<u64> {
        self.take_at(Instant::now())
    }

    /// How many were not said, if the second is over in which that was; they are told then.
    pub fn rest(&self) -> Option<u64> {
        self.rest_at(Instant::now())
    }

    fn take_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.since.is_none_or(|since| now.saturating_duration_since(since) >= SECOND) {
            (state.since, state.said) = (Some(now), 0);
        }
        if state.said == self.most {
            state.unsaid += 1;
            return None;
        }
        state.said += 1;
        Some(std::mem::take(&mut state.unsaid))
    }

    fn rest_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let over = state.since.is_some_and(|since| now.saturating_duration_since(since) >= SECOND);
        (over && state.unsaid > 0).then(|| std::mem::take(&mut state.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_in_a_second_and_none_uncounted() {
        let (pace, begun) = (Pace::new(3), Instant::now());
        let at = |milliseconds| begun + Duration::from_millis(milliseconds);
        let said: Vec<_> = (0..10).map(|n| pace.take_at(at(n * 100))).collect();
        assert_eq!(said[..4], [Some(0), Some(0), Some(0), None]);
        assert_eq!(said[4..], [None; 6]);
        assert_eq!(pace.rest_at(at(999)), None, "the second is not over");
        assert_eq!(pace.rest_at(at(1000)), Some(7));
        assert_eq!(pace.rest_at(at(1000)), None, "they are told");
        for n in 0..5 {
            pace.take_at(at(2000 + n));
        }
        assert_eq!(pace.take_at(at(3000)), Some(2), "with the next one");
        assert_eq!(pace.rest_at(at(9000)), None);
    }
}
