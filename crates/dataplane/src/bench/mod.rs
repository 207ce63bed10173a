//! `weir bench xdp`: a generator in live-frames mode over a veth pair, in a network namespace that
//! belongs to the bench alone (the crate `bench` makes both).
//!
//! ```text
//! bench_generate -> gen0 ==veth== lb0: reflector | weir -> gen0: bench_sink
//! ```
//! All of it runs on one CPU, one after the other, so the times add up, and the difference to a
//! reflector that only swaps MAC addresses is what the balancer costs.

mod bounds;
mod clock;
mod quic;
mod tables;

pub use tables::{concury_table, partitions};

use crate::error::{Context, Error};
use crate::kernel::KernelPlane;
use crate::mapped::Mapped;
use crate::{BackendEntry, Interface, tunnel_number};
use clock::Clock;
use libbpf_rs::skel::SkelBuilder;
use std::collections::{BTreeSet, HashSet};
use std::io;
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use tables::{BACKENDS, STANDBY};
use weir_hash::HashKey;
use weir_plane::forward::{
    Encapsulation, MappingRules, MappingTicks, Origin, Ports, Translation, Tunnel,
};
use weir_plane::{Limits, Prefix, SourceTable, Sources, Translated, Translations, VipKey};
use weir_steering::{BackendId, Flags, ServiceId, Side};
use weir_wire::{FlowKey, Protocol, TcpFlags, map_address};

#[allow(missing_docs, clippy::all, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/bench.skel.rs"));
}

const PORT: u16 = 80;
const BATCH: u32 = 64;
/// Of each kind of QUIC ids; many more than a processor remembers.
const MOST_IDS: u32 = 1 << 18;
/// Bytes that the generator keeps for each.
const ID_BYTES: usize = 24;

/// A method of the kernel plane, with a service of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// `concury`.
    Concury,
    /// `tracked`.
    Tracked,
    /// `jet`: a tenth of its pool is the horizon.
    Jet,
    /// `residue`: 2.3 % of the flows are exceptions, in 7.7 % of the rows.
    Residue,
    /// `cheetah`, whose backends write their cookies.
    Cheetah,
    /// `cheetah-stateful`: each flow has its slot, and its packets the cookie that names it.
    CheetahStateful,
    /// `tracked` with QUIC ids that are not encrypted, which lead all packets.
    QuicPlain,
    /// The same ids, encrypted in three passes of AES.
    QuicThreePasses,
    /// Ids of 16 bytes, encrypted in one.
    QuicOnePass,
}

impl Method {
    /// Those that are led by QUIC ids; the first of them by plain ones.
    pub const QUIC: [Self; 3] = [Self::QuicPlain, Self::QuicThreePasses, Self::QuicOnePass];
    /// All methods but those of QUIC ids.
    pub const ALL: [Self; 6] = [
        Self::Concury,
        Self::Tracked,
        Self::Jet,
        Self::Residue,
        Self::Cheetah,
        Self::CheetahStateful,
    ];

    /// Name of the method, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Concury => "concury",
            Self::Tracked => "tracked",
            Self::Jet => "jet",
            Self::Residue => "residue",
            Self::Cheetah => "cheetah",
            Self::CheetahStateful => "cheetah-stateful",
            Self::QuicPlain => "quic, plain ids",
            Self::QuicThreePasses => "quic, ids in three passes",
            Self::QuicOnePass => "quic, ids in one pass",
        }
    }

    /// Whether the balancer observes the flows of such a service, by activity marks.
    pub fn has_marks(self) -> bool {
        matches!(self, Self::Concury | Self::Residue)
    }

    /// Whether its packets echo cookies.
    pub fn has_cookies(self) -> bool {
        matches!(self, Self::Cheetah | Self::CheetahStateful)
    }

    /// The number of its service.
    fn service(self) -> ServiceId {
        ServiceId(self as u32)
    }

    /// The address of its service; the port is 80.
    pub fn vip(self) -> Ipv4Addr {
        Ipv4Addr::new(198, 51, 100, 1 + self as u8)
    }
}

