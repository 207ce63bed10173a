//! Frames that the program sends and the kernel loses are counted, by the interface that they were to
//! leave by, and no others.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};
use weir_dataplane::{BackendEntry, Interface, KernelPlane, Limits, XdpMode};
use weir_hash::HashKey;
use weir_plane::VipKey;
use weir_steering::{BackendId, Member, Role, ServiceId, TrackedBuilder};
use weir_testbed::link::{self, End};
use weir_testbed::packet::PacketSocket;
use weir_testbed::{in_own_namespace, sysctl};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, Reason, TcpFlags, map_address};

/// A machine that is busy with other things is slow.
const PATIENCE: Duration = Duration::from_secs(120);
const BALANCER: [u8; 6] = [2, 0x99, 0, 0, 0, 1];
const CLIENT: [u8; 6] = [2, 0x99, 0, 0, 0, 2];
const BACKEND: [u8; 6] = [2, 0x99, 0, 0, 0, 4];

fn ip(lines: &str) {
    link::ip(lines).expect("links");
}

fn index(name: &str) -> u32 {
    Interface::find(name).expect("there").index
}

struct World {
    plane: KernelPlane,
    directory: PathBuf,
}

impl Drop for World {
    fn drop(&mut self) {
        KernelPlane::unload(&self.directory).expect("pins");
    }
}

impl World {
    /// Clients come by lb0, and the backend is behind `way`.
    fn new(name: &str, way: &str) -> Self {
        ip(&link::veth(&[End::new("lb0"), End::new("cl0")]));
        ip(&link::veth(&[End::new("lb1"), End::new("be1")]));
        let text = link::mac_text;
        ip(&format!(
            "link set lb0 address {}\nlink set cl0 address {}\naddr add 10.9.0.1/24 dev lb0\n\
             addr add 10.8.0.1/24 dev lb1\nlink set lb0 up\nlink set cl0 up\nlink set lb1 up\n\
             link set be1 up\n",
            text(BALANCER),
            text(CLIENT)
        ));
        let backend = if way == "lb0" { "10.9.0.2" } else { "10.8.0.2" };
        ip(&format!("neigh replace {backend} lladdr {} dev {way} nud permanent\n", text(BACKEND)));
        sysctl("ipv4/conf/all/forwarding", "1").expect("forwarding");
        let directory: PathBuf =
            format!("/sys/fs/bpf/weir-test-{name}-{}", std::process::id()).into();
        let limits = Limits { services: 2, table_bytes: 1 << 16, backends: 8, ..Limits::default() };
        let (mut plane, report) = KernelPlane::open(Some(&directory), &limits).expect("root");
        assert_eq!(report.uncounted, None);
        let vip: SocketAddr = "10.9.0.1:80".parse().expect("an address");
        let address = map_address(vip.ip());
        let key = VipKey { address, protocol: Protocol::Tcp, port: Some(80) };
        plane.set_service(key, ServiceId(0)).expect("there is room");
        let entry = BackendEntry::new(backend.parse().expect("an address"), 1);
        plane.set_backend(BackendId::of(0), &entry).expect("room");
        let members = [Member {
            backend: BackendId::of(0),
            name: "b0".into(),
            weight: 1,
            role: Role::Serving,
        }];
        let builder = TrackedBuilder::new(HashKey::from_seed(1), 251, false);
        plane.publish(ServiceId(0), &builder.build(1, &members).expect("it fits")).expect("room");
        plane.attach(&["lb0".to_owned()], XdpMode::Native).expect("attach");
        Self { plane, directory }
    }

    /// Sends packets of the service, until all have been decided.
    fn send(&self, frames: u16) {
        let before = self.plane.lane(BackendId::of(0)).expect("readable").packets;
        let socket = PacketSocket::sender("cl0").expect("a socket");
        for source in 1..=frames {
            let flow = FlowKey::new(
                SocketAddr::new("10.9.0.2".parse().expect("an address"), source),
                "10.9.0.1:80".parse().expect("an address"),
                Protocol::Tcp,
            );
            let frame = Frame::new(flow).macs(BALANCER, CLIENT).tcp_flags(TcpFlags::SYN).build();
            socket.send(&frame).expect("sent");
        }
        let deadline = Instant::now() + PATIENCE;
        while self.plane.lane(BackendId::of(0)).expect("readable").packets
            < before + u64::from(frames)
        {
            assert!(Instant::now() < deadline, "frames have not come");
            sleep(Duration::from_millis(1));
        }
    }

    fn lost(&self) -> BTreeMap<u32, u64> {
        self.plane.lost().expect("readable").expect("the kernel tells")
    }

