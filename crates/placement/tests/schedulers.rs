//! Schedulers: order, shares, and the load they leave behind.

mod common;

use common::{Rng, check_share, pool, seed};
use weir_placement::{
    Awrr, Hashed, Horizon, Hrw, HrwTable, Incremental, LeastLoaded, Metric, PowerOfTwo, RoundRobin,
    Scheduler, WeightedRoundRobin, choose_of_two,
};

fn picks(scheduler: &mut impl Scheduler, n: usize) -> Vec<u16> {
    (0..n).map(|_| scheduler.pick(0).unwrap()).collect()
}

#[test]
fn round_robin_takes_turns() {
    let mut rr = RoundRobin::new();
    assert_eq!(rr.pick(0), None);
    for (backend, weight) in [(1, 1), (2, 5), (3, 1), (4, 0)] {
        rr.set(backend, weight);
    }
    assert_eq!(picks(&mut rr, 5), [1, 2, 3, 1, 2]);
    rr.remove(1);
    assert_eq!(picks(&mut rr, 3), [3, 2, 3]);
    rr.set(3, 0);
    rr.set(4, 1);
    assert_eq!(picks(&mut rr, 4), [4, 2, 4, 2]);
    for backend in [2, 4] {
        rr.set(backend, 0);
    }
    assert_eq!(rr.pick(0), None);
    for backend in [2, 3, 4] {
        rr.remove(backend);
    }
    assert_eq!(rr.pick(0), None);
}

#[test]
fn weighted_round_robin_is_smooth() {
    let mut wrr = WeightedRoundRobin::new();
    assert_eq!(wrr.pick(0), None);
    for (backend, weight) in [(0, 5), (1, 1), (2, 1)] {
        wrr.set(backend, weight);
    }
    // The example of nginx: { a, a, b, a, c, a, a }.
    for _ in 0..3 {
        assert_eq!(picks(&mut wrr, 7), [0, 0, 1, 0, 2, 0, 0]);
    }
    wrr.set(0, 0);
    assert!(!picks(&mut wrr, 10).contains(&0));
}

#[test]
fn weighted_round_robin_is_exact_in_every_round() {
    let mut rng = Rng(seed());
    for _ in 0..50 {
        let weights: Vec<u32> = (0..8).map(|_| rng.below(20) as u32).collect();
        let total: u32 = weights.iter().sum();
        let mut wrr = WeightedRoundRobin::new();
        (0..8).for_each(|backend| wrr.set(backend, weights[usize::from(backend)]));
        for _ in 0..3 {
            let mut got = [0u32; 8];
            for pick in 1..=total {
                got[usize::from(wrr.pick(0).unwrap())] += 1;
                for (got, weight) in got.iter().zip(&weights) {
                    let fair = f64::from(pick * weight) / f64::from(total);
                    assert!((f64::from(*got) - fair).abs() < 8.0, "{weights:?}");
                }
            }
            assert_eq!(got.as_slice(), weights);
        }
    }
}

/// Ni = round(10 Lavg / ((1 - alpha) Li + alpha Lavg)), within 2 and 30.
#[test]
fn awrr_follows_the_formula() {
    // Of ten backends with 1,000 together the average is 100.
    let buckets = |alpha, load| Awrr::buckets(alpha, load, 1000, 10);
    for (load, want) in [
        (100, 10), // average
        (0, 20),   // 10 * 100 / 50
        (50, 13),  // 10 * 100 / 75 = 13.3
        (200, 7),  // 10 * 100 / 150 = 6.7
        (300, 5),  // 10 * 100 / 200
        (567, 3),  // 10 * 100 / 333.5 = 2.999
        (900, 2),  // 10 * 100 / 500
        (1000, 2), // 10 * 100 / 550 = 1.8
    ] {
        assert_eq!(buckets(500, load), want, "load {load}");
    }
    // Slower and faster convergence, the bounds, and no load at all.
    assert_eq!(buckets(1000, 900), 10);
    assert_eq!(buckets(900, 0), 11);
    assert_eq!(buckets(400, 0), 25);
    assert_eq!(buckets(100, 0), 30);
    assert_eq!(buckets(0, 0), 30);
    assert_eq!(buckets(0, 1000), 2);
    assert_eq!(Awrr::buckets(500, 0, 0, 10), 10);
    assert_eq!(Awrr::buckets(500, 0, 0, 0), 10);
    assert_eq!(Awrr::buckets(500, u64::MAX, u64::MAX, u64::MAX), 2);
}

