//! What takes more keys, or longer, than `weir bench maps` is made for, which compares the maps.
//!
//! * `cargo run --release -p weir-lookup --example maps -- ludo KEYS...`: construction of a large
//!   Ludo table, with its memory, every value looked up, and the rate of lookups.
//! * `... -- filtable KEYS...`: no key shadowing in so many keys; the false-positive rate.
//!
//! Times are the thread's own (`/proc/thread-self/schedstat`), so that what else runs on the machine
//! takes part only through the caches. Keys that are looked up are known ones at random, made in
//! blocks of 1,024 by a generator whose time is in the figure, the median of five rounds.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;
use weir_lookup::{Filtable, Ludo};

const BITS: u32 = 12;
const ROUNDS: usize = 5;
const LOOKUPS: usize = 1 << 22;
const BLOCK: usize = 1024;

/// Seconds that this thread has run.
fn now() -> f64 {
    let own = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = own.and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok());
    nanoseconds.map_or_else(
        || {
            static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
            START.get_or_init(Instant::now).elapsed().as_secs_f64()
        },
        |nanoseconds| nanoseconds / 1e9,
    )
}

fn timed<R>(work: impl FnOnce() -> R) -> (R, f64) {
    let start = now();
    let result = work();
    (result, now() - start)
}

/// The key number `n` of the set.
fn key(n: u64) -> u64 {
    let x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (((self.next() >> 32) * n as u64) >> 32) as usize
    }
}

/// Millions of keys per second that go through `work`.
fn rate(keys: usize, mut work: impl FnMut(&[u64]) -> u64) -> f64 {
    let mut random = Random(7);
    let mut block = [0u64; BLOCK];
    let ((), seconds) = timed(|| {
        let mut sum = 0u64;
        for _ in 0..LOOKUPS / BLOCK {
            block.fill_with(|| key(random.below(keys) as u64));
            sum = sum.wrapping_add(work(&block));
        }
        black_box(sum);
    });
    LOOKUPS as f64 / seconds / 1e6
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// One large table, made key by key, so that no list of items stands beside it.
fn large_ludo(keys: usize) {
    let (table, seconds) = timed(|| {
        let mut table = Ludo::new(BITS, keys, 9).expect("a table of this size");
        let mut items = Vec::with_capacity(BLOCK);
        for start in (0..keys as u64).step_by(BLOCK) {
            items.clear();
            let end = (start + BLOCK as u64).min(keys as u64);
            items.extend((start..end).map(|n| (key(n), n & 0xfff)));
            table.insert_batch(&items, |_| ()).expect("different keys");
        }
        table
    });
    let per_key = |bytes: usize| bytes as f64 / keys as f64;
    let view = table.view();
    let wrong = (0..keys as u64).filter(|&n| view.get(&key(n)) != n & 0xfff).count();
    println!(
        "{keys} keys in {seconds:.1} s ({:.2} M/s): view {:.2} bits per key, all {:.1} bytes per \
         key; {wrong} wrong values; {:?}",
        keys as f64 / seconds / 1e6,
        8.0 * per_key(view.bytes()),
        per_key(table.control_bytes()),
        table.stats(),
    );
    let mut out = [0u64; BLOCK];
    let mut lookup = |keys: &[u64]| {
        view.get_batch(keys, &mut out);
        out.iter().fold(0u64, |sum, &value| sum.wrapping_add(value))
    };
    let mut rates: Vec<f64> = (0..ROUNDS).map(|_| rate(keys, &mut lookup)).collect();
    println!("{:.1} M lookups/s in batches", median(&mut rates));
}

/// A Filtable of 8-bit digests: every key, and ten million that are not in it.
fn shadowing(keys: usize) {
    let mut table = Filtable::new(8, BITS, keys, 11);
    let ((), seconds) = timed(|| {
        (0..keys as u64).for_each(|n| drop(table.insert(key(n), n & 0xfff)));
    });
    let view = table.view();
    let wrong = (0..keys as u64).filter(|&n| view.get(&key(n)) != Some(n & 0xfff)).count();
    let asked = 10_000_000;
    let hits = (0..asked).filter(|&n| view.get(&key(keys as u64 + n)).is_some()).count();
    let level1 = 1.0 - view.level2_len() as f64 / keys as f64;
    println!(
        "{keys} keys in {seconds:.1} s, 8-bit digests: {wrong} shadowed, {:.2} % in level 2, \
         {:.2} bits per key; false positives {:.5}, equation 3.8 {:.5}",
        (1.0 - level1) * 100.0,
        view.bytes() as f64 * 8.0 / keys as f64,
        hits as f64 / asked as f64,
        1.0 - (1.0 - 0.5f64.powi(8)).powf(0.95 * level1 * 8.0),
    );
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let run: fn(usize) = match arguments.next().as_deref() {
        Some("ludo") => large_ludo,
        Some("filtable") => shadowing,
        _ => {
            eprintln!("maps ludo KEYS... | maps filtable KEYS...");
            return ExitCode::FAILURE;
        }
    };
    let number = |text: String| text.parse::<usize>().expect("a number of keys");
    arguments.map(number).for_each(run);
    ExitCode::SUCCESS
}
