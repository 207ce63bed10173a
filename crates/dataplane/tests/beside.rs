//! A plane in user space beside the program (`weir_plane_burst::beside`) against the one `decide` of each method:
//! the same random packets, through random histories of pools and updates, of every method that it has. What it
//! sends goes where the oracle sends it, and has no other byte in it; what it does not know it gives back as it
//! came.
//!
//! `WEIR_SEED=n` repeats a run.

#[allow(dead_code, reason = "the other differential test uses the rest")]
#[path = "differential/services.rs"]
mod services;
#[allow(dead_code, reason = "the other differential test uses the rest")]
#[path = "differential/twin.rs"]
mod twin;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use services::{Builder, Service, Tables};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use twin::Twin;
use weir_dataplane::user::{METHODS, UserMemory};
use weir_dataplane::{BackendEntry, KernelPlane, Limits, LivePlane, run_frame};
use weir_plane::{Backend, Soft, Verdict, VipKey};
use weir_plane_burst::beside::Beside;
use weir_plane_burst::ports::{BURST, Fate, Frame, HEADROOM};
use weir_steering::{
    BackendId, Driver, Flags, Member, MethodId, Role, ServiceConfig, ServiceId, Settings,
    SoftMemory,
};
use weir_testbed::in_own_namespace;
use weir_testbed::process::stay_on_cpu;
use weir_wire::craft;
use weir_wire::{FlowKey, Protocol, TcpFlags, map_address};

const BACKENDS: u16 = 256;
const PENDING: u32 = 4_096;
/// Bytes of a frame and what stands in front of it.
const ROOM: usize = 512;
/// Packets of each method that are to be decided beside the program, and those while packets ask for pending flows.
const SENT: u64 = 3_000;
const SENT_ASKING: u64 = 500;
/// Far more bursts than that takes.
const BURSTS: u32 = 100_000;

/// The pins, which go with the test.
struct Pins(PathBuf);

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = KernelPlane::unload(&self.0);
    }
}

struct World {
    plane: Twin,
    tables: Tables,
    methods: Vec<MethodId>,
    beside: Beside,
    memory: UserMemory,
    rng: ChaCha8Rng,
    next_backend: u16,
    area: Vec<u8>,
    /// Packets sent beside the program, by method, and whether packets asked for pending flows; and given back.
    sent: BTreeMap<(MethodId, bool), u64>,
    returned: u64,
    _pins: Pins,
}

fn mac(backend: BackendId) -> [u8; 6] {
    let [high, low] = backend.get().to_be_bytes();
    [2, 0, 0, 1, high, low]
}

fn builder(method: MethodId, client_affinity: bool, seed: u64) -> Builder {
    let mut settings = Settings::of(method);
    for setting in method.info().settings {
        if setting.words.is_empty() && (setting.range.0..=setting.range.1).contains(&251) {
            settings.set(setting.name, 251).expect("it is in range");
        }
    }
    let config = ServiceConfig {
        settings,
        client_affinity,
        udp: false,
        seed,
        nonce: 0,
        capacity: 16,
        max_states: 100_000,
        idle_seconds: 1_000_000,
    };
    Builder::Other(method.info().builder.expect("it is published")(&config, None))
}

