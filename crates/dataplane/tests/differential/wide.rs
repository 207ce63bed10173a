//! Further addresses of services, prefixes, and blocks of ports: what packets find where no service has their
//! very address and port.

use super::Service;
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use weir_dataplane::KernelPlane;
use weir_plane::{Listen, Plane, Soft, VipKey};
use weir_steering::{ServiceState, StateKey};
use weir_wire::{FlowKey, Protocol, fragment, icmp, parse, unmap_address};

/// By the number of the service: address, bits, protocol, first port, bits of the port, salt. One takes a part
/// of what another one does, by its address or by its port. Of services with a connection table no two flows have
/// one state: in the kernel's that has the address, in the oracle's it has the state.
const PLACES: [(u32, &str, u8, Protocol, u16, u8, u16); 12] = [
    (0, "10.9.0.101", 32, Protocol::Tcp, 80, 16, 1),
    (0, "10.9.0.102", 32, Protocol::Tcp, 8192, 10, 2),
    (1, "fd09:0:1::", 48, Protocol::Tcp, 440, 13, 3),
    (2, "10.9.16.0", 20, Protocol::Udp, 53, 16, 4),
    (4, "fd09:1::", 100, Protocol::Udp, 0, 0, 5),
    (5, "10.9.32.0", 19, Protocol::Tcp, 80, 16, 8192),
    (5, "10.9.0.103", 32, Protocol::Tcp, 0, 0, 1),
    (8, "10.9.32.64", 26, Protocol::Tcp, 443, 16, 64),
    (9, "fd09:2::", 64, Protocol::Tcp, 1024, 16, 8),
    (11, "10.9.32.64", 26, Protocol::Tcp, 64, 10, 1),
    (11, "10.9.0.103", 32, Protocol::Tcp, 80, 12, 9),
    (13, "fd09::", 16, Protocol::Udp, 48, 12, 2),
];

/// All of these, in both planes.
pub fn listen(kernel: &mut KernelPlane, oracle: &mut Soft) -> Vec<(Listen, u32)> {
    let all = PLACES.map(|(service, address, bits, protocol, port, port_bits, salt)| {
        let address = address.parse().unwrap();
        let at = Listen { salt, ..Listen::new((address, bits), protocol, (port, port_bits)) };
        (at, service)
    });
    for (at, service) in all {
        kernel.set_service(at, weir_steering::ServiceId(service)).unwrap();
        oracle.set_service(at, weir_steering::ServiceId(service)).unwrap();
    }
    all.to_vec()
}

/// The same flow to another one of its service's places, or to just beside it.
pub fn moved(
    rng: &mut ChaCha8Rng,
    places: &[(Listen, u32)],
    service: &Service,
    flow: FlowKey,
) -> FlowKey {
    let own: Vec<_> = places.iter().filter(|(_, number)| *number == service.number.0).collect();
    let Some((at, _)) = own.choose(rng).filter(|_| rng.random_bool(0.4)) else { return flow };
    // A few of its addresses, so that flows come more than once.
    let mut address = at.address;
    let host = u128::from_be_bytes(address)
        | u128::from(rng.random_range(0..3u8)) << rng.random_range(0..2);
    let host_bits = 128 - u32::from(at.address_bits);
    if host_bits >= 2 {
        address = host.to_be_bytes();
    }
    let beside = rng.random_bool(0.05);
    let ports = 1u32 << (16 - at.port_bits);
    let offset = if beside { ports } else { rng.random_range(0..ports.min(PORTS.into())) };
    let port = at.port.wrapping_add(offset as u16).max(1);
    FlowKey { dst_port: port, dst: address, ..flow }
}

/// Services of [`PLACES`] with a connection table.
const TABLED: [u32; 3] = [5, 8, 9];

/// Hosts of a prefix that [`moved`] takes, and how far from the first one of a block it takes ports.
const HOSTS: [u128; 4] = [0, 1, 2, 4];
const PORTS: u16 = 3;

/// Whether a frame was damaged such that it, or what it quotes, is for another host of a prefix, or another port of
/// a block, than those that are taken on purpose, and has an entry in a connection table. The kernel's has the flow
/// and the oracle's the state, and two far addresses of a large prefix, or far ports, may have the same one.
pub fn strays(places: &[(Listen, u32)], frame: &[u8]) -> bool {
    let packet = parse(frame).ok().or_else(|| fragment(frame)?.packet.ok());
    let flow = packet.map(|packet| packet.flow);
    let Some(flow) = flow.or_else(|| Some(icmp::quoted(frame)?.flow)) else { return false };
    let taken = places.iter().filter(|(at, _)| at.takes(&flow));
    let Some((at, service)) = taken.max_by_key(|(at, _)| at.exactness()) else { return false };
    let host = u128::from_be_bytes(flow.dst) ^ u128::from_be_bytes(at.address);
    let far = at.port_bits < 16 && flow.dst_port.wrapping_sub(at.port) >= PORTS;
    TABLED.contains(service) && (far || !HOSTS.contains(&host))
}

/// The flows that a state may be of, whose service is steered by the client or not, among the addresses that [`moved`] takes.
pub fn flows_of(
    state: &ServiceState,
    vip: &VipKey,
    by_client: bool,
    places: &[(Listen, u32)],
) -> Vec<FlowKey> {
    let own = places.iter().filter(|(_, number)| *number == state.service.0).map(|(at, _)| *at);
    let mut all = Vec::new();
    for at in own.chain([vip.into()]) {
        for host in HOSTS {
            let dst = (u128::from_be_bytes(at.address) | host).to_be_bytes();
            let StateKey { address: src, src_port, dst_port } = state.key;
            let dst_port = if by_client { 0 } else { dst_port ^ at.salt_of(&dst) };
            let flow = FlowKey { src, dst, src_port, dst_port, protocol: at.protocol };
            if at.has_address(&dst) && (by_client || at.takes(&flow)) {
                all.push(flow);
            }
        }
    }
    all
}

/// The family of what is listened on, in words.
pub fn kind(at: &Listen) -> &'static str {
    match (at.is_one_address(), at.port_bits) {
        (true, 16) => "address",
        (true, _) => "ports",
        (false, 16) => "prefix",
        (false, _) => "both",
    }
}

/// Which of the places a flow goes to.
pub fn place<'a>(places: &'a [(Listen, u32)], flow: &FlowKey) -> Option<&'a Listen> {
    let all = places.iter().map(|(at, _)| at).filter(|at| at.takes(flow));
    all.max_by_key(|at| at.exactness()).filter(|_| !unmap_address(&flow.dst).is_loopback())
}
