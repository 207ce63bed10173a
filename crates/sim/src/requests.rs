//! The queueing model: servers with a service rate, requests that wait.
//!
//! Requests arrive as a Poisson process. Each has a demand, the time that it would take alone on
//! its server; a server works on one at a time in the order of arrival, or on all at once at equal
//! speed. A method places each request, as it would the first packet of a flow; a request's later
//! packets, the network and the balancer take no time, and the pool does not change.

use crate::flow::{NewFlow, Traffic};
use crate::method::{Change, Effects, Method, Placed};
use crate::report::{Outcome, Percentiles, Sample};
use crate::scenario::OneOrMany;
use crate::world::{Engine, LoadKind, World};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// In what order a server works.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Discipline {
    /// On all of its requests at once, each at the same part of its speed.
    #[default]
    ProcessorSharing,
    /// One at a time, in the order of arrival.
    Fifo,
}

/// A class of requests that take equally long.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Demand {
    /// Which share of the requests, 0 to 1.
    pub share: f64,
    /// The time each takes on a server of weight 1 that does nothing else, seconds.
    pub seconds: f64,
}

/// The servers of the queueing model, as a scenario describes them.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct QueueSpec {
    /// `processor-sharing` or `fifo`.
    #[serde(default)]
    pub discipline: Discipline,
    /// Share of the servers' time that is needed, or several to go through.
    pub load: OneOrMany<f64>,
    /// The classes of requests. Their shares add up to 1.
    pub demands: Vec<Demand>,
}

/// A non-negative finite number, to be ordered.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Key(f64);

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// A server. Processor sharing is played in the server's own time, which runs at speed over
/// number of requests: a request is done when that time has grown by its demand, whatever comes
/// and goes.
#[derive(Debug)]
struct Server {
    speed: f64,
    discipline: Discipline,
    /// (own time at which it is done, slot) of the requests under way.
    jobs: BinaryHeap<Reverse<(Key, u32)>>,
    own_time: f64,
    /// Own time at which the request that came last is done.
    last_done: f64,
    /// Up to when the two fields around this are true.
    at: f64,
    busy: f64,
    busy_at_report: f64,
    busy_at_sample: f64,
    /// Tells the present prediction of the next completion from older ones.
    serial: u32,
}

impl Server {
    fn new(speed: f64, discipline: Discipline) -> Self {
        Self {
            speed,
            discipline,
            jobs: BinaryHeap::new(),
            own_time: 0.0,
            last_done: 0.0,
            at: 0.0,
            busy: 0.0,
            busy_at_report: 0.0,
            busy_at_sample: 0.0,
            serial: 0,
        }
    }

    /// How fast its own time runs.
    fn pace(&self) -> f64 {
        match self.discipline {
            Discipline::ProcessorSharing => self.speed / self.jobs.len().max(1) as f64,
            Discipline::Fifo => self.speed,
        }
    }

    fn advance(&mut self, now: f64) {
        if !self.jobs.is_empty() {
            self.own_time += (now - self.at) * self.pace();
            self.busy += now - self.at;
        }
        self.at = now;
    }

    fn accept(&mut self, demand: f64, slot: u32) {
        // In the order of arrival, a request is done its demand after the one before it.
        let starts = match self.discipline {
            Discipline::ProcessorSharing => self.own_time,
            Discipline::Fifo => self.own_time.max(self.last_done),
        };
        self.last_done = starts + demand;
        self.jobs.push(Reverse((Key(self.last_done), slot)));
    }

    /// When the next request is done, if none comes before.
    fn next_done(&self) -> Option<f64> {
        let Reverse((done, _)) = self.jobs.peek()?;
        Some(self.at + (done.0 - self.own_time).max(0.0) / self.pace())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    Arrival,
    Done { server: u16, serial: u32 },
    Measure,
    Report,
    Sample,
}

struct Run<'a> {
    world: &'a World,
    method: &'a mut dyn Method,
    traffic: Traffic,
    servers: Vec<Server>,
    /// (time, order of entry, event).
    queue: BinaryHeap<Reverse<(Key, u64, Event)>>,
    order: u64,
    /// When the request in each slot came.
    came: Vec<f64>,
    reports: VecDeque<Vec<(u16, u64)>>,
    rng: ChaCha8Rng,
    effects: Effects,
    outcome: Outcome,
    /// Completion times, seconds.
    times: Vec<f64>,
    /// Sum over samples of the variance among servers of the busy share.
    variance: f64,
    completed: u64,
}

