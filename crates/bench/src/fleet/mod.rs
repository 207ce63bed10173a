//! `weir bench fleet`: what a fleet's change of a pool takes, and what agents cost.
//!
//! - `simulate`: a change in step over any number of balancers and agents, in simulated time.
//! - `report`: what telling a connection costs both sides, in one thread.
//! - `replay`: agents that are played speak to a running balancer, at a given rate, and list what there is to one
//!   that begins.
//! - `sessions`: many agents of one balancer.
//! - `real`: a real agent beside real connections.

mod agents;
mod real;
mod replay;
mod report;
mod sessions;
mod simulate;

pub use real::Real;
pub use replay::{Join, Replay};
pub use report::Reporting;
pub use sessions::Sessions;
pub use simulate::Change;

use crate::error::demand;
use crate::{Result, Spread};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use weir_steering::{BackendId, Build, Member, MethodId, Role, ServiceConfig, Settings, StateKey};

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Request {
    /// The program, for `weir run`.
    pub weir: PathBuf,
    /// Methods of the service whose pool changes in the simulation.
    pub methods: Vec<MethodId>,
    /// Numbers of balancers of simulated fleets, a row each for each method.
    pub balancers: Vec<u32>,
    /// Agents of a simulated fleet.
    pub agents: u32,
    /// Backends of the pool that changes.
    pub backends: u16,
    /// Connections that every balancer knows in the simulation, and in the account of what a report costs.
    pub states: u32,
    /// From anybody to anybody else in the simulation.
    pub link: Duration,
    /// Connections that open in a second in the replay; as many end.
    pub rate: u32,
    /// Seconds of that.
    pub seconds: u32,
    /// Connections that live when a balancer begins.
    pub connections: u32,
    /// Agents that speak to one balancer at once.
    pub sessions: u32,
    /// Rounds of what is simulated, and of what a report costs.
    pub rounds: u32,
    /// Longest wait for anything that has to come.
    pub patience: Duration,
}

/// What the bench prints as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// CPUs that all of it has.
    pub cpus: usize,
    /// Rounds.
    pub rounds: u32,
    /// What was measured.
    pub rows: Vec<Row>,
}

/// Something that was measured.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum Row {
    /// A change of a pool in step.
    Change(Change),
    /// What telling connections costs.
    Report(Reporting),
    /// Connections told at a rate.
    Replay(Replay),
    /// A balancer that begins while connections live.
    Join(Join),
    /// Many agents of one balancer.
    Sessions(Sessions),
    /// A real agent beside real connections.
    Agent(Real),
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Change(row) => row.fmt(f),
            Self::Report(row) => row.fmt(f),
            Self::Replay(row) => row.fmt(f),
            Self::Join(row) => row.fmt(f),
            Self::Sessions(row) => row.fmt(f),
            Self::Agent(row) => row.fmt(f),
        }
    }
}

impl Request {
    fn check(&self) -> Result<()> {
        let Self { agents, backends, rate, seconds, connections, sessions, rounds, .. } = *self;
        for method in &self.methods {
            let in_step = [MethodId::Residue, MethodId::Concury].contains(method);
            demand!(in_step, "pools of {method} do not change in step: residue, concury");
        }
        for &balancers in &self.balancers {
            demand!((1..=1000).contains(&balancers), "{balancers} balancers: 1 to 1000");
        }
        demand!((1..=100_000).contains(&agents), "{agents} agents: 1 to 100000");
        demand!((2..=1024).contains(&backends), "{backends} backends: 2 to 1024");
        demand!((1..=1_000_000).contains(&rate), "{rate} connections a second: 1 to 1M");
        demand!(seconds > 0 && rounds > 0, "no seconds, or no rounds");
        demand!((1..=4096).contains(&sessions), "{sessions} sessions: 1 to 4096");
        demand!((1..=3_000_000).contains(&connections), "{connections} connections: 1 to 3M");
        Ok(())
    }
}

/// Measures. `progress` gets each row when it is ready.
///
/// # Errors
/// Numbers that there cannot be; a balancer that does not start, or loses something that it was told.
pub fn run(request: &Request, mut progress: impl FnMut(&Row)) -> Result<Report> {
    request.check()?;
    let mut rows = Vec::new();
    let mut ready = |row: Row| {
        progress(&row);
        rows.push(row);
    };
    for &method in &request.methods {
        for &balancers in &request.balancers {
            ready(Row::Change(simulate::run(request, method, balancers)?));
        }
    }
    ready(Row::Report(report::run(request)?));
    ready(Row::Replay(replay::replay(request)?));
    ready(Row::Join(replay::join(request)?));
    ready(Row::Sessions(sessions::run(request)?));
    ready(Row::Agent(real::run(request)?));
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Ok(Report { cpus, rounds: request.rounds, rows })
}

/// A pool of so many backends of the same weight, but for the first one.
fn pool(backends: u16, first: u32) -> Vec<Member> {
    let member = |backend: u16| Member {
        backend: BackendId::of(backend),
        name: name_of(backend),
        weight: if backend == 0 { first } else { 1 },
        role: Role::Serving,
    };
    (0..backends).map(member).collect()
}

fn name_of(backend: u16) -> String {
    format!("b{backend}")
}

/// What a balancer knows of a service of this method with this pool, with so many connections where its table leads
/// them.
fn known(method: MethodId, states: u32, members: &[Member]) -> Result<Box<dyn Build<StateKey>>> {
    let config = ServiceConfig {
        settings: Settings::of(method),
        client_affinity: false,
        udp: false,
        seed: 1,
        nonce: 1,
        capacity: states as usize,
        max_states: usize::MAX,
        idle_seconds: u32::MAX,
    };
    let builder = method.info().builder;
    let builder = builder.ok_or_else(|| crate::Error::Fault(format!("{method} has no tables")))?;
    let mut builder = builder(&config, None);
    builder.build(1, members, 0)?;
    for n in 0..states {
        let key = agents::key_of(n);
        let here = members.iter().find(|member| builder.leads_to(&key, member.backend));
        let backend = here.map_or(members[0].backend, |member| member.backend);
        builder.adopt(key, report::open(backend))?;
    }
    Ok(builder)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn spread(f: &mut fmt::Formatter<'_>, what: &str, of: &Spread, unit: &str) -> fmt::Result {
    let Spread { low, median, high } = of;
    write!(f, "{what} {median:.1} {unit} ({low:.1}..{high:.1})")
}
