//! Lookups per second of every structure beside the bound of a bare gather loop.
//!
//! `cargo run --release -p weir-lookup --example rates -- [keys...]` (1M and 8M if none is given).
//!
//! The keys that are looked up are known ones at random; a generator makes them in blocks of 1,024,
//! so that no stream of keys competes for the memory. The generator's time is in every figure, the
//! bound's too. A bound reads 8 bytes at as many random places of as many bytes as the structure
//! does, where one product says, with the same pipeline. Five rounds visit everything in turn; the
//! medians are printed, and the medians of each round's ratio to the bound.

use std::hint::black_box;
use std::time::Instant;
use weir_lookup::{BATCH, DigestCuckoo, Fuse, MultiDigest, Othello, pipeline, prefetch};

const BITS: u32 = 12;
const ROUNDS: usize = 5;
const LOOKUPS: usize = 1 << 23;
const BLOCK: usize = 1024;

/// The key number `n` of the set.
fn key(n: u64) -> u64 {
    let x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn value(n: usize) -> u16 {
    n as u16 & 0xfff
}

/// Runs `work` on blocks of random known keys; returns millions of keys per second.
fn rate(keys: usize, mut work: impl FnMut(&[u64]) -> u64) -> f64 {
    let mut state = 0x1234_5678_9abc_def1u64;
    let mut block = [0u64; BLOCK];
    let mut sum = 0u64;
    let started = Instant::now();
    for _ in 0..LOOKUPS / BLOCK {
        for slot in &mut block {
            let mut z = state;
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let mixed = z ^ (z >> 31);
            *slot = key(((mixed >> 32) * keys as u64) >> 32);
        }
        sum = sum.wrapping_add(work(&block));
    }
    black_box(sum);
    LOOKUPS as f64 / started.elapsed().as_secs_f64() / 1e6
}

fn single(keys: usize, lookup: impl Fn(&u64) -> u32) -> f64 {
    rate(keys, |block| block.iter().map(|key| u64::from(lookup(key))).sum())
}

fn batched(keys: usize, burst: usize, lookup: impl Fn(&[u64], &mut [u32])) -> f64 {
    let mut out = [0u32; BLOCK];
    rate(keys, |block| {
        for (keys, out) in block.chunks(burst).zip(out.chunks_mut(burst)) {
            lookup(keys, out);
        }
        out.iter().map(|&value| u64::from(value)).sum()
    })
}

/// `READS` reads of 8 bytes at random places of `words`, from one product.
struct Gather<const READS: usize> {
    words: Vec<u64>,
}

impl<const READS: usize> Gather<READS> {
    fn new(bytes: usize) -> Self {
        Self { words: (0..bytes as u64 / 8).collect() }
    }

    #[inline(always)]
    fn places(&self, key: &u64) -> [usize; READS] {
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        std::array::from_fn(|i| {
            let bits = mixed.rotate_left(20 * i as u32) >> 32;
            ((bits * self.words.len() as u64) >> 32) as usize
        })
    }

    #[inline(always)]
    fn read(&self, places: [usize; READS]) -> u32 {
        places.iter().fold(0, |x, &at| x ^ self.words[at]) as u32
    }

    fn single(&self, keys: usize) -> f64 {
        single(keys, |key| self.read(self.places(key)))
    }

    fn batched(&self, keys: usize) -> f64
    where
        [usize; READS]: Default,
    {
        let locate = |key: &u64| self.places(key);
        let fetch = |places: [usize; READS]| {
            places.iter().for_each(|&at| prefetch(&self.words, at));
        };
        let read = |places| self.read(places);
        batched(keys, BLOCK, |keys, out| pipeline(keys, out, locate, fetch, read))
    }
}

fn median(rates: impl Iterator<Item = f64>) -> f64 {
    let mut rates: Vec<f64> = rates.collect();
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// One row: name, bytes, and what to measure: one at a time, batched in blocks of 1,024, batched in
/// bursts of 32, the bounds of the first two.
struct Row<'a> {
    name: &'static str,
    bytes: usize,
    measure: Vec<Box<dyn Fn() -> f64 + 'a>>,
}

macro_rules! row {
    ($name:literal, $bytes:expr, $table:expr, $bound:expr, $n:expr, $lookup:expr) => {
        Row {
            name: $name,
            bytes: $bytes,
            measure: vec![
                Box::new(|| single($n, |key| $lookup(&$table, key))),
                Box::new(|| batched($n, BLOCK, |keys, out| $table.lookup_batch(keys, out))),
                Box::new(|| batched($n, BATCH, |keys, out| $table.lookup_batch(keys, out))),
                Box::new(|| $bound.single($n)),
                Box::new(|| $bound.batched($n)),
            ],
        }
    };
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

    let two = Gather::<2>::new(othello.bytes().len());
    let three = Gather::<3>::new(fuse.bytes().len());
    let one = [cuckoo.bytes(), cuckoo6.bytes(), multi.bytes()].map(Gather::<1>::new);
    let found = |found: Option<u16>| found.map_or(u32::MAX, u32::from);
    let rows = [
        row!("othello", othello.bytes().len(), othello, two, n, |t: &weir_lookup::View, k| t
            .lookup(k)),
        row!("fuse", fuse.bytes().len(), fuse, three, n, |t: &Fuse, k| t.lookup(k)),
        row!("cuckoo (2,4)", cuckoo.bytes(), cuckoo, one[0], n, |t: &DigestCuckoo, k| found(
            t.lookup(k)
        )),
        row!("cuckoo (2,6)", cuckoo6.bytes(), cuckoo6, one[1], n, |t: &DigestCuckoo<6>, k| found(
            t.lookup(k)
        )),
        row!("multi-level", multi.bytes(), multi, one[2], n, |t: &MultiDigest, k| found(
            t.lookup(k)
        )),
    ];
    let mut rates = vec![vec![Vec::new(); 5]; rows.len()];
    for _ in 0..ROUNDS {
        for (row, rates) in rows.iter().zip(&mut rates) {
            for (measure, rates) in row.measure.iter().zip(rates) {
                rates.push(measure());
            }
        }
    }
    println!(
        "{:14}{:>9} {:>9}{:>9}{:>9} {:>9}{:>9} {:>9}{:>10}",
        "M lookups/s",
        "bits/key",
        "single",
        "batched",
        "by 32",
        "bound 1",
        "bound b",
        "single/b",
        "batched/b"
    );
    for (row, rates) in rows.iter().zip(&rates) {
        let m: Vec<f64> = rates.iter().map(|rates| median(rates.iter().copied())).collect();
        // The two were measured one after the other; other programs disturb both alike.
        let ratio = |a: usize, b: usize| median(rates[a].iter().zip(&rates[b]).map(|(a, b)| a / b));
        let bits = row.bytes as f64 * 8.0 / n as f64;
        println!(
            "{:14}{bits:9.2} {:9.1}{:9.1}{:9.1} {:9.1}{:9.1} {:9.2}{:10.2}",
            row.name,
            m[0],
            m[1],
            m[2],
            m[3],
            m[4],
            ratio(0, 3),
            ratio(1, 4)
        );
    }
    Ok(())
}

fn main() -> Result<(), weir_lookup::Error> {
    let mut sizes: Vec<usize> = std::env::args().skip(1).filter_map(|n| n.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = vec![1_000_000, 8_000_000];
    }
    sizes.into_iter().try_for_each(compare)
}
