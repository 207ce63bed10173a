//! The connection tables against maps and lists.
//!
//! `WEIR_SEED=n cargo test` repeats a run.

#[path = "jet/common.rs"]
mod common;

use common::{flow, rng, seed, without_place};
use rand::Rng;
use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use weir_hash::{HashKey, Key};
use weir_steering::{AnyTable, ConnectionTable, Lru, StateKey, Unbounded};

fn hashed<K: Key>(flow: &K, key: &HashKey) -> u64 {
    flow.hash(key)
}

fn content<C: ConnectionTable>(table: &C) -> HashMap<C::Flow, u16>
where
    C::Flow: Hash,
{
    let mut content = HashMap::new();
    table.for_each(|&flow, backend| {
        assert!(content.insert(flow, backend).is_none(), "no flow has two entries");
    });
    assert_eq!(content.len(), table.len());
    content
}

/// Random insertions, changes, removals and passes, in waves that fill and empty the table.
fn behaves_like_a_map<C>(mut table: C, seed: u64, flow: impl Fn(u64) -> C::Flow)
where
    C: ConnectionTable,
    C::Flow: Key + Hash + Debug,
{
    let mut rng = rng(seed);
    let key = *table.hash_key();
    let mut model: HashMap<C::Flow, u16> = HashMap::new();
    for step in 0..300_000u32 {
        let flow = flow(rng.random_range(0..6_000));
        let hash = hashed(&flow, &key);
        // Fills for 20,000 steps, then empties for as long.
        let growing = step / 20_000 % 2 == 0;
        if rng.random_bool(if growing { 0.5 } else { 0.1 }) {
            let backend = rng.random_range(0..0x7fff);
            table.insert(hash, flow, backend);
            model.insert(flow, backend);
        } else if rng.random_bool(if growing { 0.1 } else { 0.6 }) {
            assert_eq!(table.remove(hash, &flow), model.remove(&flow));
        }
        assert_eq!(table.get(hash, &flow), model.get(&flow).copied());
        assert_eq!(table.peek(hash, &flow), model.get(&flow).copied());
        if rng.random_bool(1e-4) {
            let backend = rng.random_range(0..7);
            let forgotten = table.retain(|_, other| other % 7 != backend);
            let before = model.len();
            model.retain(|_, other| *other % 7 != backend);
            assert_eq!(forgotten, before - model.len());
            assert_eq!(content(&table), model);
        }
    }
    assert_eq!(content(&table), model);
    let backend = model.values().copied().next().unwrap_or(0);
    let theirs = model.values().filter(|&&other| other == backend).count();
    assert_eq!(table.forget_backend(backend), theirs);
    table.retain(|_, _| false);
    assert!(table.is_empty() && content(&table).is_empty());
    assert_eq!(table.evictions(), 0);
}

fn state_key(n: u64) -> StateKey {
    let mut address = [0; 16];
    address[8..].copy_from_slice(&n.to_be_bytes());
    StateKey { address, src_port: n as u16, dst_port: 80 }
}

#[test]
fn an_unbounded_table_is_a_map() {
    let seed = seed();
    let key = HashKey::from_seed(seed);
    // Flow 0 is what an empty slot holds.
    behaves_like_a_map(Unbounded::<u64>::new(key), seed, |n| n);
    behaves_like_a_map(Unbounded::<StateKey, 5>::new(key), seed, state_key);
    behaves_like_a_map(Unbounded::<u64, 1>::with_capacity(key, 100), seed, flow);
    behaves_like_a_map(AnyTable::<StateKey>::new(key, None), seed, state_key);
}

/// One bucket takes all flows of a table: whatever the seed, the search must end, and find.
#[test]
fn an_unbounded_table_bears_hashes_that_are_all_alike() {
    /// A key whose hash is always the same.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    struct Alike(u64);
    impl Key for Alike {
        fn hash(&self, _: &HashKey) -> u64 {
            42
        }
    }
    let mut table = Unbounded::<Alike>::new(HashKey::from_seed(1));
    (0..1_000).for_each(|n| table.insert(42, Alike(n), n as u16));
    (0..1_000).step_by(2).for_each(|n| assert!(table.remove(42, &Alike(n)).is_some()));
    for n in 0..2_000 {
        let want = (n < 1_000 && n % 2 == 1).then_some(n as u16);
        assert_eq!(table.get(42, &Alike(n)), want);
    }
}

