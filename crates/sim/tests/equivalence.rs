//! The lazy engine against the one with an event per packet, and against itself.
//!
//! Flows and the history of the pool are the same in both; only the packets' times are drawn in
//! another order. So whatever does not depend on them must be equal to the last flow, and the rest
//! must agree in the mean over seeds.

use weir_sim::methods::{
    Buckets, Cheetah, Connections, Cookies, Eviction, Jet, Metric, Modulo, Over, Published,
    Release, Residue, Ring, Scheduler, Tracked,
};
use weir_sim::{
    Action, Departure, Engine, Method, Orphans, Outcome, Scripted, StepCdf, World, simulate,
};

/// 12 servers, a departure every 3 seconds, down-times of 5 to 20 s, flows of 1 to 30 packets over
/// up to 30 s: most flows see a change, and many have no packet after it.
fn world(seed: u64) -> World {
    let durations = StepCdf::parse("\"0.3\": 0.5\n\"0.8\": 10\n\"1\": 30").unwrap();
    let sizes = StepCdf::parse("\"0.3\": 0\n\"0.7\": 0.3\n\"0.9\": 1\n\"1\": 3").unwrap();
    let down_times = StepCdf::parse("\"0.5\": 5\n\"1\": 20").unwrap();
    World {
        duration: 120.0,
        servers: 12,
        horizon: 2,
        updates_per_minute: 20.0,
        durations,
        sizes,
        down_times,
        ..World::published(150.0, seed)
    }
}

/// The same with three balancers whose flows are spread anew every 6 s.
fn several(seed: u64) -> World {
    World { balancers: 3, reshuffles_per_minute: 10.0, ..world(seed) }
}

fn play(make: &dyn Fn(&World) -> Box<dyn Method>, world: &World) -> Outcome {
    simulate(world, &mut *make(world))
}

/// The means of a figure over the seeds in both engines differ by less than four standard errors:
/// wrong once in 16,000 figures, and the seeds are fixed.
fn same_mean(name: &str, pairs: &[(Outcome, Outcome)], figure: impl Fn(&Outcome) -> f64) {
    let n = pairs.len() as f64;
    let differences: Vec<f64> = pairs.iter().map(|(a, b)| figure(a) - figure(b)).collect();
    let mean = differences.iter().sum::<f64>() / n;
    let variance = differences.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let level = pairs.iter().map(|(a, _)| figure(a)).sum::<f64>() / n;
    let error = (variance / n).sqrt();
    println!("{name}: {level:.2} on average, difference {mean:.3}, standard error {error:.3}");
    assert!(mean.abs() <= 4.0 * error, "{name}: {mean} beyond 4 x {error}");
}

/// The means of all that depends on what breaks, of enough broken flows.
fn same_means(name: &str, pairs: &[(Outcome, Outcome)]) {
    same_mean(&format!("{name}: broken"), pairs, |o| o.broken as f64);
    same_mean(&format!("{name}: inevitable"), pairs, |o| o.inevitable as f64);
    same_mean(&format!("{name}: misdirected"), pairs, |o| o.misdirected as f64);
    same_mean(&format!("{name}: evictions"), pairs, |o| o.evictions as f64);
    same_mean(&format!("{name}: tracked"), pairs, |o| o.tracked.mean());
    let broken: u64 = pairs.iter().map(|(a, _)| a.broken).sum();
    assert!(broken > 60, "{name}: {broken} broken, too few to compare");
}

/// A method in the lazy engine and in the one with an event per packet, in worlds by seed.
fn both(
    make: &dyn Fn(&World) -> Box<dyn Method>,
    world: impl Fn(u64) -> World,
) -> Vec<(Outcome, Outcome)> {
    let pair = |seed| {
        let lazy = world(seed);
        let every = World { engine: Engine::EveryPacket, ..lazy.clone() };
        (play(make, &lazy), play(make, &every))
    };
    (1..=60).map(pair).collect()
}

