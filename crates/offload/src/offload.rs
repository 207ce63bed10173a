//! Rules for connections, over time: what a plane calls.

use crate::ledger::{Ledger, Phase, Refused};
use crate::policy::{Choice, Policy, Wish};
use crate::rule::{Answer, Limits, Location, Queue, Refusal, Rules, Target};
use std::collections::HashSet;
use weir_wire::FlowKey;

/// How rules are given. Times are in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Setup {
    /// Which connections are worth one.
    pub choice: Choice,
    /// A connection takes the place of another if it sent this many times as much lately, 1 at least: so that
    /// two that are alike do not take turns.
    pub hysteresis: u32,
    /// No rule goes for being light before it has been there for so long.
    pub stay: u64,
    /// Rates are told by what came in such a window; what came before counts half.
    pub window: u64,
    /// A rule of which nothing has been seen for so long goes: its connection may have ended unseen.
    pub idle: u64,
    /// Each rule is held against the software once in so long. It must be less than half of what the software
    /// takes for silence, since packets that a rule leads are not seen there.
    pub audit: u64,
    /// A command that has not been answered for so long is given again.
    pub patience: u64,
    /// Of the frames in trusted queues, one in so many is looked at to learn which rules are used; 0: none.
    pub sample: u32,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            choice: Choice::Heavy { width: 1 << 14, least: 32 },
            hysteresis: 2,
            stay: 1_000,
            window: 1_000,
            idle: 30_000,
            audit: 10_000,
            patience: 1_000,
            sample: 64,
        }
    }
}

/// What has been done with rules so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Rules that the card was asked for.
    pub asked: u64,
    /// Packets of connections that were worth a rule and got none, as all places were taken, or were for heavier
    /// ones.
    pub full: u64,
    /// As `full`: no queue was left for the backend.
    pub no_queue: u64,
    /// As `full`: the backend's queue could not be trusted.
    pub doubtful: u64,
    /// As `full`: the card took no command at the moment.
    pub busy: u64,
    /// As `full`: the card refused, at once or later.
    pub refused: u64,
    /// Rules that went as their connections ended.
    pub ended: u64,
    /// Rules that went as others were worth more.
    pub outweighed: u64,
    /// Rules that went as nothing was seen of their connections.
    pub idle: u64,
    /// Rules that said something else than the software.
    pub doubted: u64,
    /// Commands that were given again.
    pub again: u64,
}

/// How much a rule is used.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    /// The card's count at the last window's end.
    hits: u64,
    /// Packets of this window that a sample has shown.
    samples: u32,
    /// Packets of the last window, about.
    lately: u32,
    /// When it was last seen in use.
    seen: u64,
}

/// A card's rules, and who gets them.
#[derive(Clone, Debug)]
pub struct Offload<R> {
    card: R,
    ledger: Ledger,
    policy: Policy,
    setup: Setup,
    limits: Limits,
    uses: Vec<Use>,
    /// Rules from the lightest on, as the last window had them; the lightest last.
    light: Vec<(u32, Location)>,
    counts: Counts,
    /// What a connection must have sent for a rule, in this window, as one of less has had to go: the place is
    /// not for that one again.
    bar: u32,
    /// Connections that another one had to go for in this window, one for each: a card takes its time to answer, and
    /// until then all of their packets find the table full.
    served: HashSet<FlowKey>,
    window_began: u64,
    /// Where the look at all rules goes on, and from when it counts.
    next: usize,
    looked: u64,
    /// Frames of trusted queues until the next that is looked at.
    unsampled: u32,
}

impl<R: Rules> Offload<R> {
    /// Over a card whose table is empty. What is drawn is drawn from the seed.
    pub fn new(card: R, setup: Setup, seed: u64) -> Self {
        let limits = card.limits();
        Self {
            ledger: Ledger::new(&limits),
            policy: Policy::new(setup.choice, seed),
            uses: vec![Use::default(); limits.rules],
            card,
            setup,
            limits,
            light: Vec::new(),
            counts: Counts::default(),
            bar: 0,
            served: HashSet::new(),
            window_began: 0,
            next: 0,
            looked: 0,
            unsampled: setup.sample,
        }
    }

    /// The card.
    pub fn card(&mut self) -> &mut R {
        &mut self.card
    }

