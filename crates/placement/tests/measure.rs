//! The figures of docs/placement.md:
//! `cargo test --release -p weir-placement --test measure -- --nocapture`.
//!
//! The seed is fixed so that the page can be checked. The times are in examples/times.rs.

mod common;

use common::{Backend, Rng, SIZE, filled, maglev, pool};
use weir_placement::{Anchor, AnchorTables, Hrw, HrwTable, Incremental};
use weir_placement::{NONE, Placement, Ring};

const COPIES: u32 = 160;

fn answers(placement: &dyn Placement, flows: &[u64]) -> Vec<u16> {
    let mut out = vec![NONE; flows.len()];
    placement.lookup_batch(flows, &mut out);
    out
}

/// Part of the flows that moved; part that moved although the changed backend was neither
/// where they came from nor where they went.
fn moved(before: &[u16], after: &[u16], changed: u16) -> (f64, f64) {
    let pairs = || before.iter().zip(after).filter(|(a, b)| a != b);
    let needless = pairs().filter(|&(&a, &b)| a != changed && b != changed).count();
    let share = |count: usize| 100.0 * count as f64 / before.len() as f64;
    (share(pairs().count()), share(needless))
}

/// A row: the busiest backend, and what a removal and an addition move.
fn disruption_row(name: &str, n: u16, base: &[u16], removed: &[u16], flows: usize) -> f64 {
    let mut counts = vec![0usize; usize::from(n)];
    base.iter().for_each(|&backend| counts[usize::from(backend)] += 1);
    let worst = *counts.iter().max().unwrap() as f64 * f64::from(n) / flows as f64;
    let (gone, needless) = moved(base, removed, n / 2);
    // An addition is the removal backwards: the same pool, with and without the backend.
    println!("| {name:<13} | {worst:>6.3} | {gone:>6.3} % | {needless:>6.3} % |");
    needless
}

#[test]
fn balance_and_disruption() {
    let n = 100;
    let mut rng = Rng(1);
    let backends = pool(&mut rng, n, &[1]);
    let flows = rng.hashes(1_000_000);
    let without: Vec<Backend> =
        backends.iter().filter(|backend| backend.number != n / 2).cloned().collect();
    println!("| method, n = {n} | max/avg | one removed: moved | needless |");

    let (base, after) = (maglev(&backends), maglev(&without));
    let row =
        disruption_row("maglev", n, &answers(&base, &flows), &answers(&after, &flows), flows.len());
    assert!(row > 0.0 && row < 1.5);

    fn incremental<P: Incremental + Clone>(
        name: &str,
        empty: P,
        backends: &[Backend],
        flows: &[u64],
    ) {
        let n = backends.len() as u16;
        let base = filled(empty, backends);
        let mut less = base.clone();
        less.remove(n / 2).unwrap();
        let (before, after) = (answers(&base, flows), answers(&less, flows));
        assert_eq!(disruption_row(name, n, &before, &after, flows.len()), 0.0);
        // And back: the addition moves flows to the new one only.
        less.add(backends[usize::from(n / 2)].candidate()).unwrap();
        assert_eq!(moved(&after, &answers(&less, flows), n / 2).1, 0.0);
    }
    incremental("ring", Ring::new(COPIES).unwrap(), &backends, &flows);
    incremental("table", HrwTable::new(SIZE).unwrap(), &backends, &flows);
    incremental("table 2^20", HrwTable::new(1 << 20).unwrap(), &backends, &flows);
    incremental("anchor", Anchor::new(200).unwrap(), &backends, &flows);
    let few = &flows[..200_000];
    incremental("hrw (fewer)", Hrw::new(), &backends, few);
}

/// The lookup of Anchor as another plane would do it, from its tables; with the reads it takes.
fn walk(tables: &AnchorTables<'_>, hash: u64, reads: &mut u64) -> u16 {
    let mix = |mut x: u64| {
        for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
            x = (x ^ x >> 33).wrapping_mul(factor);
        }
        x ^ x >> 33
    };
    let scale = |draw: u64, n: u32| ((draw * u64::from(n)) >> 32) as usize;
    let mut bucket = scale(hash & 0xffff_ffff, tables.anchor.len() as u32);
    loop {
        *reads += 1;
        let size = tables.anchor[bucket];
        if size < tables.working {
            *reads += 1;
            return tables.owner[bucket];
        }
        let draw = mix(hash ^ (bucket as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        bucket = scale(draw >> 32, size);
        while tables.anchor[bucket] >= size {
            *reads += 2;
            bucket = tables.successor[bucket] as usize;
        }
    }
}

#[test]
fn anchor_reads_by_room() {
    let mut rng = Rng(1);
    let n = 500;
    println!("| anchor: capacity / working | reads per lookup |");
    for (capacity, bound) in [(500, 2.01), (550, 2.6), (1000, 5.0), (2500, 8.0), (5000, 9.5)] {
        // All that fit have been there, and left in a random order: the worst history.
        let backends = pool(&mut rng, capacity, &[1]);
        let mut anchor = filled(Anchor::new(u32::from(capacity)).unwrap(), &backends);
        let mut order: Vec<u16> = (0..capacity).collect();
        rng.shuffle(&mut order);
        order[n..].iter().for_each(|&number| anchor.remove(number).unwrap());
        let (mut reads, flows) = (0, rng.hashes(100_000));
        for &hash in &flows {
            assert_eq!(anchor.lookup(hash), Some(walk(&anchor.tables(), hash, &mut reads)));
        }
        let reads = reads as f64 / flows.len() as f64;
        println!("| {:.1} | {reads:.2} |", f64::from(capacity) / n as f64);
        assert!(reads < bound, "{capacity}: {reads}");
    }
}