/// Plays requests at a load, a share of all servers' time, with a method.
pub(crate) fn simulate(
    world: &World,
    spec: &QueueSpec,
    load: f64,
    method: &mut dyn Method,
    progress: &mut dyn FnMut(f64),
) -> Outcome {
    let mut run = Run::new(world, spec, method);
    let mean: f64 = spec.demands.iter().map(|demand| demand.share * demand.seconds).sum();
    let speed: f64 = run.servers.iter().map(|server| server.speed).sum();
    let rate = load * speed / mean;
    run.open(rate);
    while let Some(Reverse((Key(now), order, event))) = run.queue.pop() {
        if now > world.duration {
            break;
        }
        if order.is_multiple_of(1 << 14) {
            progress(now / world.duration);
        }
        run.traffic.set_now(now);
        match event {
            Event::Arrival => {
                run.arrive(now, &spec.demands);
                run.next_arrival(now, rate);
            }
            Event::Done { server, serial } => run.done(now, server, serial),
            Event::Measure => run.measure(now),
            Event::Report => {
                if let Some(loads) = run.reports.pop_front() {
                    run.method.reports(&loads);
                }
            }
            Event::Sample => run.sample(now),
        }
    }
    run.close()
}

impl<'a> Run<'a> {
    fn new(world: &'a World, spec: &QueueSpec, method: &'a mut dyn Method) -> Self {
        let weights = world.server_weights();
        let seed = world.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let serving = &weights[..usize::from(world.servers)];
        let server = |&weight: &u32| Server::new(f64::from(weight), spec.discipline);
        Self {
            traffic: Traffic::new(method.rows(), &weights, seed ^ 0x7175_6575, Engine::Lazy),
            servers: serving.iter().map(server).collect(),
            world,
            method,
            queue: BinaryHeap::new(),
            order: 0,
            came: Vec::new(),
            reports: VecDeque::new(),
            rng: ChaCha8Rng::seed_from_u64(seed ^ 0x7265_7175),
            effects: Effects::default(),
            outcome: Outcome::default(),
            times: Vec::new(),
            variance: 0.0,
            completed: 0,
        }
    }

    fn push(&mut self, time: f64, event: Event) {
        self.order += 1;
        self.queue.push(Reverse((Key(time), self.order, event)));
    }

    fn open(&mut self, rate: f64) {
        let joining: Vec<Change> = (0..self.world.servers).map(Change::Add).collect();
        self.method.change(&joining, &mut self.traffic, &mut self.effects);
        self.next_arrival(0.0, rate);
        if let Some(feedback) = &self.world.feedback {
            self.push(feedback.interval, Event::Measure);
        }
        self.push(self.world.warmup, Event::Sample);
    }

    fn next_arrival(&mut self, now: f64, rate: f64) {
        let gap = -(1.0 - self.rng.random::<f64>()).ln() / rate;
        self.push(now + gap, Event::Arrival);
    }

    fn arrive(&mut self, now: f64, demands: &[Demand]) {
        let id = self.rng.random::<u64>();
        let mut u = self.rng.random::<f64>();
        let drawn = demands.iter().find(|demand| {
            let here = u < demand.share;
            u -= demand.share;
            here
        });
        let demand = drawn.or(demands.last()).map_or(0.0, |demand| demand.seconds);
        let counted = now >= self.world.warmup;
        let row = self.method.row_of(id);
        let (end, packets) = (f64::INFINITY, 1);
        let slot = self.traffic.insert(NewFlow { id, start: now, end, packets, row, counted });
        self.outcome.flows += u64::from(counted);
        let flow = self.traffic.refer(slot);
        let chosen = self.method.first(flow, &mut self.traffic, &mut self.effects);
        self.effects.rows.clear();
        self.effects.flows.clear();
        let Some(Placed { server, echo }) = chosen else {
            self.outcome.refused += u64::from(counted);
            self.traffic.remove(slot);
            return;
        };
        self.traffic.give(slot, server);
        self.traffic.flow_mut(slot).echo = echo;
        self.came.resize(self.came.len().max(slot as usize + 1), 0.0);
        self.came[slot as usize] = now;
        let queue = &mut self.servers[usize::from(server)];
        queue.advance(now);
        queue.accept(demand, slot);
        self.predict(server);
    }