#[test]
fn awrr_turns_reports_into_turns() {
    let mut awrr = Awrr::new();
    (0..3).for_each(|backend| awrr.set(backend, 1));
    // Nobody has reported: all are average.
    assert_eq!(awrr.buckets_of(0), Some(10));
    assert_eq!(picks(&mut awrr, 3), [0, 1, 2]);
    // Average 50: 10 * 50 / 75 = 7, 10 * 50 / 25 = 20; the third is still unknown.
    awrr.on_load(0, 100);
    awrr.on_load(1, 0);
    assert_eq!([0, 1, 2].map(|backend| awrr.buckets_of(backend)), [Some(7), Some(20), Some(10)]);
    let mut got = [0; 3];
    picks(&mut awrr, 37).into_iter().for_each(|backend| got[usize::from(backend)] += 1);
    assert_eq!(got, [7, 20, 10]);
    // A drained backend gets nothing and no longer enters the average: 100 alone is average.
    awrr.set(1, 0);
    assert_eq!(awrr.buckets_of(0), Some(10));
    assert!(!picks(&mut awrr, 50).contains(&1));
    awrr.on_load(99, 5);
    awrr.remove(0);
    assert!(picks(&mut awrr, 10).iter().all(|&backend| backend == 2));
}

/// Servers of different speed: shares by load leave a smaller spread of load than equal shares.
#[test]
fn awrr_narrows_the_spread_of_load() {
    let speeds = [1.0, 1.0, 2.0, 3.0];
    let mut awrr = Awrr::new();
    (0..4).for_each(|backend| awrr.set(backend, 1));
    let mut spread = Vec::new();
    for _ in 0..20 {
        let mut got = [0.0; 4];
        picks(&mut awrr, 4000).into_iter().for_each(|backend| got[usize::from(backend)] += 1.0);
        let loads: Vec<f64> = got.iter().zip(speeds).map(|(got, speed)| got / speed).collect();
        let average = loads.iter().sum::<f64>() / 4.0;
        spread.push(loads.iter().fold(0.0, |a, &b| f64::max(a, b)) / average);
        (0..4).for_each(|backend| awrr.on_load(backend, loads[usize::from(backend)] as u64));
    }
    println!("max / average load by round: {spread:.3?}");
    assert!(spread[0] > 1.4);
    // It settles at 1.30, not at 1: each report starts from ten buckets again.
    assert!(spread[1..].iter().all(|&late| late < 1.32), "{spread:?}");
}

#[test]
fn pairs_are_drawn_by_weight_and_differ() {
    let mut rng = Rng(seed());
    let mut p2c = PowerOfTwo::new(Metric::Reported);
    assert_eq!(p2c.pick(1), None);
    let weights = [1, 0, 2, 5];
    (0..4).for_each(|backend| p2c.set(backend, weights[usize::from(backend)]));
    // All loads are zero, so the first of the pair wins: shares by weight.
    const N: usize = 100_000;
    let mut got = [0; 4];
    rng.hashes(N).iter().for_each(|&random| got[usize::from(p2c.pick(random).unwrap())] += 1);
    for (backend, &got) in got.iter().enumerate() {
        let share = f64::from(weights[backend]) / 8.0;
        check_share(&format!("backend {backend}"), got, N, share, 6.0);
    }
    // Loaded beyond measure, it is never taken: nobody is paired with himself.
    for backend in [0, 2, 3] {
        p2c.on_load(backend, u64::MAX);
        assert!(rng.hashes(10_000).iter().all(|&random| p2c.pick(random) != Some(backend)));
        p2c.on_load(backend, 0);
    }
    // Alone, it is.
    for backend in [0, 2] {
        p2c.set(backend, 0);
    }
    assert_eq!(p2c.pick(rng.next()), Some(3));
    p2c.remove(3);
    assert_eq!(p2c.pick(rng.next()), None);
}

#[test]
fn least_loaded_counts_connections_per_weight() {
    let mut least = LeastLoaded::new(Metric::Connections);
    assert_eq!(least.pick(0), None);
    for (backend, weight) in [(7, 1), (8, 2), (9, 0)] {
        least.set(backend, weight);
    }
    // All idle: the next connection weighs less on the heavier one, wherever the search begins.
    assert!((0..32).all(|random| least.pick(random << 27) == Some(8)));
    let mut got = [0; 2];
    for random in 0..30 {
        let backend = least.pick(random << 27).unwrap();
        least.on_open(backend);
        got[usize::from(backend - 7)] += 1;
    }
    assert_eq!(got, [10, 20]);
    // Closes make room; those that were never opened do not count.
    (0..3).for_each(|_| least.on_close(7));
    (0..50).for_each(|_| least.on_close(9));
    assert_eq!(least.pick(0), Some(7));
    least.set(9, 1);
    assert_eq!(least.pick(0), Some(9));
    least.remove(9);
    least.remove(7);
    assert_eq!(least.pick(0), Some(8));
}

