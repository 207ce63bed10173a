//! The registers of a switch in memory, and the program that decides from them: the twin of `p4/weir.p4`.
//!
//! It knows nothing but what was written. So what it decides shows what a switch would that was written the same;
//! `tests/model.rs` holds it against the tables that the writes were made of, and `make p4-test` a switch against
//! both.

mod cheetah;

use crate::error::Error;
use crate::layout::{
    MARK_WORDS, PENDING_WAYS, RING, Register, SEEN_LINES, SEEN_WAYS, STRANGER_WORDS, Table,
};
use crate::state;
use crate::target::{Action, Ports, Target, Write};
use std::collections::HashMap;
use weir_hash::{HashKey, Key, scale};
use weir_plane::Outcome;
use weir_steering::{
    BackendId, Event, EventKind, Flags, LANE_ACTIVE, LANE_ONES, LANE_TAGS, MethodId, NEXT_TRY,
    NO_BACKEND, SECOND_TRIES, SLOT_BACKEND, SLOT_RESERVED, ServiceId, ServiceState, StateKey,
    TAG_BITS, seen_tag,
};
use weir_wire::{Packet, Protocol, Reason, Rejected, TcpFlags, parse, tcp_options};

/// Registers and tables in memory.
#[derive(Clone, Default, Debug)]
pub struct Model {
    /// As far as anything was written; zeros behind it.
    registers: HashMap<Register, Vec<u64>>,
    entries: HashMap<(Table, Vec<Vec<u8>>), Action>,
    defaults: HashMap<Table, Action>,
    sizes: HashMap<Table, u32>,
    ports: Ports,
    /// Single changes that were made.
    pub writes: u64,
    /// The TSecr that the last packet got in place of its own, if it did.
    pub told: Option<u32>,
}

/// What a packet follows.
struct Published {
    method: u64,
    first_datagrams: bool,
    key: HashKey,
    slots: (u32, u32),
    a: (u32, u32),
    b: (u32, u32),
    fallback: u16,
    inverse: u64,
    idle: u32,
    refuses: bool,
    number: u32,
    flags: Flags,
}

/// A packet's question to it.
struct Asked {
    state: ServiceState,
    hash: u64,
    starts: bool,
    ends: bool,
    acks: bool,
    resets: bool,
    udp: bool,
    /// TSecr, if there is a timestamp.
    echo: Option<u32>,
}

const PENDING: [Register; 4] =
    [Register::Pending0, Register::Pending1, Register::Pending2, Register::Pending3];

/// Where a flow is in the pending table, or a place for it.
struct Pending {
    known: Option<BackendId>,
    place: Option<u32>,
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

impl Model {
    /// An element of a register.
    pub fn get(&self, register: Register, index: u32) -> u64 {
        let elements = self.registers.get(&register);
        elements.and_then(|all| all.get(index as usize)).copied().unwrap_or(0)
    }

    fn set(&mut self, register: Register, index: u32, value: u64) {
        let mask = u64::MAX >> (64 - register.bits());
        let elements = self.registers.entry(register).or_default();
        if index < register.size() && elements.len() <= index as usize {
            elements.resize(index as usize + 1, 0);
        }
        if let Some(element) = elements.get_mut(index as usize) {
            *element = value & mask;
        }
    }

    fn add(&mut self, register: Register, index: u32, by: u64) {
        self.set(register, index, self.get(register, index).wrapping_add(by));
    }

    fn entry(&self, table: Table, key: &[&[u8]]) -> Option<&Action> {
        self.entries.get(&(table, key.iter().map(|part| part.to_vec()).collect()))
    }

    /// Entries of a table.
    pub fn entries(&self, table: Table) -> u32 {
        self.sizes.get(&table).copied().unwrap_or(0)
    }

