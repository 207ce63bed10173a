//! Actions that fail, and a control plane that is killed.

use super::fault::Fault;
use super::state::{Entry, Op, State};
use super::{NONE, Rules, Sink};
use weir_steering::Action;
use weir_steering::update::Progress;

impl State {
    /// The operation under way fails: before it has done anything, or in the middle.
    pub(super) fn failures(&self, rules: &Rules, sink: &mut Sink) {
        let text = match self.control.op {
            Op::Rest | Op::GraceEnd | Op::LatePins | Op::UnpinLate => return,
            Op::SetFlags(_) => "cannot set the flags",
            Op::GraceBegin => "cannot wait for packets",
            Op::CollectBegin | Op::Drain | Op::ReadPending => "cannot collect",
            Op::Build => "cannot build a table, or pin all that it needs",
            Op::Swap => "cannot publish the table",
            Op::SettleBegin | Op::Settle => "cannot settle",
            Op::Unpin => "cannot remove pins",
        };
        let partly = match self.control.op {
            // Some of its pins may stand, but not all: that is when publishing fails.
            Op::Build => self.tables(rules).iter().flat_map(|state| state.pinned(rules)).collect(),
            Op::Unpin => self.unpinned(rules),
            _ => vec![*self],
        };
        for mut next in partly {
            next.control.failures -= 1;
            next.fail(rules);
            sink.push(next, || format!("control: {text}"));
        }
    }

    /// What the protocol makes of it, less what the fault leaves out.
    pub(super) fn fail(&mut self, rules: &Rules) {
        let publishing = matches!(self.control.op, Op::Build | Op::Swap);
        self.control.left = 0;
        for flow in &mut self.flows[..rules.flows] {
            flow.todo = 0;
            if rules.fault != Fault::DraftCountsAsPublished {
                flow.built = Entry::EMPTY;
            }
            let draft = std::mem::take(&mut flow.built_pin);
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
            flow.pin = false;
            flow.built_pin = false;
            flow.todo = 0;
            // The next one begins with what health checks said when the pool was written down.
            flow.down = NONE;
        }
        for cpu in &mut self.cpus {
            cpu.waited = false;
        }
        self.control.crashes -= 1;
        self.control.left = 0;
        self.control.pins_known = false;
        self.begin_update(rules);
        if rules.fault == Fault::RestartWithoutCollect {
            while self.control.op != Op::CollectBegin {
                self.proceed(rules);
            }
            self.proceed(rules);
        }
    }
}
