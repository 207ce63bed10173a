//! Cheetah: the packet names its server.

use super::below;
use crate::flow::Traffic;
use crate::method::{Change, Effects, FlowRef, Gauges, Method, Probe};

/// Who gets a new flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// The next one in turn.
    #[default]
    RoundRobin,
    /// The less loaded of two that are drawn at random, per unit of weight.
    PowerOfTwo,
    /// The least loaded of all, per unit of weight.
    LeastLoaded,
    /// Whoever the hash says.
    Hash,
}

/// Stateless Cheetah: the cookie in each packet names the server, whatever has become of the pool.
#[derive(Debug)]
pub struct Cheetah {
    servers: Vec<u16>,
    scheduler: Scheduler,
    turn: usize,
}

impl Cheetah {
    /// Without servers.
    pub fn new(scheduler: Scheduler) -> Self {
        Self { servers: Vec::new(), scheduler, turn: 0 }
    }
}

impl Method for Cheetah {
    fn first(&mut self, flow: FlowRef, traffic: &mut Traffic, _: &mut Effects) -> Option<u16> {
        let n = self.servers.len();
        if n == 0 {
            return None;
        }
        let ratio = |server: u16| {
            f64::from(traffic.load(server)) / f64::from(traffic.weight(server).max(1))
        };
        let place = match self.scheduler {
            Scheduler::RoundRobin => {
                self.turn = (self.turn + 1) % n;
                self.turn
            }
            Scheduler::Hash => below(flow.hash, n),
            Scheduler::PowerOfTwo => {
                let (a, b) = (below(traffic.random(), n), below(traffic.random(), n));
                let ratio = |place: usize| {
                    let server = self.servers[place];
                    f64::from(traffic.load(server)) / f64::from(traffic.weight(server).max(1))
                };
                if ratio(b) < ratio(a) { b } else { a }
            }
            Scheduler::LeastLoaded => {
                // The search starts at another server each time: ties go round.
                self.turn = (self.turn + 1) % n;
                let places = (self.turn..n).chain(0..self.turn);
                places
                    .min_by(|&a, &b| ratio(self.servers[a]).total_cmp(&ratio(self.servers[b])))
                    .unwrap_or(self.turn)
            }
        };
        Some(self.servers[place])
    }

    fn probe(&self, flow: FlowRef) -> Probe {
        Probe::quiet(flow.owner)
    }

    fn change(&mut self, changes: &[Change], _: &mut Traffic, _: &mut Effects) {
        for &change in changes {
            match change {
                Change::Add(server) => self.servers.push(server),
                Change::Remove(server) | Change::Drain(server) => {
                    self.servers.retain(|&other| other != server);
                }
                Change::Expect(_) | Change::Unexpect(_) => {}
            }
        }
    }

    fn gauges(&self, _: &Traffic) -> Gauges {
        Gauges::default()
    }
}
