//! The published figures, in smoke size. Every band says why it is as wide as it is, and has two
//! ends: a baseline that breaks too little is as wrong as a method that breaks too much.

use weir_sim::methods::{
    Buckets, Cheetah, Connections, Eviction, Jet, Modulo, Over, Published, Release, Residue, Ring,
    Scheduler, Tracked,
};
use weir_sim::{
    Method, MethodSpec, Orphans, Outcome, Report, Row, Size, World, builtin, run, simulate,
};

const SEED: u64 = 20;
const SERVERS: [u32; 468] = [1; 468];

fn close(what: &str, ours: f64, published: f64, band: std::ops::RangeInclusive<f64>) {
    let ratio = ours / published;
    println!("{what}: ours {ours:.4}, published {published}, ratio {ratio:.2}, seed {SEED}");
    assert!(band.contains(&ratio), "{what}: {ours:.4} beside {published}, not in {band:?}");
}

/// Broken flows do not depend on the number of concurrent flows (each return moves 1/468 of them),
/// so a fifteenth of Cheetah's 70,000 do.
fn cheetah_world(updates_per_minute: f64, duration: f64) -> World {
    World {
        updates_per_minute,
        duration,
        warmup: 300.0,
        sample_every: 10.0,
        orphans: Orphans::Adopt,
        ..World::published(4_680.0, SEED)
    }
}

/// Rates, lengths, and the published hash and chain.
const FIGURE_2A: [(f64, f64, f64, f64); 6] = [
    (1.56, 10_000.0, 0.099, 0.0004),
    (3.12, 6_000.0, 0.199, 0.0016),
    (7.8, 3_000.0, 0.493, 0.0102),
    (15.6, 3_000.0, 1.006, 0.038),
    (31.2, 2_000.0, 1.960, 0.137),
    (78.0, 1_300.0, 4.905, 0.624),
];

/// Broken flows in 100, over three seeds.
fn broken_percent(rate: f64, duration: f64, make: impl Fn() -> Buckets) -> f64 {
    let outcomes = (SEED..SEED + 3).map(|seed| {
        let world = World { seed, ..cheetah_world(rate, duration) };
        simulate(&world, &mut make())
    });
    let (broken, flows) =
        outcomes.fold((0, 0), |sum, outcome| (sum.0 + outcome.broken, sum.1 + outcome.flows));
    100.0 * broken as f64 / flows as f64
}

/// Some 750 to 4,000 returns for each rate, each breaking about 8 flows: 4 % at most of
/// statistical error, so a seventh holds at three standard deviations, and a model that is wrong
/// by a sixth (as with orphans that end) is found. At 78 a minute our pool wears out and 4.0 % is
/// what the model gives (docs/sim.md), which is the reason for the lower end there.
#[test]
fn cheetah_2a_hash_breaks_the_published_share() {
    for (rate, duration, published, _) in FIGURE_2A {
        let ours = broken_percent(rate, duration, || Buckets::hash(46_800, &SERVERS));
        let low = if rate == 78.0 { 0.75 } else { 0.86 };
        close(&format!("hash, {rate}/min"), ours, published, low..=1.14);
    }
}

/// The chain needs two changes of one bucket, so it breaks few flows, in bursts: at the lower
/// rates a handful in all, which says nothing. From 15.6 on there are hundreds. Seeds differ by a
/// seventh there; at 78 a minute the model breaks a third more than is published (docs/sim.md).
#[test]
fn cheetah_2a_the_chain_breaks_the_published_share() {
    for (rate, duration, _, published) in FIGURE_2A.into_iter().skip(3) {
        let ours = broken_percent(rate, duration, || Buckets::chain(46_800, &SERVERS));
        close(&format!("chain, {rate}/min"), ours, published, 0.7..=1.5);
    }
}

