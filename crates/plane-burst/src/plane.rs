//! The plane: a burst through all stages.

use crate::later::{Hashed, Keys, Later};
use crate::parse::{Plain4, Plain6, SHORTEST_IPV4, SHORTEST_IPV6, plain4, plain6};
use crate::ports::{BURST, Fate, Frame, HEADROOM, Ports};
use crate::services::{NONE, Services};
use crate::ways::Ways;
use std::ops::Range;
use weir_hash::Key;
use weir_lookup::prefetch;
use weir_plane::forward::l2;
use weir_plane::{Counters, Soft, Verdict};
use weir_steering::{
    BackendId, Decide, Decision, Flags, Image, Memory as _, Question, Signals, SoftMemory, StateKey,
};
use weir_wire::Reason;

/// The MAC address in a word of eight bytes.
const MAC: u64 = 0xffff_ffff_ffff;

/// A plane that takes bursts. It begins with a [`Soft`], which stays its own: tables, backends, memory,
/// counters, and the way of all packets that are not plain.
#[derive(Debug, Default)]
pub struct Burst {
    soft: Soft,
    /// What the short way reads, made of what is configured; none since that may have changed.
    short: Option<Short>,
    stages: Box<Stages>,
    /// A frame on the long way.
    scratch: Vec<u8>,
    /// Packets that took the long way.
    long: u64,
}

/// What the short way reads.
#[derive(Debug)]
struct Short {
    services: Services,
    ways: Ways,
    /// The words of our MAC addresses; empty: any is ours.
    own_macs: Vec<u64>,
}

impl Short {
    fn new(soft: &Soft) -> Self {
        let word = |mac: &[u8; 6]| {
            u64::from_le_bytes([mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], 0, 0])
        };
        Self {
            services: Services::new(&soft.vips, &soft.tables),
            ways: Ways::new(soft),
            own_macs: soft.own_macs.iter().map(word).collect(),
        }
    }

    #[inline(always)]
    fn is_own(&self, mac: u64) -> bool {
        match &self.own_macs[..] {
            [] => true,
            [only] => *only == mac,
            several => several.contains(&mac),
        }
    }
}

/// What the stages hand to each other, by the packets' numbers in the burst.
#[derive(Clone, Debug)]
struct Stages {
    /// The number of the service, or [`NONE`].
    service: [u16; BURST],
    /// Over IPv4.
    words: [u64; BURST],
    /// Over IPv6.
    keys: [StateKey; BURST],
    /// Bytes from the IP header on.
    bytes: [u32; BURST],
    /// Packets of one service.
    of_one: [u8; BURST],
    hashed: [Hashed; BURST],
    slots: [u16; BURST],
    /// Whether the flow counts as new at the backend, and why the packet is dropped if it has none.
    new: [bool; BURST],
    reason: [Reason; BURST],
}

impl Default for Stages {
    fn default() -> Self {
        Self {
            service: [NONE; BURST],
            words: [0; BURST],
            keys: [StateKey::default(); BURST],
            bytes: [0; BURST],
            of_one: std::array::from_fn(|at| at as u8),
            hashed: [Hashed::default(); BURST],
            slots: [0; BURST],
            new: [false; BURST],
            reason: [Reason::NoBackend; BURST],
        }
    }
}

impl Burst {
    /// A plane with what this one has.
    pub fn new(soft: Soft) -> Self {
        Self { soft, ..Self::default() }
    }

    /// The plane within, to be asked and changed. The next burst takes what is changed into account.
    pub fn soft(&mut self) -> &mut Soft {
        if let Some(mut short) = self.short.take() {
            short.ways.give_counted(&mut self.soft.counters.lanes);
        }
        &mut self.soft
    }

    /// What became of the packets so far.
    pub fn counters(&mut self) -> &Counters {
        if let Some(short) = &mut self.short {
            short.ways.give_counted(&mut self.soft.counters.lanes);
        }
        &self.soft.counters
    }

    /// Packets so far that took the long way.
    pub fn long(&self) -> u64 {
        self.long
    }

    /// Takes what has come in through the plane and sends it; returns how many frames.
    ///
    /// # Errors
    /// Those of the ports.
    #[inline]
    pub fn turn<P: Ports>(&mut self, ports: &mut P) -> Result<usize, P::Error> {
        let mut frames = [Frame::default(); BURST];
        let count = ports.receive(&mut frames)?;
        let frames = &mut frames[..count];
        self.process(ports.memory(), frames);
        ports.finish(frames)?;
        Ok(count)
    }

