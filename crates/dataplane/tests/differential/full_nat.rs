//! Backends whose packets get a source of the balancer's, their answers to it, and errors about what they were
//! sent.

use crate::twin::Twin;
use crate::{BACKENDS, World, nat, options};
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use weir_hash::HashKey;
use weir_plane::forward::mapping::MAPPING_TICK_SHIFT;
use weir_plane::forward::{Mapping, MappingRules, MappingTicks, Origin, Ports};
use weir_plane::{Plane, mapping_places};
use weir_steering::BackendId;
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, TcpFlags, map_address, unmap_address};

/// Connections that there is room for.
pub const MAPPINGS: u32 = 512;
/// Longer than a run takes, so that only the test makes them old.
const TICKS: MappingTicks =
    MappingTicks { opening: 10_000, closed: 20_000, tcp: 40_000, udp: 30_000 };

/// Two addresses of IPv4, one of IPv6.
pub fn rules(rng: &mut ChaCha8Rng) -> MappingRules {
    let origin = |address: IpAddr| Some(Origin { address, first_port: 1024, last_port: 32_767 });
    let origins = vec![
        origin([10, 7, 0, 1].into()),
        origin([10, 7, 0, 2].into()),
        None,
        origin("fd07::1".parse().unwrap()),
    ];
    MappingRules { key: HashKey::from_rng(rng), ticks: TICKS, origins }
}

/// Many, or so few that they are soon in use.
pub fn ports(rng: &mut ChaCha8Rng, ipv4: bool) -> Ports {
    let (first, addresses) = if ipv4 { (0, rng.random_range(1..=2)) } else { (3, 1) };
    match rng.random_bool(0.2) {
        true => Ports { first, addresses, first_port: 2000, ports: 8 },
        false => Ports { first, addresses, first_port: 1024, ports: 31_744 },
    }
}

pub fn tell(plane: &mut Twin, rules: &MappingRules) {
    plane.oracle.limits.mappings = MAPPINGS;
    plane.kernel.kernel.set_mapping_rules(rules).unwrap();
    plane.oracle.set_mapping_rules(rules).unwrap();
    assert_eq!(Plane::mapping_rules(&plane.kernel).as_ref(), Some(rules));
    assert_eq!(Plane::mapping_places(&plane.kernel), mapping_places(MAPPINGS) as usize);
}

/// All mappings are so much older.
pub fn pass_time(plane: &mut Twin, ticks: u32) {
    let time = u64::from(ticks) << MAPPING_TICK_SHIFT;
    plane.kernel.kernel.age_mappings(ticks);
    plane.kernel.kernel.age_paths(Duration::from_nanos(time)).unwrap();
    plane.kernel.kernel.age_caps(time).unwrap();
    plane.oracle.nanoseconds += time;
    // First fragments are long gone.
    plane.kernel.kernel.age_fragments(100).unwrap();
    plane.oracle.memory.fragment_clock += 100;
    // What routers have said is older, too.
    for backend in 0..BACKENDS {
        plane.kernel.kernel.forget_hop(BackendId::of(backend)).unwrap();
    }
}

/// Both planes have the same mappings, but for the clocks that they go by. Returns how many.
pub fn compare(plane: &Twin) -> u64 {
    let alike = |found: Option<Mapping>| found.map(|one| Mapping { since: 0, last: 0, ..one });
    let places = 0..mapping_places(MAPPINGS) as usize;
    let mut held = 0;
    for place in places {
        let found = alike(Plane::mapping(&plane.kernel, place));
        assert_eq!(found, alike(plane.oracle.mapping(place)), "place {place}");
        held += u64::from(found.is_some());
    }
    held
}

/// Whether a client of the network has this address.
fn is_client(address: &[u8; 16]) -> bool {
    match unmap_address(address) {
        IpAddr::V4(address) => address.octets().starts_with(&[10, 8]),
        IpAddr::V6(address) => address.segments()[0] == 0xfd08,
    }
}

