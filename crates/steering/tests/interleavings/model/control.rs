//! What the control plane does: the actions of [`Update`], as [`go_on`] reads them, a step at a time.

use super::fault::Fault;
use super::state::{After, Cpu, Entry, Op, Stage, State};
use super::text::{flags_text, slot_text};
use super::{NONE, PENDING, RECORD, Rules, Sink};
use std::fmt::Write as _;
use weir_steering::update::{Perform, Progress, go_on};
use weir_steering::{Flags, Update};

impl State {
    /// One step of the control plane, with all its outcomes.
    pub(super) fn control_steps(&self, rules: &Rules, sink: &mut Sink) {
        let mut next = *self;
        if self.control.failures > 0 {
            self.failures(rules, sink);
        }
        match self.control.op {
            Op::Rest if self.control.updates == 0 => {}
            Op::Rest => {
                next.control.updates -= 1;
                next.begin_update(rules);
                sink.push(next, || "control: begins an update".into());
            }
            Op::SetFlags(flags) => {
                let first = flags & RECORD | self.flags & PENDING;
                if rules.fault == Fault::TwoStores && self.flags != first {
                    next.flags = first;
                } else {
                    next.set_flags(rules, flags);
                    next.proceed(rules);
                }
                sink.push(next, || format!("control: sets flags: {}", flags_text(next.flags)));
            }
            Op::GraceBegin => {
                for cpu in &mut next.cpus {
                    cpu.waited = cpu.stage != Stage::Idle;
                }
                next.control.op = Op::GraceEnd;
                sink.push(next, || "control: begins to wait for packets".into());
            }
            Op::GraceEnd if self.cpus.iter().any(|cpu| cpu.waited) => {}
            Op::GraceEnd => {
                next.proceed(rules);
                sink.push(next, || "control: has waited for them".into());
            }
            Op::CollectBegin => {
                next.collect_part(rules, 0);
                sink.push(next, || "control: begins to collect".into());
            }
            Op::TakeUp => {
                next.collect_part(rules, 0);
                sink.push(next, || "control: takes up the pending flows that it has read".into());
            }
            Op::Drain | Op::ReadPending | Op::Settle => self.each_flow(rules, sink),
            Op::Build => self.build(rules, sink),
            Op::Swap => {
                next.show(rules, None);
                next.shown(rules);
                sink.push(next, || {
                    let mut text = "control: publishes the table".to_owned();
                    for flow in 0..rules.flows {
                        let slot = slot_text(self.flows[flow].built);
                        let _ = write!(text, "; flow {flow}: {slot}");
                    }
                    let reading = |cpu: &&Cpu| cpu.stage == Stage::ReadFlags;
                    if self.cpus.iter().any(|cpu| reading(&cpu)) {
                        let _ = write!(text, "; packets that hold the old one read its flags");
                    }
                    text
                });
            }
            Op::LatePins => {
                for flow in &mut next.flows[..rules.flows] {
                    if flow.pin != NONE {
                        flow.pinned = flow.pin;
                    }
                }
                next.proceed(rules);
                sink.push(next, || "control: pins".into());
            }
            Op::SettleBegin => {
                next.control.left = 0;
                next.control.op = Op::Settle;
                next.flows[..rules.flows].iter_mut().for_each(|flow| flow.todo = 1);
                sink.push(next, || "control: begins to settle".into());
            }
            Op::Unpin | Op::UnpinLate => {
                next.unpin(rules, None);
                match self.control.op {
                    Op::Unpin => next.proceed(rules),
                    _ => next.settled(rules),
                }
                sink.push(next, || "control: removes pins that no table needs".into());
            }
        }
    }

    /// Drain, ReadPending, Settle: one flow at a time, in any order.
    pub(super) fn each_flow(&self, rules: &Rules, sink: &mut Sink) {
        for at in 0..rules.flows {
            let now = self.flows[at];
            if now.todo == 0 {
                continue;
            }
            let mut next = *self;
            let flow = &mut next.flows[at];
            let early = rules.fault == Fault::ConsumeBeforeLog;
            let text = match (self.control.op, now.todo) {
                (Op::Drain, todo) => {
                    next.collect_part(rules, at);
                    if (todo == 1) == early { "consumes its report" } else { "logs its report" }
                }
                (Op::ReadPending, _) => {
                    flow.found = now.pending;
                    flow.todo = 0;
                    if next.flows.iter().all(|flow| flow.todo == 0) {
                        next.collect_part(rules, at);
                    }
                    "reads its pending entry"
                }
                (_, 1) => {
                    let (over, left) = next.judged(rules, at);
                    next.flows[at].todo = if over { 2 } else { 0 };
                    next.control.left += left;
                    next.flows_settled(rules);
                    "compares its pending entry"
                }
                (_, _) => {
                    flow.pending = NONE;
                    flow.todo = 0;
                    next.flows_settled(rules);
                    "deletes its pending entry"
                }
            };
            sink.push(next, || format!("control: flow {at}: {text}"));
        }
    }

