//! A whole balancer in memory: the real data plane, the real builders, the real protocol of an
//! update, and clients who notice when a connection lands elsewhere.

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use weir_hash::{HashKey, Key, scale};
use weir_plane::{ArmedFlows, Outcome, Plane, Soft, SoftError, VipKey};
use weir_steering::update::{Built, Judgement, Services};
use weir_steering::{
    Armed, BackendId, BuildError, Codec, Concury, ConcuryConfig, Driver, Event, EventKind, Flags,
    Image, Member, Phase, Role, SYN_SECONDS, ServiceId, ServiceState, Side, SoftMemory, State,
    StateKey, TrackedBuilder, seen_tag,
};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, TcpFlags, map_address};

/// Numbers that backends may have; few, so that they are used again.
const NUMBERS: u16 = 40;
/// Live flows that a service tends to.
const CROWD: usize = 500;
const IDLE_SECONDS: u32 = 300;
/// Words of one half of the activity bitmap, a power of two.
const MARK_WORDS: usize = 4096;

/// What kind of service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kind {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// IPv6.
    pub wide: bool,
    /// Affinity by client.
    pub client: bool,
    /// Concury with this codec, or tracked.
    pub codec: Option<Codec>,
}

enum Method {
    Concury(Box<Concury>),
    Tracked(TrackedBuilder),
}

/// A connection, or with client affinity a client.
#[derive(Clone, Copy)]
struct Live {
    flow: FlowKey,
    backend: BackendId,
    born: u32,
}

struct Service {
    kind: Kind,
    address: SocketAddr,
    method: Method,
    members: Vec<Member>,
    /// Backends that new flows may go to by the published table.
    serving: BTreeSet<BackendId>,
    /// Of an update under way.
    driver: Driver<SoftError, BuildError>,
    /// States that the table being built has no backend for.
    orphans: Vec<StateKey>,
    generation: u64,
    live: Vec<Live>,
    ended: Vec<FlowKey>,
}

/// What happened.
#[derive(Default, Debug)]
pub struct Tally {
    /// Packets of live flows that were checked.
    pub packets: u64,
    /// Those that went elsewhere, or nowhere.
    pub violations: u64,
    /// The first of them, for people.
    pub examples: Vec<String>,
    /// Flows that started.
    pub flows: u64,
    /// Those that started at a backend that takes none.
    pub misplaced: u64,
    /// Those that were dropped.
    pub refused: u64,
    /// Changes of pools, by kind.
    pub changes: BTreeMap<&'static str, u64>,
    /// Rounds of updates beyond the first.
    pub rounds: u64,
    /// States that were forgotten because they were idle or over.
    pub forgotten: u64,
    /// Updates after which the table had another hash key.
    pub rekeyed: u64,
}

/// The world.
pub struct World {
    plane: Soft,
    /// The control plane.
    pub tables: Tables,
    rng: ChaCha8Rng,
    swept: u32,
    periods: u64,
    next_client: u32,
    /// What happened.
    pub tally: Tally,
}

/// The services, and what their control plane knows.
pub struct Tables {
    services: Vec<Service>,
    now: u32,
    /// Throw reports and pending flows away instead of collecting them.
    pub deaf: bool,
    rekeyed: u64,
    /// The flows that packets know to live, if a table that is built now may rely on it.
    armed: Option<(u64, ArmedFlows)>,
}

impl Services for Tables {
    type Error = BuildError;

    fn report(&mut self, event: &Event) -> Result<(), BuildError> {
        let Method::Concury(concury) = &mut self.services[event.state.service.index()].method
        else {
            return Ok(());
        };
        match event.kind {
            _ if self.deaf => {}
            EventKind::Start => {
                let known = concury.start(event.state.key, event.backend, self.now)?;
                assert!(known);
            }
            EventKind::End => concury.end(&event.state.key, self.now),
        }
        Ok(())
    }

    fn collect(&mut self, state: &ServiceState, backend: BackendId) -> Result<(), BuildError> {
        if let Method::Concury(concury) = &mut self.services[state.service.index()].method
            && !self.deaf
        {
            concury.start(state.key, backend, self.now)?;
        }
        Ok(())
    }

    fn knows(&self, state: &ServiceState, backend: BackendId) -> bool {
        match &self.services[state.service.index()].method {
            Method::Concury(concury) => {
                concury.get(&state.key).is_some_and(|known| known.backend == backend)
            }
            _ => false,
        }
    }