    /// What the card may hold.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// What has been done so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The backend that all plain packets of a queue go to; none if the software is to steer them.
    #[inline]
    pub fn trusted(&self, queue: Queue) -> Option<Target> {
        self.ledger.trusted(queue)
    }

    /// The software has steered a packet in the middle of a connection, which this number tells from others:
    /// whether the connection is worth a rule. Then call [`offer`](Self::offer).
    #[inline]
    pub fn wish(&mut self, flow: u64) -> Wish {
        if matches!(self.policy, Policy::All) && self.ledger.is_full() {
            self.counts.full += 1;
            return Wish::No;
        }
        self.policy.packet(flow)
    }

    /// A connection that the software steers to a backend is worth a rule, by about so many packets lately.
    pub fn offer(&mut self, flow: &FlowKey, target: Target, packets: u32, now: u64) {
        if packets < self.bar {
            self.counts.full += 1;
            return;
        }
        match self.ledger.insert(*flow, target, now, &mut self.card) {
            Ok(at) => {
                self.counts.asked += 1;
                self.uses[at.0 as usize] = Use { seen: now, lately: packets, ..Use::default() };
            }
            Err(Refused::Known) => {}
            Err(Refused::Full) => {
                self.counts.full += 1;
                self.outweigh(flow, packets, now);
            }
            Err(Refused::NoQueue) => self.counts.no_queue += 1,
            Err(Refused::Doubtful) => self.counts.doubtful += 1,
            Err(Refused::Card(Refusal::Busy)) => self.counts.busy += 1,
            Err(Refused::Card(_)) => self.counts.refused += 1,
        }
    }

    /// The lightest rule goes if so many packets of a connection are worth more: the place is there for whoever asks
    /// next. Once in a window for each connection.
    fn outweigh(&mut self, flow: &FlowKey, packets: u32, now: u64) {
        while let Some(&(lately, at)) = self.light.last() {
            let bar = lately.saturating_mul(self.setup.hysteresis.max(1)).saturating_add(1);
            if packets < bar || self.served.contains(flow) {
                return;
            }
            self.light.pop();
            let is_due = self.ledger.at(at).is_some_and(|entry| {
                entry.phase == Phase::InForce && now.saturating_sub(entry.since) >= self.setup.stay
            });
            if is_due {
                self.counts.outweighed += 1;
                self.bar = self.bar.max(bar);
                self.served.insert(*flow);
                return self.ledger.evict(at, now, &mut self.card);
            }
        }
    }

    /// The software has sent a connection's first packet to a backend, or nowhere.
    pub fn started(&mut self, flow: &FlowKey, at: Option<Target>, now: u64) {
        let differs = self.ledger.started(flow, at, now, &mut self.card);
        self.counts.doubted += u64::from(differs);
    }

    /// The software has seen a connection's end.
    pub fn ended(&mut self, flow: &FlowKey, now: u64) {
        if let Some((at, entry)) = self.ledger.of_flow(flow)
            && !matches!(entry.phase, Phase::Deleting { .. })
        {
            self.counts.ended += 1;
            self.ledger.evict(at, now, &mut self.card);
        }
    }

    /// A backend is gone, or its number is used for another: none of its rules counts any more.
    pub fn retire(&mut self, target: Target, now: u64) {
        self.ledger.retire(target, now, &mut self.card);
    }

    /// Whether the next frame of a trusted queue is to be looked at, of so many: its number among them. Then
    /// call [`used`](Self::used) with its flow.
    #[inline]
    pub fn sample(&mut self, frames: u32) -> Option<u32> {
        if self.setup.sample == 0 {
            return None;
        }
        if self.unsampled >= frames {
            self.unsampled -= frames;
            return None;
        }
        let at = self.unsampled;
        self.unsampled = self.setup.sample.saturating_sub(frames - at);
        Some(at)
    }

    /// A rule has led a packet of this flow.
    pub fn used(&mut self, flow: &FlowKey, now: u64) {
        if let Some((at, _)) = self.ledger.of_flow(flow) {
            let one = &mut self.uses[at.0 as usize];
            one.seen = now;
            one.samples += 1;
        }
    }

    /// As [`Ledger::distrust`].
    pub fn distrust(&mut self) {
        self.ledger.distrust();
    }

    /// Frames were taken out of a queue, and dealt with; `emptied`: it had no more.
    #[inline]
    pub fn polled(&mut self, queue: Queue, frames: u32, emptied: bool) {
        self.ledger.polled(queue, frames, emptied);
    }

