//! Actions that fail, and a control plane that is killed.

use super::fault::Fault;
use super::state::{Entry, Op, State};
use super::{NONE, Rules, Sink};
use std::collections::HashSet;
use weir_steering::Action;
use weir_steering::update::Progress;

impl State {
    /// The operation under way fails: before it has done anything, or in the middle.
    pub(super) fn failures(&self, rules: &Rules, sink: &mut Sink) {
        let text = match self.control.op {
            Op::Rest | Op::GraceEnd | Op::LatePins | Op::UnpinLate => return,
            Op::SetFlags(_) => "cannot set the flags",
            Op::GraceBegin => "cannot wait for packets",
            Op::CollectBegin | Op::Drain | Op::ReadPending | Op::TakeUp => "cannot collect",
            Op::Build => "cannot build a table, or pin all that it needs",
            Op::Swap => "cannot publish the table",
            Op::SettleBegin | Op::Settle => "cannot settle",
            Op::Unpin => "cannot remove pins",
        };
        let partly = match self.control.op {
            // There is none, or some of its pins may stand, but not all: that is when publishing fails.
            Op::Build => {
                let mut tables = self.tables(rules);
                if rules.fault != Fault::DraftCountsAsPublished {
                    // It goes anyway: what matters is its pins.
                    tables.iter_mut().flat_map(|table| &mut table.flows).for_each(|flow| {
                        flow.built = Entry::EMPTY;
                    });
                    let mut seen = HashSet::new();
                    tables.retain(|table| seen.insert(table.flows.map(|flow| flow.built_pin)));
                }
                let partly = |table: &State| {
                    let mut subsets = table.subsets(|state, pins| state.prepare(rules, Some(pins)));
                    subsets.truncate((subsets.len() - 1).max(1));
                    subsets
                };
                tables.iter().copied().chain(tables.iter().flat_map(partly)).collect()
            }
            Op::Swap => {
                let mut state = *self;
                state.show(rules, Some(0));
                vec![state]
            }
            Op::Unpin => self.subsets(|state, pins| state.unpin(rules, Some(pins))),
            _ => vec![*self],
        };
        for mut next in partly {
            next.control.failures -= 1;
            next.fail(rules);
            sink.push(next, || format!("control: {text}"));
        }
    }

    /// This state with what fails done for each subset of the flows that it asks for, none of them first, all last.
    fn subsets(&self, fails: impl Fn(&mut State, u8) -> u8) -> Vec<State> {
        let mut none = *self;
        let asked = fails(&mut none, 0);
        let some = (1..=asked).filter(|subset| subset & !asked == 0).map(|subset| {
            let mut state = *self;
            fails(&mut state, subset);
            state
        });
        std::iter::once(none).chain(some).collect()
    }

    /// What the protocol makes of it, less what the fault leaves out.
    pub(super) fn fail(&mut self, rules: &Rules) {
        let publishing = matches!(self.control.op, Op::Build | Op::Swap);
        self.control.left = 0;
        for flow in &mut self.flows[..rules.flows] {
            (flow.todo, flow.found) = (0, NONE);
            if rules.fault != Fault::DraftCountsAsPublished {
                flow.built = Entry::EMPTY;
            }
            let draft = std::mem::replace(&mut flow.built_pin, NONE);
            if publishing && rules.fault == Fault::RetireForDraft {
                flow.pin = draft;
            }
            if rules.fault == Fault::FailureForgetsCollected {
                (flow.state, flow.log) = (flow.before, flow.before);
            }
        }
        let action = self.control.update.action();
        match rules.fault {
            Fault::FailureEnds | Fault::FailureClearsFlags => {
                if rules.fault == Fault::FailureClearsFlags {
                    self.flags = 0;
                }
                self.control.op = Op::Rest;
                return;
            }
            Fault::FailedGraceCounts if action == Some(Action::Grace) => {
                return self.proceed(rules);
            }
            Fault::FailedCollectCounts if action == Some(Action::Collect) => {
                return self.proceed(rules);
            }
            _ => {
                self.control.update.took(Progress::Failed);
            }
        }
        if publishing && rules.fault == Fault::KeepPinsOfDraft {
            self.control.update.took(Progress::Done);
        }
        self.begin_action(rules);
    }

    /// What is in the kernel and on the disk stays.
    pub(super) fn crash(&mut self, rules: &Rules) {
        for flow in &mut self.flows[..rules.flows] {
            flow.state = flow.log;
            flow.built = Entry::EMPTY;
            (flow.pin, flow.built_pin, flow.stale) = (NONE, NONE, false);
            (flow.todo, flow.found) = (0, NONE);
            // The next one begins with what health checks said when the pool was written down.
            flow.down = NONE;
        }
        for cpu in &mut self.cpus {
            cpu.waited = false;
        }
        self.control.crashes -= 1;
        self.control.left = 0;
        (self.control.pins_known, self.control.unread, self.control.doubtful) =
            (false, false, false);
        self.begin_update(rules);
        if rules.fault == Fault::RestartWithoutCollect {
            while self.control.op != Op::CollectBegin {
                self.proceed(rules);
            }
            self.proceed(rules);
        }
    }
}