/// The program that frames are sent through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// A program that swaps MAC addresses and sends the frame back: the floor. Its frames are those of
    /// this method's service.
    Reflector(Method),
    /// The balancer.
    Balancer {
        /// The method of the service that the frames are for.
        method: Method,
        /// Whether the flows are marked as active. Methods without marks have none either way.
        marks: bool,
    },
    /// The balancer with concury, whose backends are behind tunnels.
    Tunnel(Encapsulation),
    /// The balancer with concury, which gives packets the addresses of their backends.
    Nat,
    /// The same with a source of the balancer's, which each flow has had before.
    FullNat,
    /// The balancer with concury and answers of backends under NAT, to so many clients at most.
    NatBack(u32),
    /// Frames in a tunnel, sent back as they come: the floor of the next one.
    InTunnel(Encapsulation),
    /// Frames in a tunnel, through the program that takes packets out and sends them back.
    Decapsulated(Encapsulation),
    /// The balancer with concury and clients of any network, all of which it takes.
    Scattered,
    /// The same with a list of [`LIST_PREFIXES`] prefixes that it does not take.
    Listed,
    /// A program that does what no program of this method could do without, and nothing else.
    Bound(Method),
}

impl Subject {
    /// The method of the service that its frames are for.
    pub fn method(self) -> Method {
        match self {
            Self::Reflector(method) | Self::Balancer { method, .. } | Self::Bound(method) => method,
            Self::Tunnel(_)
            | Self::Nat
            | Self::FullNat
            | Self::NatBack(_)
            | Self::InTunnel(_)
            | Self::Decapsulated(_)
            | Self::Scattered
            | Self::Listed => Method::Concury,
        }
    }
}

/// Packets to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stream {
    /// The method whose service they are for.
    pub method: Method,
    /// Number of packets that are made.
    pub packets: u32,
    /// Flows that they are drawn from.
    pub flows: u32,
    /// The seed of the draws; or, of packets that are not drawn, the first flow.
    pub seed: u64,
    /// Whether one flow comes after the other.
    pub in_order: bool,
    /// Flags of their TCP headers.
    pub flags: TcpFlags,
    /// Whether cookies are those that a running balancer tells: SYNs that come back from it have them, and
    /// all other packets echo what the SYN of their flow has told. No matter without cookies.
    pub running: bool,
}

impl Stream {
    /// Of each flow of these packets there is a cookie, from this entry on, where each has four flows'.
    fn first_cookie(&self, entries: u32) -> u32 {
        match (self.running, self.method) {
            (true, Method::Cheetah) => entries,
            (true, Method::CheetahStateful) => 2 * entries,
            _ => 0,
        }
    }

    fn learns(&self) -> bool {
        self.running && self.method.has_cookies() && self.flags == TcpFlags::SYN
    }

    /// What the generator writes into timestamps: nothing if there are none, the same for all, or cookies.
    fn stamps(&self) -> u32 {
        match (self.method, self.running) {
            _ if !self.method.has_cookies() => 0,
            _ if self.learns() => 1,
            (Method::Cheetah, false) => 1,
            _ => 2,
        }
    }
}

/// One measurement of one subject.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sample {
    /// Nanoseconds of the processor per packet, everything included.
    pub nanoseconds: f64,
    /// Share of the packets that came back, 0 to 1.
    pub returned: f64,
}

/// Memory of the tables under test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Bytes of concury's published table, whole, as the pool holds it.
    pub concury_bytes: usize,
    /// Bytes of it that are the DIP array and the header.
    pub concury_fixed_bytes: usize,
    /// Rows of residue's table.
    pub residue_rows: usize,
    /// Rows of jet's table.
    pub jet_rows: usize,
    /// Those of them that ask the connection table.
    pub jet_asks: usize,
}

/// Where the flows of a method are armed, and where they are watched.
struct Armed {
    method: Method,
    sides: [Side; 2],
}

