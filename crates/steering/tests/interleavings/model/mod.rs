//! The model: two CPUs, a few flows, one service's maps, and a control plane that is driven by
//! the real [`Update`], and consists of the real [`parts`](weir_steering::update::parts) of its actions.
//!
//! What the driver does between two calls of its plane is the driver's own code here as well: how far a
//! *collect* has come, and what it takes up; with which pins and flags a table is published, and what is
//! remembered of it; which pins go; which pending flows do, and what the update is told of the others. The
//! model keeps only, as a small value, where the driver would be.
//!
//! What is the model's own:
//!
//! - The plane and the services ([`driven`]), which are the world that the driver meets. The adversary is
//!   in them: which table is built, and what fails.
//! - What happens *within* a call. It is one step for the driver and several for packets, so the model takes
//!   its accesses apart: a report is recorded and then consumed, the pending table is read flow by flow before
//!   [`pending`](weir_steering::update::Plane::pending) answers, and is cleared flow by flow. While settling,
//!   flows are judged one by one, by the driver's code, in any order with the deletions: the driver reads all
//!   before it deletes any, which is one of these orders.
//! - Flags and grace periods: of these the driver only makes the call.
//! - There is one service. What services share (grace periods, room, a place in the pass) is the driver's, in
//!   tests/driver.rs and the histories; so are connections that the connection table has, pins beside those of
//!   tables, and what is frozen.
//!
//! That an action ends where the whole driver's does, on the same plane and services, is compared on random
//! walks ([`beside`]).
//!
//! Backends are numbers that mean something only within one flow: the property compares the
//! backends of one flow's packets and nothing else, so states that differ by a renaming are one.
//! A table is, for each flow, the slot that its Dcode leads to. Where a flow that the build does
//! not contain falls is the adversary's choice in every build: another backend than ever before,
//! by chance the right one, or a reserved Dcode.

pub mod beside;
mod control;
mod driven;
mod failures;
mod fault;
mod packet;
mod state;
mod symmetry;
mod tables;
mod text;

pub use fault::Fault;
pub use state::State;

use crate::search;
use state::{After, Control, Cpu, Entry, Flow, Op, Stage};
use weir_steering::{Flags, Update};

/// No backend, no entry, nobody.
const NONE: u8 = u8::MAX;
const CPUS: usize = 2;
/// Flows that a model can have.
pub const MAX_FLOWS: usize = 3;
const RECORD: u8 = Flags::RECORD as u8;
const PENDING: u8 = Flags::PENDING as u8;

/// What to explore.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Flows that may start, up to [`MAX_FLOWS`].
    pub flows: usize,
    /// Updates in sequence.
    pub updates: u8,
    /// Times that the control plane may die.
    pub crashes: u8,
    /// Times that a flow may end, be forgotten, and another one with its key may start.
    pub reuses: u8,
    /// Actions that may fail.
    pub failures: u8,
    /// Backends that may be found down.
    pub marks: u8,
    /// Reports that may be taken up between the steps of an update, beside those that are collected.
    pub drains: u8,
    /// Departure from the protocol.
    pub fault: Fault,
}

/// Where successors go.
type Sink = search::Sink<State>;

/// All states in which a service can be found before anything happens.
pub fn initial(rules: &Rules) -> Vec<State> {
    let mut states = vec![State {
        flows: [Flow::NEW; MAX_FLOWS],
        cpus: [Cpu::IDLE; CPUS],
        flags: 0,
        control: Control {
            update: Update::begin(),
            op: Op::Rest,
            after: After::Record,
            left: 0,
            updates: rules.updates,
            crashes: rules.crashes,
            failures: rules.failures,
            marks: rules.marks,
            drains: rules.drains,
            kept_off: false,
            pins_known: true,
            unread: false,
            doubtful: false,
        },
        reuses: rules.reuses,
        broken: false,
    }];
    for flow in 0..rules.flows {
        states = states
            .into_iter()
            .flat_map(|state| {
                state.slots_for(flow).into_iter().map(move |entry| {
                    let mut state = state;
                    state.flows[flow].entry = entry;
                    state
                })
            })
            .collect();
    }
    states
}

impl State {
    /// Whether flows that start are noted although no update is under way: the pending table would
    /// fill up, and then none could start.
    pub fn records_for_ever(&self) -> bool {
        self.control.op == Op::Rest && self.flags & RECORD != 0
    }

