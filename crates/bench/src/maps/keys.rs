//! Which keys the maps hold, their values, and which keys are looked up.

use crate::Result;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weir_sim::Zipf;

/// The keys of a table: numbers `0..count`, each with a value of `bits` bits.
#[derive(Clone, Copy, Debug)]
pub struct Set {
    /// How many keys there are.
    pub count: usize,
    /// Bits of a value, 1..=64.
    pub bits: u32,
    /// Of everything that is drawn.
    pub seed: u64,
}

/// Key number `n`. Different numbers have different keys, since each step is a bijection.
#[inline(always)]
pub fn key(n: u64) -> u64 {
    let x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 32)
}

impl Set {
    /// The value of a key: it follows from the key, so that it can be told without a list.
    #[inline(always)]
    pub fn value(&self, key: u64) -> u64 {
        (key ^ (key >> 29)).wrapping_mul(0xd6e8_feb8_6659_fd93) >> (64 - self.bits)
    }

    /// All keys with their values.
    pub fn items(&self) -> Vec<(u64, u64)> {
        self.numbered(0..self.count as u64).collect()
    }

    /// Those of some numbers.
    pub fn numbered(&self, numbers: impl Iterator<Item = u64>) -> impl Iterator<Item = (u64, u64)> {
        let set = *self;
        numbers.map(key).map(move |key| (key, set.value(key)))
    }

    /// `most` different numbers of keys, or a tenth of all, at random.
    pub fn sample(&self, most: usize) -> Vec<u64> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed ^ 3);
        let few = (self.count / 10).clamp(1, most);
        rand::seq::index::sample(&mut rng, self.count, few).into_iter().map(|n| n as u64).collect()
    }
}

/// Draws the keys that are looked up.
pub struct Draw {
    rng: ChaCha8Rng,
    count: u64,
    /// Number of the first key that may be drawn: alien keys come after the valid ones.
    first: u64,
    zipf: Option<Zipf>,
}

impl Draw {
    /// `part` tells threads apart.
    ///
    /// # Errors
    ///
    /// A skew that is not above 0.
    pub fn new(set: &Set, alien: bool, skew: Option<f64>, part: usize) -> Result<Self> {
        let count = set.count as u64;
        Ok(Self {
            rng: ChaCha8Rng::seed_from_u64(set.seed ^ 7 ^ ((part as u64) << 32)),
            count,
            first: if alien { count } else { 0 },
            zipf: skew.map(|skew| Zipf::new(count, skew)).transpose()?,
        })
    }

    /// Draws the next keys.
    pub fn fill(&mut self, keys: &mut [u64]) {
        for slot in keys {
            let number = match &self.zipf {
                Some(zipf) => zipf.sample(&mut self.rng) - 1,
                None => self.rng.random_range(0..self.count),
            };
            *slot = key(self.first + number);
        }
    }
}