/// Exactly zero, in the worlds in which the baselines break thousands.
#[test]
fn cheetah_concury_and_residue_never_break() {
    let world = cheetah_world(78.0, 600.0);
    let weights = world.server_weights();
    let methods: [(&str, Box<dyn Method>); 3] = [
        ("cheetah", Box::new(Cheetah::new(Scheduler::RoundRobin))),
        ("concury", Box::new(Published::concury(12, &world).unwrap())),
        ("residue", Box::new(Residue::new(65_537, &weights).unwrap())),
    ];
    for (name, mut method) in methods {
        let outcome = simulate(&world, &mut *method);
        assert_eq!((outcome.broken, outcome.misdirected), (0, 0), "{name}, seed {SEED}");
        assert!(outcome.inevitable > 1_000, "{name}: {} servers' worth", outcome.inevitable);
    }
}

/// No figure is published here; what must hold: a consistent hash moves 1/n of the flows at a
/// return, as the indirection table does (its arcs are less even: a third either way); a hash
/// modulo the number of servers moves nearly all of them at each change, so that nearly half of
/// all flows break at 7.8 departures a minute.
#[test]
fn consistent_hashing_breaks_like_the_table_and_modulo_far_more() {
    let world = cheetah_world(7.8, 1_500.0);
    let table = simulate(&world, &mut Buckets::hash(46_800, &SERVERS)).broken_percent();
    let ring = simulate(&world, &mut Ring::new(30, &SERVERS).unwrap()).broken_percent();
    close("ring beside table", ring, table, 0.67..=1.5);
    let modulo = simulate(&world, &mut Modulo::new(&[])).broken_percent();
    assert!((40.0..=52.0).contains(&modulo), "modulo: {modulo} %, seed {SEED}");
}

/// 700 s, and the fullest server stays so for a minute or two, as long as its long flows last:
/// some ten independent samples. That moves the average by a twentieth from seed to seed; the bands
/// are an eighth. (150 s were not enough: 25.8 % for the hash.) For the power of two and the least
/// loaded we find four fifths and half of the published figures, run after run: docs/sim.md says
/// what may be the reason. The lower ends of these bands say that it is no accident, the upper ends
/// that neither is worse than published; a factor of 9 lies between round robin and either.
#[test]
fn cheetah_2b_imbalance_by_scheduler() {
    let world = World {
        updates_per_minute: 0.0,
        duration: 1_000.0,
        warmup: 300.0,
        ..World::published(100_000.0, SEED)
    };
    let cheetah =
        |scheduler| 100.0 * simulate(&world, &mut Cheetah::new(scheduler)).imbalance.mean();
    let hash = 100.0 * simulate(&world, &mut Buckets::hash(46_800, &SERVERS)).imbalance.mean();
    let turn = cheetah(Scheduler::RoundRobin);
    close("hash", hash, 22.5, 0.88..=1.12);
    close("round robin", turn, 19.3, 0.88..=1.12);
    close("power of two", cheetah(Scheduler::PowerOfTwo), 2.02, 0.75..=1.1);
    // A pick asks all 468; a third of the time is enough, since this one hardly varies.
    let world = World { duration: 500.0, ..world.clone() };
    let least = simulate(&world, &mut Cheetah::new(Scheduler::LeastLoaded)).imbalance.mean();
    close("least loaded", 100.0 * least, 0.51, 0.4..=1.1);
    assert!(turn < hash, "round robin is better than the hash");
}

/// JET's cluster with a twentieth of its flows.
fn jet_world(updates_per_minute: f64, horizon: u16) -> World {
    World {
        updates_per_minute,
        horizon,
        duration: 500.0,
        sample_every: 10.0,
        ..World::published(5_000.0, SEED)
    }
}

fn tracked(world: &World, table: f64) -> Outcome {
    let capacity = (table * world.flows) as usize;
    let table = Connections::new(capacity, Eviction::Exact, Release::AtEnd);
    simulate(world, &mut Tracked::new(Over::Table, 16_384, world, table).unwrap())
}

fn jet(world: &World, table: f64) -> Outcome {
    let capacity = (table * world.flows) as usize;
    let table = Connections::new(capacity, Eviction::Exact, Release::AtEnd);
    simulate(world, &mut Jet::new(Over::Table, 16_384, world, table).unwrap())
}

