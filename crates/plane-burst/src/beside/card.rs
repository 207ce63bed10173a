//! The cards that a plane beside the program can have, and how frames come by their queues.

use super::{Beside, Offloaded};
use crate::hybrid::Shares;
use crate::ports::{BURST, Fate, Frame, Ports};
use std::fmt;
use std::time::Duration;
use weir_dataplane::user::UserMemory;
use weir_offload::emulated::{Nic, Profile};
use weir_offload::{
    Answer, Choice, Counts, Limits, Location, Queue, Refusal, Rule, Rules, Serial, Setup,
};
use weir_plane::UserCounts;
use weir_wire::{FlowKey, Protocol, parse};

/// Whose rules they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RulesOf {
    /// A card of memory, between ports and plane.
    Emulated,
    /// A network card's, by the kernel's ntuple interface.
    Ntuple,
    /// Those of DPDK's devices, by `rte_flow`.
    RteFlow,
    /// An emulated card's that a program plays at the far end of a veth device.
    Veth,
}

/// Which rules are wanted.
#[derive(Clone, PartialEq, Debug)]
pub struct Wanted {
    /// Whose.
    pub card: RulesOf,
    /// At most so many.
    pub rules: u32,
    /// Receive queues, the software's included: at most so many backends less one have rules at a time.
    pub queues: u16,
    /// Which connections are worth one.
    pub choice: Choice,
    /// A connection takes the place of another if it sent this many times as much lately.
    pub hysteresis: u32,
    /// Whether an emulated card does everything wrong that a card may.
    pub hostile: bool,
}

/// Frames that a queue of the emulated card holds: it has a port's memory for them.
const EMULATED_RING: u32 = 128;
/// A rule is held against the software so often, in milliseconds, which is less than a quarter of the least time
/// after which the control plane takes a connection for over where there are rules.
const AUDIT: u64 = 5_000;

impl Wanted {
    /// How rules are given.
    pub fn setup(&self) -> Setup {
        Setup { choice: self.choice, hysteresis: self.hysteresis, audit: AUDIT, ..Setup::default() }
    }

    /// How an emulated card with so many queues behaves, and frames that each of these holds.
    pub(super) fn profile(&self, queues: u16, ring: u32) -> Profile {
        let rules = self.rules as usize;
        let profile = match self.hostile {
            true => Profile::hostile(rules, queues),
            false => Profile::sound(rules, queues),
        };
        Profile { ring, ..profile }
    }

    /// The emulated card of memory.
    pub fn emulated(&self) -> Card {
        let profile = self.profile(self.queues, EMULATED_RING);
        Card::Emulated(Box::new(Nic::new(profile, rand::random())))
    }

    /// A card that takes rules, no more of them and of queues than are wanted. A frame that the card has put into a
    /// queue comes to the ports within `settles`, where a socket holds up to `held` of them.
    pub fn of(&self, rules: impl Rules + Send + 'static, settles: Duration, held: u32) -> Card {
        let all = rules.limits();
        let most = all.rules.min(self.rules as usize);
        let ring = all.ring.saturating_add(held);
        let limits = Limits { rules: most, queues: all.queues.min(self.queues), ring, ..all };
        let empty = vec![None; limits.queues.into()];
        Card::Real(Real { rules: Box::new(rules), limits, settles, empty })
    }
}

/// A card that is no memory of ours.
pub struct Real {
    rules: Box<dyn Rules + Send>,
    /// How much of it is used.
    limits: Limits,
    /// How long frames are on their way from the card's queue to where they are found.
    settles: Duration,
    /// Since when nothing was found in each queue.
    empty: Vec<Option<Duration>>,
}

impl Real {
    /// Whether nothing is left in a queue, of which so many frames have just been taken; `full`: there may be more.
    fn is_empty(&mut self, queue: Queue, taken: usize, full: bool, now: Duration) -> bool {
        if self.settles.is_zero() {
            return !full;
        }
        let Some(empty) = self.empty.get_mut(usize::from(queue.0)) else { return false };
        if taken > 0 || full {
            *empty = None;
            return false;
        }
        now.saturating_sub(*empty.get_or_insert(now)) >= self.settles
    }
}

