//! A card of memory: it does to rules and frames what hardware does to them. **Emulated**: it can prove that
//! nothing breaks, and show how much work the software is spared; it says nothing of what a card gains.

mod delay;
mod mirrored;

pub use delay::Delay;
pub use mirrored::{Leads, Mirrored};

use crate::rule::{Answer, Answered, Limits, Location, Queue, Refusal, Rule, Rules, Serial};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::time::Duration;
use weir_wire::FlowKey;

/// How everything is called that comes from here.
pub const LABEL: &str = "emulated";

/// What cards have for rules (HNLB, section II: Intel's Flow Director, 2,000 to 8,000, by configuration).
pub const CARD_RULES: std::ops::RangeInclusive<usize> = 2_048..=8_192;

/// How a card behaves. Shares are of 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Profile {
    /// Rules that it holds; cards have [`CARD_RULES`], tests fewer.
    pub rules: usize,
    /// Receive queues, the software's included.
    pub queues: u16,
    /// Frames that each queue holds.
    pub ring: u32,
    /// From a command until it has been carried out.
    pub delay: Delay,
    /// Commands that are late, and so many times as late.
    pub late: f64,
    /// How many times as late those are.
    pub late_by: u32,
    /// Commands in a second; none: no bound. Bursts take up to a hundredth of them at once.
    pub rate: Option<u32>,
    /// Commands that are lost: neither carried out nor answered.
    pub lost: f64,
    /// Commands that are carried out and never answered.
    pub unanswered: f64,
    /// Insertions that are answered and not carried out.
    pub pretended: f64,
    /// Insertions that are refused.
    pub refused: f64,
    /// Rules that the card drops by itself, of all in force, in a second.
    pub dropped: f64,
    /// Before a command has been carried out, packets meet the old rule or the new one, as it happens, for so
    /// long.
    pub wavering: Duration,
    /// While rules waver, a queue hands over so many frames at once at most.
    pub slow: usize,
    /// Whether it counts the packets of each rule.
    pub counts: bool,
}

impl Profile {
    /// A card that does what it is told, in 10 to 50 us, mostly.
    pub fn sound(rules: usize, queues: u16) -> Self {
        Self {
            rules,
            queues,
            ring: 512,
            delay: Delay::Exponential {
                least: Duration::from_micros(10),
                mean: Duration::from_micros(15),
            },
            late: 0.0,
            late_by: 1,
            rate: None,
            lost: 0.0,
            unanswered: 0.0,
            pretended: 0.0,
            refused: 0.0,
            dropped: 0.0,
            wavering: Duration::from_micros(2),
            slow: usize::MAX,
            counts: false,
        }
    }

    /// One that does everything wrong that a card may, now and then.
    pub fn hostile(rules: usize, queues: u16) -> Self {
        Self {
            delay: Delay::Exponential {
                least: Duration::from_micros(10),
                mean: Duration::from_millis(5),
            },
            late: 0.05,
            late_by: 50,
            rate: Some(20_000),
            lost: 0.05,
            unanswered: 0.05,
            pretended: 0.05,
            refused: 0.05,
            dropped: 0.05,
            wavering: Duration::from_millis(2),
            slow: 8,
            ..Self::sound(rules, queues)
        }
    }
}

/// What a card has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Rules that were inserted.
    pub inserted: u64,
    /// Rules that were deleted.
    pub deleted: u64,
    /// Commands that were lost.
    pub lost: u64,
    /// Commands that were late.
    pub late: u64,
    /// Commands that were carried out without an answer.
    pub unanswered: u64,
    /// Insertions that were answered and not carried out.
    pub pretended: u64,
    /// Insertions that were refused, and commands that were not taken.
    pub refused: u64,
    /// Rules that the card has dropped by itself.
    pub dropped: u64,
    /// Packets that a rule led.
    pub hits: u64,
    /// Packets that none did.
    pub misses: u64,
    /// Packets that were lost as their queue was full.
    pub ring_full: u64,
}

