//! The ways that a packet can take through the program, each with frames that take it.

use super::machine::Code;
use crate::error::Error;
use crate::run::{Verdict, run_frame};
use crate::{BackendEntry, KernelPlane, Limits, Reports};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use weir_hash::{HashKey, Key};
use weir_plane::forward::{Encapsulation, Translation, Tunnel};
use weir_plane::{
    FlowCaps, IdRoutes, Listen, Prefix, Rate, SourceRate, SourceTable, Sources, Translated,
    Translations, VipKey,
};
use weir_steering::cheetah::{ANSWERS, PARTITIONS, servers};
use weir_steering::{
    BackendId, Codec, Concury, ConcuryConfig, Flags, Image, Member, MethodId, Role, SLOT_RESERVED,
    ServiceConfig, ServiceId, ServiceState, Settings, StateKey, TrackedBuilder,
};
use weir_wire::craft::Frame;
use weir_wire::quic::{Id, QuicLb, QuicLbConfigs};
use weir_wire::{FlowKey, Protocol, TcpFlags, map_address, unmap_address};

/// Runs of each path: one in the kernel, one that is counted.
const RUNS: u32 = 2;

const BACKENDS: u16 = 64;
/// The one that drains.
const DRAINING: u16 = BACKENDS - 1;
const STATES: u32 = 1000;
/// Of residue.
const EXCEPTIONS: u32 = 100;

/// A data plane with a service for each case.
pub(super) struct World {
    pub plane: KernelPlane,
    pub code: Code,
    reports: Reports,
    /// Flows whose first packets are placed again, since their Dcode is reserved.
    placed_again: Vec<FlowKey>,
    seen_keys: Vec<(ServiceId, HashKey)>,
    /// Of both forms of Cheetah, what hides where the flow [`COOKIED`] lives.
    cookies: [u16; 2],
}

/// What stands beside services that use no feature, whose packets are to pay nothing for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Beside {
    /// Services with each feature, as the paths need that are not plain.
    All,
    Nothing,
    /// Nothing; but they had each feature themselves.
    Former,
    /// A service of a prefix and a range of ports, and answers that are translated.
    Unusual,
}

/// What a packet meets.
pub(super) struct Path {
    /// In a few words.
    pub name: &'static str,
    pub verdict: Verdict,
    frame: fn(&World, u32) -> Vec<u8>,
    /// Makes the packet a first one again.
    before: fn(&World, u32) -> Result<(), Error>,
}

