//! How long a card takes.

use rand::Rng;
use std::time::Duration;

/// A distribution of delays.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Delay {
    /// Always so long.
    Fixed(Duration),
    /// Between two, all alike.
    Uniform(Duration, Duration),
    /// `least`, and more by an exponential distribution of this mean: a queue of commands in a card.
    Exponential {
        /// The shortest.
        least: Duration,
        /// What comes on top, on average.
        mean: Duration,
    },
}

impl Delay {
    /// One of them.
    pub fn draw(&self, rng: &mut impl Rng) -> Duration {
        match *self {
            Self::Fixed(always) => always,
            Self::Uniform(least, most) => rng.random_range(least..=most.max(least)),
            Self::Exponential { least, mean } => {
                let u: f64 = rng.random();
                least + mean.mul_f64(-(1.0 - u).ln())
            }
        }
    }
}
