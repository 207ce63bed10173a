//! Backends behind tunnels of every kind, and packets that are told apart by what tunnels look at.

use crate::twin::Twin;
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use std::net::IpAddr;
use weir_plane::forward::nat::{End, translate, translate_both};
use weir_plane::forward::{Encapsulation, NextHop, Segments, Tunnel};
use weir_plane::{Backend, Device, Hop, Plane, Soft, Verdict, Way};
use weir_steering::BackendId;
use weir_wire::craft::{self, Frame};
use weir_wire::{FlowKey, Protocol, map_address};

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
    let all = [Segments::Auto, Segments::Most(rng.random()), Segments::Most(1400)];
    let segments = *[None, None, Some(all[0]), Some(all[1]), Some(all[2])].choose(rng).unwrap();
    let plain = Backend {
        address: [10, 9, 1, 1].into(),
        incarnation,
        up: true,
        resets: false,
        hop: None,
        tunnel: None,
        translation: None,
        segments: segments
            .filter(|one| *one != Segments::Most(0) && *one != Segments::Most(u16::MAX)),
    };
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
    oracle.messages.fill();
    oracle.echoes.fill();
    oracle.resets.fill();
    // The verdict says which backend it is, and so whether its frames leave tagged.
    let mut tagged = frame.clone();
    let verdict = oracle.take(&mut tagged, Some(TAG));
    if let Verdict::Return { address, port, client, limits, .. } = verdict {
        let source = (address, port);
        match client {
            None => translate(frame, End::Source, source, None).unwrap(),
            Some((client, port)) => {
                translate_both(frame, source, (client, Some(port)), None).unwrap();
            }
        }
        if let Some(backend) = limits {
            oracle.limit_segments(frame, backend);
        }
        return verdict;
    }
    let Verdict::Forward { backend, .. } = verdict else {
        *frame = tagged;
        return verdict;
    };
    let to = oracle.backends.get(&backend);
    let untagged = to.is_some_and(|to| to.hop.is_none_or(|hop| hop.ifindex == 0));
    match to.map(|to| (to.address, to.tunnel, to.translation)) {
        Some((address, Some(tunnel), _)) if untagged => {
            weir_plane::pipeline::restamp(frame, &verdict);
            oracle.limit_segments(frame, backend);
            tunnel.encapsulate(frame, address, None).unwrap();
        }
        Some((_, _, Some(_))) if untagged => {
            weir_plane::pipeline::restamp(frame, &verdict);
            oracle.limit_segments(frame, backend);
            oracle.translate_to(frame, backend, None).unwrap();
        }
        _ => *frame = tagged,
    }
    verdict
}

/// The tunnel of a backend, or that its packets are translated, if they do not go as they are.
pub fn of(oracle: &Soft, backend: BackendId) -> Option<&'static str> {
    let backend = oracle.backends.get(&backend)?;
    if backend.translation.is_some() {
        return Some(if backend.address.is_ipv4() { "nat of IPv4" } else { "nat of IPv6" });
    }
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

/// Messages without end, or none: planes do not have the same time. A message each microsecond is more
/// than frames are sent here.
pub fn set_messages(plane: &mut Twin, rng: &mut ChaCha8Rng) {
    let mut rate = || if rng.random_bool(0.9) { 1_000_000 } else { 0 };
    let (errors, echoes, resets) = (rate(), rate(), rate());
    plane.kernel.set_message_rates(errors, echoes);
    plane.kernel.set_reset_rate(resets);
    let oracle = &mut plane.oracle;
    (oracle.messages, oracle.echoes) = Default::default();
    oracle.messages.set(errors);
    oracle.echoes.set(echoes);
    oracle.resets = Default::default();
    oracle.resets.set(resets);
}

/// A router on the way to a backend says what its next link takes; or somebody says something like it.
/// Frames to the backend ask for the way anew after that.
pub fn too_big(plane: &Twin, rng: &mut ChaCha8Rng) -> Option<(Vec<u8>, BackendId)> {
    let behind = |number: &BackendId| plane.oracle.backends[number].tunnel.is_some();
    let numbers: Vec<BackendId> = plane.oracle.backends.keys().copied().filter(behind).collect();
    let number = *numbers.choose(rng)?;
    let backend = &plane.oracle.backends[&number];
    let tunnel = backend.tunnel.as_ref()?;
    let source = tunnel.source?;
    let v4 = backend.address.is_ipv4();
    let flow = FlowKey::new((source, 1).into(), (backend.address, 2).into(), Protocol::Udp);
    let mut quote = Frame::new(flow).payload(rng.random_range(0..40)).build().split_off(14);
    let protocol = if v4 { 9 } else { 6 };
    quote[protocol] = *[4, 17, 41, 47, 47, 6].choose(rng).unwrap();
    if rng.random_bool(0.1) {
        let length = rng.random_range(0..=quote.len());
        quote.truncate(length);
    }
    let router: IpAddr = if v4 { "10.8.9.9" } else { "fd08::9:9" }.parse().unwrap();
    let to = if rng.random_bool(0.05) { router } else { source };
    let kinds: &[[u8; 2]] = if v4 {
        &[[3, 4], [3, 4], [3, 4], [3, 1], [11, 4]]
    } else {
        &[[2, 0], [2, 0], [2, 9], [1, 4]]
    };
    let mtu = *[0, 60, 552, 600, 1280, 1290, 1400, 70_000].choose(rng).unwrap();
    let ends = (map_address(router), map_address(to));
    Some((craft::icmp(ends, *kinds.choose(rng).unwrap(), mtu, &quote), number))
}
