//! The cuckoo table of whole keys against std's HashMap. The seed is printed; `WEIR_SEED=n`
//! repeats a run.

mod seed;

use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use seed::seed;
use std::collections::HashMap;
use weir_hash::{Bytes, HashKey, Key, Octets};
use weir_lookup::Cuckoo;

fn history<K>(bits: u32, space: u64, steps: usize, make: impl Fn(u64) -> K, rng: &mut ChaCha8Rng)
where
    K: Key + std::hash::Hash + std::fmt::Debug,
{
    let mut table = Cuckoo::new(bits, 4, rng.random());
    let mut model = HashMap::new();
    for step in 0..steps {
        let key = make(rng.random_range(0..space));
        if rng.random_bool(if step < steps / 2 { 0.8 } else { 0.45 }) {
            let value = rng.next_u64() & (u64::MAX >> (64 - bits));
            assert_eq!(table.insert(key, value), model.insert(key, value));
        } else {
            assert_eq!(table.remove(&key), model.remove(&key));
        }
    }
    assert_eq!(table.len(), model.len());
    let keys: Vec<K> = (0..space).map(make).collect();
    let mut out = vec![None; keys.len()];
    table.get_batch(&keys, &mut out);
    for (key, found) in keys.iter().zip(out) {
        assert_eq!(found, model.get(key).copied(), "{key:?}");
        assert_eq!(table.get(key), found, "{key:?}");
    }
    assert_eq!(table.iter().collect::<HashMap<_, _>>(), model);
}

#[test]
fn equals_a_hash_map() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    history(12, 100_000, 1_000_000, |n| n, &mut rng);
    for bits in [1, 33, 64] {
        history(bits, 3_000, 30_000, |n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15), &mut rng);
    }
    let name = |n: u64| {
        let mut bytes = [b'x'; 45];
        bytes[37..].copy_from_slice(&n.to_be_bytes());
        Octets(bytes)
    };
    history(20, 5_000, 50_000, name, &mut rng);
}

/// Filled to the capacity it was made for, a table keeps its size: 1.05 (L + l + 1) bits per key.
#[test]
fn memory_is_what_the_formula_says() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    for bits in [8, 12, 40] {
        let mut table = Cuckoo::new(bits, 100_000, rng.random());
        for key in 0..100_000u64 {
            table.insert(key, key);
        }
        let per_key = table.bytes() as f64 * 8.0 / 100_000.0;
        let formula = (64.0 + f64::from(bits) + 1.0) / 0.95;
        assert!((per_key / formula - 1.0).abs() < 0.001, "{per_key} bits, formula {formula}");
    }
}

/// Two hash keys are two functions of byte strings too: the joint distribution of 4 + 4 bits has
/// 255 degrees of freedom; a uniform source exceeds 349 once in 10,000 times.
#[test]
fn byte_strings_hash_independently_under_two_keys() {
    for pair in 0..8u64 {
        let keys = [HashKey::from_seed(pair), HashKey::from_seed(pair + 100)];
        let mut cells = [0f64; 256];
        for n in 0..1u32 << 16 {
            let name = format!("content/{n:08}/segment");
            let [a, b] = keys.map(|key| Bytes(name.as_bytes()).hash(&key) >> 60);
            cells[(a << 4 | b) as usize] += 1.0;
        }
        let chi: f64 = cells.iter().map(|c| (c - 256.0).powi(2) / 256.0).sum();
        assert!(chi < 360.0, "pair {pair}: chi-squared {chi:.0}");
    }
    let key = HashKey::from_seed(1);
    assert_eq!(Bytes(b"abcd").hash(&key), Octets(*b"abcd").hash(&key));
    assert_ne!(Bytes(b"abcd").hash(&key), Bytes(b"abcd\0").hash(&key));
}

/// Keys that cannot be told apart by any hash key cost time, but not memory without bound.
#[test]
fn equal_hashes_are_survived() {
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    struct Poor(u64);
    impl Key for Poor {
        /// Every tenth key is good, others share one hash.
        fn hash(&self, key: &HashKey) -> u64 {
            key.hash_word(if self.0.is_multiple_of(10) { self.0 } else { 1 })
        }
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    history(20, 1_000, 20_000, Poor, &mut rng);
    let mut table = Cuckoo::new(64, 4, rng.random());
    for key in 0..1_000 {
        table.insert(Poor(key), key);
    }
    let bytes = table.bytes();
    println!("{bytes} bytes for 1,000 keys");
    assert!(bytes < 100_000);
}
