//! HNLB beside the program in the kernel: plain packets that a rule in the card has led to their backend's queue are
//! sent without a look-up; all others go as [`Beside`] has them.
//!
//! ```text
//! queue 0 ───────────────────────────────> Beside: service, decide, way ──> backend
//!                                              │ first packets, ends, connections worth a rule
//!                                              v
//!                                           Offload ──> rules ──> card
//! queue n, trusted ──> plain? ── yes ──> the way of backend n
//!                        └────── no ───> the program in the kernel
//! queue n, in doubt ─────────────────────> Beside
//! ```
//! Which queues are trusted, the [`Ledger`](weir_offload::Ledger) says. It is told of what begins and ends before
//! the program decides that. Nobody tells it that a table was published, or a backend taken away: that stands in the
//! memory, so before a queue leads packets, the tables of its rules and its backend are compared with those at which
//! all rules were held against the software last.

use super::Beside;
use super::Plain;
use super::decide::{Looked, Picks, decide, moves_its_client};
use crate::hybrid::Shares;
use crate::ports::{BURST, Fate, Frame};
use std::collections::HashMap;
use weir_dataplane::user::UserMemory;
use weir_lookup::prefetch;
use weir_offload::{Counts, Location, Offload, Phase, Queue, Rules, Setup, Target, Wish};
use weir_steering::{BackendId, Flags, RawHeader};
use weir_wire::{FlowKey, Protocol, Reason, TcpFlags, parse};

/// What goes past this plane may be on its way still: so long, in milliseconds, nobody gets a rule after that.
const QUIET: u64 = 10;

/// The place of a service: its address as two words, its port and protocol.
type To = ([u64; 2], u32);

/// Where packets that have rules go, and by which table.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Place {
    to: To,
    table: Option<(u32, RawHeader)>,
}

impl Place {
    fn is_as(&self, shared: &UserMemory) -> bool {
        self.table == table_of(shared, self.to)
    }
}

fn table_of(shared: &UserMemory, (address, port_protocol): To) -> Option<(u32, RawHeader)> {
    let number = shared.service(address, port_protocol)?;
    Some((number, shared.header(number)?))
}

/// What was configured when all rules were held against it.
#[derive(Debug, Default)]
struct Held {
    places: Vec<Place>,
    /// By queue: the numbers of those places that its rules are for.
    of_queue: HashMap<Queue, Vec<usize>>,
}

impl Held {
    fn add(&mut self, queue: Queue, place: Place) {
        let known = self.places.iter().position(|known| known.to == place.to);
        let at = known.unwrap_or_else(|| {
            self.places.push(place);
            self.places.len() - 1
        });
        let of_queue = self.of_queue.entry(queue).or_default();
        if !of_queue.contains(&at) {
            of_queue.push(at);
        }
    }

    /// Whether nothing has changed that packets of a queue go by.
    fn is_as(&self, shared: &UserMemory, queue: Queue) -> bool {
        let places = self.of_queue.get(&queue).into_iter().flatten();
        places.into_iter().all(|at| self.places[*at].is_as(shared))
    }
}

/// The plane beside the program, with a card that has rules.
pub struct Offloaded<R> {
    beside: Beside,
    offload: Offload<R>,
    held: Held,
    shares: Shares,
    /// What had gone past this plane when that was looked at last.
    past: u64,
    /// Nobody gets a rule before that.
    quiet: u64,
    /// Milliseconds of the last tick.
    ticked: u64,
    /// Frames for which an emulated card's queue had no room.
    unheld: u64,
}

/// What a burst is decided by and into.
struct Burst<'a> {
    shared: &'a UserMemory,
    sends_by: &'a dyn Fn(u32) -> bool,
    memory: &'a mut [u8],
    frames: &'a mut [Frame],
    plain: [Option<Plain>; BURST],
    /// Whether nobody gets a rule by it: a connection has begun in it, which what the tables say does not know yet,
    /// or all rules were held against other tables.
    unfit: bool,
    now: u64,
}