/// The bench's programs, attached to the ends of a veth pair.
pub struct XdpBench<'a> {
    skel: skeleton::BenchSkel<'a>,
    plane: KernelPlane,
    /// The generator's end of the cable, and the balancer's.
    ends: [Interface; 2],
    /// Where the flows of the two methods with marks are armed.
    armed: [Armed; 2],
    /// How packets reach the backends just now.
    forward: Forward,
    /// Whether the frames are answers.
    back: bool,
    /// What the frames are in just now, if they come in a tunnel.
    tunnel: Option<Encapsulation>,
    /// What takes packets out of tunnels.
    decapsulation: Option<OwnedFd>,
    /// Factor of the sources that are of any network.
    scatter: u32,
    /// Flows that there are.
    flows: u32,
    /// The sources that are not taken, once they were asked for.
    list: Option<SourceTable>,
    /// QUIC ids of each kind.
    pub ids: u32,
    /// What the tables take.
    pub memory: Memory,
}

/// Source address and port of flow `n`, as `bench_generate` writes them.
fn flow(n: u32, vip: Ipv4Addr) -> FlowKey {
    let source = Ipv4Addr::from(0x0a00_0000 | (n & 0xff_ffff));
    let port = 1024 + (n >> 24) as u16;
    FlowKey::new((source, port).into(), (vip, PORT).into(), Protocol::Tcp)
}

/// Entries of the generator's cookies of so many flows.
fn cookie_entries(flows: u32) -> u32 {
    flows.div_ceil(4).max(1)
}

/// Storage for the programs of an [`XdpBench`].
pub type Storage = MaybeUninit<libbpf_rs::OpenObject>;

impl<'a> XdpBench<'a> {
    /// Loads tables for `flows` flows, all of them established. Generator and balancer are the ends
    /// of a veth pair in the namespace of the calling thread, which should stay on one CPU.
    ///
    /// # Errors
    /// Whatever the kernel refuses; this needs root.
    pub fn new(
        storage: &'a mut Storage,
        flows: u32,
        [generator, balancer]: [Interface; 2],
    ) -> Result<Self, Error> {
        let limits = Limits {
            // Room for all flows, those that jet tracks, and half as many again: an LRU map evicts
            // before it is full.
            tracked_flows: (flows + flows / 4 * 3).max(4096),
            marked_flows: flows.max(1 << 16),
            slot_partitions: tables::partitions(flows),
            table_bytes: (64 << 20) + u64::from(flows) * 5,
            translations: 1024,
            // No more connections than there are sources; the kernel makes no map for 16 million.
            mappings: flows.clamp(1024, u32::from(PORTS.addresses) * PORTS.ports),
            list_prefixes: LIST_PREFIXES,
            ..Limits::default()
        };
        let (mut plane, _) = KernelPlane::open(None, &limits)?;
        set_backends(&plane, [&generator, &balancer], Forward::Plain)?;
        let (memory, parts) = tables::publish(&mut plane, flows)?;
        let armed = arm(&plane, flows)?;
        let mut open = skeleton::BenchSkelBuilder::default()
            .open(storage)
            .context(|| "open the bench programs".into())?;
        let cookies = 3 * cookie_entries(flows);
        open.maps.cookies.set_max_entries(cookies).context(|| "size the cookies".into())?;
        let ids = flows.clamp(1, MOST_IDS);
        let entries = ids * Method::QUIC.len() as u32;
        open.maps.ids.set_max_entries(entries).context(|| "size the QUIC ids".into())?;
        let skel = bounds::load(open, &memory, flows, [generator.mac, balancer.mac])?;
        let mut memory_of = Mapped::new(&skel.maps.cookies, cookies as usize * 8)?;
        for (bytes, part) in memory_of.bytes_mut().chunks_exact_mut(2).zip(parts) {
            bytes.copy_from_slice(&part.to_ne_bytes());
        }
        let mut places = Mapped::new(&skel.maps.ids, entries as usize * ID_BYTES)?;
        let mut places = places.bytes_mut().chunks_exact_mut(ID_BYTES);
        for method in Method::QUIC {
            for (id, place) in quic::lead(&mut plane, method, ids)?.iter().zip(&mut places) {
                place[..id.as_bytes().len()].copy_from_slice(id.as_bytes());
            }
        }
        let bench = Self {
            skel,
            plane,
            ends: [generator, balancer],
            armed,
            forward: Forward::Plain,
            back: false,
            tunnel: None,
            decapsulation: None,
            scatter: 0,
            flows,
            list: None,
            ids,
            memory,
        };
        bench.sink(&bench.ends[0])?;
        Ok(bench)
    }