    fn build(&mut self, number: ServiceId) -> Result<Built, BuildError> {
        let service = &mut self.services[number.index()];
        let generation = service.generation + 1;
        match &mut service.method {
            Method::Tracked(builder) => {
                let image = builder.build(generation, &service.members)?;
                Ok(Built::new(Arc::new(image), Vec::new()))
            }
            Method::Concury(concury) => {
                let none = Armed::NONE;
                let armed = self
                    .armed
                    .as_ref()
                    .map_or(none, |(period, armed)| Armed { period: *period, has: &*armed.has });
                let (members, now) = (&service.members, self.now);
                let (image, report) = concury.draft_beside(generation, members, now, armed)?;
                service.orphans = report.orphans;
                let pins = report.pinned.into_iter();
                let pins = pins.map(|(key, at)| (ServiceState { service: number, key }, at));
                Ok(Built::new(image, pins.collect()))
            }
        }
    }

    fn published(&mut self, number: ServiceId) -> Vec<u64> {
        let service = &mut self.services[number.index()];
        service.generation += 1;
        let serving = service.members.iter().filter(|m| m.effective_weight() > 0);
        service.serving = serving.map(|m| m.backend).collect();
        let members: BTreeSet<BackendId> = service.members.iter().map(|m| m.backend).collect();
        service.live.retain(|live| members.contains(&live.backend));
        let Method::Concury(concury) = &mut service.method else { return Vec::new() };
        let former = concury.published().map(|image| image.header().key);
        concury.publish_draft();
        let image = concury.published().expect("just published");
        let key = image.header().key;
        self.rekeyed += u64::from(former.is_some_and(|former| former != key));
        std::mem::take(&mut service.orphans).iter().map(|orphan| orphan.hash(&key)).collect()
    }

    fn discard(&mut self, number: ServiceId) {
        let service = &mut self.services[number.index()];
        service.orphans.clear();
        if let Method::Concury(concury) = &mut service.method {
            concury.discard_draft().expect("keys differ");
        }
    }

    fn judge(&self, state: &ServiceState, backend: BackendId) -> Judgement {
        let service = &self.services[state.service.index()];
        let Method::Concury(concury) = &service.method else { return Judgement::Reserved };
        if !service.members.iter().any(|member| member.backend == backend) {
            Judgement::Lost
        } else if concury.agrees(&state.key, backend) {
            Judgement::Agreed
        } else if concury.on_reserved(&state.key) {
            Judgement::Reserved
        } else {
            Judgement::Apart
        }
    }
}

impl World {
    /// Services of these kinds, with four backends each.
    pub fn new(kinds: &[Kind], seed: u64) -> Self {
        let mut world = Self {
            plane: Soft::new(SoftMemory::new(100_000, MARK_WORDS, 4096)),
            tables: Tables {
                services: Vec::new(),
                now: 1000,
                deaf: false,
                rekeyed: 0,
                armed: None,
            },
            rng: ChaCha8Rng::seed_from_u64(seed),
            swept: 1000,
            periods: 0,
            next_client: 0,
            tally: Tally::default(),
        };
        // Every number is a machine that is up; tracked connections ask for that.
        for number in 0..NUMBERS {
            world.plane.memory.incarnations.insert(BackendId::of(number), 1);
        }
        for &kind in kinds {
            world.add_service(kind);
        }
        world
    }

