//! A service with several balancers, agents and clients in memory, around the real tables, build
//! face, coordinator and nodes.

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use weir_steering::residue::{
    AgentNode, BalancerNode, Coordinator, Published, Residue, ResidueConfig, Routes, Waiting,
    Window,
};
use weir_steering::{BackendId, Decision, Member, Role, StateKey};
use weir_wire::Reason;

/// What kind of service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kind {
    pub wide: bool,
    pub client: bool,
    pub udp: bool,
}

/// Numbers that backends may have.
const NUMBERS: u16 = 30;
const ROWS: u32 = 4096;

#[derive(Clone, Copy, Debug)]
struct Live {
    key: StateKey,
    backend: u16,
    /// Connections of the key: more than one only with client affinity.
    connections: u32,
}

/// What happened.
#[derive(Default, Debug)]
pub struct Tally {
    pub packets: u64,
    pub violations: u64,
    /// Packets that were dropped because their row was changing hands.
    pub held: u64,
    /// Of these, those of connections that existed.
    pub held_of_live: u64,
    pub flows: u64,
    pub changes: BTreeMap<&'static str, u64>,
    /// Flows that started at a backend that had just died.
    pub misplaced: u64,
    /// Packets to a backend that had died, from balancers that had not heard of it yet: lost, and
    /// sent again.
    pub lost: u64,
    /// Packets at balancers that had restarted and had no table yet.
    pub no_table: u64,
    /// The most exceptions that there were at once.
    pub most_exceptions: usize,
}

type Node = BalancerNode<StateKey, Arc<Published<StateKey>>>;

/// The world.
pub struct World {
    kind: Kind,
    pub residue: Residue<StateKey>,
    coordinator: Coordinator<StateKey, Arc<Published<StateKey>>>,
    nodes: Vec<Node>,
    incarnations: u32,
    agents: BTreeMap<u16, AgentNode<StateKey>>,
    /// UDP: the flows that each balancer has seen recently.
    seen: Vec<HashSet<StateKey>>,
    pub members: Vec<Member>,
    live: Vec<Live>,
    /// Keys of flows that have ended.
    retired: Vec<StateKey>,
    crowd: usize,
    rng: ChaCha8Rng,
    next_client: u32,
    /// Collect nothing.
    pub deaf: bool,
    pub tally: Tally,
}

fn member(backend: u16, weight: u32) -> Member {
    Member {
        backend: BackendId::of(backend),
        name: format!("b{backend}"),
        weight,
        role: Role::Serving,
    }
}

impl World {
    pub fn new(kind: Kind, balancers: u16, crowd: usize, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let members: Vec<Member> = (0..5).map(|backend| member(backend, 2)).collect();
        let config = ResidueConfig { rows: ROWS, seed: rng.random() };
        let residue = Residue::new(config, &members).unwrap();
        let window = if balancers == 1 { Window::Alone } else { Window::Freeze };
        let peers = (0..balancers).map(|id| (id, 1));
        let mut world = Self {
            kind,
            residue,
            coordinator: Coordinator::new(window, 1, peers, 0..5),
            nodes: (0..balancers).map(|_| Node::new(1)).collect(),
            incarnations: 1,
            agents: (0..5).map(|backend| (backend, AgentNode::new(backend))).collect(),
            seen: vec![HashSet::new(); usize::from(balancers)],
            members,
            live: Vec::new(),
            retired: Vec::new(),
            crowd,
            rng,
            next_client: 0,
            deaf: false,
            tally: Tally::default(),
        };
        world.finish();
        world
    }

    /// Steps until nothing is under way, with traffic in between.
    pub fn finish(&mut self) {
        while self.coordinator.is_busy() {
            self.step();
            self.traffic(4);
        }
    }

    /// This many changes, with traffic before, between the steps of, and after each.
    pub fn run(&mut self, changes: u64) {
        let mut begun = 0;
        while begun < changes {
            if (!self.coordinator.is_busy() || self.rng.random_ratio(1, 40)) && self.change() {
                begun += 1;
            }
            if self.nodes.len() > 1 && self.rng.random_ratio(1, 400) {
                self.restart_balancer();
            }
            self.step();
            self.traffic(6);
            self.tally.most_exceptions =
                self.tally.most_exceptions.max(self.residue.exceptions().len());
        }
        self.finish();
        self.every_flow_sends();
    }