/// A card with rules.
pub enum Card {
    /// One of memory.
    Emulated(Box<Nic<Frame>>),
    /// Another one.
    Real(Real),
}

impl fmt::Debug for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Emulated(_) => "Emulated",
            Self::Real(_) => "Real",
        })
    }
}

impl Card {
    fn rules(&mut self) -> &mut dyn Rules {
        match self {
            Self::Emulated(nic) => nic.as_mut(),
            Self::Real(card) => card.rules.as_mut(),
        }
    }
}

impl Rules for Card {
    fn limits(&self) -> Limits {
        match self {
            Self::Emulated(nic) => nic.limits(),
            Self::Real(card) => card.limits,
        }
    }

    fn insert(&mut self, at: Location, rule: &Rule, serial: Serial) -> Result<(), Refusal> {
        self.rules().insert(at, rule, serial)
    }

    fn delete(&mut self, at: Location, serial: Serial) -> Result<(), Refusal> {
        self.rules().delete(at, serial)
    }

    fn answers(&mut self, take: &mut dyn FnMut(Answer)) {
        self.rules().answers(take);
    }

    fn hits(&mut self, at: Location) -> Option<u64> {
        self.rules().hits(at)
    }
}

/// What decides frames in a process.
pub enum Decides {
    /// No card has rules.
    Alone(Beside),
    /// One has.
    WithRules(Box<Offloaded<Card>>),
}

impl Default for Decides {
    fn default() -> Self {
        Self::Alone(Beside::default())
    }
}

impl Decides {
    /// By the rules of a card that is only memory.
    pub fn by_rules(wanted: &Wanted) -> Self {
        Self::by((wanted.emulated(), wanted.setup()))
    }

    /// By the rules of a card.
    pub fn by((card, setup): (Card, Setup)) -> Self {
        Self::WithRules(Box::new(Offloaded::new(card, setup, rand::random())))
    }

    /// As [`Beside::refresh`].
    pub fn refresh(&mut self) {
        match self {
            Self::Alone(beside) => beside.refresh(),
            Self::WithRules(offloaded) => offloaded.refresh(),
        }
    }
}

/// The flow of a frame as a card finds it: of whole TCP packets only.
fn parsed_by_cards(frame: &[u8]) -> Option<FlowKey> {
    let packet = parse(frame).ok()?;
    (packet.flow.protocol == Protocol::Tcp).then_some(packet.flow)
}

fn milliseconds(now: Duration) -> u64 {
    now.as_millis() as u64
}

impl Offloaded<Card> {
    /// Takes what has come in through the card and the plane, and sends it; returns how many frames were taken out
    /// of queues. An emulated card leads frames to its queues by its rules; of other cards' frames the ports know by
    /// which queue each came.
    ///
    /// # Errors
    /// Those of the ports.
    pub fn turn<P: Ports>(
        &mut self,
        ports: &mut P,
        shared: &UserMemory,
        sends_by: &dyn Fn(u32) -> bool,
        now: Duration,
    ) -> Result<usize, P::Error> {
        let mut frames = [Frame::default(); BURST];
        let count = ports.receive(&mut frames)?;
        let mut unheld = 0;
        let of_ports = match self.offload().card() {
            Card::Emulated(nic) => {
                nic.advance(now);
                for frame in &frames[..count] {
                    let bytes = ports.memory().get(frame.at as usize..);
                    let bytes = bytes.and_then(|bytes| bytes.get(..frame.len as usize));
                    let flow = bytes.and_then(parsed_by_cards);
                    if let Err(mut lost) = nic.receive(flow.as_ref(), *frame) {
                        lost.fate = Fate::Drop;
                        unheld += 1;
                        ports.finish(&[lost])?;
                    }
                }
                0
            }
            Card::Real(_) => count,
        };
        self.count_unheld(unheld);
        let taken = self.serve(ports, shared, sends_by, &mut frames[..of_ports], now)?;
        if count == 0 {
            ports.finish(&[])?;
        }
        self.tick(shared, milliseconds(now));
        Ok(taken)
    }

