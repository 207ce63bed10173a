//! Clients, a wire, the card and the plane, and a control plane that changes pools.

use crate::tables::{IDLE_SECONDS, Service, Tables};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use weir_hash::Key;
use weir_offload::emulated::{Nic, Profile};
use weir_offload::{Choice, Setup};
use weir_plane::forward::NextHop;
use weir_plane::{Backend, Hop, Plane as _, Soft, VipKey};
use weir_plane_burst::{BURST, Fate, Frame as Place, HEADROOM, Hybrid, Ports};
use weir_steering::{
    BackendId, Member, MethodId, Role, ServiceId, ServiceState, SoftMemory, StateKey,
};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, TcpFlags, map_address, parse};

const OWN: [u8; 6] = [2, 0, 0, 0, 0, 9];
const BUFFER: usize = 512;
const BUFFERS: usize = 4096;
/// Backends of each service at first; others join as these go.
const MEMBERS: u16 = 6;
/// Services at most.
const SERVICES: u16 = 4;
/// Ports that clients use for each service.
const PORTS: u16 = 60;

/// A wire: what comes in, and what has gone out.
pub struct Wire {
    incoming: VecDeque<Vec<u8>>,
    outgoing: Vec<(Fate, Vec<u8>)>,
    pool: Vec<u8>,
    free: Vec<u32>,
}

impl Ports for Wire {
    type Error = Infallible;

    fn receive(&mut self, frames: &mut [Place; BURST]) -> Result<usize, Infallible> {
        let mut count = 0;
        while count < BURST
            && !self.free.is_empty()
            && let Some(frame) = self.incoming.pop_front()
        {
            let buffer = self.free.pop().unwrap_or_default();
            let at = buffer as usize * BUFFER + HEADROOM;
            self.pool[at..at + frame.len()].copy_from_slice(&frame);
            let len = frame.len() as u32;
            frames[count] = Place { at: at as u32, len, buffer, ..Place::default() };
            count += 1;
        }
        Ok(count)
    }

    fn memory(&mut self) -> &mut [u8] {
        &mut self.pool
    }

    fn finish(&mut self, frames: &[Place]) -> Result<(), Infallible> {
        for frame in frames {
            let bytes = &self.pool[frame.at as usize..][..frame.len as usize];
            self.outgoing.push((frame.fate, bytes.to_vec()));
            self.free.push(frame.buffer);
        }
        Ok(())
    }
}

/// A backend in one use of its number.
pub type Home = (BackendId, u32);

#[derive(Clone, Copy, Debug)]
struct Connection {
    /// Where its first packet went; none while that is under way.
    home: Option<Home>,
    /// When it sent last, in milliseconds.
    spoke: u64,
    /// It sends much.
    heavy: bool,
}

#[derive(Debug, Default)]
pub struct Tally {
    pub checked: u64,
    pub broken: u64,
    pub begun: u64,
    pub reused: u64,
    pub ended: u64,
    pub excused: u64,
    pub silent: u64,
    pub changes: u64,
    pub forgotten: u64,
}

pub struct World {
    pub hybrid: Hybrid<Nic<Place>>,
    tables: Tables,
    wire: Wire,
    rng: ChaCha8Rng,
    connections: BTreeMap<(usize, u16), Connection>,
    incarnations: BTreeMap<BackendId, u32>,
    /// Backends that are no members any more, and that a table may still lead to.
    leaving: Vec<(usize, BackendId)>,
    microseconds: u64,
    swept: u64,
    next_number: u16,
    pub sent: u64,
    pub tally: Tally,
    pub examples: Vec<String>,
}

fn mac((backend, incarnation): Home) -> [u8; 6] {
    let ([a, b], [c, d]) = (backend.get().to_be_bytes(), (incarnation as u16).to_be_bytes());
    [2, 0xbe, c, d, a, b]
}