    /// Takes the frames that come back to another generator.
    ///
    /// # Errors
    /// Whatever the kernel refuses.
    pub fn sink(&self, generator: &Interface) -> Result<(), Error> {
        attach(self.skel.progs.bench_sink.as_fd(), generator.index)
    }

    /// What [`Subject::Decapsulated`] is: a program that takes packets out of tunnels to [`TUNNEL_END`],
    /// for the address of concury's service, and sends them back where they came from.
    pub fn set_decapsulation(&mut self, program: OwnedFd) {
        self.decapsulation = Some(program);
    }

    /// Puts the subject behind the veth and sends it `packets` packets of `flows` flows, drawn at
    /// random by `seed`.
    ///
    /// # Errors
    /// Whatever the kernel refuses.
    pub fn run(
        &mut self,
        subject: Subject,
        flows: u32,
        packets: u32,
        seed: u64,
    ) -> Result<Sample, Error> {
        let programs = &self.skel.progs;
        let program = match subject {
            Subject::Reflector(_) | Subject::InTunnel(_) => programs.bench_reflect.as_fd(),
            Subject::Decapsulated(_) => match &self.decapsulation {
                Some(program) => program.as_fd(),
                None => programs.bench_reflect.as_fd(),
            },
            Subject::Balancer { .. }
            | Subject::Tunnel(_)
            | Subject::Nat
            | Subject::FullNat
            | Subject::NatBack(_)
            | Subject::Scattered
            | Subject::Listed => self.plane.program(),
            Subject::Bound(Method::Concury) => programs.bound_concury.as_fd(),
            Subject::Bound(Method::Tracked) => programs.bound_tracked.as_fd(),
            Subject::Bound(Method::Jet) => programs.bound_jet.as_fd(),
            Subject::Bound(Method::Residue) => programs.bound_residue.as_fd(),
            Subject::Bound(Method::Cheetah) => programs.bound_cheetah.as_fd(),
            Subject::Bound(Method::CheetahStateful) => programs.bound_cheetah_stateful.as_fd(),
            // Those are compared with each other.
            Subject::Bound(Method::QuicPlain | Method::QuicThreePasses | Method::QuicOnePass) => {
                programs.bench_reflect.as_fd()
            }
        };
        attach(program, self.ends[1].index)?;
        let forward = match subject {
            Subject::Tunnel(encapsulation) => Forward::Tunnel(encapsulation),
            Subject::Nat | Subject::NatBack(_) => Forward::Nat,
            Subject::FullNat => Forward::FullNat,
            _ => Forward::Plain,
        };
        if forward != self.forward {
            let [generator, balancer] = &self.ends;
            set_backends(&self.plane, [generator, balancer], forward)?;
            let key = |address: Ipv4Addr, port| VipKey {
                address: map_address(address.into()),
                protocol: Protocol::Tcp,
                port: Some(port),
            };
            let mut translations = Translations::new();
            if forward == Forward::Nat {
                let service = key(Method::Concury.vip(), PORT);
                let to = Translated { service, limits: None };
                translations.insert(key(BACKEND, NAT_PORT), to);
            }
            if forward == Forward::FullNat {
                self.plane.set_mapping_rules(&mapping_rules())?;
            }
            self.plane.set_translations(&translations)?;
            self.forward = forward;
        }
        let flows = match subject {
            Subject::NatBack(clients) => flows.min(clients),
            _ => flows,
        };
        self.back = matches!(subject, Subject::NatBack(_));
        let most = self.flows;
        let list =
            (subject == Subject::Listed).then(|| self.list.get_or_insert_with(|| strangers(most)));
        self.plane.set_sources(Method::Concury.service(), list.as_deref())?;
        let scattered = matches!(subject, Subject::Scattered | Subject::Listed);
        self.scatter = if scattered { SCATTER } else { 0 };
        let of_marks = match subject {
            Subject::Balancer { method, marks } => Some((method, marks)),
            Subject::Tunnel(_)
            | Subject::Nat
            | Subject::FullNat
            | Subject::Scattered
            | Subject::Listed => Some((Method::Concury, true)),
            Subject::NatBack(_)
            | Subject::Reflector(_)
            | Subject::Bound(_)
            | Subject::InTunnel(_)
            | Subject::Decapsulated(_) => None,
        };
        self.tunnel = match subject {
            Subject::InTunnel(tunnel) | Subject::Decapsulated(tunnel) => Some(tunnel),
            _ => None,
        };
        if let Some((method, marks)) = of_marks
            && let Some(armed) = self.armed.iter().find(|armed| armed.method == method)
        {
            self.plane.set_flags(method.service(), Flags::MARK, marks);
            self.plane.mark_in(armed.sides);
        }
        let (method, flags) = (subject.method(), TcpFlags::ACK);
        let stream =
            Stream { method, packets, flows, seed, in_order: false, flags, running: false };
        let ends = self.ends.clone();
        self.send(&ends, &stream)
    }

