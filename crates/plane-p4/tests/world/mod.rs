//! A plane on a switch and the plane in memory, under the same updates and the same frames.

#![allow(dead_code, reason = "each test uses a part of it")]

#[path = "../../../dataplane/tests/differential/options.rs"]
mod options;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_plane::forward::{Encapsulation, NextHop, Tunnel};
use weir_plane::{Backend, Hop, Outcome, Plane, Soft, Verdict, VipKey};
use weir_plane_p4::layout::{MARK_WORDS, Register, SEEN_LINES};
use weir_plane_p4::{Error, P4, Target};
use weir_steering::update::{self, Built, Judgement, Services};
use weir_steering::{
    BackendId, Build, BuildError, DCODE_BITS, Driver, Event, EventKind, Flags, Former, Image,
    Member, MethodId, ROWS, Role, SCHEDULER, ServiceConfig, ServiceId, ServiceState, Settings,
    SoftMemory, StateKey, cheetah,
};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, Reason, TcpFlags, map_address, parse};

/// Numbers of backends are below this.
const BACKENDS: u16 = 512;
/// Ours, on every port.
pub const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// By the environment, or else by chance; printed either way.
pub fn from_environment(name: &str, default: impl FnOnce() -> u64) -> u64 {
    let value = std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or_else(default);
    println!("{name}={value}");
    value
}

/// Both planes as one: what is asked of it is asked of both, and they must answer the same.
pub struct Twin<T> {
    pub p4: P4<T>,
    pub oracle: Soft,
    /// Reports and pending flows that were compared.
    pub compared: u64,
}

fn sorted<T: Ord>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut items: Vec<T> = items.into_iter().collect();
    items.sort();
    items
}

impl<T: Target> update::Plane for Twin<T> {
    type Error = Error;

    fn is_full(error: &Error) -> bool {
        P4::<T>::is_full(error)
    }

    fn set_flags(&mut self, service: ServiceId, record: bool, pending: bool) -> Result<(), Error> {
        update::Plane::set_flags(&mut self.oracle, service, record, pending)?;
        self.p4.set_flags(service, record, pending)
    }

    fn freeze(&mut self, service: ServiceId, frozen: bool) -> Result<(), Error> {
        self.p4.freeze(service, frozen)
    }

    fn grace(&mut self) -> Result<(), Error> {
        self.p4.grace()
    }

    fn drain(&mut self, take: &mut dyn FnMut(&Event)) -> Result<(), Error> {
        let mut found = Vec::new();
        self.p4.drain(&mut |event| found.push(*event))?;
        let mut wanted = Vec::new();
        update::Plane::drain(&mut self.oracle, &mut |event| wanted.push(*event))?;
        assert_eq!(found, wanted, "reports");
        self.compared += found.len() as u64;
        found.iter().for_each(take);
        Ok(())
    }

    fn pending(&self) -> Result<Vec<(ServiceState, BackendId)>, Error> {
        let found = sorted(self.p4.pending()?);
        assert_eq!(found, sorted(update::Plane::pending(&self.oracle)?), "pending flows");
        Ok(found)
    }

    fn forget_pending(&mut self, states: &[ServiceState]) -> Result<(), Error> {
        update::Plane::forget_pending(&mut self.oracle, states)?;
        self.p4.forget_pending(states)
    }

    fn pinned(&self) -> Result<Vec<(ServiceState, BackendId)>, Error> {
        self.p4.pinned()
    }

    fn pin(&mut self, pins: &[(ServiceState, BackendId)]) -> Result<(), Error> {
        update::Plane::pin(&mut self.oracle, pins)?;
        self.p4.pin(pins)
    }

    fn unpin(&mut self, states: &[ServiceState]) -> Result<(), Error> {
        update::Plane::unpin(&mut self.oracle, states)?;
        self.p4.unpin(states)
    }

    fn show(&mut self, service: ServiceId, image: &Arc<Image>, flags: Flags) -> Result<(), Error> {
        update::Plane::show(&mut self.oracle, service, image, flags)?;
        self.p4.show(service, image, flags)
    }

    fn retire(&mut self, service: ServiceId) {
        update::Plane::retire(&mut self.oracle, service);
        self.p4.retire(service);
    }

    fn forget_seen(&mut self, service: ServiceId, hashes: &[u64]) {
        update::Plane::forget_seen(&mut self.oracle, service, hashes);
        self.p4.forget_seen(service, hashes);
    }
}