    /// One message arrives, or is lost.
    fn step(&mut self) {
        if self.coordinator.waiting() == Waiting::Transit {
            self.coordinator.transit_passed(&mut self.residue);
            return;
        }
        for id in 0..self.nodes.len() as u16 {
            let node = &self.nodes[usize::from(id)];
            if node.gate().is_none() {
                self.coordinator.hello(id, node.incarnation(), &mut self.residue);
            }
        }
        let orders: Vec<_> = self.coordinator.orders().collect();
        if let Some((id, order)) = orders.choose(&mut self.rng) {
            let node = &mut self.nodes[usize::from(*id)];
            let again = node.receive(order);
            let answer = again.or_else(|| node.grace_ended(order.epoch, order.step));
            if let Some(mut answer) = answer
                && !self.rng.random_ratio(1, 10)
            {
                if self.deaf {
                    answer.pending.clear();
                }
                self.coordinator.answer(*id, answer, &mut self.residue);
            }
        }
        let requests: Vec<_> = self.coordinator.requests().collect();
        for (agent, request) in requests {
            let Some(node) = self.agents.get(&agent) else {
                self.coordinator.remove_agent(agent, &mut self.residue);
                continue;
            };
            let mut listing = node.list(&request, |key| self.residue.row(key));
            if self.deaf {
                listing.flows.clear();
            }
            if !self.rng.random_ratio(1, 5) {
                self.coordinator.listing(listing, &mut self.residue);
            }
        }
        self.watch();
    }

    /// Agents watch the exceptions, and report those that have no connection.
    fn watch(&mut self) {
        if self.coordinator.is_busy() {
            return;
        }
        for (&backend, agent) in &mut self.agents {
            let own = self.residue.exceptions().iter().filter(|(_, at)| **at == backend);
            agent.watch(own.map(|(key, _)| *key).collect::<Vec<_>>());
            for key in agent.report_ended() {
                self.residue.ended(key);
            }
        }
    }

    fn restart_balancer(&mut self) {
        let at = self.rng.random_range(0..self.nodes.len());
        self.incarnations += 1;
        self.nodes[at] = Node::new(self.incarnations);
        self.seen[at].clear();
        *self.tally.changes.entry("balancer restarts").or_default() += 1;
    }

    /// A change of the pool, if the dice allow.
    fn change(&mut self) -> bool {
        let mut members = self.members.clone();
        let which = self.rng.random_range(0..members.len());
        let what = match self.rng.random_range(0..7) {
            0 | 1 => {
                let number = self.rng.random_range(0..NUMBERS);
                if members.len() >= 12 || members.iter().any(|m| m.backend == number) {
                    return false;
                }
                members.push(member(number, self.rng.random_range(1..=8)));
                self.agents.insert(number, AgentNode::new(number));
                self.coordinator.add_agent(number);
                "add"
            }
            2 if members.len() > 3 => {
                members.remove(which);
                "death"
            }
            3 | 4 => {
                members[which].weight = self.rng.random_range(1..=8);
                "reweight"
            }
            _ if members[which].role == Role::Draining => {
                members[which].role = Role::Serving;
                "undrain"
            }
            _ => {
                members[which].role = Role::Draining;
                "drain"
            }
        };
        if !members.iter().any(|m| m.effective_weight() > 0) {
            return false;
        }
        let gone = self.members[which].backend;
        self.members = members;
        self.residue.set_pool(&self.members).unwrap();
        if what == "death" {
            // Its connections are inevitably broken.
            self.live.retain(|live| live.backend != gone.get());
            self.agents.remove(&gone.get());
            self.coordinator.died(gone.get(), &mut self.residue);
        }
        self.coordinator.change(&mut self.residue);
        *self.tally.changes.entry(what).or_default() += 1;
        true
    }

    fn new_key(&mut self) -> StateKey {
        self.next_client += 1;
        let n = self.next_client;
        let mut address = [0; 16];
        if self.kind.wide {
            address[..4].copy_from_slice(&[0x20, 1, 0xd, 0xb8]);
        } else {
            address[10..12].copy_from_slice(&[0xff, 0xff]);
        }
        address[12..].copy_from_slice(&(0x0a00_0000 | n).to_be_bytes());
        let src_port = if self.kind.client { 0 } else { n as u16 };
        StateKey { address, src_port, dst_port: if self.kind.client { 0 } else { 443 } }
    }

