//! What the tests of JET share.
#![allow(dead_code)] // Each test program uses a part of it.

#[path = "../seed/mod.rs"]
mod seeds;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
pub use seeds::seed;
use std::time::Duration;
use weir_hash::HashKey;
use weir_placement::Candidate;
use weir_steering::jet::{AnyJet, JetConfig, PlacementKind};

pub fn rng(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

/// Flow number `n` of a test: any 64 bits.
pub fn flow(n: u64) -> u64 {
    HashKey::from_seed(0xf10e).hash_word(n)
}

pub fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Names for backends 0, 1, ...
pub fn names(count: u16) -> Vec<String> {
    (0..count).map(|i| format!("backend-{i}")).collect()
}

/// Backends 0, 1, ... with weight 1.
pub fn candidates(names: &[String]) -> Vec<Candidate<'_>> {
    (0..).zip(names).map(|(backend, name)| Candidate { name, backend, weight: 1 }).collect()
}

pub const COPIES: u32 = 160;
pub const ROWS: u32 = 65_536;

/// The placements that JET runs on; the anchor has room for 128 units of weight.
pub const KINDS: [PlacementKind; 4] = [
    PlacementKind::Hrw,
    PlacementKind::Ring { copies: COPIES },
    PlacementKind::Table { rows: ROWS },
    PlacementKind::Anchor { capacity: 128 },
];

pub fn config(placement: PlacementKind, connections: Option<usize>, seed: u64) -> JetConfig {
    let key = HashKey::from_seed(seed);
    JetConfig { placement, connections, warm_up: seconds(20), key }
}

/// JET over backends of weight 1: the first `working`, and on the horizon the others.
pub fn jet(config: &JetConfig, working: usize, names: &[String]) -> AnyJet<u64> {
    let candidates = candidates(names);
    let (working, horizon) = candidates.split_at(working);
    AnyJet::new(config, working, horizon).unwrap()
}

/// Six standard deviations of the part of `flows` flows that goes where one backend's `share`
/// goes: chance among the flows, and in the placement's own tables.
pub fn band(kind: PlacementKind, share: f64, flows: usize) -> f64 {
    let table = match kind {
        PlacementKind::Ring { copies } => share / f64::from(copies).sqrt(),
        PlacementKind::Table { rows } => (share / f64::from(rows)).sqrt(),
        _ => 0.0,
    };
    let chance = (share * (1.0 - share) / flows as f64).sqrt();
    6.0 * (chance * chance + table * table).sqrt()
}

/// P(X = k) of a Poisson variable.
pub fn poisson(mean: f64, k: u32) -> f64 {
    (1..=k).fold((-mean).exp(), |p, i| p * mean / f64::from(i))
}

/// The part of flows that have no place when buckets of six get `mean` flows each on average.
pub fn without_place(mean: f64) -> f64 {
    let kept: f64 = (0..60).map(|k| poisson(mean, k) * f64::from(k.min(6))).sum();
    1.0 - kept / mean
}
