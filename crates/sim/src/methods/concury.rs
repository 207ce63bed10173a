//! Concury: every state known, an array of backends for the rest.

use super::below;
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

    fn weight(&self, server: u16) -> usize {
        self.weights.get(usize::from(server)).map_or(1, |&w| w as usize)
    }

    /// A slot changes its owner only if the owner is gone or has too many.
    fn deal(&mut self) {
        let total: usize = self.working.iter().map(|&s| self.weight(s)).sum();
        if total == 0 {
            self.array.fill(NOBODY);
            return;
        }
        let mut room = vec![0usize; usize::from(NOBODY) + 1];
        let mut upto = 0;
        for &server in &self.working {
            let below = self.array.len() * upto / total;
            upto += self.weight(server);
            room[usize::from(server)] = self.array.len() * upto / total - below;
        }
        for owner in &mut self.array {
            match &mut room[usize::from(*owner)] {
                0 => *owner = NOBODY,
                room => *room -= 1,
            }
        }
        let short = self
            .working
            .iter()
            .flat_map(|&server| std::iter::repeat_n(server, room[usize::from(server)]));
        let empty = self.array.iter_mut().filter(|owner| **owner == NOBODY);
        empty.zip(short).for_each(|(owner, server)| *owner = server);
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
                Change::Expect(_) | Change::Unexpect(_) => {}
            }
        }
        self.deal();
    }

    fn gauges(&self, traffic: &Traffic) -> Gauges {
        let tracked = traffic.live();
        let state_bytes = tracked as f64 * self.bits_per_state / 8.0;
        Gauges { tracked, state_bytes, ..Gauges::default() }
    }
}
