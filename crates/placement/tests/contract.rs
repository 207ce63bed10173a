//! What every incremental placement promises, over random histories of its pool: minimal
//! disruption, shares that follow weights, `may_differ` that is right in every order of
//! admission, batches that agree, refusals that change nothing.

mod common;

use common::{Backend, Rng, check_share, pool, seed};
use std::fmt::Debug;
use weir_placement::{Anchor, Hrw, HrwTable, Maglev, PoolError, Ring};
use weir_placement::{Candidate, Horizon, Incremental, NONE, Placement};

trait Subject: Horizon + Clone + PartialEq + Debug {}
impl<T: Horizon + Clone + PartialEq + Debug> Subject for T {}

/// The pool as the test believes it to be.
#[derive(Clone, Default)]
struct Model {
    working: Vec<Backend>,
    /// In the order in which Anchor expects them.
    horizon: Vec<Backend>,
    outside: Vec<Backend>,
}

const FLOWS: usize = 1500;

fn answers<P: Placement + ?Sized>(placement: &P, flows: &[u64]) -> Vec<u16> {
    let mut out = vec![0x5555; flows.len()];
    placement.lookup_batch(flows, &mut out);
    let single: Vec<u16> =
        flows.iter().map(|&hash| placement.lookup(hash).unwrap_or(NONE)).collect();
    assert_eq!(out, single, "a batch answers as single lookups do");
    out
}

/// The flows that moved, as (index, from, to).
fn moves(before: &[u16], after: &[u16]) -> Vec<(usize, u16, u16)> {
    let pairs = before.iter().zip(after).enumerate();
    pairs.filter(|(_, (a, b))| a != b).map(|(i, (&a, &b))| (i, a, b)).collect()
}

/// `verdict`, `lookup_all` and `lookup` agree, and so does the truth: admitting the horizon.
fn check_verdicts<P: Subject>(subject: &P, model: &Model, flows: &[u64], rng: &mut Rng) {
    let mut in_order = subject.clone();
    let mut any_order = subject.clone();
    let mut shuffled = model.horizon.clone();
    rng.shuffle(&mut shuffled);
    for backend in &model.horizon {
        in_order.admit(backend.number).unwrap();
    }
    let mut moved = vec![false; flows.len()];
    for backend in &shuffled {
        let before = answers(&any_order, flows);
        any_order.admit(backend.number).unwrap();
        for (i, _, to) in moves(&before, &answers(&any_order, flows)) {
            assert_eq!(to, backend.number, "flows move to who is admitted");
            moved[i] = true;
        }
    }
    let mut batch = vec![None; flows.len()];
    subject.verdict_batch(flows, &mut batch);
    for (i, &hash) in flows.iter().enumerate() {
        let verdict = subject.verdict(hash);
        assert_eq!(batch[i], verdict, "a batch answers as single verdicts do");
        assert_eq!(verdict.map(|v| v.backend), subject.lookup(hash));
        assert_eq!(subject.lookup_all(hash), in_order.lookup(hash));
        let Some(verdict) = verdict else {
            assert!(model.working.iter().all(|backend| backend.weight == 0));
            continue;
        };
        assert!(model.working.iter().any(|b| b.number == verdict.backend && b.weight > 0));
        assert_eq!(verdict.may_differ, subject.lookup_all(hash) != Some(verdict.backend));
        assert_eq!(verdict.may_differ, moved[i], "in another order of admission");
    }
}

/// One random change, made to both, and the moves that it may cause.
fn step<P: Subject>(subject: &mut P, model: &mut Model, flows: &[u64], rng: &mut Rng) {
    let before = answers(subject, flows);
    let unsafe_before: Vec<bool> =
        flows.iter().map(|&hash| subject.verdict(hash).is_none_or(|v| v.may_differ)).collect();
    // Who may gain and who may lose flows.
    let (mut gains, mut loses) = (None, None);
    let mut only_unsafe = false;
    match rng.below(8) {
        0 | 1 if !model.outside.is_empty() => {
            let at = rng.below(model.outside.len());
            let backend = model.outside.swap_remove(at);
            if rng.below(2) == 0 {
                subject.add(backend.candidate()).unwrap();
                gains = Some(backend.number);
                model.working.push(backend);
            } else {
                subject.add_horizon(backend.candidate()).unwrap();
                model.horizon.push(backend);
            }
        }
        2 if !model.working.is_empty() => {
            let at = rng.below(model.working.len());
            let backend = model.working.swap_remove(at);
            subject.remove(backend.number).unwrap();
            loses = Some(backend.number);
            model.outside.push(backend);
        }
        3 if !model.horizon.is_empty() => {
            let at = rng.below(model.horizon.len());
            let backend = model.horizon.remove(at);
            subject.remove_horizon(backend.number).unwrap();
            model.outside.push(backend);
        }
        4 | 5 if !model.horizon.is_empty() => {
            let at = rng.below(model.horizon.len());
            let backend = model.horizon.remove(at);
            subject.admit(backend.number).unwrap();
            (gains, only_unsafe) = (Some(backend.number), true);
            model.working.push(backend);
        }
        6 if !model.working.is_empty() => {
            let at = rng.below(model.working.len());
            let backend = model.working.swap_remove(at);
            subject.retire(backend.number).unwrap();
            loses = Some(backend.number);
            model.horizon.insert(0, backend);
        }
        7 if !model.working.is_empty() => {
            let at = rng.below(model.working.len());
            let backend = &mut model.working[at];
            let weight = rng.below(6) as u32;
            subject.reweight(backend.number, weight).unwrap();
            let side = if weight > backend.weight { &mut gains } else { &mut loses };
            *side = Some(backend.number);
            backend.weight = weight;
        }
        _ => return,
    }
    for (i, from, to) in moves(&before, &answers(subject, flows)) {
        assert!(Some(to) == gains || Some(from) == loses, "{from} -> {to}");
        assert!(!only_unsafe || unsafe_before[i], "a safe flow moved to {to}");
    }
}

