//! The dissertation's chapter 4: Ludo beside Othello, SetSep and cuckoo tables.

mod build;
mod collisions;
mod locator;
mod memory;
mod messages;
mod races;
mod rates;
mod seeds;
mod updates;

use super::fib::forwarding;
use super::figure::{Figure, Setup, add, quote};
use weir_bench::maps::keys::Set;
use weir_bench::maps::{Request, Row};

pub const FIGURES: &[&Figure] = &[
    &locator::FIG_4_4,
    &seeds::FIG_4_5,
    &seeds::FIG_4_7,
    &seeds::FIG_4_8,
    &memory::FIG_4_12,
    &memory::FIG_4_13,
    &updates::FIG_4_16,
    &rates::FIG_4_17,
    &races::FIG_4_19,
    &races::FIG_4_20,
    &build::FIG_4_21,
    &forwarding::FIG_4_22,
    &forwarding::FIG_4_26,
    &collisions::FIG_4_30,
    &messages::MESSAGES,
];

const LUDO: &str = "Ludo";
const SHARED: &str = "Ludo, shared view";
const OTHELLO_SHARED: &str = "Othello, shared view";
const OTHELLO: &str = "Othello";
const FUSE: &str = "fuse (built whole)";
const SETSEP: &str = "SetSep";
const CUCKOO: &str = "cuckoo, whole keys";
const PARTIAL: &str = "cuckoo, partial keys";

/// Names of `weir bench maps`, and ours.
const STRUCTURES: [(&str, &str); 8] = [
    ("ludo", LUDO),
    ("ludo-shared", SHARED),
    ("othello", OTHELLO),
    ("othello-shared", OTHELLO_SHARED),
    ("setsep", SETSEP),
    ("partial-cuckoo", PARTIAL),
    ("cuckoo", CUCKOO),
    ("fuse", FUSE),
];

/// Our name of a structure.
fn named(structure: &str) -> &'static str {
    STRUCTURES.iter().find(|(name, _)| *name == structure).map_or("", |(_, ours)| ours)
}

/// What is measured of each.
fn options(setup: &Setup<'_>, structures: &[&str]) -> Request {
    Request {
        structures: structures.iter().map(|&name| name.to_owned()).collect(),
        keys: Vec::new(),
        bits: Vec::new(),
        threads: vec![1],
        alien: false,
        zipf: None,
        updates: 0.0,
        batch: 1024,
        lookups: setup.size.pick(1 << 16, 1 << 19, 1 << 21),
        rounds: setup.size.pick(3, 5, 9),
        seed: setup.seed,
    }
}

fn set(setup: &Setup<'_>, count: usize, bits: u32) -> Set {
    Set { count, bits, seed: setup.seed }
}

/// A value with its quartiles.
type Value = (f64, Option<(f64, f64)>);

/// Lookups one at a time, in millions per second.
fn single(row: &Row) -> Value {
    let spread = row.single_mlookups_spread;
    (row.single_mlookups_per_s, Some((spread.low, spread.high)))
}

/// The same in bursts.
fn bursts(row: &Row) -> Value {
    let spread = row.mlookups_spread;
    (row.mlookups_per_s, Some((spread.low, spread.high)))
}

/// Values `a + b l` of an equation at some l.
const fn line<const N: usize>(a: f64, b: f64, at: [f64; N]) -> [(f64, f64); N] {
    let mut points = [(0.0, 0.0); N];
    let mut i = 0;
    while i < N {
        points[i] = (at[i], a + b * at[i]);
        i += 1;
    }
    points
}

const TABLE_1_1: &str = "dissertation, Table 1.1";
