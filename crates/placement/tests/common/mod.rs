//! What the tests of this crate share.
#![allow(dead_code)] // Each test program uses a part of it.

use weir_placement::{Candidate, Incremental, Maglev};

/// The seed of a test: `WEIR_SEED`, or a fresh one. It is printed, so that a failure can be had
/// again.
pub fn seed() -> u64 {
    let seed = match std::env::var("WEIR_SEED") {
        Ok(text) => text.parse().expect("WEIR_SEED is a number"),
        Err(_) => {
            use std::hash::{BuildHasher, RandomState};
            RandomState::new().hash_one(0)
        }
    };
    println!("WEIR_SEED={seed}");
    seed
}

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    pub fn hashes(&mut self, n: usize) -> Vec<u64> {
        (0..n).map(|_| self.next()).collect()
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

/// A backend of a test pool.
#[derive(Clone, PartialEq, Debug)]
pub struct Backend {
    pub name: String,
    pub number: u16,
    pub weight: u32,
}

impl Backend {
    pub fn candidate(&self) -> Candidate<'_> {
        Candidate { name: &self.name, backend: self.number, weight: self.weight }
    }
}

/// `n` backends with names of their own for each seed, and weights that repeat the pattern.
pub fn pool(rng: &mut Rng, n: u16, weights: &[u32]) -> Vec<Backend> {
    let network = rng.next() % 1000;
    (0..n)
        .map(|number| Backend {
            name: format!("10.{network}.{}.{}:80", number / 250, number % 250),
            number,
            weight: weights[usize::from(number) % weights.len()],
        })
        .collect()
}

/// Slots of a Maglev table that is filled.
pub const SIZE: u32 = 65_537;

/// A Maglev table of a pool.
pub fn maglev(backends: &[Backend]) -> Maglev {
    let candidates: Vec<Candidate<'_>> = backends.iter().map(Backend::candidate).collect();
    Maglev::build(SIZE, &candidates).unwrap()
}

/// A placement with a pool added one by one.
pub fn filled<P: Incremental>(mut empty: P, backends: &[Backend]) -> P {
    backends.iter().for_each(|backend| empty.add(backend.candidate()).unwrap());
    empty
}

/// Fails if `got` of `n` draws is further from `share` than `sigmas` standard deviations.
pub fn check_share(what: &str, got: usize, n: usize, share: f64, sigmas: f64) {
    let (got, n) = (got as f64, n as f64);
    let deviation = (n * share * (1.0 - share)).sqrt();
    let off = (got - n * share).abs();
    assert!(off <= sigmas * deviation + 1.0, "{what}: {got} of {n}, fair is {:.1}", n * share);
}