/// The control plane's side of a service.
pub struct Service {
    pub number: ServiceId,
    pub vip: VipKey,
    pub members: Vec<Member>,
    leaving: Vec<BackendId>,
    builder: Box<dyn Build>,
    generation: u64,
    driver: Driver<Error, BuildError>,
}

/// All services, by number.
pub struct Tables {
    pub services: Vec<Service>,
    pub now: u32,
}

impl Services for Tables {
    type Error = BuildError;

    fn report(&mut self, event: &Event) -> Result<(), BuildError> {
        let now = self.now;
        let service = &mut self.services[event.state.service.index()];
        let known = service.members.iter().any(|member| member.backend == event.backend);
        match event.kind {
            EventKind::Start if known => {
                service.builder.start(event.state.key, event.backend, now)?;
            }
            EventKind::Start => {}
            EventKind::End => service.builder.end(&event.state.key, now),
        }
        Ok(())
    }

    fn collect(&mut self, state: &ServiceState, backend: BackendId) -> Result<(), BuildError> {
        let now = self.now;
        self.services[state.service.index()].builder.start(state.key, backend, now).map(drop)
    }

    fn knows(&self, state: &ServiceState, backend: BackendId) -> bool {
        let known = self.services[state.service.index()].builder.known(&state.key);
        known.is_some_and(|known| known.backend == backend)
    }

    fn build(&mut self, number: ServiceId) -> Result<Built, BuildError> {
        let now = self.now;
        let service = &mut self.services[number.index()];
        let made = service.builder.draft(service.generation + 1, &service.members, now)?;
        let pins = made.pinned.into_iter();
        let pins = pins.map(|(key, at)| (ServiceState { service: number, key }, at));
        Ok(Built::new(made.table, pins.collect()))
    }

    fn published(&mut self, number: ServiceId) -> Vec<u64> {
        let service = &mut self.services[number.index()];
        service.generation += 1;
        service.builder.publish_draft();
        Vec::new()
    }

    fn discard(&mut self, number: ServiceId) {
        self.services[number.index()].builder.discard_draft().expect("keys differ");
    }

    fn judge(&self, state: &ServiceState, backend: BackendId) -> Judgement {
        let Service { builder, members, .. } = &self.services[state.service.index()];
        if !members.iter().any(|member| member.backend == backend) {
            Judgement::Lost
        } else if builder.agrees(&state.key, backend) {
            Judgement::Agreed
        } else if builder.on_reserved(&state.key) {
            Judgement::Reserved
        } else {
            Judgement::Apart
        }
    }
}