    /// A bulk is counted when it is over, which is later than when its frames were decided.
    fn await_lost(&self, on: &str, frames: u64) {
        let deadline = Instant::now() + PATIENCE;
        while self.lost() != BTreeMap::from([(index(on), frames)]) {
            assert!(Instant::now() < deadline, "{:?}, not {frames} on {on}", self.lost());
            sleep(Duration::from_millis(1));
        }
    }
}

/// A program on the peer, which takes what is sent to it.
fn take_frames(peer: &str) {
    weir_testbed::xdp::attach_pass_here(peer).expect("attach");
}

#[test]
fn what_a_redirect_loses_is_counted() {
    in_own_namespace(|| {
        let world = World::new("lost-redirect", "lb1");
        assert_eq!(world.lost(), BTreeMap::new());
        // Without a program on its peer a veth takes no frames.
        world.send(300);
        world.await_lost("lb1", 300);
        take_frames("be1");
        let received = PacketSocket::open("be1").expect("a socket");
        world.send(50);
        let mut buffer = [0; 2048];
        for _ in 0..50 {
            let frame =
                received.receive(&mut buffer, PATIENCE).expect("readable").expect("a frame");
            assert_eq!(frame[..6], BACKEND);
        }
        world.await_lost("lb1", 300);
    })
    .expect("a namespace");
}

/// A packet that is longer than what the way out takes is told so, as in a tunnel, instead of being counted as
/// forwarded and lost then.
#[test]
fn what_the_way_out_does_not_take_is_no_loss() {
    in_own_namespace(|| {
        let world = World::new("lost-narrow", "lb1");
        world.plane.set_message_rates(1_000_000, 0);
        ip("link set lb0 mtu 3000\nlink set cl0 mtu 3000");
        world.plane.accept_own_macs(&["lb0".to_owned()]);
        take_frames("be1");
        take_frames("cl0");
        let client = PacketSocket::open("cl0").expect("a socket");
        let of_length = |bytes: u16| {
            let flow = FlowKey::new(
                "10.9.0.2:4000".parse().expect("an address"),
                "10.9.0.1:80".parse().expect("an address"),
                Protocol::Tcp,
            );
            Frame::new(flow).macs(BALANCER, CLIENT).payload(bytes - 40).build()
        };
        let sender = PacketSocket::sender("cl0").expect("a socket");
        for bytes in [1501, 3000] {
            sender.send(&of_length(bytes)).expect("sent");
        }
        let (mut buffer, mut told) = ([0; 4096], 0);
        while told < 2 {
            let frame = client.receive(&mut buffer, PATIENCE).expect("readable").expect("a frame");
            // Fragmentation needed, with the MTU (RFC 1191).
            if frame[..6] == CLIENT && frame[23] == 1 {
                assert_eq!((&frame[34..36], &frame[40..42]), (&[3, 4][..], &[0x05, 0xdc][..]));
                told += 1;
            }
        }
        let lane = |plane: &KernelPlane| plane.lane(BackendId::of(0)).expect("readable").packets;
        let outcomes = world.plane.outcomes().expect("readable");
        assert_eq!(outcomes.get(&Reason::TooBigTold), Some(&(0, 2)));
        assert_eq!((lane(&world.plane), world.lost()), (0, BTreeMap::new()));
        // What fits arrives.
        let backend = PacketSocket::open("be1").expect("a socket");
        sender.send(&of_length(1500)).expect("sent");
        let arrived = |frame: &[u8]| frame[..6] == BACKEND && frame.len() == 14 + 1500;
        while !arrived(backend.receive(&mut buffer, PATIENCE).expect("readable").expect("a frame"))
        {
        }
        assert_eq!((lane(&world.plane), world.lost()), (1, BTreeMap::new()));
    })
    .expect("a namespace");
}

#[test]
fn what_goes_back_and_is_lost_is_counted() {
    in_own_namespace(|| {
        let world = World::new("lost-back", "lb0");
        world.send(200);
        world.await_lost("lb0", 200);
        take_frames("cl0");
        world.send(100);
        world.await_lost("lb0", 200);
    })
    .expect("a namespace");
}

/// Another namespace's interfaces have the same numbers.
#[test]
fn what_others_lose_is_not_counted() {
    in_own_namespace(|| {
        let world = World::new("lost-ours", "lb1");
        take_frames("be1");
        let number = index("lb1");
        in_own_namespace(|| {
            let other = World::new("lost-theirs", "lb1");
            assert_eq!(index("lb1"), number);
            other.send(100);
            other.await_lost("lb1", 100);
        })
        .expect("a namespace");
        world.send(20);
        assert_eq!(world.lost(), BTreeMap::new());
    })
    .expect("a namespace");
}
