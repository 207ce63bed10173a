//! SetSep answers for every key, in the bits that it promises. The seed is printed; `WEIR_SEED=n`
//! repeats a run.

mod seed;

use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use seed::seed;
use std::collections::HashMap;
use weir_hash::{HashKey, Key, Octets};
use weir_lookup::{Error, SetSep, SetSepMap};

#[test]
fn every_key_has_its_value() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    for (keys, bits) in [(0, 8), (1, 64), (100, 1), (5_000, 33), (100_000, 12)] {
        let items: Vec<(u64, u64)> = (0..keys)
            .map(|n| (n << 32 | rng.random_range(0..1 << 32), rng.next_u64() >> (64 - bits)))
            .collect();
        let map = SetSep::build(bits, &items, rng.random());
        let asked: Vec<u64> = items.iter().map(|item| item.0).collect();
        let mut out = vec![0; items.len()];
        map.get_batch(&asked, &mut out);
        for ((key, value), found) in items.iter().zip(out) {
            assert_eq!(found, *value, "{keys} keys of {bits} bits");
            assert_eq!(map.get(key), *value);
        }
    }
}

#[test]
fn memory_and_fallback_are_what_the_design_says() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    const KEYS: u64 = 1 << 18;
    let items: Vec<(u64, u64)> = (0..KEYS).map(|n| (n, rng.next_u64() & 0xff)).collect();
    let map = SetSep::build(8, &items, rng.random());
    let share = map.fallback_len() as f64 / KEYS as f64;
    let bits = map.bytes() as f64 * 8.0 / KEYS as f64;
    println!("{bits:.2} bits per key, {:.3} % of the keys in the plain table", share * 100.0);
    assert!(share < 0.01, "{share} of the keys are in the plain table");
    assert!((13.7..15.2).contains(&bits), "{bits} bits per key instead of 0.55 + 1.65 * 8 + 0.7");
}

/// Asks the maintainer and its view, one at a time and in batches.
fn check<K: Key + std::hash::Hash + std::fmt::Debug>(map: &SetSepMap<K>, model: &HashMap<K, u64>) {
    assert_eq!(map.len(), model.len());
    assert_eq!(map.iter().collect::<HashMap<_, _>>(), *model);
    let keys: Vec<K> = model.keys().copied().collect();
    let mut out = vec![0; keys.len()];
    map.view().get_batch(&keys, &mut out);
    for (key, found) in keys.iter().zip(out) {
        assert_eq!(found, model[key], "{key:?}");
        assert_eq!(map.view().get(key), found);
        assert_eq!(map.get(key), Some(found));
    }
}

fn history<K: Key + std::hash::Hash + std::fmt::Debug>(
    bits: u32,
    (space, steps): (u64, u64),
    make: fn(u64) -> K,
    rng: &mut ChaCha8Rng,
) {
    let mut map = SetSepMap::new(bits, 10, rng.random());
    let mut model = HashMap::new();
    for step in 0..steps {
        let key = make(rng.random_range(0..space));
        if rng.random_bool(if step < steps / 2 { 0.8 } else { 0.5 }) {
            let value = rng.next_u64();
            let former = model.insert(key, value & u64::MAX >> (64 - bits));
            assert_eq!(map.insert(key, value), Ok(former));
            assert_eq!(map.view().get(&key), model[&key]);
        } else {
            assert_eq!(map.remove(&key), model.remove(&key));
            assert_eq!(map.get(&key), None);
        }
        if step % (steps / 4) == 0 {
            check(&map, &model);
        }
    }
    check(&map, &model);
    let (blocks, wholes) = map.rebuilds();
    println!(
        "{bits} bits: {} keys, {} in the plain table, {blocks} blocks and {wholes} maps rebuilt",
        map.len(),
        map.view().fallback_len()
    );
    assert!(blocks > 0 && wholes > 0);
}

#[test]
fn a_map_that_changes_equals_a_hash_map() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    history(8, (30_000, 100_000), |n| n, &mut rng);
    history(1, (4_000, 20_000), |n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15), &mut rng);
    history(64, (2_000, 8_000), |n| n, &mut rng);
    let name = |n: u64| {
        let mut bytes = [b'/'; 45];
        bytes[3..11].copy_from_slice(&n.to_be_bytes());
        Octets(bytes)
    };
    history(20, (3_000, 12_000), name, &mut rng);
}

/// Built whole it is what `SetSep::build` makes; a tenth of it changed, it is not much worse.
#[test]
fn a_map_that_is_built_whole_stays_as_small() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    let items: Vec<(u64, u64)> = (0..100_000).map(|n| (n, rng.next_u64() & 0xfff)).collect();
    let mut model: HashMap<u64, u64> = items.iter().copied().collect();
    let mut map = SetSepMap::build(12, &items, rng.random()).unwrap();
    check(&map, &model);
    let (before, bytes) = (map.view().fallback_len(), map.view().bytes());
    for n in 0..3_000u64 {
        let (old, new, changed) = (n * 33, 200_000 + n, n * 33 + 1);
        assert_eq!(map.remove(&old), model.remove(&old));
        assert_eq!(map.insert(new, n), Ok(model.insert(new, n)));
        assert_eq!(map.insert(changed, n), Ok(model.insert(changed, n)));
    }
    check(&map, &model);
    let after = map.view().fallback_len();
    println!("{before} keys in the plain table, {after} after updates; {:?}", map.rebuilds());
    assert_eq!(map.rebuilds().1, 0);
    assert!(map.view().bytes() < bytes + 50_000);
}

#[test]
fn keys_that_collide_under_every_hash_key_are_refused() {
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Broken(u64);
    impl Key for Broken {
        fn hash(&self, key: &HashKey) -> u64 {
            key.hash_word(self.0.min(5))
        }
    }
    let mut map = SetSepMap::new(8, 10, seed());
    for key in 0..6 {
        assert_eq!(map.insert(Broken(key), key), Ok(None));
    }
    assert!(matches!(map.insert(Broken(9), 1), Err(Error::KeysCollide { keys: 7, .. })));
    assert_eq!((map.len(), map.get(&Broken(9))), (6, None));
    assert!((0..6).all(|key| map.view().get(&Broken(key)) == key));
    let items = [(7u64, 1), (8, 2), (7, 1)];
    assert!(matches!(SetSepMap::build(8, &items, 1), Err(Error::KeysCollide { keys: 3, .. })));
}
