//! Connections that began when there was no room to remember them: how many, and until when that is to be said.
//! They are not known, so nobody sees them end; those that were remembered beside them tell how many of their age
//! are left.

use super::prefixes::number_of;
use super::service::{ServiceRuntime, idle_seconds};
use tracing::warn;
use weir_steering::{MethodId, StateKey};

/// Those of one kind.
#[derive(Debug, Default)]
pub(super) struct Beyond {
    /// So many there were at the last look.
    before: u64,
    /// So many of them are over.
    over: u64,
    last: Option<Last>,
}

/// The last of them, as far as looks tell.
#[derive(Clone, Copy, Debug)]
struct Last {
    /// When, in seconds.
    at: u32,
    /// States that there was no room beside.
    held: usize,
}

impl Beyond {
    /// Those that are not over, of so many in all.
    pub fn open(&self, all: u64) -> u64 {
        if self.last.is_some() || all > self.before { all.saturating_sub(self.over) } else { 0 }
    }

    /// From now on those that there were are over.
    pub fn end(&mut self, all: u64) {
        *self = Self { before: all, over: all, last: None };
    }

    /// Takes notice of those since the last look; returns how many.
    fn look(&mut self, all: u64, now: u32, held: usize) -> u64 {
        let more = all.saturating_sub(self.before);
        self.before = all;
        if more > 0 {
            self.last = Some(Last { at: now, held: held.max(1) });
        }
        more
    }

    /// Whether they are over by all that can be told: as old as the last of them, of those that were remembered,
    /// so few are left that of these it would be less than one. `left` counts those.
    fn are_over(&self, now: u32, idle: u32, left: impl FnOnce(u32) -> usize) -> bool {
        let Some(Last { at, held }) = self.last else { return false };
        // One that was silent for so long would be forgotten as well.
        now.saturating_sub(at) >= idle
            || u128::from(self.open(self.before)) * (left(at) as u128) < held as u128
    }
}

impl ServiceRuntime {
    /// Says in the log what there was no room for since the last look, and takes back what the status says of it
    /// once that is over.
    pub fn warn_of_refused(&mut self, now: u32) {
        let forgotten = self.half_open.forgotten;
        if forgotten > self.forgotten_before {
            let (service, more) = (&self.configured.name, forgotten - self.forgotten_before);
            warn!(
                service,
                more,
                "half-open connections beyond limits.half_open_flows: the oldest were forgotten; is \
                 this a flood of SYNs?"
            );
            self.forgotten_before = forgotten;
        }
        let (refused, states) = (self.refused(), self.builder.states());
        let more = self.refusals.look(refused, now, states);
        let idle = idle_seconds(&self.configured);
        if more > 0 {
            let service = &self.configured.name;
            warn!(service, more, "connections beyond limits.states_per_service: not remembered");
        } else if states < self.most_open()
            && self.refusals.are_over(now, idle, |at| self.left_of(at, |_| true))
        {
            self.refusals.end(refused);
        }
        let Some(key) = self.crowded else { return };
        let (refused, held) = (self.beyond_prefix, self.builder.of_prefix(&key));
        let more = self.refusals_of_prefix.look(refused, now, held);
        if more > 0 {
            let (service, prefix) = (&self.configured.name, super::prefixes::name_of(&key));
            warn!(
                service,
                more, prefix, "connections beyond limits.states_per_prefix: not remembered"
            );
            return;
        }
        let same = |other: &StateKey| number_of(other) == number_of(&key);
        if !self.is_crowded(&key)
            && self.refusals_of_prefix.are_over(now, idle, |at| self.left_of(at, same))
        {
            self.refusals_of_prefix.end(refused);
            self.crowded = None;
        }
    }

    /// States of connections that began by a time and are remembered.
    fn left_of(&self, at: u32, is: impl Fn(&StateKey) -> bool) -> usize {
        // Residue does not keep when they began: all may have by then.
        let all = self.builder.method() == MethodId::Residue;
        let mut left = 0;
        self.builder.each_state(&mut |key, known| {
            left += usize::from((all || known.born <= at) && is(key));
        });
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_is_said_no_more_and_what_comes_after_is() {
        let mut beyond = Beyond::default();
        assert_eq!((beyond.open(0), beyond.open(7)), (0, 7), "before it was looked at, too");
        assert_eq!(beyond.look(20, 100, 1_000), 20);
        assert_eq!(beyond.look(20, 110, 1_000), 0);
        assert_eq!(beyond.open(20), 20);
        // Of a thousand that were as old, 50 are left: so may one of these.
        assert!(!beyond.are_over(120, 600, |at| if at == 100 { 50 } else { 0 }));
        assert!(beyond.are_over(120, 600, |_| 49));
        assert!(beyond.are_over(700, 600, |_| 1_000), "silent for too long");
        beyond.end(20);
        assert_eq!(beyond.open(20), 0);
        assert!(!beyond.are_over(700, 600, |_| 0));
        assert_eq!(beyond.open(23), 3);
        assert_eq!(beyond.look(23, 800, 1_000), 3);
        assert_eq!(beyond.open(23), 3);
    }
}
