//! A method of `weir_steering` under simulation: one adapter for all.

use super::memory::Remembered;
use super::server;
use crate::flow::Traffic;
use crate::method::{Change, Effects, FlowRef, Gauges, Method, NOBODY, Placed, Probe, Route};
use weir_hash::{HashKey, Key};
use weir_steering::{Decision, EventKind, Memory, NO_BACKEND, Question, Signals};

/// What a simulated method adds to the decision of `weir_steering`: its table, and how that follows
/// the pool.
pub trait Face {
    /// Whether the balancer has to see the ends of flows.
    const FINS: bool = false;

    /// The key that flows are hashed under at a balancer; where they are grouped in rows, the same
    /// everywhere and for ever.
    fn hash_key(&self, balancer: u16) -> &HashKey;

    /// Decides a packet at a balancer, by the table of `weir_steering`
    /// ([`Decide::decide`](weir_steering::Decide::decide)).
    fn decide<M: Memory<u64>>(
        &self,
        balancer: u16,
        question: &Question<u64>,
        memory: &mut M,
    ) -> Decision;

    /// See [`Method::rows`].
    fn rows(&self) -> usize {
        1
    }

    /// The row of a flow by its hash.
    fn row_of(&self, _hash: u64) -> u32 {
        0
    }

    /// Where the row of a question points, exceptions apart.
    fn row_points_at(&self, _question: &Question<u64>) -> u16 {
        NO_BACKEND
    }

    /// Follows the pool. `effects` gets the rows and flows whose answers are not what they were.
    fn change(
        &mut self,
        changes: &[Change],
        memories: &mut [Remembered],
        traffic: &mut Traffic,
        effects: &mut Effects,
    );

    /// A balancer has reported a start or an end.
    fn reported(&mut self, _flow: FlowRef, _server: u16, _kind: EventKind) {}

    /// A new flow was placed.
    fn placed(&mut self, _server: u16, _traffic: &mut Traffic, _effects: &mut Effects) {}

    /// The timestamp that the server's answer to a first packet has when it leaves the balancer,
    /// if the method looks at answers.
    fn answer(&self, _flow: FlowRef, _now: f64, _cookie: Option<u16>) -> Option<u32> {
        None
    }

    /// The flow has ended, as its server says.
    fn ended(&mut self, _flow: FlowRef) {}

    /// Where the server passes a packet on that it does not hold.
    fn second(&self, _flow: FlowRef) -> u16 {
        NOBODY
    }

    /// Servers have reported their loads.
    fn reports(&mut self, _loads: &[(u16, u64)], _memories: &mut [Remembered]) {}

    /// See [`Method::gauges`].
    fn gauges(&self, memories: &[Remembered]) -> Gauges;
}

/// A method, played through [`Decide`](weir_steering::Decide) with a memory for each balancer.
///
/// Packets that would leave nothing behind are not played: the decision is asked for with a memory
/// that only looks.
#[derive(Debug)]
pub struct Steered<F> {
    pub(crate) face: F,
    /// Of each balancer; the last one's is all others', too.
    pub(crate) memories: Vec<Remembered>,
}

impl<F: Face> Steered<F> {
    /// A method that remembers nothing.
    pub(super) fn alone(face: F) -> Self {
        Self { face, memories: vec![Remembered::new(None)] }
    }

    fn memory_of(&self, balancer: u16) -> usize {
        usize::from(balancer).min(self.memories.len() - 1)
    }

    fn question(&self, flow: FlowRef, signals: Signals, now: f64) -> Question<u64> {
        let hash = flow.id.hash(self.face.hash_key(flow.balancer));
        // A SYN has a timestamp that echoes nothing.
        let signals = signals.with_echo(flow.echo.or(signals.starts.then_some(0)));
        Question { signals, now: now as u32, ..Question::later(flow.id, hash) }
    }

    /// What a packet would meet, and whether it would leave something behind.
    fn rehearse(&self, flow: FlowRef, signals: Signals) -> (Decision, bool) {
        let mut memory = self.memories[self.memory_of(flow.balancer)].watch(flow);
        let question = self.question(flow, signals, 0.0);
        let decision = self.face.decide(flow.balancer, &question, &mut memory);
        (decision, memory.effect())
    }

