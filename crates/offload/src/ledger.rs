//! What a card may hold, and which of its queues can be taken at their word.
//!
//! ```text
//! place   free ── insert ──> Inserting ── done ──> InForce ── delete ──> Deleting ── done ──> free
//!                               └── refused ──> free   └───── (doubt) ──────┘ lost: told again
//! queue   unbound ── first rule ──> bound to a backend ── it is gone ──> retiring ── no rule, drained ──> unbound
//! ```
//! A queue leads packets only while it is *trusted*: bound, not retiring, no rule to it in *doubt*, and nothing
//! left in it that came while one was. A rule is in doubt from the moment at which the software says something
//! else of its flow (a first packet was placed elsewhere, the backend is gone) until the card has answered its
//! deletion; then the queue is drained. Meanwhile the queue's packets are steered as those of queue 0.
//!
//! `tests/race.rs` drives this very code through every order of commands, answers, losses, packets and changes
//! of the pool.

use crate::rule::{
    Answer, Answered, Limits, Location, Queue, Refusal, Rule, Rules, Serial, Target,
};
use std::collections::BTreeMap;
use weir_wire::FlowKey;

/// How far a rule is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// The card was asked for it, and has not answered.
    Inserting,
    /// The card says that it is there. It may not be: then its packets come to queue 0.
    InForce,
    /// It is to go, and the card has not said that it did. `told`: the card took the last command.
    Deleting {
        /// Whether the card took the last command.
        told: bool,
    },
}

/// A rule that the card may hold.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    /// What the card was asked for.
    pub rule: Rule,
    /// What its queue stands for.
    pub target: Target,
    /// How far it is.
    pub phase: Phase,
    /// Whether the software says something else of its flow, or may.
    pub doubt: bool,
    /// When its phase began, or the card was told again, in the caller's milliseconds.
    pub since: u64,
    /// The command to insert it.
    inserted: Serial,
    /// The first command to delete it that the card took.
    deleted: Option<Serial>,
}

/// Why a flow gets no rule.
#[derive(Clone, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Refused {
    /// It has one, or one that is about to go.
    #[error("the flow has a rule already, or one that is about to go")]
    Known,
    /// All places are taken.
    #[error("the card's table is full")]
    Full,
    /// All queues stand for other backends.
    #[error("no receive queue is left for the backend")]
    NoQueue,
    /// The queue of its backend cannot be trusted at the moment.
    #[error("the backend's queue has rules in doubt")]
    Doubtful,
    /// The card says so.
    #[error(transparent)]
    Card(#[from] Refusal),
}

/// A queue that rules lead to.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Lane {
    /// What it stands for.
    target: Option<Target>,
    /// Rules to it that the card may hold.
    rules: u32,
    /// Those of them that are in doubt.
    doubtful: u32,
    /// Frames that may still be in it from when one was.
    stale: u32,
    /// The backend is gone: no more rules, and no packets by the queue.
    retiring: bool,
}

impl Lane {
    fn is_trusted(&self) -> bool {
        self.doubtful == 0 && self.stale == 0 && !self.retiring
    }
}

/// The account of a card's rules.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Ledger {
    entries: Vec<Option<Entry>>,
    /// The last command for each place.
    serials: Vec<Serial>,
    free: Vec<u32>,
    places: BTreeMap<FlowKey, u32>,
    /// By the queues' numbers, less one.
    lanes: Vec<Lane>,
    ring: u32,
}

impl Ledger {
    /// Of a card without rules.
    pub fn new(limits: &Limits) -> Self {
        let rules = limits.rules as u32;
        Self {
            entries: vec![None; limits.rules],
            serials: vec![Serial::default(); limits.rules],
            free: (0..rules).rev().collect(),
            places: BTreeMap::new(),
            lanes: vec![Lane::default(); usize::from(limits.queues.saturating_sub(1))],
            ring: limits.ring,
        }
    }

    /// Whatever is in the queues now, rules that are not known here may have led there: those of a process before this
    /// one, until it was killed.
    pub fn distrust(&mut self) {
        let ring = self.ring;
        self.lanes.iter_mut().for_each(|lane| lane.stale = ring);
    }

    fn lane(&mut self, queue: Queue) -> Option<&mut Lane> {
        self.lanes.get_mut(usize::from(queue.0).checked_sub(1)?)
    }

    /// The backend that all plain packets of a queue go to; none if the software is to steer them.
    #[inline]
    pub fn trusted(&self, queue: Queue) -> Option<Target> {
        let lane = self.lanes.get(usize::from(queue.0).checked_sub(1)?)?;
        lane.target.filter(|_| lane.is_trusted())
    }

