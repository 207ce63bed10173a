//! Shortest paths, and the ports that follow from them.

use crate::Topology;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Where a key's host is: at which node, and at which of its host ports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Host {
    /// Number of the node that the host is plugged in at.
    pub node: u16,
    /// Which of the node's host ports it is, from 0; host ports are numbered behind the node's
    /// links.
    pub slot: u16,
}

impl Host {
    /// As one number.
    pub(crate) fn code(self) -> u64 {
        u64::from(self.node) << 16 | u64::from(self.slot)
    }

    pub(crate) fn from_code(code: u64) -> Self {
        Self { node: (code >> 16) as u16, slot: code as u16 }
    }
}

/// A topology with the next hop from every node to every other.
#[derive(Clone, Debug)]
pub struct Network {
    topology: Topology,
    slots: u16,
    /// The port of `node` towards `to` at `node * nodes + to`.
    next: Vec<u16>,
}

impl Network {
    /// Finds all shortest paths (Dijkstra, from each node). `slots` is the number of host ports of
    /// each node.
    pub fn new(topology: Topology, slots: u16) -> Self {
        let nodes = topology.nodes();
        let mut network = Self { topology, slots, next: vec![0; nodes * nodes] };
        (0..nodes).for_each(|to| network.route_to(to));
        network
    }

    /// Links are the same in both directions, so the way from `to` to a node, reversed, is the
    /// node's way there. Of ways of equal length the one over the smaller neighbour is taken.
    fn route_to(&mut self, to: usize) {
        let nodes = self.topology.nodes();
        let mut length = vec![u64::MAX; nodes];
        let mut heap = BinaryHeap::from([Reverse((0u64, to))]);
        length[to] = 0;
        while let Some(Reverse((far, node))) = heap.pop() {
            if far > length[node] {
                continue;
            }
            for &(other, weight) in self.topology.links(node) {
                let longer = far + u64::from(weight);
                if longer < length[usize::from(other)] {
                    length[usize::from(other)] = longer;
                    heap.push(Reverse((longer, usize::from(other))));
                }
            }
        }
        for node in (0..nodes).filter(|&node| node != to) {
            let ports = self.topology.links(node).iter().enumerate();
            let best = ports.min_by_key(|(_, (other, weight))| {
                let rest = length[usize::from(*other)].saturating_add(u64::from(*weight));
                (rest, *other)
            });
            self.next[node * nodes + to] = best.map_or(0, |(port, _)| port as u16);
        }
    }

    /// The nodes and links that this network was made of.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Number of nodes; their own numbers are below it.
    pub fn nodes(&self) -> usize {
        self.topology.nodes()
    }

    /// Number of host ports of each node.
    pub fn slots(&self) -> u16 {
        self.slots
    }

    /// The port of `node` through which packets to a host leave: a link's number, or, at the host's
    /// own node, the number of links and the host's slot.
    #[inline]
    pub fn port(&self, node: usize, host: Host) -> u16 {
        if node == usize::from(host.node) {
            self.topology.links(node).len() as u16 + host.slot
        } else {
            self.next[node * self.nodes() + usize::from(host.node)]
        }
    }

    /// Whether the node exists and has such a host port.
    pub fn has(&self, host: Host) -> bool {
        usize::from(host.node) < self.nodes() && host.slot < self.slots
    }

    /// Number of ports of a node: its links, then its host ports.
    pub fn ports(&self, node: usize) -> usize {
        self.topology.links(node).len() + usize::from(self.slots)
    }

    /// Bits that hold the number of any port of any node.
    pub fn port_bits(&self) -> u32 {
        bits_for(self.topology.max_degree() + usize::from(self.slots))
    }

    /// The numbers of the nodes from one to a host's own, both included, along the shortest path.
    pub fn way(&self, from: usize, host: Host) -> Vec<usize> {
        let mut way = vec![from];
        let mut at = from;
        while at != usize::from(host.node) && way.len() <= self.nodes() {
            let port = usize::from(self.port(at, host));
            at = usize::from(self.topology.links(at)[port].0);
            way.push(at);
        }
        way
    }
}

/// Bits that hold the numbers below `count`; at least one.
pub(crate) fn bits_for(count: usize) -> u32 {
    (usize::BITS - count.saturating_sub(1).leading_zeros()).max(1)
}
