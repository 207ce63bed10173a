//! A plane with services 1 to 4 of `concury`, at 10.1.0.1 to 10.1.0.4 port 80, and one backend.

use weir_dataplane::{BackendEntry, KernelPlane, Limits, LivePlane, Verdict, run_frame};
use weir_plane::VipKey;
use weir_steering::{BackendId, Member, MethodId, Role, ServiceConfig, ServiceId, Settings};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, TcpFlags, map_address};

/// What the map of unreported flows has room for.
pub const ROOM: u32 = 4096;

/// Limits with the smallest ring.
pub const LIMITS: Limits = Limits {
    answered_flows: 1,
    translations: 1,
    slot_partitions: 1,
    services: 8,
    table_bytes: 1 << 20,
    backends: 8,
    pending_flows: 64,
    unreported_flows: ROOM,
    tracked_flows: 64,
    udp_flows: 64,
    event_ring_bytes: 4096,
    marked_flows: 128,
    stranger_bits: 1024,
    list_prefixes: 1,
    mappings: 1,
};

/// The plane with these limits.
pub fn plane_of(limits: &Limits) -> LivePlane {
    let (mut plane, _) = KernelPlane::open(None, limits).expect("load (needs root)");
    let entry = BackendEntry::new("10.1.1.1".parse().unwrap(), 1);
    let entry = entry.with_next_hop([2, 0, 0, 1, 0, 0], [2; 6], 0, true);
    plane.set_backend(BackendId::of(0), &entry).unwrap();
    let member =
        Member { backend: BackendId::of(0), name: "b0".into(), weight: 1, role: Role::Serving };
    for number in 1..=4 {
        let config = ServiceConfig {
            settings: Settings::of(MethodId::Concury),
            client_affinity: false,
            udp: false,
            seed: number.into(),
            nonce: 0,
            capacity: 16,
            max_states: 16,
            idle_seconds: 1_000,
        };
        let mut builder = MethodId::Concury.info().builder.unwrap()(&config, None);
        let address = map_address(format!("10.1.0.{number}").parse().unwrap());
        let vip = VipKey { address, protocol: Protocol::Tcp, port: Some(80) };
        plane.set_service(vip, ServiceId(number)).unwrap();
        let built = builder.build(1, std::slice::from_ref(&member), 0).unwrap();
        plane.publish(ServiceId(number), &built.table).unwrap();
    }
    LivePlane::new(plane).unwrap()
}

/// A flow of a service.
pub fn flow(service: u32, number: u32) -> FlowKey {
    let from = format!("10.9.{}.{}:{}", number >> 8 & 255, number & 255, 1024 + (number >> 16));
    let to = format!("10.1.0.{service}:80");
    FlowKey::new(from.parse().unwrap(), to.parse().unwrap(), Protocol::Tcp)
}

/// A packet of it goes to the backend.
pub fn send(plane: &LivePlane, flow: FlowKey, flags: u8) {
    let frame = Frame::new(flow).tcp_flags(TcpFlags(flags)).build();
    let run = run_frame(plane.program(), &frame).unwrap();
    assert_eq!(run.verdict, Verdict::Transmit);
}
