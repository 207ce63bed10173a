//! Algorithm 1 as it stands in the paper: the connection table is asked first, by every packet.

use std::collections::HashMap;
use weir_hash::Key;
use weir_placement::Horizon;
use weir_steering::ConnectionTable;

pub struct Plain<P, C> {
    pub placement: P,
    pub table: C,
}

impl<P: Horizon, C: ConnectionTable<Flow = u64>> Plain<P, C> {
    pub fn steer(&mut self, flow: u64) -> u16 {
        let hash = flow.hash(self.table.hash_key());
        if let Some(backend) = self.table.get(hash, &flow) {
            return backend;
        }
        let Some(verdict) = self.placement.verdict(hash) else {
            return weir_steering::NO_BACKEND;
        };
        if verdict.may_differ {
            self.table.insert(hash, flow, verdict.backend);
        }
        verdict.backend
    }

    pub fn end(&mut self, flow: u64) {
        self.table.remove(flow.hash(self.table.hash_key()), &flow);
    }

    /// Whether an entry could be left out: its flow is safe where it is.
    fn idle(&self, flow: u64, backend: u16) -> bool {
        let verdict = self.placement.verdict(flow.hash(self.table.hash_key()));
        verdict.is_some_and(|verdict| !verdict.may_differ && verdict.backend == backend)
    }

    /// Drops what could be left out.
    pub fn drop_idle(&mut self) {
        let mut idle = Vec::new();
        self.table.for_each(|&flow, backend| {
            if self.idle(flow, backend) {
                idle.push(flow);
            }
        });
        idle.into_iter().for_each(|flow| self.end(flow));
    }

    /// What a table holds, without what could be left out.
    pub fn relevant(&self, table: &C) -> HashMap<u64, u16> {
        let mut content = HashMap::new();
        table.for_each(|&flow, backend| {
            if !self.idle(flow, backend) {
                content.insert(flow, backend);
            }
        });
        content
    }
}
