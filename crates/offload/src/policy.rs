//! Which connections are worth a rule.
//!
//! A few connections send most packets, so few rules can take most packets off the software, if they are those
//! connections' (HNLB's future work, section VIII).

use crate::sketch::Sketch;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;

/// How connections are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// All, until the table is full: the paper's.
    All,
    /// Those that a count-min sketch of so many counters in a row says to have sent `least` packets lately.
    Heavy {
        /// Counters in each of its four rows.
        width: u32,
        /// Packets of a connection before it is worth a rule.
        least: u32,
    },
    /// One packet in so many is counted, exactly; a connection is worth a rule from `least` of those on.
    Sampled {
        /// Of so many packets one is counted, on average.
        one_in: u32,
        /// Counted packets of a connection before it is worth a rule.
        least: u32,
        /// Connections that are counted at a time.
        flows: usize,
    },
}

impl Choice {
    /// A word for it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Heavy { .. } => "heavy",
            Self::Sampled { .. } => "sampled",
        }
    }
}

/// What a packet that the software has steered says of its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// It is not worth a rule, as far as is known.
    No,
    /// It is, by about so many packets lately.
    Yes(u32),
}

/// Counts packets of the software's queue.
#[derive(Clone, Debug)]
pub enum Policy {
    /// [`Choice::All`].
    All,
    /// [`Choice::Heavy`].
    Heavy(Sketch, u32),
    /// [`Choice::Sampled`].
    Sampled(Box<Samples>),
}

/// Exact counts of a sample of packets.
#[derive(Clone, Debug)]
pub struct Samples {
    one_in: u32,
    least: u32,
    most: usize,
    counts: HashMap<u64, u32>,
    /// Packets until the next that is counted.
    left: u32,
    rng: ChaCha8Rng,
}

impl Samples {
    fn packet(&mut self, flow: u64) -> Wish {
        self.left -= 1;
        if self.left > 0 {
            return Wish::No;
        }
        // Not every so-manieth: packets may come in such a rhythm themselves.
        self.left = self.rng.random_range(1..=self.one_in.saturating_mul(2).saturating_sub(1));
        if self.counts.len() >= self.most && !self.counts.contains_key(&flow) {
            self.halve();
            if self.counts.len() >= self.most {
                return Wish::No;
            }
        }
        let count = self.counts.entry(flow).or_default();
        *count += 1;
        if *count < self.least { Wish::No } else { Wish::Yes(count.saturating_mul(self.one_in)) }
    }

    fn halve(&mut self) {
        self.counts.retain(|_, count| {
            *count /= 2;
            *count > 0
        });
    }
}

impl Policy {
    /// By this choice; what is drawn is drawn from the seed.
    pub fn new(choice: Choice, seed: u64) -> Self {
        match choice {
            Choice::All => Self::All,
            Choice::Heavy { width, least } => Self::Heavy(Sketch::new(width, seed), least.max(1)),
            Choice::Sampled { one_in, least, flows } => Self::Sampled(Box::new(Samples {
                one_in: one_in.max(1),
                least: least.max(1),
                most: flows.max(1),
                counts: HashMap::new(),
                left: 1,
                rng: ChaCha8Rng::seed_from_u64(seed),
            })),
        }
    }

    /// The software has steered a packet in the middle of a connection, which this number tells from others.
    #[inline]
    pub fn packet(&mut self, flow: u64) -> Wish {
        match self {
            Self::All => Wish::Yes(0),
            Self::Heavy(sketch, least) => match sketch.add(flow, 1) {
                packets if packets >= *least => Wish::Yes(packets),
                _ => Wish::No,
            },
            Self::Sampled(samples) => samples.packet(flow),
        }
    }

    /// A window of time is over: what was counted counts half.
    pub fn next_window(&mut self) {
        match self {
            Self::All => {}
            Self::Heavy(sketch, _) => sketch.halve(),
            Self::Sampled(samples) => samples.halve(),
        }
    }

    /// Bytes of what is counted, about.
    pub fn bytes(&self) -> usize {
        match self {
            Self::All => 0,
            Self::Heavy(sketch, _) => sketch.bytes(),
            Self::Sampled(samples) => samples.counts.capacity() * size_of::<(u64, u32)>(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten connections of a thousand send nine packets of ten.
    fn chosen(choice: Choice) -> (usize, usize) {
        let mut policy = Policy::new(choice, 3);
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let mut wished = std::collections::HashSet::new();
        for _ in 0..50_000 {
            let heavy = rng.random_ratio(9, 10);
            let flow = if heavy { rng.random_range(0..10) } else { rng.random_range(10..1000) };
            if let Wish::Yes(_) = policy.packet(flow) {
                wished.insert(flow);
            }
        }
        let heavy = wished.iter().filter(|flow| **flow < 10).count();
        (heavy, wished.len() - heavy)
    }

    #[test]
    fn heavy_connections_are_told_from_light_ones() {
        let (heavy, light) = chosen(Choice::All);
        assert!(heavy == 10 && light > 900, "{light}");
        assert_eq!(chosen(Choice::Heavy { width: 4096, least: 500 }), (10, 0));
        let sampled = chosen(Choice::Sampled { one_in: 20, least: 30, flows: 2000 });
        assert_eq!(sampled, (10, 0));
    }

    /// However many connections come, no more are counted than were said.
    #[test]
    fn samples_stay_within_their_room() {
        let mut policy = Policy::new(Choice::Sampled { one_in: 1, least: 2, flows: 100 }, 9);
        for flow in 0..100_000 {
            policy.packet(flow);
            let Policy::Sampled(samples) = &policy else { unreachable!() };
            assert!(samples.counts.len() <= 100);
        }
        assert!(policy.bytes() < 10_000);
    }
}
