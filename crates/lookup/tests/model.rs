//! OthelloMap against std's HashMap over random histories, and its exported views.
//! The seed is printed; `WEIR_SEED=n` repeats a run.

mod seed;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use seed::seed;
use std::collections::HashMap;
use weir_lookup::{Error, Othello, OthelloMap, View};

fn check(map: &OthelloMap<u64, u32>, model: &HashMap<u64, u32>, rng: &mut ChaCha8Rng) {
    assert_eq!(map.len(), model.len());
    for (key, value) in model {
        assert_eq!(map.get(key), Some(value), "key {key}");
    }
    for _ in 0..1000 {
        let key = rng.random::<u64>() >> rng.random_range(0..60);
        assert_eq!(map.get(&key), model.get(&key), "key {key}");
    }
    let mut listed: Vec<_> = map.iter().map(|(k, v)| (*k, *v)).collect();
    let mut wanted: Vec<_> = model.iter().map(|(k, v)| (*k, *v)).collect();
    listed.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(listed, wanted);
}

#[test]
fn othello_map_equals_a_hash_map() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    let mut map = OthelloMap::new(12, 8, rng.random());
    let mut model = HashMap::new();
    let mut base: Option<View> = None;
    for phase in 0..40 {
        let growing = phase % 4 != 3;
        for _ in 0..60_000 {
            let key = rng.random_range(0..200_000u64);
            if rng.random_bool(if growing { 0.7 } else { 0.2 }) {
                let value = rng.random();
                assert_eq!(map.insert(key, value).unwrap(), model.insert(key, value));
            } else {
                assert_eq!(map.remove(&key), model.remove(&key));
            }
        }
        check(&map, &model, &mut rng);
        let view = map.export(base.as_ref(), |value| value & 0xfff);
        for (key, value) in &model {
            assert_eq!(view.get(key), value & 0xfff, "phase {phase}");
        }
        base = Some(view);
    }
    let gone = map.retain(|key, _| key % 3 == 0);
    let before = model.len();
    model.retain(|key, _| key % 3 == 0);
    assert_eq!(gone, before - model.len());
    check(&map, &model, &mut rng);
}

/// Unknown keys spread uniformly over the codes, whatever the load, also after many exports on the
/// same graph. The bound is what a uniform source exceeds once in 100,000 runs.
///
/// The known keys' own codes are uniform here, as they are in a balancer. (A pair of cells in one
/// tree of the graph is bound to the tree's codes: if all known keys shared one code, that code
/// would get about 0.02 % of the unknown keys of a 10,000-key table on top of its share.)
#[test]
fn unknown_keys_are_uniform() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    for (keys, capacity) in [(0, 10_000), (1_000, 10_000), (10_000, 10_000), (50_000, 50_000)] {
        let mut map = OthelloMap::new(12, capacity, rng.random());
        for key in 0..keys as u64 {
            map.insert(key, rng.random::<u32>() & 0xfff).unwrap();
        }
        let mut view = map.export(None, |v| *v);
        for round in 0..5u32 {
            view = map.export(Some(&view), |v| (v + round) & 0xfff);
        }
        const N: u32 = 1 << 21;
        let mut cells = vec![0f64; 4096];
        for _ in 0..N {
            cells[view.get(&(rng.random::<u64>() | 1 << 63)) as usize] += 1.0;
        }
        let expected = f64::from(N) / 4096.0;
        let chi: f64 = cells.iter().map(|c| (c - expected).powi(2) / expected).sum();
        let degrees = 4095.0f64;
        let bound = degrees + 4.3 * (2.0 * degrees).sqrt() + 40.0;
        println!("{keys} keys: chi-squared {chi:.0}, bound {bound:.0}");
        assert!(chi < bound, "{keys} keys: chi-squared {chi:.0} over {bound:.0}");
    }
}

