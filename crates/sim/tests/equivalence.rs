//! The lazy engine against the one with an event per packet, and against itself.
//!
//! Flows and the history of the pool are the same in both; only the packets' times are drawn in
//! another order. So whatever does not depend on them must be equal to the last flow, and the rest
//! must agree in the mean over seeds.

use weir_sim::methods::{
    Buckets, Cheetah, Jet, Modulo, Over, Release, Residue, Scheduler, Tracked,
};
use weir_sim::{Departure, Engine, Method, Orphans, Outcome, StepCdf, World, simulate};

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

#[test]
fn both_engines_agree() {
    type Make = Box<dyn Fn(&World) -> Box<dyn Method>>;
    let rows = 1024;
    let table = move |release, jet: bool, capacity| -> Make {
        Box::new(move |world| {
            let weights = world.server_weights();
            match jet {
                true => Box::new(Jet::new(Over::Table, rows, &weights, capacity, release).unwrap()),
                false => {
                    Box::new(Tracked::new(Over::Table, rows, &weights, capacity, release).unwrap())
                }
            }
        })
    };
    let anchor: Make = Box::new(|world| {
        let weights = world.server_weights();
        Box::new(Jet::new(Over::Anchor, 0, &weights, 10, Release::AtEnd).unwrap())
    });
    let methods: [(&str, Make); 9] = [
        ("jet over anchor", anchor),
        ("modulo", Box::new(|_| Box::new(Modulo::new()))),
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
            let pairs: Vec<_> = (1..=60)
                .map(|seed| {
                    let lazy = World { orphans, ..world(seed) };
                    let every = World { engine: Engine::EveryPacket, ..lazy.clone() };
                    (play(&**make, &lazy), play(&**make, &every))
                })
                .collect();
            for (a, b) in &pairs {
                assert_eq!((a.flows, a.departures, a.returns), (b.flows, b.departures, b.returns));
            }
            let name = format!("{name}, {orphans:?}, seeds 1 to 60");
            same_mean(&format!("{name}: broken"), &pairs, |o| o.broken as f64);
            same_mean(&format!("{name}: inevitable"), &pairs, |o| o.inevitable as f64);
            same_mean(&format!("{name}: misdirected"), &pairs, |o| o.misdirected as f64);
            same_mean(&format!("{name}: evictions"), &pairs, |o| o.evictions as f64);
            same_mean(&format!("{name}: tracked"), &pairs, |o| o.tracked.mean());
            let broken: u64 = pairs.iter().map(|(a, _)| a.broken).sum();
            assert!(broken > 60, "{name}: {broken} broken, too few to compare");
        }
    }
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
