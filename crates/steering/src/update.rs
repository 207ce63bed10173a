//! Record, collect, commit: the protocol of an update that loses no flow that is starting.
//!
//! A pure state machine. It says what to do next; whoever drives it does it and asks again: the
//! control plane for its own data plane, or [`Coordinator`](crate::residue::Coordinator) for many
//! balancers, and the model checkers (tests/interleavings.rs, tests/residue_model.rs).
//!
//! ```text
//! record    flags RECORD|PENDING on the published table: new flows are noted, and looked up,
//!           in the pending table
//! grace     every packet that did not see the flags has been decided
//! collect   drain the data plane's reports and read the pending table into the states
//! publish   build from the states and swap the table in, with both flags set
//! grace     every packet that saw the old table has been decided
//! stop      remove the pins that the new table does not need, then clear RECORD: by now new flows follow the new table
//! settle    pending flows that the table sends to their backend leave the pending table
//! ```
//!
//! Pins go while RECORD is still set, so that a first packet that has just followed one is noted as
//! well: the repetition of it will find no pin.
//!
//! A flow that started before *record* took effect is in the reports; one that started between is
//! pending, and either collected or found pending after the swap; one that starts after the second
//! grace follows the new table. If some pending flows differ from the new table (they started
//! after *collect*), another round without a pool change folds them in: then only cells of those
//! flows change, and the rounds shrink quickly.

/// What the driver does next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Action {
    /// Set or clear the two flags of the published table, in place. Before RECORD is cleared,
    /// remove the service's pins that the published table does not need: all but
    /// [`BuildReport::pinned`](crate::BuildReport::pinned).
    SetFlags {
        /// [`Flags::RECORD`](crate::Flags::RECORD).
        record: bool,
        /// [`Flags::PENDING`](crate::Flags::PENDING).
        pending: bool,
    },
    /// Wait until every packet whose processing had begun is decided.
    Grace,
    /// Drain the reports, then read the pending table, into the states.
    Collect,
    /// Build a table, insert its pins, and publish it with both flags set.
    Publish,
    /// Remove the pending flows that the published table agrees with; then call
    /// [`Update::settled`] with what is left.
    Settle,
}

/// An update of one service under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Update {
    step: Step,
    round: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Step {
    Record,
    FirstGrace,
    Collect,
    Publish,
    SecondGrace,
    StopRecording,
    ThirdGrace,
    Settle,
    Settled { left: usize },
    Done,
}

/// Rounds after which an update ends even if pending flows are left; they stay pending, which is
/// correct and only costs a look at the pending table per packet until the next update.
const MAX_ROUNDS: u32 = 4;

impl Default for Update {
    fn default() -> Self {
        Self::begin()
    }
}

impl Update {
    /// An update from the beginning.
    pub fn begin() -> Self {
        Self { step: Step::Record, round: 0 }
    }

    /// The next action, or `None` when the update has ended.
    pub fn next_action(&mut self) -> Option<Action> {
        let (action, next) = match self.step {
            Step::Record => {
                (Some(Action::SetFlags { record: true, pending: true }), Step::FirstGrace)
            }
            Step::FirstGrace => (Some(Action::Grace), Step::Collect),
            Step::Collect => (Some(Action::Collect), Step::Publish),
            Step::Publish => (Some(Action::Publish), Step::SecondGrace),
            Step::SecondGrace => (Some(Action::Grace), Step::StopRecording),
            Step::StopRecording => {
                (Some(Action::SetFlags { record: false, pending: true }), Step::ThirdGrace)
            }
            // A packet that saw RECORD may still write its pending entry; after this none does,
            // so nothing is noted behind the back of Settle.
            Step::ThirdGrace => (Some(Action::Grace), Step::Settle),
            Step::Settle => (Some(Action::Settle), Step::Settled { left: 0 }),
            Step::Settled { left: 0 } => {
                (Some(Action::SetFlags { record: false, pending: false }), Step::Done)
            }
            Step::Settled { .. } if self.round + 1 < MAX_ROUNDS => {
                self.round += 1;
                (Some(Action::SetFlags { record: true, pending: true }), Step::FirstGrace)
            }
            Step::Settled { .. } | Step::Done => (None, Step::Done),
        };
        self.step = next;
        action
    }

    /// Tells how many pending flows of the service the published table still disagrees with.
    pub fn settled(&mut self, left: usize) {
        if let Step::Settled { left: noted } = &mut self.step {
            *noted = left;
        }
    }

    /// Goes back to what follows [`Action::Publish`]: the table has had to be published again.
    pub fn published_again(&mut self) {
        self.step = Step::SecondGrace;
    }

    /// Rounds so far beyond the first.
    pub fn round(&self) -> u32 {
        self.round
    }
}
