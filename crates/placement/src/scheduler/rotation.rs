//! Round robin, weighted round robin, and weights that follow the reported load.

use super::Scheduler;

/// One after the other, weights aside: every backend whose weight is not zero.
#[derive(Clone, Default, Debug)]
pub struct RoundRobin {
    ring: Vec<(u16, bool)>,
    next: usize,
}

impl RoundRobin {
    /// A scheduler without backends. Its picks are `None` until one with weight is set.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Scheduler for RoundRobin {
    fn pick(&mut self, _random: u64) -> Option<u16> {
        let n = self.ring.len();
        let turn = (0..n).map(|i| (self.next + i) % n).find(|&place| self.ring[place].1)?;
        self.next = (turn + 1) % n;
        Some(self.ring[turn].0)
    }

    fn set(&mut self, backend: u16, weight: u32) {
        match self.ring.iter_mut().find(|(other, _)| *other == backend) {
            Some((_, eligible)) => *eligible = weight > 0,
            None => self.ring.push((backend, weight > 0)),
        }
    }

    fn remove(&mut self, backend: u16) {
        if let Some(place) = self.ring.iter().position(|&(other, _)| other == backend) {
            self.ring.remove(place);
            // The same backend stays next.
            self.next -= usize::from(place < self.next);
            if self.next >= self.ring.len() {
                self.next = 0;
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    backend: u16,
    weight: u64,
    credit: i64,
}

/// Smooth weighted round robin, as nginx does it: every pick gives each backend its weight as
/// credit, takes who has most, and charges that one the sum of all weights.
///
/// In each run of `sum of weights` picks a backend gets its weight, evenly spread: 5:1:1 gives
/// `a a b a c a a`, not `a a a a a b c`. A pick takes one step per backend.
#[derive(Clone, Default, Debug)]
pub struct WeightedRoundRobin {
    turns: Vec<Turn>,
}

impl WeightedRoundRobin {
    /// A scheduler without backends. Its picks are `None` until one with weight is set.
    pub fn new() -> Self {
        Self::default()
    }

    fn set_weight(&mut self, backend: u16, weight: u64) {
        match self.turns.iter_mut().find(|turn| turn.backend == backend) {
            Some(turn) => turn.weight = weight,
            None => self.turns.push(Turn { backend, weight, credit: 0 }),
        }
    }
}

impl Scheduler for WeightedRoundRobin {
    fn pick(&mut self, _random: u64) -> Option<u16> {
        let mut total = 0;
        let mut best: Option<usize> = None;
        for place in 0..self.turns.len() {
            let turn = &mut self.turns[place];
            if turn.weight == 0 {
                continue;
            }
            // 2^16 backends of 32-bit weights (times 30): far from the limits of 63 bits.
            turn.credit += turn.weight as i64;
            total += turn.weight as i64;
            let credit = turn.credit;
            if best.is_none_or(|best| credit > self.turns[best].credit) {
                best = Some(place);
            }
        }
        let winner = &mut self.turns[best?];
        winner.credit -= total;
        Some(winner.backend)
    }

    fn set(&mut self, backend: u16, weight: u32) {
        self.set_weight(backend, u64::from(weight));
    }

    fn remove(&mut self, backend: u16) {
        self.turns.retain(|turn| turn.backend != backend);
    }
}

#[derive(Clone, Copy, Debug)]
struct Reported {
    backend: u16,
    weight: u32,
    load: Option<u64>,
}

/// Automatic weighted round robin: the backends' weights follow their load.
///
/// Cheetah, section 4.1: "we devised a system where the weights of the servers change according
/// to their relative (CPU) loads. [...] the number of buckets Ni assigned to server i is
/// computed as Ni = round(10 * Lavg / ((1-α) * Li + α * Lavg)) where Li is the load of a server,
/// and α is a factor that tunes the speed of the convergence, which we set to 0.5. A perfectly
/// balanced system would give N = 10 buckets to each server. An underutilized server gets more
/// than N buckets (in practice limited to 3N) while an overloaded server gets less than N
/// buckets (lower bounded by 2)."
///
/// With alpha 0.5 an idle backend gets 20, so the bound of 30 is reached only with alpha below
/// a third. Buckets take turns by smooth weighted round robin. Ours beyond the paper: the
/// configured weight multiplies the buckets (the load is a utilisation, as CPU is: a backend of
/// twice the weight is expected at the same load); a backend that has not reported counts as
/// average; the arithmetic is in integers, alpha in thousandths.
///
/// The formula starts from 10 at every report and does not add up, so backends of different
/// speed come closer in load but never to the same load; weights are for known differences.
#[derive(Clone, Debug)]
pub struct Awrr {
    alpha: u32,
    reports: Vec<Reported>,
    turns: WeightedRoundRobin,
    stale: bool,
}

impl Awrr {
    /// Buckets of a backend whose load is the average.
    pub const BALANCED: u64 = 10;
    /// The least that an overloaded backend gets.
    pub const MIN: u64 = 2;
    /// The most that an idle backend gets.
    pub const MAX: u64 = 3 * Self::BALANCED;

    /// A scheduler without backends, with alpha 0.5 as in the paper.
    pub fn new() -> Self {
        Self::with_alpha(500)
    }

    /// A scheduler without backends. `alpha` is in thousandths, at most 1,000; more counts as
    /// 1,000, which ignores the load.
    pub fn with_alpha(alpha: u32) -> Self {
        let turns = WeightedRoundRobin::new();
        Self { alpha: alpha.min(1000), reports: Vec::new(), turns, stale: false }
    }

    /// Ni of the paper: for a backend of load `load`, when `n` backends have `sum` together.
    pub fn buckets(alpha: u32, load: u64, sum: u64, n: u64) -> u64 {
        let (load, sum, n) = (u128::from(load), u128::from(sum), u128::from(n));
        let alpha = u128::from(alpha.min(1000));
        // Both sides of the fraction times 1000 n, so that it is one division.
        let above = u128::from(Self::BALANCED) * 1000 * sum;
        let below = ((1000 - alpha) * n).saturating_mul(load).saturating_add(alpha * sum);
        // Half a divisor more rounds to the nearest. No load at all: all are average.
        match (above + below / 2).checked_div(below) {
            None if sum == 0 => Self::BALANCED,
            None => Self::MAX,
            Some(buckets) => u64::try_from(buckets).unwrap_or(Self::MAX),
        }
        .clamp(Self::MIN, Self::MAX)
    }

    /// The backend's buckets at this moment, without its configured weight.
    pub fn buckets_of(&self, backend: u16) -> Option<u64> {
        let (sum, n) = self.loads();
        let report = self.reports.iter().find(|report| report.backend == backend)?;
        Some(self.buckets_for(report, sum, n))
    }

    fn buckets_for(&self, report: &Reported, sum: u64, n: u64) -> u64 {
        report.load.map_or(Self::BALANCED, |load| Self::buckets(self.alpha, load, sum, n))
    }

    /// Sum and number of the loads of those that take part.
    fn loads(&self) -> (u64, u64) {
        let taking_part = self.reports.iter().filter(|report| report.weight > 0);
        taking_part
            .filter_map(|report| report.load)
            .fold((0, 0), |(sum, n), load| (sum + load, n + 1))
    }

    fn refresh(&mut self) {
        let (sum, n) = self.loads();
        for report in &self.reports {
            let weight = u64::from(report.weight) * self.buckets_for(report, sum, n);
            self.turns.set_weight(report.backend, weight);
        }
        self.stale = false;
    }
}

impl Default for Awrr {
    fn default() -> Self {
        Self::new()
    }
}

impl Scheduler for Awrr {
    fn pick(&mut self, random: u64) -> Option<u16> {
        if self.stale {
            self.refresh();
        }
        self.turns.pick(random)
    }

    fn set(&mut self, backend: u16, weight: u32) {
        match self.reports.iter_mut().find(|report| report.backend == backend) {
            Some(report) => report.weight = weight,
            None => self.reports.push(Reported { backend, weight, load: None }),
        }
        self.stale = true;
    }

    fn remove(&mut self, backend: u16) {
        self.reports.retain(|report| report.backend != backend);
        self.turns.remove(backend);
        self.stale = true;
    }

    fn on_load(&mut self, backend: u16, load: u64) {
        if let Some(report) = self.reports.iter_mut().find(|report| report.backend == backend) {
            // 2^48 keeps the sum of 2^16 loads in 64 bits.
            report.load = Some(load.min(1 << 48));
            self.stale = true;
        }
    }
}
