//! Memory of another size takes the place of the memory in use: whatever step a control plane dies
//! after, packets go where they went, nothing that was noted or reported is lost, and the next one
//! goes on from a whole set.

use libbpf_rs::{MapCore, MapHandle, Program};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use weir_dataplane::{
    BackendEntry, FrameRun, Interface, KernelPlane, Limits, LivePlane, ResizeStep, Verdict,
    XdpMode, run_frame,
};
use weir_hash::Key as _;
use weir_plane::{FlowCaps, Listen, Plane, Prefix, Rate, SourceRate, SourceTable, Sources, VipKey};
use weir_steering::update::Plane as _;
use weir_steering::{
    BackendId, Codec, Concury, ConcuryConfig, EventKind, Flags, Member, Role, ServiceId,
    ServiceState, StateKey, TrackedBuilder,
};
use weir_testbed::{in_own_namespace, link};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, TcpFlags};

const SMALL: Limits = Limits {
    services: 4,
    table_bytes: 1 << 20,
    backends: 16,
    pending_flows: 6_000,
    unreported_flows: 20_000,
    tracked_flows: 20_000,
    answered_flows: 16,
    translations: 64,
    slot_partitions: 1,
    udp_flows: 8_000,
    event_ring_bytes: 1 << 14,
    marked_flows: 1024,
    stranger_bits: 1024,
    mappings: 1,
    list_prefixes: 300,
};

const LARGE: Limits = Limits {
    services: 40,
    table_bytes: 4 << 20,
    backends: 300,
    pending_flows: 30_000,
    unreported_flows: 50_000,
    tracked_flows: 50_000,
    answered_flows: 16,
    translations: 64,
    slot_partitions: 1,
    udp_flows: 30_000,
    event_ring_bytes: 1 << 20,
    marked_flows: 1024,
    stranger_bits: 1024,
    mappings: 1,
    list_prefixes: 5000,
};

/// Its flows on this backend's Dcodes are pending when they start.
const DRAINING: u16 = 2;
const BACKENDS: u16 = 6;

/// A client whose source no service takes.
const DENIED: u32 = 0xf107;

/// New flows that a service takes: more than come, and each is asked for.
fn caps() -> FlowCaps {
    let rate = Rate::every(1 << 30, 1 << 28);
    let source = SourceRate { rate, ipv4_bits: 23, ipv6_bits: 55 };
    FlowCaps {
        all: Some(rate),
        source: Some(source),
        held: None,
        key: weir_hash::HashKey::from_seed(9),
    }
}

/// Its sources: all but that one, one beside which there are no clients, and a few networks.
fn sources(service: u32) -> SourceTable {
    let prefix = |text: String| (text.parse::<Prefix>().expect("a prefix"), false);
    let networks = (0..100 + service).map(|n| prefix(format!("192.0.{n}.0/24")));
    let clients = ["10.2.241.7", "10.3.0.0/16", "2001:db8:1::/48"].map(|one| prefix(one.into()));
    Sources::new(networks.chain(clients)).expect("all deny").table()
}

/// The services: concury over TCP and UDP, and tracked.
const SERVICES: [(u16, Protocol); 3] =
    [(80, Protocol::Tcp), (53, Protocol::Udp), (81, Protocol::Tcp)];

fn flow(service: usize, client: u32) -> FlowKey {
    let (port, protocol) = SERVICES[service];
    let from = ((0x0a02_0000 + client).to_be_bytes(), 1000);
    FlowKey::new(from.into(), ([10, 1, 0, 1], port).into(), protocol)
}

fn members(drain: bool) -> Vec<Member> {
    let role = |n| if n == DRAINING && drain { Role::Draining } else { Role::Serving };
    (0..BACKENDS)
        .map(|n| Member {
            backend: BackendId::of(n),
            name: format!("b{n}"),
            weight: 1,
            role: role(n),
        })
        .collect()
}

/// A data plane on two interfaces, and what was sent through it.
struct World {
    pins: PathBuf,
    macs: Vec<[u8; 6]>,
    names: Vec<String>,
    /// Where each flow lives: service, client, backend.
    flows: Vec<(usize, u32, u16)>,
    reported: BTreeSet<ServiceState>,
    next_client: u32,
    sent: usize,
}

