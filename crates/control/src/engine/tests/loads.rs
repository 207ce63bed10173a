//! Schedulers, and the loads that they are told.

use super::*;

fn load(world: &mut World, backend: &str, load: f64) -> commands::Done {
    world.ask(|reply| Command::Load("a".into(), backend.into(), load, reply))
}

/// Connections of b1, b2 and b3.
fn shares(world: &mut World, clients: std::ops::Range<u32>) -> [usize; 3] {
    let went = world.start(0, clients);
    let ids = ["b1", "b2", "b3"].map(|name| member_id(world, name));
    ids.map(|id| went.iter().filter(|backend| **backend == id).count())
}

fn member_id(world: &World, name: &str) -> BackendId {
    world.engine.services["a"].member(name).expect("there").id
}

/// The loads of b1, b2 and b3, as status has them.
fn loads(world: &World) -> [Option<f64>; 3] {
    let status = world.engine.status().expect("readable");
    let loads = status.services[0].backends.iter().map(|backend| backend.load);
    loads.collect::<Vec<_>>().try_into().expect("three backends")
}

/// Packets of a connection that lives.
fn send(world: &mut World, flow: FlowKey, packets: u16, payload: u16) {
    let frame = Frame::new(flow).tcp_flags(TcpFlags::ACK).payload(payload).build();
    for _ in 0..packets {
        let went = world.engine.plane.process(&frame);
        assert_eq!(went, Outcome::Forwarded(world.live[&flow]));
    }
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

/// Packets, or bytes, that come to each backend, as the counters say at each look: few long packets are less than
/// many short ones by the one word, and more by the other.
#[test]
fn the_least_busy_gets_what_comes() {
    for (word, least) in [("packets", 1), ("bytes", 0)] {
        let fields = format!("method = \"tracked\"\nscheduler = \"least\"\nload = {word:?}");
        let mut world = World::with(1, &fields);
        let at_first = shares(&mut world, 0..90);
        assert!(at_first.iter().all(|&share| share > 0), "{word}: {at_first:?}");
        let ids = ["b1", "b2", "b3"].map(|name| member_id(&world, name));
        let lives = ids.map(|id| {
            let mut live = world.live.iter().filter(|(_, backend)| **backend == id);
            *live.next().expect("one at each").0
        });
        // What was before the first look has no time in which it came.
        later(&mut world);
        assert_eq!(loads(&world), [None; 3], "{word}");
        let sent = [(200_u16, 0), (20, 1_400), (100, 100)];
        for (flow, (packets, payload)) in lives.iter().zip(sent) {
            send(&mut world, *flow, packets, payload);
        }
        later(&mut world);
        let known = loads(&world).map(|load| load.expect("it was measured"));
        let each = sent.map(|(packets, payload)| match word {
            "packets" => f64::from(packets),
            // From the IP header on.
            _ => f64::from(packets) * f64::from(payload + 40),
        });
        for (load, sent) in known.iter().zip(each) {
            let off = (load / known[0]) / (sent / each[0]) - 1.0;
            assert!(off.abs() < 1e-6, "{word}: {known:?} for {each:?}");
        }
        let mut wanted = [0; 3];
        wanted[least] = 50;
        assert_eq!(shares(&mut world, 100..150), wanted, "{word}");
        // Rates are of the time between two looks, whatever that was, and halved by each that finds nothing: the
        // others' vanish.
        for looks in 0.. {
            assert!(looks < 200, "{word}: {:?}", loads(&world));
            send(&mut world, lives[least], 50, 1_000);
            later(&mut world);
            let known = loads(&world).map(|load| load.expect("it was measured"));
            if known.iter().filter(|load| **load > known[least] / 2.0).count() == 1 {
                break;
            }
        }
        assert_eq!(shares(&mut world, 200..230)[least], 0, "{word}");
        world.check();
    }
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
