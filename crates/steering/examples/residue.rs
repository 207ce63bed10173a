//! What residue costs and how fast it is, beside the digest tables that hold every connection.
//!
//! `cargo run --release -p weir-steering --example residue`
//!
//! 468 backends, 65,536 rows, and as exceptions the share of the live connections that the
//! published workload leaves behind at 10 updates a minute: 2.35 % (`residue::Leftovers`). The
//! keys that are looked up are uniform over all live connections and made beforehand: a stream of
//! 32 MB, handed over in bursts of 1,024. Rounds visit everything in turn; medians of the rates
//! and of each round's ratios are printed.

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;
use weir_hash::HashKey;
use weir_lookup::{DigestCuckoo, MultiDigest};
use weir_steering::residue::{Leftovers, Residue, ResidueConfig, Table};
use weir_steering::{BackendId, Member, Role, Steer};

const SIZES: [usize; 7] = [1_000, 16_000, 100_000, 1_000_000, 4_000_000, 8_000_000, 16_000_000];
const RIVALS: [usize; 2] = [1_000_000, 8_000_000];
const BACKENDS: u16 = 468;
const ROUNDS: usize = 5;
const LOOKUPS: usize = 1 << 22;
/// Passes of one measurement: the kernel counts processor time in ticks of some milliseconds.
const PASSES: usize = 24;
const BLOCK: usize = 1024;

/// The connection number `n`.
fn key(n: u64) -> u64 {
    let x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Random known keys.
fn stream(keys: usize) -> Vec<u64> {
    let mut state = 0x1234_5678_9abc_def1u64;
    let mut next = || {
        let mut z = state;
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        key((((z ^ (z >> 31)) >> 32) * keys as u64) >> 32)
    };
    (0..LOOKUPS).map(|_| next()).collect()
}

/// Seconds that this thread has had a processor (other programs do not count; Linux only).
fn processor_time() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(text.split(' ').next()?.parse::<f64>().ok()? / 1e9)
}

/// Runs `work` on blocks of random known keys; returns millions of keys per second.
fn rate(keys: usize, mut work: impl FnMut(&[u64]) -> u64) -> f64 {
    let stream = stream(keys);
    let mut run = || stream.chunks(BLOCK).fold(0u64, |sum, block| sum.wrapping_add(work(block)));
    // Once to bring back what the measurements before have pushed out of the caches.
    black_box(run());
    let (begin, started) = (processor_time(), Instant::now());
    (0..PASSES).for_each(|_| {
        black_box(run());
    });
    let took = match (begin, processor_time()) {
        (Some(begin), Some(end)) if end > begin => end - begin,
        _ => started.elapsed().as_secs_f64(),
    };
    (PASSES * LOOKUPS) as f64 / took / 1e6
}

fn single(keys: usize, table: &mut Table<u64>) -> f64 {
    rate(keys, |block| block.iter().map(|key| u64::from(table.steer(key))).sum())
}

fn batched(keys: usize, table: &mut Table<u64>) -> f64 {
    let mut out = [0u16; BLOCK];
    rate(keys, |block| {
        table.steer_batch(block, &mut out);
        out.iter().map(|&backend| u64::from(backend)).sum()
    })
}

fn rival(keys: usize, lookup: &dyn Fn(&[u64], &mut [u32])) -> f64 {
    let mut out = [0u32; BLOCK];
    rate(keys, |block| {
        lookup(block, &mut out);
        out.iter().map(|&value| u64::from(value)).sum()
    })
}