impl World {
    /// Forgets nothing: what was begun here is found again by [`World::open`].
    fn new(name: &str) -> Self {
        for pair in 0..2 {
            let names = [format!("a{pair}"), format!("b{pair}")];
            link::ip(&link::veth(&names.clone().map(link::End::new))).expect("links");
            names.iter().for_each(|name| link::ip(&link::up(name)).expect("links"));
        }
        let names = ["a0", "a1"].map(str::to_owned).to_vec();
        let mac = |name: &String| Interface::find(name).expect("it was made").mac;
        let pins = PathBuf::from(format!("/sys/fs/bpf/weir-test-{name}-{}", std::process::id()));
        Self {
            pins,
            macs: names.iter().map(mac).collect(),
            names,
            flows: Vec::new(),
            reported: BTreeSet::new(),
            next_client: 0,
            sent: 0,
        }
    }

    fn open(&self, limits: &Limits) -> LivePlane {
        let (kernel, _) = KernelPlane::open(Some(&self.pins), limits).expect("load (needs root)");
        LivePlane::new(kernel).expect("its reports")
    }

    /// Where the first service is found beside its address and port.
    fn further() -> [Listen; 2] {
        let protocol = SERVICES[0].1;
        let net = Listen::new(([10, 200, 0, 0].into(), 16), protocol, (8192, 6));
        let one = Listen::new(([10, 201, 0, 1].into(), 32), protocol, (80, 16));
        [Listen { salt: 2, ..net }, Listen { salt: 1, ..one }]
    }

    /// Backends, services and tables; a backend drains, some states of which are pinned.
    fn fill(&mut self, plane: &mut LivePlane) {
        for n in 0..BACKENDS {
            let mac = [2, 0, 0, 0, 0, n as u8];
            let entry = BackendEntry::new([192, 0, 2, 1 + n as u8].into(), 1);
            plane
                .kernel
                .set_backend(BackendId::of(n), &entry.with_next_hop(mac, [4; 6], 0, true))
                .unwrap();
        }
        for (service, &(port, protocol)) in SERVICES.iter().enumerate() {
            let vip = VipKey { address: flow(service, 0).dst, protocol, port: Some(port) };
            plane.kernel.set_service(vip, ServiceId(service as u32)).unwrap();
            if service == 0 {
                Self::further().iter().for_each(|at| {
                    plane.kernel.set_service(at, ServiceId(0)).unwrap();
                });
            }
            let config = ConcuryConfig {
                udp: protocol == Protocol::Udp,
                ..ConcuryConfig::unbounded(Codec::Othello, 4, 7)
            };
            if service == 2 {
                let builder = TrackedBuilder::new(weir_hash::HashKey::from_seed(5), 251, false);
                let table = builder.build(1, &members(false)).unwrap();
                plane.kernel.publish(ServiceId(2), &table).unwrap();
                continue;
            }
            let mut concury = Concury::<StateKey>::new(config);
            for client in 0..200 {
                let key = StateKey::of_flow(&flow(service, client));
                concury
                    .start(key, BackendId::of((client % u32::from(BACKENDS)) as u16), 1)
                    .unwrap();
                self.flows.push((service, client, (client % u32::from(BACKENDS)) as u16));
            }
            let (image, report) = concury.build(1, &members(true), 1).unwrap();
            let service = service as u32;
            let pins = report.pinned.into_iter();
            let pins: Vec<_> = pins
                .map(|(key, at)| (ServiceState { service: ServiceId(service), key }, at))
                .collect();
            plane.kernel.pin(&pins).unwrap();
            plane.kernel.publish(ServiceId(service), &image).unwrap();
        }
        for service in [0, 2] {
            plane.kernel.set_sources(ServiceId(service), Some(&sources(service))).unwrap();
        }
        plane.kernel.set_flow_caps(ServiceId(2), Some(&caps())).unwrap();
        plane.kernel.attach(&self.names, XdpMode::Auto).unwrap();
        self.next_client = 200;
        // A first packet of the known UDP flows: from here on they are known to be old.
        for (service, client, backend) in self.flows.clone() {
            let flags = if service == 1 { TcpFlags::ACK } else { TcpFlags::SYN };
            assert_eq!(self.send(service, client, flags), backend);
        }
    }

    /// Sends a packet through the program that is attached to one of the interfaces now.
    fn send(&mut self, service: usize, client: u32, flags: TcpFlags) -> u16 {
        self.sent += 1;
        let at = self.sent % self.names.len();
        send(&self.pins, &self.names[at], self.macs[at], service, client, flags)
    }

    fn start(&mut self, count: u32) {
        for client in self.next_client..self.next_client + count {
            let service = client as usize % SERVICES.len();
            let backend = self.send(service, client, TcpFlags::SYN);
            self.flows.push((service, client, backend));
        }
        self.next_client += count;
    }