    /// Sends packets through whatever is behind the second of two ends of a veth pair, and counts
    /// those that come back.
    ///
    /// # Errors
    /// Whatever the kernel refuses.
    pub fn send(&mut self, ends: &[Interface; 2], stream: &Stream) -> Result<Sample, Error> {
        let [generator, balancer] = ends;
        let data = self.skel.maps.bss_data.as_deref_mut().expect("the bench has .bss");
        data.settings.draws = stream.seed;
        data.settings.flows = stream.flows;
        data.settings.vip = u32::from(stream.method.vip()).to_be();
        data.settings.vip_port = PORT.to_be();
        data.settings.back = self.back.into();
        data.settings.scatter = self.scatter;
        if self.back {
            data.settings.vip = u32::from(BACKEND).to_be();
            data.settings.vip_port = NAT_PORT.to_be();
        }
        data.settings.tunnel = 0;
        if let Some(tunnel) = self.tunnel {
            data.settings.tunnel = tunnel_number(tunnel).into();
            data.settings.tunnel_source = u32::from(TUNNEL_SOURCE).to_be();
            data.settings.tunnel_end = u32::from(TUNNEL_END).to_be();
            data.settings.tunnel_port = match tunnel {
                Encapsulation::Fou(port) | Encapsulation::Gue(port) => port.to_be(),
                Encapsulation::Ipip | Encapsulation::Gre => 0,
            };
            data.settings.tunnel_check = outer_check(tunnel).to_be();
        }
        data.settings.stamps = stream.stamps();
        data.settings.first_cookie = stream.first_cookie(cookie_entries(self.flows));
        data.settings.learns = stream.learns().into();
        let kind = Method::QUIC.iter().position(|one| *one == stream.method);
        data.settings.ids = kind.map_or(0, |_| self.ids);
        data.settings.first_id = kind.unwrap_or(0) as u32 * self.ids;
        data.settings.egress = generator.index;
        data.settings.destination_mac = balancer.mac;
        data.settings.own_mac = generator.mac;
        data.settings.tcp_flags = stream.flags.0;
        data.settings.in_order = stream.in_order.into();
        let before = data.sunk;
        let clock = Clock::new();
        let started = clock.used()?;
        let bytes = if self.tunnel.is_some() { TUNNELLED } else { PLAIN };
        generate(self.skel.progs.bench_generate.as_fd(), stream.packets, bytes)?;
        let returned = self.await_frames(before, stream.packets.into());
        let elapsed = clock.used()? - started;
        Ok(Sample {
            nanoseconds: elapsed.as_nanos() as f64 / f64::from(stream.packets),
            returned: returned as f64 / f64::from(stream.packets),
        })
    }
}