    /// Serves the queues of the card in turn, once; returns how many frames were taken out of them. Frames of an
    /// emulated card are in its queues, those of another one are what the ports have just received.
    fn serve<P: Ports>(
        &mut self,
        ports: &mut P,
        shared: &UserMemory,
        sends_by: &dyn Fn(u32) -> bool,
        received: &mut [Frame],
        now: Duration,
    ) -> Result<usize, P::Error> {
        let mut of_card = [Frame::default(); BURST];
        let all = received.len();
        received.sort_by_key(|frame| ports.queue_of(frame));
        let (mut rest, mut taken) = (received, 0);
        for queue in (0..self.offload().card().limits().queues).map(Queue) {
            let (burst, emptied) = match self.offload().card() {
                Card::Emulated(nic) => {
                    let mut count = 0;
                    let emptied = nic.poll(queue, BURST, &mut |frame| {
                        of_card[count] = frame;
                        count += 1;
                    });
                    (&mut of_card[..count], emptied)
                }
                Card::Real(card) => {
                    let of_queue = |frame: &&Frame| ports.queue_of(frame) <= queue.0;
                    let count = rest.iter().take_while(of_queue).count();
                    let (burst, others) = std::mem::take(&mut rest).split_at_mut(count);
                    rest = others;
                    (burst, card.is_empty(queue, count, ports.may_have_left(queue.0, all), now))
                }
            };
            if burst.is_empty() {
                self.offload().polled(queue, 0, emptied);
                continue;
            }
            taken += burst.len();
            let memory = ports.memory();
            self.process(shared, sends_by, queue, memory, burst, emptied, milliseconds(now));
            ports.finish(burst)?;
        }
        if !rest.is_empty() {
            // By queues that no rule leads to.
            taken += rest.len();
            let (memory, now) = (ports.memory(), milliseconds(now));
            self.process(shared, sends_by, Queue::SOFTWARE, memory, rest, false, now);
            ports.finish(rest)?;
        }
        Ok(taken)
    }

    /// Takes what is left in the emulated card's queues through the plane, before ports change.
    ///
    /// # Errors
    /// Those of the ports.
    pub fn drain<P: Ports>(
        &mut self,
        ports: &mut P,
        shared: &UserMemory,
        sends_by: &dyn Fn(u32) -> bool,
        now: Duration,
    ) -> Result<(), P::Error> {
        // What other cards hold only the ports can say.
        let emulated = matches!(self.offload().card(), Card::Emulated(_));
        while emulated && self.serve(ports, shared, sends_by, &mut [], now)? > 0 {}
        Ok(())
    }
}

/// What was done with rules so far, for the memory that says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ruled {
    in_force: u64,
    counts: Counts,
    shares: Shares,
    unheld: u64,
}

impl Ruled {
    /// What a plane has done.
    pub fn of<R: Rules>(plane: &Offloaded<R>) -> Self {
        Self {
            in_force: plane.in_force(),
            counts: plane.counts(),
            shares: plane.shares(),
            unheld: plane.unheld(),
        }
    }

    /// Adds what was done since `before`.
    pub fn add_to(&self, counts: &mut UserCounts, before: &Self) {
        let unplaced = |of: &Counts| of.full + of.no_queue + of.doubtful;
        let refused = |of: &Counts| of.busy + of.refused;
        let (now, then) = (&self.counts, &before.counts);
        counts.rules = self.in_force;
        counts.rules_asked += now.asked - then.asked;
        counts.rules_refused += refused(now) - refused(then);
        counts.rules_unplaced += unplaced(now) - unplaced(then);
        counts.rules_doubted += now.doubted - then.doubted;
        counts.rx_ring_full += self.unheld - before.unheld;
        counts.led += self.shares.led - before.shares.led;
        counts.steered += self.shares.steered - before.shares.steered;
        counts.steered_apart += self.shares.steered_apart - before.shares.steered_apart;
    }
}
