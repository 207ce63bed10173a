//! Backends behind tunnels of every kind, and packets that are told apart by what tunnels look at.

use crate::twin::Twin;
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use std::net::IpAddr;
use weir_plane::forward::{Encapsulation, NextHop, Tunnel};
use weir_plane::{Backend, Device, Hop, Plane, Soft, Verdict, Way};
use weir_steering::BackendId;

/// An interface whose frames leave tagged, by the one that they came in by.
const TAGGED: u32 = 77;
const TAG: [u8; 4] = [0x81, 0, 0x01, 0x23];

pub fn tag_device(plane: &mut Twin) {
    let way = Way::Tagged { lower: 0, tag: TAG };
    let devices = [Device { ifindex: TAGGED, way }];
    plane.kernel.set_devices(&devices).unwrap();
}

/// Half of all backends are behind a tunnel, of each kind in turn, some of these by way of a VLAN. One of
/// them has no address to send from, and some ways take small packets only.
pub fn backend(rng: &mut ChaCha8Rng, number: u16, incarnation: u32) -> Backend {
    let plain =
        Backend { address: [10, 9, 1, 1].into(), incarnation, up: true, hop: None, tunnel: None };
    if number.is_multiple_of(2) {
        return plain;
    }
    let port = rng.random();
    let encapsulation = match number / 2 % 4 {
        0 => Encapsulation::Ipip,
        1 => Encapsulation::Gre,
        2 => Encapsulation::Fou(port),
        _ => Encapsulation::Gue(port),
    };
    let mut address = || -> IpAddr {
        let ipv6 = number & 8 != 0;
        if ipv6 { rng.random::<[u8; 16]>().into() } else { rng.random::<[u8; 4]>().into() }
    };
    let (address, source) = (address(), address());
    let ifindex = if rng.random_bool(0.3) { TAGGED } else { 0 };
    let tunnel = Tunnel {
        encapsulation,
        source: (number % 50 != 25).then_some(source),
        spread: *[0, 0, 1, 8, 31].choose(rng).unwrap(),
        mtu: *[0, 0, 0, 1500, 9000, 100_000, 100, 130].choose(rng).unwrap(),
    };
    let hop = Some(Hop { next: NextHop::default(), ifindex });
    Backend { address, hop, tunnel: Some(tunnel), ..plain }
}

/// Other DSCP, ECN, TTL and DF, and tags with a priority.
pub fn vary(rng: &mut ChaCha8Rng, frame: &mut [u8]) {
    let mut at = 12;
    while matches!(frame[at..at + 2], [0x81, 0] | [0x88, 0xa8]) {
        frame[at + 2] |= rng.random::<u8>() & 0xf0;
        at += 4;
    }
    let packet = &mut frame[at + 2..];
    let tos: u8 = rng.random();
    let ttl = if rng.random_bool(0.02) { rng.random_range(0..3) } else { rng.random() };
    if packet[0] >> 4 == 4 {
        packet[1] = tos;
        packet[6] = rng.random::<u8>() & 0x40;
        packet[8] = ttl;
        // Right or wrong, it is what the plane has to go on from.
        let check: [u8; 2] = *[[0xff, 0xff], [0xfe, 0xff], rng.random()].choose(rng).unwrap();
        packet[10..12].copy_from_slice(&check);
    } else {
        packet[0] |= tos >> 4;
        packet[1] = tos << 4 | rng.random::<u8>() & 15;
        packet[7] = ttl;
    }
}

/// What the oracle makes of a frame.
pub fn take(oracle: &mut Soft, frame: &mut Vec<u8>) -> Verdict {
    // The verdict says which backend it is, and so whether its frames leave tagged.
    let mut tagged = frame.clone();
    let verdict = oracle.take(&mut tagged, Some(TAG));
    let Verdict::Forward { backend, .. } = verdict else {
        *frame = tagged;
        return verdict;
    };
    let to = oracle.backends.get(&backend);
    match to.and_then(|to| Some((to, to.tunnel?))) {
        Some((to, tunnel)) if to.hop.is_some_and(|hop| hop.ifindex == 0) => {
            weir_plane::pipeline::restamp(frame, &verdict);
            tunnel.encapsulate(frame, to.address, None).unwrap();
        }
        _ => *frame = tagged,
    }
    verdict
}

/// The tunnel of a backend, if it has one.
pub fn of(oracle: &Soft, backend: BackendId) -> Option<&'static str> {
    let backend = oracle.backends.get(&backend)?;
    Some(match (backend.tunnel?.encapsulation, backend.address) {
        (Encapsulation::Ipip, IpAddr::V4(_)) => "ipip in IPv4",
        (Encapsulation::Ipip, IpAddr::V6(_)) => "ipip in IPv6",
        (Encapsulation::Gre, IpAddr::V4(_)) => "gre in IPv4",
        (Encapsulation::Gre, IpAddr::V6(_)) => "gre in IPv6",
        (Encapsulation::Fou(_), IpAddr::V4(_)) => "fou in IPv4",
        (Encapsulation::Fou(_), IpAddr::V6(_)) => "fou in IPv6",
        (Encapsulation::Gue(_), IpAddr::V4(_)) => "gue in IPv4",
        (Encapsulation::Gue(_), IpAddr::V6(_)) => "gue in IPv6",
    })
}