impl XdpBench<'_> {
    /// How many frames have come back since there were `before`. Some may still be on their way when the
    /// generator ends, where the kernel has left them to a thread of its own: they are waited for as long
    /// as they come. Waiting takes no time of the processor's, which is what is measured.
    fn await_frames(&self, before: u64, sent: u64) -> u64 {
        let data = self.skel.maps.bss_data.as_deref().expect("the bench has .bss");
        // SAFETY: the word is in memory that is mapped as long as the skeleton lives; the kernel's program
        // writes it.
        let returned = || unsafe { (&raw const data.sunk).read_volatile() } - before;
        let (mut last, mut looks) = (returned(), 0);
        while last < sent && looks < 20 {
            std::thread::sleep(std::time::Duration::from_millis(1));
            let now = returned();
            looks = if now == last { looks + 1 } else { 0 };
            last = now;
        }
        last
    }
}

/// Prefixes of the list of sources, a third each hosts, networks of 16 and of 256.
pub const LIST_PREFIXES: u32 = 100_000;
/// Makes sources of any network of the numbers of flows; and of other numbers prefixes.
const SCATTER: u32 = 0x9e37_79b1;

/// A list that denies prefixes of any network, but for those of so many flows.
fn strangers(flows: u32) -> SourceTable {
    let lengths = [32u8, 28, 24];
    let known: [HashSet<u32>; 3] = lengths.map(|length| {
        let network = |n: u32| n.wrapping_mul(SCATTER) >> (32 - length);
        (0..flows).map(network).collect()
    });
    let mut draw = 1u64;
    let mut rules = BTreeSet::new();
    while rules.len() < LIST_PREFIXES as usize {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (address, kind) = ((draw >> 32) as u32, rules.len() % lengths.len());
        let length = lengths[kind];
        if !known[kind].contains(&(address >> (32 - length))) {
            rules.insert((address >> (32 - length) << (32 - length), length));
        }
    }
    let prefixes = rules.into_iter().filter_map(|(address, length)| {
        Some((Prefix::new(Ipv4Addr::from_bits(address).into(), length)?, false))
    });
    Sources::new(prefixes).expect("all deny").table()
}

/// How packets reach the backends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Forward {
    Plain,
    Tunnel(Encapsulation),
    Nat,
    FullNat,
}

/// The sources of full NAT: more than there are flows, as all backends have one address.
const PORTS: Ports = Ports { first: 0, addresses: 128, first_port: 1024, ports: 31_744 };

/// The address of all backends, and their port.
const BACKEND: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const NAT_PORT: u16 = 8080;

fn mapping_rules() -> MappingRules {
    let origin = |number: u16| {
        let address = Ipv4Addr::from(0x0ac8_0000 | u32::from(number)).into();
        let last_port = PORTS.first_port + (PORTS.ports - 1) as u16;
        Some(Origin { address, first_port: PORTS.first_port, last_port })
    };
    let origins = (0..PORTS.addresses).map(origin).collect();
    MappingRules { key: HashKey::from_seed(1), ticks: MappingTicks::default(), origins }
}

/// Puts all backends behind a tunnel, or none, where the balancer's frames go back to the generator.
fn set_backends(
    plane: &KernelPlane,
    [generator, balancer]: [&Interface; 2],
    forward: Forward,
) -> Result<(), Error> {
    for backend in 0..BACKENDS + STANDBY {
        let mut entry = BackendEntry::new(BACKEND.into(), 1);
        match forward {
            Forward::Plain => {}
            Forward::Tunnel(encapsulation) => {
                let source = Some(Ipv4Addr::new(192, 0, 2, 2).into());
                entry = entry.with_tunnel(&Tunnel { encapsulation, source, spread: 0, mtu: 1500 });
            }
            Forward::Nat | Forward::FullNat => {
                let ports = (forward == Forward::FullNat).then_some(PORTS);
                let port = Some(NAT_PORT);
                entry = entry.with_translation(&Translation { port, mtu: 1500, ports });
            }
        }
        let entry = entry.with_next_hop(generator.mac, balancer.mac, 0, true);
        plane.set_backend(BackendId::of(backend), &entry)?;
        plane.forget_hop(BackendId::of(backend))?;
    }
    Ok(())
}

