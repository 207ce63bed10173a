//! How many messages the program sends: no more than it may.

use std::time::Instant;
use weir_dataplane::{BackendEntry, KernelPlane, Limits, Verdict, run_frame};
use weir_hash::HashKey;
use weir_plane::forward::{Encapsulation, Tunnel};
use weir_plane::{MESSAGE_BURST, VipKey};
use weir_steering::{BackendId, Member, Role, ServiceId, TrackedBuilder};
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
