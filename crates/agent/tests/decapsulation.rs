//! The program that takes packets out of tunnels, against the one that puts them in: random packets of both
//! families, in tunnels of every kind over both, come out as they went in; whatever is not as it should be stays
//! as it is.

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use weir_agent::ready::{Network, Segments, Wanted, decapsulation};
use weir_dataplane::{FrameRun, Verdict, run_frame};
use weir_plane::forward::{Encapsulation, Tunnel};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, TcpFlags};

const VIP4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 100));
const VIP6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 0x100));
const OWN4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 2, 1));
const OWN6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 2, 1));
const BALANCER4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));
const BALANCER6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2));
const KINDS: [Encapsulation; 6] = [
    Encapsulation::Ipip,
    Encapsulation::Gre,
    Encapsulation::Fou(5555),
    Encapsulation::Fou(7000),
    Encapsulation::Gue(6080),
    Encapsulation::Gue(7001),
];

fn load(tunnels: &[Encapsulation], sources: &[&str], reflect: bool) -> OwnedFd {
    let sources = sources.iter().map(|one| one.parse::<Network>().unwrap());
    let wanted = Wanted {
        interfaces: Vec::new(),
        services: vec![VIP4, VIP6],
        tunnels: tunnels.to_vec(),
        sources: sources.collect(),
        segments: Segments::Auto,
    };
    decapsulation(&wanted, &[OWN4, OWN6], reflect).expect("load; needs root")
}

/// A frame for an address, and the same without the TTL that entering a tunnel takes.
fn frame(random: &mut impl Rng, to: IpAddr) -> Vec<u8> {
    let from: IpAddr = match to {
        IpAddr::V4(_) => Ipv4Addr::from(random.random::<u32>() | 1 << 24).into(),
        IpAddr::V6(_) => Ipv6Addr::from(random.random::<u128>() >> 3 | 1 << 125).into(),
    };
    let protocol = *[Protocol::Tcp, Protocol::Udp].choose(random).unwrap();
    let flow = FlowKey::new((from, random.random()).into(), (to, 80).into(), protocol);
    let mut frame = Frame::new(flow).payload(random.random_range(0..1200));
    if protocol == Protocol::Tcp {
        frame = frame.tcp_flags(TcpFlags::ACK);
    }
    frame.build()
}

fn tunnel(encapsulation: Encapsulation, backend: IpAddr) -> Tunnel {
    let source = Some(if backend.is_ipv4() { BALANCER4 } else { BALANCER6 });
    Tunnel { encapsulation, source, spread: 0, mtu: 0 }
}

/// The frame in a tunnel, with so many VLAN tags.
fn wrapped(frame: &[u8], kind: Encapsulation, backend: IpAddr, tags: usize) -> Vec<u8> {
    let mut outer = frame.to_vec();
    tunnel(kind, backend).encapsulate(&mut outer, backend, None).unwrap();
    for tag in 0..tags as u8 {
        outer.splice(12..12, [0x81, 0, 0, 7 + tag]);
    }
    outer
}

/// What comes out: the frame, its TTL one less, with these tags.
fn unwrapped(frame: &[u8], tags: usize) -> Vec<u8> {
    let mut inner = frame.to_vec();
    match inner[14] >> 4 {
        4 => {
            inner[22] -= 1;
            inner[24..26].fill(0);
            let sum = inner[14..34].chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1]));
            let mut sum: u32 = sum.sum();
            while sum > 0xffff {
                sum = (sum & 0xffff) + (sum >> 16);
            }
            inner[24..26].copy_from_slice(&(!sum as u16).to_be_bytes());
        }
        _ => inner[21] -= 1,
    }
    for tag in 0..tags as u8 {
        inner.splice(12..12, [0x81, 0, 0, 7 + tag]);
    }
    inner
}

fn passes(program: &OwnedFd, frame: &[u8], why: &str) {
    let run = run_frame(program.as_fd(), frame).unwrap();
    assert_eq!(run, FrameRun { verdict: Verdict::Pass, frame: frame.to_vec() }, "{why}");
}