fn home_of(mac: &[u8]) -> Home {
    let number = |at: usize| u16::from_be_bytes([mac[at], mac[at + 1]]);
    (BackendId::of(number(4)), number(2).into())
}

/// Every other service is IPv6.
fn vip(service: usize) -> IpAddr {
    match service % 2 {
        0 => Ipv4Addr::new(10, 9, 0, service as u8).into(),
        _ => Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, service as u16).into(),
    }
}

fn flow(service: usize, port: u16) -> FlowKey {
    let client: IpAddr = match service % 2 {
        0 => Ipv4Addr::new(10, 1, 0, (port % 7) as u8).into(),
        _ => Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, port % 7).into(),
    };
    FlowKey::new((client, 1024 + port).into(), (vip(service), 80).into(), Protocol::Tcp)
}

impl World {
    pub fn new(profile: Profile, choice: Choice, methods: &[MethodId], seed: u64) -> Self {
        Self::with((profile, choice), methods, false, seed)
    }

    /// The same, of services with client affinity.
    pub fn of_clients(profile: Profile, methods: &[MethodId], seed: u64) -> Self {
        Self::with((profile, Choice::All), methods, true, seed)
    }

    fn with(
        (profile, choice): (Profile, Choice),
        methods: &[MethodId],
        client_affinity: bool,
        seed: u64,
    ) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(seed);
        let setup = Setup {
            choice,
            hysteresis: 2,
            stay: 200,
            window: 500,
            idle: 6_000,
            audit: 2_000,
            patience: 400,
            sample: 8,
        };
        let mut soft = Soft::new(SoftMemory::new(10_000, 1 << 12, 64));
        soft.own_macs = vec![OWN];
        let mut world = Self {
            hybrid: Hybrid::new(soft, Nic::new(profile, seed), setup, seed),
            tables: Tables { services: Vec::new(), now: 1_000 },
            wire: Wire {
                incoming: VecDeque::new(),
                outgoing: Vec::new(),
                pool: vec![0; BUFFER * BUFFERS],
                free: (0..BUFFERS as u32).collect(),
            },
            rng,
            connections: BTreeMap::new(),
            incarnations: BTreeMap::new(),
            leaving: Vec::new(),
            microseconds: 0,
            swept: 0,
            next_number: 0,
            sent: 0,
            tally: Tally::default(),
            examples: Vec::new(),
        };
        world.hybrid.change(0, |soft| soft.memory.now = 1_000);
        for (number, &method) in methods.iter().enumerate() {
            let seed = world.rng.random();
            world.tables.services.push(Service::new(method, client_affinity, seed));
            let at = VipKey {
                address: map_address(vip(number)),
                protocol: Protocol::Tcp,
                port: Some(80),
            };
            world.hybrid.change(0, |soft| soft.vips.insert(at, ServiceId(number as u32)));
            (0..MEMBERS).for_each(|_| world.add(number));
            world.update(number);
            while world.step_update(number) {}
        }
        world
    }

    fn milliseconds(&self) -> u64 {
        self.microseconds / 1_000
    }

    /// A backend joins, with a number that nobody has, or nobody any more.
    fn add(&mut self, service: usize) {
        let taken = |world: &Self, id: BackendId| {
            let members = world.tables.services.iter().flat_map(|service| &service.members);
            members.map(|member| member.backend).any(|other| other == id)
                || world.leaving.iter().any(|(_, other)| *other == id)
        };
        // Few numbers: each has many owners.
        let most = MEMBERS * SERVICES + 4;
        let numbers = (0..most).map(|by| BackendId::of((self.next_number + by) % most));
        let Some(id) = numbers.into_iter().find(|id| !taken(self, *id)) else { return };
        self.next_number = (id.get() + 1) % most;
        let incarnation = self.incarnations.entry(id).or_default();
        *incarnation += 1;
        let home = (id, *incarnation);
        let [high, low] = id.get().to_be_bytes();
        let next = NextHop { mac: mac(home), source_mac: OWN };
        let backend = Backend {
            address: Ipv4Addr::new(10, 2, high, low).into(),
            incarnation: home.1,
            up: true,
            resets: false,
            hop: Some(Hop { next, ifindex: 1 }),
            tunnel: None,
            translation: None,
            segments: None,
        };
        let now = self.milliseconds();
        self.hybrid.change(now, |soft| soft.set_backend(id, Some(&backend)).expect("granted"));
        let name = format!("b{id}-{}", home.1);
        let member = Member { backend: id, name, weight: 1, role: Role::Serving };
        self.tables.services[service].members.push(member);
    }

    fn update(&mut self, service: usize) {
        self.tables.services[service].driver.begin([ServiceId(service as u32)]);
    }

    /// One action of an update; false if none is under way.
    fn step_update(&mut self, at: usize) -> bool {
        let now = self.milliseconds();
        let Self { tables, hybrid, .. } = self;
        let mut driver = std::mem::take(&mut tables.services[at].driver);
        let stepped = hybrid.change(now, |soft| driver.step(soft, tables).is_some());
        if !stepped {
            for outcome in driver.outcomes() {
                assert!(outcome.published && outcome.failure.is_none(), "{:?}", outcome.failure);
            }
        }
        tables.services[at].driver = driver;
        if !stepped {
            // No table leads there any more.
            let gone = self.leaving.extract_if(.., |(service, _)| *service == at);
            let gone: Vec<BackendId> = gone.map(|(_, id)| id).collect();
            for id in gone {
                self.hybrid.change(now, |soft| soft.set_backend(id, None).expect("granted"));
            }
        }
        stepped
    }

    fn change_pool(&mut self, at: usize) {
        let service = &mut self.tables.services[at];
        let jet = service.method == MethodId::Jet;
        let which = self.rng.random_range(0..service.members.len());
        let serving = service.members.iter().filter(|m| m.role == Role::Serving).count();
        match self.rng.random_range(0..4) {
            0 if service.members.len() > 4
                && (serving > 2 || service.members[which].role != Role::Serving) =>
            {
                let gone = service.members.remove(which).backend;
                service.builder.forget_backend(gone);
                self.leaving.push((at, gone));
            }
            // JET's new backends come out of those that it expects, which drain here.
            1 if service.members.len() < 8 => {
                let before = service.members.len();
                self.add(at);
                if jet && let Some(new) = self.tables.services[at].members.get_mut(before) {
                    new.role = Role::Draining;
                }
            }
            _ => {
                let member = &mut service.members[which];
                member.role = match member.role {
                    Role::Serving if serving > 2 => Role::Draining,
                    _ => Role::Serving,
                };
            }
        }
        self.tally.changes += 1;
        self.update(at);
    }

    fn send(&mut self, at: (usize, u16), flags: TcpFlags) {
        let frame = Frame::new(flow(at.0, at.1)).macs(OWN, [2, 0, 0, 0, 0, 1]).tcp_flags(flags);
        self.wire.incoming.push_back(frame.payload(20).build());
        self.sent += 1;
    }

    /// A client does something.
    fn client(&mut self) {
        let at =
            (self.rng.random_range(0..self.tables.services.len()), self.rng.random_range(0..PORTS));
        let now = self.milliseconds();
        // The same ports are heavy for a while.
        let heavy = (u64::from(at.1) + now / 4_000).is_multiple_of(6);
        let Some(connection) = self.connections.get_mut(&at) else {
            // Some ports rest for longer than the software remembers them.
            if at.1 % 5 == 1 && (now / 30_000 + u64::from(at.1)).is_multiple_of(2) {
                return;
            }
            let begun = Connection { home: None, spoke: now, heavy };
            self.connections.insert(at, begun);
            self.tally.begun += 1;
            return self.send(at, TcpFlags::SYN);
        };
        if connection.home.is_none() {
            // Its first packet was lost, or is under way.
            if now - connection.spoke > 1_000 {
                connection.spoke = now;
                self.send(at, TcpFlags::SYN);
            }
            return;
        }
        let silent = now - connection.spoke;
        if silent >= u64::from(IDLE_SECONDS - 8) * 1_000 {
            self.tally.silent += 1;
            self.connections.remove(&at);
            return;
        }
        let packets = if connection.heavy { self.rng.random_range(4..20) } else { 1 };
        // Some hardly ever speak: only what is known of them keeps them.
        let speaks = if at.1 % 10 == 3 { 12 } else { 2 };
        if connection.heavy || self.rng.random_ratio(1, speaks) {
            connection.spoke = now;
            (0..packets).for_each(|_| self.send(at, TcpFlags::ACK));
        }
        match self.rng.random_range(0..60) {
            0 => self.send(at, TcpFlags::FIN | TcpFlags::ACK),
            1 => self.send(at, TcpFlags::RST),
            2 => {}
            _ => return,
        }
        // It has ended, seen or unseen; most ports are used again at once.
        self.connections.remove(&at);
        self.tally.ended += 1;
        if self.rng.random_ratio(3, 4) {
            self.tally.reused += 1;
            self.tally.begun += 1;
            self.connections.insert(at, Connection { home: None, spoke: now, heavy });
            self.send(at, TcpFlags::SYN);
        }
    }

    fn is_there(&self, service: usize, home: Home) -> bool {
        let members = &self.tables.services[service].members;
        members.iter().any(|member| member.backend == home.0)
            && self.incarnations.get(&home.0) == Some(&home.1)
    }

    /// What has gone out reaches backends: of each live connection the one that its first packet has reached.
    fn check(&mut self) {
        for (fate, frame) in std::mem::take(&mut self.wire.outgoing) {
            let packet = parse(&frame).expect("it was whole");
            let vip = map_address(vip(0))[10..14].to_vec();
            let service = if packet.flow.is_ipv4() {
                assert_eq!(packet.flow.dst[10..14], vip);
                usize::from(packet.flow.dst[15])
            } else {
                usize::from(packet.flow.dst[15])
            };
            let at = (service, packet.flow.src_port - 1024);
            let Some(connection) = self.connections.get(&at).copied() else {
                if packet.tcp_flags.ends() {
                    self.forget(service, &packet.flow);
                }
                continue;
            };
            if fate != Fate::Send {
                continue;
            }
            let reached = home_of(&frame[..6]);
            let starts = packet.tcp_flags.starts();
            match connection.home {
                None if starts => {
                    let known = self.connections.get_mut(&at).expect("it was there");
                    known.home = Some(reached);
                }
                // Of a connection before it.
                None => {}
                Some(home) if home == reached => self.tally.checked += 1,
                Some(home) if !self.is_there(service, home) => {
                    self.tally.excused += 1;
                    self.connections.remove(&at);
                }
                Some(home) => {
                    self.tally.broken += 1;
                    let method = self.tables.services[service].method;
                    self.examples.push(format!(
                        "{method}, {} ms: {} lives at {home:?} and was sent to {reached:?}",
                        self.milliseconds(),
                        packet.flow
                    ));
                }
            }
        }
    }

    /// A backend says that it has a connection no more: whoever begins one from its port may be placed anew,
    /// and the rule may still be there.
    fn forget(&mut self, service: usize, flow: &FlowKey) {
        let key = StateKey::of_flow(flow);
        self.tables.services[service].builder.forget(&key);
        let state = ServiceState { service: ServiceId(service as u32), key };
        // No rule is looked at for it.
        self.hybrid.plane().soft().memory.connections.remove(&state);
    }

    /// The software forgets who was silent.
    fn sweep(&mut self) {
        let now = self.milliseconds();
        self.tables.now = 1_000 + (now / 1_000) as u32;
        let clock = self.tables.now;
        let Self { tables, hybrid, tally, .. } = self;
        hybrid.change(now, |soft| {
            soft.memory.now = clock;
            let mut hashes = Vec::new();
            for (number, service) in tables.services.iter().enumerate() {
                let key = soft.tables[&ServiceId(number as u32)].header().key;
                service.builder.each_state(&mut |state, _| hashes.push(state.hash(&key)));
            }
            let flows = hashes.len();
            let before = soft.flip_marks(&mut hashes.into_iter(), flows).expect("granted");
            let marks = soft.take_marks(before).expect("granted");
            for (number, service) in tables.services.iter_mut().enumerate() {
                let key = soft.tables[&ServiceId(number as u32)].header().key;
                let active = |state: &StateKey| marks.has(state.hash(&key));
                tally.forgotten += service.builder.sweep(clock, &active).len() as u64;
            }
        });
    }

    /// Some time passes, some clients send, the control plane does one thing.
    pub fn step(&mut self) {
        for _ in 0..self.rng.random_range(1..12) {
            self.client();
        }
        let at = self.rng.random_range(0..self.tables.services.len());
        if self.rng.random_ratio(1, 3) {
            let busy = self.step_update(at);
            if !busy && self.rng.random_ratio(1, 3) {
                self.change_pool(at);
            }
        }
        // Most of the time little passes, now and then much: queues are full, or rules come late.
        let passed =
            *[20, 100, 500, 3_000, 20_000, 200_000].choose(&mut self.rng).expect("there are some");
        self.microseconds += self.rng.random_range(1..=passed);
        for _ in 0..self.rng.random_range(0..3) {
            let now = Duration::from_micros(self.microseconds);
            let Ok(_) = self.hybrid.turn(&mut self.wire, now);
            self.check();
        }
        if self.milliseconds() - self.swept >= 3_000 {
            // Reports are taken at least as often as states are looked at.
            (0..self.tables.services.len()).for_each(|service| {
                if !self.step_update(service) {
                    self.update(service);
                }
            });
            self.swept = self.milliseconds();
            self.sweep();
        }
    }
}