impl Path {
    /// Whether it is a packet of a service that uses no feature, and whose table does not change.
    pub fn is_plain(&self) -> bool {
        let method = self.name.split(',').next().unwrap_or_default();
        MethodId::named(method).is_some()
            && !["update under way", "no backend"].iter().any(|words| self.name.contains(words))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Service {
    Concury,
    Concury6,
    ConcuryUdp,
    Tracked,
    Tracked6,
    TrackedUdp,
    /// A backend stands by.
    Jet,
    /// A hundred flows are exceptions.
    Residue,
    /// Backends write the cookies. (A service whose answers pass here would have the program look for
    /// them in all that is for no service, which other paths are.)
    Cheetah,
    CheetahStateful,
    /// No table was published.
    Bare,
    /// An update is under way.
    Updating,
    /// Its pool is empty.
    Empty,
    /// Packets are led by QUIC ids, which are plain; in three passes of AES; in one.
    Plain,
    ThreePasses,
    OnePass,
    /// Some sources are denied.
    Listed,
    Listed6,
    /// Any number of new flows is taken, but as if it were not; and none any more.
    Capped,
    Spent,
    /// Backends are behind tunnels, or get other addresses.
    Ipip,
    Ipip6,
    Gue,
    Gre,
    Nat,
}

use Service::*;

impl Service {
    const ALL: [Self; 25] = [
        Concury,
        Concury6,
        ConcuryUdp,
        Tracked,
        Tracked6,
        TrackedUdp,
        Jet,
        Residue,
        Cheetah,
        CheetahStateful,
        Bare,
        Updating,
        Empty,
        Plain,
        ThreePasses,
        OnePass,
        Listed,
        Listed6,
        Capped,
        Spent,
        Ipip,
        Ipip6,
        Gue,
        Gre,
        Nat,
    ];

    /// Whether it uses no feature, and its table does not change.
    fn is_plain(self) -> bool {
        matches!(
            self,
            Concury
                | Concury6
                | ConcuryUdp
                | Tracked
                | Tracked6
                | TrackedUdp
                | Jet
                | Residue
                | Cheetah
                | CheetahStateful
        )
    }

    /// The backend of its own that it has, if its packets do not go as they are.
    fn beyond(self) -> Option<(BackendId, BackendEntry)> {
        let number = BackendId::of(BACKENDS + self as u16);
        let far: IpAddr = if self == Ipip6 {
            [0x2001, 0xdb8, 9, 0, 0, 0, 0, 1].into()
        } else {
            [203, 0, 113, 7].into()
        };
        let source: IpAddr = if self == Ipip6 {
            [0x2001, 0xdb8, 8, 0, 0, 0, 0, 1].into()
        } else {
            [192, 0, 2, 250].into()
        };
        let entry = BackendEntry::new(far, 1);
        let entry = entry.with_next_hop([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], 0, true);
        let through =
            |encapsulation| Tunnel { encapsulation, source: Some(source), spread: 0, mtu: 0 };
        let entry = match self {
            Ipip | Ipip6 => entry.with_tunnel(&through(Encapsulation::Ipip)),
            Gue => entry.with_tunnel(&through(Encapsulation::Gue(6080))),
            Gre => entry.with_tunnel(&through(Encapsulation::Gre)),
            Nat => entry.with_translation(&Translation { port: Some(8080), mtu: 0, ports: None }),
            _ => return None,
        };
        Some((number, entry))
    }

    /// How many new flows are taken, if not any number: one in the time that a bucket has at most.
    fn caps(self) -> Option<FlowCaps> {
        let burst = match self {
            Capped => 8,
            Spent => 1,
            _ => return None,
        };
        let rate = Rate::every(1 << 60, burst);
        let source = SourceRate { rate, ipv4_bits: 24, ipv6_bits: 56 };
        let key = HashKey::from_seed(3);
        Some(FlowCaps { all: Some(rate), source: Some(source), held: None, key })
    }

    /// The sources that are taken, if not all are: other networks are denied, and one of the clients.
    fn sources(self) -> Option<SourceTable> {
        if !matches!(self, Listed | Listed6) {
            return None;
        }
        let other =
            |n: u32| [Ipv4Addr::from(n << 22).into(), Ipv6Addr::from(u128::from(n) << 110).into()];
        let others = (1..1024).flat_map(other);
        let near = [Self::Listed, Self::Listed6].map(|service| service.flow(DENIED).src);
        let near = near.map(|source| unmap_address(&source));
        let all = others
            .map(|address: IpAddr| (address, 20))
            .filter(|(address, _)| !matches!(address, IpAddr::V4(v4) if v4.octets()[0] == 10));
        let all =
            all.chain(near.map(|address| (address, if address.is_ipv4() { 32 } else { 128 })));
        let rules =
            all.filter_map(|(address, length)| Some((Prefix::new(address, length)?, false)));
        Some(Sources::new(rules).expect("all deny").table())
    }

    /// How its packets are led by ids, if they are.
    fn led(self) -> Option<QuicLb> {
        let (nonce, key) = match self {
            Plain => (8, None),
            ThreePasses => (8, Some([7; 16])),
            OnePass => (12, Some([7; 16])),
            _ => return None,
        };
        Some(QuicLb::new(0, SERVER.len(), nonce, key).expect("lengths as they may be"))
    }

    /// Where ids lead, if they do.
    fn routes(self) -> Option<IdRoutes> {
        let mut configs = QuicLbConfigs::default();
        configs.set(self.led()?);
        let mut routes = IdRoutes::new(configs);
        routes.lead(0, Id::new(&SERVER).expect("it is short"), BackendId::of(3));
        Some(routes)
    }

    /// A packet with an id of the one server.
    fn with_id(self, n: u32) -> Vec<u8> {
        let config = self.led().expect("it is led by ids");
        let mut nonce = vec![0; config.nonce_length()];
        nonce[..4].copy_from_slice(&n.to_le_bytes());
        let id = config.encode(&SERVER, &nonce, 0).expect("its lengths");
        let mut frame = Frame::new(self.flow(1)).payload(40).build();
        let at = frame.len() - 40;
        frame[at] = 0x40;
        frame[at + 1..][..id.as_bytes().len()].copy_from_slice(id.as_bytes());
        frame
    }

    fn number(self) -> ServiceId {
        ServiceId(self as u32)
    }

    fn protocol(self) -> Protocol {
        if self.led().is_some() || matches!(self, ConcuryUdp | TrackedUdp) {
            Protocol::Udp
        } else {
            Protocol::Tcp
        }
    }

    fn address(self) -> SocketAddr {
        let number = self.number().0 as u8 + 1;
        if matches!(self, Concury6 | Tracked6 | Listed6) {
            ([0x2001, 0xdb8, 0, 0, 0, 0, 0, number.into()], 80).into()
        } else {
            ([198, 51, 100, number], 80).into()
        }
    }

    fn vip(self) -> VipKey {
        let address = self.address();
        VipKey {
            address: map_address(address.ip()),
            protocol: self.protocol(),
            port: Some(address.port()),
        }
    }

    /// Flow `n`, of an address and a port of its own.
    fn flow(self, n: u32) -> FlowKey {
        let [_, a, b, c] = n.to_be_bytes();
        let source: SocketAddr = if self.address().is_ipv6() {
            ([0x2001, 0xdb8, 1, 0, 0, 0, a.into(), u16::from_be_bytes([b, c])], 1024).into()
        } else {
            ([10, a, b, c], 1024).into()
        };
        FlowKey::new(source, self.address(), self.protocol())
    }

    fn table(self) -> Option<Image> {
        let members: Vec<Member> = (0..BACKENDS)
            .map(|backend| Member {
                backend: BackendId::of(backend),
                name: format!("b{backend}"),
                weight: 1,
                role: if backend == DRAINING { Role::Draining } else { Role::Serving },
            })
            .collect();
        match self {
            Bare => None,
            Tracked | Tracked6 | TrackedUdp | Plain | ThreePasses | OnePass => {
                let builder = TrackedBuilder::new(HashKey::from_seed(2), 65_537, false);
                Some(builder.build(1, &members).expect("65,537 is prime and large enough"))
            }
            Jet => Some(built(MethodId::Jet, &members, 0)),
            Residue => Some(built(MethodId::Residue, &members, EXCEPTIONS)),
            Cheetah => Some(built(MethodId::Cheetah, &members, 0)),
            CheetahStateful => Some(built(MethodId::CheetahStateful, &members, 0)),
            Empty => Some(concury(self, &[], 0)),
            Ipip | Ipip6 | Gue | Gre | Nat => {
                let (backend, _) = self.beyond()?;
                let (name, weight, role) = ("far".to_owned(), 1, Role::Serving);
                Some(concury(self, &[Member { backend, name, weight, role }], 0))
            }
            _ => Some(concury(self, &members, STATES)),
        }
    }
}

fn concury(service: Service, members: &[Member], states: u32) -> Image {
    let mut concury = self::Concury::new(ConcuryConfig {
        codec: Codec::Othello,
        bits: 12,
        client_affinity: false,
        udp: service.protocol() == Protocol::Udp,
        mark: service.protocol() == Protocol::Tcp,
        capacity: STATES as usize,
        max_states: usize::MAX,
        idle_seconds: u32::MAX,
        seed: 1,
    });
    for n in 0..states {
        let key = StateKey::of_flow(&service.flow(n));
        concury.start(key, BackendId::of(backend_of(n)), 0).expect("keys are different");
    }
    let (image, _) = concury.build(1, members, 1000).expect("64 backends fit");
    (*image).clone()
}

/// A table of a method that gets by with few states: these first flows of the service live with the backend
/// that drains, where no row leads.
fn built(method: MethodId, members: &[Member], exceptions: u32) -> Image {
    let mut settings = Settings::of(method);
    if matches!(method, MethodId::Cheetah | MethodId::CheetahStateful) {
        settings.set_word(ANSWERS, "backend").expect("it is one of the words");
    }
    if method == MethodId::CheetahStateful {
        settings.set(PARTITIONS, 1).expect("it is the least");
    }
    let config = ServiceConfig {
        settings,
        client_affinity: false,
        udp: false,
        seed: 1,
        nonce: 1,
        capacity: STATES as usize,
        max_states: usize::MAX,
        idle_seconds: u32::MAX,
    };
    let mut builder = method.info().builder.expect("it is published")(&config, None);
    for n in 0..exceptions {
        let backend = BackendId::new(DRAINING).expect("a backend's number");
        let key = StateKey::of_flow(&Residue.flow(n));
        builder.start(key, backend, 0).expect("keys are different");
    }
    (*builder.build(1, members, 0).expect("64 backends fit").table).clone()
}

/// A flow of the service with the method `jet` whose row asks the connection table, or does not.
fn of_row(asks: bool, fresh: u32) -> FlowKey {
    let Some(Image::Jet(table)) = Jet.table() else { unreachable!("it is jet's") };
    let mut flows = (fresh..).map(|n| Jet.flow(n));
    let is_wanted = |flow: &FlowKey| {
        let row = table.body().row(StateKey::of_flow(flow).hash(&table.header().key));
        (table.body().owners()[row as usize] & SLOT_RESERVED != 0) == asks
    };
    flows.find(is_wanted).expect("there are both")
}

/// A flow of the service with the method `residue` that is no exception, on a row that has some.
fn beside_exceptions() -> FlowKey {
    let Some(Image::Residue(table)) = Residue.table() else { unreachable!("it is residue's") };
    let mut flows = (fresh(0)..).map(|n| Residue.flow(n));
    let is_wanted = |flow: &FlowKey| {
        let hash = StateKey::of_flow(flow).hash(&table.header().key);
        let row = table.body().rows()[table.body().row(hash) as usize];
        row & SLOT_RESERVED != 0 && !table.body().route(hash).1
    };
    flows.find(is_wanted).expect("there are such rows")
}

/// A flow that has a cookie.
const COOKIED: u32 = 1;

/// The cookie that hides the server of that flow.
fn cookie() -> u16 {
    let Some(Image::Cheetah(table)) = Cheetah.table() else { unreachable!("it is cheetah's") };
    let key = StateKey::of_flow(&Cheetah.flow(COOKIED));
    let cookies = &table.body().0;
    let hidden = cookies.method.cookie(&cookies.servers, &key, backend_of(COOKIED));
    hidden.expect("it is a server of the service")
}

/// Takes a slot for that flow: the cookie that hides its place.
fn slot_cookie(plane: &mut KernelPlane) -> Result<u16, Error> {
    let table = CheetahStateful.table().expect("it has one");
    let hash = StateKey::of_flow(&CheetahStateful.flow(COOKIED)).hash(&table.header().key);
    let backend = backend_of(COOKIED);
    let number = servers(&table).and_then(|servers| servers.number(backend));
    let number = number.expect("it is a server of the service");
    let parts =
        plane.fill_slots(CheetahStateful.number(), &mut [(hash, backend, number)].into_iter())?;
    Ok(parts[0])
}

/// Where the states are.
fn backend_of(n: u32) -> u16 {
    (n % u32::from(BACKENDS)) as u16
}

/// The id of the server that QUIC ids name.
const SERVER: [u8; 4] = [9, 8, 7, 6];

/// A flow whose source is denied; those of the sources beside it are not.
const DENIED: u32 = 0x80_0009;

/// A flow whose packets are noticed.
const WATCHED: u32 = 9;

/// A state of the backend that drains, whose Dcode is reserved.
const RESERVED: u32 = DRAINING as u32;

impl World {
    /// A data plane with this build of the program.
    pub fn new(object: Option<&[u8]>, beside: Beside) -> Result<Self, Error> {
        // Small, since the interpreter copies the pool of tables.
        let limits = Limits {
            table_bytes: 4 << 20,
            list_prefixes: 4096,
            slot_partitions: 1,
            ..Limits::default()
        };
        let (mut plane, _, code) = KernelPlane::open_inspected(object, None, &limits, Code::of)?;
        for backend in 0..BACKENDS {
            let entry = BackendEntry::new([192, 0, 2, 1].into(), 1);
            let entry = entry.with_next_hop([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], 0, true);
            plane.set_backend(BackendId::of(backend), &entry)?;
        }
        let mut seen_keys = Vec::new();
        let is_there = |service: &Service| beside == Beside::All || service.is_plain();
        for service in Service::ALL.into_iter().filter(is_there) {
            if let Some((number, entry)) = service.beyond() {
                plane.set_backend(number, &entry)?;
            }
            plane.set_service(service.vip(), service.number())?;
            if let Some(table) = service.table() {
                // Those with cookies have no marks.
                if !matches!(service, Cheetah | CheetahStateful) {
                    seen_keys.push((service.number(), table.header().key));
                }
                plane.publish(service.number(), &table)?;
            }
            if beside == Beside::Former {
                let like = if service.protocol() == Protocol::Udp { Plain } else { service };
                plane.set_sources(service.number(), Listed.sources().as_ref())?;
                plane.set_flow_caps(service.number(), Capped.caps().as_ref())?;
                plane.set_id_routes(service.number(), like.routes().as_ref())?;
                plane.set_id_routes(service.number(), None)?;
            }
            plane.set_sources(service.number(), service.sources().as_ref())?;
            plane.set_flow_caps(service.number(), service.caps().as_ref())?;
            if let Some(routes) = service.routes() {
                plane.set_id_routes(service.number(), Some(&routes))?;
            }
        }
        if beside == Beside::All {
            for flag in [Flags::RECORD, Flags::PENDING] {
                plane.set_flags(Updating.number(), flag, true);
            }
        }
        if beside == Beside::Unusual {
            // Of a service's address, too, at other ports.
            let near = (IpAddr::from([198, 51, 100, 0]), 24);
            plane.set_service(Listen::new(near, Protocol::Tcp, (8192, 6)), Concury.number())?;
            let from = VipKey { port: Some(8080), ..Nat.vip() };
            let to = Translated { service: Concury.vip(), limits: None };
            plane.set_translations(&Translations::from([(from, to)]))?;
        }
        // A flow whose first packet may be repeated is pinned where it lives.
        plane.pin(&[(state(Concury, RESERVED), BackendId::of(DRAINING))])?;
        // What is known is armed, as the control plane does.
        let known = seen_keys.iter().flat_map(|(number, key)| {
            let service = Service::ALL[number.index()];
            (0..STATES).map(move |n| StateKey::of_flow(&service.flow(n)).hash(key))
        });
        plane.flip_marks(&mut known.collect::<Vec<_>>().into_iter(), STATES as usize * 9)?;
        // Most flows rest.
        let key = seen_keys.iter().find(|(number, _)| *number == Concury.number());
        let key = key.expect("concury has a table").1;
        let watched = [WATCHED, fresh(0)].map(|n| StateKey::of_flow(&Concury.flow(n)).hash(&key));
        plane.watch(&mut watched.into_iter())?;
        let reports = plane.reports()?;
        let cookies = [cookie(), slot_cookie(&mut plane)?];
        let placed_again = Vec::new();
        let mut world = Self { plane, code, reports, placed_again, seen_keys, cookies };
        world.find_placed_again()?;
        // Every backend's next hop is known from here on.
        for n in 0..u32::from(BACKENDS) {
            run_frame(world.plane.program(), &later(Concury.flow(n)))?;
        }
        for service in Service::ALL.into_iter().filter(|service| service.beyond().is_some()) {
            run_frame(world.plane.program(), &later(service.flow(1)))?;
        }
        Ok(world)
    }

    /// Without an update under way only flows that are placed again are noted as pending.
    fn find_placed_again(&mut self) -> Result<(), Error> {
        let mut n = STATES;
        while (self.placed_again.len() as u32) < RUNS {
            let flow = Concury.flow(n);
            run_frame(self.plane.program(), &first(flow))?;
            let state = state(Concury, n);
            if self.plane.pending_backend(&state)?.is_some() {
                self.placed_again.push(flow);
                self.plane.forget_pending([&state])?;
            }
            n += 1;
        }
        self.drain()
    }

    /// A segment in the middle of the flow with a cookie, which it echoes; or another one.
    fn with_cookie(&self, service: Service, other: u16) -> Vec<u8> {
        let cookie = self.cookies[usize::from(matches!(service, CheetahStateful))] ^ other;
        let frame = Frame::new(service.flow(COOKIED)).tcp_flags(TcpFlags::ACK);
        frame.timestamps(7, u32::from(cookie) << 16 | 5).build()
    }

    /// Makes room in the ring.
    pub fn drain(&self) -> Result<(), Error> {
        self.reports.drain(|_| {})
    }

    /// The frame of a path's run, for which the data plane is made ready.
    pub fn frame(&self, path: &Path, run: u32) -> Result<Vec<u8>, Error> {
        (path.before)(self, run)?;
        Ok((path.frame)(self, run))
    }

    /// These flows have begun, and no others.
    fn spend(&self, flows: &[u32]) -> Result<(), Error> {
        self.plane.age_caps(u64::MAX)?;
        let sent = |n: &u32| run_frame(self.plane.program(), &first(Spent.flow(*n))).map(|_| ());
        flows.iter().try_for_each(sent)
    }

    fn forget_pending(&self, state: ServiceState) -> Result<(), Error> {
        self.plane.forget_pending([&state])
    }

    fn forget_seen(&self, service: Service, n: u32) -> Result<(), Error> {
        let keys = self.seen_keys.iter().filter(|(number, _)| *number == service.number());
        let hashes = keys.map(|(_, key)| StateKey::of_flow(&service.flow(n)).hash(key));
        self.plane.forget_seen(service.number(), &hashes.collect::<Vec<_>>())
    }
}

fn state(service: Service, n: u32) -> ServiceState {
    ServiceState { service: service.number(), key: StateKey::of_flow(&service.flow(n)) }
}

fn later(flow: FlowKey) -> Vec<u8> {
    Frame::new(flow).tcp_flags(TcpFlags::ACK).build()
}

fn first(flow: FlowKey) -> Vec<u8> {
    Frame::new(flow).tcp_flags(TcpFlags::SYN).build()
}

/// A SYN with timestamps.
fn stamped(flow: FlowKey) -> Vec<u8> {
    Frame::new(flow).tcp_flags(TcpFlags::SYN).timestamps(7, 0).build()
}

/// A flow that no table and no path before has seen.
fn fresh(run: u32) -> u32 {
    0x80_0000 + run
}

fn nothing(_: &World, _: u32) -> Result<(), Error> {
    Ok(())
}

macro_rules! paths {
    ($($name:literal => $verdict:ident, |$world:pat_param, $run:pat_param| $frame:expr
       $(, before |$w:ident, $r:ident| $before:expr)?;)*) => {
        /// Every path, the usual ones first.
        pub(super) fn all() -> Vec<Path> {
            vec![$({
                #[allow(unused_mut, unused_assignments)]
                let mut before: fn(&World, u32) -> Result<(), Error> = nothing;
                $(before = |$w: &World, $r: u32| $before;)?
                Path {
                    name: $name,
                    verdict: Verdict::$verdict,
                    frame: |$world: &World, $run: u32| $frame,
                    before,
                }
            }),*]
        }
    };
}

paths! {
    "concury, known flow, TCP over IPv4" => Transmit, |_, _| later(Concury.flow(1));
    "concury, known flow, TCP over IPv6" => Transmit, |_, _| later(Concury6.flow(1));
    "concury, known flow, in a VLAN" => Transmit,
        |_, _| Frame::new(Concury.flow(1)).tcp_flags(TcpFlags::ACK).vlan(7).build();
    "concury, watched flow, TCP over IPv4" => Transmit, |_, _| later(Concury.flow(WATCHED));
    "concury, watched flow that is not armed" => Transmit,
        |_, _| later(Concury.flow(fresh(0)));
    "concury, SYN" => Transmit, |_, run| first(Concury.flow(fresh(run)));
    "concury, SYN over IPv6" => Transmit, |_, run| first(Concury6.flow(fresh(run)));
    "concury, FIN" => Transmit,
        |_, _| Frame::new(Concury.flow(1)).tcp_flags(TcpFlags::FIN | TcpFlags::ACK).build();
    "concury, known flow, UDP" => Transmit, |_, _| later(ConcuryUdp.flow(1));
    "concury, first datagram" => Transmit, |_, _| later(ConcuryUdp.flow(2)),
        before |world, _run| world.forget_seen(ConcuryUdp, 2);
    "concury, update under way, flow not pending" => Transmit, |_, _| later(Updating.flow(1));
    "concury, update under way, flow pending" => Transmit, |_, _| later(Updating.flow(fresh(0))),
        before |world, _run| {
            run_frame(world.plane.program(), &first(Updating.flow(fresh(0)))).map(|_| ())
        };
    "concury, update under way, SYN" => Transmit, |_, run| first(Updating.flow(fresh(run))),
        before |world, run| world.forget_pending(state(Updating, fresh(run)));
    "concury, update under way, SYN repeated" => Transmit,
        |_, _| first(Updating.flow(fresh(0))),
        before |world, _run| {
            run_frame(world.plane.program(), &first(Updating.flow(fresh(0)))).map(|_| ())
        };
    "concury, reserved Dcode, known flow" => Transmit, |_, _| later(Concury.flow(RESERVED));
    "concury, reserved Dcode, SYN pinned" => Transmit, |_, _| first(Concury.flow(RESERVED));
    "concury, reserved Dcode, SYN placed again" => Transmit,
        |world, run| first(world.placed_again[run as usize % world.placed_again.len()]),
        before |world, run| {
            let flow = &world.placed_again[run as usize % world.placed_again.len()];
            let key = StateKey::of_flow(flow);
            world.forget_pending(ServiceState { service: Concury.number(), key })
        };
    "concury, reserved Dcode, SYN of a live flow" => Transmit,
        |_, _| first(Concury.flow(RESERVED + u32::from(BACKENDS)));
    "concury, no backend" => Drop, |_, _| first(Empty.flow(1));
    "tracked, known flow, TCP over IPv4" => Transmit, |_, _| later(Tracked.flow(1));
    "tracked, known flow, TCP over IPv6" => Transmit, |_, _| later(Tracked6.flow(1));
    "tracked, known flow, SYN" => Transmit, |_, _| first(Tracked.flow(1));
    "tracked, known flow, UDP" => Transmit, |_, _| later(TrackedUdp.flow(1));
    "tracked, new flow, TCP over IPv4" => Transmit, |_, run| first(Tracked.flow(fresh(run)));
    "tracked, new flow, TCP over IPv6" => Transmit, |_, run| first(Tracked6.flow(fresh(run)));
    "tracked, new flow, UDP" => Transmit, |_, run| later(TrackedUdp.flow(fresh(run)));
    "jet, clean row" => Transmit, |_, _| later(of_row(false, 0));
    "jet, clean row, SYN" => Transmit, |_, run| first(of_row(false, fresh(run)));
    "jet, row that asks, tracked flow" => Transmit, |_, _| later(of_row(true, 0)),
        before |world, _run| {
            run_frame(world.plane.program(), &first(of_row(true, 0))).map(|_| ())
        };
    "jet, row that asks, new flow" => Transmit, |_, run| first(of_row(true, fresh(run * 1000)));
    "residue, row without exceptions" => Transmit, |_, _| later(Residue.flow(fresh(0)));
    "residue, row with exceptions, other flow" => Transmit, |_, _| later(beside_exceptions());
    "residue, exception" => Transmit, |_, _| later(Residue.flow(1));
    "residue, SYN" => Transmit, |_, run| first(Residue.flow(fresh(run)));
    "cheetah, cookie" => Transmit, |world, _| world.with_cookie(Cheetah, 0);
    "cheetah, cookie of no server" => Transmit, |world, _| world.with_cookie(Cheetah, 1 << 14);
    "cheetah, SYN" => Transmit, |_, run| stamped(Cheetah.flow(fresh(run)));
    "cheetah, SYN repeated" => Transmit, |_, _| stamped(Cheetah.flow(2)),
        before |world, _run| {
            run_frame(world.plane.program(), &stamped(Cheetah.flow(2))).map(|_| ())
        };
    "cheetah, known flow without timestamps" => Transmit, |_, _| later(Cheetah.flow(3)),
        before |world, _run| {
            run_frame(world.plane.program(), &first(Cheetah.flow(3))).map(|_| ())
        };
    "cheetah-stateful, cookie" => Transmit, |world, _| world.with_cookie(CheetahStateful, 0);
    "cheetah-stateful, cookie of no slot" => Transmit,
        |world, _| world.with_cookie(CheetahStateful, 1 << 14);
    "cheetah-stateful, SYN" => Transmit, |_, run| stamped(CheetahStateful.flow(fresh(run)));
    "cheetah-stateful, SYN repeated" => Transmit, |_, _| stamped(CheetahStateful.flow(2)),
        before |world, _run| {
            run_frame(world.plane.program(), &stamped(CheetahStateful.flow(2))).map(|_| ())
        };
    "cheetah-stateful, known flow without timestamps" => Transmit,
        |_, _| later(CheetahStateful.flow(3)),
        before |world, _run| {
            run_frame(world.plane.program(), &first(CheetahStateful.flow(3))).map(|_| ())
        };
    "QUIC, plain id, remembered" => Transmit, |_, _| Plain.with_id(1),
        before |world, _run| run_frame(world.plane.program(), &Plain.with_id(1)).map(|_| ());
    "QUIC, plain id, decoded" => Transmit, |_, run| Plain.with_id(fresh(run));
    "QUIC, id in three passes of AES, remembered" => Transmit, |_, _| ThreePasses.with_id(1),
        before |world, _run| run_frame(world.plane.program(), &ThreePasses.with_id(1)).map(|_| ());
    "QUIC, id in three passes of AES, decoded" => Transmit, |_, run| ThreePasses.with_id(fresh(run));
    "QUIC, id in one pass of AES, remembered" => Transmit, |_, _| OnePass.with_id(1),
        before |world, _run| run_frame(world.plane.program(), &OnePass.with_id(1)).map(|_| ());
    "QUIC, id in one pass of AES, decoded" => Transmit, |_, run| OnePass.with_id(fresh(run));
    "listed, source far from others, IPv4" => Transmit, |_, _| later(Listed.flow(1));
    "listed, source far from others, IPv6" => Transmit, |_, _| later(Listed6.flow(1));
    "listed, source beside a denied one, IPv4" => Transmit, |_, _| later(Listed.flow(DENIED + 1));
    "listed, source beside a denied one, IPv6" => Transmit, |_, _| later(Listed6.flow(DENIED + 1));
    "listed, source denied, IPv4" => Drop, |_, _| later(Listed.flow(DENIED));
    "listed, source denied, IPv6" => Drop, |_, _| later(Listed6.flow(DENIED));
    "capped, known flow, TCP over IPv4" => Transmit, |_, _| later(Capped.flow(1));
    "capped, SYN" => Transmit, |_, run| first(Capped.flow(fresh(run))),
        before |world, _run| world.plane.age_caps(u64::MAX);
    "capped, SYN beyond the service's cap" => Drop, |_, _| first(Spent.flow(fresh(1 << 8))),
        before |world, _run| world.spend(&[fresh(0)]);
    "capped, SYN beyond its prefix's cap" => Drop, |_, _| first(Spent.flow(fresh(0))),
        before |world, _run| world.spend(&[fresh(0)]);
    "ipip, TCP over IPv4 in IPv4" => Transmit, |_, _| later(Ipip.flow(1));
    "ipip, TCP over IPv4 in IPv6" => Transmit, |_, _| later(Ipip6.flow(1));
    "gue, TCP over IPv4 in IPv4" => Transmit, |_, _| later(Gue.flow(1));
    "gre, TCP over IPv4 in IPv4" => Transmit, |_, _| later(Gre.flow(1));
    "nat, TCP over IPv4" => Transmit, |_, _| later(Nat.flow(1));
    "no service, TCP" => Pass, |_, _| later(elsewhere(Concury.flow(1)));
    "no service, UDP over IPv6" => Pass,
        |_, _| later(FlowKey { protocol: Protocol::Udp, ..elsewhere(Concury6.flow(1)) });
    "service without a table" => Drop, |_, _| first(Bare.flow(1));
    "first fragment for a service" => Transmit, |_, _| {
        let mut frame = later(Concury.flow(1));
        frame[20] = 0x20;
        frame
    };
    "later fragment for a service" => Transmit, |_, _| {
        let mut frame = later(Concury.flow(1));
        frame[20..22].copy_from_slice(&[0, 9]);
        frame
    }, before |world, _run| {
        let mut frame = later(Concury.flow(1));
        frame[20] = 0x20;
        run_frame(world.plane.program(), &frame).map(|_| ())
    };
    "ARP" => Pass, |_, _| {
        let mut frame = later(Concury.flow(1));
        frame[12..14].copy_from_slice(&[8, 6]);
        frame
    };
}

/// A flow to an address of nobody's.
fn elsewhere(flow: FlowKey) -> FlowKey {
    let mut dst = flow.dst;
    dst[15] = 0xfe;
    FlowKey { dst, ..flow }
}
