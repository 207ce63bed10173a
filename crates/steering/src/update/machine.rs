//! Record, collect, commit: the protocol of an update that loses no flow that is starting.
//!
//! A pure state machine. It says what to do next, and is told what became of it. What an action is,
//! and what follows from its end, is read in one place, [`step`](super::step): by the
//! [`Driver`](super::Driver) for a data plane of its own, by
//! [`Coordinator`](crate::residue::Coordinator) for many balancers, and by the model of a control
//! plane that tests/interleavings.rs explores.
//!
//! ```text
//! record    flags RECORD|PENDING on the published table: new flows are noted, and looked up,
//!           in the pending table
//! grace     every packet that did not see the flags has been decided
//! collect   drain the data plane's reports and read the pending table into the states
//! publish   build from the states, pin, and swap the table in, with both flags set
//! grace     every packet that saw the old table has been decided
//! retire    free the old table, and remove the pins that the new one does not need
//! stop      clear RECORD: by now new flows follow the new table
//! grace     every packet that saw RECORD has been decided
//! settle    pending flows that the table sends to their backend leave the pending table
//! clear     clear PENDING, if none is left
//! ```
//!
//! While PENDING is set a new flow is also noted if its backend is found [down](crate::Memory::is_down), as it
//! is placed elsewhere then; RECORD has no say in that. So nothing may be found down between *settle* and *clear*;
//! and if something was since the update has begun, PENDING [stays](Progress::Settled) until another update,
//! whose table leads nowhere that is down.
//!
//! Pins go while RECORD is still set, so that a first packet that has just followed one is noted as
//! well: the repetition of it will find no pin.
//!
//! A flow that started before *record* took effect is in the reports; one that started between is
//! pending, and either collected or found pending after the swap; one that starts after the second
//! grace follows the new table. If some pending flows differ from the new table (they started
//! after *collect*), another round without a pool change folds them in: then only cells of those
//! flows change, and the rounds shrink quickly.
//!
//! # When an action fails
//!
//! It is tried again at once, [`Update::TRIES`] times in all; *publish* is not, since it takes
//! long and fails for reasons that stay. Then it is left out, and with it what relies on it:
//!
//! - Before the swap nothing is in force that was not before. The update goes on to *stop*, and
//!   the service follows its old table. What was collected stays known. If *publish* failed, pins
//!   of the table that was to be may stand: they are retired first, and those of the old one stay.
//! - After it the pool is in force. The update goes on to *stop*, and as far as it can.
//!
//! What is left behind then is room of a table or of a pin, or a flag: another update clears it
//! away, since each begins with flags and a grace period of its own.

use super::perform::Progress;

/// What is done next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Action {
    /// Set or clear the two flags of the published table, in place.
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
    /// Free the table before the published one, and remove the service's pins that the published
    /// one does not need: all but its [`BuildReport::pinned`](crate::BuildReport::pinned).
    Retire,
    /// Remove the pending flows that the published table agrees with; what is left is told
    /// ([`Progress::Settled`]).
    Settle,
}

impl std::fmt::Display for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::SetFlags { record: true, .. } => "begin to note new flows",
            Self::SetFlags { pending: true, .. } => "stop noting new flows",
            Self::SetFlags { .. } => "stop looking flows up that are pending",
            Self::Grace => "wait for packets under way",
            Self::Collect => "collect the flows that have started",
            Self::Publish => "publish a table",
            Self::Retire => "retire what the former table needed",
            Self::Settle => "settle the pending flows",
        })
    }
}

/// An update of one service under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Update {
    step: Step,
    round: u32,
    /// Times that the action may be tried before it is left out.
    tries: u32,
    /// Times that it has failed.
    failures: u32,
    failed: bool,
    loose: bool,
    /// No flow starts while it is under way.
    frozen: bool,
}