    /// One frame through the program.
    pub fn process(&mut self, frame: &[u8]) -> Outcome {
        self.add(Register::Begun, 0, 1);
        self.told = None;
        let (outcome, new, bytes) = self.decide(frame);
        match outcome {
            Outcome::Forwarded(backend) => {
                let lane = backend.get().into();
                self.add(Register::LanePackets, lane, 1);
                self.add(Register::LaneBytes, lane, bytes);
                self.add(Register::LaneFlows, lane, u64::from(new));
            }
            Outcome::Dropped(reason) => self.add(Register::Dropped, reason as u32, 1),
            Outcome::Passed(reason) => self.add(Register::Passed, reason as u32, 1),
            Outcome::Returned => {}
        }
        self.set(Register::Ended, 0, self.get(Register::Begun, 0));
        outcome
    }

    fn decide(&mut self, frame: &[u8]) -> (Outcome, bool, u64) {
        let dropped = |reason| (Outcome::Dropped(reason), false, 0);
        let packet = match self.classify(frame) {
            Ok(packet) => packet,
            Err(outcome) => return (outcome, false, 0),
        };
        let (packet, service) = packet;
        let Some(table) = self.table(service) else { return dropped(Reason::NoTable) };
        let asked = self.question(frame, &packet, service, &table);
        if table.flags.has(Flags::MARK) && !asked.starts {
            self.mark(asked.hash);
        }
        let decided = match MethodId::numbered(table.method as u8) {
            Some(MethodId::Concury) => self.concury(&table, &asked),
            Some(MethodId::Residue) => self.residue(&table, &asked),
            Some(method @ (MethodId::Cheetah | MethodId::CheetahStateful)) => {
                let by_slot = method == MethodId::CheetahStateful;
                return match self.cheetah(&table, &asked, by_slot) {
                    Ok((backend, new)) => self.forward(backend, new, &packet, frame),
                    Err(reason) => dropped(reason),
                };
            }
            _ => Err(Reason::UnknownMethod),
        };
        let reported = decided.and_then(|backend| {
            let event = |kind| Event { state: asked.state, backend, kind };
            if asked.starts {
                self.report(&event(EventKind::Start), asked.udp)?;
            }
            if asked.ends {
                self.report(&event(EventKind::End), asked.udp)?;
            }
            Ok(backend)
        });
        match reported {
            Ok(backend) => self.forward(backend, asked.starts, &packet, frame),
            Err(reason) => dropped(reason),
        }
    }

    fn forward(
        &self,
        backend: BackendId,
        new: bool,
        packet: &Packet,
        frame: &[u8],
    ) -> (Outcome, bool, u64) {
        match self.send(backend, packet, frame) {
            Ok(()) => (Outcome::Forwarded(backend), new, packet.ip_length.into()),
            Err(reason) => (Outcome::Dropped(reason), false, 0),
        }
    }

    fn classify(&self, frame: &[u8]) -> Result<(Packet, u16), Outcome> {
        let packet = read(frame).map_err(|rejected| {
            let known = |dst: [u8; 16]| self.entry(Table::Addresses, &[&dst]).is_some();
            let ours = rejected.reason != Reason::OtherProtocol && rejected.dst.is_some_and(known);
            if ours { Outcome::Dropped(rejected.reason) } else { Outcome::Passed(rejected.reason) }
        })?;
        let flow = &packet.flow;
        let protocol = [flow.protocol.number()];
        let port = flow.dst_port.to_be_bytes();
        let exact = self.entry(Table::Services, &[&flow.dst, &protocol, &port]);
        let found = exact.or_else(|| self.entry(Table::AnyPort, &[&flow.dst, &protocol]));
        let service = found.ok_or(Outcome::Passed(Reason::NoService))?;
        let service = number(&service.data[0]) as u16;
        let ours = self.entry(Table::OwnMacs, &[&frame[..6]]).is_some();
        let strict = self.defaults.get(&Table::OwnMacs).is_some_and(|by| by.name == "not_ours");
        if strict && !ours {
            return Err(Outcome::Dropped(Reason::OtherHost));
        }
        Ok((packet, service))
    }

