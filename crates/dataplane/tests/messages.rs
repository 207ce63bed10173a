//! How many messages the program sends: no more than it may.

use std::path::Path;
use std::time::Instant;
use weir_dataplane::{BackendEntry, KernelPlane, Limits, Verdict, run_frame};
use weir_hash::HashKey;
use weir_plane::forward::{Encapsulation, Tunnel};
use weir_plane::{MESSAGE_BURST, VipKey};
use weir_steering::{BackendId, Member, Role, ServiceId, TrackedBuilder};
use weir_testbed::xdp::Pinned;
use weir_wire::craft::{self, Frame};
use weir_wire::{FlowKey, Protocol, Reason, TcpFlags, map_address};

const SERVICE: u32 = 3;
const CLIENT: &str = "10.8.0.1";
const VIP: &str = "10.9.0.1";

fn mapped(address: &str) -> [u8; 16] {
    map_address(address.parse().expect("an address"))
}

/// A service with a backend behind a tunnel that takes packets of 100 bytes.
fn plane() -> KernelPlane {
    let (mut plane, _) = KernelPlane::open(None, &Limits::default()).expect("load (needs root)");
    let vip = VipKey { address: mapped(VIP), protocol: Protocol::Tcp, port: Some(80) };
    plane.set_service(vip, ServiceId(SERVICE)).unwrap();
    let tunnel = Tunnel {
        encapsulation: Encapsulation::Ipip,
        source: Some("192.0.2.1".parse().unwrap()),
        spread: 0,
        mtu: 100,
    };
    let entry = BackendEntry::new("192.0.2.7".parse().unwrap(), 1).with_tunnel(&tunnel);
    let entry = entry.with_next_hop([2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 0, 9], 0, true);
    plane.set_backend(BackendId::of(5), &entry).unwrap();
    let builder = TrackedBuilder::new(HashKey::from_seed(1), 251, false);
    let member =
        Member { backend: BackendId::of(5), name: "b".into(), weight: 1, role: Role::Serving };
    plane.publish(ServiceId(SERVICE), &builder.build(1, &[member]).expect("it fits")).unwrap();
    plane
}

fn ping() -> Vec<u8> {
    craft::icmp((mapped(CLIENT), mapped(VIP)), [8, 0], 1, b"hello")
}

fn large() -> Vec<u8> {
    let parse = |text: &str| text.parse().expect("an address");
    let flow = FlowKey::new(parse("10.8.0.1:5555"), parse("10.9.0.1:80"), Protocol::Tcp);
    let mut frame = Frame::new(flow).tcp_flags(TcpFlags::SYN).payload(200).build();
    frame[20] = 0x40;
    frame
}

/// Frames of a kind: how many came back as messages, which are at most as large as they may be.
fn sent(plane: &KernelPlane, frame: &[u8], times: u32, most: usize) -> u64 {
    let mut sent = 0;
    for _ in 0..times {
        let run = run_frame(plane.program(), frame).unwrap();
        if run.verdict == Verdict::Transmit {
            assert!(run.frame.len() <= most, "{} bytes", run.frame.len());
            sent += 1;
        }
    }
    sent
}

/// A message in ten seconds, and the burst; on each processor that frames came to.
#[test]
fn messages_are_limited() {
    const FRAMES: u32 = 20_000;
    let plane = plane();
    let processors = std::thread::available_parallelism().unwrap().get() as u64;
    for (name, frame, most, reasons) in [
        ("pings", ping(), ping().len(), [Reason::EchoAnswered, Reason::EchoLimited]),
        ("large packets", large(), large().len() + 28, [Reason::TooBigTold, Reason::Untold]),
    ] {
        plane.set_message_rates(0, 0);
        assert_eq!(sent(&plane, &frame, 100, most), 0, "{name}: none is sent");
        plane.set_message_rates(1, 1);
        let before = plane.outcomes().unwrap();
        let started = Instant::now();
        let answered = sent(&plane, &frame, FRAMES, most);
        let allowed = processors * (MESSAGE_BURST + started.elapsed().as_secs() + 1);
        println!("{name}: {answered} of {FRAMES} answered, {allowed} may be");
        assert!((MESSAGE_BURST..=allowed).contains(&answered), "{name}: {answered}");
        let after = plane.outcomes().unwrap();
        let dropped = |reason: Reason| {
            let of = |all: &std::collections::BTreeMap<Reason, (u64, u64)>| {
                all.get(&reason).map_or(0, |found| found.1)
            };
            of(&after) - of(&before)
        };
        assert_eq!(reasons.map(dropped), [answered, u64::from(FRAMES) - answered], "{name}");
    }
}

/// Without a rate of their own, echo requests are the kernel's, as they came.
#[test]
fn pings_are_the_kernels_if_they_are_not_answered() {
    let plane = plane();
    plane.set_message_rates(1000, 0);
    let run = run_frame(plane.program(), &ping()).unwrap();
    assert_eq!((run.verdict, run.frame), (Verdict::Pass, ping()));
    assert_eq!(plane.outcomes().unwrap()[&Reason::OtherProtocol], (1, 0));
}

/// A router says that the next link of the tunnel's way takes packets of 1,400 bytes.
fn narrow() -> Vec<u8> {
    let ends = |text: &str| std::net::SocketAddr::new(text.parse().expect("an address"), 0);
    let outer = FlowKey::new(ends("192.0.2.1"), ends("192.0.2.7"), Protocol::Udp);
    let quoted = Frame::new(outer).payload(20).build();
    craft::icmp((mapped("192.0.2.9"), mapped("192.0.2.1")), [3, 4], 1400, &quoted[14..])
}

/// Errors about packets of tunnels are seen by the next program as all that is passed, and are followed only
/// while there is a tunnel.
#[test]
fn what_routers_say_is_followed_for_tunnels_and_goes_on() {
    let mut plane = plane();
    let passed = |plane: &KernelPlane| {
        let all = plane.outcomes().unwrap();
        [Reason::PathMtu, Reason::OtherProtocol].map(|reason| all.get(&reason).copied())
    };
    let run = |plane: &KernelPlane| run_frame(plane.program(), &narrow()).unwrap();
    assert_eq!((run(&plane).verdict, run(&plane).frame), (Verdict::Pass, narrow()));
    assert_eq!(passed(&plane), [Some((2, 0)), None]);
    let pin = format!("/sys/fs/bpf/weir-test-next-{}", std::process::id());
    let next = Pinned::without_pings(Path::new(&pin), true).expect("a program");
    plane.hand_on(Some(Path::new(&pin))).unwrap();
    drop(next);
    assert_eq!(run(&plane).verdict, Verdict::Drop, "the next program takes no ICMP");
    assert_eq!(passed(&plane), [Some((3, 0)), None]);
    // Another backend's tunnel is one as well.
    let tunnelled = plane.backend(BackendId::of(5));
    plane.set_backend(BackendId::of(6), &tunnelled).unwrap();
    let plain = BackendEntry::new("192.0.2.7".parse().unwrap(), 1);
    plane.set_backend(BackendId::of(5), &plain).unwrap();
    run(&plane);
    assert_eq!(passed(&plane), [Some((4, 0)), None]);
    plane.set_backend(BackendId::of(6), &BackendEntry::default()).unwrap();
    assert_eq!(run(&plane).verdict, Verdict::Drop);
    assert_eq!(passed(&plane), [Some((4, 0)), Some((1, 0))]);
}