#[test]
fn bits_per_key_at_full_load() {
    for n in [100_000usize, 1_000_000] {
        let mut map: OthelloMap<u64, ()> = OthelloMap::new(12, n, 1);
        for key in 0..n as u64 {
            map.insert(key, ()).unwrap();
        }
        let view = map.export(None, |()| 0u32);
        let bits = view.bytes() as f64 * 8.0 / n as f64;
        println!("{n} keys: {bits:.2} bits per key for 12-bit values, {} rebuilds", map.rebuilds());
        assert!(bits <= 12.0 * 2.37, "{bits}");
    }
}

/// Batches of every length answer as single lookups do, for known and unknown keys.
#[test]
fn batched_lookups_equal_single_ones() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    for bits in 1..=32 {
        let mut map = OthelloMap::new(bits, 3_000, rng.random());
        for key in 0..3_000u64 {
            map.insert(key, rng.random::<u32>()).unwrap();
        }
        let view = map.export(None, |value| value & (u64::MAX >> (64 - bits)) as u32);
        for length in [0, 1, 31, 32, 33, 64, 1_000, 6_001] {
            let keys: Vec<u64> = (0..length).map(|_| rng.random_range(0..6_000)).collect();
            let mut out = vec![0; keys.len()];
            view.get_batch(&keys, &mut out);
            let single: Vec<u32> = keys.iter().map(|key| view.get(key)).collect();
            assert_eq!(out, single, "{bits} bits, {length} keys");
        }
    }
}

/// Updates in batches leave what the same updates one at a time leave: the same cells, through
/// growth too. Batches change a key several times, and have any length.
#[test]
fn batched_updates_equal_single_ones() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    let draw = rng.random();
    let mut batched: Othello<u64> = Othello::new(12, 100, draw);
    let mut single = batched.clone();
    let mut new_keys = 0u64..;
    for length in [0, 1, 15, 16, 17, 1_000, 3, 40_000] {
        let items: Vec<(u64, u32)> =
            new_keys.by_ref().take(length).map(|key| (key, rng.random())).collect();
        batched.insert_batch(&items).unwrap();
        items.iter().for_each(|&(key, value)| single.insert(key, value).unwrap());
        let numbers = single.len().max(1);
        let changes: Vec<(usize, u32)> = (0..length.min(single.len()))
            .map(|_| (rng.random_range(0..numbers), rng.random()))
            .collect();
        batched.change_batch(&changes);
        changes.iter().for_each(|&(number, value)| single.change(number, value));
        assert_eq!(batched.len(), single.len());
        assert_eq!(batched.rebuilds(), single.rebuilds());
        assert_eq!(batched.view(), single.view(), "after a batch of {length}");
        for _ in 0..length / 2 {
            let number = rng.random_range(0..single.len());
            assert_eq!(batched.remove(number), single.remove(number));
        }
    }
}

/// A batch that fails leaves what was before the item that failed.
#[test]
fn a_batch_with_a_key_that_is_there_stops_before_it() {
    let mut table: Othello<u64> = Othello::new(8, 100, 1);
    let items = [(1, 10), (2, 20), (1, 30), (3, 40)];
    assert!(matches!(table.insert_batch(&items), Err(Error::NoAcyclicGraph { .. })));
    assert_eq!(table.keys(), [1, 2]);
    assert_eq!([1, 2].map(|key| table.get(&key)), [10, 20]);
}

#[test]
fn a_table_built_whole_has_all_values() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    for keys in [0, 1, 2, 1_000, 100_000u64] {
        let items: Vec<(u64, u32)> =
            (0..keys).map(|key| (key, rng.random::<u32>() & 0xfff)).collect();
        let mut table = Othello::build(12, &items, rng.random()).unwrap();
        for (number, &(key, value)) in items.iter().enumerate() {
            assert_eq!((table.get(&key), table.keys()[number]), (value, key));
        }
        // It goes on as any other table.
        table.insert(keys, 7).unwrap();
        assert_eq!(table.view().get(&keys), 7);
    }
    let twice = [(5u64, 1u32), (6, 2), (5, 3)];
    assert!(matches!(Othello::build(8, &twice, 1), Err(Error::NoAcyclicGraph { keys: 3, .. })));
}
