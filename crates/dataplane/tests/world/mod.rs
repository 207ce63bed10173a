//! A data plane on two interfaces, with services, flows, lists and caps: what takes the place of its memory must
//! leave all of it as it is.

#![allow(dead_code, reason = "not every test needs all of it")]

use libbpf_rs::{MapCore, MapHandle, Program};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use weir_dataplane::{
    BackendEntry, FrameRun, Interface, KernelPlane, Limits, LivePlane, Verdict, XdpMode, run_frame,
};
use weir_plane::{FlowCaps, Listen, Plane, Prefix, Rate, SourceRate, SourceTable, Sources, VipKey};
use weir_steering::update::Plane as _;
use weir_steering::{
    BackendId, Codec, Concury, ConcuryConfig, EventKind, Member, Role, ServiceId, ServiceState,
    StateKey, TrackedBuilder,
};
use weir_testbed::link;
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, TcpFlags};

pub const SMALL: Limits = Limits {
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

pub const LARGE: Limits = Limits {
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
pub const DRAINING: u16 = 2;
pub const BACKENDS: u16 = 6;

/// A client whose source no service takes.
pub const DENIED: u32 = 0xf107;

/// New flows that a service takes: more than come, and each is asked for.
pub fn caps() -> FlowCaps {
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
pub fn sources(service: u32) -> SourceTable {
    let prefix = |text: String| (text.parse::<Prefix>().expect("a prefix"), false);
    let networks = (0..100 + service).map(|n| prefix(format!("192.0.{n}.0/24")));
    let clients = ["10.2.241.7", "10.3.0.0/16", "2001:db8:1::/48"].map(|one| prefix(one.into()));
    Sources::new(networks.chain(clients)).expect("all deny").table()
}

/// The services: concury over TCP and UDP, and tracked.
pub const SERVICES: [(u16, Protocol); 3] =
    [(80, Protocol::Tcp), (53, Protocol::Udp), (81, Protocol::Tcp)];

pub fn flow(service: usize, client: u32) -> FlowKey {
    let (port, protocol) = SERVICES[service];
    let from = ((0x0a02_0000 + client).to_be_bytes(), 1000);
    FlowKey::new(from.into(), ([10, 1, 0, 1], port).into(), protocol)
}

pub fn members(drain: bool) -> Vec<Member> {
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
pub struct World {
    pub pins: PathBuf,
    pub macs: Vec<[u8; 6]>,
    pub names: Vec<String>,
    /// Where each flow lives: service, client, backend.
    pub flows: Vec<(usize, u32, u16)>,
    pub reported: BTreeSet<ServiceState>,
    pub next_client: u32,
    pub sent: usize,
    /// Frames may be dropped for a while: their senders send them again.
    pub patient: bool,
}

impl World {
    /// Forgets nothing: what was begun here is found again by [`World::open`].
    pub fn new(name: &str) -> Self {
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
            patient: false,
        }
    }

    pub fn open(&self, limits: &Limits) -> LivePlane {
        let (kernel, _) = KernelPlane::open(Some(&self.pins), limits).expect("load (needs root)");
        LivePlane::new(kernel).expect("its reports")
    }

    /// Where the first service is found beside its address and port.
    pub fn further() -> [Listen; 2] {
        let protocol = SERVICES[0].1;
        let net = Listen::new(([10, 200, 0, 0].into(), 16), protocol, (8192, 6));
        let one = Listen::new(([10, 201, 0, 1].into(), 32), protocol, (80, 16));
        [Listen { salt: 2, ..net }, Listen { salt: 1, ..one }]
    }

    /// Backends, services and tables; a backend drains, some states of which are pinned.
    pub fn fill(&mut self, plane: &mut LivePlane) {
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
    pub fn send(&mut self, service: usize, client: u32, flags: TcpFlags) -> u16 {
        self.sent += 1;
        let at = self.sent % self.names.len();
        let send = if self.patient { send_again } else { send };
        send(&self.pins, &self.names[at], self.macs[at], service, client, flags)
    }

    pub fn start(&mut self, count: u32) {
        for client in self.next_client..self.next_client + count {
            let service = client as usize % SERVICES.len();
            let backend = self.send(service, client, TcpFlags::SYN);
            self.flows.push((service, client, backend));
        }
        self.next_client += count;
    }

    /// Later packets of all flows, and repeated first ones, go where they live; and denied sources are
    /// denied.
    pub fn check(&mut self, when: &str) {
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
    pub fn drain(&mut self, plane: &mut LivePlane, when: &str) {
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
    pub fn assert_sizes(&self, limits: &Limits) {
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

pub fn send(
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

/// As [`send`], until it is not dropped.
pub fn send_again(
    pins: &Path,
    interface: &str,
    mac: [u8; 6],
    service: usize,
    client: u32,
    flags: TcpFlags,
) -> u16 {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let frame = Frame::new(flow(service, client)).tcp_flags(flags).build();
        let run = run_attached(pins, interface, mac, frame);
        if run.verdict == Verdict::Transmit {
            return u16::from(run.frame[5]);
        }
        assert_eq!(run.verdict, Verdict::Drop, "{service}, client {client}, {flags:?}");
        assert!(Instant::now() < end, "{service}, client {client}, {flags:?}: dropped for ever");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Takes a frame through the program that is attached to an interface now.
pub fn run_attached(pins: &Path, interface: &str, mac: [u8; 6], mut frame: Vec<u8>) -> FrameRun {
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
