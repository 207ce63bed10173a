//! Lookups per second of every structure beside the bound of a bare gather loop.
//!
//! `cargo run --release -p weir-lookup --example rates -- [options] [keys...]`, 1M and 8M keys if
//! none is given. `--vectors baseline|avx2|avx512` says what may be used; the default is all that
//! the processor has.
//!
//! The keys that are looked up are known ones at random. They are made in blocks of 2,048, and only
//! the lookups of a block are timed, so that neither a generator nor a stream of keys is in the
//! figures (the row `timer` is what timing an empty block costs). A figure is the median of the
//! blocks of a turn: being interrupted by other programs falls on few of them. Rounds visit
//! everything in turn; printed are medians over the rounds, and the quartiles of what each round's
//! ratio was, which noise disturbs less than the figures, because both sides had the same of it.

use std::hint::black_box;
use std::time::Instant;
use weir_lookup::simd::gather::Gather;
use weir_lookup::{BATCH, DigestCuckoo, Fuse, MultiDigest, Othello, Vectors, View};

const BITS: u32 = 12;
const ROUNDS: usize = 9;
/// Blocks of a turn: some that fill the caches, then some that count.
const WARM: usize = 1 << 8;
const TIMED: usize = 1 << 8;
const BLOCK: usize = 2048;

/// The key number `n` of the set.
#[inline(always)]
fn key(n: u64) -> u64 {
    let x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn value(n: usize) -> u16 {
    n as u16 & 0xfff
}

/// What a row is measured by: takes keys, writes values.
type Lookup<'a> = Box<dyn Fn(&[u64], &mut [u32]) + 'a>;

/// Runs `lookup` on blocks of random known keys; returns millions of keys per second.
fn rate(keys: usize, state: &mut u64, lookup: &Lookup) -> f64 {
    let mut block = [0u64; BLOCK];
    let mut out = [0u32; BLOCK];
    let mut times = Vec::with_capacity(TIMED);
    for turn in 0..WARM + TIMED {
        for slot in &mut block {
            *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = *state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            *slot = key(((z >> 32) * keys as u64) >> 32);
        }
        let started = Instant::now();
        lookup(black_box(&block), &mut out);
        black_box(&mut out);
        if turn >= WARM {
            times.push(started.elapsed().as_nanos() as f64);
        }
    }
    BLOCK as f64 * 1e3 / quartiles(times)[1]
}

/// The three quartiles.
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[values.len() * quarter / 4])
}

fn single<'a>(lookup: impl Fn(&u64) -> u32 + 'a) -> Lookup<'a> {
    Box::new(move |keys, out| {
        out.iter_mut().zip(keys).for_each(|(out, key)| *out = lookup(key));
    })
}

fn batched<'a>(burst: usize, lookup: impl Fn(&[u64], &mut [u32]) + 'a) -> Lookup<'a> {
    Box::new(move |keys, out| {
        for (keys, out) in keys.chunks(burst).zip(out.chunks_mut(burst)) {
            lookup(keys, out);
        }
    })
}

/// One row: name, bytes, and what to measure: one at a time, batched in blocks, batched in bursts
/// of 32, the bounds of all three.
struct Row<'a> {
    name: &'static str,
    bytes: usize,
    lookups: [Lookup<'a>; 6],
}

macro_rules! row {
    ($name:literal, $bytes:expr, $table:expr, $bound:expr, $lookup:expr) => {
        Row {
            name: $name,
            bytes: $bytes,
            lookups: [
                single(|key| $lookup(&$table, key)),
                batched(BLOCK, |keys, out| $table.get_batch(keys, out)),
                batched(BATCH, |keys, out| $table.get_batch(keys, out)),
                single(|&key| $bound.get(key)),
                batched(BLOCK, |keys, out| $bound.get_batch(keys, out)),
                batched(BATCH, |keys, out| $bound.get_batch(keys, out)),
            ],
        }
    };
}

/// Rates of each row and lookup, by round.
fn measure(n: usize, rows: &[Row]) -> Vec<[Vec<f64>; 6]> {
    let mut rates = vec![[const { Vec::new() }; 6]; rows.len()];
    let mut state = 0x1234_5678_9abc_def1;
    for _ in 0..ROUNDS {
        for (row, rates) in rows.iter().zip(&mut rates) {
            for (lookup, rates) in row.lookups.iter().zip(rates) {
                rates.push(rate(n, &mut state, lookup));
            }
        }
    }
    rates
}

