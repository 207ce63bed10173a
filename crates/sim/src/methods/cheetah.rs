//! Cheetah: the packet names its server.

use crate::flow::Traffic;
use crate::method::{Change, Effects, FlowRef, Gauges, Method, Probe};
use crate::world::World;
use weir_placement as placement;

/// Who gets a new flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// The next one in turn, weights aside.
    #[default]
    RoundRobin,
    /// The next one in turn, as often as its weight says, evenly spread.
    WeightedRoundRobin,
    /// Weighted round robin with weights that follow the reported loads (Cheetah, section 4.1).
    Automatic,
    /// The less loaded of two that are drawn at random, per unit of weight.
    PowerOfTwo,
    /// The least loaded of all, per unit of weight.
    LeastLoaded,
    /// Whoever the hash says: HRW hashing.
    Hash,
}

/// The load that [`Scheduler::PowerOfTwo`] and [`Scheduler::LeastLoaded`] compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Connections, as the balancer counts them that sees them open and close.
    #[default]
    Connections,
    /// What the servers reported last.
    Reported,
}

/// The simulator's own: it follows the changes of the pool as a [`placement::Hashed`] does not.
#[derive(Default)]
struct ByHash(placement::Hrw);

impl placement::Scheduler for ByHash {
    fn pick(&mut self, random: u64) -> Option<u16> {
        placement::Placement::lookup(&self.0, random)
    }

    fn set(&mut self, backend: u16, weight: u32) {
        use placement::Incremental;
        if self.0.reweight(backend, weight).is_err() {
            let name = format!("server {backend}");
            let added = self.0.add(placement::Candidate { name: &name, backend, weight });
            debug_assert!(added.is_ok(), "{added:?}");
        }
    }

    fn remove(&mut self, backend: u16) {
        // One that has not been there is gone, too.
        let _ = placement::Incremental::remove(&mut self.0, backend);
    }
}

fn scheduler(kind: Scheduler, metric: Metric) -> Box<dyn placement::Scheduler> {
    let metric = match metric {
        Metric::Connections => placement::Metric::Connections,
        Metric::Reported => placement::Metric::Reported,
    };
    match kind {
        Scheduler::RoundRobin => Box::new(placement::RoundRobin::new()),
        Scheduler::WeightedRoundRobin => Box::new(placement::WeightedRoundRobin::new()),
        Scheduler::Automatic => Box::new(placement::Awrr::new()),
        Scheduler::PowerOfTwo => Box::new(placement::PowerOfTwo::new(metric)),
        Scheduler::LeastLoaded => Box::new(placement::LeastLoaded::new(metric)),
        Scheduler::Hash => Box::new(ByHash::default()),
    }
}

/// Stateless Cheetah: the cookie in each packet names the server, whatever has become of the pool.
/// Each balancer schedules by itself, with what it has seen.
pub struct Cheetah {
    kind: Scheduler,
    /// One per balancer.
    schedulers: Vec<Box<dyn placement::Scheduler>>,
    weights: Vec<u32>,
    working: Vec<bool>,
}

impl std::fmt::Debug for Cheetah {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Cheetah").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl Cheetah {
    /// Without servers; one balancer, all weights 1, connections counted.
    pub fn new(kind: Scheduler) -> Self {
        let schedulers = vec![scheduler(kind, Metric::Connections)];
        Self { kind, schedulers, weights: Vec::new(), working: Vec::new() }
    }

    /// For the servers and balancers of a world.
    pub fn for_world(kind: Scheduler, metric: Metric, world: &World) -> Self {
        let schedulers = (0..world.balancers.max(1)).map(|_| scheduler(kind, metric)).collect();
        Self { kind, schedulers, weights: world.server_weights(), working: Vec::new() }
    }

    fn note(&mut self, server: u16, working: Option<bool>, weight: Option<u32>) -> (bool, u32) {
        let number = usize::from(server);
        self.weights.resize(self.weights.len().max(number + 1), 1);
        self.working.resize(self.weights.len(), false);
        if let Some(working) = working {
            self.working[number] = working;
        }
        if let Some(weight) = weight {
            self.weights[number] = weight;
        }
        (self.working[number], self.weights[number])
    }
}

impl Method for Cheetah {
    fn first(&mut self, flow: FlowRef, traffic: &mut Traffic, _: &mut Effects) -> Option<u16> {
        let random = match self.kind {
            Scheduler::Hash => flow.hash,
            _ => traffic.random(),
        };
        let scheduler = &mut self.schedulers[usize::from(flow.balancer)];
        let server = scheduler.pick(random)?;
        scheduler.on_open(server);
        Some(server)
    }

    fn probe(&self, flow: FlowRef) -> Probe {
        Probe::quiet(flow.owner)
    }

    fn end(&mut self, flow: FlowRef, _: &mut Traffic) {
        self.schedulers[usize::from(flow.balancer)].on_close(flow.owner);
    }

    fn reports(&mut self, loads: &[(u16, u64)]) {
        for &(server, load) in loads {
            // Automatic weights are for utilisations: the load per unit of weight.
            let weight = self.weights.get(usize::from(server)).copied().unwrap_or(1).max(1);
            let load = match self.kind {
                Scheduler::Automatic => load * 1000 / u64::from(weight),
                _ => load,
            };
            self.schedulers.iter_mut().for_each(|scheduler| scheduler.on_load(server, load));
        }
    }

    fn change(&mut self, changes: &[Change], _: &mut Traffic, _: &mut Effects) {
        for &change in changes {
            let (server, working, weight) = match change {
                Change::Add(server) => (server, Some(true), None),
                Change::Remove(server) | Change::Drain(server) => (server, Some(false), None),
                Change::Reweight(server, weight) => (server, None, Some(weight)),
                Change::Expect(_) | Change::Unexpect(_) => continue,
            };
            let (working, weight) = self.note(server, working, weight);
            for scheduler in &mut self.schedulers {
                match change {
                    Change::Remove(_) => scheduler.remove(server),
                    // It keeps its count of connections, for the time when it is back.
                    Change::Drain(_) => scheduler.set(server, 0),
                    _ if working => scheduler.set(server, weight),
                    _ => {}
                }
            }
        }
    }

    fn gauges(&self, _: &Traffic) -> Gauges {
        Gauges::default()
    }
}
