//! A backend's part of a change: to say which connections it holds.

use super::message::RowSet;
use std::collections::{BTreeMap, BTreeSet};

/// What an agent is asked by the coordinator.
#[derive(Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Request<K> {
    /// Epoch of the change, which grows with each.
    pub epoch: u64,
    /// Number of the order that goes to the balancers at the same time.
    pub step: u32,
    /// The rows whose connections the agent is to list, all of them.
    pub rows: RowSet,
    /// Flows that are said to have ended: the agent also lists those of them that it still has.
    pub doubtful: Vec<K>,
}

/// An agent's answer to a [`Request`].
#[derive(Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Listing<K> {
    /// Number of the backend whose agent it is.
    pub backend: u16,
    /// Epoch of the request.
    pub epoch: u64,
    /// Number of the request.
    pub step: u32,
    /// The connections, half-open ones included.
    pub flows: Vec<K>,
}

/// The connections of a backend. An agent fills it from the kernel's sockets; without agents, the
/// control plane keeps one for each backend and fills it with what the balancers report.
///
/// With client affinity a key stands for all connections of a client, and stays until the last of
/// them has ended.
#[derive(Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct AgentNode<K> {
    backend: u16,
    connections: BTreeMap<K, u32>,
    /// Exceptions at this backend whose end has not been reported.
    watched: BTreeSet<K>,
}

impl<K: Copy + Ord> AgentNode<K> {
    /// A backend without connections.
    pub fn new(backend: u16) -> Self {
        Self { backend, connections: BTreeMap::new(), watched: BTreeSet::new() }
    }

    /// Number of keys that have connections.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether there is no connection.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Whether there is a connection with this key.
    pub fn holds(&self, flow: &K) -> bool {
        self.connections.contains_key(flow)
    }

    /// A connection exists from its SYN on.
    pub fn started(&mut self, flow: K) {
        *self.connections.entry(flow).or_default() += 1;
    }

    /// A connection has ended.
    pub fn ended(&mut self, flow: &K) {
        if let Some(count) = self.connections.get_mut(flow) {
            *count -= 1;
            if *count == 0 {
                self.connections.remove(flow);
            }
        }
    }

    /// Flows of this backend that are exceptions now: their ends are to be reported.
    pub fn watch(&mut self, flows: impl IntoIterator<Item = K>) {
        self.watched = flows.into_iter().collect();
    }

    /// The watched flows that have no connection (any more); each is reported once. That is a hint
    /// only: before an exception goes, the agent is asked again.
    pub fn report_ended(&mut self) -> Vec<K> {
        let connections = &self.connections;
        let over: Vec<K> =
            self.watched.iter().filter(|flow| !connections.contains_key(flow)).copied().collect();
        over.iter().for_each(|flow| {
            self.watched.remove(flow);
        });
        over
    }

    /// Answers a request. `row` is the row of a flow under the service's shared hash key.
    pub fn list(&self, request: &Request<K>, row: impl Fn(&K) -> u32) -> Listing<K> {
        let in_rows = self.connections.keys().filter(|flow| request.rows.contains(row(flow)));
        let doubtful = request.doubtful.iter().filter(|flow| self.holds(flow));
        let flows: BTreeSet<K> = in_rows.chain(doubtful).copied().collect();
        Listing {
            backend: self.backend,
            epoch: request.epoch,
            step: request.step,
            flows: flows.into_iter().collect(),
        }
    }
}
