//! Fuse against what was built into it, and the spread of unknown keys.
//! The seed is printed; `WEIR_SEED=n` repeats a run.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;
use weir_hash::{HashKey, Key};
use weir_lookup::{Error, Fuse, FuseShape, Value};

fn rng() -> ChaCha8Rng {
    let seed =
        std::env::var("WEIR_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("WEIR_SEED={seed}");
    ChaCha8Rng::seed_from_u64(seed)
}

/// Different keys, some of them neighbours, with values of all bits.
fn random_map<V: Value>(keys: usize, rng: &mut ChaCha8Rng) -> (Vec<u64>, Vec<V>) {
    let mut map = HashMap::with_capacity(keys);
    while map.len() < keys {
        let key = rng.random::<u64>() >> rng.random_range(0..40);
        map.insert(key, V::of_word(rng.random()));
    }
    map.into_iter().unzip()
}

/// The value of a hash, read bit by bit as the layout is documented.
fn bit_by_bit<V: Value>(fuse: &Fuse<V>, hash: u64) -> u64 {
    let FuseShape { bits, segment_bits, segments } = fuse.shape();
    let segment = 1u64 << segment_bits;
    let start = ((hash >> 32) * ((u64::from(segments) - 2) * segment)) >> 32;
    // The cells of a key begin at the same bit of a byte where the width makes that possible.
    let within = |offset: u64| (offset % segment) & if bits % 8 == 4 { !1 } else { !0 };
    let cells =
        [start, (start + segment) ^ within(hash), (start + 2 * segment) ^ within(hash >> 18)];
    let cell = |at: u64| {
        let bit = |i: u64| u64::from(fuse.as_bytes()[(i / 8) as usize] >> (i % 8)) & 1;
        let first = at * u64::from(bits);
        (0..bits).fold(0, |cell, i| cell | bit(first + u64::from(i)) << i)
    };
    cells.into_iter().fold(0, |value, at| value ^ cell(at))
}

#[test]
fn every_key_has_its_value_for_every_width_and_size() {
    fn check<V: Value>(bits: u32, rng: &mut ChaCha8Rng) {
        for n in [0, 1, 2, 3, 31, 32, 33, 100, 1_000, 10_000] {
            let (keys, values) = random_map::<V>(n, rng);
            let fuse = Fuse::build(bits, &keys, |i| values[i], rng.random()).unwrap();
            let mut batch = vec![V::default(); n];
            fuse.get_batch(&keys, &mut batch);
            for ((key, &value), found) in keys.iter().zip(&values).zip(batch) {
                let value = value & V::mask(bits);
                assert_eq!(fuse.get(key), value, "{n} keys of {bits} bits");
                assert_eq!(found, value, "{n} keys of {bits} bits, batched");
            }
        }
    }
    let mut rng = rng();
    (1..=32).for_each(|bits| check::<u32>(bits, &mut rng));
    (1..=64).for_each(|bits| check::<u64>(bits, &mut rng));
}

/// One at a time, batched, from published bytes and bit by bit: the same for known and unknown
/// keys.
#[test]
fn all_readers_agree() {
    fn check<V: Value>(bits: u32, rng: &mut ChaCha8Rng) {
        let (mut keys, values) = random_map::<V>(10_000, rng);
        let fuse = Fuse::build(bits, &keys, |i| values[i], rng.random()).unwrap();
        let copy = Fuse::<V>::from_bytes(*fuse.hash_key(), fuse.shape(), fuse.as_bytes().to_vec());
        assert_eq!(fuse, copy);
        keys.extend((0..10_001).map(|_| rng.random::<u64>()));
        let mut batch = vec![V::default(); keys.len()];
        copy.get_batch(&keys, &mut batch);
        for (key, found) in keys.iter().zip(batch) {
            let hash = key.hash(fuse.hash_key());
            assert_eq!(found.into(), bit_by_bit(&fuse, hash), "{bits} bits");
            assert_eq!(found, fuse.get_hash(hash), "{bits} bits");
        }
    }
    let mut rng = rng();
    (1..=32).for_each(|bits| check::<u32>(bits, &mut rng));
    (1..=64).for_each(|bits| check::<u64>(bits, &mut rng));
}

/// The bytes do not depend on the type of the answers.
#[test]
fn narrow_cells_answer_alike_in_both_types() {
    let mut rng = rng();
    for bits in [1, 9, 12, 20, 31, 32] {
        let (keys, values) = random_map::<u32>(5_000, &mut rng);
        let narrow = Fuse::build(bits, &keys, |i| values[i], rng.random()).unwrap();
        let bytes = narrow.as_bytes().to_vec();
        let wide = Fuse::<u64>::from_bytes(*narrow.hash_key(), narrow.shape(), bytes);
        let asked = keys.iter().copied().chain(0..5_000);
        assert!(asked.into_iter().all(|k| wide.get(&k) == u64::from(narrow.get(&k))));
    }
}

#[test]
#[should_panic = "a cell has 1..=32 bits"]
fn cells_wider_than_the_type_of_the_values_are_refused() {
    let wide = Fuse::<u64>::build(33, &[1u64], |_| 1, 1).unwrap();
    Fuse::<u32>::from_bytes(*wide.hash_key(), wide.shape(), wide.as_bytes().to_vec());
}

#[test]
fn a_seed_repeats_the_table_and_another_does_not() {
    let mut rng = rng();
    let (keys, values) = random_map::<u32>(5_000, &mut rng);
    let build = |seed| Fuse::build(12, &keys, |i| values[i], seed).unwrap();
    assert_eq!(build(1), build(1));
    assert_ne!(build(1).as_bytes(), build(2).as_bytes());
}

#[test]
fn equal_keys_are_an_error() {
    let mut rng = rng();
    for n in [2, 10, 1_000, 100_000] {
        let (mut keys, _) = random_map::<u32>(n, &mut rng);
        let (first, second) = (rng.random_range(0..n / 2), rng.random_range(n / 2..n));
        keys[second] = keys[first];
        // Also with equal values: who builds a table must know its keys.
        let error = Fuse::<u32>::build(12, &keys, |_| 7, rng.random()).unwrap_err();
        assert_eq!(error, Error::DuplicateKey { first, second });
    }
}

/// A hash that collides under one seed in two: the table takes another seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Colliding(u64);

impl Key for Colliding {
    fn hash(&self, key: &HashKey) -> u64 {
        key.hash_word(if key.words()[0] & 1 == 0 { self.0 & !1 } else { self.0 })
    }
}

/// A hash that is always the same: no seed can help.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Broken(u64);

impl Key for Broken {
    fn hash(&self, key: &HashKey) -> u64 {
        key.hash_word(0)
    }
}

#[test]
fn collisions_of_different_keys_cost_a_seed_and_no_more() {
    let keys: Vec<Colliding> = (0..3_000).map(Colliding).collect();
    for seed in 0..20 {
        let fuse = Fuse::build(12, &keys, |i| i as u32, seed).unwrap();
        assert!(keys.iter().enumerate().all(|(i, key)| fuse.get(key) == i as u32));
    }
    let broken = Fuse::build(12, &[Broken(1), Broken(2)], |i| i as u32, 1);
    assert!(matches!(broken, Err(Error::NoAcyclicGraph { keys: 2, .. })));
}

/// Unknown keys spread uniformly over the codes, whatever the known keys' values are. `bound` is
/// what a uniform source exceeds once in 100,000 runs, plus the sample of a small table: `ways`
/// triples of cells are themselves drawn at random, which adds the share N / ways to the expected
/// chi-squared.
#[test]
fn unknown_keys_are_uniform() {
    let mut rng = rng();
    const N: u32 = 1 << 21;
    for n in [0, 1, 700, 10_000, 100_000] {
        for same_values in [false, true] {
            let (keys, values) = random_map::<u32>(n, &mut rng);
            let value = |i: usize| if same_values { 0 } else { values[i] };
            let fuse = Fuse::build(12, &keys, value, rng.random()).unwrap();
            let aliens: Vec<u64> = (0..N).map(|_| rng.random::<u64>() | 1 << 63).collect();
            let mut out = vec![0; aliens.len()];
            fuse.get_batch(&aliens, &mut out);
            let mut cells = vec![0f64; 4096];
            out.iter().for_each(|&code| cells[code as usize] += 1.0);
            let expected = f64::from(N) / 4096.0;
            let chi: f64 = cells.iter().map(|c| (c - expected).powi(2) / expected).sum();
            let shape = fuse.shape();
            let ways = f64::from(shape.segments - 2) * 2f64.powi(3 * shape.segment_bits as i32)
                / f64::from(shape.stride()).powi(2);
            let degrees = 4095.0 * (1.0 + f64::from(N) / ways);
            let bound = degrees * (1.0 + 4.3 * (2.0 / 4095f64).sqrt()) + 40.0;
            println!("{n} keys, same values {same_values}: chi-squared {chi:.0}, bound {bound:.0}");
            assert!(chi < bound, "{n} keys, same values {same_values}: {chi:.0} over {bound:.0}");
        }
    }
}

#[test]
fn bits_per_key() {
    for (n, most) in [(1_000, 20.0), (65_536, 14.7), (1_000_000, 13.7), (8_000_000, 13.6)] {
        // The shape alone decides; the largest table is not built here.
        let bytes = if n <= 1_000_000 {
            let keys: Vec<u64> = (0..n as u64).collect();
            let fuse = Fuse::build(12, &keys, |i| i as u32, 1).unwrap();
            assert_eq!(fuse.bytes(), fuse.shape().bytes());
            fuse.bytes()
        } else {
            FuseShape::for_keys(12, n).bytes()
        };
        let bits = bytes as f64 * 8.0 / n as f64;
        println!("{n} keys: {bits:.2} bits per key for 12-bit values");
        assert!(bits <= most, "{n} keys: {bits:.2} bits per key");
    }
}

#[test]
fn bits_per_key_of_every_width() {
    const KEYS: usize = 1_000_000;
    let keys: Vec<u64> = (0..KEYS as u64).collect();
    let mut most = 0f64;
    for bits in 8..=64 {
        let shape = FuseShape::for_keys(bits, KEYS);
        // The shape alone decides, which some tables confirm.
        if [8, 13, 36, 40, 63].contains(&bits) {
            let fuse = Fuse::build(bits, &keys, |i| i as u64, 1).unwrap();
            assert_eq!((fuse.shape(), fuse.bytes()), (shape, shape.bytes()));
        }
        let ratio = shape.bytes() as f64 * 8.0 / KEYS as f64 / f64::from(bits);
        assert!(ratio <= 1.14, "{bits} bits: {ratio:.4} per bit");
        most = most.max(ratio);
    }
    println!("at most {most:.4} bits per key and bit of a value");
}

#[test]
#[should_panic = "bytes of a fuse"]
fn bytes_of_another_shape_are_refused() {
    let fuse = Fuse::<u32>::build(12, &[1u64], |_| 1, 1).unwrap();
    Fuse::<u32>::from_bytes(
        *fuse.hash_key(),
        FuseShape { bits: 13, ..fuse.shape() },
        fuse.as_bytes().to_vec(),
    );
}