/// The action to be performed next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Step {
    Record,
    FirstGrace,
    Collect,
    Publish,
    SecondGrace,
    Retire,
    Stop,
    ThirdGrace,
    Settle,
    Clear,
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
    /// Times that an action is tried before it is left out, *publish* apart, which is tried
    /// once.
    pub const TRIES: u32 = 3;

    /// An update from the beginning.
    pub fn begin() -> Self {
        Self::begin_with_tries(Self::TRIES)
    }

    /// As [`begin`](Self::begin), with another number of tries, at least one.
    pub fn begin_with_tries(tries: u32) -> Self {
        let (failed, loose, frozen) = (false, false, false);
        Self { step: Step::Record, round: 0, tries, failures: 0, failed, loose, frozen }
    }

    /// An update of a service at which no flow starts until it is over, none having begun to start a grace period
    /// before, and none of whose flows are pending: there is nothing to record, and so it is *collect, publish, grace,
    /// retire*.
    pub fn begin_frozen() -> Self {
        Self { step: Step::Collect, frozen: true, ..Self::begin() }
    }

    /// Whether no flow starts while it is under way.
    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// The action to perform, or `None` when the update has ended. What became of it is told to
    /// [`took`](Self::took).
    pub fn action(&self) -> Option<Action> {
        Some(match self.step {
            Step::Record => Action::SetFlags { record: true, pending: true },
            Step::FirstGrace | Step::SecondGrace => Action::Grace,
            Step::Collect => Action::Collect,
            Step::Publish => Action::Publish,
            Step::Retire => Action::Retire,
            Step::Stop => Action::SetFlags { record: false, pending: true },
            // A packet that saw RECORD may still write its pending entry; after this none does
            // unless a backend is found down, so nothing is noted behind the back of Settle.
            Step::ThirdGrace => Action::Grace,
            Step::Settle => Action::Settle,
            Step::Clear => Action::SetFlags { record: false, pending: false },
            Step::Done => return None,
        })
    }

    /// What became of the action. Returns whether it is left out now, as it could not be performed;
    /// one that failed and is not left out comes again.
    pub fn took(&mut self, progress: Progress) -> bool {
        match progress {
            Progress::UnderWay => return false,
            Progress::Done => self.done(),
            Progress::Settled { left, avoids } => {
                self.settled(left);
                if avoids && self.step == Step::Clear {
                    // New flows that are kept from a backend are still noted, and packets go on asking.
                    self.step = Step::Done;
                }
            }
            Progress::Failed => return self.failed(),
            Progress::Refused => {
                self.give_up();
                return true;
            }
        }
        false
    }

    fn done(&mut self) {
        self.failures = 0;
        self.step = match self.step {
            Step::Record => Step::FirstGrace,
            Step::FirstGrace => Step::Collect,
            Step::Collect => Step::Publish,
            Step::Publish => Step::SecondGrace,
            Step::SecondGrace => Step::Retire,
            // Nothing has started since it began, but entries of flows that are over may be there.
            Step::Retire if self.frozen => Step::Settle,
            Step::Retire => Step::Stop,
            Step::Stop => Step::ThirdGrace,
            Step::ThirdGrace => Step::Settle,
            Step::Settle if self.frozen => Step::Done,
            Step::Settle => Step::Clear,
            Step::Clear | Step::Done => Step::Done,
        };
    }

    fn settled(&mut self, left: usize) {
        if self.step != Step::Settle {
            return;
        }
        self.done();
        if left > 0 && !self.frozen {
            let more = !self.failed && self.round + 1 < MAX_ROUNDS;
            self.round += u32::from(more);
            self.step = if more { Step::Record } else { Step::Done };
        }
    }

    fn failed(&mut self) -> bool {
        self.failures += 1;
        if self.step != Step::Publish && self.failures < self.tries {
            return false;
        }
        self.give_up();
        true
    }

    fn give_up(&mut self) {
        self.failures = 0;
        self.failed = true;
        self.loose |= self.step != Step::Publish;
        self.step = match self.step {
            // Nothing is recorded that would have to be stopped.
            Step::Collect | Step::SecondGrace | Step::Retire if self.frozen => Step::Done,
            // After a restart, which pins are needed is known only when all is collected.
            Step::Record | Step::FirstGrace | Step::Collect => Step::Stop,
            // Its pins may stand in part.
            Step::Publish => Step::Retire,
            // Packets may still follow the old table, and need its pins.
            Step::SecondGrace => Step::Stop,
            Step::Retire => Step::Stop,
            // What is pending stays, and is looked up.
            Step::Stop | Step::ThirdGrace | Step::Settle | Step::Clear | Step::Done => Step::Done,
        };
    }

    /// Goes back to what follows [`Action::Publish`]: the table has had to be published again.
    pub fn published_again(&mut self) {
        self.step = Step::SecondGrace;
    }

    /// Rounds so far beyond the first.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Whether flags, pins or the room of a table may be left for another update to clear away.
    pub fn is_loose(&self) -> bool {
        self.loose
    }

    /// Whether an action has been left out.
    pub fn has_failed(&self) -> bool {
        self.failed
    }
}
