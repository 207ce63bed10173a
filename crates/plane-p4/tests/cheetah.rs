//! Cheetah on a switch, from the registers in memory: turns, full tables, a restart, and what is refused.

mod cookies;

use cookies::{SERVICE, backend, filled, flow, frame, image, settings, show};
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_plane::{Attachment, Outcome, Plane, Soft, VipKey};
use weir_plane_p4::layout::{PARTITIONS, TRACKED_PLACES};
use weir_plane_p4::{Error, Model, P4, fits};
use weir_steering::cheetah::{self, PARTITION_SLOTS};
use weir_steering::update::Plane as _;
use weir_steering::{BackendId, Flags, Image, LOAD, MethodId, SCHEDULER, SoftMemory};
use weir_wire::{Protocol, Reason, TcpFlags};

/// A switch with this table.
fn switch(image: &Arc<Image>, backends: u16) -> P4<Model> {
    filled(P4::new(Model::default()).expect("it is in memory"), image, backends)
}

/// Where a packet goes, and what its backend is told.
fn send(plane: &mut P4<Model>, frame: &[u8]) -> (Result<u16, Reason>, Option<u32>) {
    let target = plane.target();
    let went = match target.process(frame) {
        Outcome::Forwarded(backend) => Ok(backend.get()),
        Outcome::Dropped(reason) | Outcome::Passed(reason) => Err(reason),
        Outcome::Returned => unreachable!("a switch returns nothing"),
    };
    (went, target.told)
}

#[test]
fn turns_are_exact_over_a_cycle() {
    let weights = [5, 1, 3, 0];
    for (scheduler, wanted) in [("wrr", [5, 1, 3, 0]), ("rr", [1, 1, 1, 0])] {
        for method in [MethodId::Cheetah, MethodId::CheetahStateful] {
            let image = image(method, &[(SCHEDULER, scheduler)], &weights);
            let mut plane = switch(&image, 4);
            let cycle: u32 = wanted.iter().sum();
            for round in 0..4 {
                let mut got = [0; 4];
                for number in 0..cycle {
                    let syn = frame(round * cycle + number, TcpFlags::SYN, Some(0));
                    got[usize::from(send(&mut plane, &syn).0.expect("somebody takes it"))] += 1;
                }
                assert_eq!(got, wanted, "{scheduler} by {method}");
            }
            assert_eq!(plane.turn(SERVICE), u64::from(4 * cycle));
        }
    }
}

#[test]
fn no_change_of_the_pool_moves_a_connection() {
    for method in [MethodId::Cheetah, MethodId::CheetahStateful] {
        let words = [(SCHEDULER, "wrr")];
        let mut plane = switch(&image(method, &words, &[1; 40]), 40);
        let mut lives = BTreeMap::new();
        for number in 0..4_000 {
            // Every tenth client has no timestamps.
            let echo = (number % 10 != 0).then_some(0);
            let (went, told) = send(&mut plane, &frame(number, TcpFlags::SYN, echo));
            assert_eq!(told.is_some(), echo.is_some());
            lives.insert(number, (went.expect("somebody takes it"), told));
        }
        for round in 1..9u16 {
            let mut weights = vec![1; 40];
            (0..round).for_each(|n| weights[usize::from(n)] = 0);
            plane.set_clock(u32::from(round) * 10);
            show(&mut plane, &image(method, &words, &weights)).expect("a switch can do it");
            for (number, (backend, told)) in &lives {
                let ack = frame(*number, TcpFlags::ACK, *told);
                assert_eq!(send(&mut plane, &ack), (Ok(*backend), None), "{method}");
            }
        }
    }
}