#[test]
fn an_unbounded_table_stays_within_its_bytes_per_flow() {
    for flows in [100u64, 10_000, 1_000_000] {
        let key = HashKey::from_seed(5);
        let mut table = Unbounded::<u64>::new(key);
        (0..flows).for_each(|n| table.insert(hashed(&flow(n), &key), flow(n), 1));
        let per_flow = table.bytes() as f64 / flows as f64;
        println!("{flows} flows: {per_flow:.1} bytes each");
        // 64 bytes for 4.5 flows just before it doubles, for 2.25 just after.
        assert!((14.2..=29.0).contains(&per_flow), "{per_flow}");
        table.retain(|_, _| false);
        assert!(table.bytes() <= 1024, "an emptied table gives its memory back");
    }
}

/// Up to one bucket, against a list in the order of use.
fn behaves_like_a_list<const S: usize>(capacity: usize, seed: u64) {
    let key = HashKey::from_seed(seed);
    let mut rng = rng(seed);
    let mut table = Lru::<u64, S>::new(key, capacity);
    let mut list: Vec<(u64, u16)> = Vec::new();
    let mut evictions = 0;
    for _ in 0..20_000 {
        let flow = rng.random_range(0..2 * capacity as u64 + 2);
        let hash = hashed(&flow, &key);
        let known = list.iter().position(|&(other, _)| other == flow);
        let entry = known.map(|at| list.remove(at));
        match rng.random_range(0..10) {
            0 => assert_eq!(table.remove(hash, &flow), entry.map(|(_, backend)| backend)),
            1..4 => {
                let backend = rng.random_range(0..100);
                table.insert(hash, flow, backend);
                list.insert(0, (flow, backend));
                if list.len() > capacity {
                    list.pop();
                    evictions += 1;
                }
            }
            _ => {
                assert_eq!(table.get(hash, &flow), entry.map(|(_, backend)| backend));
                entry.into_iter().for_each(|entry| list.insert(0, entry));
            }
        }
        // A look leaves no trace.
        assert_eq!(table.peek(hash, &flow).is_some(), list.iter().any(|entry| entry.0 == flow));
        assert_eq!((table.len(), table.evictions()), (list.len(), evictions));
    }
    assert_eq!(content(&table), list.into_iter().collect());
    assert_eq!(table.capacity(), Some(capacity));
    assert!(evictions > 1_000);
}

#[test]
fn a_bucket_evicts_the_least_recently_used() {
    let seed = seed();
    (0..=6).for_each(|capacity| behaves_like_a_list::<6>(capacity, seed));
    (7..=8).for_each(|capacity| behaves_like_a_list::<8>(capacity, seed));
}

#[test]
fn no_capacity_holds_nothing() {
    let key = HashKey::from_seed(1);
    let mut table = AnyTable::<u64>::new(key, Some(0));
    for n in 0..100 {
        table.prefetch(hashed(&n, &key));
        table.insert(hashed(&n, &key), n, 1);
        assert_eq!(table.get(hashed(&n, &key), &n), None);
    }
    assert_eq!((table.len(), table.evictions(), table.bytes()), (0, 100, 0));
    assert_eq!((table.remove(1, &1), table.forget_backend(1)), (None, 0));
}

/// Never more than the capacity, never a wrong answer, and the flows that have no place are as
/// many as buckets of six leave out.
#[test]
fn a_large_bounded_table_holds_what_theory_says() {
    let seed = seed();
    let key = HashKey::from_seed(seed);
    for (capacity, flows) in [(59_998usize, 29_999u64), (59_999, 45_000), (60_001, 60_000)] {
        let mut table = Lru::<u64>::new(key, capacity);
        let backend = |n: u64| (n % 1_000) as u16;
        (0..flows).for_each(|n| table.insert(hashed(&flow(n), &key), flow(n), backend(n)));
        let found = (0..flows).filter(|&n| {
            let found = table.get(hashed(&flow(n), &key), &flow(n));
            assert!(found.is_none_or(|found| found == backend(n)));
            found.is_some()
        });
        let found = found.count();
        assert_eq!(found, table.len());
        assert_eq!(table.evictions(), flows - found as u64);
        let (out, theory) =
            (1.0 - found as f64 / flows as f64, without_place(6.0 * flows as f64 / 60_000.0));
        println!("{flows} flows, capacity {capacity}: {out:.4} are out, theory {theory:.4}");
        // A bucket leaves out 0 to 3 flows, about; there are 10,000 buckets.
        assert!((out - theory).abs() < 6.0 * 2.0 * 100.0 / flows as f64);
        assert!(table.len() <= capacity);
    }
    let mut table = Lru::<u64>::new(key, 1_000);
    (0..100_000).for_each(|n| table.insert(hashed(&flow(n), &key), flow(n), 1));
    assert_eq!((table.len(), table.evictions()), (1_000, 99_000));
}