/// A command that will be carried out.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Command {
    at: Location,
    serial: Serial,
    /// The rule to insert; none: delete.
    rule: Option<Rule>,
    due: Duration,
    refused: bool,
    pretended: bool,
    answered: bool,
}

/// A place of the table.
#[derive(Clone, Debug, Default)]
struct Place {
    rule: Option<Rule>,
    hits: u64,
    /// Commands that have not been carried out, the first first.
    commands: VecDeque<Command>,
    /// The last command's time, so that none overtakes another.
    last: Duration,
}

/// A card with queues of frames.
#[derive(Clone, Debug)]
pub struct Nic<F> {
    profile: Profile,
    now: Duration,
    rng: ChaCha8Rng,
    places: Vec<Place>,
    /// Places that a flow's rule stands at, or is about to.
    of_flow: HashMap<FlowKey, Vec<u32>>,
    /// When a place has something to do.
    agenda: BinaryHeap<Reverse<(Duration, u32)>>,
    answers: VecDeque<Answer>,
    queues: Vec<VecDeque<F>>,
    statistics: Statistics,
    /// Commands that it takes now.
    tokens: f64,
    in_force: usize,
}

impl<F> Nic<F> {
    /// A card without rules. What happens by chance is drawn from the seed.
    pub fn new(profile: Profile, seed: u64) -> Self {
        let tokens = profile.rate.map_or(0.0, |rate| f64::from(rate) / 100.0 + 1.0);
        Self {
            now: Duration::ZERO,
            rng: ChaCha8Rng::seed_from_u64(seed),
            places: vec![Place::default(); profile.rules],
            of_flow: HashMap::new(),
            agenda: BinaryHeap::new(),
            answers: VecDeque::new(),
            queues: (0..profile.queues).map(|_| VecDeque::new()).collect(),
            statistics: Statistics::default(),
            tokens,
            in_force: 0,
            profile,
        }
    }

    /// What it has done so far.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// How it behaves, to be changed.
    pub fn profile(&mut self) -> &mut Profile {
        &mut self.profile
    }

    /// Rules in force.
    pub fn in_force(&self) -> usize {
        self.in_force
    }

    /// Time has passed: what is due is carried out.
    pub fn advance(&mut self, now: Duration) {
        self.advance_and_tell(now, &mut |_| {});
    }

    /// The same; `tell` is given the flows whose packets may go elsewhere now.
    pub fn advance_and_tell(&mut self, now: Duration, tell: &mut dyn FnMut(&FlowKey)) {
        let passed = now.saturating_sub(self.now).as_secs_f64();
        self.now = now.max(self.now);
        if let Some(rate) = self.profile.rate {
            let most = f64::from(rate) / 100.0 + 1.0;
            self.tokens = (self.tokens + f64::from(rate) * passed).min(most);
        }
        while let Some(Reverse((due, at))) = self.agenda.peek().copied()
            && due <= self.now
        {
            self.agenda.pop();
            self.carry_out(at, tell);
        }
        let expected = self.profile.dropped * passed * self.in_force as f64;
        if expected > 0.0 && self.rng.random_bool(expected.min(1.0)) {
            self.drop_one(tell);
        }
    }

    fn carry_out(&mut self, at: u32, tell: &mut dyn FnMut(&FlowKey)) {
        let place = &mut self.places[at as usize];
        let Some(command) = place.commands.pop_front() else { return };
        place.rule.iter().chain(&command.rule).for_each(|rule| tell(&rule.flow));
        let what = match command.rule {
            Some(rule) if command.refused => {
                self.statistics.refused += 1;
                forget(&mut self.of_flow, &rule.flow, at);
                Answered::Refused(Refusal::Other)
            }
            Some(rule) if command.pretended => {
                self.statistics.pretended += 1;
                forget(&mut self.of_flow, &rule.flow, at);
                Answered::Done
            }
            Some(rule) => {
                self.statistics.inserted += 1;
                place.hits = 0;
                match place.rule.replace(rule) {
                    Some(before) => forget(&mut self.of_flow, &before.flow, at),
                    None => self.in_force += 1,
                }
                Answered::Done
            }
            None => {
                if let Some(rule) = place.rule.take() {
                    self.statistics.deleted += 1;
                    self.in_force -= 1;
                    forget(&mut self.of_flow, &rule.flow, at);
                }
                Answered::Done
            }
        };
        if command.answered {
            self.answers.push_back(Answer { at: command.at, serial: command.serial, what });
        } else {
            self.statistics.unanswered += 1;
        }
    }

