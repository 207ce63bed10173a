//! `weir bench update`: how long concury takes from a pool change to published tables.
//!
//! From the moment that the states are collected: next DIP array, new Dcodes, re-assigned cells,
//! the table written into the kernel's memory, and the store that lets packets see it. The grace
//! period after that, in which the last packets leave the old table, is reported apart.

use super::print_json;
use super::stats::Spread;
use serde::Serialize;
use std::time::Instant;
use weir_dataplane::{KernelPlane, Limits, grace};
use weir_steering::{Codec, Concury, ConcuryConfig, Member, Role, StateKey, VipKey};
use weir_wire::{FlowKey, Protocol, map_address};

const BACKENDS: u16 = 64;

#[derive(Serialize)]
struct Report {
    backends: u16,
    rounds: u32,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    states: u32,
    change: &'static str,
    /// States collected to tables that packets see, milliseconds.
    published_ms: Spread,
    /// Of it: building the table.
    build_ms: Spread,
    /// Of it: writing and showing it.
    show_ms: Spread,
    /// Afterwards: until no packet sees the old table.
    grace_ms: Spread,
    /// States that got another Dcode, median.
    recoded: f64,
}

pub fn run(states: &[u32], rounds: u32, json: bool) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for &count in states {
        for row in measure(count, rounds.max(1))? {
            if !json {
                println!(
                    "{:>8} states  {:<9} published after {:>7.2} ms ({:.2}..{:.2}): build {:.2}, \
                     show {:.2}; then grace {:.1} ms; {:.0} states recoded",
                    row.states,
                    row.change,
                    row.published_ms.median,
                    row.published_ms.low,
                    row.published_ms.high,
                    row.build_ms.median,
                    row.show_ms.median,
                    row.grace_ms.median,
                    row.recoded,
                );
            }
            rows.push(row);
        }
    }
    if json {
        print_json(&Report { backends: BACKENDS, rounds, rows })?;
    }
    Ok(())
}

/// The kinds of change, as they come round: a pool and its undoing.
const CHANGES: [&str; 4] = ["drain", "undrain", "reweight", "rebuild"];

fn measure(states: u32, rounds: u32) -> anyhow::Result<Vec<Row>> {
    let table = u64::from(states) * 4 + (1 << 20);
    let limits = Limits { table_bytes: table * 3, ..Limits::default() };
    let (mut plane, _) = KernelPlane::open(None, &limits)?;
    let vip = "198.51.100.1".parse()?;
    let key = VipKey { address: map_address(vip), protocol: Protocol::Tcp, port: Some(80) };
    plane.set_service(&key, 0)?;
    let mut members = pool();
    let mut concury = service(states, &members)?;
    let (image, _) = concury.build(0, &members, 1_000)?;
    plane.publish(0, &image)?;
    let mut samples: [Vec<[f64; 5]>; CHANGES.len()] = Default::default();
    let mut generation = 0;
    for round in 0..rounds {
        for (which, change) in CHANGES.iter().enumerate() {
            let member = &mut members[round as usize % usize::from(BACKENDS)];
            match *change {
                "drain" => member.role = Role::Draining,
                "undrain" => member.role = Role::Serving,
                "reweight" => member.weight = 3 - member.weight,
                // A control plane that has just restarted has no former table to begin from.
                _ => concury.forget_published(),
            }
            generation += 1;
            let started = Instant::now();
            let (image, report) = concury.build(generation, &members, 1_000)?;
            let built = started.elapsed();
            plane.show(0, &image, image.header().flags)?;
            let shown = started.elapsed();
            grace()?;
            let ended = started.elapsed();
            plane.retire(0);
            let ms = |d: std::time::Duration| d.as_secs_f64() * 1e3;
            samples[which].push([
                ms(shown),
                ms(built),
                ms(shown - built),
                ms(ended - shown),
                report.recoded as f64,
            ]);
        }
    }
    let rows = CHANGES.into_iter().zip(&samples).map(|(change, samples)| {
        let column = |at: usize| Spread::of(samples.iter().map(|row| row[at]));
        Row {
            states,
            change,
            published_ms: column(0),
            build_ms: column(1),
            show_ms: column(2),
            grace_ms: column(3),
            recoded: column(4).median,
        }
    });
    Ok(rows.collect())
}

fn pool() -> Vec<Member> {
    (0..BACKENDS)
        .map(|backend| Member {
            backend,
            name: format!("b{backend}"),
            weight: 1,
            role: Role::Serving,
        })
        .collect()
}

fn service(states: u32, members: &[Member]) -> anyhow::Result<Concury> {
    let mut concury = Concury::new(ConcuryConfig {
        codec: Codec::Othello,
        bits: 12,
        client_affinity: false,
        udp: false,
        mark: true,
        capacity: states as usize,
        max_states: usize::MAX,
        idle_seconds: u32::MAX,
        seed: 1,
    });
    for n in 0..states {
        let source = std::net::Ipv4Addr::from(0x0a00_0000 + n);
        let flow = FlowKey::new(
            (source, 4096).into(),
            (std::net::Ipv4Addr::LOCALHOST, 80).into(),
            Protocol::Tcp,
        );
        let backend = members[n as usize % members.len()].backend;
        concury.start(StateKey::of_flow(&flow), backend, 0)?;
    }
    Ok(concury)
}
