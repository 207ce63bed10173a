//! Bloom filters: no false negatives, false positives by the formula, removal. The seed is printed;
//! `WEIR_SEED=n` repeats a run.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weir_lookup::{Bloom, CountingBloom};

fn seed() -> u64 {
    let seed =
        std::env::var("WEIR_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("WEIR_SEED={seed}");
    seed
}

#[test]
fn false_positives_follow_the_formula_and_no_key_is_lost() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    const KEYS: u64 = 200_000;
    const ASKED: usize = 2_000_000;
    for bits_per_key in [5.0, 8.0, 10.0, 14.0] {
        let mut filter = Bloom::new(KEYS as usize, bits_per_key, rng.random());
        (0..KEYS).for_each(|key| filter.insert(&key));
        assert!((0..KEYS).all(|key| filter.contains(&key)));
        let asked: Vec<u64> = (0..ASKED).map(|_| rng.random::<u64>() | 1 << 63).collect();
        let mut out = vec![false; ASKED];
        filter.contains_batch(&asked, &mut out);
        assert!(asked.iter().zip(&out).all(|(key, found)| filter.contains(key) == *found));
        let rate = out.iter().filter(|&&found| found).count() as f64 / ASKED as f64;
        let formula = filter.false_positive_rate();
        println!("{bits_per_key} bits, {} hashes: {rate:.5}, {formula:.5}", filter.hashes());
        assert!((rate / formula - 1.0).abs() < 0.05, "{rate} instead of {formula}");
        let bits = filter.bytes() as f64 * 8.0 / KEYS as f64;
        assert!((bits / bits_per_key - 1.0).abs() < 0.001, "{bits} bits per key");
    }
}

/// The counting filter and a plain one fed with its changes stay equal; what was removed is gone.
#[test]
fn counting_filter_feeds_a_plain_one() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    let hash_seed = rng.random();
    let mut counting = CountingBloom::new(10_000, 10.0, hash_seed);
    let mut plain = Bloom::new(10_000, 10.0, hash_seed);
    let mut present = vec![false; 20_000];
    for _ in 0..200_000 {
        let key = rng.random_range(0..present.len());
        if present[key] {
            counting.remove(&(key as u64), |bit| plain.set(bit, false));
        } else {
            counting.insert(&(key as u64), |bit| plain.set(bit, true));
        }
        present[key] = !present[key];
    }
    let exported = counting.to_bloom();
    for (key, &there) in present.iter().enumerate() {
        let key = key as u64;
        assert!(!there || plain.contains(&key), "key {key} is lost");
        assert_eq!(plain.contains(&key), counting.contains(&key));
        assert_eq!(plain.contains(&key), exported.contains(&key));
    }
    assert_eq!(counting.len(), present.iter().filter(|&&there| there).count());
    for key in (0..present.len()).filter(|&key| present[key]) {
        counting.remove(&(key as u64), |bit| plain.set(bit, false));
    }
    let empty = CountingBloom::new(10_000, 10.0, hash_seed);
    assert!(counting == empty, "no counter overflowed, so all are zero again");
    assert!((0..20_000u64).all(|key| !plain.contains(&key)));
}