impl Burst<'_> {
    fn bytes(&self, at: usize) -> Option<&[u8]> {
        let frame = self.frames.get(at)?;
        self.memory.get(frame.at as usize..)?.get(..frame.len as usize)
    }
}

/// Where the software would send a packet of this flow, which counts as active there.
fn truth(beside: &mut Beside, shared: &UserMemory, flow: &FlowKey) -> Option<Target> {
    let plain = Plain::of(flow);
    beside.picks.begin();
    let looked = beside.picks.look(shared, &plain);
    beside.picks.exactly(&looked)?;
    let [backend, ..] = decide(shared, &beside.picks, &mut [looked], &[Some(plain)]);
    beside.target(shared, backend?)
}

impl Beside {
    fn target(&mut self, shared: &UserMemory, backend: BackendId) -> Option<Target> {
        let incarnation = self.ways.incarnation(shared, backend)?;
        Some(Target { backend, incarnation })
    }
}

impl<R: Rules> Offloaded<R> {
    /// Beside a card whose table is empty. What is drawn is drawn from the seed.
    pub fn new(card: R, setup: Setup, seed: u64) -> Self {
        Self {
            beside: Beside::default(),
            offload: Offload::new(card, setup, seed),
            held: Held::default(),
            shares: Shares::default(),
            past: 0,
            quiet: 0,
            ticked: 0,
            unheld: 0,
        }
    }

    /// Time has passed: what is kept of backends is looked at again, which asks the kernel.
    pub fn refresh(&mut self) {
        self.beside.refresh();
    }

    /// The rules.
    pub fn offload(&mut self) -> &mut Offload<R> {
        &mut self.offload
    }

    /// What has been done with rules so far.
    pub fn counts(&self) -> Counts {
        self.offload.counts()
    }

    /// Rules that the card says to have.
    pub fn in_force(&self) -> u64 {
        let ledger = self.offload.ledger();
        let places = (0..ledger.places() as u32).filter_map(|at| ledger.at(Location(at)));
        places.filter(|entry| entry.phase == Phase::InForce).count() as u64
    }

    /// Frames so far that were lost because a queue of the card had no room.
    pub fn unheld(&self) -> u64 {
        self.unheld
    }

    /// So many more.
    pub(super) fn count_unheld(&mut self, frames: u64) {
        self.unheld += frames;
    }

    /// Which way packets have gone so far.
    pub fn shares(&self) -> Shares {
        self.shares
    }

    /// Connections may have begun and ended unseen, or all is read from other memory: no rule counts any more.
    pub fn doubt_all(&mut self, now: u64) {
        for target in self.offload.targets() {
            self.offload.retire(target, now);
        }
        self.held = Held::default();
        self.quiet = now + QUIET;
    }

    /// Other memory is read from now on.
    pub fn begin_anew(&mut self, shared: &UserMemory, now: u64) {
        self.beside = Beside::default();
        self.past = shared.past();
        self.doubt_all(now);
        self.offload.distrust();
    }

