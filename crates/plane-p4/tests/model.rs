//! The registers that a switch would be written, and a program that decides from them alone, against the tables
//! that the writes were made of: the same random frames through random pool histories.
//!
//! `WEIR_SEED=n` repeats a run, `WEIR_PACKETS=n` sets its length. `make p4-test` does the same with a switch.

mod cookies;
mod world;

use rand::Rng;
use weir_plane::{Attachment, Outcome, Plane as _};
use weir_plane_p4::layout::RING;
use weir_plane_p4::{Model, P4};
use weir_steering::MethodId;
use weir_steering::update::Plane as _;
use weir_wire::{Reason, TcpFlags};
use world::{World, from_environment};

#[test]
fn the_registers_decide_as_the_tables_do() {
    let seed = from_environment("WEIR_SEED", rand::random);
    let packets = from_environment("WEIR_PACKETS", || 60_000);
    let mut world = World::new(seed, Model::default(), 0, |_| {});
    let mut cookies = 0;
    for packet in 0..packets {
        match world.rng.random_range(0..60) {
            0..3 => world.update_any(),
            3 if packet % 7 == 0 => world.turn_marks(),
            4 if packet % 11 == 0 => world.next_generation(),
            5 => world.wait(),
            _ => {}
        }
        let frame = world.frame();
        if !world.is_common(&frame) {
            continue;
        }
        let wanted = world.judge(&frame);
        let found = world.plane.p4.target().process(&frame);
        assert!(
            World::<Model>::same(found, wanted),
            "packet {packet}: {found:?} where {wanted:?} is right: {frame:02x?}"
        );
        if matches!(found, weir_plane::Outcome::Forwarded(_)) {
            let told = world.plane.p4.target().told;
            assert_eq!(told, world.told, "packet {packet}: {frame:02x?}");
            cookies += u64::from(told.is_some());
        }
        if packet % 997 == 0 {
            world.compare_memory();
        }
    }
    world.settle();
    world.compare_memory();
    println!("{:#?}", world.outcomes);
    println!("{} updates, {} reports", world.updates, world.plane.compared);
    let slots = world.slot_counts();
    println!("{cookies} cookies told; {slots:?}");
    let [stale, foreign] = [slots.stale, slots.foreign];
    assert!(packets < 50_000 || cookies > 1_000 && slots.used > 100 && stale > 100 && foreign > 10);
    assert!(world.plane.compared > packets / 20 && world.updates > packets / 1_000);
    for reason in ["forwarded", "dropped OtherHost", "dropped NoBackend", "dropped NoCookie"] {
        assert!(packets < 50_000 || world.outcomes.contains_key(reason), "none was {reason}");
    }
}

/// A flow that nobody is told of must not begin. Those that have begun go on, and their ends are lost.
#[test]
fn a_full_ring_starts_no_connection() {
    for method in [MethodId::Concury, MethodId::Residue] {
        let image = cookies::image(method, &[], &[1, 3, 2]);
        let new = P4::new(Model::default()).expect("it is in memory");
        let mut plane = cookies::filled(new, &image, 3);
        plane.attach(&["lo".to_owned()], Attachment::Auto).expect("it is there");
        let send = |plane: &mut P4<Model>, number: u32, flags: TcpFlags| {
            plane.target().process(&cookies::frame(number, flags, None))
        };
        let begun: Vec<Outcome> =
            (0..RING).map(|number| send(&mut plane, number, TcpFlags::SYN)).collect();
        assert!(begun.iter().all(|outcome| matches!(outcome, Outcome::Forwarded(_))));
        let refused = Outcome::Dropped(Reason::PendingFull);
        assert_eq!(send(&mut plane, RING, TcpFlags::SYN), refused);
        for (number, outcome) in (0..).zip(&begun).step_by(97) {
            for flags in [TcpFlags::ACK, TcpFlags::FIN | TcpFlags::ACK] {
                assert_eq!(send(&mut plane, number, flags), *outcome, "{method}: {number}");
            }
        }
        let mut told = 0;
        plane.drain(&mut |_| told += 1).expect("it is in memory");
        assert_eq!(told, RING, "{method}");
        plane.outcomes().expect("they can be read");
        assert!(plane.unrecorded() > 0, "{method}: ends found no room");
        assert!(matches!(send(&mut plane, RING, TcpFlags::SYN), Outcome::Forwarded(_)));
    }
}