/// Figure 3 gives bars and no numbers, so it is its shape that is tested: falling with the table's
/// size to nothing at 1.5, rising with the rate, and JET far below at equal size. JET with room
/// for all may break a handful: idle flows that sent nothing while the server that came back
/// stood on the horizon.
#[test]
fn jet_3_violations_by_table_size_and_rate() {
    let mut before = Vec::new();
    for rate in [5.0, 20.0] {
        let world = jet_world(rate, 47);
        let full: Vec<u64> =
            [0.1, 0.5, 0.75, 1.5].iter().map(|&size| tracked(&world, size).broken).collect();
        let ours: Vec<u64> =
            [0.1, 0.25, 1.5].iter().map(|&size| jet(&world, size).broken).collect();
        println!("rate {rate}, seed {SEED}: full {full:?}, JET {ours:?}");
        assert!(full.windows(2).all(|pair| pair[0] > pair[1]), "falls: {full:?}");
        assert_eq!(full[3], 0, "room for all");
        assert!(full[0] > 60, "a small table breaks many: {full:?}");
        assert!(ours[0] * 5 < full[0], "an order of magnitude, or half of that");
        assert!(ours[1..].iter().all(|&broken| broken <= 5), "room for all the unsafe: {ours:?}");
        assert!(before.iter().zip(&full).all(|(slow, fast)| slow <= fast), "rises with the rate");
        before = full;
    }
}

/// Figure 4: a horizon shorter than the queue of the servers that are down (some 50 at 20 a minute) is
/// too short whatever the table's size if it is much shorter. Tracked flows: |H| / |W + H|.
#[test]
fn jet_4_violations_by_horizon() {
    let broken = |horizon| jet(&jet_world(20.0, horizon), 1.5);
    let (none, short, long) = (broken(0), broken(5), broken(47));
    println!("seed {SEED}: broken {} {} {}", none.broken, short.broken, long.broken);
    assert!(none.broken > 4 * short.broken.max(1), "without a horizon all returns break");
    assert!(short.broken > 0, "5 are too few at this rate");
    assert!(long.broken * 20 < short.broken, "47 are enough, but for idle flows");
    let world = World { updates_per_minute: 0.0, ..jet_world(0.0, 47) };
    let share = jet(&world, 1.5).tracked_share.mean();
    close("tracked share", share, 47.0 / 515.0, 0.9..=1.1);
}

/// RESIDUE.md's table. One run sees 11 departures at 1 a minute, so that row has a band of a
/// factor of 2; the others are within a fifth, three standard deviations at 10 a minute. Flows
/// that begin before 300 s are not counted: the first servers come back only after 120 s. The
/// share of rows needs the flows of the table (100,000; fewer flows leave fewer rows with one).
#[test]
fn residue_leaves_as_many_exceptions_as_its_page_says() {
    let rows = [
        (1.0, 0.22, 0.3, 0.5..=2.0),
        (10.0, 2.35, 2.6, 0.75..=1.2),
        (40.0, 8.1, 8.0, 0.8..=1.2),
        (80.0, 13.6, 11.2, 0.8..=1.2),
    ];
    for (updates_per_minute, exceptions, marked, band) in rows {
        let flows = if updates_per_minute == 10.0 { 100_000.0 } else { 10_000.0 };
        let world = World {
            updates_per_minute,
            warmup: 300.0,
            sample_every: 10.0,
            ..World::published(flows, SEED)
        };
        let outcome = simulate(&world, &mut Residue::new(65_537, &world.server_weights()).unwrap());
        let share = 100.0 * outcome.tracked_share.mean();
        close(&format!("exceptions, {updates_per_minute}/min"), share, exceptions, band.clone());
        if flows == 100_000.0 {
            close("rows", 100.0 * outcome.marked_rows.mean(), marked, band);
        }
        assert_eq!(outcome.broken, 0);
    }
}

/// A built-in scenario in smoke size.
fn smoke(name: &str) -> Report {
    let mut scenario = builtin(name, Size::Smoke).unwrap();
    scenario.seed = SEED;
    run(&scenario).unwrap()
}

fn row<'a>(report: &'a Report, method: &str) -> &'a Row {
    report.rows.iter().find(|row| row.method == method).unwrap()
}

