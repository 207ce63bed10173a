//! `weir bench xdp`: what the XDP program costs above a reflector.

use super::print_json;
use super::stats::Spread;
use serde::Serialize;
use std::thread;
use weir_dataplane::bench::{Sample, Storage, Subject, XdpBench};

const SUBJECTS: [Subject; 3] = [Subject::Reflector, Subject::Concury, Subject::Tracked];

/// What the bench prints as JSON.
#[derive(Serialize)]
struct Report {
    /// Nanoseconds per packet of the reflector, generator and veth included.
    floor_ns: f64,
    packets: u32,
    rounds: u32,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    method: &'static str,
    flows: u32,
    /// Median of the differences to the reflector in the same round.
    above_floor_ns: f64,
    above_floor_spread: Spread,
    /// The reflector's time at this number of flows.
    floor_ns: f64,
    /// Of the whole path: generator, veth and balancer, on one core.
    mpps: f64,
    /// Median of the rounds' ratios.
    ratio_to_tracked: f64,
    ratio_spread: Spread,
    /// Share of the packets that came back; under 1, something was dropped.
    returned: f64,
    /// Bits per connection of the table's cells; `None` for tracked.
    bits_per_connection: Option<f64>,
    /// Bytes of the table that do not depend on the number of connections (DIP array, header).
    fixed_bytes: Option<usize>,
}

pub fn run(flows: &[u32], packets: u32, rounds: u32, json: bool) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for &count in flows {
        // Each number of flows gets a thread, because a bench keeps its thread's namespace.
        let measured = thread::spawn(move || measure(count, packets, rounds.max(1)));
        let found = measured.join().map_err(|_| anyhow::anyhow!("the bench panicked"))??;
        if !json {
            found.iter().for_each(print_row);
        }
        rows.extend(found);
    }
    if json {
        let floor_ns = Spread::of(rows.iter().map(|row| row.floor_ns)).median;
        print_json(&Report { floor_ns, packets, rounds, rows })?;
    }
    Ok(())
}

fn print_row(row: &Row) {
    let spread = row.above_floor_spread;
    let bits =
        row.bits_per_connection.map_or(String::new(), |b| format!(", {b:.2} bits/connection"));
    println!(
        "{:>8} flows  {:<8} {:>6.1} ns above the reflector ({:.1}..{:.1}; floor {:.0}), \
         {:.2} Mpps, {:.2} of tracked ({:.2}..{:.2}){bits}",
        row.flows,
        row.method,
        row.above_floor_ns,
        spread.low,
        spread.high,
        row.floor_ns,
        row.mpps,
        row.ratio_to_tracked,
        row.ratio_spread.low,
        row.ratio_spread.high,
    );
}

fn measure(flows: u32, packets: u32, rounds: u32) -> anyhow::Result<Vec<Row>> {
    let mut storage = Storage::uninit();
    let mut bench = XdpBench::new(&mut storage, flows)?;
    // Warms caches and the LRU map.
    for subject in SUBJECTS {
        bench.run(subject, flows, packets.min(500_000), 0)?;
    }
    let mut samples: Vec<[Sample; 3]> = Vec::new();
    for round in 0..rounds {
        let mut row = [Sample { nanoseconds: 0.0, returned: 0.0 }; 3];
        // The order turns, so that no subject always follows the same other.
        for turn in 0..SUBJECTS.len() {
            let which = (turn + round as usize) % SUBJECTS.len();
            row[which] = bench.run(SUBJECTS[which], flows, packets, u64::from(round) + 1)?;
        }
        samples.push(row);
    }
    let above = |which: usize| -> Vec<f64> {
        samples.iter().map(|row| row[which].nanoseconds - row[0].nanoseconds).collect()
    };
    let floor_ns = Spread::of(samples.iter().map(|row| row[0].nanoseconds)).median;
    let tracked = above(2);
    let rows = (1..SUBJECTS.len()).map(|which| {
        let mine = above(which);
        let above_floor_spread = Spread::of(mine.iter().copied());
        let ratio_spread = Spread::of(mine.iter().zip(&tracked).map(|(a, b)| a / b));
        let whole = Spread::of(samples.iter().map(|row| row[which].nanoseconds)).median;
        let concury = SUBJECTS[which] == Subject::Concury;
        let cells = bench.memory.concury_bytes - bench.memory.concury_fixed_bytes;
        Row {
            method: SUBJECTS[which].name(),
            flows,
            above_floor_ns: above_floor_spread.median,
            above_floor_spread,
            floor_ns,
            mpps: 1e3 / whole,
            ratio_to_tracked: ratio_spread.median,
            ratio_spread,
            returned: Spread::of(samples.iter().map(|row| row[which].returned)).median,
            bits_per_connection: concury.then(|| cells as f64 * 8.0 / f64::from(flows)),
            fixed_bytes: concury.then_some(bench.memory.concury_fixed_bytes),
        }
    });
    Ok(rows.collect())
}
