//! Scenarios, as they are written. docs/sim.md says what each field means.

use super::method::MethodSpec;
use crate::pool::Departure;
use crate::requests::QueueSpec;
use crate::world::{Action, Engine, Feedback, Orphans};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// One value, or a list of values to go through.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(untagged, expecting = "expected a number in the field's range, or a list of such numbers")]
pub enum OneOrMany<T> {
    /// One value.
    One(T),
    /// Each in turn.
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    /// The values, in the order in which they are gone through.
    pub fn values(&self) -> &[T] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Many(values) => values,
        }
    }
}

impl OneOrMany<f64> {
    /// The first value, 0 if there is none.
    pub fn first(&self) -> f64 {
        self.values().first().copied().unwrap_or(0.0)
    }

    /// There are values, and all are as they should be.
    pub(super) fn all(&self, good: impl Fn(f64) -> bool) -> bool {
        !self.values().is_empty() && self.values().iter().all(|&value| good(value))
    }
}

/// A scenario, as it is written.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What reports call it.
    pub name: String,
    /// The first seed.
    #[serde(default = "one")]
    pub seed: u64,
    /// How many seeds, counted up from the first.
    #[serde(default = "one")]
    pub runs: u64,
    /// Length of a run, in simulated seconds.
    pub duration: f64,
    /// Simulated seconds at the start whose flows are played and not counted.
    #[serde(default)]
    pub warmup: f64,
    /// Seconds between samples.
    #[serde(default = "one_second")]
    pub sample_every: f64,
    /// `lazy` or `every-packet`.
    #[serde(default)]
    pub engine: Engine,
    /// What clients do; not with a queue.
    #[serde(default)]
    pub traffic: TrafficSpec,
    /// What servers do.
    pub pool: PoolSpec,
    /// The servers are queues of requests: the queueing model instead of the one of flows.
    pub queue: Option<QueueSpec>,
    /// How servers report their loads.
    pub feedback: Option<Feedback>,
    /// What happens at times that are written down.
    #[serde(rename = "event", default)]
    pub events: Vec<EventSpec>,
    /// The methods, played one after the other in the same world.
    #[serde(rename = "method")]
    pub methods: Vec<MethodSpec>,
    /// What is different in each size. Merged into the others before they are read.
    #[serde(default, skip_serializing)]
    pub(super) size: SizeTables,
    /// Where file names are looked up, and what errors call the scenario.
    #[serde(skip)]
    pub(super) file: PathBuf,
    #[serde(skip)]
    pub(super) text: String,
    #[serde(skip)]
    pub(super) in_size: Option<super::Size>,
}

/// What is different in each size.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SizeTables {
    pub smoke: Option<toml::Table>,
    pub normal: Option<toml::Table>,
    pub full: Option<toml::Table>,
}

/// What clients do: how many flows there are, how long they last and how large they are.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TrafficSpec {
    /// Mean number of concurrent flows, or several to go through.
    pub flows: Option<OneOrMany<f64>>,
    /// Instead of that: new flows per second, or several rates to go through.
    pub rate: Option<OneOrMany<f64>>,
    /// The highest rate of new flows over the lowest.
    pub peak: Option<f64>,
    /// Seconds from one lowest rate to the next.
    pub period: Option<f64>,
    /// Flow durations, seconds: a file; without it, the built-in one.
    pub durations: Option<PathBuf>,
    /// Flow sizes, KB: a file; without it, the built-in one.
    pub sizes: Option<PathBuf>,
    /// Packets per KB; 10 if not given.
    pub packets_per_kb: Option<f64>,
    /// Most packets of a flow.
    pub max_packets: Option<u64>,
}

/// The servers, and how the pool changes by itself.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PoolSpec {
    /// How many serve at first, or several numbers to go through.
    #[serde(default = "published_servers")]
    pub servers: OneOrMany<u16>,
    /// How many more, numbered after those, can join when an event says so.
    #[serde(default)]
    pub standby: u16,
    /// Weights, repeated as often as it takes.
    #[serde(default = "equal")]
    pub weights: Vec<u32>,
    /// Departures per minute, or several rates to go through.
    pub updates_per_minute: OneOrMany<f64>,
    /// Down-times, seconds: a file; without it, the built-in one.
    pub down_times: Option<PathBuf>,
    /// `fail` or `drain`.
    #[serde(default)]
    pub departure: Departure,
    /// `end` or `adopt`.
    #[serde(default)]
    pub orphans: Orphans,
    /// Size of the horizon, or several to go through.
    #[serde(default = "no_horizon")]
    pub horizon: OneOrMany<u16>,
    /// Balancers that share the flows.
    #[serde(default = "one_balancer")]
    pub balancers: u16,
    /// How often per minute the flows are spread anew over the balancers, or several rates.
    #[serde(default = "no_reshuffles")]
    pub reshuffles_per_minute: OneOrMany<f64>,
}

/// Something that happens at a time that is written down. One of the fields after `every`.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct EventSpec {
    /// Seconds from the start.
    pub at: f64,
    /// Repeated after so many seconds.
    pub every: Option<f64>,
    /// These servers join.
    pub add: Option<OneOrMany<u16>>,
    /// These servers fail.
    pub remove: Option<OneOrMany<u16>>,
    /// These servers get nothing new.
    pub drain: Option<OneOrMany<u16>>,
    /// The weights of all servers, repeated as often as it takes.
    pub weights: Option<Vec<u32>>,
    /// The weight of one server.
    pub reweight: Option<ReweightSpec>,
    /// All weights are drawn, uniform from the first to the second.
    pub random_weights: Option<[u32; 2]>,
}

/// A new weight for one server.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ReweightSpec {
    /// Number of the server, counted from 0.
    pub server: u16,
    /// Its new weight.
    pub weight: u32,
}

impl EventSpec {
    /// What it asks for, with the name of the field: all that are given.
    pub(super) fn actions(&self) -> Vec<(&'static str, Action)> {
        let servers = |list: &Option<OneOrMany<u16>>| list.as_ref().map(|l| l.values().to_vec());
        let all = [
            servers(&self.add).map(|servers| ("add", Action::Add(servers))),
            servers(&self.remove).map(|servers| ("remove", Action::Remove(servers))),
            servers(&self.drain).map(|servers| ("drain", Action::Drain(servers))),
            self.weights.clone().map(|weights| ("weights", Action::Weights(weights))),
            self.reweight.map(|r| ("reweight", Action::Reweight(r.server, r.weight))),
            self.random_weights
                .map(|[from, to]| ("random_weights", Action::RandomWeights(from, to))),
        ];
        all.into_iter().flatten().collect()
    }
}

fn one() -> u64 {
    1
}
fn one_second() -> f64 {
    1.0
}
fn equal() -> Vec<u32> {
    vec![1]
}
fn published_servers() -> OneOrMany<u16> {
    OneOrMany::One(468)
}
fn no_horizon() -> OneOrMany<u16> {
    OneOrMany::One(0)
}
fn one_balancer() -> u16 {
    1
}
fn no_reshuffles() -> OneOrMany<f64> {
    OneOrMany::One(0.0)
}