    pub(super) fn flows_settled(&mut self, rules: &Rules) {
        if self.flows.iter().any(|flow| flow.todo != 0) {
        } else if rules.fault == Fault::UnpinLate {
            self.control.op = Op::UnpinLate;
        } else {
            self.settled(rules);
        }
    }

    pub(super) fn settled(&mut self, rules: &Rules) {
        let left = std::mem::take(&mut self.control.left);
        let progress = self.left(rules, left);
        self.control.update.took(progress);
        self.begin_action(rules);
    }

    /// The two flags, at once.
    pub(super) fn set_flags(&mut self, rules: &Rules, flags: u8) {
        self.flags = flags;
        for cpu in &mut self.cpus {
            cpu.early |= rules.marks > 0 && flags == 0 && cpu.stage != Stage::Idle;
        }
    }

    /// Packets follow the table.
    pub(super) fn shown(&mut self, rules: &Rules) {
        if rules.fault == Fault::PinAfterPublish {
            self.control.op = Op::LatePins;
        } else {
            self.proceed(rules);
        }
    }

    pub(super) fn begin_update(&mut self, rules: &Rules) {
        self.control.update = match rules.fault {
            Fault::OneTry => Update::begin_with_tries(1),
            _ => Update::begin(),
        };
        self.control.kept_off = false;
        for flow in &mut self.flows[..rules.flows] {
            flow.built = Entry::EMPTY;
            if rules.fault == Fault::FailureForgetsCollected {
                flow.before = flow.state;
            }
        }
        self.begin_action(rules);
    }

    /// The action is performed: on to the next one.
    pub(super) fn proceed(&mut self, rules: &Rules) {
        self.control.update.took(Progress::Done);
        self.begin_action(rules);
    }

    /// Begins the action that the protocol wants next.
    pub(super) fn begin_action(&mut self, rules: &Rules) {
        if !go_on(&mut Begins { state: self, rules }) {
            self.control.op = Op::Rest;
        }
    }
}

/// An action begins, whose steps follow; or it is left out, as the fault wants it.
struct Begins<'a> {
    state: &'a mut State,
    rules: &'a Rules,
}

impl Begins<'_> {
    fn with(&mut self, op: Op) -> Progress {
        self.state.control.op = op;
        Progress::UnderWay
    }
}

impl Perform for Begins<'_> {
    fn update(&mut self) -> &mut Update {
        &mut self.state.control.update
    }

    fn set_flags(&mut self, record: bool, pending: bool) -> Progress {
        let word = Flags::default().with(Flags::RECORD, record).with(Flags::PENDING, pending);
        self.state.control.after = if record { After::Record } else { After::Stop };
        match self.rules.fault {
            Fault::RecordAfterPublish if record => Progress::Done,
            Fault::StopPendingEarly if !record => self.with(Op::SetFlags(0)),
            _ => self.with(Op::SetFlags(word.0 as u8)),
        }
    }

    fn grace(&mut self) -> Progress {
        let fault = self.rules.fault;
        let skipped = match self.state.control.after {
            After::Record => fault == Fault::NoFirstGrace,
            After::Publish => matches!(fault, Fault::NoSecondGrace | Fault::SettleBeforeGrace),
            After::Stop => matches!(fault, Fault::NoThirdGrace | Fault::SettleBeforeGrace),
        };
        if skipped { Progress::Done } else { self.with(Op::GraceBegin) }
    }

    fn collect(&mut self) -> Progress {
        self.with(Op::CollectBegin)
    }

    fn publish(&mut self) -> Progress {
        self.state.control.after = After::Publish;
        self.with(Op::Build)
    }

    fn retire(&mut self) -> Progress {
        match self.rules.fault {
            Fault::UnpinLate => Progress::Done,
            _ => self.with(Op::Unpin),
        }
    }

    fn settle(&mut self) -> Progress {
        self.with(Op::SettleBegin)
    }
}