    /// Later packets of all flows, and repeated first ones, go where they live; and denied sources are
    /// denied.
    fn check(&mut self, when: &str) {
        for (service, at) in [(0, 0), (2, 1), (0, 1), (2, 0)] {
            let denied = Frame::new(flow(service, DENIED)).tcp_flags(TcpFlags::ACK).build();
            let run = run_attached(&self.pins, &self.names[at], self.macs[at], denied);
            assert_eq!(run.verdict, Verdict::Drop, "{when}: service {service}");
        }
        for (service, client, backend) in self.flows.clone() {
            for flags in [TcpFlags::ACK, TcpFlags::SYN] {
                let went = self.send(service, client, flags);
                assert_eq!(went, backend, "{when}: service {service}, client {client}, {flags:?}");
            }
        }
    }

    /// Takes the reports. All flows that started must be among all that were taken.
    fn drain(&mut self, plane: &mut LivePlane, when: &str) {
        let reported = &mut self.reported;
        plane
            .drain(&mut |event| {
                assert_eq!(event.kind, EventKind::Start);
                reported.insert(event.state);
            })
            .unwrap();
        let missing: Vec<_> = (self.flows.iter())
            .filter(|(service, client, _)| {
                let key = StateKey::of_flow(&flow(*service, *client));
                let state = ServiceState { service: ServiceId(*service as u32), key };
                *service != 2 && !self.reported.contains(&state)
            })
            .map(|(service, client, _)| (*service, *client))
            .collect();
        let (all, unrecorded) = (self.flows.len(), plane.unrecorded());
        let what = "flows that were not reported";
        assert!(missing.is_empty(), "{when}, of {all} {what}, {unrecorded} counted: {missing:?}");
        assert_eq!(plane.unrecorded(), 0);
    }

    /// The pins are those of maps of these sizes, and nothing else.
    fn assert_sizes(&self, limits: &Limits) {
        let entries =
            |name: &str| MapHandle::from_pinned_path(self.pins.join(name)).unwrap().max_entries();
        let found: BTreeMap<_, _> =
            ["pending", "pinned", "unreported", "connections", "lanes", "events"]
                .into_iter()
                .map(|name| (name, entries(name)))
                .collect();
        let wanted = BTreeMap::from([
            ("pending", limits.pending_flows),
            ("pinned", limits.unreported_flows),
            ("unreported", limits.unreported_flows),
            ("connections", limits.tracked_flows),
            ("lanes", limits.backends),
            ("events", limits.event_ring_bytes),
        ]);
        assert_eq!(found, wanted);
        let directories = std::fs::read_dir(&self.pins).unwrap();
        assert_eq!(directories.filter(|pin| pin.as_ref().unwrap().path().is_dir()).count(), 0);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if self.pins.exists() {
            KernelPlane::unload(&self.pins).unwrap();
        }
    }
}

fn send(
    pins: &Path,
    interface: &str,
    mac: [u8; 6],
    service: usize,
    client: u32,
    flags: TcpFlags,
) -> u16 {
    let frame = Frame::new(flow(service, client)).tcp_flags(flags).build();
    let run = run_attached(pins, interface, mac, frame);
    assert_eq!(run.verdict, Verdict::Transmit, "{service}, client {client}, {flags:?}");
    u16::from(run.frame[5])
}

/// Takes a frame through the program that is attached to an interface now.
fn run_attached(pins: &Path, interface: &str, mac: [u8; 6], mut frame: Vec<u8>) -> FrameRun {
    let link = libbpf_rs::Link::open(pins.join(format!("link-{interface}"))).expect("a link");
    frame[..6].copy_from_slice(&mac);
    loop {
        let number = link.info().expect("of it").prog_id;
        // One that has just been replaced may be gone.
        let Ok(program) = Program::fd_from_id(number) else { continue };
        let run = run_frame(program.as_fd(), &frame).expect("a run");
        // Frames of an interface are through before their program is replaced for good; one that is
        // run by hand may come long after. Then its sender sends it again.
        if link.info().expect("of it").prog_id == number {
            return run;
        }
    }
}