fn history<P: Subject>(empty: P, backends: u16, steps: usize, rng: &mut Rng) {
    let mut subject = empty;
    let mut model = Model { outside: pool(rng, backends, &[1, 2, 0, 3, 1, 5]), ..Model::default() };
    let flows = rng.hashes(FLOWS);
    for _ in 0..steps {
        step(&mut subject, &mut model, &flows, rng);
        check_verdicts(&subject, &model, &flows, rng);
        check_refusals(&mut subject, &model);
    }
}

fn check_refusals<P: Subject>(subject: &mut P, model: &Model) {
    let unchanged = subject.clone();
    let new = Candidate { name: "new", backend: 60_000, weight: 1 };
    let reserved = Candidate { backend: NONE, ..new };
    assert_eq!(subject.add(reserved), Err(PoolError::ReservedBackend));
    assert_eq!(subject.add_horizon(reserved), Err(PoolError::ReservedBackend));
    for known in model.working.iter().chain(&model.horizon).take(3) {
        let number = known.number;
        let same_number = Candidate { backend: number, ..new };
        let same_name = Candidate { name: &known.name, ..new };
        assert_eq!(subject.add(same_number), Err(PoolError::DuplicateBackend(number)));
        assert_eq!(subject.add_horizon(same_name), Err(PoolError::DuplicateName(60_000)));
    }
    let outside = model.outside.iter().chain(&model.horizon).map(|backend| backend.number);
    for number in outside.chain([60_000]) {
        assert_eq!(subject.remove(number), Err(PoolError::NotWorking(number)));
        assert_eq!(subject.retire(number), Err(PoolError::NotWorking(number)));
        assert_eq!(subject.reweight(number, 1), Err(PoolError::NotWorking(number)));
    }
    for number in model.working.iter().map(|backend| backend.number).chain([60_000]) {
        assert_eq!(subject.admit(number), Err(PoolError::NotInHorizon(number)));
        assert_eq!(subject.remove_horizon(number), Err(PoolError::NotInHorizon(number)));
    }
    assert_eq!(*subject, unchanged, "a refusal changes nothing");
}

#[test]
fn hrw_keeps_the_contract() {
    let mut rng = Rng(seed());
    for backends in [1, 2, 3, 20] {
        history(Hrw::new(), backends, 150, &mut rng);
    }
}

#[test]
fn table_keeps_the_contract() {
    let mut rng = Rng(seed());
    for (backends, rows) in [(1, 1), (2, 7), (3, 64), (20, 1000), (20, 65)] {
        history(HrwTable::new(rows).unwrap(), backends, 150, &mut rng);
    }
}

#[test]
fn ring_keeps_the_contract() {
    let mut rng = Rng(seed());
    for (backends, copies) in [(1, 1), (2, 1), (3, 100), (20, 5)] {
        history(Ring::new(copies).unwrap(), backends, 150, &mut rng);
    }
}

#[test]
fn anchor_keeps_the_contract() {
    let mut rng = Rng(seed());
    // Weights go up to 5: full capacity, and more than enough.
    for (backends, capacity) in [(1, 5), (2, 10), (3, 64), (20, 100), (20, 1000)] {
        history(Anchor::new(capacity).unwrap(), backends, 150, &mut rng);
    }
}

/// Every backend within six standard deviations of its share, after a history that ended there.
fn check_balance<P: Subject>(mut subject: P, weights: &[u32], rng: &mut Rng) {
    let backends = pool(rng, 60, weights);
    for backend in &backends {
        subject.add(backend.candidate()).unwrap();
    }
    // Half of them go and come back, in other orders; ten stay away.
    let mut numbers: Vec<usize> = (0..30).collect();
    rng.shuffle(&mut numbers);
    numbers.iter().for_each(|&n| subject.retire(backends[n].number).unwrap());
    rng.shuffle(&mut numbers);
    numbers.iter().skip(10).for_each(|&n| subject.admit(backends[n].number).unwrap());
    let (away, _) = numbers.split_at(10);

    const N: usize = 200_000;
    let (mut got, mut horizon) = (vec![0; backends.len()], 0);
    for _ in 0..N {
        let verdict = subject.verdict(rng.next()).unwrap();
        got[usize::from(verdict.backend)] += 1;
        horizon += usize::from(verdict.may_differ);
    }
    let sum =
        |numbers: &[usize]| -> f64 { numbers.iter().map(|&n| f64::from(backends[n].weight)).sum() };
    let all = sum(&(0..60).collect::<Vec<_>>());
    let gone = sum(away);
    for (n, &got) in got.iter().enumerate() {
        let weight = if away.contains(&n) { 0.0 } else { f64::from(backends[n].weight) };
        check_share(&format!("backend {n}"), got, N, weight / (all - gone), 6.0);
    }
    // JET, theorem 4.2: the tracked share is |H| / |W + H|.
    check_share("tracked", horizon, N, gone / all, 6.0);
}

