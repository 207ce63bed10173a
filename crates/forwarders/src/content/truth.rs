//! What a client may believe: where each content is, and whether that is just changing.

use std::sync::atomic::{AtomicU64, Ordering};

/// No location: the content is not there.
pub const NOWHERE: u16 = u16::MAX;

/// One content: version (32 bits, odd while it changes), former location, location.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fact(u64);

impl Fact {
    fn new(version: u32, former: u16, location: u16) -> Self {
        Self(u64::from(version) << 32 | u64::from(former) << 16 | u64::from(location))
    }

    fn version(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn former(self) -> u16 {
        (self.0 >> 16) as u16
    }

    pub fn location(self) -> u16 {
        self.0 as u16
    }
}

/// What an answer was, given the facts before the query was sent and after the answer came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Nothing changed meanwhile, and the answer is right.
    Right,
    /// The content moved once meanwhile, and the answer is its former or its new location.
    RightInFlight,
    /// The content came, went or moved repeatedly meanwhile: any answer may have been right.
    Unchecked,
    /// The content was not there all the time; no answer is right or wrong.
    Absent,
    /// The answer is not where the content was at any time between.
    Wrong,
}

impl Verdict {
    pub fn of(before: Fact, after: Fact, answer: u16) -> Self {
        let right = |ok: bool, verdict: Self| if ok { verdict } else { Self::Wrong };
        if before == after && before.version().is_multiple_of(2) {
            return match before.location() {
                NOWHERE => Self::Absent,
                location => right(answer == location, Self::Right),
            };
        }
        // One change may lie between: it was under way before, after, at both times, or it began
        // and ended between.
        let changes = after.version().div_ceil(2) - before.version() / 2;
        let (old, new) = (after.former(), after.location());
        if changes != 1 || old == NOWHERE || new == NOWHERE {
            return Self::Unchecked;
        }
        right(answer == old || answer == new, Self::RightInFlight)
    }
}

/// Facts of all contents that ever are. One thread writes.
pub struct Truth(Vec<AtomicU64>);

impl Truth {
    /// `present` contents with locations, and `absent` more.
    pub fn new(present: impl Iterator<Item = u16>, absent: usize) -> Self {
        let there = present.map(|location| AtomicU64::new(Fact::new(0, NOWHERE, location).0));
        let absent = (0..absent).map(|_| AtomicU64::new(Fact::new(0, NOWHERE, NOWHERE).0));
        Self(there.chain(absent).collect())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn get(&self, content: usize) -> Fact {
        Fact(self.0[content].load(Ordering::SeqCst))
    }

    /// Says that a content is about to change, runs the change, and says that it is done.
    pub fn change<T>(&self, content: usize, location: u16, change: impl FnOnce() -> T) -> T {
        let before = self.get(content);
        let store = |version: u32| {
            let fact = Fact::new(version, before.location(), location);
            self.0[content].store(fact.0, Ordering::SeqCst);
        };
        store(before.version().wrapping_add(1));
        let result = change();
        store(before.version().wrapping_add(2));
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_judged_by_what_happened_meanwhile() {
        let truth = Truth::new([7].into_iter(), 1);
        let start = truth.get(0);
        assert_eq!(Verdict::of(start, start, 7), Verdict::Right);
        assert_eq!(Verdict::of(start, start, 8), Verdict::Wrong);
        let absent = truth.get(1);
        assert_eq!(Verdict::of(absent, absent, 8), Verdict::Absent);
        let middle = truth.change(0, 9, || truth.get(0));
        let end = truth.get(0);
        for (before, after) in [(start, middle), (middle, middle), (middle, end), (start, end)] {
            assert_eq!(Verdict::of(before, after, 7), Verdict::RightInFlight);
            assert_eq!(Verdict::of(before, after, 9), Verdict::RightInFlight);
            assert_eq!(Verdict::of(before, after, 8), Verdict::Wrong);
        }
        assert_eq!(Verdict::of(end, end, 7), Verdict::Wrong);
        truth.change(0, 11, || ());
        assert_eq!(Verdict::of(start, truth.get(0), 8), Verdict::Unchecked);
        truth.change(0, NOWHERE, || ());
        assert_eq!(Verdict::of(end, truth.get(0), 8), Verdict::Unchecked);
    }
}
