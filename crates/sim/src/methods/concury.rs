//! Concury: the control plane and the forwarder of `weir_steering`, told of every flow.

use crate::flow::Traffic;
use crate::method::{Change, Effects, FlowRef, Gauges, Method, Probe};
use weir_steering::{Codec, ConcuryConfig, Forwarder, Member, NO_BACKEND, Role, Steer};

/// Concury with the servers reporting their connections: all live flows are states, and each
/// change of the pool takes them into a new table. The states, the DIP array and the table that
/// packets read are those of the balancer. Record, collect and commit take no time, so a flow is
/// pending only if it started on the Dcode of a draining server.
#[derive(Debug)]
pub struct Concury {
    control: weir_steering::Concury<u64>,
    forwarder: Forwarder<u64>,
    members: Vec<Member>,
    weights: Vec<u32>,
    generation: u64,
    bits_per_state: f64,
}

impl Concury {
    /// A DIP array of 2^`code_bits` slots; Othello takes 2.33 cells of `code_bits` for a state.
    /// `weights`: of all servers there will ever be.
    ///
    /// # Panics
    ///
    /// If `code_bits` is not in 1..=15, or there are not fewer servers than slots.
    pub fn new(code_bits: u32, weights: &[u32]) -> Self {
        assert!((1..=15).contains(&code_bits), "a Dcode of 1..=15 bits");
        assert!(weights.len() < 1 << code_bits, "fewer servers than Dcodes");
        let config = ConcuryConfig::unbounded(Codec::Othello, code_bits, 1);
        let (control, forwarder) =
            Forwarder::build(config, &[], std::iter::empty()).expect("an empty pool fits");
        Self {
            control,
            forwarder,
            members: Vec::new(),
            weights: weights.to_vec(),
            generation: 1,
            bits_per_state: 2.33 * f64::from(code_bits),
        }
    }

    fn follow(&mut self, change: Change) {
        let place = |server| self.members.iter().position(|member| member.backend == server);
        match change {
            Change::Add(server) => {
                let weight = self.weights.get(usize::from(server)).copied().unwrap_or(1);
                let name = format!("server {server}");
                let member = Member { backend: server, name, weight, role: Role::Serving };
                match place(server) {
                    Some(at) => self.members[at] = member,
                    None => self.members.push(member),
                }
            }
            Change::Drain(server) => {
                if let Some(at) = place(server) {
                    self.members[at].role = Role::Draining;
                }
            }
            Change::Remove(server) => self.members.retain(|member| member.backend != server),
            Change::Reweight(server, weight) => {
                if let Some(known) = self.weights.get_mut(usize::from(server)) {
                    *known = weight;
                }
                if let Some(at) = place(server) {
                    self.members[at].weight = weight;
                }
            }
            Change::Expect(_) | Change::Unexpect(_) => {}
        }
    }
}

impl Method for Concury {
    fn first(&mut self, flow: FlowRef, _: &mut Traffic, _: &mut Effects) -> Option<u16> {
        let server = self.forwarder.start(&flow.hash);
        if server == NO_BACKEND {
            return None;
        }
        let started = self.control.start(flow.hash, server, 0);
        debug_assert!(started.is_ok(), "{started:?}");
        Some(server)
    }

    fn probe(&self, flow: FlowRef) -> Probe {
        Probe::quiet(self.forwarder.find(&flow.hash))
    }

    fn end(&mut self, flow: FlowRef, _: &mut Traffic) {
        self.control.forget(&flow.hash);
        self.forwarder.end(&flow.hash);
    }

    /// Every flow is looked at again: the table is another one.
    fn change(&mut self, changes: &[Change], _: &mut Traffic, effects: &mut Effects) {
        changes.iter().for_each(|&change| self.follow(change));
        self.generation += 1;
        let table = self.control.build(self.generation, &self.members, 0);
        debug_assert!(table.is_ok(), "as many Dcodes as servers, and different flows");
        if let Ok((image, _)) = table {
            let published = self.forwarder.publish(image);
            debug_assert!(published.is_ok(), "{published:?}");
            let control = &self.control;
            self.forwarder.retain_pending(|flow, backend| !control.agrees(flow, backend));
        }
        effects.rows.push(0);
    }

    fn gauges(&self, _: &Traffic) -> Gauges {
        let tracked = self.control.len();
        let state_bytes = tracked as f64 * self.bits_per_state / 8.0;
        Gauges { tracked, state_bytes, ..Gauges::default() }
    }
}