#[test]
fn what_goes_into_a_tunnel_comes_out() {
    let program = load(&KINDS, &[], false);
    let trusting = load(&KINDS, &["192.0.2.0/24", "10.77.0.0/24", "fd77::/112"], false);
    let seed: u64 =
        std::env::var("WEIR_SEED").map_or_else(|_| rand::random(), |s| s.parse().unwrap());
    println!("WEIR_SEED={seed}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    for _ in 0..4000 {
        let to = *[VIP4, VIP6].choose(&mut random).unwrap();
        let backend = *[OWN4, OWN6].choose(&mut random).unwrap();
        let kind = *KINDS.choose(&mut random).unwrap();
        let tags = random.random_range(0..=2);
        let frame = frame(&mut random, to);
        let outer = wrapped(&frame, kind, backend, tags);
        let wanted = FrameRun { verdict: Verdict::Pass, frame: unwrapped(&frame, tags) };
        for program in [&program, &trusting] {
            let run = run_frame(program.as_fd(), &outer).unwrap();
            assert_eq!(run, wanted, "{kind:?} to {backend}, {tags} tags");
        }
        // The frame itself is no tunnel.
        passes(&program, &frame, "without a tunnel");
        // Cut short anywhere, or with any bit of its headers wrong, it never becomes anything else but
        // what was inside.
        let cut = random.random_range(14..outer.len());
        let run = run_frame(program.as_fd(), &outer[..cut]).unwrap();
        assert!(run.verdict == Verdict::Pass && run.frame == outer[..cut], "cut to {cut}");
        let mut wrong = outer.clone();
        let at = random.random_range(12..outer.len() - frame.len() + 14);
        wrong[at] ^= 1 << random.random_range(0..8);
        let run = run_frame(program.as_fd(), &wrong).unwrap();
        if run.verdict == Verdict::Pass && run.frame != wrong {
            assert_eq!(run.frame.len(), unwrapped(&frame, tags).len(), "bit at {at}");
            assert_eq!(
                run.frame[run.frame.len() - (frame.len() - 14)..][..8],
                unwrapped(&frame, 0)[14..22]
            );
        }
    }
}

#[test]
fn what_is_not_for_us_is_left_to_the_kernel() {
    let program = load(&KINDS, &[], false);
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for (own, other) in [
        (OWN4, IpAddr::from([10, 77, 2, 2])),
        (OWN6, "fd77::2:2".parse().unwrap()),
        (OWN4, VIP4),
        (OWN6, VIP6),
    ] {
        for kind in KINDS {
            let good = frame(&mut random, VIP4);
            passes(&program, &wrapped(&good, kind, other, 0), "the tunnel ends elsewhere");
            for stranger in ["10.77.0.101", "fd77::101", "10.77.2.1", "127.0.0.1"] {
                let stranger: IpAddr = stranger.parse().unwrap();
                let frame = frame(&mut random, stranger);
                passes(&program, &wrapped(&frame, kind, own, 0), "for no service");
            }
            let far = load(&KINDS, &["192.0.2.0/24", "2001:db8::/32"], false);
            passes(&far, &wrapped(&good, kind, own, 0), "from elsewhere");
            let others: Vec<_> = KINDS.into_iter().filter(|one| *one != kind).collect();
            let less = load(&others, &[], false);
            passes(&less, &wrapped(&good, kind, own, 0), "a tunnel that nobody has asked for");
            let mut twice = wrapped(&good, kind, own, 0);
            // In another tunnel: only one is taken off, if what is inside is for a service; it is not.
            tunnel(Encapsulation::Ipip, own).encapsulate(&mut twice, own, None).ok();
            let run = run_frame(program.as_fd(), &twice).unwrap();
            assert_eq!(run.verdict, Verdict::Pass);
        }
    }
}