#[test]
fn both_engines_agree() {
    type Make = Box<dyn Fn(&World) -> Box<dyn Method>>;
    let rows = 1024;
    let lru = Eviction::Buckets;
    let table = move |release, jet: bool, capacity| -> Make {
        Box::new(move |world| {
            let (over, table) = (Over::Table, Connections::new(capacity, lru, release));
            match jet {
                true => Box::new(Jet::new(over, rows, world, table).unwrap()),
                false => Box::new(Tracked::new(over, rows, world, table).unwrap()),
            }
        })
    };
    let anchor: Make = Box::new(move |world| {
        let table = Connections::new(10, lru, Release::AtEnd);
        Box::new(Jet::new(Over::Anchor, 0, world, table).unwrap())
    });
    let methods: [(&str, Make); 9] = [
        ("jet over anchor", anchor),
        ("modulo", Box::new(|_| Box::new(Modulo::new(&[])))),
        ("hash", Box::new(|_| Box::new(Buckets::hash(1200, &[1; 12])))),
        ("chain", Box::new(|_| Box::new(Buckets::chain(1200, &[1; 12])))),
        ("tracked, little room", table(Release::AtEnd, false, 60)),
        ("tracked, never released", table(Release::Never, false, 150)),
        ("jet, little room", table(Release::AtEnd, true, 10)),
        ("jet, never released", table(Release::Never, true, 40)),
        ("no room at all", table(Release::AtEnd, false, 0)),
    ];
    for orphans in [Orphans::End, Orphans::Adopt] {
        for (name, make) in &methods {
            let pairs = both(&**make, |seed| World { orphans, ..world(seed) });
            for (a, b) in &pairs {
                assert_eq!((a.flows, a.departures, a.returns), (b.flows, b.departures, b.returns));
            }
            let name = format!("{name}, {orphans:?}, seeds 1 to 60");
            same_means(&name, &pairs);
        }
    }
}

/// Tables of their own in three balancers: the flow's packets come, go elsewhere, and come back,
/// and what was used when decides who is evicted.
#[test]
fn both_engines_agree_on_several_balancers() {
    let jobs: [(&str, bool, usize, Release); 4] = [
        ("tracked, little room", false, 25, Release::AtEnd),
        ("tracked, never released", false, 60, Release::Never),
        ("jet, little room", true, 5, Release::AtEnd),
        ("jet, room for all", true, 10_000, Release::AtEnd),
    ];
    for (name, jet, capacity, release) in jobs {
        let make = move |world: &World| -> Box<dyn Method> {
            let over = Over::Table;
            let table = Connections::new(capacity, Eviction::Buckets, release);
            match jet {
                true => Box::new(Jet::new(over, 1024, world, table).unwrap()),
                false => Box::new(Tracked::new(over, 1024, world, table).unwrap()),
            }
        };
        let pairs = both(&make, several);
        for (a, b) in &pairs {
            assert_eq!(
                (a.flows, a.departures, a.reshuffles),
                (b.flows, b.departures, b.reshuffles)
            );
            assert!(a.reshuffles > 3, "{} reshuffles", a.reshuffles);
        }
        let name = format!("{name}, three balancers, seeds 1 to 60");
        same_means(&name, &pairs);
    }
}

/// What all balancers share, or what packets carry, does not care which balancer they reach; a
/// table of one's own does, although it has room for all.
#[test]
fn reshuffles_break_only_what_each_balancer_remembers_by_itself() {
    let weights = world(1).server_weights();
    let mut broken = [0; 2];
    for seed in 1..=10 {
        let world = several(seed);
        let alone = World { reshuffles_per_minute: 0.0, ..world.clone() };
        let shared: [Box<dyn Method>; 2] = [
            Box::new(Residue::new(1024, &weights).unwrap()),
            Box::new(Published::concury(12, &world).unwrap()),
        ];
        for mut method in shared {
            assert_eq!(simulate(&world, &mut *method).broken, 0, "seed {seed}");
        }
        let mut cheetah = Cheetah::for_world(
            Scheduler::LeastLoaded,
            Metric::Connections,
            Cookies::Stateless,
            0,
            &world,
        );
        assert_eq!(simulate(&world, &mut cheetah).broken, 0, "seed {seed}");
        for (sum, world) in broken.iter_mut().zip([&alone, &world]) {
            let table = Connections::new(10_000, Eviction::Buckets, Release::AtEnd);
            let mut all = Tracked::new(Over::Table, 1024, world, table).unwrap();
            *sum += simulate(world, &mut all).broken;
        }
    }
    println!("full tracking, seeds 1 to 10: broken without and with reshuffles {broken:?}");
    assert_eq!(broken[0], 0, "room for all, and nobody moves");
    assert!((200..1_500).contains(&broken[1]), "some 500 of 10,000 flows: {broken:?}");
}

