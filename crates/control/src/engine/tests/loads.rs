//! Schedulers, and the loads that they are told.

use super::*;

fn load(world: &mut World, backend: &str, load: f64) -> commands::Done {
    world.ask(|reply| Command::Load("a".into(), backend.into(), load, reply))
}

/// Connections of b1, b2 and b3.
fn shares(world: &mut World, clients: std::ops::Range<u32>) -> [usize; 3] {
    let went = world.start(0, clients);
    let id = |name| world.engine.services["a"].member(name).expect("there").id;
    let ids = [id("b1"), id("b2"), id("b3")];
    ids.map(|id| went.iter().filter(|backend| **backend == id).count())
}

fn later(world: &mut World) {
    let mut timers = Timers::new();
    timers.loads.0 -= LOADS_EVERY;
    world.engine.upkeep(&mut timers);
    world.upkeep();
}

#[test]
fn loads_are_numbers_from_zero_on_and_of_backends_that_there_are() {
    let mut world = World::with(1, "method = \"tracked\"\nscheduler = \"least\"\nload = \"told\"");
    for bad in [-0.1, f64::NAN, f64::INFINITY] {
        let refused = load(&mut world, "b1", bad).expect_err("no load");
        assert_eq!(refused.kind(), Kind::Invalid);
        let said = refused.to_string();
        assert!(said.contains("is not a load; give a number of 0 or more"), "{said}");
    }
    assert_eq!(load(&mut world, "b9", 1.0).expect_err("no backend").kind(), Kind::NotFound);
    assert_eq!(load(&mut world, "b1", 0.25).expect("a load"), "backend b1 of a has load 0.25");
    let status = world.engine.status().expect("readable");
    let service = &status.services[0];
    assert_eq!(service.scheduler.as_deref(), Some("least"));
    assert_eq!(service.load.as_deref(), Some("told"));
    let loads: Vec<_> = service.backends.iter().map(|backend| backend.load).collect();
    assert_eq!(loads, [Some(0.25), None, None]);
}

#[test]
fn a_load_that_nothing_reads_is_kept_and_said() {
    let mut world = World::with(1, "method = \"tracked\"");
    let said = load(&mut world, "b1", 3.0).expect("a load");
    assert!(said.contains("nothing reads it: the service has scheduler = \"uniform\""), "{said}");
    let status = world.engine.status().expect("readable");
    let backend = &status.services[0].backends[0];
    assert_eq!((backend.load, backend.told_load), (None, Some(3.0)));
    let mut world = World::new(1);
    let said = load(&mut world, "b1", 3.0).expect("a load");
    assert!(said.ends_with("the service's method has no scheduler"), "{said}");
    assert_eq!(world.engine.status().expect("readable").services[0].scheduler, None);
}

/// What is told is in force before the next packet.
#[test]
fn the_least_loaded_gets_what_comes() {
    let mut world = World::with(1, "method = \"tracked\"\nscheduler = \"least\"\nload = \"told\"");
    for (backend, told) in [("b1", 0.9), ("b2", 0.2), ("b3", 0.5)] {
        load(&mut world, backend, told).expect("a load");
    }
    assert_eq!(shares(&mut world, 0..50), [0, 50, 0]);
    load(&mut world, "b2", 40.0).expect("a load");
    assert_eq!(shares(&mut world, 50..100), [0, 0, 50]);
    world.check();
}

/// Ten for the average load, twice as many for none (Cheetah, section 4.1).
#[test]
fn weights_follow_the_loads_that_were_told() {
    let mut world = World::with(1, "method = \"tracked\"\nscheduler = \"awrr\"\nload = \"told\"");
    assert_eq!(shares(&mut world, 0..30), [10; 3]);
    for (backend, told) in [("b1", 0.0), ("b2", 0.5), ("b3", 1.0)] {
        load(&mut world, backend, told).expect("a load");
    }
    later(&mut world);
    // 10 / (L / (2 average) + 1 / 2): 20, 10, 7 of each 37.
    assert_eq!(shares(&mut world, 100..137), [20, 10, 7]);
    // The same loads again make no other table.
    let generation = world.engine.services["a"].generation;
    load(&mut world, "b1", 0.0).expect("a load");
    later(&mut world);
    assert_eq!(world.engine.services["a"].generation, generation);
    // Weights are multiplied.
    world.ask(|reply| Command::Weight("a".into(), "b3".into(), 2, reply)).expect("a weight");
    assert_eq!(shares(&mut world, 200..244), [20, 10, 14]);
    world.check();
}

/// Another scheduler is another table, and nothing else: connections stay.
#[test]
fn a_scheduler_changes_under_connections() {
    for method in ["tracked", "cheetah"] {
        let mut world = World::with(1, &format!("method = \"{method}\""));
        world.start(0, 0..300);
        for (n, scheduler) in (1..).zip(["rr", "least", "p2c", "awrr", "uniform", "wrr"]) {
            let fields = format!("method = \"{method}\"\nscheduler = \"{scheduler}\"");
            let wanted = config_with(&world.directory, 1, &fields);
            let followed = world.follow(&wanted).expect("it can be changed");
            assert!(followed.failures.is_empty() && followed.notes.is_empty(), "{scheduler}");
            if method == "tracked" {
                world.check();
            }
            let before = world.live.clone();
            world.live.clear();
            let shares = shares(&mut world, n * 1_000..n * 1_000 + 30);
            if scheduler.ends_with("rr") {
                assert_eq!(shares, [10; 3], "{method} {scheduler}");
            }
            if method == "tracked" {
                world.check();
                world.live.extend(before);
            }
        }
    }
}

/// Connections that the data plane forgets count no more.
#[test]
fn what_is_forgotten_is_counted_anew() {
    let mut world = World::with(1, "method = \"tracked\"\nscheduler = \"least\"");
    let went = world.start(0, 0..90);
    let id = world.engine.services["a"].member("b2").expect("there").id;
    assert_eq!(went.iter().filter(|backend| **backend == id).count(), 30);
    world.engine.plane.memory.connections.retain(|_, entry| entry.backend != id);
    world.live.retain(|_, backend| *backend != id);
    world.engine.recount().expect("readable");
    assert_eq!(weir_plane::Plane::load(&world.engine.plane, id).value, 0);
    assert_eq!(shares(&mut world, 100..130), [0, 30, 0]);
    world.check();
}
