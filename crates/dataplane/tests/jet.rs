//! What is counted of JET's connection table, through the program in the kernel.

use weir_dataplane::{BackendEntry, KernelPlane, Limits, Verdict, run_frame};
use weir_plane::{TrackedFlows, VipKey};
use weir_steering::{BackendId, Member, MethodId, Role, ServiceConfig, ServiceId, Settings};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, TcpFlags, map_address};

const SERVICE: u32 = 2;

fn limits(tracked_flows: u32) -> Limits {
    Limits {
        answered_flows: 1,
        translations: 64,
        slot_partitions: 1,
        services: 4,
        table_bytes: 1 << 20,
        backends: 64,
        pending_flows: 64,
        unreported_flows: 64,
        tracked_flows,
        udp_flows: 64,
        event_ring_bytes: 4096,
        marked_flows: 128,
        stranger_bits: 1024,
        mappings: 1,
        list_prefixes: 1,
    }
}

fn flow(number: u32) -> FlowKey {
    let [_, a, b, c] = number.to_be_bytes();
    let from = format!("10.{}.{b}.{c}:4000", 100 + a).parse().unwrap();
    FlowKey::new(from, "10.1.0.1:80".parse().unwrap(), Protocol::Tcp)
}

fn send(plane: &KernelPlane, number: u32, flags: TcpFlags) {
    let frame = Frame::new(flow(number)).tcp_flags(flags).build();
    assert_eq!(run_frame(plane.program(), &frame).unwrap().verdict, Verdict::Transmit);
}

/// A service of which a third of the flows is tracked, over a table for so many.
fn plane(tracked_flows: u32) -> KernelPlane {
    let (mut plane, _) =
        KernelPlane::open(None, &limits(tracked_flows)).expect("load (needs root)");
    let config = ServiceConfig {
        settings: Settings::of(MethodId::named("jet").unwrap()),
        client_affinity: false,
        udp: false,
        seed: 7,
        nonce: 0,
        capacity: 16,
        max_states: 16,
        idle_seconds: 1_000,
    };
    let mut builder = MethodId::named("jet").unwrap().info().builder.unwrap()(&config, None);
    let address = map_address("10.1.0.1".parse().unwrap());
    plane
        .set_service(
            VipKey { address, protocol: Protocol::Tcp, port: Some(80) },
            ServiceId(SERVICE),
        )
        .unwrap();
    let members: Vec<Member> = (0..3)
        .map(|backend| {
            let entry = BackendEntry::new("10.1.1.1".parse().unwrap(), 1);
            let entry = entry.with_next_hop([2, 0, 0, 1, 0, backend as u8], [2; 6], 0, true);
            plane.set_backend(BackendId::of(backend), &entry).unwrap();
            let role = if backend == 2 { Role::Draining } else { Role::Serving };
            Member { backend: BackendId::of(backend), name: format!("b{backend}"), weight: 1, role }
        })
        .collect();
    let built = builder.build(1, &members, 0).unwrap();
    plane.publish(ServiceId(SERVICE), &built.table).unwrap();
    plane
}

/// What the table says of each flow, one by one.
fn there(plane: &KernelPlane, flows: std::ops::Range<u32>) -> u64 {
    flows.filter(|n| plane.connection(&flow(*n)).unwrap().is_some()).count() as u64
}

/// A table that is too small: whoever got in and is not there any more was evicted, and is counted once for
/// each time; one with room for all evicts nobody, however often their packets come.
#[test]
fn evictions_are_counted() {
    const FLOWS: u32 = 6_000;
    let roomy = plane(65_536);
    for flags in [TcpFlags::SYN, TcpFlags::SYN, TcpFlags::ACK] {
        (0..FLOWS).for_each(|number| send(&roomy, number, flags));
    }
    let all = there(&roomy, 0..FLOWS);
    assert!((1_000..3_000).contains(&all), "{all}: a third is the third backend's to be");
    assert_eq!(
        roomy.tracked_flows(ServiceId(SERVICE)).unwrap(),
        TrackedFlows { there: all, evicted: 0 },
        "nobody was evicted"
    );

    let small = plane(256);
    (0..FLOWS).for_each(|number| send(&small, number, TcpFlags::SYN));
    let left = there(&small, 0..FLOWS);
    assert!(left <= 256 && left > 0, "{left} are there");
    assert_eq!(
        small.tracked_flows(ServiceId(SERVICE)).unwrap(),
        TrackedFlows { there: left, evicted: all - left },
        "{all} were put there"
    );
    // They get in again, and others go.
    (0..FLOWS).for_each(|number| send(&small, number, TcpFlags::SYN));
    let now = small.tracked_flows(ServiceId(SERVICE)).unwrap();
    assert_eq!(now.there, there(&small, 0..FLOWS));
    assert!(now.evicted > all - left && now.there + now.evicted <= 2 * all, "{now:?}");
    // Another service's are none of its.
    assert_eq!(small.tracked_flows(ServiceId(SERVICE + 1)).unwrap(), TrackedFlows::default());
    small.forget_connections(ServiceId(SERVICE)).unwrap();
    assert_eq!(small.tracked_flows(ServiceId(SERVICE)).unwrap(), TrackedFlows::default());
}
