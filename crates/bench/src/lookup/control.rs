//! `weir bench lookup --control`: Othello and OthelloMap by themselves.

use crate::Result;
use crate::Spread;
use crate::error::demand;
use rand::{RngCore, SeedableRng};
use serde::Serialize;
use std::fmt;
use std::hint::black_box;
use std::time::Instant;
use weir_lookup::OthelloMap;

const BITS: u32 = 12;

/// What the bench prints as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Bits of a value in the tables.
    pub value_bits: u32,
    /// Rounds of each measurement.
    pub rounds: u32,
    /// One row for each structure and number of keys.
    pub rows: Vec<Row>,
}

/// Othello at one number of keys.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the structure.
    pub structure: &'static str,
    /// Number of keys in it.
    pub keys: usize,
    /// Bits per key of the exported view.
    pub bits_per_key: f64,
    /// Bytes per key of the control structure.
    pub control_bytes_per_key: f64,
    /// Millions of insertions per second, growth and rebuilds included.
    pub minserts_per_s: Spread,
    /// Milliseconds to re-assign the values of all keys.
    pub export_ms: Spread,
    /// Millions of exported keys per second.
    pub mexports_per_s: f64,
    /// Millions of lookups per second in the view, one at a time, known keys at random.
    pub mlookups_per_s: Spread,
    /// The bound: two reads at random places of arrays of the same bytes, one at a time.
    pub bound_mlookups_per_s: Spread,
}

/// Measures. `progress` gets each row when it is ready.
///
/// # Errors
///
/// A number of keys that cannot be measured, or a key that the structure does not take.
pub fn run(
    keys: &[usize],
    rounds: u32,
    seed: u64,
    mut progress: impl FnMut(&Row),
) -> Result<Report> {
    demand!(
        keys.iter().all(|count| (100..1 << 27).contains(count)),
        "states: at least 100, and less than 2^27"
    );
    let mut rows = Vec::new();
    for &count in keys {
        let row = measure(count, rounds.max(1), seed)?;
        progress(&row);
        rows.push(row);
    }
    Ok(Report { value_bits: BITS, rounds, rows })
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>8} keys  {:.2} bits/key, {:.1} control bytes/key, {:.2} M inserts/s, export \
             {:.2} ms ({:.1} M keys/s), {:.1} M lookups/s (bound {:.1})",
            self.keys,
            self.bits_per_key,
            self.control_bytes_per_key,
            self.minserts_per_s.median,
            self.export_ms.median,
            self.mexports_per_s,
            self.mlookups_per_s.median,
            self.bound_mlookups_per_s.median,
        )
    }
}

fn measure(count: usize, rounds: u32, seed: u64) -> Result<Row> {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let keys: Vec<u64> = (0..count).map(|_| rng.next_u64()).collect();
    let (mut inserts, mut exports, mut lookups, mut bounds) = (vec![], vec![], vec![], vec![]);
    let (mut bits_per_key, mut control) = (0.0, 0.0);
    let rate = |n: usize, started: Instant| n as f64 / started.elapsed().as_secs_f64() / 1e6;
    for round in 0..rounds {
        let mut map: OthelloMap<u64, u32> = OthelloMap::new(BITS, count, u64::from(round));
        let started = Instant::now();
        for &key in &keys {
            map.insert(key, key as u32)?;
        }
        inserts.push(rate(keys.len(), started));
        let started = Instant::now();
        let view = map.export(None, |value| value & 0xfff);
        exports.push(started.elapsed().as_secs_f64() * 1e3);
        let started = Instant::now();
        let mut sum = 0u64;
        for &key in &keys {
            sum += u64::from(view.get(&key));
        }
        black_box(sum);
        lookups.push(rate(keys.len(), started));
        bounds.push(bound(view.as_bytes(), &keys));
        bits_per_key = view.bytes() as f64 * 8.0 / count as f64;
        control = map.control_bytes() as f64 / count as f64;
    }
    let export_ms = Spread::of(exports);
    Ok(Row {
        structure: "othello",
        keys: count,
        bits_per_key,
        control_bytes_per_key: control,
        minserts_per_s: Spread::of(inserts),
        mexports_per_s: count as f64 / export_ms.median / 1e3,
        export_ms,
        mlookups_per_s: Spread::of(lookups),
        bound_mlookups_per_s: Spread::of(bounds),
    })
}

/// Two reads for each key, at places that a multiplication gives: nothing cheaper can find them.
fn bound(bytes: &[u8], keys: &[u64]) -> f64 {
    let half = bytes.len() / 2;
    let started = Instant::now();
    let mut sum = 0u64;
    for &key in keys {
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = |bits: u64| (((bits & 0xffff_ffff) * (half as u64 - 4)) >> 32) as usize;
        sum += u64::from(bytes[place(mixed)] ^ bytes[half + place(mixed >> 32)]);
    }
    black_box(sum);
    keys.len() as f64 / started.elapsed().as_secs_f64() / 1e6
}
