//! An Othello that is read while it changes: against a `HashMap`, and by racing threads.

mod seed;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use seed::seed;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weir_lookup::{OthelloReader, OthelloShared};

/// One at a time and in batches of any length.
fn check(table: &OthelloShared<u64>, reader: &mut OthelloReader, model: &HashMap<u64, u64>) {
    assert_eq!(table.len(), model.len());
    assert_eq!(table.iter().map(|(&key, value)| (key, value)).collect::<HashMap<_, _>>(), *model);
    let keys: Vec<u64> = model.keys().copied().collect();
    let want: Vec<u64> = model.values().copied().collect();
    let mut found = vec![0; keys.len()];
    reader.get_batch(&keys, &mut found);
    assert_eq!(found, want);
    for (key, want) in model {
        assert_eq!(reader.get(key), *want);
        assert_eq!(table.get(key), Some(*want));
    }
}

#[test]
fn any_history_equals_a_hash_map() {
    let seed = seed();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for bits in [1, 7, 12, 31, 32, 33, 63, 64] {
        let mut table = OthelloShared::new(bits, 10, rng.random());
        let mut reader = table.reader();
        let mut model = HashMap::new();
        let ones = u64::MAX >> (64 - bits);
        for step in 0..60_000 {
            let key = rng.random_range(0..20_000u64);
            if rng.random_ratio(2, 3) {
                let value = rng.random();
                let former = model.insert(key, value & ones);
                assert_eq!(table.insert(key, value).unwrap(), former);
                assert_eq!(reader.get(&key), value & ones);
            } else {
                assert_eq!(table.remove(&key), model.remove(&key));
                assert_eq!(table.get(&key), None);
            }
            if step % 15_000 == 0 {
                check(&table, &mut reader, &model);
            }
        }
        table.reserve(30_000).unwrap();
        assert!(table.capacity() >= 30_000 && table.rebuilds() > 0);
        check(&table, &mut reader, &model);
        check(&table, &mut table.reader(), &model);
    }
}

/// Equal keys under a broken hash are refused, and what was there stays.
#[test]
fn a_broken_hash_is_an_error_and_changes_nothing() {
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Broken(u64);
    impl weir_hash::Key for Broken {
        fn hash(&self, key: &weir_hash::HashKey) -> u64 {
            key.hash_word(0)
        }
    }
    let mut table = OthelloShared::new(20, 100, 1);
    let mut reader = table.reader();
    assert_eq!(table.insert(Broken(1), 5), Ok(None));
    assert!(matches!(
        table.insert(Broken(2), 6),
        Err(weir_lookup::Error::NoAcyclicGraph { keys: 2, .. })
    ));
    assert_eq!((table.len(), table.get(&Broken(1)), table.get(&Broken(2))), (1, Some(5), None));
    assert_eq!(reader.get(&Broken(1)), 5);
}

/// Keys that stay in the table all the time; the low half of a value names the key, the high half
/// the round in which it was set.
struct Race {
    bits: u32,
    seed: u64,
    /// The round of each key: at least this one, as a change is noted when it has been applied.
    rounds: Vec<AtomicU64>,
    stop: AtomicBool,
    lookups: AtomicU64,
}

const VALID: u64 = 20_000;
const ROUNDS: u64 = 500_000;

impl Race {
    fn value(&self, key: u64, round: u64) -> u64 {
        let half = self.bits / 2;
        (round << half | key & ((1 << half) - 1)) & (u64::MAX >> (64 - self.bits))
    }

    /// Stops at the end of the writer, or at once if it fails.
    fn read(&self, number: u64, mut reader: OthelloReader) {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed ^ number << 32);
        let half = self.bits / 2;
        let mut out = [0; 100];
        while !self.stop.load(Ordering::Acquire) {
            let keys: [u64; 100] = std::array::from_fn(|_| rng.random_range(0..VALID));
            let least = keys.map(|key| self.rounds[key as usize].load(Ordering::Acquire));
            if rng.random() {
                reader.get_batch(&keys, &mut out);
            } else {
                out.iter_mut().zip(&keys).for_each(|(out, key)| *out = reader.get(key));
            }
            for ((key, least), value) in keys.iter().zip(least).zip(out) {
                let name = self.value(*key, 0);
                assert_eq!(value & ((1 << half) - 1), name, "half a flip of key {key}");
                // (Narrow values hold only the low bits of a round.)
                let old = half >= 24 && value >> half < least;
                assert!(!old, "an old value of key {key}");
            }
            self.lookups.fetch_add(100, Ordering::Relaxed);
        }
    }

    fn write(&self, table: &mut OthelloShared<u64>) {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        let (mut others, mut next) = (Vec::new(), VALID);
        for round in 1..=ROUNDS {
            match rng.random_range(0..4) {
                0 | 1 => {
                    let key = rng.random_range(0..VALID);
                    table.insert(key, self.value(key, round)).unwrap();
                    self.rounds[key as usize].store(round, Ordering::Release);
                }
                2 if others.len() > 100 => {
                    let at = rng.random_range(0..others.len());
                    assert!(table.remove(&others.swap_remove(at)).is_some());
                }
                _ => {
                    table.insert(next, rng.random()).unwrap();
                    others.push(next);
                    next += 1;
                }
            }
        }
    }
}

/// Tells the readers to end, also when the writer panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn readers_never_see_half_a_flip() {
    let seed = seed();
    for bits in [12, 33, 64] {
        let mut table = OthelloShared::new(bits, VALID as usize, seed);
        let rounds = (0..VALID).map(|_| AtomicU64::new(0)).collect();
        let (stop, lookups) = (AtomicBool::new(false), AtomicU64::new(0));
        let race = Race { bits, seed, rounds, stop, lookups };
        for key in 0..VALID {
            table.insert(key, race.value(key, 0)).unwrap();
        }
        let before = table.rebuilds();
        std::thread::scope(|scope| {
            let _stop = Stop(&race.stop);
            for number in 1..=2 {
                let (race, reader) = (&race, table.reader());
                scope.spawn(move || race.read(number, reader));
            }
            race.write(&mut table);
        });
        let (lookups, rebuilds) = (race.lookups.into_inner(), table.rebuilds() - before);
        println!("{bits} bits: {lookups} lookups beside {ROUNDS} updates, {rebuilds} rebuilds");
        assert!(rebuilds > 0 && lookups > 0);
    }
}