fn dies_after(step: ResizeStep, from: &Limits, to: &Limits) {
    let when = format!("{step:?}, {} services to {}", from.services, to.services);
    let mut world = World::new(&format!("resize-{step:?}-{}", from.services));
    let mut plane = world.open(from);
    world.fill(&mut plane);
    world.start(120);
    world.check(&when);
    let packets = (0..BACKENDS).map(|n| plane.lane(BackendId::of(n)).unwrap().packets).sum::<u64>();
    plane.resize_until(to, step).unwrap();
    world.check(&when);
    world.start(120);
    world.check(&when);
    // Killed.
    drop(plane);
    world.start(120);
    world.check(&when);
    let mut plane = world.open(to);
    let resumed = if step >= ResizeStep::Commit { to } else { from };
    assert_eq!(plane.limits().backends, resumed.backends, "{when}");
    world.check(&when);
    world.drain(&mut plane, &when);
    world.start(120);
    // What the next control plane does.
    plane.resize(to).unwrap();
    world.start(120);
    world.check(&when);
    world.drain(&mut plane, &when);
    world.assert_sizes(to);
    assert_eq!(plane.limits(), *to);
    assert!(
        (0..BACKENDS).map(|n| plane.lane(BackendId::of(n)).unwrap().packets).sum::<u64>() > packets
    );
    for service in 0..SERVICES.len() as u32 {
        assert!(plane.kernel.published(ServiceId(service)).unwrap().is_some());
    }
    let services = plane.kernel.services();
    assert_eq!(services.len(), SERVICES.len() + World::further().len());
    for at in World::further() {
        assert!(services.contains(&(at, ServiceId(0))), "{at:?}: {services:?}");
    }
    assert_eq!(plane.kernel.flow_caps(ServiceId(2)), Some(caps()));
    assert_eq!(plane.kernel.flow_caps(ServiceId(0)), None);
    let noted = plane.kernel.pending().unwrap().len();
    assert!(noted > 0, "nothing was pending");
}

#[test]
fn whatever_step_it_dies_after_packets_go_where_they_went() {
    for step in ResizeStep::ALL {
        for (from, to) in [(SMALL, LARGE), (LARGE, SMALL)] {
            in_own_namespace(|| dies_after(step, &from, &to)).expect("a namespace");
        }
    }
}

/// Flows start and go on all the time while sizes change to and fro.
#[test]
fn flows_that_start_meanwhile_are_not_lost() {
    in_own_namespace(|| {
        let mut world = World::new("resize-traffic");
        let mut plane = world.open(&SMALL);
        world.fill(&mut plane);
        world.drain(&mut plane, "at first");
        let (stop, started) = (AtomicBool::new(false), AtomicU32::new(0));
        let flows = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let traffic = || {
                let mut all = Vec::new();
                let at = |n: u32| n as usize % world.names.len();
                let send = |n: u32, service: usize, client: u32, flags| {
                    let name = &world.names[at(n)];
                    send(&world.pins, name, world.macs[at(n)], service, client, flags)
                };
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let (service, client) = (n as usize % SERVICES.len(), 10_000 + n);
                    if n < 8_000 {
                        let backend = send(n, service, client, TcpFlags::SYN);
                        // By the other interface.
                        assert_eq!(send(n + 1, service, client, TcpFlags::ACK), backend);
                        all.push((service, client, backend));
                        started.fetch_add(1, Ordering::Relaxed);
                    }
                    let (service, client, backend) = all[n as usize * 7 % all.len()];
                    let flags = if n % 2 == 0 { TcpFlags::ACK } else { TcpFlags::SYN };
                    assert_eq!(send(n, service, client, flags), backend, "{service} {client}");
                }
                flows.lock().unwrap().extend(all);
            };
            let traffic = scope.spawn(traffic);
            let mut reported = BTreeSet::new();
            for limits in [LARGE, SMALL, LARGE, SMALL, LARGE] {
                let before = started.load(Ordering::Relaxed);
                while started.load(Ordering::Relaxed) < (before + 100).min(8_000) {
                    assert!(!traffic.is_finished(), "traffic has ended");
                    thread::yield_now();
                }
                plane.resize(&limits).unwrap();
                plane.drain(&mut |event| reported.extend([event.state])).unwrap();
            }
            stop.store(true, Ordering::Relaxed);
            traffic.join().expect("no flow was broken");
            plane.drain(&mut |event| reported.extend([event.state])).unwrap();
            world.reported.extend(reported);
        });
        world.flows.extend(flows.into_inner().unwrap());
        println!("{} flows", world.flows.len());
        world.check("at the end");
        world.drain(&mut plane, "at the end");
        world.assert_sizes(&LARGE);
    })
    .expect("a namespace");
}

