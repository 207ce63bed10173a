//! What is played: flows, servers, balancers, and what happens to them.

use crate::distribution::StepCdf;
use crate::pool::Departure;
use serde::{Deserialize, Serialize};

/// What becomes of a flow whose server fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Orphans {
    /// It ends: the next packet meets a reset.
    #[default]
    End,
    /// It goes on with the server that its next packet reaches, as the research code has it.
    Adopt,
}

/// How packets are played.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// Only packets that may change something are events; the others are counted by one draw.
    #[default]
    Lazy,
    /// Every packet is an event, at a time that is drawn when its flow starts: the oracle of the
    /// others, for small scenarios.
    EveryPacket,
    /// The times of all packets are drawn when their flow starts, as in the engine above, and the
    /// packets are played as in the lazy one: what both must agree on to the last packet.
    Drawn,
}

/// Which load servers report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadKind {
    /// Live connections (requests, in the queueing model).
    #[default]
    Connections,
    /// The share of the time since the last report that the server was busy, in thousandths.
    /// Only the queueing model has it.
    Busy,
}

/// How servers report their loads to the balancers.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Feedback {
    /// Time between two reports, seconds.
    pub interval: f64,
    /// From the measurement to its arrival at the balancers, seconds.
    #[serde(default)]
    pub delay: f64,
    /// What is reported.
    #[serde(default)]
    pub load: LoadKind,
}

/// What happens at a time that is written down.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// Servers join.
    Add(Vec<u16>),
    /// Servers fail: their connections are lost.
    Remove(Vec<u16>),
    /// Servers get nothing new and keep their connections.
    Drain(Vec<u16>),
    /// All servers get these weights, in the order of their numbers; a list that is too short is
    /// repeated.
    Weights(Vec<u32>),
    /// The server with this number gets this weight.
    Reweight(u16, u32),
    /// Every server gets a new weight, uniform from the first to the second.
    RandomWeights(u32, u32),
}

/// A scripted event.
#[derive(Clone, PartialEq, Debug)]
pub struct Scripted {
    /// Seconds from the start.
    pub at: f64,
    /// Repeated after so many seconds, if at all.
    pub every: Option<f64>,
    /// What it does to the pool.
    pub action: Action,
}

impl Scripted {
    /// The next time after `now`.
    pub(crate) fn next_after(&self, now: f64) -> Option<f64> {
        if self.at > now {
            return Some(self.at);
        }
        let every = self.every?;
        let turns = ((now - self.at) / every).floor();
        // A quotient that is rounded down by a hair names the present turn.
        let next = |turns: f64| self.at + every * turns;
        Some(next(turns + 1.0)).filter(|&time| time > now).or(Some(next(turns + 2.0)))
    }
}

/// Everything that a simulation depends on, but for the method.
#[derive(Clone, Debug)]
pub struct World {
    /// Seed of all that is drawn. Arrivals and the history of the pool depend on nothing else:
    /// all methods see the same.
    pub seed: u64,
    /// How long is simulated, in seconds of simulated time.
    pub duration: f64,
    /// Flows that start before this, seconds, are played but not counted; nor are samples taken.
    pub warmup: f64,
    /// Time between samples, seconds.
    pub sample_every: f64,
    /// How packets are played.
    pub engine: Engine,
    /// Mean number of concurrent flows, at the lowest rate of arrivals.
    pub flows: f64,
    /// The highest rate of arrivals over the lowest, at least 1. The rate follows a cosine, from
    /// its lowest at the end of the warm-up.
    pub peak: f64,
    /// Time from one lowest rate to the next, seconds.
    pub period: f64,
    /// Flow durations, seconds.
    pub durations: StepCdf,
    /// Flow sizes, KB.
    pub sizes: StepCdf,
    /// A flow has int(this x KB) + 1 packets.
    pub packets_per_kb: f64,
    /// The most packets of a flow, however large it is.
    pub max_packets: u64,
    /// Servers that serve at first.
    pub servers: u16,
    /// Servers, numbered after those, that join only when the script says so.
    pub standby: u16,
    /// Weights of the servers, in the order of their numbers. A list that is too short is repeated.
    pub weights: Vec<u32>,
    /// Departures per minute, a Poisson process. Each is followed by a return.
    pub updates_per_minute: f64,
    /// From departure to return, seconds.
    pub down_times: StepCdf,
    /// Whether a server that leaves fails or drains.
    pub departure: Departure,
    /// What becomes of flows whose server fails.
    pub orphans: Orphans,
    /// Servers that are announced as the next to join: JET's horizon (JET, section 3).
    pub horizon: u16,
    /// Events at times that are written down.
    pub script: Vec<Scripted>,
    /// Balancers that share the flows by a hash (ECMP).
    pub balancers: u16,
    /// How often per minute, a Poisson process, all flows are spread anew over the balancers.
    pub reshuffles_per_minute: f64,
    /// How servers report their loads, if they do.
    pub feedback: Option<Feedback>,
}