/// Address, protocol, port, affinity by client, method.
type Plan = (&'static str, Protocol, Option<u16>, bool, MethodId);

const PLANS: [Plan; 13] = [
    ("10.9.0.1", Protocol::Tcp, Some(80), false, MethodId::Concury),
    ("fd09::1", Protocol::Tcp, Some(443), false, MethodId::Concury),
    ("10.9.0.1", Protocol::Udp, Some(53), false, MethodId::Concury),
    ("10.9.0.2", Protocol::Tcp, None, true, MethodId::Concury),
    ("fd09::2", Protocol::Udp, None, true, MethodId::Concury),
    ("10.9.0.7", Protocol::Tcp, Some(80), false, MethodId::Residue),
    ("fd09::7", Protocol::Tcp, Some(443), true, MethodId::Residue),
    ("fd09::7", Protocol::Udp, Some(53), false, MethodId::Residue),
    ("10.9.0.4", Protocol::Tcp, Some(80), false, MethodId::Cheetah),
    ("fd09::4", Protocol::Tcp, None, false, MethodId::Cheetah),
    ("10.9.0.4", Protocol::Udp, Some(53), false, MethodId::Cheetah),
    ("10.9.0.5", Protocol::Tcp, Some(80), false, MethodId::CheetahStateful),
    ("fd09::5", Protocol::Tcp, Some(443), false, MethodId::CheetahStateful),
];

/// The settings of a service: those over IPv6 place by turns, and drop what has no good cookie.
fn settings_of((address, _, port, _, method): &Plan) -> Settings {
    let mut settings = Settings::of(*method);
    match method {
        MethodId::Concury => settings.set(DCODE_BITS, 8).expect("it has such a setting"),
        MethodId::Residue => settings.set(ROWS, 251).expect("it has such a setting"),
        _ => {
            let ipv6 = address.contains(':');
            let scheduler = match (ipv6, port) {
                (false, _) => "uniform",
                (true, None) => "rr",
                (true, Some(_)) => "wrr",
            };
            let forged = if ipv6 { "refuse" } else { "schedule" };
            for (name, word) in
                [(cheetah::ANSWERS, "backend"), (SCHEDULER, scheduler), (cheetah::FORGED, forged)]
            {
                settings.set_word(name, word).expect("it has such a setting");
            }
            if *method == MethodId::CheetahStateful {
                settings.set(cheetah::PARTITIONS, 2).expect("it has such a setting");
            }
        }
    }
    settings
}

pub struct World<T> {
    pub plane: Twin<T>,
    pub tables: Tables,
    pub rng: ChaCha8Rng,
    next_backend: u16,
    /// The interface that all frames leave by; 0: the one that they came in by.
    ifindex: u32,
    pub outcomes: BTreeMap<String, u64>,
    pub updates: u64,
    /// Packets that the switch was given.
    pub sent: u64,
    /// The TSecr that the last packet got instead of its own.
    pub told: Option<u32>,
}

impl<T: Target> World<T> {
    /// Services of both methods with a few backends each, half of them behind tunnels.
    pub fn new(seed: u64, target: T, ifindex: u32, prepare: impl FnOnce(&mut P4<T>)) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut p4 = P4::new(target).expect("the switch is there");
        prepare(&mut p4);
        p4.set_own_macs(vec![OWN_MAC]).expect("there is room");
        let memory = SoftMemory::new(1 << 20, MARK_WORDS as usize, SEEN_LINES as usize);
        let mut oracle = Soft::new(memory);
        oracle.own_macs = vec![OWN_MAC];
        let mut services = Vec::new();
        for (number, (address, protocol, port, client_affinity, method)) in
            (0..).map(ServiceId).zip(PLANS)
        {
            let settings = settings_of(&(address, protocol, port, client_affinity, method));
            let address = address.parse().expect("an address");
            let vip = VipKey { address: map_address(address), protocol, port };
            p4.set_service(vip, number).expect("there is room");
            oracle.set_service(vip, number).expect("it is in memory");
            let config = ServiceConfig {
                settings,
                client_affinity,
                udp: protocol == Protocol::Udp,
                seed: rng.random(),
                nonce: rng.random(),
                capacity: 16,
                max_states: 100_000,
                idle_seconds: 1_000_000,
            };
            let builder = method.info().builder.expect("it has tables")(&config, None);
            services.push(Service {
                number,
                vip,
                members: Vec::new(),
                leaving: Vec::new(),
                builder,
                generation: 0,
                driver: Driver::new(),
            });
        }
        let mut world = Self {
            plane: Twin { p4, oracle, compared: 0 },
            tables: Tables { services, now: 1_000 },
            rng,
            next_backend: 0,
            ifindex,
            outcomes: BTreeMap::new(),
            updates: 0,
            sent: 0,
            told: None,
        };
        for service in 0..PLANS.len() {
            (0..4).for_each(|_| world.add_backend(service));
            world.begin(service);
            while world.step(service) {}
        }
        world
    }

    pub fn set_backend(&mut self, id: BackendId, backend: Option<&Backend>) {
        self.plane.p4.set_backend(id, backend).expect("there is room");
        self.plane.oracle.set_backend(id, backend).expect("it is in memory");
    }

    fn add_backend(&mut self, service: usize) {
        let id = BackendId::of(self.next_backend % BACKENDS);
        let taken = |service: &Service| {
            service.members.iter().any(|member| member.backend == id)
                || service.leaving.contains(&id)
        };
        self.next_backend += 1;
        if self.tables.services.iter().any(taken) {
            return;
        }
        let number = u32::from(id.get());
        let (v4, v6) = ([10, 8, id.get().to_be_bytes()[0], id.get() as u8], u128::from(number));
        let ipv6 = number % 4 == 3;
        let address: IpAddr =
            if ipv6 { (0xfd08_u128 << 112 | v6).to_be_bytes().into() } else { v4.into() };
        let source: IpAddr =
            if ipv6 { "fd08::ffff" } else { "10.8.255.1" }.parse().expect("an address");
        let tunnel =
            Tunnel { encapsulation: Encapsulation::Ipip, source: Some(source), spread: 0, mtu: 0 };
        let [high, low] = id.get().to_be_bytes();
        let next = NextHop { mac: [2, 0, 0, 1, high, low], source_mac: OWN_MAC };
        let backend = Backend {
            address,
            incarnation: self.rng.random(),
            up: true,
            resets: false,
            hop: Some(Hop { next, ifindex: self.ifindex }),
            tunnel: (number % 2 == 1).then_some(tunnel),
            translation: None,
            segments: None,
        };
        self.set_backend(id, Some(&backend));
        let weight = self.rng.random_range(0..5);
        let name = format!("b{number}");
        self.tables.services[service].members.push(Member {
            backend: id,
            name,
            weight,
            role: Role::Serving,
        });
    }

    /// Something about a pool changes.
    pub fn change(&mut self, service: usize) {
        let count = self.tables.services[service].members.len();
        let which = self.rng.random_range(0..count.max(1));
        match self.rng.random_range(0..5) {
            0 if count < 12 => self.add_backend(service),
            1 if count > 1 => {
                let service = &mut self.tables.services[service];
                let gone = service.members.remove(which).backend;
                service.builder.forget_backend(gone);
                service.leaving.push(gone);
            }
            2 if count > 0 => {
                let role = &mut self.tables.services[service].members[which].role;
                *role = match *role {
                    Role::Serving => Role::Draining,
                    Role::Draining => Role::Down,
                    Role::Down => Role::Serving,
                };
            }
            _ if count > 0 => {
                let weight = self.rng.random_range(0..7);
                let member = &mut self.tables.services[service].members[which];
                member.weight = weight;
                let (id, up) = (member.backend, self.rng.random_bool(0.7));
                if let Some(backend) = self.plane.oracle.backend(id) {
                    self.set_backend(id, Some(&Backend { up, ..backend }));
                }
            }
            _ => {}
        }
    }

    /// An update of a service begins.
    pub fn begin(&mut self, service: usize) {
        let service = &mut self.tables.services[service];
        service.driver.begin([service.number]);
        self.updates += 1;
    }

    /// Goes on with the update of some service, or begins one.
    pub fn update_any(&mut self) {
        let service = self.rng.random_range(0..self.tables.services.len());
        if self.tables.services[service].driver.is_idle() {
            self.change(service);
            self.begin(service);
        } else {
            self.step(service);
        }
    }

    /// Ends all updates.
    pub fn settle(&mut self) {
        for service in 0..self.tables.services.len() {
            (0..200).any(|_| !self.step(service));
        }
    }

    /// One action of it, which begins again if it was not finished; false if there is none any more.
    pub fn step(&mut self, at: usize) -> bool {
        let mut driver = std::mem::take(&mut self.tables.services[at].driver);
        driver.step(&mut self.plane, &mut self.tables);
        for outcome in driver.outcomes() {
            assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
            if outcome.is_unfinished() {
                driver.begin([outcome.service]);
            }
            if outcome.published {
                for gone in std::mem::take(&mut self.tables.services[at].leaving) {
                    self.set_backend(gone, None);
                }
            }
        }
        let goes_on = !driver.is_idle();
        self.tables.services[at].driver = driver;
        goes_on
    }

    /// A frame for one of the services, or for none; now and then damaged.
    pub fn frame(&mut self) -> Vec<u8> {
        let rng = &mut self.rng;
        let service = self.tables.services.choose(rng).expect("there are some");
        let VipKey { address, protocol, port } = service.vip;
        let ipv4 = parse_v4(&address);
        let client = rng.random_range(0..24u8);
        let src: IpAddr = match ipv4 {
            true => [10, 1, 0, client].into(),
            false => (0xfd01_u128 << 112 | u128::from(client)).to_be_bytes().into(),
        };
        let dst_port = match rng.random_range(0..20) {
            0 => rng.random_range(1..100),
            _ => port.unwrap_or(1000),
        };
        let flow = FlowKey {
            src: map_address(src),
            dst: address,
            src_port: 4000 + rng.random_range(0..8),
            dst_port,
            protocol,
        };
        let flags = match rng.random_range(0..12) {
            0..=3 => TcpFlags::SYN,
            4 => TcpFlags::FIN | TcpFlags::ACK,
            5 => TcpFlags::RST,
            6 => TcpFlags::SYN | TcpFlags::ACK,
            7 => TcpFlags::PSH | TcpFlags::ACK,
            _ => TcpFlags::ACK,
        };
        let mac = if rng.random_bool(0.02) { [2, 0, 0, 0, 0, 77] } else { OWN_MAC };
        let mut frame = Frame::new(flow).macs(mac, [2, 0, 0, 0, 0, 1]).tcp_flags(flags);
        frame = frame.payload(rng.random_range(0..60));
        let stamped = protocol == Protocol::Tcp && rng.random_bool(0.6);
        for _ in 0..[0, 0, 0, 0, 0, 1, 2, 3].choose(rng).copied().unwrap_or(0) {
            frame = frame.vlan(rng.random_range(1..4000));
        }
        let mut frame = frame.build();
        if stamped {
            let tables = &self.plane.oracle.tables;
            let table = tables.get(&service.number).expect("it is published");
            let known = Plane::connection(&self.plane.oracle, &flow).expect("it is in memory");
            let known = known.and_then(|known| known.former).map(Former::number);
            let echo = options::echo(rng, table, &flow, known);
            let value = rng.random();
            options::insert(&mut frame, &options::options(rng, value, echo));
        }
        match rng.random_range(0..40) {
            0 => frame.truncate(rng.random_range(14..frame.len())),
            1 => {
                let at = rng.random_range(12..frame.len().min(70));
                frame[at] = rng.random();
            }
            2 => {
                let at = rng.random_range(12..frame.len().min(70));
                frame[at] ^= 1 << rng.random_range(0..8);
            }
            3 => frame.extend(std::iter::repeat_n(0xee, rng.random_range(1..20))),
            _ => {}
        }
        frame
    }

    /// Whether all planes have the same to say of a frame: a switch looks at no fragments, no ICMP and no SCTP.
    pub fn is_common(&self, frame: &[u8]) -> bool {
        match parse(frame) {
            Ok(packet) => packet.flow.protocol != Protocol::Sctp,
            Err(rejected) => !matches!(
                rejected.reason,
                Reason::FirstFragment
                    | Reason::LaterFragment
                    | Reason::OtherProtocol
                    | Reason::TruncatedSctp
                    | Reason::BadSctpChunk
            ),
        }
    }

    /// What the plane in memory does with a frame.
    pub fn judge(&mut self, frame: &[u8]) -> Outcome {
        self.judge_and_write(&mut frame.to_vec())
    }

    /// The same, with what it writes into the frame but for the MAC addresses.
    pub fn judge_and_write(&mut self, frame: &mut Vec<u8>) -> Outcome {
        let verdict = self.plane.oracle.take(frame, None);
        self.told = match verdict {
            Verdict::Forward { echo, .. } => echo,
            _ => None,
        };
        self.know_less();
        let mut outcome = Outcome::from(verdict);
        // A flow that is pending, or pinned, at a backend that is gone: nobody knows how to get there.
        if let Verdict::Forward { backend, new, bytes, .. } = verdict
            && self.plane.oracle.backend(backend).is_none()
        {
            self.plane.oracle.counters.nowhere(backend, new, bytes);
            outcome = Outcome::Dropped(Reason::NoNextHop);
        }
        let name = match outcome {
            Outcome::Forwarded(_) => "forwarded".to_owned(),
            Outcome::Dropped(reason) => format!("dropped {reason:?}"),
            Outcome::Passed(reason) => format!("passed {reason:?}"),
            Outcome::Returned => "returned".to_owned(),
        };
        *self.outcomes.entry(name).or_default() += 1;
        outcome
    }

    /// The switch does not know at which backend a flow was before, nor which backends write no cookies.
    fn know_less(&mut self) {
        let memory = &mut self.plane.oracle.memory;
        memory.bare = 0;
        memory.echoes.clear();
        for (state, flow) in memory.connections.iter_mut() {
            let of = PLANS[state.service.index()].4;
            flow.former = flow.former.filter(|_| of == MethodId::CheetahStateful);
        }
    }

    /// A switch that ends loses what only packets have put there.
    pub fn lose_connections(&mut self) {
        let Soft { memory, tables, .. } = &mut self.plane.oracle;
        memory.connections.clear();
        memory.turns.clear();
        for (service, slots) in &mut memory.slots {
            if let Image::CheetahStateful(table) = &*tables[service] {
                *slots = table.body().0.method.connections().expect("it was made before");
            }
        }
    }

    /// Of all services together.
    pub fn slot_counts(&self) -> cheetah::SlotCounts {
        let mut sum = cheetah::SlotCounts::default();
        for service in &self.tables.services {
            let of = Plane::slot_counts(&self.plane.oracle, service.number).unwrap_or_default();
            (sum.used, sum.slots, sum.full) =
                (sum.used + of.used, sum.slots + of.slots, sum.full + of.full);
            (sum.stale, sum.foreign) = (sum.stale + of.stale, sum.foreign + of.foreign);
        }
        sum
    }

    /// Time passes.
    pub fn wait(&mut self) {
        let seconds = self.plane.oracle.clock() + self.rng.random_range(1..20);
        self.plane.p4.set_clock(seconds);
        self.plane.oracle.set_clock(seconds);
    }

    /// Packets that the switch has decided.
    pub fn begun(&mut self) -> u64 {
        self.plane.p4.target().read(&[(Register::Ended, 0)]).expect("the switch is there")[0]
    }

    /// Waits until the switch has decided so many more packets.
    pub fn wait_for(&mut self, packets: u64) {
        self.sent += packets;
        let end = Instant::now() + Duration::from_secs(20);
        while self.begun() < self.sent {
            assert!(Instant::now() < end, "{} of {} packets", self.begun(), self.sent);
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// The two outcomes mean the same.
    pub fn same(one: Outcome, other: Outcome) -> bool {
        let refused = [Reason::Untold, Reason::TooBig, Reason::TtlExceeded];
        match (one, other) {
            (Outcome::Dropped(one), Outcome::Dropped(other)) => {
                one == other || refused.contains(&one) && refused.contains(&other)
            }
            (one, other) => one == other,
        }
    }

    /// Counters, marks, tags and what is pending: all as the plane in memory has it.
    pub fn compare_memory(&mut self) {
        update::Plane::pending(&self.plane).expect("both say the same");
        let known: Vec<u64> = self.hashes();
        let found = self.plane.p4.are_marked(&known).expect("they can be read");
        let wanted = Plane::are_marked(&self.plane.oracle, &known).expect("it is in memory");
        assert_eq!(found, wanted, "marks");
        let mut lanes = self.plane.p4.lanes().expect("they can be read");
        let wanted = Plane::lanes(&self.plane.oracle).expect("it is in memory");
        lanes.resize(wanted.len(), Default::default());
        assert_eq!(lanes, wanted, "counters of backends");
        for Service { number, .. } in &self.tables.services {
            let found = self.plane.p4.slot_counts(*number);
            assert_eq!(found, Plane::slot_counts(&self.plane.oracle, *number), "slots");
        }
        let refused = |outcomes: weir_plane::Outcomes| {
            let mut merged = BTreeMap::<String, (u64, u64)>::new();
            for (reason, (passed, dropped)) in outcomes {
                let refusals = [Reason::Untold, Reason::TooBig, Reason::TtlExceeded];
                let refused = refusals.contains(&reason);
                let name = if refused { "refused".to_owned() } else { format!("{reason:?}") };
                let sum = merged.entry(name).or_default();
                *sum = (sum.0 + passed, sum.1 + dropped);
            }
            merged
        };
        let found = refused(self.plane.p4.outcomes().expect("they can be read"));
        let wanted = refused(self.plane.oracle.outcomes().expect("it is in memory"));
        assert_eq!(found, wanted, "outcomes");
    }

    /// Hashes of all flows that frames may be of.
    pub fn hashes(&self) -> Vec<u64> {
        use weir_hash::Key;
        let mut hashes = Vec::new();
        for service in &self.tables.services {
            let Some(table) = self.plane.oracle.tables.get(&service.number) else { continue };
            for client in 0..24u8 {
                let src: IpAddr = match parse_v4(&service.vip.address) {
                    true => [10, 1, 0, client].into(),
                    false => (0xfd01_u128 << 112 | u128::from(client)).to_be_bytes().into(),
                };
                for port in 0..8 {
                    let dst_port = service.vip.port.unwrap_or(1000);
                    let address = map_address(src);
                    let key = StateKey { address, src_port: 4000 + port, dst_port };
                    let client = StateKey { address, src_port: 0, dst_port: 0 };
                    hashes.extend([key, client].map(|key| key.hash(&table.header().key)));
                }
            }
        }
        hashes
    }

    /// Lanes for half of the flows.
    pub fn turn_marks(&mut self) {
        let hashes = self.hashes();
        let known: Vec<u64> = hashes.into_iter().step_by(2).collect();
        let flows = known.len();
        self.plane.p4.flip_marks(&mut known.iter().copied(), flows).expect("they can be written");
        Plane::flip_marks(&mut self.plane.oracle, &mut known.iter().copied(), flows)
            .expect("it is in memory");
    }

    pub fn next_generation(&mut self) {
        self.plane.p4.next_seen_generation();
        self.plane.oracle.next_seen_generation();
    }
}

fn parse_v4(address: &[u8; 16]) -> bool {
    address[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]
}
