//! Frames that are lost on their way out, where they are many. They were forwarded, as all counters have it, so nothing
//! else says why nobody gets them.

use super::super::Engine;
use crate::neigh;
use std::collections::BTreeMap;
use tracing::warn;
use weir_plane::{LaneCounters, Plane};

/// Seconds over which frames are counted. What is told is over after two of them at most.
const PERIOD: u32 = 20;
/// More than so many of a period are many, if they are more than a hundredth of what was forwarded.
const MANY: u64 = 1_000;
/// The same, if they are more than half of it.
const MANY_OF_FEW: u64 = 100;

/// What is lost by interfaces, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// The period that goes on; none before the first look.
    period: Option<Period>,
    /// Where much is lost.
    open: BTreeMap<u32, Loss>,
}

/// What had been counted when a period began.
#[derive(Debug)]
struct Period {
    since: u32,
    lost: BTreeMap<u32, u64>,
    forwarded: Forwarded,
}

/// Packets that were forwarded.
#[derive(Debug)]
struct Forwarded {
    /// To backends, by their numbers.
    to: Vec<u64>,
    /// Answers that were translated.
    back: u64,
}

/// What was lost by an interface in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loss {
    frames: u64,
    /// Of so many that were forwarded by all interfaces.
    of: u64,
}

impl Loss {
    fn is_much(self) -> bool {
        let Self { frames, of } = self;
        frames > MANY && frames.saturating_mul(100) > of
            || frames > MANY_OF_FEW && frames.saturating_mul(2) > of
    }

    /// What is told goes on until there is half as much: at the edge it would come and go.
    fn is_much_still(self) -> bool {
        Self { frames: self.frames.saturating_mul(2), ..self }.is_much()
    }
}

/// How many there are more than before. Memory that is another one counts from the beginning.
fn more(all: u64, before: u64) -> u64 {
    all.checked_sub(before).unwrap_or(all)
}

impl Forwarded {
    fn since(&self, before: &Self) -> u64 {
        let known = before.to.iter().copied().chain(std::iter::repeat(0));
        let to: u64 = self.to.iter().zip(known).map(|(all, before)| more(*all, before)).sum();
        to.saturating_add(more(self.back, before.back))
    }
}

impl Losses {
    /// Takes notice of what was lost in all. `forwarded` is asked only where it counts; what cannot be read is looked
    /// at the next time. Returns the interfaces by which much is lost that was not told yet.
    fn look<E>(
        &mut self,
        now: u32,
        lost: BTreeMap<u32, u64>,
        forwarded: impl FnOnce() -> Result<Forwarded, E>,
    ) -> Result<Vec<u32>, E> {
        let Some(period) = &mut self.period else {
            self.period = Some(Period { since: now, lost, forwarded: forwarded()? });
            return Ok(Vec::new());
        };
        let since = |number: &u32, all: u64| {
            more(all, period.lost.get(number).copied().unwrap_or_default())
        };
        let over = now.saturating_sub(period.since) >= PERIOD;
        if !over && lost.iter().all(|(number, all)| since(number, *all) <= MANY_OF_FEW) {
            return Ok(Vec::new());
        }
        let forwarded = forwarded()?;
        let of = forwarded.since(&period.forwarded);
        let losses: BTreeMap<u32, Loss> = lost
            .iter()
            .map(|(number, all)| (*number, Loss { frames: since(number, *all), of }))
            .collect();
        let much = losses.iter().filter(|(_, loss)| loss.is_much());
        let begin: Vec<u32> = much
            .map(|(number, _)| *number)
            .filter(|number| !self.open.contains_key(number))
            .collect();
        for number in &begin {
            self.open.extend(losses.get(number).map(|loss| (*number, *loss)));
        }
        if over {
            self.open = losses
                .into_iter()
                .filter(|(number, loss)| self.open.contains_key(number) && loss.is_much_still())
                .collect();
            *period = Period { since: now, lost, forwarded };
        }
        Ok(begin)
    }
}

impl<P: Plane> Engine<P> {
    pub(super) fn look_at_lost(&mut self) {
        let Ok(Some(lost)) = self.plane.lost() else { return };
        let (now, translated) =
            (self.now(), self.services.values().any(|service| service.configured.forward.is_nat()));
        let plane = &self.plane;
        let forwarded = || {
            let packets = |lane: &LaneCounters| lane.packets;
            let to = plane.lanes()?.iter().map(packets).collect();
            let back = if translated { plane.returned()?.packets } else { 0 };
            Ok::<_, P::Error>(Forwarded { to, back })
        };
        let begin = self.lately.lost.look(now, lost, forwarded).unwrap_or_default();
        for said in begin.into_iter().filter_map(|number| self.lost_warning(number)) {
            warn!("{said}");
        }
    }

    /// What an operator should know of frames that are lost.
    pub(in crate::engine) fn lost_warnings(&self) -> Vec<String> {
        let numbers = self.lately.lost.open.keys();
        numbers.filter_map(|number| self.lost_warning(*number)).collect()
    }

    fn lost_warning(&self, number: u32) -> Option<String> {
        let Loss { frames, of } = *self.lately.lost.open.get(&number)?;
        let name = neigh::interface_by_index(number)
            .map_or_else(|_| format!("number {number}"), |interface| interface.name);
        Some(format!(
            "{frames} frames were lost within {PERIOD} s on their way out by {name}, where {of} were forwarded in all: \
             nobody gets them. `weir doctor` looks for what is in their way, such as a veth whose other end has no \
             XDP program (veth-peer)"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_much_is_told_once_until_it_is_little() {
        let mut losses = Losses::default();
        let mut look = |now: u32, lost: u64, forwarded: u64| {
            let forwarded = || Ok::<_, ()>(Forwarded { to: vec![forwarded, 0], back: 0 });
            let begin = losses.look(now, BTreeMap::from([(3, lost)]), forwarded);
            (begin.expect("it can be read").len(), losses.open.get(&3).map(|loss| loss.frames))
        };
        assert_eq!(look(0, 50_000, 50_000), (0, None), "those of before");
        assert_eq!(look(1, 50_900, 150_000), (0, None), "less than a hundredth");
        assert_eq!(look(2, 51_100, 150_000), (1, Some(1_100)));
        assert_eq!(look(3, 52_000, 150_000), (0, Some(1_100)), "it is told already");
        assert_eq!(look(20, 52_000, 150_000), (0, Some(2_000)), "of the whole period");
        assert_eq!(look(40, 52_600, 250_000), (0, Some(600)), "a little less");
        assert_eq!(look(60, 52_700, 350_000), (0, None));
        // Of few packets nearly all.
        assert_eq!(look(61, 52_790, 350_095), (0, None));
        assert_eq!(look(62, 52_850, 350_160), (1, Some(150)));
        assert_eq!(look(80, 52_850, 350_160), (0, Some(150)));
        assert_eq!(look(100, 52_850, 350_160), (0, None), "nothing is forwarded, or lost");
    }

    #[test]
    fn backends_that_go_take_no_more_with_them_than_was_theirs() {
        let before = Forwarded { to: vec![900, 100], back: 10 };
        let after = Forwarded { to: vec![0, 600, 7], back: 15 };
        assert_eq!(after.since(&before), 500 + 7 + 5);
    }
}