    /// What a queue stands for, whether it is trusted or not.
    pub fn bound(&self, queue: Queue) -> Option<Target> {
        self.lanes.get(usize::from(queue.0).checked_sub(1)?)?.target
    }

    /// The queue of a backend.
    pub fn queue_of(&self, target: Target) -> Option<Queue> {
        let at = self.lanes.iter().position(|lane| lane.target == Some(target))?;
        Some(Queue(at as u16 + 1))
    }

    /// The rule of a flow, in any phase.
    pub fn of_flow(&self, flow: &FlowKey) -> Option<(Location, &Entry)> {
        let at = *self.places.get(flow)?;
        Some((Location(at), self.entries[at as usize].as_ref()?))
    }

    /// The rules of a flow's client at its service, in any phase.
    pub fn of_client(&self, flow: &FlowKey) -> impl Iterator<Item = Location> + '_ {
        let FlowKey { dst_port, protocol, .. } = *flow;
        let ports = [0, u16::MAX].map(|src_port| FlowKey { src_port, ..*flow });
        let of_client = self.places.range(ports[0]..=ports[1]);
        let same = move |to: &FlowKey| to.dst_port == dst_port && to.protocol == protocol;
        of_client.filter(move |(to, _)| same(to)).map(|(_, at)| Location(*at))
    }

    /// The rule at a place.
    pub fn at(&self, at: Location) -> Option<&Entry> {
        self.entries.get(at.0 as usize)?.as_ref()
    }

    /// Places of the table.
    pub fn places(&self) -> usize {
        self.entries.len()
    }

    /// Rules that the card may hold.
    pub fn rules(&self) -> usize {
        self.places.len()
    }

    /// Queues of the card, the software's included.
    pub fn queues(&self) -> u16 {
        self.lanes.len() as u16 + 1
    }

    /// Whether a queue has to be drained before it is trusted, or bound, again.
    pub fn is_draining(&self) -> bool {
        self.lanes.iter().any(|lane| lane.stale > 0 || lane.retiring)
    }

    /// Whether no place is free.
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Asks the card for a rule that leads a flow to its backend.
    ///
    /// # Errors
    /// [`Refused`]: then nothing has changed, but that a queue of a backend without rules may have begun to
    /// retire, to be bound anew.
    pub fn insert(
        &mut self,
        flow: FlowKey,
        target: Target,
        now: u64,
        card: &mut impl Rules,
    ) -> Result<Location, Refused> {
        if self.places.contains_key(&flow) {
            return Err(Refused::Known);
        }
        let Some(&at) = self.free.last() else { return Err(Refused::Full) };
        let queue = match self.queue_of(target) {
            Some(queue) => queue,
            None => self.unbound()?,
        };
        let lane = &self.lanes[usize::from(queue.0) - 1];
        if lane.target.is_some() && !lane.is_trusted() {
            return Err(Refused::Doubtful);
        }
        let (place, rule) = (at as usize, Rule { flow, queue });
        let serial = self.serials[place].next();
        card.insert(Location(at), &rule, serial)?;
        self.free.pop();
        self.serials[place] = serial;
        self.entries[place] = Some(Entry {
            rule,
            target,
            phase: Phase::Inserting,
            doubt: false,
            since: now,
            inserted: serial,
            deleted: None,
        });
        self.places.insert(flow, at);
        let lane = &mut self.lanes[usize::from(queue.0) - 1];
        lane.target = Some(target);
        lane.rules += 1;
        Ok(Location(at))
    }

    /// A queue that stands for nobody. If there is none, one without rules begins to retire.
    fn unbound(&mut self) -> Result<Queue, Refused> {
        if let Some(at) = self.lanes.iter().position(|lane| lane.target.is_none()) {
            return Ok(Queue(at as u16 + 1));
        }
        let bare = self.lanes.iter().position(|lane| lane.rules == 0 && !lane.retiring);
        if let Some(at) = bare {
            self.retire_lane(at);
        }
        Err(Refused::NoQueue)
    }

    /// The rule at a place is to go: its connection has ended, or another is worth more.
    pub fn evict(&mut self, at: Location, now: u64, card: &mut impl Rules) {
        let Some(Some(entry)) = self.entries.get_mut(at.0 as usize) else { return };
        if !matches!(entry.phase, Phase::Deleting { .. }) {
            entry.since = now;
            self.tell(at, card);
        }
    }

    /// Gives the card the command to delete, again if it had it.
    fn tell(&mut self, at: Location, card: &mut impl Rules) {
        let place = at.0 as usize;
        let Some(entry) = &mut self.entries[place] else { return };
        let serial = self.serials[place].next();
        let told = card.delete(at, serial).is_ok();
        if told {
            self.serials[place] = serial;
            entry.deleted.get_or_insert(serial);
        }
        entry.phase = Phase::Deleting { told };
    }

    /// The software says something else of the flow of this rule, or may from now on.
    pub fn doubt(&mut self, at: Location, now: u64, card: &mut impl Rules) {
        let Some(Some(entry)) = self.entries.get_mut(at.0 as usize) else { return };
        if !entry.doubt {
            entry.doubt = true;
            let queue = entry.rule.queue;
            if let Some(lane) = self.lane(queue) {
                lane.doubtful += 1;
            }
        }
        self.evict(at, now, card);
    }

    /// The software has sent a first packet of a flow to a backend. Returns whether a rule says otherwise,
    /// which is in doubt from now on.
    pub fn started(
        &mut self,
        flow: &FlowKey,
        at: Option<Target>,
        now: u64,
        card: &mut impl Rules,
    ) -> bool {
        let Some((place, entry)) = self.of_flow(flow) else { return false };
        let differs = Some(entry.target) != at;
        if differs {
            self.doubt(place, now, card);
        }
        differs
    }

    /// A backend is gone: its queue leads nobody any more, and is bound anew when the card holds no rule to it
    /// and it has been drained.
    pub fn retire(&mut self, target: Target, now: u64, card: &mut impl Rules) {
        let Some(queue) = self.queue_of(target) else { return };
        self.retire_lane(usize::from(queue.0) - 1);
        let places: Vec<u32> = (self.places.values().copied())
            .filter(|&at| self.entries[at as usize].as_ref().is_some_and(|e| e.rule.queue == queue))
            .collect();
        places.into_iter().for_each(|at| self.doubt(Location(at), now, card));
    }

    fn retire_lane(&mut self, at: usize) {
        let lane = &mut self.lanes[at];
        lane.retiring = true;
        // What rules that are gone have led to it may still be there.
        lane.stale = self.ring;
    }

    /// The backends that queues stand for.
    pub fn targets(&self) -> impl Iterator<Item = Target> + '_ {
        self.lanes.iter().filter(|lane| !lane.retiring).filter_map(|lane| lane.target)
    }

    /// The card has answered. Returns the rule that is gone or was refused, if it is one.
    pub fn answered(&mut self, answer: &Answer, now: u64) -> Option<Entry> {
        let slot = self.entries.get_mut(answer.at.0 as usize)?;
        let entry = slot.as_mut()?;
        match (entry.phase, &answer.what) {
            (Phase::Inserting, what) if answer.serial == entry.inserted => {
                if *what == Answered::Done {
                    (entry.phase, entry.since) = (Phase::InForce, now);
                    return None;
                }
            }
            // Any deletion that was carried out will do: no insertion comes after it.
            (Phase::Deleting { .. }, what)
                if entry.deleted.is_some_and(|first| first <= answer.serial) =>
            {
                if *what != Answered::Done {
                    entry.phase = Phase::Deleting { told: false };
                    return None;
                }
            }
            _ => return None,
        }
        let gone = slot.take()?;
        self.free.push(answer.at.0);
        self.places.remove(&gone.rule.flow);
        let ring = self.ring;
        let lane = self.lane(gone.rule.queue)?;
        lane.rules -= 1;
        if gone.doubt {
            lane.doubtful -= 1;
            lane.stale = ring;
        }
        Some(gone)
    }

    /// Frames were taken out of a queue; `emptied`: it had no more. Call it after they have been dealt with.
    #[inline]
    pub fn polled(&mut self, queue: Queue, frames: u32, emptied: bool) {
        let Some(lane) = self.lane(queue) else { return };
        if lane.stale > 0 {
            lane.stale = if emptied { 0 } else { lane.stale.saturating_sub(frames) };
        }
        if lane.retiring && lane.stale == 0 && lane.rules == 0 {
            *lane = Lane::default();
        }
    }

    /// Tells the card again what it did not take, or has not answered for longer than `patience`; a rule whose
    /// insertion was not answered goes, too.
    pub fn insist(&mut self, at: Location, now: u64, patience: u64, card: &mut impl Rules) {
        let Some(Some(entry)) = self.entries.get_mut(at.0 as usize) else { return };
        let late = now.saturating_sub(entry.since) >= patience;
        let due = match entry.phase {
            Phase::Deleting { told } => !told || late,
            Phase::Inserting => late,
            Phase::InForce => false,
        };
        if due {
            entry.since = now;
            self.tell(at, card);
        }
    }
}