/// Marks of activity grow, whichever half of them packets write, and whatever step a control plane dies after: who
/// was known to packets is so still, and whoever has sent something is known to live.
#[test]
fn marks_that_grow_forget_nobody() {
    for step in ResizeStep::ALL {
        for flips in [1, 2] {
            in_own_namespace(|| marks_grow(step, flips)).expect("a namespace");
        }
    }
}

fn marks_grow(step: ResizeStep, flips: usize) {
    let when = format!("{step:?}, after {flips} flips");
    let grown = Limits { marked_flows: 1 << 16, ..SMALL };
    let mut world = World::new(&format!("resize-marks-{step:?}-{flips}"));
    let mut plane = world.open(&SMALL);
    world.fill(&mut plane);
    plane.kernel.set_flags(ServiceId(0), Flags::MARK, true);
    let key = plane.kernel.published(ServiceId(0)).unwrap().unwrap().header().key;
    let hash = |client: u32| StateKey::of_flow(&flow(0, client)).hash(&key);
    let known: Vec<u64> = (0..200).map(hash).collect();
    let next = |plane: &mut LivePlane| {
        let side = plane.flip_marks(&mut known.iter().copied(), known.len()).unwrap();
        plane.grace().unwrap();
        plane.take_marks(side).unwrap()
    };
    for _ in 0..flips {
        next(&mut plane);
    }
    let speak = |world: &mut World, clients: std::ops::Range<u32>| {
        for client in clients {
            world.send(0, client, TcpFlags::ACK);
        }
    };
    speak(&mut world, 0..40);
    plane.resize_until(&grown, step).unwrap();
    speak(&mut world, 40..80);
    // Killed.
    drop(plane);
    speak(&mut world, 80..120);
    let mut plane = world.open(&grown);
    speak(&mut world, 120..140);
    plane.drain(&mut |_| ()).unwrap();
    plane.resize(&grown).unwrap();
    speak(&mut world, 140..160);
    plane.drain(&mut |_| ()).unwrap();
    assert_eq!(plane.limits(), grown, "{when}");
    let armed = plane.armed().unwrap();
    assert!(armed.room >= 1 << 16, "{when}: {}", armed.room);
    assert!(known.iter().all(|hash| (armed.has)(*hash)), "{when}: not all are known");
    // In both halves.
    for spoken in [160, 20] {
        let marks = next(&mut plane);
        for client in 0..200 {
            assert_eq!(marks.has(hash(client)), client < spoken, "{when}: client {client}");
        }
        speak(&mut world, 0..20);
    }
    // They do not shrink while they are in use.
    plane.resize(&SMALL).unwrap();
    plane.drain(&mut |_| ()).unwrap();
    assert_eq!(plane.limits(), grown, "{when}");
}

/// What goes on meanwhile ends with this, also if a test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A table of the connection table's method that fills so many elements of the pool.
fn table_of(elements: u32) -> weir_steering::Image {
    let is_prime = |n: &u32| (2..).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d));
    let size = (2..=elements * 2048).rev().find(is_prime).expect("a prime");
    let builder = TrackedBuilder::new(weir_hash::HashKey::from_seed(5), size, false);
    let table = builder.build(1, &members(false)).unwrap();
    assert_eq!(table.elements(), elements as usize);
    table
}