/// A packet to a service from the end that a connection of its has at a backend, from another port of that host, or
/// from nobody.
fn from_a_backend(rng: &mut ChaCha8Rng, to: &FlowKey, backend: (IpAddr, u16)) -> Vec<u8> {
    let nobodies: &[&str] = match backend.0 {
        IpAddr::V4(_) => &["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255"],
        IpAddr::V6(_) => &["::", "::1", "ff02::1"],
    };
    let nobody: IpAddr = nobodies.choose(rng).unwrap().parse().unwrap();
    let (address, port) = match rng.random_range(0..4) {
        0 => (nobody, 1000),
        1 => (backend.0, backend.1 ^ 1),
        _ => backend,
    };
    let from = SocketAddr::new(address, port);
    let payload = rng.random_range(0..64);
    Frame::new(FlowKey::new(from, to.dst_socket(), to.protocol)).payload(payload).build()
}

/// An answer, or an error about a packet of a client, to an address of the balancer's; or a packet to a service that
/// no client has sent.
pub fn frame(world: &mut World) -> Option<Vec<u8>> {
    let places = mapping_places(MAPPINGS) as usize;
    let place = world.rng.random_range(0..places);
    let mut all = (place..places).chain(0..place);
    // The FIB knows no way to where damaged packets say that they come from.
    let found = all.find_map(|place| {
        world.plane.oracle.mapping(place).filter(|found| is_client(&found.flow.src))
    })?;
    let origin = world.plane.oracle.mapping_rules()?.origins[usize::from(found.origin)]?;
    let backend = world.plane.oracle.backends.get(&found.backend)?;
    let listens = backend.translation?.port.unwrap_or(found.flow.dst_port);
    let rng = &mut world.rng;
    if rng.random_bool(0.03) {
        return Some(from_a_backend(rng, &found.flow, (backend.address, listens)));
    }
    let port = match rng.random_range(0..20) {
        0 => rng.random_range(900..40_000),
        1 => found.port ^ 1,
        _ => found.port,
    };
    let listens = if rng.random_bool(0.02) { 9 } else { listens };
    let address = match (rng.random_bool(0.02), backend.address) {
        (true, IpAddr::V4(_)) => [10, 6, 77, 77].into(),
        (_, address) => address,
    };
    let sent = FlowKey {
        src: map_address(origin.address),
        dst: map_address(address),
        src_port: port,
        dst_port: listens,
        protocol: found.flow.protocol,
    };
    let payload = rng.random_range(0..64);
    let mut bytes = if rng.random_bool(0.8) {
        let ends = [(sent.dst, listens), (sent.src, port)];
        let [from, to] = ends.map(|(address, port)| (unmap_address(&address), port).into());
        let flags = [
            TcpFlags::SYN | TcpFlags::ACK,
            TcpFlags::ACK,
            TcpFlags::ACK,
            TcpFlags::FIN | TcpFlags::ACK,
            TcpFlags::RST,
        ];
        let flags = *flags.choose(rng).unwrap();
        let mut bytes = Frame::new(FlowKey::new(from, to, sent.protocol))
            .tcp_flags(flags)
            .payload(payload)
            .build();
        crate::tunnels::vary(rng, &mut bytes);
        if flags.intersects(TcpFlags::SYN) && sent.protocol == Protocol::Tcp {
            options::insert(&mut bytes, &options::segments(rng));
        }
        let v4 = bytes[12..14] == [8, 0];
        if sent.protocol == Protocol::Udp && v4 && rng.random_bool(0.2) {
            bytes[40..42].fill(0);
        }
        if world.rng.random_bool(0.1) {
            return Some(nat::in_pieces(world, &bytes));
        }
        if !v4 && world.rng.random_bool(0.05) {
            world.extend(&mut bytes);
        }
        bytes
    } else {
        nat::error(world, sent, payload)
    };
    if world.rng.random_bool(0.05) {
        nat::damage(&mut world.rng, &mut bytes);
    }
    Some(bytes)
}