    /// The backends that queues stand for.
    pub fn targets(&self) -> Vec<Target> {
        self.ledger.targets().collect()
    }

    /// Time has passed: takes the card's answers, gives commands again, looks at some rules. `truth` is asked
    /// where the software would send a packet of a flow, as if one had come, so that it counts as alive there.
    pub fn tick(&mut self, now: u64, truth: &mut dyn FnMut(&FlowKey) -> Option<Target>) {
        self.take_answers(now, truth);
        if now.saturating_sub(self.window_began) >= self.setup.window {
            self.end_window(now);
        }
        let places = self.ledger.places();
        let passed = now.saturating_sub(self.looked) as usize;
        let due = places.saturating_mul(passed).div_ceil(self.setup.audit.max(1) as usize);
        self.looked = now;
        for _ in 0..due.min(places) {
            self.look_at(Location(self.next as u32), now, truth);
            self.next = (self.next + 1) % places;
        }
    }

    /// Holds every rule against the software now: the pool has changed.
    pub fn look_at_all(&mut self, now: u64, truth: &mut dyn FnMut(&FlowKey) -> Option<Target>) {
        (0..self.ledger.places()).for_each(|at| self.look_at(Location(at as u32), now, truth));
    }

    /// Holds the rules of a flow's client at its service against the software: a connection has begun that may have
    /// moved others of the client.
    pub fn look_at_client(
        &mut self,
        flow: &FlowKey,
        now: u64,
        truth: &mut dyn FnMut(&FlowKey) -> Option<Target>,
    ) {
        let places: Vec<Location> = self.ledger.of_client(flow).collect();
        places.into_iter().for_each(|at| self.look_at(at, now, truth));
    }

    fn take_answers(&mut self, now: u64, truth: &mut dyn FnMut(&FlowKey) -> Option<Target>) {
        let Self { card, ledger, counts, .. } = self;
        card.answers(&mut |answer: Answer| {
            let Some(gone) = ledger.answered(&answer, now) else { return };
            counts.refused += u64::from(gone.phase == Phase::Inserting);
            // It may have led packets since it was looked at last.
            truth(&gone.rule.flow);
        });
    }

    fn look_at(
        &mut self,
        at: Location,
        now: u64,
        truth: &mut dyn FnMut(&FlowKey) -> Option<Target>,
    ) {
        let Some(entry) = self.ledger.at(at) else { return };
        let since = entry.since;
        if !entry.doubt && truth(&entry.rule.flow) != Some(entry.target) {
            self.counts.doubted += 1;
            return self.ledger.doubt(at, now, &mut self.card);
        }
        if entry.phase != Phase::InForce {
            self.ledger.insist(at, now, self.setup.patience, &mut self.card);
            let again = self.ledger.at(at).is_some_and(|entry| entry.since != since);
            self.counts.again += u64::from(again);
            return;
        }
        let one = &mut self.uses[at.0 as usize];
        if let Some(hits) = self.card.hits(at)
            && hits != one.hits
        {
            one.seen = now;
        }
        if now.saturating_sub(one.seen) >= self.setup.idle {
            self.counts.idle += 1;
            self.ledger.evict(at, now, &mut self.card);
        }
    }

    fn end_window(&mut self, now: u64) {
        self.window_began = now;
        self.policy.next_window();
        self.bar = 0;
        self.served.clear();
        self.light.clear();
        for at in 0..self.ledger.places() {
            let place = Location(at as u32);
            let Some(entry) = self.ledger.at(place) else { continue };
            if entry.phase != Phase::InForce {
                continue;
            }
            let one = &mut self.uses[at];
            let came = if self.limits.counts {
                let hits = self.card.hits(place).unwrap_or(one.hits);
                let came = hits.saturating_sub(one.hits);
                one.hits = hits;
                came.min(u64::from(u32::MAX)) as u32
            } else {
                one.samples.saturating_mul(self.setup.sample)
            };
            one.samples = 0;
            if came > 0 {
                one.seen = now;
            }
            // What came in this window, and half of what came before, as the policy counts.
            one.lately = (one.lately / 2).saturating_add(came);
            self.light.push((one.lately, place));
        }
        self.light.sort_unstable_by(|a, b| b.cmp(a));
    }
}
