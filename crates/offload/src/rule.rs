//! What a rule is, and what a table of them does.

use std::fmt;
use weir_steering::BackendId;
use weir_wire::FlowKey;

/// A receive queue of a card. The first takes what no rule matches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct Queue(pub u16);

impl Queue {
    /// The queue of what no rule matches.
    pub const SOFTWARE: Self = Self(0);
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue {}", self.0)
    }
}

/// Where a rule stands in a card's table, from 0 on. Of two rules for one flow the lower place counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Location(pub u32);

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "place {}", self.0)
    }
}

/// A rule: packets of this flow go to that queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rule {
    /// The five-tuple, which a packet must have exactly.
    pub flow: FlowKey,
    /// Where its packets go.
    pub queue: Queue,
}

/// What a queue stands for: a backend in one use of its number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Target {
    /// The backend.
    pub backend: BackendId,
    /// Which use of its number: another one is another backend.
    pub incarnation: u32,
}

/// Tells the commands for one place from each other, in the order in which they were given.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct Serial(pub u32);

impl Serial {
    /// The one that follows.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// Why a card does not take a command, or has not carried it out.
#[derive(Clone, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Refusal {
    /// Its table has no room.
    #[error("the card's table of rules is full ({0} rules)")]
    Full(usize),
    /// Commands came faster than it takes them.
    #[error("the card takes no more commands now; later it does")]
    Busy,
    /// It has no such queue.
    #[error("the card has no {queue}: it has {queues} queues (ethtool -L sets how many)")]
    NoQueue {
        /// What was asked for.
        queue: Queue,
        /// What there is, the software's included.
        queues: u16,
    },
    /// It has no such place.
    #[error("the card's table has no {0}")]
    NoPlace(Location),
    /// It matches no such packets, or takes no rules at all.
    #[error("the card does not take such rules: {0}")]
    Unsupported(String),
    /// The device is gone, or does not answer.
    #[error("cannot reach the device: {0}")]
    Device(String),
    /// It gave no reason.
    #[error("the card refused the rule without a reason")]
    Other,
}

/// What has become of a command.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Answered {
    /// It has been carried out, and so has every command before it for that place that ever will be.
    Done,
    /// It will never be carried out; what came before it at that place has been.
    Refused(Refusal),
}

/// The answer to a command.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Answer {
    /// The place that it was for.
    pub at: Location,
    /// Which one.
    pub serial: Serial,
    /// What has become of it.
    pub what: Answered,
}

/// What a table offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Rules that it holds at most.
    pub rules: usize,
    /// Receive queues, the software's included.
    pub queues: u16,
    /// Frames that a queue holds at most.
    pub ring: u32,
    /// Whether it counts the packets of each rule.
    pub counts: bool,
}

/// A card's table of rules.
///
/// What is asked of the implementation, and what safety rests on:
/// - commands for *one place* are carried out in the order in which they were given; one may be lost, but
///   none overtakes another;
/// - a [`Done`](Answered::Done) is true: the rule of a deletion that was answered leads no packet any more.
///
/// Nothing else is: commands for different places overtake each other, an insertion may be lost though it was
/// answered, an answer may never come, and while a command is under way a packet may meet the old rule, the
/// new one, or none.
pub trait Rules {
    /// What it offers.
    fn limits(&self) -> Limits;

    /// Asks for a rule at a free place. The answer comes with [`answers`](Self::answers), now or later.
    ///
    /// # Errors
    /// [`Refusal`]: it was not taken, and nothing has changed.
    fn insert(&mut self, at: Location, rule: &Rule, serial: Serial) -> Result<(), Refusal>;

    /// Asks for the rule at a place to go; that there is none is no error.
    ///
    /// # Errors
    /// [`Refusal`]: it was not taken, and nothing has changed.
    fn delete(&mut self, at: Location, serial: Serial) -> Result<(), Refusal>;

    /// Takes the answers that have come.
    fn answers(&mut self, take: &mut dyn FnMut(Answer));

    /// Packets that the rule at a place has led since it was inserted, if the card counts them.
    fn hits(&mut self, at: Location) -> Option<u64>;
}
