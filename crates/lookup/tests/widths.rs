//! Othello and its views for values of every width, against std's HashMap.
//! The seed is printed; `WEIR_SEED=n` repeats a run.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;
use weir_hash::Key;
use weir_lookup::{CHUNK_BYTES, Geometry, Othello, OthelloMap, Value, View, cells_per_chunk};

fn rng() -> ChaCha8Rng {
    let seed =
        std::env::var("WEIR_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("WEIR_SEED={seed}");
    ChaCha8Rng::seed_from_u64(seed)
}

/// Calls both with every width that they can have.
fn every_width(narrow: fn(u32, &mut ChaCha8Rng), wide: fn(u32, &mut ChaCha8Rng)) {
    let mut rng = rng();
    (1..=32).for_each(|bits| narrow(bits, &mut rng));
    (1..=64).for_each(|bits| wide(bits, &mut rng));
}

/// The value of a hash, read bit by bit as the layout is documented.
fn bit_by_bit<V: Value>(view: &View<V>, hash: u64) -> u64 {
    let Geometry { bits, chunks_a, .. } = view.geometry();
    let per_chunk = cells_per_chunk(bits);
    let (a, b) = view.geometry().nodes(hash);
    let b = b - view.geometry().cells_a();
    let cell = |first_chunk: u32, cell: u32| {
        let chunk = (first_chunk + cell / per_chunk) as usize;
        let first = (cell % per_chunk) as usize * bits as usize;
        (0..bits as usize).fold(0, |value, i| {
            let byte = view.as_bytes()[chunk * CHUNK_BYTES + (first + i) / 8];
            value | u64::from(byte >> ((first + i) % 8) & 1) << i
        })
    };
    cell(0, a) ^ cell(chunks_a, b)
}

/// A random history of insertions, changes and deletions, through growth.
fn history<V: Value>(bits: u32, rng: &mut ChaCha8Rng) -> (Othello<u64, V>, HashMap<u64, V>) {
    let mut table = Othello::new(bits, 50, rng.random());
    let mut model: HashMap<u64, V> = HashMap::new();
    for _ in 0..6_000 {
        let key = rng.random_range(0..3_000);
        // Bits above the width do not count.
        let value = V::of_word(rng.random());
        let number = |table: &Othello<u64, V>| table.keys().iter().position(|k| *k == key);
        match (model.contains_key(&key), rng.random_range(0..4)) {
            (false, _) => table.insert(key, value).unwrap(),
            (true, 0) => {
                table.remove(number(&table).unwrap());
                model.remove(&key);
                continue;
            }
            (true, _) => table.change(number(&table).unwrap(), value),
        }
        model.insert(key, value & V::mask(bits));
    }
    (table, model)
}

/// Keys of the map, and as many that are not in it.
fn asked<V>(model: &HashMap<u64, V>, rng: &mut ChaCha8Rng) -> Vec<u64> {
    let aliens = (0..model.len()).map(|_| rng.random::<u64>() | 1 << 63);
    model.keys().copied().chain(aliens).collect()
}

#[test]
fn othello_and_its_view_equal_a_hash_map() {
    fn check<V: Value>(bits: u32, rng: &mut ChaCha8Rng) {
        let (table, model) = history::<V>(bits, rng);
        assert_eq!(table.len(), model.len());
        let view = table.view();
        let copy =
            View::<V>::from_bytes(*view.hash_key(), view.geometry(), view.as_bytes().to_vec());
        assert_eq!(view, copy);
        let keys = asked(&model, rng);
        let mut batch = vec![V::default(); keys.len()];
        copy.get_batch(&keys, &mut batch);
        for (key, found) in keys.iter().zip(batch) {
            // Control and view agree on aliens too.
            assert_eq!(found, table.get(key), "{bits} bits, key {key}");
            assert_eq!(found, view.get(key), "{bits} bits, key {key}");
            assert_eq!(found.into(), bit_by_bit(&view, key.hash(view.hash_key())), "{bits} bits");
            assert!(model.get(key).is_none_or(|value| *value == found), "{bits} bits, key {key}");
        }
    }
    every_width(check::<u32>, check::<u64>);
}

#[test]
fn batches_of_updates_and_whole_tables_have_all_values() {
    fn check<V: Value>(bits: u32, rng: &mut ChaCha8Rng) {
        let mut draw = |keys: std::ops::Range<u64>| -> Vec<(u64, V)> {
            keys.map(|key| (key, V::of_word(rng.random()))).collect()
        };
        let mut items = draw(0..1_000);
        let mut table = Othello::build(bits, &items, 1).unwrap();
        let more = draw(1_000..3_000);
        table.insert_batch(&more).unwrap();
        items.extend(more);
        let changes: Vec<(usize, V)> =
            draw(500..2_500).into_iter().map(|(key, value)| (key as usize, value)).collect();
        table.change_batch(&changes);
        changes.iter().for_each(|&(number, value)| items[number].1 = value);
        let view = table.view();
        for (key, value) in items {
            assert_eq!(view.get(&key), value & V::mask(bits), "{bits} bits, key {key}");
        }
    }
    every_width(check::<u32>, check::<u64>);
}

/// Exports over one another, while keys come and go.
#[test]
fn a_maps_exports_have_all_values() {
    fn check<V: Value>(bits: u32, rng: &mut ChaCha8Rng) {
        let mut map: OthelloMap<u64, u64> = OthelloMap::new(bits, 10, rng.random());
        let mut base: Option<View<V>> = None;
        for _ in 0..3 {
            for _ in 0..800 {
                let key = rng.random_range(0..1_000);
                if rng.random_bool(0.8) {
                    map.insert(key, rng.random()).unwrap();
                } else {
                    map.remove(&key);
                }
            }
            let view = map.export(base.as_ref(), |value| V::of_word(*value));
            for (key, value) in map.iter() {
                assert_eq!(view.get(key), V::of_word(*value) & V::mask(bits), "{bits} bits");
            }
            base = Some(view);
        }
    }
    every_width(check::<u32>, check::<u64>);
}

#[test]
fn bits_per_key_of_every_width() {
    for keys in [1_000_000, 16_000_000] {
        let mut most = (0f64, 0);
        for bits in 8..=64 {
            // What a full table of so many keys allocates for its view.
            let shape = Geometry::for_cells(bits, (keys as f64 * 2.33 / 2.0).ceil() as u64);
            let chunks = (shape.chunks_a + shape.chunks_b) as usize;
            if keys == 1_000_000 && [8, 40, 57, 63].contains(&bits) {
                let view = Othello::<u64, u64>::new(bits, keys, 1).view();
                assert_eq!((view.geometry(), view.bytes()), (shape, chunks * CHUNK_BYTES));
            }
            let ratio = (chunks * CHUNK_BYTES * 8) as f64 / keys as f64 / f64::from(bits);
            assert!(ratio <= 2.34, "{keys} keys of {bits} bits: {ratio:.4} per bit");
            most = if ratio > most.0 { (ratio, bits) } else { most };
        }
        println!("{keys} keys: at most {:.4} per bit, for {} bits", most.0, most.1);
    }
}

#[test]
#[should_panic = "a cell has 1..=32 bits"]
fn values_wider_than_their_type_are_refused() {
    Othello::<u64>::new(33, 10, 1);
}