    /// Decides a burst of at most [`BURST`] frames, which are in `memory`, and writes into each what it
    /// leaves with: bytes, place and fate.
    ///
    /// # Panics
    /// With more frames, or with one outside of the memory.
    pub fn process(&mut self, memory: &mut [u8], frames: &mut [Frame]) {
        assert!(frames.len() <= BURST, "{} frames", frames.len());
        let short = self.short.get_or_insert_with(|| Short::new(&self.soft));
        for frame in &*frames {
            prefetch(memory, frame.at as usize);
        }
        let plain = classify(short, &mut self.stages, memory, frames);
        if plain == frames.len() {
            return self.plain(memory, frames, 0..plain);
        }
        // A packet that is not plain may leave behind what others ask for: those before it come first.
        let mut at = 0;
        while at < frames.len() {
            let from = at;
            while at < frames.len() && self.stages.service[at] != NONE {
                at += 1;
            }
            self.plain(memory, frames, from..at);
            if at < frames.len() {
                self.long_way(memory, &mut frames[at], None);
                at += 1;
            }
        }
    }

    /// Plain packets, one service after the other: what one does concerns no other.
    fn plain(&mut self, memory: &mut [u8], frames: &mut [Frame], range: Range<usize>) {
        let Range { mut start, end } = range;
        while start < end {
            let service = self.stages.service[start];
            let mut count = 0;
            let mut rest = end;
            for at in start..end {
                if self.stages.service[at] == service {
                    self.stages.of_one[count] = at as u8;
                    count += 1;
                } else if rest == end && self.stages.service[at] != NONE {
                    rest = at;
                }
            }
            self.of_one_service(memory, frames, service, count);
            if rest < end {
                for &at in &self.stages.of_one[..count] {
                    self.stages.service[usize::from(at)] = NONE;
                }
            }
            start = rest;
        }
    }

    fn of_one_service(
        &mut self,
        memory: &mut [u8],
        frames: &mut [Frame],
        service: u16,
        count: usize,
    ) {
        let Some(short) = &mut self.short else { return };
        self.stages.decide(&mut self.soft.memory, &short.services, service, count);
        for at in 0..count {
            let number = usize::from(self.stages.of_one[at]);
            let Some(short) = &mut self.short else { return };
            let frame = &mut frames[number];
            let (slot, bytes) = (self.stages.slots[at], self.stages.bytes[number]);
            if !short.ways.forward(memory, frame, slot, bytes, self.stages.new[at]) {
                let verdict = self.stages.verdict(at, bytes);
                self.long_way(memory, frame, Some(verdict));
            }
        }
    }

    /// A frame through the plane within. `decided`: what has been decided about it.
    #[cold]
    #[inline(never)]
    fn long_way(&mut self, memory: &mut [u8], frame: &mut Frame, decided: Option<Verdict>) {
        self.long += 1;
        let (at, len) = (frame.at as usize, frame.len as usize);
        let scratch = &mut self.scratch;
        scratch.clear();
        scratch.extend_from_slice(&memory[at..at + len]);
        let verdict = match decided {
            None => self.soft.take(scratch, None),
            Some(decided) => self.soft.carry_out(scratch, decided, None),
        };
        frame.device = 0;
        frame.fate = match verdict {
            Verdict::Forward { backend, new, bytes, .. } => {
                match self.soft.backends.get(&backend).and_then(|backend| backend.hop) {
                    Some(hop) => {
                        l2(scratch, &hop.next);
                        frame.device = hop.ifindex;
                        Fate::Send
                    }
                    None => {
                        self.soft.counters.nowhere(backend, new, bytes);
                        Fate::Drop
                    }
                }
            }
            Verdict::Echo | Verdict::Tell { .. } => Fate::Send,
            Verdict::Return { .. } => Fate::Route,
            Verdict::Answer(_) | Verdict::Pass(_) => Fate::Pass,
            Verdict::Drop(_) => Fate::Drop,
        };
        // What is longer begins earlier.
        let longer = scratch.len().saturating_sub(len);
        debug_assert!(longer <= HEADROOM, "{longer} bytes in front");
        let at = at - longer;
        memory[at..at + scratch.len()].copy_from_slice(scratch);
        (frame.at, frame.len) = (at as u32, scratch.len() as u32);
        if matches!(verdict, Verdict::Pass(Reason::PathMtu))
            && let Some(short) = &mut self.short
        {
            // Tunnels may take less from now on.
            short.ways.give_counted(&mut self.soft.counters.lanes);
            short.ways = Ways::new(&self.soft);
        }
    }
}

