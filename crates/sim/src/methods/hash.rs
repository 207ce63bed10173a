//! Plain hashing.

use crate::flow::Traffic;
use crate::method::{Change, Effects, FlowRef, Gauges, Method, NOBODY, Probe};

/// Equal-cost multipath: the hash modulo the number of live servers. A change moves nearly every
/// flow, and weights do not count. (This is not the "hash" of Cheetah's figure 2a; that is [`super::Buckets::hash`].)
#[derive(Default, Debug)]
pub struct Modulo {
    servers: Vec<u16>,
}

impl Modulo {
    /// Without servers.
    pub fn new() -> Self {
        Self::default()
    }

    fn pick(&self, hash: u64) -> Option<u16> {
        let n = self.servers.len() as u64;
        (n > 0).then(|| self.servers[(hash % n) as usize])
    }
}

impl Method for Modulo {
    fn first(&mut self, flow: FlowRef, _: &mut Traffic, _: &mut Effects) -> Option<u16> {
        self.pick(flow.hash)
    }

    fn probe(&self, flow: FlowRef) -> Probe {
        Probe::quiet(self.pick(flow.hash).unwrap_or(NOBODY))
    }

    fn change(&mut self, changes: &[Change], _: &mut Traffic, effects: &mut Effects) {
        for &change in changes {
            match change {
                Change::Add(server) => self.servers.push(server),
                Change::Remove(server) | Change::Drain(server) => {
                    self.servers.retain(|&other| other != server);
                }
                Change::Reweight(..) | Change::Expect(_) | Change::Unexpect(_) => {}
            }
        }
        self.servers.sort_unstable();
        effects.rows.push(0);
    }

    fn gauges(&self, _: &Traffic) -> Gauges {
        Gauges::default()
    }
}
