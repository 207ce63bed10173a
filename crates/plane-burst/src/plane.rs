//! The plane: a burst through all stages.

use crate::later::{BurstKey, Later};
use crate::parse::{Heads, Plain4, Plain6, SHORTEST_IPV6, plain4, plain6};
use crate::ports::{BURST, Fate, Frame, HEADROOM, Ports};
use crate::services::{NONE, Service, Services};
use crate::ways::{Kind, Ways};
use std::ops::Range;
use weir_lookup::prefetch;
use weir_plane::forward::l2;
use weir_plane::{Counters, Soft, Verdict};
use weir_steering::{
    BackendId, Decide, Decision, Flags, Image, Question, Signals, SoftMemory, StateKey,
};
use weir_wire::{FlowKey, Protocol, Reason};

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
    /// What a frame's destination is to be under `mac_bits`; all is ours without any of these.
    own_mac: u64,
    mac_bits: u64,
    /// The words of our other MAC addresses.
    other_macs: Vec<u64>,
}

impl Short {
    fn new(soft: &Soft) -> Self {
        let word = |mac: &[u8; 6]| {
            u64::from_le_bytes([mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], 0, 0])
        };
        Self {
            services: Services::new(soft),
            ways: Ways::new(soft),
            own_mac: soft.own_macs.first().map_or(0, word),
            mac_bits: if soft.own_macs.is_empty() { 0 } else { MAC },
            other_macs: soft.own_macs.iter().skip(1).map(word).collect(),
        }
    }

    /// The service that a flow of TCP is for, unless its packets take the long way.
    fn of_flow(&self, flow: &FlowKey) -> Option<&Service> {
        if flow.protocol != Protocol::Tcp {
            return None;
        }
        let number = if flow.is_ipv4() {
            let to = u64::from(four_of(&flow.dst)) | u64::from(flow.dst_port.to_be()) << 32;
            self.services.of_ipv4(to)
        } else {
            let half =
                |at: usize| flow.dst[at..].first_chunk().map_or(0, |h| u64::from_le_bytes(*h));
            self.services.of_ipv6([half(0), half(8)], flow.dst_port)
        };
        (number != NONE).then(|| self.services.get(number))
    }

    /// Whether a frame whose first eight bytes these are is for us.
    #[inline(always)]
    fn is_own(&self, head: u64) -> bool {
        head & self.mac_bits == self.own_mac || self.other_macs.contains(&(head & MAC))
    }
}

impl Short {
    /// Sends the first frames to a backend on a link, as long as they are plain, over IPv4 and for our first
    /// address, in one go; returns how many.
    #[inline]
    fn lead_alike(&mut self, memory: &mut [u8], frames: &mut [Frame], backend: BackendId) -> usize {
        let (own, bits) = (self.own_mac, self.mac_bits);
        let Some(way) = self.ways.ways.get_mut(backend.index()) else { return 0 };
        if way.kind != Kind::Link {
            return 0;
        }
        let (mut led, mut all) = (0, 0);
        for frame in frames {
            let head = memory.get_mut(frame.at as usize..).and_then(<[u8]>::first_chunk_mut);
            let Some(head) = head else { break };
            let Some(bytes) = plain4(head, frame.len, (own, bits)) else { break };
            head[..way.macs.len()].copy_from_slice(&way.macs);
            (frame.fate, frame.device) = (Fate::Send, way.device);
            all += u64::from(bytes);
            led += 1;
        }
        way.counted.packets += led as u64;
        way.counted.bytes += all;
        led
    }
}

/// What the stages hand to each other, by the packets' numbers in the burst.
#[derive(Clone, Debug)]
struct Stages {
    heads: Heads,
    ipv4: Plain4,
    /// The number of the service, or [`NONE`].
    service: [u16; BURST],
    /// Over IPv6.
    keys: [StateKey; BURST],
}

impl Default for Stages {
    fn default() -> Self {
        Self {
            heads: Heads::default(),
            ipv4: Plain4::default(),
            service: [NONE; BURST],
            keys: [StateKey::default(); BURST],
        }
    }
}

