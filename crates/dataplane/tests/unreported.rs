//! What becomes of first reports while nobody takes them, and one service is flooded: the others' are kept.

use std::collections::{BTreeMap, HashSet};

use weir_dataplane::{BackendEntry, KernelPlane, Limits, LivePlane, Verdict, run_frame};
use weir_plane::{Plane, VipKey};
use weir_steering::update::{Draining, Plane as _};
use weir_steering::{
    BackendId, EventKind, Member, MethodId, Role, ServiceConfig, ServiceId, Settings, StateKey,
};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, TcpFlags, map_address};

/// What the map has room for.
const ROOM: u32 = 4096;
/// More than ring and map together.
const FLOOD: u32 = 20_000;
/// Flows of a service that is not flooded.
const FEW: u32 = 300;

const LIMITS: Limits = Limits {
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

/// Services 1 to 4 of `concury`, at 10.1.0.1 to 10.1.0.4.
fn plane() -> LivePlane {
    plane_of(&LIMITS)
}

fn plane_of(limits: &Limits) -> LivePlane {
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

fn flow(service: u32, number: u32) -> FlowKey {
    let from = format!("10.9.{}.{}:{}", number >> 8 & 255, number & 255, 1024 + (number >> 16));
    let to = format!("10.1.0.{service}:80");
    FlowKey::new(from.parse().unwrap(), to.parse().unwrap(), Protocol::Tcp)
}

fn send(plane: &LivePlane, flow: FlowKey, flags: u8) {
    let frame = Frame::new(flow).tcp_flags(TcpFlags(flags)).build();
    let run = run_frame(plane.program(), &frame).unwrap();
    assert_eq!(run.verdict, Verdict::Transmit);
}

fn begin(plane: &LivePlane, service: u32, flows: std::ops::Range<u32>) {
    flows.for_each(|number| send(plane, flow(service, number), TcpFlags::SYN.0));
}

/// Takes all reports: the flows that began, by service.
fn take(plane: &mut LivePlane) -> BTreeMap<u32, HashSet<StateKey>> {
    let mut found: BTreeMap<u32, HashSet<StateKey>> = BTreeMap::new();
    plane
        .drain(&mut |event| {
            if event.kind == EventKind::Start {
                found.entry(event.state.service.0).or_default().insert(event.state.key);
            }
        })
        .unwrap();
    found
}

fn count(found: &BTreeMap<u32, HashSet<StateKey>>, service: u32) -> u32 {
    found.get(&service).map_or(0, HashSet::len) as u32
}

#[test]
fn a_flood_of_one_service_leaves_room_for_the_others() {
    let mut plane = plane();
    for round in 0..2 {
        begin(&plane, 1, 0..FLOOD);
        let refused = plane.unrecorded();
        assert!(refused > 0, "round {round}: a flood fills its share");
        begin(&plane, 2, 0..FEW);
        begin(&plane, 3, 0..FEW);
        assert_eq!(plane.unrecorded(), refused, "round {round}: others' flows are kept");
        // A flow that is known there is no further one.
        let kept = plane.unrecorded();
        begin(&plane, 2, 0..FEW);
        assert_eq!(plane.unrecorded(), kept, "round {round}: nor are they kept twice");
        begin(&plane, 2, FEW..FLOOD);
        let refused = plane.unrecorded();
        begin(&plane, 4, 0..FEW);
        assert_eq!(plane.unrecorded(), refused, "round {round}: after two floods");

        let found = take(&mut plane);
        for service in [3, 4] {
            assert_eq!(count(&found, service), FEW, "round {round}: of service {service}");
        }
        assert!(count(&found, 1) >= ROOM / 2 && count(&found, 1) < FLOOD, "round {round}");
        assert!(count(&found, 2) >= FEW, "round {round}");
        // All is free again: the next round finds as much room.
        assert!(take(&mut plane).is_empty(), "round {round}");
    }
}

#[test]
fn flows_that_end_make_room() {
    let mut plane = plane();
    begin(&plane, 1, 0..FLOOD);
    let refused = plane.unrecorded();
    // Whatever was noted ends, and so does what was not, which gives back nothing.
    (0..FLOOD).for_each(|number| send(&plane, flow(1, number), TcpFlags::RST.0));
    begin(&plane, 1, FLOOD..FLOOD + ROOM / 2);
    assert_eq!(plane.unrecorded(), refused);
    begin(&plane, 1, FLOOD + ROOM / 2..FLOOD + ROOM);
    assert!(plane.unrecorded() > refused, "and no more than its share");
    assert!(count(&take(&mut plane), 1) >= ROOM / 2);
}

/// Reports that are taken in parts are taken off one by one.
#[test]
fn what_is_taken_in_parts_makes_room_in_parts() {
    let mut plane = plane();
    begin(&plane, 1, 0..FLOOD);
    let refused = plane.unrecorded();
    let mut taken = 0;
    assert!(plane.put_aside(100, &mut |_| taken += 1).unwrap());
    assert_eq!(taken, 100);
    begin(&plane, 1, FLOOD..FLOOD + 50);
    assert_eq!(plane.unrecorded(), refused, "there is room for half of them");
    begin(&plane, 1, FLOOD + 50..FLOOD + 200);
    assert!(plane.unrecorded() > refused);
}

/// However many come meanwhile, at any place of the map, what was there when draining began has been taken when it is
/// over, and it is over soon.
#[test]
fn what_was_there_is_taken_in_parts_beside_what_comes() {
    const THERE: u32 = 30_000;
    /// Of another service, between two parts.
    const COME: u32 = 3_000;
    let mut plane = plane_of(&Limits { unreported_flows: 1 << 17, ..LIMITS });
    begin(&plane, 1, 0..THERE);
    assert_eq!(plane.unrecorded(), 0);
    let mut draining = Draining::default();
    let (mut found, mut parts, mut largest) = (HashSet::new(), 0, 0);
    loop {
        let mut taken = 0;
        let more = plane.drain_part(&mut draining, &mut |event| {
            taken += 1;
            if event.state.service == ServiceId(1) {
                found.insert(event.state.key);
            }
        });
        (parts, largest) = (parts + 1, largest.max(taken));
        if !more.unwrap() {
            break;
        }
        assert!(parts < 40, "it does not end");
        begin(&plane, 2, parts * COME..(parts + 1) * COME);
    }
    println!("{parts} parts, {largest} reports in the largest");
    assert_eq!(found.len() as u32, THERE);
    assert!(parts > 3 && largest < THERE / 2);
    assert_eq!(plane.unrecorded(), 0);
    let left = take(&mut plane);
    println!("{} came behind it", count(&left, 2));
    assert_eq!(count(&left, 1), 0);
}
