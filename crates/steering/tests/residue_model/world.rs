//! The model: two balancers, three backends with agents, a coordinator, a network that loses,
//! delays, repeats and reorders, and clients whose packets meet any balancer at any time. The
//! coordinator, the balancers and the rule of what remains are the real ones.

use super::tables::{BACKENDS, FLOWS, Tiny, TinyBuild};
use crate::search;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use weir_steering::residue::{
    Answer, BalancerNode, Coordinator, Gate, Listing, Order, Request, Waiting, Window, Work,
};
use weir_steering::{BackendId, Decision, Memory, Question};

const BALANCERS: usize = 2;
const NOWHERE: u8 = u8::MAX;

/// A departure from the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// None: the protocol as it is.
    None,
    /// Balancers answer before the packets that had begun are decided.
    NoGrace,
    /// Agents are asked before SYNs on their way have arrived.
    NoTransit,
    /// Agents list nothing.
    NoListing,
    /// Agents do not list half-open connections.
    EstablishedOnly,
    /// Balancers do not tell their pending flows.
    NoPending,
    /// Nothing is frozen, although there are two balancers.
    NoFreeze,
    /// Flows may start again at a balancer as soon as it has committed.
    EarlyThaw,
    /// Balancers obey orders of earlier epochs, and out of turn.
    IgnoreEpochs,
    /// One balancer's answer counts for all.
    OneForAll,
    /// A connection that is said to have ended is not asked for again.
    TrustEnds,
    /// An exception that is said to have ended while a change is under way is let go by that change,
    /// although it was prepared with it.
    LateDoubts,
    /// Balancers drop the exceptions with the pending flows, when a change is over.
    ClearExceptions,
    /// The coordinator goes on without a balancer that still forwards.
    NoFence,
    /// A balancer that has lost its pending flows goes on as if it had not.
    SilentRestart,
    /// A restarted balancer takes an order meant for what it was before.
    AnyIncarnation,
    /// A restarted coordinator starts from its disk instead of asking.
    NoReport,
    /// Hold instead of Freeze.
    Hold,
    /// The same, where no SYN is repeated at another balancer while a change is under way.
    HoldPatient,
}

/// How much may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Budget {
    /// Flows, up to [`FLOWS`].
    pub flows: u8,
    /// Changes of the pool.
    pub changes: u8,
    /// Flows that end, so that their keys may be used again; also false reports of an end.
    pub reuses: u8,
    /// Balancers that restart.
    pub restarts: u8,
    /// Leases that run out.
    pub leases: u8,
    /// Coordinators that restart.
    pub crashes: u8,
    /// Backends that die.
    pub deaths: u8,
    /// Agents that do not answer in time.
    pub stale: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Stage {
    New,
    /// Its SYN is on the way to its backend, since before the coordinator began to wait or after.
    OnTheWay {
        old: bool,
    },
    /// The backend has its SYN. The client may send anything from now on, SYNs too.
    HalfOpen,
    /// The same, where the difference matters.
    Established,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Flow {
    home: u8,
    stage: Stage,
    /// Its backend's agent was given up: what happens to it is put down to that.
    excused: bool,
}

impl Flow {
    const NEW: Self = Self { home: NOWHERE, stage: Stage::New, excused: false };
}

/// A SYN that a balancer's program is working on, with what it has read.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Syn {
    balancer: u8,
    gate: Option<Gate<Tiny>>,
    /// The balancer has carried out an order since.
    old: bool,
}

/// What later packets of a flow may still be decided by: until a grace period is over, the gate
/// before the last order, if the flow had packets then.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Former {
    gate: Gate<Tiny>,
    live: [bool; FLOWS],
}