/// What has been decided about packets of one service, in their order.
struct Decided {
    /// The slots of their backends, or [`NO_BACKEND`](weir_steering::NO_BACKEND).
    slots: [u16; BURST],
    /// Of what the method says of each packet alone: whether the flow counts as new at the backend, and
    /// why the packet is dropped if it has none.
    alone: Option<([bool; BURST], [Reason; BURST])>,
}

impl Decided {
    fn verdict(&self, at: usize, bytes: u32) -> Verdict {
        let new = self.alone.as_ref().is_some_and(|(new, _)| new[at]);
        match BackendId::of_slot(self.slots[at]) {
            Some(backend) => Verdict::Forward { backend, new, bytes, cookie: None, echo: None },
            // Methods that decide whole bursts know no other for packets in the middle of connections.
            None => {
                Verdict::Drop(self.alone.as_ref().map_or(Reason::NoBackend, |(_, why)| why[at]))
            }
        }
    }
}

/// The numbers of all packets.
static ALL: [u8; BURST] = {
    let mut all = [0; BURST];
    let mut at = 0;
    while at < BURST {
        all[at] = at as u8;
        at += 1;
    }
    all
};

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
        self.process_watched(memory, frames, &mut ());
    }

    /// The same, and `watch` is told what was decided.
    ///
    /// # Panics
    /// As [`process`](Self::process).
    pub fn process_watched(
        &mut self,
        memory: &mut [u8],
        frames: &mut [Frame],
        watch: &mut impl Watch,
    ) {
        assert!(frames.len() <= BURST, "{} frames", frames.len());
        let short = self.short.get_or_insert_with(|| Short::new(&self.soft));
        for frame in &*frames {
            prefetch(memory, frame.at as usize);
        }
        let (plain, of_one) = classify(short, &mut self.stages, memory, frames);
        if plain == frames.len() {
            return self.plain(memory, frames, 0..plain, of_one, watch);
        }
        // A packet that is not plain may leave behind what others ask for: those before it come first.
        let mut at = 0;
        while at < frames.len() {
            let from = at;
            while at < frames.len() && self.stages.service[at] != NONE {
                at += 1;
            }
            self.plain(memory, frames, from..at, false, watch);
            if at < frames.len() {
                self.long_way(memory, &mut frames[at], None, watch);
                at += 1;
            }
        }
    }

    /// Plain packets, one service after the other: what one does concerns no other. `of_one`: there is only
    /// one.
    #[inline]
    fn plain(
        &mut self,
        memory: &mut [u8],
        frames: &mut [Frame],
        range: Range<usize>,
        of_one: bool,
        watch: &mut impl Watch,
    ) {
        if range.is_empty() {
            return;
        }
        if of_one {
            return self.of_one_service(memory, frames, &ALL[range], watch);
        }
        let mut left = u64::MAX << range.start;
        if range.end < BURST {
            left &= !(u64::MAX << range.end);
        }
        while left != 0 {
            let service = self.stages.service[left.trailing_zeros() as usize];
            let (mut packets, mut count) = ([0; BURST], 0);
            let mut rest = left;
            while rest != 0 {
                let at = rest.trailing_zeros() as usize;
                rest &= rest - 1;
                if self.stages.service[at] == service {
                    packets[count] = at as u8;
                    count += 1;
                    left &= !(1 << at);
                }
            }
            self.of_one_service(memory, frames, &packets[..count], watch);
        }
    }

    /// Packets of one service, by their numbers; at least one.
    #[inline]
    fn of_one_service<W: Watch>(
        &mut self,
        memory: &mut [u8],
        frames: &mut [Frame],
        packets: &[u8],
        watch: &mut W,
    ) {
        let Some(short) = &mut self.short else { return };
        let stages = &*self.stages;
        let service = short.services.get(stages.service[usize::from(packets[0])]);
        let decided = stages.decide(&mut self.soft.memory, service, packets, frames.len());
        if W::WATCHES {
            stages.tell(watch, service, memory, frames, packets, &decided.slots);
        }
        let ways = &mut short.ways;
        let mut long = ways.forward(memory, frames, packets, &decided.slots, &stages.ipv4.bytes);
        if let Some((new, _)) = &decided.alone {
            for ((slot, new), at) in decided.slots.iter().zip(new).zip(0..packets.len()) {
                if *new && long >> at & 1 == 0 {
                    ways.ways[usize::from(*slot)].counted.flows += 1;
                }
            }
        }
        while long != 0 {
            let at = long.trailing_zeros() as usize;
            long &= long - 1;
            let number = usize::from(packets[at]);
            let verdict = decided.verdict(at, self.stages.ipv4.bytes[number]);
            self.long_way(memory, &mut frames[number], Some(verdict), watch);
        }
    }

    /// A frame through the plane within. `decided`: what has been decided about it.
    #[cold]
    #[inline(never)]
    fn long_way<W: Watch>(
        &mut self,
        memory: &mut [u8],
        frame: &mut Frame,
        decided: Option<Verdict>,
        watch: &mut W,
    ) {
        self.long += 1;
        let (at, len) = (frame.at as usize, frame.len as usize);
        let scratch = &mut self.scratch;
        scratch.clear();
        scratch.extend_from_slice(&memory[at..at + len]);
        let verdict = match decided {
            None => {
                let verdict = self.soft.take(scratch, None);
                if W::WATCHES {
                    watch.apart(&memory[at..at + len], &verdict);
                }
                verdict
            }
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
            Verdict::Echo | Verdict::Reset | Verdict::Tell { .. } => Fate::Send,
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

impl Burst {
    /// Sends the first frames of a burst to a backend, as far as they are plain and for us, whatever service
    /// they are for, without any look-up: the queue that they have come by says where they go. Returns how
    /// many; the frame after them needs the pipeline.
    ///
    /// # Panics
    /// As [`process`](Self::process).
    pub fn lead(&mut self, memory: &mut [u8], frames: &mut [Frame], backend: BackendId) -> usize {
        assert!(frames.len() <= BURST, "{} frames", frames.len());
        let short = self.short.get_or_insert_with(|| Short::new(&self.soft));
        for frame in &*frames {
            prefetch(memory, frame.at as usize);
        }
        // Nearly always all of them are alike, and go by a link.
        let alike = short.lead_alike(memory, frames, backend);
        if alike == frames.len() {
            return alike;
        }
        let frames = &mut frames[alike..];
        let plain = plain_ones(short, &mut self.stages, memory, frames);
        let slots = [backend.get(); BURST];
        let packets = &ALL[..plain];
        let bytes = &self.stages.ipv4.bytes;
        let mut long = short.ways.forward(memory, frames, packets, &slots, bytes);
        while long != 0 {
            let at = long.trailing_zeros() as usize;
            long &= long - 1;
            let bytes = self.stages.ipv4.bytes[at];
            let verdict = Verdict::Forward { backend, new: false, bytes, cookie: None, echo: None };
            self.long_way(memory, &mut frames[at], Some(verdict), &mut ());
        }
        alike + plain
    }

    /// Whether all connections of a client to the service of this flow go to one backend.
    pub fn has_client_affinity(&mut self, flow: &FlowKey) -> bool {
        let short = self.short.get_or_insert_with(|| Short::new(&self.soft));
        let service = short.of_flow(flow);
        service.is_some_and(|service| service.table.header().flags().has(Flags::CLIENT))
    }

    /// Where a packet in the middle of this flow of TCP would go, which counts as if it had come; none if it
    /// would take the long way, or nowhere.
    pub fn where_to(&mut self, flow: &FlowKey) -> Option<BackendId> {
        let short = self.short.get_or_insert_with(|| Short::new(&self.soft));
        let StateKey { address, src_port, dst_port } = StateKey::of_flow(flow);
        let word = flow.is_ipv4().then(|| {
            let ports = u32::from(src_port.to_be()) | u32::from(dst_port.to_be()) << 16;
            u64::from(four_of(&address)) << 32 | u64::from(ports)
        });
        let service = short.of_flow(flow)?;
        let image = &*service.table;
        let client = image.header().flags().has(Flags::CLIENT);
        let memory = &mut self.soft.memory;
        let later = Later { now: memory.now, memory, service: service.id };
        let decided = match word {
            Some(word) => decide(image, later, &[if client { word & !0xffff_ffff } else { word }]),
            None => {
                let ports = if client { (0, 0) } else { (src_port, dst_port) };
                let key = StateKey { address, src_port: ports.0, dst_port: ports.1 };
                decide(image, later, &[key])
            }
        };
        BackendId::of_slot(decided.slots[0])
    }
}

/// The bytes of an IPv4 address in one of IPv6 that stands for it.
fn four_of(address: &[u8; 16]) -> u32 {
    u32::from_le_bytes([address[12], address[13], address[14], address[15]])
}

/// How many of the first frames are plain and for us; of these, the bytes of the packet are noted.
#[inline]
fn plain_ones(short: &Short, stages: &mut Stages, memory: &[u8], frames: &[Frame]) -> usize {
    let head = |frame: &Frame| memory.get(frame.at as usize..)?.first_chunk();
    for (at, frame) in frames.iter().enumerate() {
        stages.heads.read(at, head(frame), frame.len);
    }
    let mac = (short.own_mac, short.mac_bits);
    if stages.heads.look(frames.len(), mac, &mut stages.ipv4) {
        return frames.len();
    }
    for (at, frame) in frames.iter().enumerate() {
        if stages.ipv4.good[at] != 0 {
            continue;
        }
        if !short.is_own(stages.heads.macs[at]) {
            return at;
        }
        if stages.ipv4.plain[at] != 0 {
            continue;
        }
        let head = memory.get(frame.at as usize..).and_then(<[u8]>::first_chunk);
        let long_enough = frame.len as usize >= SHORTEST_IPV6;
        match head.filter(|_| long_enough).and_then(|head| plain6(head, frame.len)) {
            Some(plain) => stages.ipv4.bytes[at] = plain.bytes,
            None => return at,
        }
    }
    frames.len()
}

/// Who wants to know what a plane decides, packet by packet: what gives connections rules in a card.
pub trait Watch {
    /// Whether anybody does.
    const WATCHES: bool = true;

    /// A plain packet, in the middle of a connection, goes to a backend, if there is one. `number` tells its
    /// flow from nearly all others.
    fn later(&mut self, number: u64, frame: &[u8], to: Option<BackendId>);

    /// A frame took the long way: as it came in, and what becomes of it.
    fn apart(&mut self, frame: &[u8], verdict: &Verdict);
}

/// Nobody.
impl Watch for () {
    const WATCHES: bool = false;

    fn later(&mut self, _: u64, _: &[u8], _: Option<BackendId>) {}

    fn apart(&mut self, _: &[u8], _: &Verdict) {}
}

impl Stages {
    /// Tells of packets of a service what has been decided, before they are changed.
    fn tell(
        &self,
        watch: &mut impl Watch,
        service: &Service,
        memory: &[u8],
        frames: &[Frame],
        packets: &[u8],
        slots: &[u16; BURST],
    ) {
        for (&packet, &slot) in packets.iter().zip(slots) {
            let packet = usize::from(packet);
            let word = match service.ipv4 {
                true => self.ipv4.words[packet],
                false => {
                    let key = &self.keys[packet];
                    let low =
                        u64::from_le_bytes(*key.address[8..].first_chunk().unwrap_or(&[0; 8]));
                    let high =
                        u64::from_le_bytes(*key.address[..8].first_chunk().unwrap_or(&[0; 8]));
                    let ports = u64::from(key.src_port) << 16 | u64::from(key.dst_port);
                    low.rotate_left(17) ^ high ^ ports.wrapping_mul(SPREAD)
                }
            };
            // Flows to two services, from one port of one client.
            let number = word ^ u64::from(service.id.0).wrapping_mul(SPREAD);
            let frame = &frames[packet];
            let bytes = &memory[frame.at as usize..][..frame.len as usize];
            watch.later(number, bytes, BackendId::of_slot(slot));
        }
    }
}

/// Odd, and about half of its bits are ones.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Parses all frames and finds their services; returns how many are plain, and whether these are of one
/// service.
#[inline]
fn classify(short: &Short, stages: &mut Stages, memory: &[u8], frames: &[Frame]) -> (usize, bool) {
    let head = |frame: &Frame| memory.get(frame.at as usize..)?.first_chunk();
    for (at, frame) in frames.iter().enumerate() {
        stages.heads.read(at, head(frame), frame.len);
    }
    let mac = (short.own_mac, short.mac_bits);
    let alike = stages.heads.look(frames.len(), mac, &mut stages.ipv4);
    if alike {
        let service = short.services.of_ipv4(stages.ipv4.to[0]);
        if service != NONE {
            // The others are asked for where it matters.
            stages.service[0] = service;
            return (frames.len(), true);
        }
    }
    let (mut plain, mut differ) = (0, 0);
    for (at, frame) in frames.iter().enumerate() {
        let mut service = NONE;
        if stages.ipv4.good[at] != 0
            || stages.ipv4.plain[at] != 0 && short.is_own(stages.heads.macs[at])
        {
            service = short.services.of_ipv4(stages.ipv4.to[at]);
        } else if stages.ipv4.plain[at] == 0
            && frame.len as usize >= SHORTEST_IPV6
            && let Some(head) = memory.get(frame.at as usize..).and_then(<[u8]>::first_chunk)
            && let Some(Plain6 { key, to, bytes }) = plain6(head, frame.len)
            && short.is_own(stages.heads.macs[at])
        {
            service = short.services.of_ipv6(to, key.dst_port);
            (stages.keys[at], stages.ipv4.bytes[at]) = (key, bytes);
        }
        stages.service[at] = service;
        plain += usize::from(service != NONE);
        differ |= service ^ stages.service[0];
    }
    (plain, differ == 0)
}

impl Stages {
    /// Where the packets with these numbers, in ascending order, of so many go, all of one service.
    #[inline]
    fn decide(
        &self,
        memory: &mut SoftMemory,
        service: &Service,
        packets: &[u8],
        of: usize,
    ) -> Decided {
        let image = &*service.table;
        let client = image.header().flags().has(Flags::CLIENT);
        let later = Later { now: memory.now, memory, service: service.id };
        let count = packets.len();
        if !service.ipv4 {
            let mut keys = [StateKey::default(); BURST];
            for (key, &packet) in keys.iter_mut().zip(packets) {
                *key = self.keys[usize::from(packet)];
                if client {
                    (key.src_port, key.dst_port) = (0, 0);
                }
            }
            return decide(image, later, &keys[..count]);
        }
        // Nearly always these are all packets of the burst.
        if !client && count == of {
            return decide(image, later, &self.ipv4.words[..count]);
        }
        let mut words = [0; BURST];
        let mask = if client { !0xffff_ffff } else { !0 };
        for (word, &packet) in words.iter_mut().zip(packets) {
            *word = self.ipv4.words[usize::from(packet)] & mask;
        }
        decide(image, later, &words[..count])
    }
}

/// Where the packets of these flows go.
#[inline]
fn decide<K: BurstKey>(image: &Image, mut later: Later<'_>, keys: &[K]) -> Decided {
    let mut slots = [0; BURST];
    let out = &mut slots[..keys.len()];
    match image {
        Image::Concury(table) => table.decide_burst(keys, out, &mut later),
        Image::Residue(table) => table.decide_burst(keys, out, &mut later),
        Image::Tracked(table) => return each(table, later, true, keys),
        Image::Jet(table) => return each(table, later, true, keys),
        other => return each(other, later, false, keys),
    }
    Decided { slots, alone: None }
}

/// Packets of a method that says of each alone what becomes of it. `connections`: it may ask the connection table,
/// whose lines are asked for first, all of them.
#[inline(never)]
fn each<K: BurstKey>(
    table: &impl Decide<StateKey>,
    Later { memory, service, now }: Later<'_>,
    connections: bool,
    keys: &[K],
) -> Decided {
    let mut slots = [0; BURST];
    let (mut news, mut reasons) = ([false; BURST], [Reason::NoBackend; BURST]);
    let mut hashes = [0; BURST];
    for (hash, key) in hashes.iter_mut().zip(keys) {
        *hash = key.hash(table.hash_key());
        if connections {
            let key = key.whole();
            if table.may_remember(&Question::later(key, *hash)) {
                memory.connections.prefetch(service, &key);
            }
        }
    }
    for (at, (key, &hash)) in keys.iter().zip(&hashes).enumerate() {
        let key = key.whole();
        let question = Question { service, key, hash, signals: Signals::LATER, now };
        let Decision { backend, new, .. } = table.decide(&question, memory);
        (slots[at], news[at]) = (BackendId::to_slot(backend.ok()), new);
        if let Err(reason) = backend {
            reasons[at] = reason;
        }
    }
    Decided { slots, alone: Some((news, reasons)) }
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
