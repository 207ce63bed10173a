//! SetSep answers for every key, in the bits that it promises. The seed is printed; `WEIR_SEED=n`
//! repeats a run.

use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weir_lookup::SetSep;

fn seed() -> u64 {
    let seed =
        std::env::var("WEIR_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("WEIR_SEED={seed}");
    seed
}

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
        map.lookup_batch(&asked, &mut out);
        for ((key, value), found) in items.iter().zip(out) {
            assert_eq!(found, *value, "{keys} keys of {bits} bits");
            assert_eq!(map.lookup(key), *value);
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