/// A state of everything.
///
/// Orders of the epoch under way may arrive at any time, and again; so may those of earlier epochs
/// (`late`). An answer arrives when it is given, which is all that matters of when: the coordinator
/// adds up answers and goes on when the last one is there. That repeated and late answers change
/// nothing is asserted with each answer.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct World {
    coordinator: Coordinator<u8, Tiny>,
    build: TinyBuild,
    disk: Tiny,
    balancers: [BalancerNode<u8, Tiny>; BALANCERS],
    formers: [Option<Former>; BALANCERS],
    syns: [Option<Syn>; FLOWS],
    lease_over: [bool; BALANCERS],
    /// It has lost its pending flows, and does not say so.
    forgetful: [bool; BALANCERS],
    flows: [Flow; FLOWS],
    dead: [bool; BACKENDS as usize],
    buried: [bool; BACKENDS as usize],
    late: BTreeSet<(u16, Order<Tiny>)>,
    waited: bool,
    left: Budget,
    /// A packet of a live connection reached another backend than its own.
    pub broken: bool,
    /// The same, where the backend's agent had been given up.
    pub excused: bool,
}

/// Where successors go.
type Sink = search::Sink<World>;

impl Sink {
    fn settled(&mut self, mut world: World, fault: Fault, label: impl FnOnce() -> String) {
        world.settle(fault);
        self.push(world, label);
    }
}

impl World {
    /// Both balancers have the same table, nobody is connected, and nothing is under way.
    pub fn new(budget: Budget, fault: Fault) -> Self {
        let window = match fault {
            Fault::NoFreeze => Window::Alone,
            Fault::Hold | Fault::HoldPatient => Window::Hold,
            _ => Window::Freeze,
        };
        let mut build = TinyBuild::new([0; FLOWS]);
        build.trusts_ends = fault == Fault::TrustEnds;
        build.doubts_late = fault == Fault::LateDoubts;
        build.adopts_nothing = fault == Fault::NoReport;
        let mut world = Self {
            coordinator: Coordinator::new(window, 1, [(0, 1), (1, 1)], 0..u16::from(BACKENDS)),
            disk: build.base,
            build,
            balancers: [BalancerNode::new(1), BalancerNode::new(1)],
            formers: [None, None],
            syns: [const { None }; FLOWS],
            lease_over: [false; BALANCERS],
            forgetful: [false; BALANCERS],
            flows: [Flow::NEW; FLOWS],
            dead: [false; BACKENDS as usize],
            buried: [false; BACKENDS as usize],
            late: BTreeSet::new(),
            waited: false,
            left: budget,
            broken: false,
            excused: false,
        };
        // The first table reaches both without incident.
        while world.coordinator.waiting() != Waiting::Nothing {
            world.coordinator.transit_passed(&mut world.build);
            for (agent, request) in world.coordinator.requests().collect::<Vec<_>>() {
                let listing = world.list(agent, &request, fault);
                world.coordinator.listing(listing, &mut world.build);
            }
            // Copies of these orders are still on the network.
            world.orders_become_late();
            for (id, order) in world.coordinator.orders().collect::<Vec<_>>() {
                let node = &mut world.balancers[usize::from(id)];
                node.receive(&order);
                if let Some(answer) = node.grace_ended(order.epoch, order.step) {
                    world.coordinator.answer(id, answer, &mut world.build);
                }
            }
        }
        world.prune(fault);
        world
    }

    /// All that can happen next.
    pub fn successors(&self, fault: Fault, sink: &mut Sink) {
        self.clients(fault, sink);
        self.programs(fault, sink);
        self.deliveries(fault, sink);
        self.waits(fault, sink);
        self.operator(sink, fault);
        self.accidents(fault, sink);
    }

    /// After each step: what follows from it at once, and whether the promise holds.
    fn settle(&mut self, fault: Fault) {
        if fault == Fault::OneForAll {
            self.forge();
        }
        let transit = self.coordinator.waiting() == Waiting::Transit;
        if transit && !self.waited {
            for flow in &mut self.flows {
                if let Stage::OnTheWay { old } = &mut flow.stage {
                    *old = true;
                }
            }
        }
        self.waited = transit;
        self.prune(fault);
        self.check();
    }

    /// Forgets late orders that could not be obeyed any more, after seeing that they are not.
    fn prune(&mut self, fault: Fault) {
        let again = self.left.restarts + self.left.leases > 0;
        if fault == Fault::IgnoreEpochs {
            // One is enough: a copy of the order that brought the first table.
            self.late.retain(|(to, order)| *to == 1 && matches!(order.work, Work::Open { .. }));
            return;
        }
        let balancers = &self.balancers;
        self.late.retain(|(to, order)| {
            let before = &balancers[usize::from(*to)];
            let mut after = before.clone();
            let mut order = order.clone();
            if fault == Fault::AnyIncarnation {
                order.incarnation = before.incarnation();
            }
            let ignored = after.receive(&order).is_none() && after == *before;
            !ignored || again && order.step == 0
        });
    }