#[test]
fn a_scheduler_repeats_itself() {
    let mut rng = Rng(seed());
    let randoms = rng.hashes(1000);
    let run = || {
        let mut p2c = PowerOfTwo::new(Metric::Connections);
        (0..10).for_each(|backend| p2c.set(backend, 1));
        let pick = |&random: &u64| {
            let backend = p2c.pick(random).unwrap();
            p2c.on_open(backend);
            backend
        };
        randoms.iter().map(pick).collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}

const SERVERS: u16 = 100;
const OPEN: usize = 20_000;

/// Connections come, and random ones go, for five generations; the average of max / average
/// load - 1, as in Cheetah's Fig. 2b.
fn imbalance(mut scheduler: impl Scheduler, rng: &mut Rng) -> f64 {
    (0..SERVERS).for_each(|backend| scheduler.set(backend, 1));
    let mut open: Vec<u16> = Vec::with_capacity(OPEN);
    let mut counts = vec![0u32; usize::from(SERVERS)];
    let (mut sum, mut samples) = (0.0, 0);
    for step in 0..6 * OPEN {
        if open.len() == OPEN {
            let gone = open.swap_remove(rng.below(OPEN));
            counts[usize::from(gone)] -= 1;
            scheduler.on_close(gone);
        }
        let backend = scheduler.pick(rng.next()).unwrap();
        open.push(backend);
        counts[usize::from(backend)] += 1;
        scheduler.on_open(backend);
        if step > 2 * OPEN && step % 1000 == 0 {
            let max = counts.iter().max().copied().unwrap_or(0);
            sum += f64::from(max) / (OPEN as f64 / f64::from(SERVERS)) - 1.0;
            samples += 1;
        }
    }
    sum / f64::from(samples)
}

#[test]
fn better_informed_schedulers_balance_better() {
    let mut rng = Rng(seed());
    let mut hrw = Hrw::new();
    pool(&mut rng, SERVERS, &[1]).iter().for_each(|b| hrw.add(b.candidate()).unwrap());
    let hash = imbalance(Hashed(hrw), &mut rng);
    let rr = imbalance(RoundRobin::new(), &mut rng);
    let p2c = imbalance(PowerOfTwo::new(Metric::Connections), &mut rng);
    let least = imbalance(LeastLoaded::new(Metric::Connections), &mut rng);
    println!("max / average - 1: hash {hash:.4}, rr {rr:.4}, p2c {p2c:.4}, least {least:.4}");
    assert!(hash > 1.1 * rr && rr > 3.0 * p2c && p2c > 1.5 * least);
}

/// JET, section 6.3: two choices balance better and still track only about half of the flows.
#[test]
fn two_choices_on_jet_save_half_of_the_table() {
    let mut rng = Rng(seed());
    let mut table = HrwTable::new(65_536).unwrap();
    let backends = pool(&mut rng, SERVERS, &[1]);
    backends.iter().for_each(|backend| table.add(backend.candidate()).unwrap());
    (0..10).for_each(|backend| table.retire(backend).unwrap());

    const N: usize = 200_000;
    let (mut loads, mut hashed) = ([0u32; 100], [0u32; 100]);
    let (mut tracked, mut unsafe_flows) = (0, 0);
    for _ in 0..N {
        let hash = rng.next();
        let choice = choose_of_two(&table, hash, |backend| loads[usize::from(backend)]).unwrap();
        let verdict = table.verdict(hash).unwrap();
        loads[usize::from(choice.backend)] += 1;
        hashed[usize::from(verdict.backend)] += 1;
        tracked += usize::from(choice.track);
        unsafe_flows += usize::from(verdict.may_differ);
        // Whoever is not tracked stays where the hash says, now and after any admission.
        assert!(choice.track || choice.backend == verdict.backend && !verdict.may_differ);
    }
    let over = |loads: &[u32; 100]| f64::from(*loads.iter().max().unwrap()) / (N as f64 / 90.0);
    let share = |count: usize| count as f64 / N as f64;
    let (ours, ch) = (over(&loads), over(&hashed));
    let (tracked, jet) = (share(tracked), share(unsafe_flows));
    println!(
        "oversubscription: {ch:.3} hashed, {ours:.4} of two; tracked {jet:.3} and {tracked:.3}"
    );
    assert!(ours < 1.01 && ch > 1.05);
    assert!((0.3..0.6).contains(&tracked) && jet < 0.15);

    let empty = HrwTable::new(8).unwrap();
    assert_eq!(choose_of_two(&empty, 1, |_| 0), None);
}