/// Scripted joins, drains and weights are met by all methods, and break what a table without
/// memory breaks.
#[test]
fn scripted_events_happen_when_and_as_they_are_written() {
    let at = |at, every, action| Scripted { at, every, action };
    let script = vec![
        at(20.0, None, Action::Add(vec![12, 13])),
        at(30.0, Some(15.0), Action::RandomWeights(1, 4)),
        at(40.0, None, Action::Drain(vec![0, 1, 12])),
        at(50.0, None, Action::Remove(vec![0, 2])),
        at(55.0, None, Action::Reweight(5, 4)),
        at(60.0, None, Action::Add(vec![0, 2])),
    ];
    for seed in 1..=5 {
        let world =
            World { standby: 3, script: script.clone(), updates_per_minute: 0.0, ..world(seed) };
        let weights = world.server_weights();
        let largest = world.largest_weights();
        assert_eq!((weights.len(), largest[16]), (17, 4));
        let mut methods: Vec<(&str, Box<dyn Method>, bool)> = vec![
            ("residue", Box::new(Residue::new(4096, &weights).unwrap()), true),
            ("concury", Box::new(Published::concury(12, &world).unwrap()), true),
            ("hash", Box::new(Buckets::hash(1200, &weights[..12])), false),
            ("ring", Box::new(Ring::new(30, &weights).unwrap()), false),
        ];
        for kind in [Scheduler::WeightedRoundRobin, Scheduler::LeastLoaded, Scheduler::Hash] {
            let cheetah =
                Cheetah::for_world(kind, Metric::Connections, Cookies::Stateless, 0, &world);
            methods.push(("cheetah", Box::new(cheetah), true));
        }
        for over in [Over::Table, Over::Anchor, Over::Hrw, Over::Ring] {
            let rows = if over == Over::Ring { 50 } else { 4096 };
            let table = Connections::new(10_000, Eviction::Buckets, Release::AtEnd);
            let full = Tracked::new(over, rows, &world, table).unwrap();
            methods.push(("tracked", Box::new(full), true));
        }
        let mut inevitable = 0;
        for (name, mut method, keeps) in methods {
            let outcome = simulate(&world, &mut *method);
            let servers: Vec<f64> =
                [19, 20, 40, 50, 60].map(|second| outcome.samples[second].working).to_vec();
            // The sample of a second is taken after what happens in it.
            assert_eq!(servers, [14.0, 14.0, 11.0, 10.0, 12.0], "{name}, seed {seed}");
            assert_eq!((outcome.departures, outcome.returns), (4, 4), "{name}");
            inevitable += outcome.inevitable;
            match keeps {
                true => assert_eq!(outcome.broken, 0, "{name}, seed {seed}"),
                false => assert!(outcome.broken > 20, "{name}: {}", outcome.broken),
            }
        }
        assert!(inevitable > 10, "0 was drained and then removed, 2 removed: {inevitable}");
    }
}

