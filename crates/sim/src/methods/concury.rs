//! Concury: every state known, an array of backends for the rest.

use super::{below, deal};
use crate::flow::Traffic;
use crate::method::{Change, Effects, FlowRef, Gauges, Method, NOBODY, Probe};

/// Concury with the servers reporting their connections: all live flows are states, and each
/// update takes them in, so none breaks. What is simulated is where new flows go (the DIP array,
/// moved as little as possible) and what the states cost.
#[derive(Debug)]
pub struct Concury {
    array: Vec<u16>,
    weights: Vec<u32>,
    working: Vec<u16>,
    bits_per_state: f64,
}

impl Concury {
    /// A DIP array of 2^`code_bits` slots; Othello takes 2.33 cells of `code_bits` for a state.
    pub fn new(code_bits: u32, weights: &[u32]) -> Self {
        Self {
            array: vec![NOBODY; 1 << code_bits],
            weights: weights.to_vec(),
            working: Vec::new(),
            bits_per_state: 2.33 * f64::from(code_bits),
        }
    }

    fn weight(&self, server: u16) -> u32 {
        self.weights.get(usize::from(server)).copied().unwrap_or(1)
    }
}

impl Method for Concury {
    fn first(&mut self, flow: FlowRef, _: &mut Traffic, _: &mut Effects) -> Option<u16> {
        let server = self.array[below(flow.hash, self.array.len())];
        (server != NOBODY).then_some(server)
    }

    fn probe(&self, flow: FlowRef) -> Probe {
        Probe::quiet(flow.owner)
    }

    fn change(&mut self, changes: &[Change], _: &mut Traffic, _: &mut Effects) {
        for &change in changes {
            match change {
                Change::Add(server) => self.working.push(server),
                Change::Remove(server) | Change::Drain(server) => {
                    self.working.retain(|&other| other != server);
                }
                Change::Reweight(server, weight) => {
                    if let Some(known) = self.weights.get_mut(usize::from(server)) {
                        *known = weight;
                    }
                }
                Change::Expect(_) | Change::Unexpect(_) => {}
            }
        }
        let shares: Vec<_> = self.working.iter().map(|&s| (s, self.weight(s))).collect();
        deal(&mut self.array, &shares);
    }

    fn gauges(&self, traffic: &Traffic) -> Gauges {
        let tracked = traffic.live();
        let state_bytes = tracked as f64 * self.bits_per_state / 8.0;
        Gauges { tracked, state_bytes, ..Gauges::default() }
    }
}
