//! Othello and fuse as codecs of Concury, side by side: bits per state, what an update costs, and
//! lookups in user space.
//!
//! `cargo run --release -p weir-steering --example codecs -- [states...]` for the lookups (1M and
//! 8M if none is given).
//!
//! An update is a build after one backend was added and 1 % of the states were replaced; its time
//! is that of `Concury::build` alone. Lookups are of states at random, one at a time and in bursts
//! of 32 and of 1,024; a generator makes the flows in blocks of 1,024, and its time is in every
//! figure. Rounds visit the codecs in turn; medians are printed, and for ratios the medians of each
//! round's ratio.

use std::hint::black_box;
use std::time::Instant;
use weir_steering::{
    BackendId, BuildError, Codec, Concury, ConcuryConfig, Forwarder, HEADER_BYTES, Member, Role,
    Steer,
};

const BITS: u32 = 12;
const BACKENDS: u16 = 64;
const ROUNDS: usize = 7;
const LOOKUPS: usize = 1 << 22;
const BLOCK: usize = 1024;
const CODECS: [Codec; 2] = [Codec::Othello, Codec::Fuse];

/// The flow number `n`.
fn flow(n: u64) -> u64 {
    let x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn pool(backends: u16) -> Vec<Member> {
    (0..backends)
        .map(|backend| Member {
            backend: BackendId::of(backend),
            name: format!("b{backend}"),
            weight: 1,
            role: Role::Serving,
        })
        .collect()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn table(codec: Codec, states: u64) -> Result<(Concury<u64>, Forwarder<u64>), BuildError> {
    let config = ConcuryConfig::unbounded(codec, BITS, 1);
    let flows: Vec<_> =
        (0..states).map(|n| (flow(n), BackendId::of((n % u64::from(BACKENDS)) as u16))).collect();
    Forwarder::build(config, &pool(BACKENDS), flows.into_iter())
}

/// Seconds of builds after a backend more and 1 % other states each.
fn update(codec: Codec, states: u64) -> Result<f64, BuildError> {
    let (mut concury, mut forwarder) = table(codec, states)?;
    let mut next = states;
    let mut times = Vec::new();
    for round in 0..5 {
        for _ in 0..states / 100 {
            concury.forget(&flow(next - states));
            let fresh = flow(next);
            concury.start(fresh, BackendId::of(forwarder.steer(&fresh)), 0)?;
            next += 1;
        }
        let started = Instant::now();
        let (image, _) = concury.build(round + 2, &pool(BACKENDS + 1 + round as u16), 0)?;
        times.push(started.elapsed().as_secs_f64());
        assert!(forwarder.publish(image).is_ok());
    }
    Ok(median(times.into_iter()))
}

/// Millions of random states per second through `work`, a block at a time.
fn rate(states: u64, mut work: impl FnMut(&[u64], &mut [u16])) -> f64 {
    let mut state = 0x1234_5678_9abc_def1u64;
    let (mut flows, mut out) = ([0; BLOCK], [0; BLOCK]);
    let started = Instant::now();
    for _ in 0..LOOKUPS / BLOCK {
        for slot in &mut flows {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = flow(state);
            *slot = flow(((mixed >> 32) * states) >> 32);
        }
        work(&flows, &mut out);
        black_box(&out);
    }
    LOOKUPS as f64 / started.elapsed().as_secs_f64() / 1e6
}

/// One at a time, in bursts of 32, in bursts of 1,024.
fn rates(forwarder: &mut Forwarder<u64>, states: u64) -> [f64; 3] {
    let single = rate(states, |flows, out| {
        flows.iter().zip(out).for_each(|(flow, out)| *out = forwarder.steer(flow));
    });
    let mut bursts = |burst| {
        rate(states, |flows, out| {
            for (flows, out) in flows.chunks(burst).zip(out.chunks_mut(burst)) {
                forwarder.steer_batch(flows, out);
            }
        })
    };
    [single, bursts(32), bursts(BLOCK)]
}

fn lookups(states: u64) -> Result<(), BuildError> {
    let mut tables = Vec::new();
    for codec in CODECS {
        let (concury, forwarder) = table(codec, states)?;
        let control = concury.control_bytes() as f64 / states as f64;
        tables.push((codec, control, forwarder));
    }
    let mut all = vec![Vec::new(); tables.len()];
    for _ in 0..ROUNDS {
        for ((_, _, forwarder), all) in tables.iter_mut().zip(&mut all) {
            all.push(rates(forwarder, states));
        }
    }
    for ((codec, control, forwarder), rates) in tables.iter().zip(&all) {
        let image = forwarder.image();
        let cells = image.bytes() - HEADER_BYTES - image.slots().len() * 2;
        let bits = cells as f64 * 8.0 / states as f64;
        let middle = |i: usize| median(rates.iter().map(|rates| rates[i]));
        println!(
            "{states:9} {:8} {bits:9.2} {control:14.0} {:8.1} {:8.1} {:8.1}",
            format!("{codec:?}"),
            middle(0),
            middle(1),
            middle(2)
        );
    }
    let ratio =
        |i: usize| median(all[1].iter().zip(&all[0]).map(|(fuse, othello)| fuse[i] / othello[i]));
    println!("{:42} {:8.2} {:8.2} {:8.2}", "fuse / othello", ratio(0), ratio(1), ratio(2));
    Ok(())
}

fn main() -> Result<(), BuildError> {
    println!("an update: a backend joins, 1 % of the states are new");
    println!("{:>9} {:>12} {:>12} {:>15}", "states", "othello ms", "fuse ms", "fuse ns/state");
    for states in [8_192, 131_072, 1_000_000] {
        let [othello, fuse] = [update(Codec::Othello, states)?, update(Codec::Fuse, states)?];
        let each = fuse * 1e9 / states as f64;
        println!("{states:9} {:12.2} {:12.2} {each:15.0}", othello * 1e3, fuse * 1e3);
    }
    println!("\nM lookups/s of states at random, l = {BITS}, {BACKENDS} backends");
    println!(
        "{:>9} {:8} {:>9} {:>14} {:>8} {:>8} {:>8}",
        "states", "codec", "bits each", "control bytes", "single", "by 32", "by 1,024"
    );
    let mut sizes: Vec<u64> = std::env::args().skip(1).filter_map(|n| n.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = vec![1_000_000, 8_000_000];
    }
    sizes.into_iter().try_for_each(lookups)
}