fn median(rates: impl Iterator<Item = f64>) -> f64 {
    let mut rates: Vec<f64> = rates.collect();
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Median of what one measurement is of another, round by round.
fn ratio(of: &[f64], to: &[f64]) -> f64 {
    median(of.iter().zip(to).map(|(of, to)| of / to))
}

fn table(rows: &Arc<[u16]>, states: usize) -> Result<Table<u64>, weir_lookup::Error> {
    let hash = HashKey::from_seed(1);
    let empty = Table::new(hash, rows.clone(), &[], 1)?;
    let left = Leftovers::new(states, 1);
    let entry = |n: u64| (key(n), (key(n) % u64::from(BACKENDS)) as u16);
    let exceptions = (0..states as u64).filter(|&n| left.has(n, empty.row(&key(n))));
    let entries: Vec<(u64, u16)> = exceptions.map(entry).collect();
    Table::new(hash, rows.clone(), &entries, 2)
}

fn cuckoo<const SLOTS: usize>(keys: usize) -> Result<DigestCuckoo<SLOTS>, weir_lookup::Error> {
    let mut table = DigestCuckoo::with_digest_bits(keys, 64, 1);
    for n in 0..keys as u64 {
        table.insert(&key(n), n as u16 % BACKENDS)?;
    }
    Ok(table)
}

type Lookup = Box<dyn Fn(&[u64], &mut [u32])>;

fn rivals(keys: usize) -> Result<[(&'static str, Lookup); 3], weir_lookup::Error> {
    let (four, six) = (cuckoo::<4>(keys)?, cuckoo::<6>(keys)?);
    let mut multi = MultiDigest::new(keys, 1);
    for n in 0..keys as u64 {
        multi.insert(&key(n), n as u16 % BACKENDS)?;
    }
    Ok([
        ("cuckoo (2,4)", Box::new(move |keys, out| four.get_batch(keys, out))),
        ("cuckoo (2,6)", Box::new(move |keys, out| six.get_batch(keys, out))),
        ("multi-level", Box::new(move |keys, out| multi.get_batch(keys, out))),
    ])
}

fn main() -> Result<(), Box<dyn Error>> {
    let member = |backend: BackendId| Member {
        backend,
        name: format!("backend-{backend}"),
        weight: 1,
        role: Role::Serving,
    };
    let members: Vec<Member> = (0..BACKENDS).map(BackendId::of).map(member).collect();
    let residue = Residue::<u64>::new(ResidueConfig { rows: 1 << 16, seed: 1 }, &members)?;
    let rows: Arc<[u16]> = residue.published().table.rows().into();
    let mut tables = Vec::new();
    for states in SIZES {
        tables.push(table(&rows, states)?);
    }
    let mut others = Vec::new();
    for keys in RIVALS {
        for (name, lookup) in rivals(keys)? {
            others.push((keys, name, lookup));
        }
    }
    let mut singles = vec![Vec::new(); SIZES.len()];
    let mut batches = vec![Vec::new(); SIZES.len()];
    let mut rates = vec![Vec::new(); others.len()];
    for _ in 0..ROUNDS {
        for (at, (&states, table)) in SIZES.iter().zip(&mut tables).enumerate() {
            singles[at].push(single(states, table));
            batches[at].push(batched(states, table));
        }
        for ((keys, _, lookup), rates) in others.iter().zip(&mut rates) {
            rates.push(rival(*keys, lookup));
        }
    }
    println!("rows: {} bytes, once for a service", rows.len() * 2);
    println!("one read: decided by the row; no look: without a look at the exceptions");
    println!("M lookups/s; `slower than` says how many times slower than at 1,000 connections");
    println!("connections exceptions bits/conn one read no look |  single batched slower than");
    for (at, (&states, table)) in SIZES.iter().zip(&tables).enumerate() {
        let sample = stream(states);
        let share = |count: usize| count as f64 * 100.0 / sample.len() as f64;
        println!(
            "{states:11} {:10} {:9.2} {:7.2}% {:6.2}% | {:7.1} {:7.1} {:7.2} {:.2}",
            table.exceptions(),
            table.exception_bytes() as f64 * 8.0 / states as f64,
            share(sample.iter().filter(|key| table.is_clean(key)).count()),
            share(sample.iter().filter(|key| table.is_unflagged(key)).count()),
            median(singles[at].iter().copied()),
            median(batches[at].iter().copied()),
            ratio(&singles[0], &singles[at]),
            ratio(&batches[0], &batches[at]),
        );
    }
    println!("\nbatched, every connection in the table; residue is so many times faster:");
    for ((keys, name, _), rates) in others.iter().zip(&rates) {
        let own = SIZES.iter().position(|size| size == keys).unwrap_or(0);
        let rate = median(rates.iter().copied());
        println!("{keys:11} {name:14} {rate:7.1} {:6.2}", ratio(&batches[own], rates));
    }
    Ok(())
}
