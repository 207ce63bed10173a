//! Frames are counted by the interface that they came in by while several have the program, whichever program that
//! is; and not where one interface is all.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_dataplane::{BackendEntry, Interface, KernelPlane, Limits, XdpMode, run_frame};
use weir_hash::HashKey;
use weir_plane::{Backend, Hop, InterfaceCounts, Soft, VipKey, forward::NextHop};
use weir_steering::{BackendId, Member, Role, ServiceId, TrackedBuilder};
use weir_testbed::link::{self, End};
use weir_testbed::packet::PacketSocket;
use weir_testbed::{in_own_namespace, sysctl};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, TcpFlags, map_address};

const OWN: [u8; 6] = [2, 0x98, 0, 0, 0, 1];
const CLIENT: [u8; 6] = [2, 0x98, 0, 0, 0, 2];
const ROUTER: [u8; 6] = [2, 0x98, 0, 0, 0, 4];
/// The interface that runs without a network count as: the loopback's number.
const RUNS: u32 = 1;

struct World {
    /// One at a time.
    plane: Option<KernelPlane>,
    twin: Soft,
    /// What the twin has made of all frames so far.
    wanted: InterfaceCounts,
    directory: PathBuf,
}

impl Drop for World {
    fn drop(&mut self) {
        KernelPlane::unload(&self.directory).expect("pins");
    }
}

fn limits() -> Limits {
    Limits { services: 2, table_bytes: 1 << 16, backends: 8, ..Limits::default() }
}

fn open(directory: &Path) -> KernelPlane {
    KernelPlane::open(Some(directory), &limits()).expect("load (needs root)").0
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|at| format!("in{at}")).collect()
}

impl World {
    fn new(name: &str) -> Self {
        // Nobody sends anything by itself.
        for file in ["ipv6/conf/all/disable_ipv6", "ipv6/conf/default/disable_ipv6"] {
            sysctl(file, "1").expect("needs root");
        }
        for at in 0..3 {
            let (own, peer) = (format!("in{at}"), format!("out{at}"));
            let mut lines = link::veth(&[End::new(&own).mac(OWN), End::new(&peer)]);
            lines += &[&own, &peer].map(|name| link::up(name)).concat();
            link::ip(&lines).expect("links");
        }
        let directory: PathBuf =
            format!("/sys/fs/bpf/weir-test-{name}-{}", std::process::id()).into();
        let mut plane = open(&directory);
        let address = map_address("10.9.0.1".parse().expect("an address"));
        let key = VipKey { address, protocol: Protocol::Tcp, port: Some(80) };
        let (id, service) = (BackendId::of(0), ServiceId(0));
        plane.set_service(key, service).expect("there is room");
        let place = "10.9.0.2".parse().expect("an address");
        let entry = BackendEntry::new(place, 1).with_next_hop(ROUTER, OWN, 0, true);
        plane.set_backend(id, &entry).expect("room");
        let members = [Member { backend: id, name: "b0".into(), weight: 1, role: Role::Serving }];
        let builder = TrackedBuilder::new(HashKey::from_seed(1), 251, false);
        let table = builder.build(1, &members).expect("it fits");
        plane.publish(service, &table).expect("room");
        let mut twin = Soft::default();
        twin.vips.insert(key, service);
        twin.tables.insert(service, Arc::new(table));
        twin.memory.incarnations.insert(id, 1);
        let next = NextHop { mac: ROUTER, source_mac: OWN };
        let hop = Some(Hop { next, ifindex: 0 });
        let known = Backend {
            address: place,
            incarnation: 1,
            up: true,
            resets: false,
            hop,
            tunnel: None,
            translation: None,
            segments: None,
        };
        twin.backends.insert(id, known);
        Self { plane: Some(plane), twin, wanted: InterfaceCounts::default(), directory }
    }

    fn plane(&self) -> &KernelPlane {
        self.plane.as_ref().expect("it is open")
    }

    fn attach(&self, count: usize) {
        self.plane().attach(&names(count), XdpMode::Native).expect("attach");
    }