    /// Whoever has not answered is taken to have, once one has.
    fn forge(&mut self) {
        let silent: Vec<_> = self.coordinator.orders().collect();
        if let [(id, order)] = &silent[..] {
            let &Order { epoch, step, incarnation, .. } = order;
            let answer = Answer { epoch, step, incarnation, pending: Vec::new(), state: None };
            self.coordinator.answer(*id, answer, &mut self.build);
        }
    }

    /// Packets of live connections, at any balancer, now: they go home or nowhere. They change
    /// nothing, so they need no steps of their own.
    fn check(&mut self) {
        for at in 0..FLOWS {
            let flow = self.flows[at];
            if !matches!(flow.stage, Stage::HalfOpen | Stage::Established) {
                continue;
            }
            let mut astray = false;
            for (balancer, node) in self.balancers.iter().enumerate() {
                let forgets = self.forgetful[balancer];
                let former = self.formers[balancer].as_ref().filter(|former| former.live[at]);
                for gate in node.gate().into_iter().chain(former.map(|former| &former.gate)) {
                    let question = Question::later(at as u8, 0);
                    let mut memory = Asked::of(node, forgets);
                    if let Ok(backend) = gate.decide(&question, &mut memory).backend {
                        let backend = backend.get();
                        let dead = self.dead[usize::from(backend)];
                        astray |= !dead && backend != u16::from(flow.home);
                    }
                }
            }
            self.broken |= astray && !flow.excused;
            self.excused |= astray && flow.excused;
        }
    }

    /// SYNs meet any balancer, and travel; flows end.
    fn clients(&self, fault: Fault, sink: &mut Sink) {
        for at in 0..usize::from(self.left.flows) {
            let flow = self.flows[at];
            for balancer in 0..BALANCERS {
                if self.may_start(at, balancer, fault) {
                    let mut next = self.clone();
                    let gate = self.balancers[balancer].gate().cloned();
                    next.syns[at] = Some(Syn { balancer: balancer as u8, gate, old: false });
                    sink.settled(next, fault, || {
                        format!("SYN of flow {at} at balancer {balancer}")
                    });
                }
            }
            let next_stage = match flow.stage {
                Stage::OnTheWay { .. } => Some(Stage::HalfOpen),
                Stage::HalfOpen if fault == Fault::EstablishedOnly => Some(Stage::Established),
                _ => None,
            };
            if let Some(stage) = next_stage {
                let mut next = self.clone();
                next.flows[at].stage = stage;
                sink.settled(next, fault, || format!("flow {at} is {stage:?}"));
            }
            let up = matches!(flow.stage, Stage::HalfOpen | Stage::Established);
            if up && self.syns[at].is_none() && self.left.reuses > 0 {
                let mut next = self.clone();
                next.left.reuses -= 1;
                next.flows[at] = Flow::NEW;
                for former in next.formers.iter_mut().flatten() {
                    former.live[at] = false;
                }
                sink.settled(next, fault, || format!("flow {at} ends"));
            }
        }
    }

    /// Not two copies of a SYN at once.
    fn may_start(&self, at: usize, balancer: usize, fault: Fault) -> bool {
        let flow = self.flows[at];
        let patient = fault == Fault::HoldPatient
            && flow.stage != Stage::New
            && self.coordinator.is_busy()
            && (0..BALANCERS).any(|other| {
                other != balancer && self.balancers[other].pending().contains_key(&(at as u8))
            });
        self.syns[at].is_none()
            && flow.stage != Stage::Established
            && self.balancers[balancer].gate().is_some()
            && !patient
    }