    /// A rule goes that nobody asked to go.
    fn drop_one(&mut self, tell: &mut dyn FnMut(&FlowKey)) {
        let from = self.rng.random_range(0..self.places.len());
        let all = self.places.len();
        let found = (0..all).map(|by| (from + by) % all).find(|&at| self.places[at].rule.is_some());
        if let Some(at) = found
            && let Some(rule) = self.places[at].rule.take()
        {
            self.in_force -= 1;
            self.statistics.dropped += 1;
            forget(&mut self.of_flow, &rule.flow, at as u32);
            tell(&rule.flow);
        }
    }

    /// What a packet of this flow meets at a place and, if that wavers, what it may meet as well.
    fn stands(&self, at: u32, flow: &FlowKey) -> (Option<Rule>, Option<Option<Rule>>) {
        let place = &self.places[at as usize];
        let next = place.commands.front();
        let wavers = next.is_some_and(|next| next.due <= self.now + self.profile.wavering);
        let before = place.rule.filter(|rule| rule.flow == *flow);
        let after = next.filter(|_| wavers).map(|next| {
            next.rule.filter(|rule| rule.flow == *flow && !next.refused && !next.pretended)
        });
        (before, after)
    }

    /// The queues that a packet of this flow may go to now: by what is in force, and by what comes into force next
    /// if that wavers.
    pub fn may_lead(&self, flow: &FlowKey) -> [Queue; 2] {
        let mut met = [None; 2];
        for &at in self.of_flow.get(flow).into_iter().flatten() {
            let (before, after) = self.stands(at, flow);
            met = [met[0].or(before), met[1].or(after.unwrap_or(before))];
        }
        met.map(|rule: Option<Rule>| rule.map_or(Queue::SOFTWARE, |rule| rule.queue))
    }

    /// The flows whose packets may meet an old rule or a new one now.
    pub fn wavering(&self, tell: &mut dyn FnMut(&FlowKey)) {
        let horizon = self.now + self.profile.wavering;
        if self.agenda.peek().is_none_or(|Reverse((due, _))| *due > horizon) {
            return;
        }
        for Reverse((_, at)) in self.agenda.iter().filter(|Reverse((due, _))| *due <= horizon) {
            let place = &self.places[*at as usize];
            let next = place.commands.front().and_then(|next| next.rule.as_ref());
            place.rule.iter().chain(next).for_each(|rule| tell(&rule.flow));
        }
    }

    /// Where a packet of this flow goes now.
    pub fn lead(&mut self, flow: &FlowKey) -> Queue {
        let mut found = None;
        for &at in self.of_flow.get(flow).into_iter().flatten() {
            let (before, after) = self.stands(at, flow);
            let met = match after {
                Some(after) if self.rng.random() => after,
                _ => before,
            };
            if let Some(rule) = met {
                found = Some((at, rule.queue));
                break;
            }
        }
        match found {
            Some((at, queue)) => {
                self.places[at as usize].hits += 1;
                self.statistics.hits += 1;
                queue
            }
            None => {
                self.statistics.misses += 1;
                Queue::SOFTWARE
            }
        }
    }

    /// A frame comes in: of this flow, or of none that a rule can match (a fragment, another protocol). Gives
    /// it back if its queue is full.
    pub fn receive(&mut self, flow: Option<&FlowKey>, frame: F) -> Result<Queue, F> {
        let queue = flow.map_or(Queue::SOFTWARE, |flow| self.lead(flow));
        let ring = self.profile.ring as usize;
        match self.queues.get_mut(usize::from(queue.0)) {
            Some(frames) if frames.len() < ring => {
                frames.push_back(frame);
                Ok(queue)
            }
            _ => {
                self.statistics.ring_full += 1;
                Err(frame)
            }
        }
    }