/// Headers that contradict each other.
#[test]
fn damaged_headers_are_left_to_the_kernel() {
    let program = load(&KINDS, &[], false);
    let mut random = ChaCha8Rng::seed_from_u64(2);
    let good = frame(&mut random, VIP4);
    let ipip = wrapped(&good, Encapsulation::Ipip, OWN4, 0);
    // With the outer header's sum made right again.
    let with = |at: usize, bytes: &[u8]| {
        let mut frame = ipip.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame[24..26].fill(0);
        let sum: u32 =
            frame[14..34].chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        frame[24..26].copy_from_slice(&(!sum as u16).to_be_bytes());
        frame
    };
    assert_ne!(
        run_frame(program.as_fd(), &with(22, &[9])).unwrap().frame.len(),
        ipip.len(),
        "another TTL"
    );
    let mut sum = ipip.clone();
    sum[24] ^= 1;
    passes(&program, &sum, "the sum of the outer header");
    passes(&program, &with(14, &[0x46]), "options in the outer header");
    passes(&program, &with(16, &[0xff, 0xff]), "the outer length");
    passes(&program, &with(16, &[0, 24]), "an outer packet that is shorter than what is inside");
    passes(&program, &with(20, &[0x20, 0]), "the first fragment of an outer packet");
    passes(&program, &with(20, &[0, 9]), "a later fragment");
    passes(&program, &with(34, &[0x65]), "another version inside");
    passes(&program, &with(34, &[0x44]), "a header that is too short inside");
    passes(&program, &with(36, &[0xff, 0xff]), "the inner length");
    passes(&program, &with(23, &[41]), "the other family is announced");
    let gue = wrapped(&good, Encapsulation::Gue(6080), OWN6, 0);
    for (at, what) in [
        (56, "the port"),
        (59, "the length of UDP"),
        (60, "a checksum"),
        (62, "a flag of GUE"),
        (63, "what GUE announces"),
    ] {
        let mut wrong = gue.clone();
        wrong[at] ^= 3;
        passes(&program, &wrong, what);
    }
    let gre = wrapped(&good, Encapsulation::Gre, OWN4, 0);
    for (at, what) in [(34, "flags of GRE"), (36, "the type in GRE")] {
        let mut wrong = gre.clone();
        wrong[at] ^= 0x80;
        passes(&program, &wrong, what);
    }
}

/// RFC 6040: the mark of congestion on the way reaches the packet inside, or the packet does not arrive.
#[test]
fn congestion_on_the_way_is_handed_on() {
    let program = load(&KINDS, &[], false);
    let mut random = ChaCha8Rng::seed_from_u64(3);
    for (to, backend) in [(VIP4, OWN4), (VIP6, OWN4), (VIP4, OWN6), (VIP6, OWN6)] {
        for ecn in 0..4u8 {
            let mut good = frame(&mut random, to);
            set_ecn(&mut good, ecn);
            let mut outer = wrapped(&good, Encapsulation::Ipip, backend, 0);
            set_ecn(&mut outer, 3);
            let run = run_frame(program.as_fd(), &outer).unwrap();
            if ecn == 0 {
                assert_eq!(run.verdict, Verdict::Drop);
                continue;
            }
            let mut wanted = unwrapped(&good, 0);
            set_ecn(&mut wanted, 3);
            assert_eq!(
                run,
                FrameRun { verdict: Verdict::Pass, frame: wanted },
                "{ecn} {to} {backend}"
            );
        }
    }
}

fn set_ecn(frame: &mut [u8], ecn: u8) {
    if frame[14] >> 4 == 6 {
        frame[15] = frame[15] & !0x30 | ecn << 4;
        return;
    }
    frame[15] = frame[15] & !3 | ecn;
    frame[24..26].fill(0);
    let mut sum: u32 =
        frame[14..34].chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[24..26].copy_from_slice(&(!sum as u16).to_be_bytes());
}

#[test]
fn the_benchs_form_sends_back_what_it_took_out() {
    let program = load(&[Encapsulation::Ipip], &[], true);
    let mut random = ChaCha8Rng::seed_from_u64(4);
    let good = frame(&mut random, VIP4);
    let outer = wrapped(&good, Encapsulation::Ipip, OWN4, 0);
    let run = run_frame(program.as_fd(), &outer).unwrap();
    let mut wanted = unwrapped(&good, 0);
    let (to, from) = wanted.split_at_mut(6);
    to.swap_with_slice(&mut from[..6]);
    assert_eq!(run, FrameRun { verdict: Verdict::Transmit, frame: wanted });
}