    /// A few packets, each at any balancer.
    pub fn traffic(&mut self, packets: usize) {
        for _ in 0..packets {
            match self.rng.random_range(0..10) {
                0 | 1 if self.live.len() < self.crowd => self.start(),
                2 if self.live.len() * 2 > self.crowd && self.rng.random_bool(0.5) => self.end(),
                3 if !self.live.is_empty() => {
                    // A repeated SYN, or with client affinity another connection.
                    let at = self.rng.random_range(0..self.live.len());
                    self.send(at, true);
                }
                _ if !self.live.is_empty() => {
                    let at = self.rng.random_range(0..self.live.len());
                    self.send(at, false);
                }
                _ => {}
            }
        }
    }

    fn packet(&mut self, key: &StateKey, syn: bool) -> Decision {
        let at = self.rng.random_range(0..self.nodes.len());
        let starts = if self.kind.udp { self.seen[at].insert(*key) } else { syn };
        let verdict = self.nodes[at].packet(key, starts);
        if verdict.backend.is_err() {
            self.seen[at].remove(key);
        }
        verdict
    }

    fn start(&mut self) {
        // Keys are used again, sometimes, while their exceptions are still in the table.
        let again = self.retired.pop().filter(|_| self.rng.random_bool(0.2));
        let key = again.unwrap_or_else(|| self.new_key());
        match self.packet(&key, true).backend.map(u16::from) {
            Ok(backend) => {
                self.tally.flows += 1;
                if !self.is_member(backend) {
                    self.tally.misplaced += 1;
                    return;
                }
                if let Some(agent) = self.agents.get_mut(&backend) {
                    agent.started(key);
                }
                self.live.push(Live { key, backend, connections: 1 });
            }
            Err(_) => self.tally.held += 1,
        }
    }

    fn end(&mut self) {
        let at = self.rng.random_range(0..self.live.len());
        let live = &mut self.live[at];
        if let Some(agent) = self.agents.get_mut(&live.backend) {
            agent.ended(&live.key);
        }
        live.connections -= 1;
        if live.connections == 0 {
            let key = self.live.swap_remove(at).key;
            self.seen.iter_mut().for_each(|seen| {
                seen.remove(&key);
            });
            self.retired.push(key);
        }
    }

    fn send(&mut self, at: usize, syn: bool) {
        let live = self.live[at];
        self.tally.packets += 1;
        match self.packet(&live.key, syn).backend.map(u16::from) {
            Ok(backend) if !self.is_member(backend) => self.tally.lost += 1,
            Ok(backend) if backend != live.backend => {
                self.tally.violations += 1;
                // The connection is reset: it is counted once.
                if let Some(agent) = self.agents.get_mut(&live.backend) {
                    (0..live.connections).for_each(|_| agent.ended(&live.key));
                }
                self.live.swap_remove(at);
            }
            Ok(_) => {
                if syn && self.kind.client && live.connections < 5 {
                    self.live[at].connections += 1;
                    if let Some(agent) = self.agents.get_mut(&live.backend) {
                        agent.started(live.key);
                    }
                }
            }
            Err(Reason::InTransition) => {
                self.tally.held += 1;
                self.tally.held_of_live += u64::from(!syn);
            }
            Err(_) => self.tally.no_table += 1,
        }
    }

    fn is_member(&self, backend: u16) -> bool {
        self.members.iter().any(|member| member.backend == backend)
    }

    pub fn every_flow_sends(&mut self) {
        let mut at = self.live.len();
        while at > 0 {
            at -= 1;
            self.send(at, false);
        }
    }

    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// Live flows that are exceptions.
    pub fn live_exceptions(&self) -> usize {
        let table = self.residue.published();
        self.live.iter().filter(|live| table.exception(&live.key).is_some()).count()
    }

    /// Asks for another pool, and waits until it is in force.
    pub fn set_pool(&mut self, members: Vec<Member>) {
        for member in &members {
            self.coordinator.add_agent(member.backend.get());
            let agent = self.agents.entry(member.backend.get());
            agent.or_insert_with(|| AgentNode::new(member.backend.get()));
        }
        // The connections of those that leave are inevitably broken.
        self.live.retain(|live| members.iter().any(|member| member.backend == live.backend));
        self.members = members;
        self.residue.set_pool(&self.members).unwrap();
        self.coordinator.change(&mut self.residue);
        self.finish();
    }

    /// Fills the service with flows.
    pub fn fill(&mut self, flows: usize) {
        self.crowd = flows;
        while self.live.len() < flows {
            self.start();
        }
    }

    /// All flows end, and a last change lets their exceptions go.
    pub fn empty(&mut self) {
        self.crowd = 0;
        while !self.live.is_empty() {
            self.end();
        }
        self.watch();
        self.coordinator.change(&mut self.residue);
        self.finish();
    }
}