    /// A program decides its packet.
    fn programs(&self, fault: Fault, sink: &mut Sink) {
        for at in 0..FLOWS {
            let Some(syn) = &self.syns[at] else {
                continue;
            };
            let flow = at as u8;
            let balancer = usize::from(syn.balancer);
            let mut next = self.clone();
            next.syns[at] = None;
            let forgets = self.forgetful[balancer];
            let node = &mut next.balancers[balancer];
            let mut memory = Asked::of(node, forgets);
            let question = Question::first(flow, 0);
            let decision = syn.gate.as_ref().map(|gate| gate.decide(&question, &mut memory));
            let noted = memory.noted;
            if let Some(backend) = noted {
                node.note(flow, backend);
            }
            if let Some(Decision { backend: Ok(backend), .. }) = decision {
                next.forward(at, backend.get() as u8);
            }
            sink.settled(next, fault, || {
                format!("balancer {balancer} decides the SYN of flow {at}: {decision:?}")
            });
        }
    }

    fn forward(&mut self, at: usize, backend: u8) {
        let flow = &mut self.flows[at];
        if self.dead[usize::from(backend)] {
            return;
        }
        if flow.home == NOWHERE {
            *flow = Flow { home: backend, stage: Stage::OnTheWay { old: false }, ..Flow::NEW };
        } else if flow.home != backend {
            self.broken |= !flow.excused;
            self.excused |= flow.excused;
        }
    }

    /// An order arrives, or a request, which is answered.
    fn deliveries(&self, fault: Fault, sink: &mut Sink) {
        let orders = self.coordinator.orders().chain(self.late.iter().cloned());
        for (to, order) in orders {
            let mut next = self.clone();
            next.order(usize::from(to), &order, fault);
            if next != *self {
                sink.settled(next, fault, || format!("arrives at {to}: {order:?}"));
            }
        }
        for (agent, request) in self.coordinator.requests() {
            if self.dead[usize::from(agent)] {
                continue;
            }
            let mut next = self.clone();
            let listing = self.list(agent, &request, fault);
            next.coordinator.listing(listing.clone(), &mut next.build);
            let once = next.coordinator.clone();
            next.coordinator.listing(listing.clone(), &mut next.build);
            assert!(once == next.coordinator, "a repeated listing counts twice");
            sink.settled(next, fault, || format!("agent lists: {listing:?}"));
        }
    }

    fn order(&mut self, to: usize, order: &Order<Tiny>, fault: Fault) {
        let before = self.balancers[to].clone();
        let mut order = order.clone();
        if fault == Fault::IgnoreEpochs {
            // Once is enough.
            self.late.remove(&(to as u16, order.clone()));
        }
        match (fault, &mut order.work) {
            (Fault::IgnoreEpochs, _) => {
                let (epoch, next) = before.position();
                if (order.epoch, order.step + 1) < (epoch, next) {
                    (order.epoch, order.step) = (epoch, next);
                }
            }
            (Fault::EarlyThaw, Work::Commit { freeze, .. }) => *freeze = false,
            (Fault::ClearExceptions, Work::Open { base, .. }) => {
                *base = Tiny { generation: base.generation, ..Tiny::new(base.rows) };
            }
            (Fault::AnyIncarnation, _) => order.incarnation = before.incarnation(),
            _ => {}
        }
        if let Some(answer) = self.balancers[to].receive(&order) {
            self.answer(to, answer);
        }
        if before.position() == self.balancers[to].position() {
            return;
        }
        for syn in self.syns.iter_mut().flatten().filter(|syn| usize::from(syn.balancer) == to) {
            syn.old = true;
        }
        let live = |flow: Flow| matches!(flow.stage, Stage::HalfOpen | Stage::Established);
        let live = self.flows.map(live);
        self.formers[to] = before.gate().cloned().map(|gate| Former { gate, live });
    }

    /// An answer arrives; and once more, which changes nothing.
    fn answer(&mut self, from: usize, answer: Answer<u8, Tiny>) {
        self.coordinator.answer(from as u16, answer.clone(), &mut self.build);
        let once = self.coordinator.clone();
        self.coordinator.answer(from as u16, answer, &mut self.build);
        assert!(once == self.coordinator, "a repeated answer counts twice");
    }

    /// Before the epoch changes: what was ordered may still arrive.
    fn orders_become_late(&mut self) {
        self.late.extend(self.coordinator.orders());
    }