impl World {
    fn new(seed: u64) -> Self {
        // The kernel's tables keep free entries for each CPU.
        stay_on_cpu(0).expect("there is one");
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let limits = Limits {
            services: 64,
            table_bytes: 4 << 20,
            backends: BACKENDS.into(),
            pending_flows: PENDING,
            unreported_flows: 65_536,
            tracked_flows: 65_536,
            answered_flows: 1,
            translations: 64,
            slot_partitions: 1,
            udp_flows: 128,
            event_ring_bytes: 1 << 20,
            marked_flows: 2 << 10,
            stranger_bits: 1 << 16,
            mappings: 1,
            list_prefixes: 1,
        };
        let pins =
            Pins(Path::new("/sys/fs/bpf").join(format!("weir-test-beside-{}", std::process::id())));
        let (mut kernel, _) = KernelPlane::open(Some(&pins.0), &limits).expect("load (needs root)");
        kernel.stand_in_front().expect("the program in front loads");
        let memory = UserMemory::open(&pins.0).expect("it is pinned");
        let mut oracle = Soft::new(SoftMemory::new(PENDING as usize, 1 << 10, 32));
        let (mut services, mut methods) = (Vec::new(), Vec::new());
        for method in METHODS {
            for (address, port, client) in [
                (format!("10.9.0.{}", method.number()), Some(80), false),
                (format!("fd09::{}", method.number()), Some(443), true),
                (format!("10.9.1.{}", method.number()), None, false),
            ] {
                let address = map_address(address.parse().expect("an address"));
                let vip = VipKey { address, protocol: Protocol::Tcp, port };
                let number = ServiceId(services.len() as u32);
                kernel.set_service(vip, number).expect("there is room");
                oracle.vips.insert(vip, number);
                methods.push(method);
                services.push(Service {
                    number,
                    vip,
                    client,
                    members: Vec::new(),
                    leaving: Vec::new(),
                    builder: builder(method, client, rng.random()),
                    driver: Driver::new(),
                    generation: 0,
                });
            }
        }
        let kernel = LivePlane::new(kernel).expect("it is the only consumer");
        let mut world = Self {
            plane: Twin::new(kernel, oracle, rng.random()),
            tables: Tables { services, now: 1_000 },
            methods,
            beside: Beside::default(),
            memory,
            rng,
            next_backend: 0,
            area: vec![0; BURST * ROOM],
            sent: BTreeMap::new(),
            returned: 0,
            _pins: pins,
        };
        for at in 0..world.tables.services.len() {
            (0..4).for_each(|_| world.add_backend(at));
            world.begin_update(at);
            while world.updates(at) {
                world.step_update(at);
            }
        }
        world
    }

    fn add_backend(&mut self, at: usize) {
        if self.next_backend == BACKENDS {
            return;
        }
        let backend = BackendId::of(self.next_backend);
        self.next_backend += 1;
        let (address, incarnation) = ([10, 9, 2, 1].into(), self.rng.random());
        let entry = BackendEntry::new(address, incarnation);
        let entry = entry.with_next_hop(mac(backend), [2, 0, 0, 0, 0, 9], 0, true);
        self.plane.kernel.set_backend(backend, &entry).expect("it has a number");
        let known = Backend {
            address,
            incarnation,
            up: true,
            resets: false,
            hop: None,
            tunnel: None,
            translation: None,
            segments: None,
        };
        self.plane.oracle.backends.insert(backend, known);
        self.plane.oracle.memory.incarnations.insert(backend, incarnation);
        let name = format!("b{backend}");
        let weight = self.rng.random_range(1..5);
        let members = &mut self.tables.services[at].members;
        members.push(Member { backend, name, weight, role: Role::Serving });
    }

    fn change_pool(&mut self, at: usize) {
        let members = &mut self.tables.services[at].members;
        let which = self.rng.random_range(0..members.len());
        match self.rng.random_range(0..4) {
            0 if members.len() < 12 => self.add_backend(at),
            1 => members[which].weight = self.rng.random_range(0..7),
            _ => {
                let role = &mut members[which].role;
                *role = match *role {
                    Role::Serving => Role::Draining,
                    Role::Draining => Role::Down,
                    Role::Down => Role::Serving,
                };
            }
        }
    }

    fn begin_update(&mut self, at: usize) {
        let service = &mut self.tables.services[at];
        service.driver.begin([service.number]);
    }

    fn updates(&self, at: usize) -> bool {
        !self.tables.services[at].driver.is_idle()
    }

    /// One action of a service's update.
    fn step_update(&mut self, at: usize) {
        let mut driver = std::mem::take(&mut self.tables.services[at].driver);
        driver.step(&mut self.plane, &mut self.tables);
        for outcome in driver.outcomes() {
            assert!(outcome.failure.is_none(), "{:?}", outcome.failure);
        }
        self.tables.services[at].driver = driver;
    }

    /// A packet to a service, mostly in the middle of a connection, of which there are few.
    fn packet(&mut self) -> (usize, FlowKey, TcpFlags) {
        let rng = &mut self.rng;
        let at = rng.random_range(0..self.tables.services.len());
        let vip = self.tables.services[at].vip;
        let client = rng.random_range(0..400u16);
        let source = match weir_wire::unmap_address(&vip.address).is_ipv4() {
            true => std::net::Ipv4Addr::from(0x0a10_0000 + u32::from(client / 4)).into(),
            false => std::net::Ipv6Addr::from((0xfd10 << 112) + u128::from(client / 4)).into(),
        };
        let source: std::net::IpAddr = source;
        let to = weir_wire::unmap_address(&vip.address);
        let port = vip.port.unwrap_or(8_000 + client % 3);
        let flow = FlowKey::new((source, 4_000 + client).into(), (to, port).into(), Protocol::Tcp);
        let flags = match rng.random_range(0..20) {
            0 | 1 => TcpFlags::SYN,
            2 => *[TcpFlags::FIN, TcpFlags::RST, TcpFlags(18)].choose(rng).expect("three"),
            3 => TcpFlags(TcpFlags::PSH.0 | TcpFlags::ACK.0),
            _ => TcpFlags::ACK,
        };
        (at, flow, flags)
    }

