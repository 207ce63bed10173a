//! How many ICMP messages a plane may send.

/// Messages that are sent at once, before the rate counts.
pub const MESSAGE_BURST: u64 = 50;

/// So many messages in a second, and [`MESSAGE_BURST`] at once: a token bucket. The twin of `may_send` in
/// `bpf/messages.h`, which each processor has one of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Allowance {
    /// Nanoseconds between two messages; 0: none is sent.
    interval: u64,
    filled: u64,
    tokens: u64,
}

impl Allowance {
    /// Nanoseconds between two messages at this rate; 0: none is sent.
    pub const fn interval(per_second: u32) -> u64 {
        match per_second {
            0 => 0,
            rate => 1_000_000_000 / rate as u64,
        }
    }

    /// Sets the rate.
    pub fn set(&mut self, per_second: u32) {
        self.interval = Self::interval(per_second);
    }

    /// Whether none is sent.
    pub fn is_none(&self) -> bool {
        self.interval == 0
    }

    /// As many may be sent now as at once.
    pub fn fill(&mut self) {
        self.tokens = MESSAGE_BURST;
    }

    /// Whether a message may be sent at this time, in nanoseconds; it counts as sent.
    pub fn take(&mut self, now: u64) -> bool {
        if self.interval == 0 {
            return false;
        }
        let gained = now.wrapping_sub(self.filled) / self.interval;
        if gained >= MESSAGE_BURST - self.tokens {
            (self.tokens, self.filled) = (MESSAGE_BURST, now);
        } else {
            self.tokens += gained;
            self.filled += gained * self.interval;
        }
        let some = self.tokens > 0;
        self.tokens -= u64::from(some);
        some
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_burst_and_then_the_rate() {
        let mut allowance = Allowance::default();
        assert!(!allowance.take(1), "none is sent at first");
        allowance.set(1000);
        let start = 5_000_000_000;
        let sent = |allowance: &mut Allowance, times: u64, at: u64| {
            (0..times).filter(|_| allowance.take(at)).count() as u64
        };
        assert_eq!(sent(&mut allowance, 200, start), MESSAGE_BURST);
        // In a second come a thousand more, however they are asked for.
        let more: u64 = (1..=3000).map(|at| sent(&mut allowance, 1, start + at * 333_333)).sum();
        assert!((999..=1000).contains(&more), "{more}");
        assert_eq!(sent(&mut allowance, 200, start + 10_000_000_000), MESSAGE_BURST);
        allowance.set(0);
        assert_eq!(sent(&mut allowance, 1, start + 20_000_000_000), 0);
    }
}