    fn add_service(&mut self, kind: Kind) {
        let number = self.tables.services.len() as u32;
        let address = if kind.wide {
            let low = number as u16 + 1;
            IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, low))
        } else {
            IpAddr::V4(Ipv4Addr::new(192, 0, 2, number as u8 + 1))
        };
        let address = SocketAddr::new(address, 443);
        let method = if let Some(codec) = kind.codec {
            Method::Concury(Box::new(Concury::new(ConcuryConfig {
                codec,
                bits: 12,
                client_affinity: kind.client,
                udp: kind.protocol == Protocol::Udp,
                mark: true,
                capacity: 64,
                max_states: 1_000_000,
                idle_seconds: IDLE_SECONDS,
                seed: self.rng.random(),
            })))
        } else {
            let key = HashKey::from_seed(self.rng.random());
            Method::Tracked(TrackedBuilder::new(key, 4093, kind.client))
        };
        let vip =
            VipKey { address: map_address(address.ip()), protocol: kind.protocol, port: Some(443) };
        self.plane.vips.insert(vip, ServiceId(number));
        self.tables.services.push(Service {
            kind,
            address,
            method,
            members: (0..4).map(|backend| member(backend, 2)).collect(),
            serving: BTreeSet::new(),
            driver: Driver::new(),
            orphans: Vec::new(),
            generation: 0,
            live: Vec::new(),
            ended: Vec::new(),
        });
        self.update(number as usize);
    }

    /// `changes` changes of pools, with traffic before, between the steps of, and after each.
    pub fn run(&mut self, changes: u64) {
        let mut begun = 0;
        while begun < changes {
            let at = self.rng.random_range(0..self.tables.services.len());
            if self.updates(at) {
                self.step(at);
            } else if self.change(at) {
                begun += 1;
            }
            let busy = self.rng.random_range(0..self.tables.services.len());
            self.traffic(busy);
            self.traffic(at);
            self.traffic(at);
            self.time_passes();
        }
        for at in 0..self.tables.services.len() {
            while self.updates(at) {
                self.step(at);
                self.traffic(at);
            }
        }
        self.every_flow_sends();
    }

    /// Changes the pool of a service, if the dice allow, and begins the update.
    fn change(&mut self, at: usize) -> bool {
        let service = &mut self.tables.services[at];
        let mut members = service.members.clone();
        let which = self.rng.random_range(0..members.len());
        let draining = members[which].role == Role::Draining;
        let what = match self.rng.random_range(0..6) {
            0 | 1 => {
                let number = self.rng.random_range(0..NUMBERS);
                if members.len() >= 12 || members.iter().any(|m| m.backend == number) {
                    return false;
                }
                members.push(member(number, self.rng.random_range(1..=8)));
                "add"
            }
            2 if members.len() > 2 => {
                members.remove(which);
                "remove"
            }
            3 => {
                members[which].weight = self.rng.random_range(0..=8);
                "reweight"
            }
            _ if draining => {
                members[which].role = Role::Serving;
                "undrain or up"
            }
            _ => {
                members[which].role = Role::Draining;
                "drain or down"
            }
        };
        let serving = members.iter().filter(|m| m.effective_weight() > 0).count();
        if serving == 0 && self.rng.random_bool(0.9) {
            return false;
        }
        if what == "remove" {
            // Its connections are inevitably broken; those that still start there are too.
            let gone = service.members[which].backend;
            service.live.retain(|live| live.backend != gone);
        }
        service.members = members;
        *self.tally.changes.entry(what).or_default() += 1;
        match service.method {
            Method::Concury(_) => service.driver.begin([ServiceId(at as u32)]),
            Method::Tracked(_) => self.update(at),
        }
        true
    }

    /// Whether an update of a service is under way.
    fn updates(&self, at: usize) -> bool {
        !self.tables.services[at].driver.is_idle()
    }

    /// A whole update at once.
    fn update(&mut self, at: usize) {
        self.tables.services[at].driver.begin([ServiceId(at as u32)]);
        while self.updates(at) {
            self.step(at);
        }
    }

    /// One action of the update of a service. No other service's table may change by it. A packet
    /// is processed whole here; tests/interleavings.rs has the rest.
    fn step(&mut self, at: usize) {
        let before = self.digests(at);
        if self.rng.random_bool(0.02) {
            let before = self.arm(|state| state.phase != Phase::Closing);
            // Who sends something in the minute is asked at its end, when all have.
            self.plane.memory.take_marks(before);
        }
        self.tables.armed = None;
        if self.rng.random_bool(0.5) {
            let armed = self.plane.armed().expect("it is memory");
            self.tables.armed = Some((self.periods, armed));
        }
        let mut driver = std::mem::take(&mut self.tables.services[at].driver);
        driver.step(&mut self.plane, &mut self.tables).expect("an action is left");
        for outcome in driver.outcomes() {
            assert!(outcome.failure.is_none() && outcome.published);
            self.tally.rounds += u64::from(outcome.rounds - 1);
            self.check_counts(at);
        }
        self.tables.services[at].driver = driver;
        self.tally.rekeyed += std::mem::take(&mut self.tables.rekeyed);
        assert_eq!(before, self.digests(at), "an update of service {at} changed another's table");
    }

    fn digests(&self, except: usize) -> Vec<(ServiceId, u64, Flags)> {
        let mut all: Vec<_> = self
            .plane
            .tables
            .iter()
            .filter(|(number, _)| number.index() != except)
            .map(|(number, image)| (*number, image.header().digest, image.header().flags()))
            .collect();
        all.sort_unstable_by_key(|entry| entry.0);
        all
    }

    /// `states_of` says what the states say.
    fn check_counts(&self, at: usize) {
        let Method::Concury(concury) = &self.tables.services[at].method else {
            return;
        };
        let mut counts = [0; NUMBERS as usize];
        for (_, state) in concury.states() {
            counts[state.backend.index()] += 1;
        }
        for (number, count) in counts.into_iter().enumerate() {
            assert_eq!(concury.states_of(BackendId::of(number as u16)), count, "backend {number}");
        }
    }

    /// A few packets: new flows, data, repeated SYNs, ends, keys used again.
    fn traffic(&mut self, at: usize) {
        for _ in 0..self.rng.random_range(0..4) {
            let flow = self.new_flow(at);
            self.start(at, flow, true);
        }
        for _ in 0..self.rng.random_range(0..12) {
            let Some(live) = self.tables.services[at].live.choose(&mut self.rng).copied() else {
                return;
            };
            let repeat = self.tables.now - live.born < 100 && self.rng.random_bool(0.3);
            let flags = if repeat { TcpFlags::SYN } else { TcpFlags::ACK };
            self.check(at, &live, flags);
        }
        let crowded = self.tables.services[at].live.len() > CROWD;
        if self.rng.random_bool(if crowded { 0.9 } else { 0.2 }) {
            self.finish(at);
        }
        if self.rng.random_bool(0.05)
            && let Some(flow) = self.tables.services[at].ended.pop()
        {
            self.start(at, flow, false);
        }
    }

    fn new_flow(&mut self, at: usize) -> FlowKey {
        self.next_client += 1;
        let service = &self.tables.services[at];
        let mixed = self.next_client.wrapping_mul(0x9e37_79b1);
        let address = if service.kind.wide {
            let [a, b, c, d] = mixed.to_be_bytes().map(u16::from);
            IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 1, a, b, 7, c, d))
        } else {
            IpAddr::V4(Ipv4Addr::from(0x0a00_0000 | mixed & 0x00ff_ffff))
        };
        let client = SocketAddr::new(address, self.rng.random_range(1024..=65535));
        FlowKey::new(client, service.address, service.kind.protocol)
    }

    /// A first packet. `fresh`: nobody has heard of the flow, so it must be placed by the table.
    fn start(&mut self, at: usize, flow: FlowKey, fresh: bool) {
        let frame = Frame::new(flow).tcp_flags(TcpFlags::SYN).build();
        let outcome = self.plane.process(&frame);
        let Outcome::Forwarded(backend) = outcome else {
            self.tally.refused += 1;
            let serving = self.tables.services[at].serving.len();
            assert!(serving == 0 || !fresh, "{outcome:?} with {serving} serving");
            return;
        };
        let service = &mut self.tables.services[at];
        self.tally.flows += 1;
        self.tally.misplaced += u64::from(fresh && !service.serving.contains(&backend));
        // Started where the pool, being changed, has no backend any more: inevitably broken.
        if service.members.iter().any(|m| m.backend == backend) {
            let born = self.tables.now;
            service.live.push(Live { flow, backend, born });
        }
    }

    fn check(&mut self, at: usize, live: &Live, flags: TcpFlags) {
        let mut flow = live.flow;
        if self.tables.services[at].kind.client {
            // Any connection of the client.
            flow.src_port = self.rng.random_range(1024..=65535);
        }
        let outcome = self.plane.process(&Frame::new(flow).tcp_flags(flags).build());
        self.tally.packets += 1;
        if outcome != Outcome::Forwarded(live.backend) {
            self.tally.violations += 1;
            if self.tally.examples.len() < 5 {
                let generation = self.tables.services[at].generation;
                self.tally.examples.push(format!(
                    "{flow} of service {at} ({:?}), backend {}, generation {generation}: {outcome:?}",
                    self.tables.services[at].kind, live.backend
                ));
            }
        }
    }

    fn finish(&mut self, at: usize) {
        let count = self.tables.services[at].live.len();
        if count == 0 {
            return;
        }
        let which = self.rng.random_range(0..count);
        let live = self.tables.services[at].live.swap_remove(which);
        // Or the server resets it, which nobody sees: answers do not pass the balancer.
        let seen = [Some(TcpFlags::FIN), Some(TcpFlags::RST), None];
        if let Some(flags) = seen[self.rng.random_range(0..3)] {
            self.check(at, &live, flags | TcpFlags::ACK);
        }
        self.tables.services[at].ended.push(live.flow);
    }

    fn every_flow_sends(&mut self) {
        for at in 0..self.tables.services.len() {
            for which in 0..self.tables.services[at].live.len() {
                let live = self.tables.services[at].live[which];
                self.check(at, &live, TcpFlags::ACK);
            }
        }
    }

    /// Arms flows under the keys of their tables. Returns where packets have marked until now.
    fn arm(&mut self, which: impl Fn(&State) -> bool + Copy) -> Side {
        // One that has begun with the ports of another is armed for itself.
        for event in std::mem::take(&mut self.plane.memory.events) {
            self.tables.report(&event).expect("keys differ");
        }
        let known = self.tables.services.iter().filter_map(|service| match &service.method {
            Method::Concury(concury) => {
                let key = concury.published()?.header().key;
                let states = concury.states().filter(move |(_, state)| which(state));
                Some(states.map(move |(state, _)| state.hash(&key)))
            }
            _ => None,
        });
        self.periods += 1;
        let memory = &mut self.plane.memory;
        let side = memory.mark_side;
        memory.mark_side = memory.arm(&mut known.flatten(), MARK_WORDS);
        self.pin_unarmed();
        side
    }

    /// Not all have found room: those whose SYN must not move them are pinned.
    fn pin_unarmed(&mut self) {
        let armed = self.plane.armed().expect("it is memory");
        for (at, service) in self.tables.services.iter_mut().enumerate() {
            let Method::Concury(concury) = &service.method else { continue };
            let Some(key) = concury.published().map(|image| image.header().key) else { continue };
            let number = ServiceId(at as u32);
            let young = concury.states().filter(|(state, known)| {
                let young = self.tables.now - known.known().born < SYN_SECONDS;
                young && concury.on_reserved(state) && !(armed.has)(state.hash(&key))
            });
            let young = young.filter(|(_, known)| known.phase != Phase::Closing);
            let pins: Vec<_> = young
                .map(|(key, known)| (ServiceState { service: number, key: *key }, known.backend))
                .collect();
            service.driver.pin_beside(number, &pins, &mut self.plane).expect("it is memory");
        }
    }

    /// Every minute all flows send something, and the idle are forgotten.
    fn time_passes(&mut self) {
        self.tables.now += u32::from(self.rng.random_bool(0.3));
        if self.tables.now - self.swept < 60 {
            return;
        }
        self.swept = self.tables.now;
        self.every_flow_sends();
        let side = self.arm(|_| true);
        let memory = &mut self.plane.memory;
        let marks = memory.take_marks(side);
        for (at, service) in self.tables.services.iter_mut().enumerate() {
            let udp = service.kind.protocol == Protocol::Udp;
            if let Method::Concury(concury) = &mut service.method {
                let Some(image) = concury.published().cloned() else { continue };
                let idle = concury.sweep(self.tables.now, |state| {
                    let hash = state.hash(&image.header().key);
                    if udp { seen(memory, hash, ServiceId(at as u32)) } else { marks.has(hash) }
                });
                self.tally.forgotten += idle.len() as u64;
            }
        }
        memory.next_seen_generation();
    }
}

fn member(backend: u16, weight: u32) -> Member {
    Member {
        backend: BackendId::of(backend),
        name: format!("b{backend}"),
        weight,
        role: Role::Serving,
    }
}

/// Whether a UDP flow stands in the filter.
fn seen(memory: &SoftMemory, hash: u64, service: ServiceId) -> bool {
    let tag = seen_tag(hash, service);
    let line = scale((tag >> 32) as u32, memory.seen.len() as u32) as usize;
    memory.seen[line].iter().any(|entry| entry & !3 == tag & !3)
}

/// The hash of a flow's state under a table's key.
pub fn state_hash(image: &Image, flow: &FlowKey) -> u64 {
    StateKey::of_flow(flow).hash(&image.header().key)
}
