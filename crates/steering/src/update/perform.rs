//! What an action is, for whoever performs it: one place that reads the actions of an [`Update`].

use super::machine::{Action, Update};

/// What became of an action.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Progress {
    /// It is performed. For [`Action::Settle`], with nothing left.
    Done,
    /// [`Action::Settle`] is performed.
    Settled {
        /// So many pending flows of the service are left with which the published table disagrees.
        left: usize,
        /// A backend is down to which the published table may lead, and new flows that are kept from
        /// it are still noted: packets go on asking for them after the update.
        avoids: bool,
    },
    /// It takes a while, or was performed for many at once: whoever performs it tells each update
    /// itself ([`Update::took`]).
    UnderWay,
    /// It could not be performed, or only in part; it may be tried again.
    Failed,
    /// It cannot be performed, however often it is tried.
    Refused,
}

/// Whoever performs an update: each method is one [`Action`].
///
/// There are three: the [`Driver`](super::Driver), at once, over a [`Plane`](super::Plane); the
/// [`Coordinator`](crate::residue::Coordinator), by orders to balancers, whose answers end an action;
/// and the model that is explored, where packets come between the parts of each.
pub trait Perform {
    /// The update.
    fn update(&mut self) -> &mut Update;

    /// Sets or clears the two flags ([`Action::SetFlags`]).
    fn set_flags(&mut self, record: bool, pending: bool) -> Progress;

    /// Waits for packets under way ([`Action::Grace`]).
    fn grace(&mut self) -> Progress;

    /// Learns what has started ([`Action::Collect`]).
    fn collect(&mut self) -> Progress;

    /// Publishes a table ([`Action::Publish`]).
    fn publish(&mut self) -> Progress;

    /// Retires what the table before needed ([`Action::Retire`]).
    fn retire(&mut self) -> Progress;

    /// Settles the pending flows ([`Action::Settle`]).
    fn settle(&mut self) -> Progress;
}

/// Performs the next action of an update, or begins to. Returns what it was and what became of it, or
/// `None` if the update is over.
pub fn step(on: &mut impl Perform) -> Option<(Action, Progress)> {
    let action = on.update().action()?;
    let progress = match action {
        Action::SetFlags { record, pending } => on.set_flags(record, pending),
        Action::Grace => on.grace(),
        Action::Collect => on.collect(),
        Action::Publish => on.publish(),
        Action::Retire => on.retire(),
        Action::Settle => on.settle(),
    };
    on.update().took(progress);
    Some((action, progress))
}

/// Performs an update until an action is under way: true then, false if it is over.
pub fn go_on(on: &mut impl Perform) -> bool {
    while let Some((_, progress)) = step(on) {
        if progress == Progress::UnderWay {
            return true;
        }
    }
    false
}