    /// Plays a packet.
    fn play(
        &mut self,
        flow: FlowRef,
        signals: Signals,
        traffic: &mut Traffic,
        effects: &mut Effects,
    ) -> Decision {
        let place = self.memory_of(flow.balancer);
        if self.memories[place].connections.is_some() && self.rehearse(flow, signals).1 {
            self.memories[place].prepare(flow, traffic, &mut effects.flows);
        }
        let question = self.question(flow, signals, traffic.now());
        let memory = &mut self.memories[place];
        memory.enter(flow);
        let decision = self.face.decide(flow.balancer, &question, memory);
        for (backend, kind) in memory.reports.drain(..) {
            self.face.reported(flow, backend.get(), kind);
        }
        decision
    }

    fn route(&self, flow: FlowRef, decision: Decision) -> Route {
        Route { server: server(decision.slot()), second: self.face.second(flow) }
    }
}

impl<F: Face> Method for Steered<F> {
    fn rows(&self) -> usize {
        self.face.rows()
    }

    fn row_of(&self, id: u64) -> u32 {
        self.face.row_of(id.hash(self.face.hash_key(0)))
    }

    fn first(
        &mut self,
        flow: FlowRef,
        traffic: &mut Traffic,
        effects: &mut Effects,
    ) -> Option<Placed> {
        let decision = self.play(flow, Signals::FIRST, traffic, effects);
        let placed = Placed::at_some(server(decision.slot()))?;
        self.face.placed(placed.server, traffic, effects);
        let place = self.memory_of(flow.balancer);
        self.memories[place].opened(placed.server);
        let echo = self.face.answer(flow, traffic.now(), decision.cookie);
        if echo.is_some() {
            // The client's ACK, which ends the handshake.
            self.play(FlowRef { echo, ..flow }, Signals::LATER, traffic, effects);
        }
        Some(Placed { echo, ..placed })
    }

    fn probe(&self, flow: FlowRef) -> Probe {
        let (decision, effect) = self.rehearse(flow, Signals::LATER);
        Probe { route: self.route(flow, decision), effect }
    }

    fn packet(&mut self, flow: FlowRef, traffic: &mut Traffic, effects: &mut Effects) -> Route {
        let decision = self.play(flow, Signals::LATER, traffic, effects);
        self.route(flow, decision)
    }

    /// The balancer that the FIN passes may forget the flow; one that has seen the flow earlier
    /// hears nothing of it.
    fn end(&mut self, flow: FlowRef, traffic: &mut Traffic) {
        let place = self.memory_of(flow.balancer);
        if F::FINS {
            let fin = Signals { ends: true, ..Signals::LATER };
            let decision = self.play(flow, fin, traffic, &mut Effects::default());
            self.memories[place].closed(decision);
        }
        self.face.ended(flow);
        for (at, memory) in self.memories.iter_mut().enumerate() {
            if at == place {
                memory.end(flow, traffic);
            } else if let Some(connections) = &memory.connections {
                connections.table_mut().end_elsewhere(flow.into(), traffic);
            }
        }
    }

    /// What servers have reported goes with the server. An entry of a connection table that names
    /// another one is found again.
    fn lost(&mut self, flow: FlowRef, _: &mut Traffic) {
        self.face.ended(flow);
        let place = self.memory_of(flow.balancer);
        self.memories[place].lost(flow);
    }

    fn moves(&mut self, flow: FlowRef, to: u16, traffic: &mut Traffic) {
        let (from, to) = (self.memory_of(flow.balancer), self.memory_of(to));
        if let Some(connections) = &self.memories[from].connections {
            connections.table_mut().leaves(flow.into(), traffic);
        }
        if let Some(connections) = &self.memories[to].connections {
            connections.table_mut().comes(flow.into(), traffic.now());
        }
    }

    fn reports(&mut self, loads: &[(u16, u64)]) {
        self.face.reports(loads, &mut self.memories);
    }

    fn change(&mut self, changes: &[Change], traffic: &mut Traffic, effects: &mut Effects) {
        for memory in &mut self.memories {
            for change in changes {
                match *change {
                    Change::Add(server) => memory.incarnations.join(server),
                    Change::Remove(server) => memory.incarnations.leave(server),
                    _ => {}
                }
            }
        }
        self.face.change(changes, &mut self.memories, traffic, effects);
        for memory in &self.memories {
            if let Some(connections) = &memory.connections {
                connections.take_dropped(&mut effects.flows);
            }
        }
    }

    fn gauges(&self, _: &Traffic) -> Gauges {
        self.face.gauges(&self.memories)
    }
}
