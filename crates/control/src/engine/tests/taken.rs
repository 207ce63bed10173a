//! What somebody takes away from outside is noticed at the next look, made anew, and said as long as it is not.

use super::*;

/// The look that comes every `look_every`.
fn look(world: &mut World) {
    let mut timers = Timers::new();
    timers.next_hops.0 -= world.engine.config.balancer.look_every;
    world.engine.upkeep(&mut timers);
}

fn detached() -> Vec<(String, String)> {
    vec![("eth0".into(), "its link was detached".into())]
}

#[test]
fn a_program_that_is_taken_off_is_attached_again() {
    let mut world = World::new(1);
    let asked = world.engine.plane.asked(Operation::Attach);
    look(&mut world);
    assert_eq!(world.engine.plane.asked(Operation::Attach), asked, "nothing was taken away");
    world.engine.plane.taken.interfaces = detached();
    look(&mut world);
    assert!(world.engine.plane.taken.is_nothing(), "{:?}", world.engine.plane.taken);
    assert_eq!(world.warnings(), Vec::<String>::new());
    assert_eq!(world.engine.status().expect("readable").interfaces.len(), 1);
    world.engine.plane.taken.pins = Some("its directory is gone".into());
    look(&mut world);
    assert!(world.engine.plane.taken.is_nothing(), "{:?}", world.engine.plane.taken);
    // Of an interface that is not the file's nothing is said.
    world.engine.plane.taken.interfaces = vec![("eth9".into(), "its link was detached".into())];
    let asked = world.engine.plane.asked(Operation::Attach);
    look(&mut world);
    assert_eq!(world.engine.plane.asked(Operation::Attach), asked);
}

#[test]
fn what_cannot_be_put_back_is_said_until_it_can() {
    let mut world = World::new(1);
    world.engine.plane.taken.interfaces = detached();
    world.engine.plane.taken.pins = Some("its directory is gone".into());
    world.engine.plane.refuse(Operation::Attach);
    for _ in 0..2 {
        look(&mut world);
        let said = world.warnings().join("; ");
        for words in ["eth0: ", "its link was detached", "not balanced", "its directory is gone"] {
            assert!(said.contains(words), "{said}");
        }
        assert!(said.contains("refused on demand"), "{said}");
        assert!(world.engine.status().expect("readable").interfaces.is_empty());
    }
    world.engine.plane.refuse_nothing();
    look(&mut world);
    assert_eq!(world.warnings(), Vec::<String>::new());
    assert_eq!(world.engine.status().expect("readable").interfaces.len(), 1);
}

/// A reload does not wait for the look.
#[test]
fn a_reload_puts_back_what_was_taken_away() {
    let mut world = World::new(1);
    world.engine.plane.taken.interfaces = detached();
    let wanted = world.engine.config.clone();
    world.engine.reload_as(wanted, false).expect("nothing is refused");
    assert!(world.engine.plane.taken.is_nothing());
    assert_eq!(world.warnings(), Vec::<String>::new());
}

/// One that is deleted, renamed or moved is said until it is back, or is not the file's any more.
#[test]
fn an_interface_that_is_gone_is_said_until_it_is_back() {
    let mut world = World::new(1);
    let is_said = |world: &World| {
        let said = world.warnings();
        assert!(said.len() < 2, "{said:?}");
        said.iter().any(|one| one.starts_with("weir-none of balancer.interfaces is gone"))
    };
    world.engine.config.balancer.interfaces = vec!["weir-none".into()];
    world.engine.network.seen = vec![None];
    world.engine.follow_interfaces().expect("nothing is refused");
    assert!(!is_said(&world), "it has never been there");
    world.engine.network.seen = vec![Some((7, None))];
    for _ in 0..2 {
        world.engine.follow_interfaces().expect("nothing is refused");
        assert!(is_said(&world));
    }
    // As long as it cannot be followed, too.
    world.engine.network.seen = vec![Some((7, None))];
    world.engine.plane.refuse(Operation::Attach);
    world.engine.follow_interfaces().expect_err("it is refused");
    assert!(is_said(&world));
    world.engine.plane.refuse_nothing();
    // One that is there in any network namespace.
    world.engine.config.balancer.interfaces = vec!["lo".into()];
    assert!(!is_said(&world));
    world.engine.follow_interfaces().expect("nothing is refused");
    assert_eq!(world.warnings(), Vec::<String>::new());
}