/// A connection that finds no slot is tracked, and forged cookies do nobody harm.
#[test]
fn a_full_partition_and_forged_cookies() {
    let one = image(MethodId::CheetahStateful, &[(cheetah::PARTITIONS, "1")], &[1, 1, 1]);
    let mut plane = switch(&one, 3);
    let mut opened = Vec::new();
    for number in 0..PARTITION_SLOTS {
        let (went, told) = send(&mut plane, &frame(number, TcpFlags::SYN, Some(0)));
        opened.push((went.expect("it is taken"), told.expect("it has a slot")));
    }
    let counts = |plane: &P4<Model>| plane.slot_counts(SERVICE).expect("it has slots");
    assert_eq!((counts(&plane).used, counts(&plane).full), (u64::from(PARTITION_SLOTS), 0));
    let late = PARTITION_SLOTS + 5;
    let (went, told) = send(&mut plane, &frame(late, TcpFlags::SYN, Some(0)));
    assert_eq!((told, counts(&plane).full), (None, 1));
    // Its backend writes no cookie, so that what it echoes is anything.
    assert_eq!(send(&mut plane, &frame(late, TcpFlags::ACK, Some(0x1234_0000))).0, went);
    let before = counts(&plane);
    for number in 0..1_000u32 {
        let (_, told) = opened[number as usize + 1];
        let forged = frame(number, TcpFlags::ACK, Some(told ^ 0x4_0000));
        send(&mut plane, &forged).0.expect("somebody resets it");
    }
    let after = counts(&plane);
    assert!(after.foreign + after.stale >= before.foreign + before.stale + 990, "{after:?}");
    for (number, (went, told)) in (0..).zip(&opened) {
        assert_eq!(send(&mut plane, &frame(number, TcpFlags::ACK, Some(*told))).0, Ok(*went));
    }
    // An hour later nobody is there any more, and each new one gives two or more slots back.
    plane.set_clock(3_600);
    for number in 0..100 {
        let syn = frame(late + 1 + number, TcpFlags::SYN, Some(0));
        assert!(send(&mut plane, &syn).1.is_some());
    }
    assert!(counts(&plane).used < u64::from(PARTITION_SLOTS) - 50, "{:?}", counts(&plane));
}

/// The table of flows without cookies forgets those that were silent longest, and nobody else.
#[test]
fn tracked_flows_give_way_to_others_by_their_silence() {
    let image = image(MethodId::Cheetah, &[(SCHEDULER, "rr")], &[1; 8]);
    let mut plane = switch(&image, 8);
    let mut here = Vec::new();
    for number in 0..1_000 {
        here.push(send(&mut plane, &frame(number, TcpFlags::SYN, None)).0);
    }
    for number in 1_000..TRACKED_PLACES * 2 {
        if number % 20_000 == 0 {
            plane.set_clock(number / 1_000);
            for (number, went) in (0..).zip(&here) {
                assert_eq!(send(&mut plane, &frame(number, TcpFlags::ACK, None)).0, *went);
            }
        }
        send(&mut plane, &frame(number, TcpFlags::SYN, None)).0.expect("it is taken");
    }
}

#[test]
fn a_restart_keeps_cookies_without_slots_and_forgets_the_others() {
    for (method, stays) in [(MethodId::Cheetah, true), (MethodId::CheetahStateful, false)] {
        let image = image(method, &[(SCHEDULER, "rr"), (cheetah::FORGED, "refuse")], &[1; 3]);
        let mut plane = switch(&image, 3);
        let (went, told) = send(&mut plane, &frame(1, TcpFlags::SYN, Some(0)));
        *plane.target() = Model::default();
        plane.drain(&mut |_| {}).expect("it is in memory");
        assert_eq!(plane.fills(), 2);
        let again = send(&mut plane, &frame(1, TcpFlags::ACK, told)).0;
        assert_eq!(again, if stays { went } else { Err(Reason::NoCookie) });
    }
}

#[test]
fn what_a_switch_cannot_do_is_refused() {
    let stateful = MethodId::CheetahStateful;
    let told = (LOAD, "told");
    for (method, words, right) in [
        (MethodId::Cheetah, vec![(cheetah::ANSWERS, "inline")], "answers = \"backend\""),
        (stateful, vec![(cheetah::ANSWERS, "inline")], "answers = \"backend\""),
        (MethodId::Cheetah, vec![(SCHEDULER, "p2c"), told], "scheduler = \"uniform\""),
        (stateful, vec![(SCHEDULER, "least"), told], "scheduler = \"uniform\""),
        (MethodId::Cheetah, vec![(cheetah::TIER_BITS, "5")], "tier_bits"),
        (stateful, vec![(cheetah::TIER_BITS, "5")], "tier_bits"),
    ] {
        let plain = image(MethodId::Cheetah, &[], &[1]);
        let mut plane = switch(&plain, 1);
        let error = show(&mut plane, &image(method, &words, &[1])).expect_err("it cannot");
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(right), "{error}");
        let misfit = fits(&settings(method, &words)).expect_err("it is told before");
        assert!(misfit.right.contains(right) || misfit.setting == right, "{misfit:?}");
        let syn = frame(1, TcpFlags::SYN, Some(0));
        assert_eq!(send(&mut plane, &syn).0, Ok(0), "the table before goes on");
    }
    let many = (PARTITIONS + 1).to_string();
    let many = image(stateful, &[(cheetah::PARTITIONS, &many)], &[1]);
    let mut plane = switch(&image(MethodId::Cheetah, &[], &[1]), 1);
    let error = show(&mut plane, &many).expect_err("there is no room");
    assert!(error.to_string().contains("PARTITIONS"), "{error}");
    assert_eq!(P4::<Model>::limit_of(&error), Some("slot_partitions"));
}

