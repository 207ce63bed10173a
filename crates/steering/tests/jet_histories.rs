//! Long random histories of JET: what is promised, and that it is the paper's algorithm.
//!
//! A history is made of its seed: `WEIR_SEED=n cargo test` repeats one.

#[path = "jet/common.rs"]
mod common;
#[path = "jet/plain.rs"]
mod plain;
#[path = "jet/world.rs"]
mod world;

use common::{KINDS, flow, rng, seconds, seed};
use plain::Plain;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;
use weir_hash::HashKey;
use weir_placement::{Anchor, Candidate, Horizon, Hrw, HrwTable, Incremental, Ring};
use weir_steering::jet::{Guide, Jet, JetTable, PlacementKind};
use weir_steering::{ConnectionTable, Lru, Steer, Unbounded};
use world::World;

/// The same with fewer rows: a change of the table costs as many scores.
fn kinds() -> [PlacementKind; 4] {
    KINDS.map(|kind| match kind {
        PlacementKind::Table { .. } => PlacementKind::Table { rows: 4_096 },
        PlacementKind::Ring { .. } => PlacementKind::Ring { copies: 40 },
        other => other,
    })
}

#[test]
fn nothing_breaks_while_the_horizon_is_respected() {
    let seed = seed();
    for kind in kinds() {
        let mut world = World::new(kind, None, seed);
        world.run(6_000);
        let tally = &world.tally;
        println!("{kind:?}: {tally:?}, {} tracked at the end", world.jet.tracked());
        assert!(tally.packets > 200_000 && tally.inevitable > 5_000);
        assert!(tally.retired > 500 && tally.announced > 300 && tally.admitted > 800);
        assert!(tally.too_early > 300, "the warm-up was put to the test");
        assert_eq!(tally.violations, 0);
        assert_eq!(tally.misplaced, 0, "new flows at backends that do not work");
        // The whole table is not simply kept: 400 live flows.
        assert!(world.jet.tracked() < 300);
    }
}

/// The same histories can break flows: without a connection table they do.
#[test]
fn the_same_histories_break_flows_that_are_not_tracked() {
    let seed = seed();
    for kind in kinds() {
        let mut world = World::new(kind, Some(0), seed);
        world.run(2_000);
        let share = world.tally.violations as f64 / world.tally.packets as f64;
        println!("{kind:?}: {share:.4} of the packets go astray");
        assert!((0.002..0.1).contains(&share));
        assert_eq!(world.tally.misplaced, 0);
    }
}

/// What a history may contain.
#[derive(Clone, Copy, PartialEq)]
enum Rules {
    /// Backends join from the horizon, and flows send while they warm up.
    Respected,
    /// Anything: unforeseen arrivals, other weights, silent flows, no warm-up.
    Anything,
}

/// JET and the plain algorithm over the same placement.
struct Both<G: Guide, C> {
    jet: Jet<G, C>,
    plain: Plain<G::Placement, C>,
    rules: Rules,
    rng: ChaCha8Rng,
    next: u16,
    working: Vec<u16>,
    horizon: Vec<u16>,
    flows: Vec<u64>,
    packets: u64,
}

impl<G: Guide, C: ConnectionTable<Flow = u64>> Both<G, C> {
    fn run(&mut self, changes: u32) {
        for _ in 0..changes {
            let most = if self.rules == Rules::Respected { 1.0 } else { 0.3 };
            let part = self.rng.random_range(0.0..1.0) * most;
            self.packets(part);
            self.change();
            if self.rules == Rules::Respected {
                // Everybody sends, so that everybody is judged before the next change.
                self.packets(1.0);
            }
            self.compare();
        }
    }

    fn packets(&mut self, part: f64) {
        for _ in 0..4 {
            let at = self.rng.random_range(0..self.flows.len());
            let ended = std::mem::replace(&mut self.flows[at], self.rng.random());
            self.jet.end(&ended);
            self.plain.end(ended);
        }
        let flows: Vec<u64> =
            self.flows.iter().copied().filter(|_| self.rng.random_bool(part)).collect();
        let mut answers = vec![0; flows.len()];
        self.jet.steer_batch(&flows, &mut answers);
        for (flow, answer) in flows.into_iter().zip(answers) {
            assert_eq!(self.plain.steer(flow), answer, "flow {flow:#x}");
            self.packets += 1;
        }
    }

    /// The plain algorithm drops what JET drops when anything may happen after.
    fn after_sweep(&mut self, gone: Option<u16>) {
        if let Some(backend) = gone {
            self.plain.table.forget_backend(backend);
        }
        if self.rules == Rules::Anything {
            self.plain.drop_idle();
        }
    }