#[test]
fn shares_follow_weights_and_tracking_follows_the_horizon() {
    let mut rng = Rng(seed());
    for weights in [&[1][..], &[1, 2, 3], &[4, 0, 1]] {
        check_balance(Hrw::new(), weights, &mut rng);
        check_balance(Anchor::new(300).unwrap(), weights, &mut rng);
    }
    // A table adds its own deviation, sqrt(fair rows), which is small with many rows.
    check_balance(HrwTable::new(1 << 20).unwrap(), &[1, 2], &mut rng);
}

/// Rows are drawn like balls: each backend within six deviations of its share of the rows.
#[test]
fn table_rows_follow_weights() {
    let mut rng = Rng(seed());
    for weights in [&[1][..], &[1, 2, 3], &[1, 100], &[97, 13, 64, 1, 100, 33, 50]] {
        let backends = pool(&mut rng, 100, weights);
        let total: u32 = backends.iter().map(|backend| backend.weight).sum();
        let mut table = HrwTable::new(65_537).unwrap();
        backends.iter().for_each(|backend| table.add(backend.candidate()).unwrap());
        for backend in &backends {
            let share = f64::from(backend.weight) / f64::from(total);
            check_share(&backend.name, table.held(backend.number), 65_537, share, 6.0);
        }
    }
}

/// An arc is a sum of `copies` exponential gaps, so its deviation is share / sqrt(copies).
#[test]
fn ring_arcs_follow_weights() {
    let mut rng = Rng(seed());
    let backends = pool(&mut rng, 60, &[1, 2, 3]);
    let mut ring = Ring::new(100).unwrap();
    backends.iter().for_each(|backend| ring.add(backend.candidate()).unwrap());
    let mut sum = 0.0;
    for backend in &backends {
        let fair = f64::from(backend.weight) / 120.0;
        let share = ring.share(backend.number);
        let bound = 7.0 / (100.0 * f64::from(backend.weight)).sqrt();
        assert!((share / fair - 1.0).abs() < bound, "{}: {share} for {fair}", backend.name);
        sum += share;
    }
    assert!((sum - 1.0).abs() < 1e-9);
}

/// A pool that comes at once is the one that came one by one, up to the backend that is refused.
#[test]
fn many_backends_at_once_are_the_same_as_one_by_one() {
    fn check<P: Subject>(empty: &P, working: &[Backend], horizon: &[Backend]) {
        fn candidates(backends: &[Backend]) -> Vec<Candidate<'_>> {
            backends.iter().map(Backend::candidate).collect()
        }
        let mut single = common::filled(empty.clone(), working);
        let mut at_once = empty.clone();
        at_once.add_all(&candidates(working)).unwrap();
        assert_eq!(at_once, single);
        horizon.iter().for_each(|backend| single.add_horizon(backend.candidate()).unwrap());
        at_once.add_all_horizon(&candidates(horizon)).unwrap();
        assert_eq!(at_once, single);
        // Of a list with one that is there already, what stands before it comes.
        let [new, known] = [&horizon[0], &working[0]].map(Backend::candidate);
        single.remove_horizon(new.backend).unwrap();
        at_once.remove_horizon(new.backend).unwrap();
        single.add(new).unwrap();
        assert_eq!(at_once.add_all(&[new, known]), single.add(known));
        assert_eq!(at_once, single);
    }
    let mut rng = Rng(seed());
    let mut backends = pool(&mut rng, 50, &[1, 2, 0, 3]);
    rng.shuffle(&mut backends);
    let (working, horizon) = backends.split_at(40);
    check(&Ring::new(30).unwrap(), working, horizon);
    check(&HrwTable::new(1009).unwrap(), working, horizon);
    check(&Hrw::new(), working, horizon);
}

#[test]
fn maglev_answers_in_batches_too() {
    let mut rng = Rng(seed());
    let backends = pool(&mut rng, 20, &[1, 2]);
    let candidates: Vec<_> = backends.iter().map(Backend::candidate).collect();
    let flows = rng.hashes(10_000);
    answers(&Maglev::build(1009, &candidates).unwrap(), &flows);
    assert_eq!(answers(&Maglev::build(7, &[]).unwrap(), &flows), vec![NONE; flows.len()]);
}