fn print(n: usize, rows: &[Row], rates: &[[Vec<f64>; 6]]) {
    println!(
        "{:14}{:>9}  {:>8}{:>8}{:>8}  {:>8}{:>8}{:>8}  batched / bound",
        "M lookups/s", "bits/key", "single", "batched", "by 32", "bound 1", "bound b", "by 32"
    );
    for (row, rates) in rows.iter().zip(rates) {
        print!("{:14}{:9.2}", row.name, row.bytes as f64 * 8.0 / n as f64);
        for (i, rates) in rates.iter().enumerate() {
            print!("{}{:8.1}", if i % 3 == 0 { "  " } else { "" }, quartiles(rates.clone())[1]);
        }
        let [low, middle, high] = ratio(&rates[1], &rates[4]);
        println!("  {middle:.2} ({low:.2} to {high:.2})");
    }
    println!("{:14}{:>20}{:>22}{:>22}", "times the best digest", "single", "batched", "by 32");
    let digests = rows.iter().position(|row| row.name.starts_with("cuckoo")).unwrap_or(0);
    for (row, own) in rows[..digests].iter().zip(rates) {
        print!("{:21}", row.name);
        for (i, own) in own[..3].iter().enumerate() {
            let best: Vec<f64> = (0..ROUNDS)
                .map(|round| {
                    rates[digests..].iter().map(|rates| rates[i][round]).fold(0.0, f64::max)
                })
                .collect();
            let [low, middle, high] = ratio(own, &best);
            print!("{:22}", format!("{middle:.2} ({low:.2} to {high:.2})"));
        }
        println!();
    }
}

/// Quartiles of the ratio of two measurements of the same rounds.
fn ratio(a: &[f64], b: &[f64]) -> [f64; 3] {
    quartiles(a.iter().zip(b).map(|(a, b)| a / b).collect())
}

fn compare(n: usize) -> Result<(), weir_lookup::Error> {
    let keys: Vec<u64> = (0..n as u64).map(key).collect();
    let mut othello = Othello::new(BITS, 0, 1);
    othello.reserve(n)?;
    for (number, &key) in keys.iter().enumerate() {
        othello.insert(key, u32::from(value(number)))?;
    }
    let othello = othello.view();
    let started = Instant::now();
    let fuse = Fuse::build(BITS, &keys, |number| u32::from(value(number)), 1)?;
    let fuse_ns = started.elapsed().as_secs_f64() * 1e9 / n as f64;
    let mut cuckoo = DigestCuckoo::new(n, 1);
    let mut cuckoo6 = DigestCuckoo::<6>::with_digest_bits(n, 64, 1);
    let mut multi = MultiDigest::new(n, 1);
    for (number, key) in keys.iter().enumerate() {
        cuckoo.insert(key, value(number))?;
        cuckoo6.insert(key, value(number))?;
        multi.insert(key, value(number))?;
    }
    let levels = multi.entries_by_level().map(|count| count as f64 / n as f64);
    println!("{n} keys; fuse built in {fuse_ns:.0} ns/key; levels {levels:.4?}");
    drop(keys);

    let two = Gather::<2>::new(othello.bytes());
    let three = Gather::<3>::new(fuse.bytes());
    let one = [cuckoo.bytes(), cuckoo6.bytes(), multi.bytes()].map(Gather::<1>::new);
    let found = |found: Option<u16>| found.map_or(u32::MAX, u32::from);
    let rows = [
        row!("othello", othello.bytes(), othello, two, |t: &View, k| t.get(k)),
        row!("fuse", fuse.bytes(), fuse, three, |t: &Fuse, k| t.get(k)),
        row!("cuckoo (2,4)", cuckoo.bytes(), cuckoo, one[0], |t: &DigestCuckoo, k| found(t.get(k))),
        row!("cuckoo (2,6)", cuckoo6.bytes(), cuckoo6, one[1], |t: &DigestCuckoo<6>, k| found(
            t.get(k)
        )),
        row!("multi-level", multi.bytes(), multi, one[2], |t: &MultiDigest, k| found(t.get(k))),
    ];
    print(n, &rows, &measure(n, &rows));
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut sizes = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--vectors" {
            Vectors::limit(match arguments.next().as_deref() {
                Some("baseline") => Vectors::Baseline,
                Some("avx2") => Vectors::Avx2,
                Some("avx512") => Vectors::Avx512,
                other => return Err(format!("--vectors {other:?}").into()),
            });
        } else {
            sizes.push(argument.parse()?);
        }
    }
    if sizes.is_empty() {
        sizes = vec![1_000_000, 8_000_000];
    }
    let timer = rate(1, &mut 1, &batched(BLOCK, |_, _| ()));
    println!("{:?}; timer: {:.3} ns/key", Vectors::used(), 1e3 / timer);
    Ok(sizes.into_iter().try_for_each(compare)?)
}