    fn plane_key(&self) -> Option<HashKey> {
        let action = self.defaults.get(&Table::PlaneKeys)?;
        let words = action.data.first_chunk::<4>()?.each_ref().map(|word| number(word));
        Some(HashKey::from_words(words))
    }

    fn table(&self, service: u16) -> Option<Published> {
        self.plane_key()?;
        let selector = self.get(Register::Selectors, service.into());
        if selector & 1 == 0 {
            return None;
        }
        let table_number = u32::from(service) << 1 | (selector >> 1 & 1) as u32;
        let action = self.entry(Table::Images, &[&table_number.to_be_bytes()])?;
        let all: Vec<u64> = action.data.iter().map(|bytes| number(bytes)).collect();
        let place = |at: usize| (all[at] as u32, all[at + 1] as u32);
        Some(Published {
            method: all[0],
            first_datagrams: all[1] != 0,
            key: HashKey::from_words([all[2], all[3], all[4], all[5]]),
            slots: place(6),
            a: place(8),
            b: place(10),
            fallback: all[12] as u16,
            inverse: all[13],
            idle: all[14] as u32,
            refuses: all[15] != 0,
            number: table_number,
            flags: Flags((selector >> 16) as u32),
        })
    }

    fn question(
        &mut self,
        frame: &[u8],
        packet: &Packet,
        service: u16,
        table: &Published,
    ) -> Asked {
        let key = if table.flags.has(Flags::CLIENT) {
            StateKey::of_client(&packet.flow)
        } else {
            StateKey::of_flow(&packet.flow)
        };
        let state = ServiceState { service: ServiceId(service.into()), key };
        let udp = packet.flow.protocol == Protocol::Udp;
        let mut asked = Asked {
            state,
            hash: key.hash(&table.key),
            starts: packet.tcp_flags.starts(),
            ends: packet.tcp_flags.ends(),
            acks: packet.tcp_flags.intersects(TcpFlags::ACK),
            resets: packet.tcp_flags.intersects(TcpFlags::RST),
            udp,
            echo: if udp { None } else { echo(frame, packet) },
        };
        if udp && table.first_datagrams {
            asked.starts = !self.seen_before(&asked);
        }
        asked
    }

    fn seen_before(&mut self, asked: &Asked) -> bool {
        let now = self.get(Register::SeenGeneration, 0) & 3;
        let before = if now == 1 { 3 } else { now.wrapping_sub(1) & 3 };
        let tag = seen_tag(asked.hash, asked.state.service);
        let line = scale((tag >> 32) as u32, SEEN_LINES) * SEEN_WAYS;
        let mut place = line + (tag >> 29 & 7) as u32;
        let (mut free, mut known) = (false, None);
        for way in line..line + SEEN_WAYS {
            let entry = self.get(Register::SeenHigh, way) << 32 | self.get(Register::SeenLow, way);
            let alive = entry & 3 == now || entry & 3 == before;
            if entry & !3 == tag & !3 {
                (known, place) = (Some(alive), way);
                break;
            }
            if !free && !alive {
                (free, place) = (true, way);
            }
        }
        self.set(Register::SeenHigh, place, tag >> 32);
        self.set(Register::SeenLow, place, tag & !3 | now);
        known.unwrap_or(false)
    }

    /// The words of a flow in the half that is written, with the bits of its lane in each.
    fn lanes(&self, hash: u64) -> (u32, [(u32, u64, u64); 2]) {
        let side = self.get(Register::MarkSide, 0);
        let (base, mask) = ((side >> 24) as u32, side as u32 & 0xff_ffff);
        let tags = LANE_ONES.wrapping_mul((hash >> (64 - TAG_BITS)).max(1));
        let lane = |hash: u64| {
            let at = (base + (hash as u32 & mask)) % (2 * MARK_WORDS);
            let word = self.get(Register::Marks, at);
            let lane = !(((word ^ tags) & LANE_TAGS).wrapping_add(LANE_TAGS)) & LANE_ACTIVE;
            (at, word, lane)
        };
        (base, [lane(hash), lane(hash >> 22)])
    }

