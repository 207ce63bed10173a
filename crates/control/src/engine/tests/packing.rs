//! Tables of which one finds no room in a row, though there is enough in sum.

use super::*;

/// A table finds no room in a row, though there is enough in sum: all are put side by side, once, and the update is
/// made up for.
#[test]
fn a_table_without_room_in_a_row_has_all_put_side_by_side() {
    let mut world = World::new(1);
    world.start(0, 0..50);
    world.upkeep();
    let resized = world.engine.plane.asked(Operation::Resize);
    world.engine.plane.bounds.piece = 100;
    let down = world.health("a", "b1", false);
    world.upkeep();
    assert!(world.warnings()[0].contains("no room"), "{:?}", world.warnings());
    world.check_later();
    world.upkeep();
    assert_eq!(world.warnings(), Vec::<String>::new());
    assert!(!world.start(0, 50..100).contains(&down));
    world.check_later();
    world.upkeep();
    assert_eq!(world.engine.plane.asked(Operation::Resize), resized + 1);
}

/// Tables that cannot be put side by side, at whichever step of it, go on as they are, and it is tried again.
#[test]
fn tables_that_are_not_put_side_by_side_go_on_as_they_are() {
    for (operation, takes_time) in [
        (Operation::PreparePacking, false),
        (Operation::PreparePacking, true),
        (Operation::Resize, false),
    ] {
        let mut world = World::new(1);
        world.engine.plane.takes_time = takes_time;
        world.start(0, 0..50);
        world.upkeep();
        world.engine.plane.bounds.piece = 100;
        let down = world.health("a", "b1", false);
        world.engine.plane.refuse_after(operation, 0, 2);
        let before = world.engine.plane.asked(operation);
        for _ in 0..2 {
            world.upkeep();
            assert_eq!(world.engine.plane.bounds.piece, 100, "{operation:?}");
            assert!(world.warnings()[0].contains("no room"), "{:?}", world.warnings());
            world.check_later();
        }
        assert_eq!(world.engine.plane.asked(operation), before + 2, "{operation:?}");
        world.upkeep();
        assert_ne!(world.engine.plane.bounds.piece, 100, "{operation:?}: they are");
        world.upkeep_later();
        assert_eq!(world.warnings(), Vec::<String>::new(), "{operation:?}");
        assert!(!world.start(0, 50..100).contains(&down));
        world.check_later();
    }
}
