//! A balancer that joins a fleet, and waits for what agents know.

use super::*;
use std::collections::BTreeMap;
use weir_fleet::{Pools, Stage, Step};

/// A step that is over, after which some are down.
fn over(number: u64, down: &[u8]) -> Step {
    let share =
        |n: u8| Share { name: format!("b{n}"), weight: 1, drains: false, down: down.contains(&n) };
    Step {
        number,
        begun: 1,
        term: 1,
        stage: Stage::Done,
        change: 1,
        pools: Pools::from([("a".to_owned(), (1..=3).map(share).collect())]),
        next: Pools::new(),
        tables: BTreeMap::new(),
        next_tables: BTreeMap::new(),
        rows: BTreeMap::new(),
        next_rows: BTreeMap::new(),
    }
}

/// A turn of the engine, as far as tables are concerned.
fn turn(world: &mut World) {
    world.engine.go_on_in_step();
    let failures = world.engine.publish_due();
    assert!(failures.is_empty(), "{failures:?}");
}

/// Its tables are made when something has changed, and not in each turn.
#[test]
fn a_table_is_made_once_while_agents_are_waited_for() {
    let (mut world, _clock) = world("residue", 1_000, 10_000);
    let cache = Cache { id: "1".into(), document: None, step: None };
    let (step, own, notes) = (Some(over(1, &[])), String::new(), Vec::new());
    let begun = Begun { cache, step, own, joined: true, left: None, followed: true, notes };
    world.engine.fleet = Some(Fleet::new(begun, &world.directory.path().join("weir.toml")));
    let generation = |world: &World| world.engine.services["a"].generation;
    turn(&mut world);
    let first = generation(&world);
    (0..5).for_each(|_| turn(&mut world));
    assert_eq!(generation(&world), first, "nothing has changed");
    // The fleet has other pools.
    world.engine.store_has_step(Some(Box::new(over(2, &[3]))), 2);
    (0..5).for_each(|_| turn(&mut world));
    assert_eq!(generation(&world), first + 1);
    let agreed = world.engine.services["a"].agreed.clone().expect("it is in step");
    assert!(agreed.iter().all(|share| share.down == (share.name == "b3")), "{agreed:?}");
    assert!(world.engine.is_learning());
    for n in 1..=3u8 {
        let mut agent = world.call(n.into(), n, n);
        world.dumps(&mut agent, 0..0);
    }
    assert_eq!(world.engine.plane.attached, ["eth0"]);
    assert!(world.engine.services["a"].dirty, "it is compared with the step from now on");
}

/// Who is killed before it has taken a packet has learnt nothing that outlives it: the next one waits as well.
#[test]
fn who_is_killed_while_it_waits_waits_again() {
    let (world, _clock) = world("residue", 1_000, 10_000);
    assert!(world.engine.is_learning());
    let mut world = killed(world);
    let generation = |world: &World| world.engine.services["a"].generation;
    let found = generation(&world);
    assert!(world.engine.is_learning() && world.engine.plane.attached.is_empty());
    let (_keeper, wants, _reports) = world.engine.announce().unwrap();
    assert!(wants.borrow().untaken);
    world.engine.end_learning();
    assert_eq!(world.engine.plane.attached, ["eth0"]);
    assert!(generation(&world) > found, "packets follow what agents have told");
    let world = killed(world);
    assert!(!world.engine.is_learning(), "packets have been taken");
}
