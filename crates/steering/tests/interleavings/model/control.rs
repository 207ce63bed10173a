//! What the control plane does: the actions of [`Update`], as [`go_on`] reads them, a step at a time.

use super::fault::Fault;
use super::state::{After, Cpu, Entry, Flow, Op, Stage, State};
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
                    next.flags = flags;
                    for cpu in &mut next.cpus {
                        cpu.early |= rules.marks > 0 && flags == 0 && cpu.stage != Stage::Idle;
                    }
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
                next.collect_begin(rules);
                sink.push(next, || "control: begins to collect".into());
            }
            Op::Drain | Op::ReadPending | Op::Settle => self.each_flow(rules, sink),
            Op::Build => self.build(rules, sink),
            Op::Swap => {
                next.swap(rules);
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
                    if flow.pin {
                        flow.pinned = flow.state;
                    }
                }
                next.proceed(rules);
                sink.push(next, || "control: pins".into());
            }
            Op::SettleBegin => {
                next.control.left = 0;
                next.begin_flows(rules, Op::Settle, |_| true);
                sink.push(next, || "control: begins to settle".into());
            }
            Op::Unpin | Op::UnpinLate => {
                for flow in &mut next.flows[..rules.flows] {
                    if !self.needs_pin(flow) && rules.fault != Fault::NeverUnpin {
                        flow.pinned = NONE;
                    }
                }
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
            let text = match (self.control.op, now.todo) {
                (Op::Drain, 1) if rules.fault == Fault::ConsumeBeforeLog => {
                    flow.state = now.report;
                    flow.report = NONE;
                    flow.idle = false;
                    flow.todo = 2;
                    "consumes its report"
                }
                (Op::Drain, 1) => {
                    flow.log = now.report;
                    flow.todo = 2;
                    "logs its report"
                }
                (Op::Drain, _) if rules.fault == Fault::ConsumeBeforeLog => {
                    flow.log = now.state;
                    flow.todo = 0;
                    "logs its report"
                }
                (Op::Drain, _) => {
                    flow.state = now.log;
                    flow.idle = false;
                    flow.todo = 0;
                    // A later report of the same key stays for the next time.
                    if now.report == now.log {
                        flow.report = NONE;
                    }
                    "consumes its report"
                }
                (Op::ReadPending, _) => {
                    if now.pending != NONE {
                        flow.state = now.pending;
                        flow.idle = false;
                    }
                    flow.todo = 0;
                    "reads its pending entry"
                }
                (_, 1) => {
                    let draft = rules.fault == Fault::DraftCountsAsPublished;
                    let table =
                        if draft && now.built != Entry::EMPTY { now.built } else { now.entry };
                    let agrees = table == Entry::free(now.pending);
                    if now.pending == NONE {
                        flow.todo = 0;
                    } else if agrees || rules.fault == Fault::SettleAll {
                        flow.todo = 2;
                    } else {
                        flow.todo = 0;
                        next.control.left += u8::from(!table.reserved());
                    }
                    "compares its pending entry"
                }
                (_, _) => {
                    flow.pending = NONE;
                    flow.todo = 0;
                    "deletes its pending entry"
                }
            };
            next.flows_done(rules);
            sink.push(next, || format!("control: flow {at}: {text}"));
        }
    }

    pub(super) fn begin_flows(&mut self, rules: &Rules, op: Op, todo: impl Fn(&Flow) -> bool) {
        self.control.op = op;
        for flow in &mut self.flows[..rules.flows] {
            flow.todo = u8::from(todo(flow));
        }
        self.flows_done(rules);
    }

    pub(super) fn flows_done(&mut self, rules: &Rules) {
        if self.flows.iter().any(|flow| flow.todo != 0) {
            return;
        }
        match self.control.op {
            Op::Drain => self.read_pending(rules),
            Op::ReadPending => self.proceed(rules),
            _ if rules.fault == Fault::UnpinLate => self.control.op = Op::UnpinLate,
            _ => self.settled(rules),
        }
    }

    /// Only the reports that are there now are certain to be drained.
    pub(super) fn collect_begin(&mut self, rules: &Rules) {
        if matches!(rules.fault, Fault::NoReports | Fault::NoCollect) {
            self.read_pending(rules);
        } else {
            self.begin_flows(rules, Op::Drain, |flow| flow.report != NONE);
        }
    }

    pub(super) fn read_pending(&mut self, rules: &Rules) {
        if matches!(rules.fault, Fault::NoPendingCollect | Fault::NoCollect) {
            self.proceed(rules);
        } else {
            self.begin_flows(rules, Op::ReadPending, |_| true);
        }
    }

    pub(super) fn settled(&mut self, rules: &Rules) {
        let left = std::mem::take(&mut self.control.left);
        let down = self.flows.iter().any(|flow| flow.down != NONE);
        let avoids = self.control.kept_off || self.control.update.has_failed() && down;
        let avoids = avoids && rules.fault != Fault::ClearThoughDown;
        self.control.update.took(Progress::Settled { left: usize::from(left), avoids });
        self.begin_action(rules);
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