    fn change(&mut self) {
        let now = seconds(0);
        let backend = self.next;
        let name = format!("b{backend}");
        let weight = self.rng.random_range(1..4);
        let new = Candidate { name: &name, backend, weight };
        let some = |rng: &mut ChaCha8Rng, set: &[u16]| set[rng.random_range(0..set.len())];
        let unforeseen = self.rules == Rules::Anything;
        let placement = &mut self.plain.placement;
        let (many, announced) = (self.working.len() > 10, !self.horizon.is_empty());
        match self.rng.random_range(0..16) {
            0..2 if self.horizon.len() < 8 => {
                self.jet.add_horizon(new, now).unwrap();
                placement.add_horizon(new).unwrap();
                self.horizon.push(backend);
                self.next += 1;
            }
            2..8 if announced => {
                let backend = some(&mut self.rng, &self.horizon);
                self.jet.admit(backend, now).unwrap();
                placement.admit(backend).unwrap();
                self.horizon.retain(|&other| other != backend);
                self.working.push(backend);
            }
            8..11 if many => {
                let backend = some(&mut self.rng, &self.working);
                self.jet.retire(backend).unwrap();
                placement.retire(backend).unwrap();
                self.working.retain(|&other| other != backend);
                self.horizon.push(backend);
                self.after_sweep(Some(backend));
            }
            11 if many => {
                let backend = some(&mut self.rng, &self.working);
                self.jet.remove(backend).unwrap();
                placement.retire(backend).unwrap();
                placement.remove_horizon(backend).unwrap();
                self.working.retain(|&other| other != backend);
                self.after_sweep(Some(backend));
            }
            12 if announced => {
                let backend = some(&mut self.rng, &self.horizon);
                self.jet.remove_horizon(backend).unwrap();
                placement.remove_horizon(backend).unwrap();
                self.horizon.retain(|&other| other != backend);
                self.after_sweep(None);
            }
            13 if unforeseen && self.working.len() < 25 => {
                self.jet.add_unforeseen(new, now).unwrap();
                placement.add(new).unwrap();
                self.working.push(backend);
                self.next += 1;
            }
            14 if unforeseen => {
                let backend = some(&mut self.rng, &self.working);
                let weight = self.rng.random_range(0..5);
                self.jet.reweight_unforeseen(backend, weight, now).unwrap();
                placement.reweight(backend, weight).unwrap();
                self.after_sweep(None);
            }
            15 => {
                self.jet.sweep();
                self.after_sweep(None);
            }
            _ => {}
        }
    }

    fn compare(&self) {
        let mut ours = HashMap::new();
        self.jet
            .connections()
            .for_each(|&flow, backend| assert!(ours.insert(flow, backend).is_none()));
        if self.rules == Rules::Anything {
            let mut theirs = HashMap::new();
            self.plain
                .table
                .for_each(|&flow, backend| assert!(theirs.insert(flow, backend).is_none()));
            assert_eq!(ours, theirs);
            assert_eq!(self.jet.connections().evictions(), self.plain.table.evictions());
        } else {
            let relevant = self.plain.relevant(self.jet.connections());
            assert_eq!(relevant, self.plain.relevant(&self.plain.table));
            for (flow, backend) in &ours {
                let hash = weir_hash::Key::hash(flow, self.plain.table.hash_key());
                assert_eq!(self.plain.table.peek(hash, flow), Some(*backend), "JET has less");
            }
        }
    }
}

fn both<G: Guide, C: ConnectionTable<Flow = u64>>(
    jet: impl FnOnce(G::Placement, C) -> Jet<G, C>,
    mut placement: G::Placement,
    table: impl Fn() -> C,
    rules: Rules,
    seed: u64,
) where
    G::Placement: Clone,
{
    for backend in 0..15 {
        let name = format!("b{backend}");
        placement.add(Candidate { name: &name, backend, weight: 2 }).unwrap();
    }
    let mut both = Both {
        jet: jet(placement.clone(), table()),
        plain: Plain { placement, table: table() },
        rules,
        rng: rng(seed),
        next: 15,
        working: (0..15).collect(),
        horizon: Vec::new(),
        flows: (0..300).map(flow).collect(),
        packets: 0,
    };
    both.run(1_500);
    let evictions = both.plain.table.evictions();
    println!("{} packets alike, {evictions} evictions", both.packets);
    assert!(both.packets > 40_000);
    assert_eq!(evictions > 100, both.plain.table.capacity().is_some());
}

fn equal_everywhere<C: ConnectionTable<Flow = u64>>(
    table: impl Fn() -> C + Copy,
    rules: Rules,
    seed: u64,
) {
    let warm_up = seconds(0);
    both(|p, t| Jet::new(p, t, warm_up), Hrw::new(), table, rules, seed);
    both(|p, t| Jet::new(p, t, warm_up), Ring::new(20).unwrap(), table, rules, seed);
    both(|p, t| Jet::new(p, t, warm_up), Anchor::new(256).unwrap(), table, rules, seed);
    let by_row = |p, t| JetTable::by_row(p, t, warm_up).unwrap();
    both(by_row, HrwTable::new(512).unwrap(), table, rules, seed);
}

/// Under the conditions of the promise, JET answers as the paper's Algorithm 1, and its table is
/// the same but for entries that could be left out.
#[test]
fn the_answers_are_those_of_the_plain_algorithm() {
    let seed = seed();
    equal_everywhere(|| Unbounded::<u64>::new(HashKey::from_seed(seed)), Rules::Respected, seed);
}

/// Whatever happens, and also where the table evicts: the same answers, entries and evictions as
/// the plain algorithm that drops the same entries at the same changes. So no packet that was
/// answered without the table had an entry there, and none was inserted or refreshed needlessly.
#[test]
fn asking_the_placement_first_changes_nothing_whatever_happens() {
    let seed = seed();
    let key = HashKey::from_seed(seed);
    equal_everywhere(|| Unbounded::<u64>::new(key), Rules::Anything, seed);
    equal_everywhere(|| Lru::<u64>::new(key, 20), Rules::Anything, seed);
    equal_everywhere(|| Lru::<u64>::new(key, 0), Rules::Anything, seed);
}
