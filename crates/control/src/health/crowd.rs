//! Whether checks that fail fail together, so that this host's own network is the suspect.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Fewer checks than these say nothing of a share.
const FEWEST: usize = 3;

/// All checks of backends that are up, or were a moment ago, and how many of them fail.
#[derive(Debug, Default)]
pub(super) struct Crowd(Mutex<Counts>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    /// Per cent of the checks that must fail for none of them to count; 0: never.
    share: u32,
    counted: usize,
    failing: usize,
}

impl Counts {
    fn held(&self) -> bool {
        self.share > 0
            && self.counted >= FEWEST
            && self.failing * 100 >= self.counted * self.share as usize
    }
}

impl Crowd {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        // Plain numbers are whole whatever has happened.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn hold_at(&self, percent: u32) {
        self.counts().share = percent;
    }

    /// How many fail, of how many; none if that is not held against their network.
    pub(super) fn held(&self) -> Option<(usize, usize)> {
        let counts = *self.counts();
        counts.held().then_some((counts.failing, counts.counted))
    }
}

/// One check in the crowd, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    crowd: Arc<Crowd>,
    counted: bool,
    failing: bool,
    /// While it is down, until when it counts all the same.
    pub(super) until: Option<Instant>,
}

impl Place {
    pub(super) fn new(crowd: Arc<Crowd>) -> Self {
        Self { crowd, counted: false, failing: false, until: None }
    }

    /// Enters whether it counts, and fails. Returns whether what has failed is not to count.
    pub(super) fn enter(&mut self, counted: bool, failing: bool) -> bool {
        let failing = counted && failing;
        let mut counts = self.crowd.counts();
        counts.counted = counts.counted + usize::from(counted) - usize::from(self.counted);
        counts.failing = counts.failing + usize::from(failing) - usize::from(self.failing);
        (self.counted, self.failing) = (counted, failing);
        failing && counts.held()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.enter(false, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_those_that_count_holds_all() {
        let crowd = Arc::new(Crowd::default());
        crowd.hold_at(60);
        let mut places: Vec<Place> = (0..5).map(|_| Place::new(Arc::clone(&crowd))).collect();
        assert!(places.iter_mut().all(|place| !place.enter(true, false)));
        assert!(!places[0].enter(true, true) && !places[1].enter(true, true));
        assert_eq!(crowd.held(), None, "two of five");
        assert!(places[2].enter(true, true));
        assert_eq!(crowd.held(), Some((3, 5)));
        assert!(!places[4].enter(true, false), "what succeeds is not held");
        // One that counts no more takes its failure along.
        assert!(!places[2].enter(false, true));
        assert_eq!(crowd.held(), None, "two of four");
        crowd.hold_at(50);
        assert_eq!(crowd.held(), Some((2, 4)));
        crowd.hold_at(0);
        assert_eq!(crowd.held(), None);
        crowd.hold_at(1);
        places.truncate(2);
        assert_eq!(crowd.held(), None, "two say nothing");
        drop(places);
        assert_eq!(*crowd.counts(), Counts { share: 1, counted: 0, failing: 0 });
    }
}