    fn counts(&self) -> Option<BTreeMap<u32, InterfaceCounts>> {
        self.plane().by_interface().expect("they can be read")
    }

    /// Packets that are forwarded, dropped and left to the kernel, through both.
    fn run(&mut self, number: u16) {
        let syn = |source: u16| {
            let from = SocketAddr::from(([10, 1, 0, 1], source));
            let to = SocketAddr::from(([10, 9, 0, 1], 80));
            let flow = FlowKey::new(from, to, Protocol::Tcp);
            Frame::new(flow).macs(OWN, CLIENT).tcp_flags(TcpFlags::SYN).build()
        };
        for at in 0..number {
            let whole = syn(1000 + at);
            // Its TCP header ends too early; and something else than IP.
            let (mut cut, mut other) = (whole.clone(), whole.clone());
            cut.truncate(40);
            other[12..14].copy_from_slice(&[8, 6]);
            for frame in [whole, cut, other.clone(), other] {
                run_frame(self.plane().program(), &frame).expect("it runs");
                self.wanted.count(&self.twin.judge(&frame));
            }
        }
    }

    fn assert_counted(&self, when: &str) {
        assert_eq!(self.plane().uncounted_interfaces(), None);
        let found = self.counts().expect("they are counted");
        assert_eq!(found.get(&RUNS), Some(&self.wanted), "{when}");
    }

    fn pins(&self) -> usize {
        let entries = std::fs::read_dir(&self.directory).expect("it is there");
        let names = entries.flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().starts_with("counts-")).count()
    }
}

#[test]
fn frames_are_counted_by_interface_where_there_are_several() {
    in_own_namespace(|| {
        let mut world = World::new("several");
        world.attach(1);
        run_frame(world.plane().program(), &[0; 60]).expect("it runs");
        assert_eq!(world.counts(), None);

        world.attach(2);
        world.run(7);
        let InterfaceCounts { sent, passed, dropped } = world.wanted;
        assert_eq!((sent, passed, dropped), (7, 14, 7), "what the twin says");
        world.assert_counted("two interfaces");

        // One is added: the others keep what they have.
        world.attach(3);
        world.run(3);
        world.assert_counted("a third one");

        // The next control plane has another program in the links; nothing is lost or counted twice.
        world.plane = None;
        world.plane = Some(open(&world.directory));
        assert_eq!(world.pins(), 1, "the former program is counted until it leaves the links");
        world.attach(3);
        assert_eq!(world.pins(), 1, "one program is in the links");
        world.run(5);
        world.assert_counted("after another start");

        // One goes while two stay, then one stays.
        world.attach(2);
        world.run(1);
        world.assert_counted("two again");
        world.attach(1);
        assert_eq!(world.counts(), None);
        assert_eq!(world.pins(), 0);
        run_frame(world.plane().program(), &[0; 60]).expect("it runs");

        // What was counted is there when there are several again.
        world.attach(2);
        world.assert_counted("several again");
    })
    .expect("needs root");
}

/// Frames of a network count for their interface.
#[test]
fn each_interface_has_its_own() {
    in_own_namespace(|| {
        let world = World::new("each");
        world.attach(3);
        let mut frame = vec![0; 60];
        frame[..6].copy_from_slice(&OWN);
        frame[6..12].copy_from_slice(&CLIENT);
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        let number = |at: usize| Interface::find(&format!("in{at}")).expect("there").index;
        let sent = [5_u64, 0, 9];
        for (at, frames) in sent.into_iter().enumerate() {
            let socket = PacketSocket::sender(&format!("out{at}")).expect("a socket");
            (0..frames).for_each(|_| socket.send(&frame).expect("sent"));
        }
        let all = |counts: &InterfaceCounts| counts.passed;
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let found = world.counts().expect("they are counted");
            let each = [0, 1, 2].map(|at| found.get(&number(at)).map_or(0, all));
            if each == sent {
                break;
            }
            assert!(Instant::now() < deadline, "{each:?}, not {sent:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    })
    .expect("needs root");
}