    fn mark(&mut self, hash: u64) {
        let (base, lanes) = self.lanes(hash);
        if let Some((at, word, lane)) = lanes.into_iter().find(|(_, _, lane)| *lane != 0) {
            return self.set(Register::Marks, at, word | lane);
        }
        let word = ((hash >> 8) as u32 & (STRANGER_WORDS - 1)) * 2;
        let word = word + if base == 0 { 0 } else { STRANGER_WORDS * 2 };
        for bit in [hash >> 58, hash >> 52 & 63] {
            let half = word + (bit >> 5) as u32;
            let bits = self.get(Register::Strangers, half) | 1 << (bit & 31);
            self.set(Register::Strangers, half, bits);
        }
    }

    fn is_down(&self, backend: Option<BackendId>) -> bool {
        backend.is_some_and(|id| self.get(Register::States, id.get().into()) & 2 != 0)
    }

    fn find_pending(&self, state: &ServiceState) -> Pending {
        let key = self.plane_key().unwrap_or(HashKey::from_seed(0));
        let sets = state::sets_of(&key, &state.key);
        for at in sets.into_iter().flat_map(|first| first..first + PENDING_WAYS) {
            let words = PENDING.map(|register| self.get(register, at));
            if let Some((other, backend)) = state::pending(words)
                && other == *state
            {
                return Pending { known: Some(backend), place: Some(at) };
            }
        }
        let used = |at| self.get(Register::Pending3, at) & 0xffff != 0;
        Pending { known: None, place: state::place_in(sets, used) }
    }

    fn note(&mut self, asked: &Asked, place: Option<u32>, to: BackendId) -> Result<(), Reason> {
        let at = place.ok_or(Reason::PendingFull)?;
        let words = state::pending_words(&asked.state, to);
        PENDING.into_iter().zip(words).for_each(|(register, word)| self.set(register, at, word));
        Ok(())
    }

    fn report(&mut self, event: &Event, udp: bool) -> Result<(), Reason> {
        let (head, tail) = (self.get(Register::RingHead, 0), self.get(Register::RingTail, 0));
        if head.wrapping_sub(tail) >= u64::from(RING) {
            self.add(Register::RingLost, 0, 1);
            let must = event.kind == EventKind::Start && !udp;
            return if must { Err(Reason::PendingFull) } else { Ok(()) };
        }
        let at = head as u32 & (RING - 1);
        let registers = [Register::Ring0, Register::Ring1, Register::Ring2, Register::Ring3];
        let words = state::report_words(event);
        registers.into_iter().zip(words).for_each(|(register, word)| self.set(register, at, word));
        self.add(Register::RingHead, 0, 1);
        Ok(())
    }

    fn pin(&self, state: &ServiceState) -> Option<BackendId> {
        let StateKey { address, src_port, dst_port } = state.key;
        let ports = u32::from(src_port) << 16 | u32::from(dst_port);
        let service = (state.service.0 as u16).to_be_bytes();
        let action = self.entry(Table::Pins, &[&service, &address, &ports.to_be_bytes()])?;
        BackendId::new(number(&action.data[0]) as u16)
    }

    fn slot(&self, table: &Published, at: u32) -> u16 {
        self.get(Register::Slots, table.slots.0 + at) as u16
    }

