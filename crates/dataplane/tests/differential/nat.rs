//! Backends whose packets are translated, their answers, and errors about what they were sent; in a network
//! where every client is behind one router.

use crate::World;
use crate::full_nat;
use crate::options;
use crate::twin::Twin;
use rand::Rng;
use rand::seq::{IndexedRandom, IteratorRandom, SliceRandom};
use rand_chacha::ChaCha8Rng;
use std::net::IpAddr;
use weir_plane::forward::Translation;
use weir_plane::{Backend, Plane, Translated, Translations, VipKey};
use weir_steering::BackendId;
use weir_testbed::link::{self, End};
use weir_wire::craft::{self, Frame};
use weir_wire::{FlowKey, Protocol, TcpFlags, map_address};

/// The router's address, and that of the interface that leads to it.
pub const ROUTER: [u8; 6] = [2, 0, 0, 0, 5, 2];
pub const OWN: [u8; 6] = [2, 0, 0, 0, 5, 1];

/// Gives this thread a network of its own, in which the FIB knows the way to every client.
pub fn enter_network() {
    weir_testbed::enter_own_namespace().expect("needs root");
    for (file, value) in [
        ("ipv4/conf/all/forwarding", "1"),
        ("ipv4/conf/lo/forwarding", "1"),
        ("ipv6/conf/all/forwarding", "1"),
        ("ipv6/conf/default/accept_dad", "0"),
    ] {
        weir_testbed::sysctl(file, value).expect("needs root");
    }
    let mut lines = link::veth(&[End::new("v0").mac(OWN), End::new("v1")]);
    lines += &["lo", "v0", "v1"].map(link::up).concat();
    for (own, router) in [("10.5.0.1/24", "10.5.0.2"), ("fd05::1/64", "fd05::2")] {
        lines += &link::address(own, "v0");
        lines += &link::neighbour(router.parse().expect("an address"), ROUTER, "v0");
        lines += &format!("route add default via {router}\n");
    }
    link::ip(&lines).expect("a way to every client");
}

/// Every fourth backend of a service gets its packets translated, but for SCTP. Its address and port are nobody else's.
pub fn backend(rng: &mut ChaCha8Rng, number: u16, vip: &VipKey, plain: Backend) -> Option<Backend> {
    if number % 4 != 2 || vip.protocol == Protocol::Sctp {
        return None;
    }
    let ipv4 = vip.address.starts_with(&[0; 10]);
    let address: IpAddr = if ipv4 {
        let [high, low] = number.to_be_bytes();
        [10, 6, high, low].into()
    } else {
        [0xfd06, rng.random(), 0, 0, 0, 0, 0, number].into()
    };
    let port = vip.port.filter(|_| rng.random_bool(0.7)).map(|_| rng.random_range(1000..1004));
    let mtu = *[0, 0, 0, 1500, 100_000, 90].choose(rng).unwrap();
    let ports = (number % 8 == 2).then(|| full_nat::ports(rng, ipv4));
    Some(Backend { address, translation: Some(Translation { port, mtu, ports }), ..plain })
}

/// Whose answers the backend's are.
pub fn of_backend(id: BackendId, backend: &Backend, vip: &VipKey) -> Option<(VipKey, Translated)> {
    let translation = backend.translation.filter(|to| to.ports.is_none())?;
    let port = translation.port.or(vip.port);
    let from = VipKey { address: map_address(backend.address), port, ..*vip };
    Some((from, Translated { service: *vip, limits: backend.segments.map(|_| id) }))
}

pub fn tell(plane: &mut Twin, translations: &Translations) {
    plane.kernel.set_translations(translations).unwrap();
    plane.oracle.set_translations(translations).unwrap();
}