/// Figure 2c. What the paper says of it holds: a threshold of 10 % breaks about 3 % of all flows
/// (3.36 published; seeds differ by a tenth), and a higher one buys fewer breaks with imbalance.
/// But ours fall much faster: 0.06 at 20 %, where 3.0 is published (docs/sim.md says what may be
/// the reason), so the middle of the figure is held by our own bands.
#[test]
fn cheetah_2c_less_imbalance_costs_broken_flows() {
    let report = smoke("cheetah-2c");
    let broken = |method: &str| row(&report, method).broken_percent;
    let imbalance = |method: &str| row(&report, method).imbalance_percent;
    close("threshold 10 %", broken("chain 0.1"), 3.36, 0.75..=1.25);
    println!(
        "20, 30, 40 %: {:.4} {:.4} {:.4}",
        broken("chain 0.2"),
        broken("chain 0.3"),
        broken("chain 0.4")
    );
    assert!((0.01..0.3).contains(&broken("chain 0.2")));
    assert!(broken("chain 0.3") < broken("chain 0.2") / 5.0);
    assert!(broken("chain 0.4") <= broken("chain 0.3"));
    assert_eq!(broken("chain"), 0.0, "without a threshold nothing changes hands");
    assert!((9.0..=12.0).contains(&imbalance("chain 0.1")), "{}", imbalance("chain 0.1"));
    assert!(imbalance("chain 0.2") < 21.0 && imbalance("chain") > 22.0);
}

/// Figure 9: broken of completed requests in the worst second. Published: hash up to 11 %,
/// Beamer up to 0.5 %, Cheetah none. A second has about 2,000 completions, and a server that goes
/// moves a 31st of the flows: seeds differ by a fifth.
#[test]
fn cheetah_9_scaling_breaks_hashes_and_not_cheetah() {
    let report = smoke("cheetah-9");
    let worst = |method: &str| {
        let run = report.rows.iter().position(|row| row.method == method).unwrap();
        let share = |s: &weir_sim::Sample| s.completed_broken as f64 / s.completed.max(1) as f64;
        let samples = &report.series[run].samples;
        assert_eq!(samples.len(), 40);
        assert_eq!([15, 30, 39].map(|at| samples[at].working), [31.0, 26.0, 23.0], "{method}");
        100.0 * samples.iter().map(share).fold(0.0, f64::max)
    };
    close("hash, worst second", worst("hash"), 11.0, 0.8..=1.5);
    let (chain, modulo) = (worst("chain"), worst("modulo"));
    println!("chain {chain:.2}, modulo {modulo:.1}, seed {SEED}");
    assert!((0.3..3.0).contains(&chain), "the second change of a bucket: {chain}");
    assert!(modulo > 40.0, "nearly all long flows: {modulo}");
    assert_eq!(row(&report, "cheetah RoundRobin").broken, 0);
}

/// Figures 6 and 7, with equal demands: the hash leaves every server an M/D/1 queue in processor
/// sharing, whose mean time is the demand over (1 - load), whatever the demands. Round robin's
/// tail is far below (published, on a testbed: 2 to 3 times; here no work but the requests').
#[test]
fn cheetah_6_and_7_round_robin_has_shorter_tails_and_less_variance() {
    let report = smoke("cheetah-6");
    for load in [0.5, 0.7, 0.9] {
        let at = |method: &str| {
            let found = |row: &&Row| row.method == method && row.load == Some(load);
            report.rows.iter().find(found).unwrap()
        };
        let (hash, turn) = (at("hash"), at("cheetah RoundRobin"));
        let mean = hash.completion_mean_ms.unwrap();
        // A queue forgets slowly at 0.9: 64 servers, 15 s.
        let band = if load == 0.9 { 0.85..=1.2 } else { 0.95..=1.05 };
        close(&format!("hash, mean at {load}"), mean, 5.0 / (1.0 - load), band);
        assert!(hash.completion_p99_ms.unwrap() > 2.0 * turn.completion_p99_ms.unwrap());
    }
    let report = smoke("cheetah-7");
    for pair in report.rows.chunks(3) {
        let variance = |place: usize| pair[place].load_variance.unwrap();
        assert!(variance(0) > 20.0 * variance(1), "hash {}, turn {}", variance(0), variance(1));
    }
}