    fn concury(&mut self, table: &Published, asked: &Asked) -> Result<BackendId, Reason> {
        let cell = |register, (first, cells): (u32, u32), hash| {
            self.get(register, first + scale(hash, cells)) as u32
        };
        let code = cell(Register::CellsA, table.a, asked.hash as u32)
            ^ cell(Register::CellsB, table.b, (asked.hash >> 32) as u32);
        let entry = self.slot(table, code & (table.slots.1 - 1));
        let mut backend = BackendId::of_slot(entry);
        let reserved = entry & SLOT_RESERVED != 0;
        let in_question = reserved || table.flags.has(Flags::PENDING);
        let records = asked.starts && table.flags.has(Flags::RECORD);
        let mut note = records;
        let pending = self.find_pending(&asked.state);
        if let Some(known) = pending.known.filter(|_| in_question) {
            (backend, note) = (Some(known), false);
        } else if asked.starts && in_question && (reserved || self.is_down(backend)) {
            let lives = || {
                let (_, lanes) = self.lanes(asked.hash);
                let armed = lanes.iter().any(|(_, _, lane)| *lane != 0);
                table.flags.has(Flags::MARK) && armed && backend.is_some() && !self.is_down(backend)
            };
            if let Some(known) = self.pin(&asked.state) {
                backend = Some(known);
            } else if !lives() {
                (backend, note) = (self.place_again(table, asked.hash), true);
            }
        }
        let backend = backend.ok_or(Reason::NoBackend)?;
        if note {
            self.note(asked, pending.place, backend)?;
        }
        Ok(backend)
    }

    fn place_again(&self, table: &Published, hash: u64) -> Option<BackendId> {
        let mut hash = hash;
        for _ in 0..SECOND_TRIES {
            hash = table.key.mix(hash.wrapping_add(NEXT_TRY));
            let entry = self.slot(table, hash as u32 & (table.slots.1 - 1));
            let backend = BackendId::of_slot(entry);
            if entry & SLOT_RESERVED == 0 && !self.is_down(backend) {
                return backend;
            }
        }
        BackendId::new(table.fallback)
    }

    fn residue(&mut self, table: &Published, asked: &Asked) -> Result<BackendId, Reason> {
        let row = self.slot(table, scale(asked.hash as u32, table.slots.1));
        let key = (table.number.to_be_bytes(), asked.hash.to_be_bytes());
        let excepted = self.entry(Table::Exceptions, &[&key.0, &key.1]);
        let excepted = excepted.filter(|_| row & SLOT_RESERVED != 0);
        let excepted = excepted.and_then(|by| BackendId::new(number(&by.data[0]) as u16));
        let mut backend = excepted.or(BackendId::of_slot(row));
        let mut note = asked.starts && table.flags.has(Flags::RECORD);
        let in_question = excepted.is_some() || table.flags.has(Flags::PENDING);
        let pending = self.find_pending(&asked.state);
        let down = self.is_down(backend);
        if let Some(known) = pending.known.filter(|_| in_question) {
            (backend, note) = (Some(known), false);
        } else if asked.starts && down && excepted.is_some() {
            match self.pin(&asked.state) {
                Some(known) => backend = Some(known),
                None => (backend, note) = (BackendId::of_slot(row), true),
            }
        } else if asked.starts && down && table.flags.has(Flags::PENDING) {
            let mut hash = asked.hash;
            let other = (0..SECOND_TRIES).find_map(|_| {
                hash = table.key.mix(hash.wrapping_add(NEXT_TRY));
                let row = self.slot(table, scale(hash as u32, table.slots.1));
                let other = BackendId::new(row & SLOT_BACKEND);
                other.filter(|_| !self.is_down(other))
            });
            (backend, note) = (other.or(backend), true);
        }
        let backend = backend.ok_or(Reason::NoBackend)?;
        if note {
            self.note(asked, pending.place, backend)?;
        }
        Ok(backend)
    }