#[test]
fn the_next_control_plane_keeps_all_connections() {
    for method in [MethodId::Cheetah, MethodId::CheetahStateful] {
        let image = image(method, &[(SCHEDULER, "wrr")], &[1, 4, 2]);
        let mut plane = switch(&image, 3);
        plane.set_clock(50);
        let mut lives = Vec::new();
        for number in 0..300 {
            let echo = (number % 10 != 0).then_some(0);
            lives.push(send(&mut plane, &frame(number, TcpFlags::SYN, echo)));
        }
        let (counts, turn) = (plane.slot_counts(SERVICE), plane.turn(SERVICE));
        let next = P4::over(plane.into_target()).expect("it is in memory");
        assert!(next.was_filled());
        let mut plane = filled(next, &image, 3);
        plane.attach(&[], Attachment::Auto).expect("it is in memory");
        assert_eq!((plane.clock(), plane.turn(SERVICE)), (50, turn));
        assert_eq!(plane.slot_counts(SERVICE), counts);
        for (number, (went, told)) in (0..).zip(&lives) {
            let ack = frame(number, TcpFlags::ACK, *told);
            assert_eq!(send(&mut plane, &ack).0, *went, "{method}, {number}");
        }
        // Stacks and places are whole: others find theirs.
        for number in 1_000..1_300 {
            let syn = frame(number, TcpFlags::SYN, Some(0));
            assert!(send(&mut plane, &syn).1.is_some());
        }
        for (number, (went, told)) in (0..).zip(&lives) {
            let ack = frame(number, TcpFlags::ACK, *told);
            assert_eq!(send(&mut plane, &ack).0, *went, "{method}, {number}");
        }
    }
}

/// Partitions of a service that is removed are another's, and empty.
#[test]
fn partitions_come_back() {
    let all = PARTITIONS.to_string();
    let all = image(MethodId::CheetahStateful, &[(cheetah::PARTITIONS, &all)], &[1, 1]);
    let mut plane = switch(&all, 2);
    for number in 0..100 {
        send(&mut plane, &frame(number, TcpFlags::SYN, Some(0))).0.expect("it is taken");
    }
    assert_eq!(plane.slot_counts(SERVICE).expect("it has slots").used, 100);
    plane.remove_service(SERVICE).expect("it is in memory");
    assert_eq!(plane.slot_counts(SERVICE), None);
    show(&mut plane, &all).expect("there is room again");
    assert_eq!(plane.slot_counts(SERVICE).expect("it has slots").used, 0);
    assert!(all.header().flags().has(Flags::TELLS));
}

/// What is told of a connection is what the plane in memory says.
#[test]
fn a_tracked_flow_can_be_looked_up() {
    let one = image(MethodId::CheetahStateful, &[(cheetah::PARTITIONS, "1")], &[1, 1, 1]);
    let mut plane = switch(&one, 3);
    let mut soft = Soft::new(SoftMemory::default());
    let vip = VipKey { address: flow(0).dst, protocol: Protocol::Tcp, port: Some(80) };
    soft.set_service(vip, SERVICE).expect("it is in memory");
    for number in 0..3 {
        soft.set_backend(BackendId::of(number), Some(&backend(number))).expect("it is in memory");
    }
    weir_steering::update::Plane::show(&mut soft, SERVICE, &one, one.header().flags())
        .expect("it is in memory");
    for number in 0..20 {
        let syn = frame(number, TcpFlags::SYN, (number % 3 != 0).then_some(0));
        send(&mut plane, &syn).0.expect("it is taken");
        soft.process(&syn);
        let known = plane.connection(&flow(number)).expect("it is in memory");
        assert!(known.is_some());
        assert_eq!(known, Plane::connection(&soft, &flow(number)).expect("it is in memory"));
    }
    plane.forget_connections(SERVICE).expect("it is in memory");
    assert_eq!(plane.connection(&flow(1)).expect("it is in memory"), None);
}