    /// All that can happen next.
    pub fn successors(&self, rules: &Rules, sink: &mut Sink) {
        self.meanwhile(rules, sink);
        self.control_steps(rules, sink);
        if self.control.crashes > 0 {
            let mut next = *self;
            next.crash(rules);
            sink.push(next, || "control: killed; restarts with its log and updates anew".into());
        }
    }

    /// What can happen next that is no step of an update.
    fn meanwhile(&self, rules: &Rules, sink: &mut Sink) {
        for cpu in 0..CPUS {
            if self.cpus[cpu].stage == Stage::Idle {
                // Idle CPUs are interchangeable.
                if cpu == 0 || self.cpus[0].stage != Stage::Idle {
                    self.arrivals(cpu, rules, sink);
                }
            } else {
                self.packet_step(cpu, rules, sink);
            }
        }
        self.ends(rules, sink);
        self.marks(rules, sink);
        self.drains(rules, sink);
    }

    /// A backend is found down to which the published table leads: its flows are broken, and new ones are kept
    /// from it while packets ask for pending flows. The pool of an update under way is as it was.
    pub(super) fn marks(&self, rules: &Rules, sink: &mut Sink) {
        let free = match self.control.op {
            Op::Settle | Op::UnpinLate => false,
            Op::SetFlags(0) => rules.fault == Fault::MarkBeforeClear,
            // It waits for the packets that are under way.
            _ => {
                let early = self.cpus.iter().any(|cpu| cpu.early);
                !early || rules.fault == Fault::MarkWithoutGrace
            }
        };
        for (at, flow) in self.flows.iter().enumerate().take(rules.flows) {
            if self.control.marks == 0 || !free || flow.down != NONE || flow.entry.reserved() {
                continue;
            }
            let backend = flow.entry.owner;
            // Copies of a packet to it that are under way are no sign of life.
            if flow.home == backend && self.cpus.iter().any(|cpu| cpu.busy_with(at)) {
                continue;
            }
            let mut next = *self;
            next.control.marks -= 1;
            next.control.kept_off |= self.control.op != Op::Rest;
            next.flows[at].down = backend;
            if flow.home == backend {
                next.flows[at].home = NONE;
            }
            sink.push(next, || format!("control: finds {} down", text::backend_text(backend)));
        }
    }

    /// A report is taken up at any time, in the midst of an update: while a table is built it is not in that. Not
    /// while pending flows are settled, which is one step of the driver.
    pub(super) fn drains(&self, rules: &Rules, sink: &mut Sink) {
        let settles = matches!(self.control.op, Op::Settle | Op::UnpinLate | Op::Drain);
        if self.control.drains == 0 || settles {
            return;
        }
        for (at, flow) in self.flows.iter().enumerate().take(rules.flows) {
            if flow.report == NONE {
                continue;
            }
            let mut next = *self;
            next.control.drains -= 1;
            let flow = &mut next.flows[at];
            (flow.log, flow.state, flow.idle) = (flow.report, flow.report, false);
            // In the table that is built, too, as far as anybody asks the draft for it.
            if rules.fault == Fault::ReportCountsAsBuilt && flow.built != Entry::EMPTY {
                flow.pending = NONE;
            }
            flow.report = NONE;
            sink.push(next, || {
                format!("control: flow {at}: logs and consumes its report, meanwhile")
            });
        }
    }

    /// Flows end, and are forgotten.
    pub(super) fn ends(&self, rules: &Rules, sink: &mut Sink) {
        for (at, flow) in self.flows.iter().enumerate().take(rules.flows) {
            let mut next = *self;
            if self.reuses > 0
                && flow.home != NONE
                && !self.cpus.iter().any(|cpu| cpu.busy_with(at))
            {
                next.reuses -= 1;
                next.flows[at].home = NONE;
                next.flows[at].idle = true;
                sink.push(next, || format!("flow {at} ends; its key may be used again"));
            }
            // The control plane is one thread: not between a record and its report.
            if flow.idle && flow.state != NONE && flow.todo != 2 {
                let mut next = *self;
                next.flows[at].state = NONE;
                next.flows[at].log = NONE;
                if rules.fault == Fault::SweepDeletesPending {
                    next.flows[at].pending = NONE;
                }
                sink.push(next, || format!("control: forgets flow {at}, which was idle"));
            }
        }
    }
}
