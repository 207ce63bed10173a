//! What becomes of first reports while nobody takes them, and one service is flooded: the others' are kept.

mod concury;

use std::collections::{BTreeMap, HashSet};

use concury::{LIMITS, ROOM, flow, plane_of, send};
use weir_dataplane::{Limits, LivePlane};
use weir_plane::Plane;
use weir_steering::update::{Draining, Plane as _};
use weir_steering::{EventKind, ServiceId, StateKey};
use weir_wire::TcpFlags;

/// More than ring and map together.
const FLOOD: u32 = 20_000;
/// Flows of a service that is not flooded.
const FEW: u32 = 300;

/// The plane with the smallest ring.
fn plane() -> LivePlane {
    plane_of(&LIMITS)
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