    /// A burst of packets, decided beside the program, and then by the oracle and the program, which remember
    /// what begins: first those that change nothing.
    fn compare_burst(&mut self) {
        let count = self.rng.random_range(1..=BURST);
        let mut packets = Vec::new();
        for place in 0..count {
            let (service, flow, flags) = self.packet();
            let payload = self.rng.random_range(0..200);
            let frame = craft::Frame::new(flow).tcp_flags(flags).payload(payload).build();
            let at = place * ROOM + HEADROOM;
            self.area[at..at + frame.len()].copy_from_slice(&frame);
            packets.push((service, flow, flags, frame));
        }
        let mut places: Vec<Frame> = packets
            .iter()
            .enumerate()
            .map(|(place, (.., frame))| Frame {
                at: (place * ROOM + HEADROOM) as u32,
                len: frame.len() as u32,
                ..Frame::default()
            })
            .collect();
        self.beside.process(&self.memory, &|_| true, &mut self.area, &mut places);
        let mut order: Vec<usize> = (0..count).collect();
        let is_middle = |flags: TcpFlags| flags.0 & 0b1_0111 == TcpFlags::ACK.0;
        order.sort_by_key(|at| !is_middle(packets[*at].2));
        for at in order {
            let (service, flow, flags, frame) = &packets[at];
            let asks = self.asks(*service);
            let wanted = self.plane.oracle.judge(frame);
            run_frame(self.plane.kernel.program(), frame).expect("it runs");
            let Frame { at, len, fate, .. } = places[at];
            let found = &self.area[at as usize..][..len as usize];
            let what = || format!("{} {flow} {flags:?}, pending {asks}", self.methods[*service]);
            match fate {
                Fate::Pass => {
                    assert_eq!(found, frame, "{}: given back as another one", what());
                    self.returned += 1;
                }
                Fate::Send => {
                    let Verdict::Forward { backend, .. } = wanted else {
                        panic!("{}: sent, not {wanted:?}", what());
                    };
                    assert_eq!(found[..6], mac(backend), "{}: not to {backend}", what());
                    assert_eq!(found[6..12], [2, 0, 0, 0, 0, 9], "{}", what());
                    assert_eq!(found[12..], frame[12..], "{}: other bytes", what());
                    assert!(is_middle(*flags), "{}: it is the program's", what());
                    *self.sent.entry((self.methods[*service], asks)).or_default() += 1;
                }
                Fate::Drop | Fate::Route => panic!("{}: {fate:?}", what()),
            }
        }
    }

    /// Whether packets of a service ask for pending flows.
    fn asks(&self, at: usize) -> bool {
        let table = &self.plane.oracle.tables[&self.tables.services[at].number];
        table.header().flags().has(Flags::PENDING)
    }

    fn has_seen_enough(&self) -> bool {
        METHODS.iter().all(|&method| {
            let sent = |asks| self.sent.get(&(method, asks)).copied().unwrap_or(0);
            // JET's packets are the program's while pending flows are asked for.
            let enough = method == MethodId::Jet || sent(true) >= SENT_ASKING;
            sent(false) >= SENT && enough
        })
    }
}

#[test]
fn what_is_decided_beside_the_program_is_what_decide_says() {
    let given = std::env::var("WEIR_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(rand::random);
    println!("WEIR_SEED={seed}");
    in_own_namespace(|| {
        let mut world = World::new(seed);
        let mut bursts = 0;
        while !world.has_seen_enough() {
            assert!(bursts < BURSTS, "{:?} sent, {} given back", world.sent, world.returned);
            bursts += 1;
            let at = world.rng.random_range(0..world.tables.services.len());
            if world.updates(at) {
                world.step_update(at);
            } else if world.rng.random_bool(0.1) {
                world.change_pool(at);
                world.begin_update(at);
            }
            world.compare_burst();
        }
        println!("{bursts} bursts, {:?} sent, {} given back", world.sent, world.returned);
        assert!(world.returned > 0);
    })
    .expect("needs root");
}