/// What a test does itself.
impl World {
    /// Sends a packet of a connection alone: where it goes. Ports with the same rest by 7 are one client's.
    pub fn goes(&mut self, service: usize, port: u16, flags: TcpFlags) -> Home {
        self.send((service, port), flags);
        for _ in 0..1_000 {
            self.microseconds += 100;
            let now = Duration::from_micros(self.microseconds);
            let Ok(_) = self.hybrid.turn(&mut self.wire, now);
            if let Some((fate, frame)) = self.wire.outgoing.pop() {
                assert!(fate == Fate::Send, "{}", flow(service, port));
                return home_of(&frame[..6]);
            }
        }
        panic!("{} was lost", flow(service, port));
    }

    /// Sends packets until a rule leads one, to the backend where all go.
    pub fn comes_to_be_led(&mut self, service: usize, port: u16, home: Home) {
        for _ in 0..1_000 {
            let before = self.hybrid.shares().led;
            assert_eq!(self.goes(service, port, TcpFlags::ACK), home);
            if self.hybrid.shares().led > before {
                return;
            }
            self.microseconds += 1_000;
        }
        panic!("no rule leads {}: {:?}", flow(service, port), self.hybrid.counts());
    }

    /// A backend goes down, as its check says, or comes up.
    pub fn set_up(&mut self, service: usize, home: Home, up: bool) {
        let now = self.milliseconds();
        self.hybrid.change(now, |soft| {
            let backend = Backend { up, ..soft.backends[&home.0] };
            soft.set_backend(home.0, Some(&backend)).expect("granted");
        });
        let members = &mut self.tables.services[service].members;
        let member = members.iter_mut().find(|member| member.backend == home.0);
        member.expect("it is one").role = if up { Role::Serving } else { Role::Down };
        self.update(service);
        while self.step_update(service) {}
    }
}