/// With the packets' times drawn in advance there is no chance left between the two engines: what
/// the lazy one does not play must not make a difference to the last packet, entry and eviction.
#[test]
fn what_is_not_played_makes_no_difference() {
    type Make = Box<dyn Fn(&World) -> Box<dyn Method>>;
    let mut methods: Vec<(String, Make)> = vec![
        ("modulo".into(), Box::new(|_| Box::new(Modulo::new(&[])))),
        ("hash".into(), Box::new(|_| Box::new(Buckets::hash(1200, &[1; 12])))),
        ("chain".into(), Box::new(|_| Box::new(Buckets::chain(1200, &[1; 12])))),
        (
            "ring".into(),
            Box::new(|world| Box::new(Ring::new(30, &world.server_weights()).unwrap())),
        ),
        ("concury".into(), Box::new(|world| Box::new(Published::concury(12, world).unwrap()))),
        (
            "residue".into(),
            Box::new(|world| Box::new(Residue::new(1024, &world.server_weights()).unwrap())),
        ),
    ];
    for room in [0, 60, 400] {
        let make = move |world: &World| -> Box<dyn Method> {
            Box::new(Published::tracked(509, world, room).unwrap())
        };
        methods.push((format!("tracked over Maglev, room for {room}"), Box::new(make)));
    }
    for cookies in [Cookies::Stateless, Cookies::Stateful] {
        for room in [40, 10_000] {
            let name = format!("cheetah, {cookies:?}, room for {room}");
            let make = move |world: &World| -> Box<dyn Method> {
                let (kind, metric) = (Scheduler::LeastLoaded, Metric::Connections);
                Box::new(Cheetah::for_world(kind, metric, cookies, room, world))
            };
            methods.push((name, Box::new(make)));
        }
    }
    for lru in [Eviction::Buckets, Eviction::Exact, Eviction::Kernel] {
        for release in [Release::AtEnd, Release::Never] {
            for (jet, room) in [(true, 0), (true, 20), (true, 1_000), (false, 60), (false, 400)] {
                for over in [Over::Table, Over::Anchor] {
                    let name = format!("jet: {jet}, {room}, {over:?}, {lru:?}, {release:?}");
                    let table = Connections::new(room, lru, release);
                    let make = move |world: &World| -> Box<dyn Method> {
                        match jet {
                            true => Box::new(Jet::new(over, 512, world, table).unwrap()),
                            false => Box::new(Tracked::new(over, 512, world, table).unwrap()),
                        }
                    };
                    methods.push((name, Box::new(make)));
                }
            }
        }
    }
    let (mut broken, mut evictions) = (0, 0);
    for (name, make) in &methods {
        for orphans in [Orphans::End, Orphans::Adopt] {
            for seed in 1..=4 {
                let departure = if seed % 2 == 0 { Departure::Fail } else { Departure::Drain };
                let world = if seed > 2 { several(seed) } else { world(seed) };
                let every =
                    World { engine: Engine::EveryPacket, orphans, departure, ..world.clone() };
                let drawn = World { engine: Engine::Drawn, ..every.clone() };
                let (every, drawn) = (play(&**make, &every), play(&**make, &drawn));
                let what = format!("{name}, {orphans:?}, {departure:?}, seed {seed}");
                let counts = |o: &Outcome| (o.broken, o.inevitable, o.misdirected, o.evictions);
                assert_eq!(counts(&every), counts(&drawn), "{what}");
                assert!(every == drawn, "{what}: the samples differ");
                broken += every.broken;
                evictions += every.evictions;
            }
        }
    }
    println!("{} methods, {broken} broken, {evictions} evictions", methods.len());
    assert!(broken > 10_000 && evictions > 100_000, "{broken} {evictions}");
}

/// Nothing that residue and Cheetah's round robin do depends on packets, when orphans end.
#[test]
fn where_packets_do_not_matter_both_engines_are_equal() {
    for departure in [Departure::Fail, Departure::Drain] {
        for seed in 1..=5 {
            let lazy = World { departure, ..world(seed) };
            let every = World { engine: Engine::EveryPacket, ..lazy.clone() };
            let residue = |world: &World| {
                simulate(world, &mut Residue::new(1024, &world.server_weights()).unwrap())
            };
            let cheetah = |world: &World| simulate(world, &mut Cheetah::new(Scheduler::RoundRobin));
            for (a, b) in [(residue(&lazy), residue(&every)), (cheetah(&lazy), cheetah(&every))] {
                assert_eq!((a.broken, b.broken), (0, 0), "seed {seed}");
                assert_eq!(a.tracked, b.tracked, "seed {seed}");
                assert_eq!(a.imbalance, b.imbalance, "seed {seed}");
            }
        }
    }
}

#[test]
fn equal_seeds_give_equal_outcomes_and_others_do_not() {
    let run = |seed| simulate(&world(seed), &mut Buckets::hash(1200, &[1; 12]));
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

/// Draining loses no connection, and a table without memory breaks them.
#[test]
fn drained_servers_keep_their_connections() {
    let world = World { departure: Departure::Drain, ..world(3) };
    let residue = simulate(&world, &mut Residue::new(1024, &world.server_weights()).unwrap());
    assert_eq!((residue.broken, residue.inevitable), (0, 0));
    assert!(residue.tracked.mean() > 10.0, "exceptions of drained servers");
    let hash = simulate(&world, &mut Buckets::hash(1200, &[1; 12]));
    assert_eq!(hash.inevitable, 0);
    assert!(hash.broken > 100);
}