    /// Whether a packet can go to a backend.
    fn send(&self, backend: BackendId, packet: &Packet, frame: &[u8]) -> Result<(), Reason> {
        debug_assert!(backend.get() < NO_BACKEND);
        let action = self.entry(Table::Backends, &[&backend.get().to_be_bytes()]);
        let action = action.ok_or(Reason::NoNextHop)?;
        let overhead = match action.name {
            "tunnel" if action.data[3] == [4] => 20,
            "tunnel" => 40,
            _ => return Ok(()),
        };
        let ttl = if packet.flow.is_ipv4() { 8 } else { 7 };
        let ttl = frame.get(usize::from(packet.l3_offset) + ttl).copied().unwrap_or(0);
        let most = action.data.last().map_or(0, |mtu| number(mtu));
        if ttl <= 1 {
            Err(Reason::TtlExceeded)
        } else if u64::from(packet.ip_length) + overhead > most {
            Err(Reason::TooBig)
        } else {
            Ok(())
        }
    }
}

impl Target for Model {
    fn write(&mut self, writes: &[Write]) -> Result<(), Error> {
        for write in writes {
            self.writes += 1;
            match write {
                Write::Set { register, index, value } => self.set(*register, *index, *value),
                Write::Fill { register, from, to, value } => {
                    (*from..*to).for_each(|at| self.set(*register, at, *value));
                }
                Write::Insert { table, key, action } => {
                    let key = (*table, key.clone());
                    let there = self.entries(*table);
                    if !self.entries.contains_key(&key) && there >= table.size() {
                        let (wanted, most) = (u64::from(there) + 1, u64::from(table.size()));
                        let (what, name) = (table.name(), "the table's size");
                        return Err(Error::Full { what, wanted, most, name });
                    }
                    let added = self.entries.insert(key, action.clone()).is_none();
                    *self.sizes.entry(*table).or_default() += u32::from(added);
                }
                Write::Remove { table, key } => {
                    let removed = self.entries.remove(&(*table, key.clone())).is_some();
                    *self.sizes.entry(*table).or_default() -= u32::from(removed);
                }
                Write::Default { table, action } => {
                    self.defaults.insert(*table, action.clone());
                }
            }
        }
        Ok(())
    }

    fn read(&mut self, elements: &[(Register, u32)]) -> Result<Vec<u64>, Error> {
        Ok(elements.iter().map(|(register, index)| self.get(*register, *index)).collect())
    }

    fn read_all(&mut self, register: Register) -> Result<Vec<u64>, Error> {
        let mut all = self.registers.get(&register).cloned().unwrap_or_default();
        all.resize(register.size() as usize, 0);
        Ok(all)
    }

    fn find(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn start_over(&mut self) -> Result<bool, Error> {
        let (writes, ports) = (self.writes, std::mem::take(&mut self.ports));
        let mut registers = std::mem::take(&mut self.registers);
        registers.retain(|of, _| {
            Register::OF_TABLES.contains(of) || Register::BEHIND_OTHERS.contains(of)
        });
        *self = Self { writes, ports, registers, ..Self::default() };
        Ok(false)
    }

    fn add_port(&mut self, name: &str, ifindex: u32) -> Result<u32, Error> {
        if let Some(number) = self.ports.of(ifindex) {
            return Ok(number);
        }
        let number = self.ports.free(name)?;
        self.ports.0.insert(number, ifindex);
        Ok(number)
    }
}

/// TSecr, which the switch's parser finds where all planes do.
fn echo(frame: &[u8], packet: &Packet) -> Option<u32> {
    let end = usize::from(packet.l3_offset) + packet.ip_length as usize;
    let segment = frame.get(packet.l4_offset.into()..end)?;
    tcp_options::find(segment).ok().flatten().map(|stamps| stamps.echo)
}

/// What the switch's parser makes of a frame: it reads no SCTP.
fn read(frame: &[u8]) -> Result<Packet, Rejected> {
    let other = |dst| Rejected { reason: Reason::OtherProtocol, dst };
    match parse(frame) {
        Ok(packet) if packet.flow.protocol == Protocol::Sctp => Err(other(Some(packet.flow.dst))),
        Err(Rejected { reason: Reason::TruncatedSctp | Reason::BadSctpChunk, dst }) => {
            Err(other(dst))
        }
        read => read,
    }
}