    fn list(&self, backend: u16, request: &Request<u8>, fault: Fault) -> Listing<u8> {
        let held = |at: &u8| {
            let flow = self.flows[usize::from(*at)];
            let there = match flow.stage {
                Stage::New | Stage::OnTheWay { .. } => false,
                Stage::HalfOpen => fault != Fault::EstablishedOnly,
                Stage::Established => true,
            };
            there && fault != Fault::NoListing && u16::from(flow.home) == backend
        };
        let asked =
            |at: &u8| request.rows.contains(u32::from(*at)) || request.doubtful.contains(at);
        let flows = (0..FLOWS as u8).filter(|at| held(at) && asked(at)).collect();
        Listing { backend, epoch: request.epoch, step: request.step, flows }
    }

    /// Grace periods end, and the time that a packet takes passes.
    fn waits(&self, fault: Fault, sink: &mut Sink) {
        for balancer in 0..BALANCERS {
            let Some((epoch, step)) = self.balancers[balancer].waits_for_grace() else {
                continue;
            };
            let old = |syn: &Syn| syn.old && usize::from(syn.balancer) == balancer;
            if self.syns.iter().flatten().any(old) && fault != Fault::NoGrace {
                continue;
            }
            let mut next = self.clone();
            next.formers[balancer] = None;
            if let Some(mut answer) = next.balancers[balancer].grace_ended(epoch, step) {
                if fault == Fault::NoPending || self.forgetful[balancer] {
                    answer.pending.clear();
                }
                next.answer(balancer, answer);
            }
            sink.settled(next, fault, || format!("balancer {balancer}: the grace period ends"));
        }
        let old = |flow: &Flow| flow.stage == Stage::OnTheWay { old: true };
        let arrived = !self.flows.iter().any(old) || fault == Fault::NoTransit;
        if self.coordinator.waiting() == Waiting::Transit && arrived {
            let mut next = self.clone();
            next.coordinator.transit_passed(&mut next.build);
            sink.settled(next, fault, || "coordinator: what was on its way has arrived".to_owned());
        }
    }

    /// The pool changes, and reports of ends come in, right or wrong.
    fn operator(&self, sink: &mut Sink, fault: Fault) {
        if self.left.changes > 0 {
            let masks: &[u8] = if self.left.flows > 1 { &[1, 3] } else { &[1] };
            for mask in masks {
                let mut next = self.clone();
                next.left.changes -= 1;
                for flow in (0..FLOWS).filter(|flow| mask >> flow & 1 != 0) {
                    next.build.pool[flow] = (next.build.pool[flow] + 1) % BACKENDS;
                }
                next.coordinator.change(&mut next.build);
                sink.settled(next, fault, || format!("the pool changes: rows {mask:02b}"));
            }
        }
        if self.left.reuses > 0 {
            for flow in (0..FLOWS as u8).filter(|flow| self.build.base.has_exception(*flow)) {
                let mut next = self.clone();
                if next.build.doubtful.insert(flow) {
                    next.left.reuses -= 1;
                    sink.settled(next, fault, || format!("exception {flow} is said to have ended"));
                }
            }
        }
    }

    fn accidents(&self, fault: Fault, sink: &mut Sink) {
        for balancer in 0..BALANCERS {
            self.balancer_accidents(balancer, fault, sink);
        }
        if self.left.crashes > 0 {
            let mut next = self.clone();
            next.left.crashes -= 1;
            next.crash();
            sink.settled(next, fault, || "coordinator: killed, and restarts".to_owned());
        }
        for backend in 0..BACKENDS {
            self.backend_accidents(backend, fault, sink);
        }
    }