/// An answer, or an error of a router behind the balancer, or of the backend itself, about a packet of a
/// client; now and then of another port.
pub fn frame(world: &mut World) -> Option<Vec<u8>> {
    if world.rng.random_bool(0.1) && !world.returning.is_empty() {
        return Some(piece(world));
    }
    if world.rng.random_bool(0.4) {
        return full_nat::frame(world);
    }
    let from = *world.translations.keys().choose(&mut world.rng)?;
    let address = weir_wire::unmap_address(&from.address);
    let port = from.port.unwrap_or_else(|| world.rng.random_range(1..5));
    let port = if world.rng.random_bool(0.03) { 9 } else { port };
    let number: u16 = world.rng.random_range(0..300);
    let client: IpAddr = match address {
        IpAddr::V4(_) => [10, 8, (number >> 4) as u8, (number & 15) as u8].into(),
        IpAddr::V6(_) => [0xfd08, 0, 0, 0, 0, 0, number >> 4, number & 15].into(),
    };
    let ends = ((address, port).into(), (client, 1000 + number % 7).into());
    let payload = world.rng.random_range(0..64);
    let mut bytes = if world.rng.random_bool(0.7) {
        let flags = [TcpFlags::SYN | TcpFlags::ACK, TcpFlags::ACK, TcpFlags::RST];
        let flags = *flags.choose(&mut world.rng).unwrap();
        let mut frame = Frame::new(FlowKey::new(ends.0, ends.1, from.protocol));
        for _ in 0..world.rng.random_range(0..20u32).saturating_sub(17) {
            frame = frame.vlan(world.rng.random_range(1..4000));
        }
        let mut bytes = frame.tcp_flags(flags).payload(payload).build();
        crate::tunnels::vary(&mut world.rng, &mut bytes);
        if flags.intersects(TcpFlags::SYN) && from.protocol == Protocol::Tcp {
            options::insert(&mut bytes, &options::segments(&mut world.rng));
        }
        if from.protocol == Protocol::Udp && bytes[12..14] == [8, 0] && world.rng.random_bool(0.2) {
            bytes[40..42].fill(0);
        }
        if world.rng.random_bool(0.1) {
            return Some(in_pieces(world, &bytes));
        }
        if world.rng.random_bool(0.05) && bytes[12..14] == [0x86, 0xdd] {
            world.extend(&mut bytes);
        }
        bytes
    } else {
        error(world, FlowKey::new(ends.1, ends.0, from.protocol), payload)
    };
    if world.rng.random_bool(0.1) {
        damage(&mut world.rng, &mut bytes);
    }
    Some(bytes)
}

/// A packet in pieces, of which one comes now and the others later, out of order, twice, or not at all.
pub fn in_pieces(world: &mut World, whole: &[u8]) -> Vec<u8> {
    let id = world.rng.random_range(0..50);
    let bytes = *[8, 16, 24, 32, 64].choose(&mut world.rng).unwrap();
    let mut parts = craft::fragments(whole, id, bytes);
    parts.truncate(5);
    if world.rng.random_bool(0.3) {
        parts.shuffle(&mut world.rng);
    }
    world.returning.extend(parts);
    let surplus = world.returning.len().saturating_sub(32);
    world.returning.drain(..surplus);
    piece(world)
}

/// One of those that are on their way.
fn piece(world: &mut World) -> Vec<u8> {
    let first = world.rng.random_bool(0.7);
    let at = if first { 0 } else { world.rng.random_range(0..world.returning.len()) };
    let mut bytes = match world.rng.random_bool(0.1) {
        true => world.returning[at].clone(),
        false => world.returning.remove(at),
    };
    if world.rng.random_bool(0.05) {
        damage(&mut world.rng, &mut bytes);
    }
    bytes
}

pub fn error(world: &mut World, sent: FlowKey, payload: u16) -> Vec<u8> {
    let rng = &mut world.rng;
    let v4 = sent.is_ipv4();
    let mut quote = Frame::new(sent).payload(payload).build().split_off(14);
    if rng.random_bool(0.1) {
        if v4 {
            quote[0] = 0x46;
            quote.splice(20..20, [1; 4]);
        } else {
            let next = std::mem::replace(&mut quote[6], 44);
            quote.splice(40..40, [next, 0, 0, 1, 0, 0, 0, 9]);
        }
    }
    if rng.random_bool(0.4) {
        let length = rng.random_range(0..=quote.len());
        quote.truncate(length);
    }
    if rng.random_bool(0.1) && v4 && sent.protocol == Protocol::Udp && quote.len() >= 28 {
        quote[26..28].fill(0);
    }
    let router = if v4 { "10.6.99.99" } else { "fd06::99:99" };
    let router = map_address(router.parse().unwrap());
    let from = if rng.random_bool(0.5) { router } else { sent.dst };
    let kinds: &[u8] = if v4 { &[3, 3, 11, 12, 8] } else { &[1, 2, 3, 4, 128] };
    let kind = *kinds.choose(rng).unwrap();
    let mut frame = craft::icmp((from, sent.src), [kind, 4], 1280, &quote);
    if rng.random_bool(0.2) {
        // Padding is no part of what is quoted.
        frame.extend([0xee; 20]);
    }
    if !v4 && rng.random_bool(0.1) {
        world.extend(&mut frame);
    }
    frame
}

/// Cuts the frame, or changes a byte in front of the addresses: the FIB is to know the way.
pub fn damage(rng: &mut ChaCha8Rng, bytes: &mut Vec<u8>) {
    if rng.random_bool(0.5) {
        let length = rng.random_range(14..=bytes.len());
        bytes.truncate(length);
    } else {
        let at = rng.random_range(12..26).min(bytes.len() - 1);
        bytes[at] = *[0, 1, 6, 17, 43, 58, 60, 0x45, 0x46, 0x60, rng.random()].choose(rng).unwrap();
    }
}