    fn predict(&mut self, number: u16) {
        let server = &mut self.servers[usize::from(number)];
        server.serial = server.serial.wrapping_add(1);
        let serial = server.serial;
        if let Some(time) = server.next_done() {
            self.push(time, Event::Done { server: number, serial });
        }
    }

    fn done(&mut self, now: f64, number: u16, serial: u32) {
        let server = &mut self.servers[usize::from(number)];
        if server.serial != serial {
            return;
        }
        server.advance(now);
        let Some(Reverse((done, slot))) = server.jobs.pop() else {
            return;
        };
        server.own_time = done.0; // what rounding has left
        let flow = self.traffic.refer(slot);
        self.method.end(flow, &mut self.traffic);
        if self.traffic.flow(slot).counted {
            self.times.push(now - self.came[slot as usize]);
        }
        self.completed += 1;
        self.traffic.remove(slot);
        self.predict(number);
    }

    fn measure(&mut self, now: f64) {
        let Some(feedback) = self.world.feedback else {
            return;
        };
        let mut loads = Vec::with_capacity(self.servers.len());
        for (number, server) in (0u16..).zip(&mut self.servers) {
            server.advance(now);
            let busy = server.busy - server.busy_at_report;
            server.busy_at_report = server.busy;
            loads.push(match feedback.load {
                LoadKind::Connections => (number, server.jobs.len() as u64),
                LoadKind::Busy => (number, (1000.0 * busy / feedback.interval).round() as u64),
            });
        }
        self.reports.push_back(loads);
        self.push(now + feedback.delay, Event::Report);
        self.push(now + feedback.interval, Event::Measure);
    }

    /// The first one, at the end of the warm-up, only notes where the busy times stand.
    fn sample(&mut self, now: f64) {
        let first = now < self.world.warmup + self.world.sample_every / 2.0;
        let mut shares = Vec::with_capacity(self.servers.len());
        for server in &mut self.servers {
            server.advance(now);
            shares.push((server.busy - server.busy_at_sample) / self.world.sample_every);
            server.busy_at_sample = server.busy;
        }
        self.push(now + self.world.sample_every, Event::Sample);
        let completed = std::mem::take(&mut self.completed);
        if first {
            return;
        }
        let n = shares.len() as f64;
        let mean = shares.iter().sum::<f64>() / n;
        self.variance += shares.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / n;
        let most = shares.iter().copied().fold(0.0, f64::max);
        let imbalance = if mean > 0.0 { most / mean - 1.0 } else { 0.0 };
        self.outcome.imbalance.add(imbalance);
        self.outcome.live.add(self.traffic.live() as f64);
        self.outcome.working.add(n);
        self.outcome.samples.push(Sample {
            time: now,
            imbalance_percent: 100.0 * imbalance,
            live: self.traffic.live() as f64,
            working: n,
            completed,
            ..Sample::default()
        });
    }

    fn close(mut self) -> Outcome {
        self.times.sort_by(f64::total_cmp);
        let samples = self.outcome.samples.len().max(1) as f64;
        self.outcome.completion = Some(Percentiles {
            mean: self.times.iter().sum::<f64>() / self.times.len().max(1) as f64,
            p50: percentile(&self.times, 0.5),
            p99: percentile(&self.times, 0.99),
            load_variance: self.variance / samples,
        });
        self.outcome
    }
}

/// The smallest value that is not exceeded by this share of the values, which are sorted.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let place = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(place.saturating_sub(1)).copied().unwrap_or(0.0)
}