/// Parses all frames and finds their services; returns how many are plain.
#[inline]
fn classify(short: &Short, stages: &mut Stages, memory: &[u8], frames: &[Frame]) -> usize {
    let mut plain = 0;
    for (at, frame) in frames.iter().enumerate() {
        let bytes = &memory[frame.at as usize..][..frame.len as usize];
        let mut service = NONE;
        if let Some(head) = bytes.first_chunk::<SHORTEST_IPV4>() {
            let mac = u64::from_le_bytes([
                head[0], head[1], head[2], head[3], head[4], head[5], head[6], head[7],
            ]) & MAC;
            if let Some(Plain4 { word, to, bytes }) = plain4(head, frame.len) {
                if short.is_own(mac) {
                    service = short.services.of_ipv4(to);
                }
                (stages.words[at], stages.bytes[at]) = (word, bytes);
            } else if head[12] == 0x86
                && let Some(head) = bytes.first_chunk::<SHORTEST_IPV6>()
                && let Some(Plain6 { key, to, bytes }) = plain6(head, frame.len)
                && short.is_own(mac)
            {
                service = short.services.of_ipv6(to, key.dst_port);
                (stages.keys[at], stages.bytes[at]) = (key, bytes);
            }
        }
        stages.service[at] = service;
        plain += usize::from(service != NONE);
    }
    plain
}

impl Stages {
    /// Where the packets of `of_one` go, all of one service: the slots of their backends, or
    /// [`NO_BACKEND`](weir_steering::NO_BACKEND).
    #[inline]
    fn decide(
        &mut self,
        memory: &mut SoftMemory,
        services: &Services,
        service: u16,
        count: usize,
    ) {
        let service = services.get(service);
        let image = &*service.table;
        let key = *Decide::<StateKey>::hash_key(image);
        let client = image.header().flags().has(Flags::CLIENT);
        let packets = &self.of_one[..count];
        let hashed = &mut self.hashed[..count];
        let keys = if service.ipv4 {
            let mask = if client { !0xffff_ffff } else { !0 };
            for (hashed, &packet) in hashed.iter_mut().zip(packets) {
                let hash = key.hash_word(self.words[usize::from(packet)] & mask);
                *hashed = Hashed { hash, packet: packet.into() };
            }
            Keys::Ipv4(&self.words, client)
        } else {
            let keys = Keys::Ipv6(&self.keys, client);
            for (hashed, &packet) in hashed.iter_mut().zip(packets) {
                let hash = keys.get(packet.into()).hash(&key);
                *hashed = Hashed { hash, packet: packet.into() };
            }
            keys
        };
        let (now, service) = (memory.now, service.id);
        let slots = &mut self.slots[..count];
        self.new[..count].fill(false);
        // Packets in the middle of connections have one reason to be dropped with these two.
        self.reason[..count].fill(Reason::NoBackend);
        let mut later = Later { memory, service, now, keys };
        match image {
            Image::Concury(table) => table.decide_burst(hashed, slots, &mut later),
            Image::Residue(table) => table.decide_burst(hashed, slots, &mut later),
            image => {
                let mut each = Each { later, hashed, slots, new: &mut self.new, reason: &mut self.reason };
                match image {
                    Image::Tracked(table) => each.decide(table),
                    Image::Jet(table) => each.decide(table),
                    other => each.decide(other),
                }
            }
        }
    }

    /// What has been decided about a packet of `of_one`.
    fn verdict(&self, at: usize, bytes: u32) -> Verdict {
        match BackendId::of_slot(self.slots[at]) {
            Some(backend) => {
                Verdict::Forward { backend, new: self.new[at], bytes, cookie: None, echo: None }
            }
            None => Verdict::Drop(self.reason[at]),
        }
    }
}

/// Packets of a method that says of each alone what becomes of it.
struct Each<'a> {
    later: Later<'a>,
    hashed: &'a [Hashed],
    slots: &'a mut [u16],
    new: &'a mut [bool],
    reason: &'a mut [Reason],
}

impl Each<'_> {
    #[inline(always)]
    fn decide(&mut self, table: &impl Decide<StateKey>) {
        let Later { memory, service, now, keys } = &mut self.later;
        for hashed in self.hashed {
            memory.prefetch_connection(hashed.hash);
        }
        for (at, hashed) in self.hashed.iter().enumerate() {
            let question = Question {
                service: *service,
                key: keys.get(hashed.packet as usize),
                hash: hashed.hash,
                signals: Signals::LATER,
                now: *now,
            };
            let Decision { backend, new, .. } = table.decide(&question, *memory);
            self.slots[at] = BackendId::to_slot(backend.ok());
            self.new[at] = new;
            if let Err(reason) = backend {
                self.reason[at] = reason;
            }
        }
    }
}

/// The least that a forwarder does: each frame goes back with its MAC addresses swapped. Returns how many.
///
/// # Errors
/// Those of the ports.
#[inline]
pub fn macswap<P: Ports>(ports: &mut P) -> Result<usize, P::Error> {
    let mut frames = [Frame::default(); BURST];
    let count = ports.receive(&mut frames)?;
    let memory = ports.memory();
    for frame in &mut frames[..count] {
        if let Some(head) = memory[frame.at as usize..].first_chunk_mut::<12>() {
            let (to, from) = head.split_at_mut(6);
            to.swap_with_slice(from);
        }
        frame.fate = Fate::Send;
    }
    ports.finish(&frames[..count])?;
    Ok(count)
}