impl World {
    /// The published workload: 468 servers, one departure per minute, 1,000 s, and this many
    /// concurrent flows.
    pub fn published(flows: f64, seed: u64) -> Self {
        Self {
            seed,
            duration: 1000.0,
            warmup: 0.0,
            sample_every: 1.0,
            engine: Engine::Lazy,
            flows,
            peak: 1.0,
            period: 1.0,
            durations: StepCdf::hadoop_durations(),
            sizes: StepCdf::hadoop_sizes(),
            packets_per_kb: 10.0,
            max_packets: u64::MAX,
            servers: 468,
            standby: 0,
            weights: vec![1],
            updates_per_minute: 1.0,
            down_times: StepCdf::upgrade_down_times(),
            departure: Departure::Fail,
            orphans: Orphans::End,
            horizon: 0,
            script: Vec::new(),
            balancers: 1,
            reshuffles_per_minute: 0.0,
            feedback: None,
        }
    }

    /// A world with one balancer and no servers but these, by their weights.
    pub fn of_servers(weights: &[u32]) -> Self {
        Self { servers: weights.len() as u16, weights: weights.to_vec(), ..Self::published(0.0, 1) }
    }

    /// Servers that may ever be in the pool or on the horizon.
    pub fn all_servers(&self) -> usize {
        usize::from(self.servers) + usize::from(self.standby) + usize::from(self.horizon)
    }

    /// The weight of each server at first, those on standby and spares included.
    pub fn server_weights(&self) -> Vec<u32> {
        self.weights.iter().copied().cycle().take(self.all_servers()).collect()
    }

    /// The largest weight that each server has at any time.
    pub fn largest_weights(&self) -> Vec<u32> {
        let mut largest = self.server_weights();
        for scripted in &self.script {
            match &scripted.action {
                Action::Weights(weights) => {
                    let weights = weights.iter().cycle();
                    largest.iter_mut().zip(weights).for_each(|(most, &w)| *most = w.max(*most));
                }
                Action::RandomWeights(_, to) => {
                    largest.iter_mut().for_each(|most| *most = (*most).max(*to));
                }
                Action::Reweight(server, weight) => {
                    if let Some(most) = largest.get_mut(usize::from(*server)) {
                        *most = (*most).max(*weight);
                    }
                }
                Action::Add(_) | Action::Remove(_) | Action::Drain(_) => {}
            }
        }
        largest
    }

    /// Arrivals per second at a time, seconds.
    pub fn rate(&self, t: f64) -> f64 {
        let lowest = self.flows / self.durations.mean();
        if self.peak == 1.0 || t < self.warmup {
            return lowest;
        }
        let turn = (t - self.warmup) / self.period * std::f64::consts::TAU;
        lowest * (1.0 + (self.peak - 1.0) * (1.0 - turn.cos()) / 2.0)
    }
}
