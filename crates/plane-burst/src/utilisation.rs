//! How busy a loop is that never sleeps: the metric *util+* of HNLB (section IV, Algorithm 1).
//!
//! A loop that asks for packets again and again keeps its processor busy whether any come or not, so the
//! processor's own utilisation says nothing. The share of time that is spent on bursts is better, but
//! overestimates: while there is little traffic, each burst has one packet, and costs nearly what a full one
//! does. So that share is weighted by how full bursts are.

use std::time::Duration;

/// What Algorithm 1 adds up. Time comes in as an argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Utilisation {
    /// When the last turn began (`cpu cycles last`); none before the first.
    last: Option<Duration>,
    /// When this turn began.
    before: Duration,
    /// Time of all turns (`REF`).
    reference: Duration,
    /// Time of those that had packets (`OPS`).
    operation: Duration,
    /// Packets (`np`).
    packets: u64,
    /// Bursts with a packet at least (`nb`).
    bursts: u64,
}

impl Utilisation {
    /// A turn begins: lines 2 to 4. `now`: by any clock that does not go back.
    pub fn begin(&mut self, now: Duration) {
        self.reference += now.saturating_sub(self.last.unwrap_or(now));
        self.last = Some(now);
        self.before = now;
    }

    /// The turn has received and processed so many packets: lines 6 to 14.
    pub fn end(&mut self, now: Duration, packets: u64) {
        if packets > 0 {
            self.packets += packets;
            self.bursts += 1;
            self.operation += now.saturating_sub(self.before);
        }
    }

    /// `util = OPS / REF`: the share of time that was spent on bursts, 0 to 1.
    pub fn util(&self) -> f64 {
        if self.reference.is_zero() {
            return 0.0;
        }
        (self.operation.as_secs_f64() / self.reference.as_secs_f64()).min(1.0)
    }

    /// `util+ = util (1 + np / (nb B)) / 2`, where `most` is B, the packets of the largest burst that there
    /// can be: for one queue.
    pub fn util_plus(&self, most: u64) -> f64 {
        self.util() * self.weight(most)
    }

    /// `util+ = util min(1, (1 + np / (nb B)) / 2)`: for several queues, of which none is ever emptied by a
    /// full burst without losing packets; `most` is half of what it is for one.
    pub fn util_plus_of_queues(&self, most: u64) -> f64 {
        self.util() * self.weight(most).min(1.0)
    }

    /// How full bursts are: a half for empty ones, 1 for full ones.
    fn weight(&self, most: u64) -> f64 {
        let room = self.bursts * most;
        let full = if room == 0 { 0.0 } else { self.packets as f64 / room as f64 };
        f64::midpoint(1.0, full)
    }

    /// Time of all turns, and of those that had packets.
    pub fn times(&self) -> (Duration, Duration) {
        (self.reference, self.operation)
    }

    /// Bursts with a packet at least.
    pub fn bursts(&self) -> u64 {
        self.bursts
    }

    /// Packets that were received since the count began.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Begins to add up anew, in the middle of the same loop.
    pub fn start_over(&mut self) {
        *self = Self { last: self.last, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICROSECOND: Duration = Duration::from_micros(1);
    /// What a turn takes that finds nothing, a burst, and each packet of it, in the loop below.
    const EMPTY: u32 = 1;
    const BURST: u32 = 2;
    const PACKET: u32 = 1;

    /// A loop to which a packet comes every `gap` microseconds, for so many turns.
    fn run(gap: u32, most: u32, turns: u32) -> Utilisation {
        let mut util = Utilisation::default();
        let (mut now, mut taken) = (0u32, 0u32);
        for _ in 0..turns {
            util.begin(now * MICROSECOND);
            let there = (now / gap + 1).saturating_sub(taken).min(most);
            taken += there;
            now += if there > 0 { BURST + there * PACKET } else { EMPTY };
            util.end(now * MICROSECOND, there.into());
        }
        util.begin(now * MICROSECOND);
        util
    }

    #[test]
    fn nothing_is_no_load_and_full_bursts_are_all() {
        assert_eq!(Utilisation::default().util_plus(32), 0.0);
        let mut idle = Utilisation::default();
        for at in 0..100 {
            idle.begin(at * MICROSECOND);
            idle.end(at * MICROSECOND, 0);
        }
        assert_eq!((idle.util(), idle.util_plus(32)), (0.0, 0.0));
        // More comes than can be taken.
        let full = run(1, 32, 10_000);
        let share = full.util_plus(32);
        assert!(share > 0.99 && share <= 1.0, "{share}");
        assert!(full.packets() > (full.bursts() - 10) * 32, "{full:?}");
    }

    /// The two equations, by numbers: half of the time, bursts of 8 of 32.
    #[test]
    fn the_equations_are_the_papers() {
        let mut util = Utilisation::default();
        for turn in 0..100u32 {
            util.begin(turn * 10 * MICROSECOND);
            let packets = if turn % 2 == 0 { 8 } else { 0 };
            util.end((turn * 10 + 10) * MICROSECOND, packets);
        }
        util.begin(1000 * MICROSECOND);
        assert_eq!(util.times(), (1000 * MICROSECOND, 500 * MICROSECOND));
        assert_eq!((util.bursts(), util.packets()), (50, 400));
        assert_eq!(util.util(), 0.5);
        // (1 + 400 / (50 * 32)) / 2 = 0.625.
        assert_eq!(util.util_plus(32), 0.5 * 0.625);
        // With B = 4 bursts count as fuller than full, which the second equation does not let them.
        assert_eq!(util.util_plus(4), 0.5 * 1.5);
        assert_eq!(util.util_plus_of_queues(4), 0.5);
        util.start_over();
        assert_eq!((util.util(), util.packets()), (0.0, 0));
        util.begin(1010 * MICROSECOND);
        assert_eq!(util.times().0, 10 * MICROSECOND);
    }

    /// Condition (iii) of the paper: where `util` alone has long reached 1, `util+` still grows with the load.
    #[test]
    fn it_tells_half_load_from_full_load() {
        // 32 packets take 34 us, so one every 1.06 us is all; these are 0.5 and 0.25 of that.
        let (half, quarter) = (run(2, 32, 100_000), run(4, 32, 100_000));
        assert!(half.util() > 0.99, "{}", half.util());
        let (half, quarter) = (half.util_plus(32), quarter.util_plus(32));
        assert!(half < 0.6, "{half}");
        assert!(quarter < half, "{quarter} {half}");
    }
}