    /// Takes up to so many frames out of a queue. Returns whether it is empty now.
    pub fn poll(&mut self, queue: Queue, most: usize, take: &mut dyn FnMut(F)) -> bool {
        let horizon = self.now + self.profile.wavering;
        let wavers = self.agenda.peek().is_some_and(|Reverse((due, _))| *due <= horizon);
        let most = if wavers { most.min(self.profile.slow) } else { most };
        let Some(frames) = self.queues.get_mut(usize::from(queue.0)) else { return true };
        let count = frames.len().min(most);
        frames.drain(..count).for_each(take);
        frames.is_empty()
    }

    /// A command, as chance has it. Returns whether it will ever be carried out.
    fn take(&mut self, at: Location, serial: Serial, rule: Option<Rule>) -> Result<bool, Refusal> {
        if at.0 as usize >= self.places.len() {
            return Err(Refusal::NoPlace(at));
        }
        if self.profile.rate.is_some() {
            if self.tokens < 1.0 {
                self.statistics.refused += 1;
                return Err(Refusal::Busy);
            }
            self.tokens -= 1.0;
        }
        let Profile { lost, late, late_by, unanswered, pretended, refused, .. } = self.profile;
        let chance = |rng: &mut ChaCha8Rng, share: f64| share > 0.0 && rng.random_bool(share);
        if chance(&mut self.rng, lost) {
            self.statistics.lost += 1;
            return Ok(false);
        }
        let mut delay = self.profile.delay.draw(&mut self.rng);
        if chance(&mut self.rng, late) {
            self.statistics.late += 1;
            delay *= late_by.max(1);
        }
        let place = &mut self.places[at.0 as usize];
        let due = (self.now + delay).max(place.last);
        place.last = due;
        place.commands.push_back(Command {
            at,
            serial,
            rule,
            due,
            refused: rule.is_some() && chance(&mut self.rng, refused),
            pretended: rule.is_some() && chance(&mut self.rng, pretended),
            answered: !chance(&mut self.rng, unanswered),
        });
        self.agenda.push(Reverse((due, at.0)));
        Ok(true)
    }
}

/// A place has nothing to do with a flow any more.
fn forget(of_flow: &mut HashMap<FlowKey, Vec<u32>>, flow: &FlowKey, at: u32) {
    if let Some(places) = of_flow.get_mut(flow) {
        // Once: a rule for the same flow may be on its way to the same place.
        if let Some(found) = places.iter().position(|place| *place == at) {
            places.remove(found);
        }
        if places.is_empty() {
            of_flow.remove(flow);
        }
    }
}

impl<F> Rules for Nic<F> {
    fn limits(&self) -> Limits {
        let Profile { rules, queues, ring, counts, .. } = self.profile;
        Limits { rules, queues, ring, counts }
    }

    fn insert(&mut self, at: Location, rule: &Rule, serial: Serial) -> Result<(), Refusal> {
        if rule.queue.0 >= self.profile.queues {
            let (queue, queues) = (rule.queue, self.profile.queues);
            return Err(Refusal::NoQueue { queue, queues });
        }
        if self.take(at, serial, Some(*rule))? {
            let places = self.of_flow.entry(rule.flow).or_default();
            places.push(at.0);
            places.sort_unstable();
        }
        Ok(())
    }

    fn delete(&mut self, at: Location, serial: Serial) -> Result<(), Refusal> {
        self.take(at, serial, None).map(|_| ())
    }

    fn answers(&mut self, take: &mut dyn FnMut(Answer)) {
        self.answers.drain(..).for_each(take);
    }

    fn hits(&mut self, at: Location) -> Option<u64> {
        self.profile.counts.then(|| self.places.get(at.0 as usize).map_or(0, |place| place.hits))
    }
}

#[cfg(test)]
mod tests;