    fn balancer_accidents(&self, balancer: usize, fault: Fault, sink: &mut Sink) {
        let node = &self.balancers[balancer];
        let id = balancer as u16;
        if self.left.restarts > 0 && node.gate().is_some() {
            let mut next = self.clone();
            next.left.restarts -= 1;
            if fault == Fault::SilentRestart {
                next.forgetful[balancer] = true;
            } else {
                next.balancers[balancer] = BalancerNode::new(node.incarnation() + 1);
            }
            next.formers[balancer] = None;
            for syn in &mut next.syns {
                syn.take_if(|syn| usize::from(syn.balancer) == balancer);
            }
            sink.settled(next, fault, || format!("balancer {balancer}: restarts"));
        }
        if node.gate().is_none() {
            let mut next = self.clone();
            let incarnation = node.incarnation();
            next.orders_become_late();
            next.coordinator.hello(id, incarnation, &mut next.build);
            if next.coordinator != self.coordinator {
                next.lease_over[balancer] = false;
                sink.settled(next, fault, || format!("balancer {balancer}: hello"));
            }
        }
        if self.left.leases > 0 && node.gate().is_some() {
            let mut next = self.clone();
            next.left.leases -= 1;
            next.lease_over[balancer] = true;
            if fault != Fault::NoFence {
                next.balancers[balancer].lease_ended();
                next.formers[balancer] = None;
            }
            sink.settled(next, fault, || format!("balancer {balancer}: its lease ends"));
        }
        let at = |syn: &Syn| usize::from(syn.balancer) == balancer;
        if self.lease_over[balancer] && !self.syns.iter().flatten().any(at) {
            let mut next = self.clone();
            next.orders_become_late();
            next.lease_over[balancer] = false;
            next.coordinator.expel(id, &mut next.build);
            sink.settled(next, fault, || format!("coordinator: expels balancer {balancer}"));
        }
    }

    /// What is on its disk, and the numbers that it counts there, stay.
    fn crash(&mut self) {
        self.orders_become_late();
        self.build = self.build.restarted(self.disk);
        let agents = (0..u16::from(BACKENDS)).filter(|b| !self.buried[usize::from(*b)]);
        let window = self.coordinator.window();
        let epoch = self.coordinator.epoch() + 1;
        self.coordinator = Coordinator::new(window, epoch, [(0, 1), (1, 1)], agents);
        self.waited = false;
        self.lease_over = [false; BALANCERS];
    }

    fn backend_accidents(&self, backend: u8, fault: Fault, sink: &mut Sink) {
        let at = usize::from(backend);
        if self.left.deaths > 0 && !self.dead[at] {
            let mut next = self.clone();
            next.left.deaths -= 1;
            next.dead[at] = true;
            for flow in &mut next.flows {
                if flow.home == backend {
                    *flow = Flow::NEW;
                }
            }
            sink.settled(next, fault, || format!("backend {backend} dies"));
        }
        if self.dead[at] && !self.buried[at] {
            let mut next = self.clone();
            next.buried[at] = true;
            next.orders_become_late();
            next.coordinator.died(u16::from(backend), &mut next.build);
            sink.settled(next, fault, || format!("coordinator: backend {backend} is dead"));
        }
        let asked = self.coordinator.requests().any(|(agent, _)| agent == u16::from(backend));
        if self.left.stale > 0 && asked {
            let mut next = self.clone();
            next.left.stale -= 1;
            next.coordinator.give_up_agent(u16::from(backend), &mut next.build);
            for flow in &mut next.flows {
                flow.excused |= flow.home == backend;
            }
            sink.settled(next, fault, || format!("coordinator: gives up agent {backend}"));
        }
    }

    /// How many agents were given up.
    pub fn stale_agents(&self) -> u32 {
        self.coordinator.counts().stale_agents
    }
}

/// A balancer's pending flows, of which nobody hears if it forgets; and what the decision notes.
struct Asked<'a> {
    pending: Option<&'a BTreeMap<u8, u16>>,
    noted: Option<u16>,
}

impl<'a> Asked<'a> {
    fn of(node: &'a BalancerNode<u8, Tiny>, forgets: bool) -> Self {
        Self { pending: (!forgets).then(|| node.pending()), noted: None }
    }
}

impl Memory<u8> for Asked<'_> {
    fn pending(&mut self, question: &Question<u8>) -> Option<BackendId> {
        self.pending?.get(&question.key).copied().and_then(BackendId::new)
    }

    fn note_pending(&mut self, _: &Question<u8>, backend: BackendId) -> bool {
        self.noted = Some(backend.get());
        true
    }
}