/// Figure 8, 64 servers: automatic weights 2.2 times and the power of two 1.9 times below the
/// hash, as published. 152,000 requests, one in ten of 500 ms: the tail is that of some 15,000.
/// (The published least loaded is bad, ours is not: docs/sim.md.)
#[test]
fn cheetah_8_feedback_shortens_the_tail() {
    let report = smoke("cheetah-8");
    let tail = |method: &str| {
        let found = |row: &&Row| row.method == method && row.servers == 64;
        report.rows.iter().find(found).unwrap().completion_p99_ms.unwrap()
    };
    let hash = tail("hash");
    close("automatic", hash / tail("cheetah Automatic"), 2.2, 0.8..=1.2);
    close("power of two", hash / tail("cheetah PowerOfTwo reported"), 1.9, 0.8..=1.2);
    assert!(tail("cheetah RoundRobin") > 0.8 * hash, "turns alone do not help");
}

/// Load over average while all weights are drawn anew: high at the change, since the flows of
/// before are where they were, and falling until the next; a schedule that knows no weights stays
/// high.
#[test]
fn concury_follows_its_weights() {
    for (name, period) in [("concury-load-60", 60), ("concury-load-30", 30)] {
        let report = smoke(name);
        let series = |method: &str| {
            let run = report.rows.iter().position(|row| row.method == method).unwrap();
            &report.series[run].samples
        };
        let mean = |method: &str, after: std::ops::Range<u64>| {
            let in_range = |s: &&weir_sim::Sample| after.contains(&(s.time as u64 % period));
            let found: Vec<f64> =
                series(method).iter().filter(in_range).map(|s| s.imbalance_percent).collect();
            found.iter().sum::<f64>() / found.len() as f64
        };
        let (early, late) = (mean("concury", 0..3), mean("concury", period - 6..period));
        let blind = mean("cheetah RoundRobin", period - 6..period);
        println!(
            "{name}, seed {SEED}: {early:.0} % then {late:.0} %, without weights {blind:.0} %"
        );
        assert!(early > 100.0 && late < 0.65 * early && late < 0.75 * blind);
        assert_eq!(row(&report, "concury").broken, 0);
    }
}

/// JET, figure 5: at most 1.6 at the published connection rates; better with more connections.
/// (5,000 are a quarter of the published least, and one server has some ten then.)
#[test]
fn jet_5_more_connections_are_better_balanced() {
    let report = smoke("jet-5");
    for rate in [1.0, 10.0, 40.0] {
        let at = |flows: f64| {
            let found = |row: &&Row| row.target_flows == flows && row.updates_per_minute == rate;
            report.rows.iter().find(found).unwrap().imbalance_percent
        };
        println!("{rate}/min, seed {SEED}: {:.1} % {:.1} %", at(5_000.0), at(20_000.0));
        assert!(at(20_000.0) < 0.75 * at(5_000.0));
        assert!((35.0..=65.0).contains(&at(20_000.0)), "{}", at(20_000.0));
    }
}

/// Whatever the registry publishes is played by its name. While servers drain, residue's published tables
/// break nothing, as its exact form. JET without a warm-up may lose a flow that was silent between two changes
/// (docs/jet.md, the promise): 1 of 47,068.
#[test]
fn published_methods_keep_their_promises_while_servers_drain() {
    let mut scenario = builtin("drain", Size::Smoke).expect("it is built in");
    scenario.methods.retain(|method| matches!(method, MethodSpec::Published { .. }));
    let report = run(&scenario).expect("it can be run");
    let [residue, jet] = &report.rows[..] else { panic!("{:?}", report.rows) };
    assert_eq!((residue.method.as_str(), residue.broken), ("residue published", 0));
    assert_eq!(jet.method, "jet published");
    let few = jet.broken as f64 / jet.flows as f64;
    println!("jet published: {} of {} flows broken", jet.broken, jet.flows);
    assert!(few < 5e-4 && jet.flows > 10_000 && residue.flows == jet.flows, "{:?}", report.rows);
}