/// Of so many busy flows one is watched at a time: they rest for 150 to 300 s, and are seen alive at the
/// control plane's next look, 10 s later.
const WATCHED_OF: usize = 24;

/// Arms the flows of each method with marks, as the control plane does, each in halves of their own: a
/// balancer has one service's flows to arm. Armed are those that were watched until then, too.
fn arm(plane: &KernelPlane, flows: u32) -> Result<[Armed; 2], Error> {
    let arm = |method| {
        let due =
            |one_of: usize| Ok::<_, Error>(tables::hashes(plane, method, flows)?.step_by(one_of));
        plane.flip_marks(&mut due(WATCHED_OF / 2)?, flows as usize / (WATCHED_OF / 2))?;
        plane.watch(&mut due(WATCHED_OF)?)?;
        Ok::<_, Error>(Armed { method, sides: plane.marked_in() })
    };
    Ok([arm(Method::Concury)?, arm(Method::Residue)?])
}

/// Where tunnels that are taken off begin, and where they end.
const TUNNEL_SOURCE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// Where tunnels that are taken off end.
pub const TUNNEL_END: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Room for a TCP header with timestamps, and for a QUIC packet with an id.
const PLAIN: usize = 72;
/// Room for a segment in GUE.
const TUNNELLED: usize = 86;

/// The sum of the outer header that the generator writes.
fn outer_check(tunnel: Encapsulation) -> u16 {
    let protocol = match tunnel {
        Encapsulation::Ipip => 4,
        Encapsulation::Gre => 47,
        Encapsulation::Fou(_) | Encapsulation::Gue(_) => 17,
    };
    let length = 20 + tunnel.header_bytes() as u32 + 40;
    let ends = [TUNNEL_SOURCE, TUNNEL_END].map(u32::from);
    let halves = ends.map(|end| (end >> 16) + (end & 0xffff));
    let mut sum = 0x4500 + length + 0x4000 + (64 << 8 | protocol) + halves[0] + halves[1];
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !sum as u16
}

/// `bytes`: of each frame.
fn generate(program: BorrowedFd<'_>, packets: u32, bytes: usize) -> Result<(), Error> {
    const BPF_F_TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;
    let frame = [0u8; TUNNELLED];
    let frame = &frame[..bytes];
    let mut options = libbpf_rs::libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_test_run_opts>() as _,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        repeat: packets as i32,
        flags: BPF_F_TEST_XDP_LIVE_FRAMES,
        batch_size: BATCH,
        ..Default::default()
    };
    // SAFETY: the input buffer outlives the call; there is no output buffer.
    let done =
        unsafe { libbpf_rs::libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) };
    if done < 0 { Err(io::Error::from_raw_os_error(-done)) } else { Ok(()) }
        .context(|| "generate frames (BPF_PROG_RUN, live frames)".into())
}

/// Attaches in native mode, in place of whatever is there.
fn attach(program: BorrowedFd<'_>, ifindex: u32) -> Result<(), Error> {
    const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
    // SAFETY: numbers and a null pointer for the options.
    let done = unsafe {
        libbpf_rs::libbpf_sys::bpf_xdp_attach(
            ifindex as i32,
            program.as_raw_fd(),
            XDP_FLAGS_DRV_MODE,
            std::ptr::null(),
        )
    };
    if done < 0 { Err(io::Error::from_raw_os_error(-done)) } else { Ok(()) }
        .context(|| format!("attach to interface {ifindex}"))
}