    /// Decides a burst of frames that were taken out of a queue, as [`Beside::process`] does, at `now` in
    /// milliseconds; `emptied`: the queue had no more.
    ///
    /// # Panics
    /// As [`Beside::process`].
    #[expect(
        clippy::too_many_arguments,
        reason = "they are the burst's, the queue's and the memory's"
    )]
    pub fn process(
        &mut self,
        shared: &UserMemory,
        sends_by: &dyn Fn(u32) -> bool,
        queue: Queue,
        memory: &mut [u8],
        frames: &mut [Frame],
        emptied: bool,
        now: u64,
    ) {
        let all = frames.len();
        assert!(all <= BURST, "{all} frames");
        for frame in &*frames {
            prefetch(memory, frame.at as usize);
        }
        shared.enter();
        self.look(shared, queue, now);
        let mut plain = [None; BURST];
        self.beside.classify(shared, memory, frames, &mut plain);
        let mut burst = Burst { shared, sends_by, memory, frames, plain, unfit: false, now };
        let at = self.lead(queue, &mut burst);
        if at < all {
            self.steer(queue, &mut burst, at);
        }
        self.beside.counted.give(shared);
        shared.leave();
        self.offload.polled(queue, all as u32, emptied);
    }

    /// Looks whether what a queue's packets go by is what rules were held against.
    fn look(&mut self, shared: &UserMemory, queue: Queue, now: u64) {
        let past = shared.past();
        if past != self.past {
            self.past = past;
            return self.doubt_all(now);
        }
        let Some(target) = self.offload.trusted(queue) else { return };
        let same = self.beside.ways.incarnation(shared, target.backend);
        if same != Some(target.incarnation) || !self.held.is_as(shared, queue) {
            self.hold_all(shared, now);
        }
    }

    /// Holds all rules against what is configured now.
    fn hold_all(&mut self, shared: &UserMemory, now: u64) {
        let Self { beside, offload, held, .. } = self;
        for target in offload.targets() {
            if beside.ways.incarnation(shared, target.backend) != Some(target.incarnation) {
                offload.retire(target, now);
            }
        }
        let mut places: HashMap<To, Place> = HashMap::new();
        *held = Held::default();
        let ledger = offload.ledger();
        for entry in (0..ledger.places() as u32).filter_map(|at| ledger.at(Location(at))) {
            let Plain { to, port_protocol, .. } = Plain::of(&entry.rule.flow);
            let to = (to, port_protocol);
            let place = places.entry(to);
            let place = place.or_insert_with(|| Place { to, table: table_of(shared, to) });
            held.add(entry.rule.queue, *place);
        }
        offload.look_at_all(now, &mut |flow| truth(beside, shared, flow));
    }

    /// Sends what a trusted queue has led; returns how far it has come: from there on it is not trusted.
    fn lead(&mut self, queue: Queue, burst: &mut Burst<'_>) -> usize {
        let all = burst.frames.len();
        let Some(mut target) = self.offload.trusted(queue) else { return 0 };
        if let Some(sample) = self.offload.sample(all as u32)
            && let Some(Some(plain)) = burst.plain.get(sample as usize)
        {
            self.offload.used(&plain.flow(), burst.now);
        }
        for at in 0..all {
            let Some(plain) = burst.plain[at] else {
                burst.frames[at].fate = Fate::Pass;
                self.shares.steered_apart += 1;
                self.tell(burst, at);
                // It may have begun a connection elsewhere.
                match self.offload.trusted(queue) {
                    Some(same) => target = same,
                    None => return at + 1,
                }
                continue;
            };
            self.send(burst, at, &plain, target.backend);
            self.shares.led += 1;
        }
        all
    }

    /// Has a frame take the way to its backend, or the program decide it.
    fn send(&mut self, burst: &mut Burst<'_>, at: usize, plain: &Plain, backend: BackendId) {
        let Beside { ways, scratch, counted, .. } = &mut self.beside;
        let frame = &mut burst.frames[at];
        frame.fate = Fate::Pass;
        let Some(way) = ways.of(burst.shared, backend) else { return };
        if way.take(burst.memory, frame, plain.bytes, burst.sends_by, scratch) {
            counted.add(backend, plain.bytes);
        }
    }

    /// Decides the rest of a burst as if there were no card.
    fn steer(&mut self, queue: Queue, burst: &mut Burst<'_>, from: usize) {
        let all = burst.frames.len();
        let mut looked = [Looked::default(); BURST];
        self.beside.picks.begin();
        for (plain, looked) in burst.plain.iter().zip(&mut looked).take(all).skip(from) {
            if let Some(plain) = plain {
                *looked = self.beside.picks.look(burst.shared, plain);
            }
        }
        let slots = decide(burst.shared, &self.beside.picks, &mut looked[..all], &burst.plain);
        for at in from..all {
            match (burst.plain[at], slots[at]) {
                (Some(plain), Some(backend)) => {
                    self.send(burst, at, &plain, backend);
                    if burst.frames[at].fate == Fate::Send {
                        self.offer(burst, &plain, &looked[at], backend);
                    }
                }
                (plain, _) => {
                    burst.frames[at].fate = Fate::Pass;
                    if plain.is_none() {
                        self.tell(burst, at);
                    }
                }
            }
        }
        let steered = (all - from) as u64;
        match queue {
            Queue::SOFTWARE => self.shares.steered += steered,
            _ => self.shares.steered_apart += steered,
        }
    }

    /// Gives a connection a rule, if it is worth one.
    fn offer(&mut self, burst: &mut Burst<'_>, plain: &Plain, looked: &Looked, backend: BackendId) {
        // The hash is a client's where that has affinity, and a rule is one connection's.
        let number = looked.hash ^ u64::from(plain.key.src_port);
        let Wish::Yes(packets) = self.offload.wish(number) else { return };
        if burst.unfit || burst.now < self.quiet {
            return;
        }
        let Some((number, header)) = self.beside.picks.exactly(looked) else { return };
        let flags = Flags(header.flags);
        // What is being changed is over soon.
        if flags.has(Flags::PENDING) || flags.has(Flags::RECORD) {
            return;
        }
        let place = Place { to: (plain.to, plain.port_protocol), table: Some((number, *header)) };
        let known = self.held.places.iter().find(|known| known.to == place.to);
        if known.is_some_and(|known| *known != place) {
            burst.unfit = true;
            return self.hold_all(burst.shared, burst.now);
        }
        let Some(target) = self.beside.target(burst.shared, backend) else { return };
        let (flow, before) = (plain.flow(), self.offload.counts().asked);
        self.offload.offer(&flow, target, packets, burst.now);
        if self.offload.counts().asked != before
            && let Some((_, entry)) = self.offload.ledger().of_flow(&flow)
        {
            let queue = entry.rule.queue;
            self.held.add(queue, place);
        }
    }

    /// A frame is given to the program: what begins or ends with it is told before.
    fn tell(&mut self, burst: &mut Burst<'_>, at: usize) {
        let now = burst.now;
        let Some(bytes) = burst.bytes(at) else { return };
        match parse(bytes) {
            Ok(packet) if packet.flow.protocol == Protocol::Tcp => {
                if packet.tcp_flags.starts() {
                    burst.unfit = true;
                    // The program is about to decide it.
                    self.offload.started(&packet.flow, None, now);
                    let mut picks = Picks::default();
                    let looked = picks.look(burst.shared, &Plain::of(&packet.flow));
                    if moves_its_client(burst.shared, &picks, &looked) {
                        self.offload.look_at_client(&packet.flow, now, &mut |_| None);
                    }
                }
                if packet.tcp_flags.intersects(TcpFlags::FIN | TcpFlags::RST) {
                    self.offload.ended(&packet.flow, now);
                }
            }
            // What is in it, only the whole packet says.
            Err(refused) if refused.reason == Reason::FirstFragment && may_be_tcp(bytes) => {
                self.doubt_all(now);
            }
            _ => {}
        }
    }

    /// Time has passed, in milliseconds: answers of the card are taken, commands given again, rules looked at.
    /// To be called between bursts; it does something once in a millisecond.
    pub fn tick(&mut self, shared: &UserMemory, now: u64) {
        if now == self.ticked {
            return;
        }
        self.ticked = now;
        shared.enter();
        let Self { beside, offload, .. } = self;
        offload.tick(now, &mut |flow| truth(beside, shared, flow));
        shared.leave();
    }
}

/// Whether a first fragment may be one of a TCP packet: it is not, if it is without a VLAN tag, over IPv4, and says so.
fn may_be_tcp(frame: &[u8]) -> bool {
    let kind = frame.get(12..14);
    kind != Some(&[8, 0]) || frame.get(23) == Some(&Protocol::Tcp.number())
}