/// Tables of other services have cut up the pool, and a larger one finds room all the same: they are moved, or packed
/// into other memory, under packets, which go where they went.
#[test]
fn a_table_finds_room_wherever_it_is_free() {
    in_own_namespace(|| {
        let limits = Limits { table_bytes: 1 << 20, ..LARGE };
        let mut world = World::new("resize-scattered");
        let mut plane = world.open(&limits);
        world.fill(&mut plane);
        world.start(120);
        let digests = |plane: &LivePlane| -> Vec<Option<u64>> {
            let of = |n| plane.kernel.published(ServiceId(n)).expect("it is whole");
            (0..30).map(|n| of(n).map(|table| table.header().digest)).collect()
        };
        // Packets find each, and follow its table.
        let publish = |plane: &mut LivePlane, service: u32, elements: u32| {
            let port = Some(1000 + service as u16);
            let at = VipKey { address: flow(0, 0).dst, protocol: Protocol::Tcp, port };
            plane.kernel.set_service(at, ServiceId(service)).unwrap();
            let published = plane.kernel.publish(ServiceId(service), &table_of(elements));
            published.map_err(|error| error.to_string())
        };
        let remove = |plane: &mut LivePlane, service: u32| {
            plane.kernel.remove_service(ServiceId(service)).unwrap();
        };
        let waits = |plane: &mut LivePlane| plane.prepare_packing().expect("it can be asked");
        let stop = AtomicBool::new(false);
        let flows = world.flows.clone();
        thread::scope(|scope| {
            let traffic = scope.spawn(|| {
                let mut sent = 0;
                while !stop.load(Ordering::Relaxed) {
                    let (service, client, backend) = flows[sent % flows.len()];
                    let at = sent % world.names.len();
                    let (name, mac) = (&world.names[at], world.macs[at]);
                    let went = send(&world.pins, name, mac, service, client, TcpFlags::ACK);
                    assert_eq!(went, backend, "service {service}, client {client}");
                    sent += 1;
                }
            });
            let ends = Stop(&stop);
            // One in the middle that is larger than what is free at either side of it cannot be moved.
            for (service, elements) in [(3, 90), (4, 40), (3, 110)] {
                publish(&mut plane, service, elements).expect("there is room");
            }
            remove(&mut plane, 4);
            let error = publish(&mut plane, 5, 120).expect_err("no room in a row");
            assert!(error.contains("in pieces"), "{error}");
            let before = digests(&plane);
            let prepared = waits(&mut plane).expect("one waits for it")().expect("there is memory");
            let bounds = plane.limits();
            plane.resize_prepared(&bounds, prepared).expect("all of them fit");
            assert_eq!((plane.limits(), digests(&plane)), (bounds, before));
            plane.drain(&mut |_| ()).unwrap();
            publish(&mut plane, 5, 120).expect("all that is free is in a row");
            let error = publish(&mut plane, 6, 120).expect_err("the sum is too little");
            assert!(error.contains("raise limits.table_bytes"), "{error}");
            assert!(waits(&mut plane).is_none(), "that would not help");
            // Smaller is refused where no table could be changed any more.
            let (used, _) = plane.kernel.pool_bytes();
            let smaller = Limits { table_bytes: used as u64 + 4096, ..bounds };
            let error = plane.resize(&smaller).expect_err("no room for a second copy").to_string();
            assert!(error.contains("limits.table_bytes cannot be lowered"), "{error}");

            // Small ones as many as there is room for, every second of which goes: one that needs two of the
            // holes has others moved.
            (3..7).for_each(|service| remove(&mut plane, service));
            let full = (3..30).find(|service| publish(&mut plane, *service, 16).is_err());
            let full = full.expect("no pool is so large");
            assert!(full > 12, "{full} tables");
            (3..=full).step_by(2).for_each(|service| remove(&mut plane, service));
            let before = digests(&plane);
            publish(&mut plane, 30, 33).expect("others make room");
            assert_eq!(digests(&plane), before);
            assert!(waits(&mut plane).is_none(), "nobody waits for room");
            drop(ends);
            traffic.join().expect("packets go where they went");
        });
        world.check("at the end");
    })
    .expect("a namespace");
}

/// What does not fit is refused, by name, and nothing has changed.
#[test]
fn what_does_not_fit_is_refused() {
    in_own_namespace(|| {
        let mut world = World::new("resize-refused");
        let mut plane = world.open(&LARGE);
        world.fill(&mut plane);
        world.start(600);
        let pending = plane.kernel.pending().unwrap().len() as u32;
        assert!(pending > 3, "{pending} flows are pending");
        let refused = [
            (Limits { services: 2, ..LARGE }, "limits.services cannot be lowered to 2"),
            (Limits { backends: 5, ..LARGE }, "backend number 5 is in use"),
            (Limits { pending_flows: pending / 2, ..LARGE }, "limits.pending_flows"),
            (Limits { unreported_flows: 3, ..SMALL }, "limits.unreported_flows"),
            (Limits { table_bytes: 2048, ..LARGE }, "limits.table_bytes"),
        ];
        for (limits, words) in refused {
            let error = plane.resize(&limits).expect_err("it does not fit").to_string();
            assert!(error.contains(words), "{error}");
            assert_eq!(plane.limits(), LARGE);
            world.assert_sizes(&LARGE);
            world.start(30);
            world.check(words);
            world.drain(&mut plane, words);
        }
        plane.kernel.set_flags(ServiceId(0), Flags::RECORD, true);
        plane.resize(&SMALL).unwrap();
        let flags = plane.kernel.published(ServiceId(0)).unwrap().unwrap().header().flags();
        assert!(flags.has(Flags::RECORD), "flags are carried over");
        world.check("smaller");
    })
    .expect("a namespace");
}
