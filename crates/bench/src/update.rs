//! `weir bench update`: how long concury takes from a pool change to published tables.
//!
//! From the moment that the states are collected: next DIP array, new Dcodes, re-assigned cells,
//! the table written into the kernel's memory, and the store that lets packets see it. The grace
//! period after that, in which the last packets leave the old table, is reported apart.

use crate::Result;
use crate::Spread;
use serde::Serialize;
use std::fmt;
use std::time::Instant;
use weir_dataplane::{KernelPlane, Limits, grace};
use weir_plane::VipKey;
use weir_steering::{BackendId, Codec, Concury, ConcuryConfig, Member, Role, ServiceId, StateKey};
use weir_wire::{FlowKey, Protocol, map_address};

const BACKENDS: u16 = 64;

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Request {
    /// Numbers of states of the service.
    pub states: Vec<u32>,
    /// Pool changes of each kind for each.
    pub rounds: u32,
}

/// What the bench prints as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Backends of the pool.
    pub backends: u16,
    /// Pool changes of each kind.
    pub rounds: u32,
    /// One row for each number of states.
    pub rows: Vec<Row>,
}

/// One kind of change at one number of states.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// States of the service.
    pub states: u32,
    /// The kind of change.
    pub change: &'static str,
    /// States collected to tables that packets see, milliseconds.
    pub published_ms: Spread,
    /// Of it: building the table.
    pub build_ms: Spread,
    /// Of it: writing and showing it.
    pub show_ms: Spread,
    /// Afterwards: until no packet sees the old table.
    pub grace_ms: Spread,
    /// States that got another Dcode, median.
    pub recoded: f64,
}

/// Measures. `progress` gets the rows of each number of states when they are ready.
///
/// # Errors
///
/// The kernel refuses the program, or a table cannot be built or published.
pub fn run(request: &Request, mut progress: impl FnMut(&[Row])) -> Result<Report> {
    let rounds = request.rounds;
    let mut rows = Vec::new();
    for &count in &request.states {
        let found = measure(count, rounds.max(1))?;
        progress(&found);
        rows.extend(found);
    }
    Ok(Report { backends: BACKENDS, rounds, rows })
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>8} states  {:<9} published after {:>7.2} ms ({:.2}..{:.2}): build {:.2}, \
             show {:.2}; then grace {:.1} ms; {:.0} states recoded",
            self.states,
            self.change,
            self.published_ms.median,
            self.published_ms.low,
            self.published_ms.high,
            self.build_ms.median,
            self.show_ms.median,
            self.grace_ms.median,
            self.recoded,
        )
    }
}

/// The kinds of change, as they come round: a pool and its undoing.
const CHANGES: [&str; 4] = ["drain", "undrain", "reweight", "rebuild"];

fn measure(states: u32, rounds: u32) -> Result<Vec<Row>> {
    let table = u64::from(states) * 4 + (1 << 20);
    let limits = Limits { table_bytes: table * 3, ..Limits::default() };
    let (mut plane, _) = KernelPlane::open(None, &limits)?;
    let vip = std::net::Ipv4Addr::new(198, 51, 100, 1).into();
    let key = VipKey { address: map_address(vip), protocol: Protocol::Tcp, port: Some(80) };
    plane.set_service(key, ServiceId(0))?;
    let mut members = pool();
    let mut concury = service(states, &members)?;
    let (image, _) = concury.build(0, &members, 1_000)?;
    plane.publish(ServiceId(0), &image)?;
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
            plane.show(ServiceId(0), &image, image.header().flags())?;
            let shown = started.elapsed();
            grace()?;
            let ended = started.elapsed();
            plane.retire(ServiceId(0));
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
            backend: BackendId::of(backend),
            name: format!("b{backend}"),
            weight: 1,
            role: Role::Serving,
        })
        .collect()
}

fn service(states: u32, members: &[Member]) -> Result<Concury> {
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
