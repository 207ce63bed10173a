//! A data plane of an OthelloSet that threads read while messages change it: against the view that
//! one thread has, and against what racing readers may see.

mod seed;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use seed::seed;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weir_lookup::message::MessageError;
use weir_lookup::{OthelloSet, SetReader, SetShared};

/// Through additions, changes, deletions and rebuilds, the shared view holds what a view of one
/// thread holds that got the same messages, and answers the same, aliens included.
#[test]
fn a_shared_view_equals_a_plain_one_after_any_history() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    for fingerprint_bits in [0, 7, 19] {
        let mut rebuilds = 0;
        // A table has some while it grows, and hardly any afterwards.
        for _ in 0..50 {
            rebuilds += history(fingerprint_bits, &mut rng);
            if rebuilds > 2 {
                break;
            }
        }
        assert!(rebuilds > 2, "{rebuilds} rebuilds");
    }
}

/// One history from an empty table on. Returns how often it was rebuilt.
fn history(fingerprint_bits: u32, rng: &mut ChaCha8Rng) -> u64 {
    let mut set: OthelloSet<u64, u32> = OthelloSet::new(12, fingerprint_bits, 100, rng.random());
    let mut plain = set.export(3, 0, |&value| value);
    let mut shared = SetShared::new(&plain);
    let mut reader = shared.reader();
    let mut rebuilds = 0;
    for step in 0..40_000u64 {
        let key = rng.random_range(0..8_000u64);
        if rng.random_ratio(2, 3) {
            set.insert(key, rng.random::<u32>() & 0xfff).unwrap();
        } else if set.remove(&key).is_none() {
            continue;
        }
        rebuilds += u64::from(set.kind() == weir_lookup::SetKind::Rebuild);
        let message = set.message(3, shared.number() + 1, |&value| value).to_bytes();
        shared.apply_bytes(&message).unwrap();
        plain.apply_bytes(&message).unwrap();
        assert_eq!(reader.get(&key), plain.get(&key));
        if step % 10_000 == 9_999 {
            assert_eq!(shared.to_view(), plain);
            let keys: Vec<u64> = (0..10_000 + step % 32).collect();
            let (mut found, mut want) = (vec![None; keys.len()], vec![None; keys.len()]);
            reader.get_batch(&keys, &mut found);
            plain.get_batch(&keys, &mut want);
            assert_eq!(found, want);
            for (key, &value) in set.iter() {
                assert_eq!(reader.get(key), Some(value));
            }
        }
    }
    rebuilds
}

#[test]
fn messages_that_are_not_the_next_one_change_nothing() {
    let mut set: OthelloSet<u64, u32> = OthelloSet::new(8, 4, 100, 1);
    let mut shared = SetShared::new(&set.export(0, 0, |&value| value));
    let message = |set: &mut OthelloSet<u64, u32>, plane, number, key| {
        set.insert(key, 5).unwrap();
        set.message(plane, number, |&value| value)
    };
    let first = message(&mut set, 0, 1, 10);
    let second = message(&mut set, 0, 2, 11);
    let foreign = message(&mut set, 1, 1, 12);
    let before = shared.to_view();
    let sequence = |found, expected| Err(MessageError::OutOfSequence { found, expected });
    assert_eq!(shared.apply(&second), sequence(2, 1));
    assert!(matches!(shared.apply(&foreign), Err(MessageError::OtherTable { .. })));
    let mut damaged = first.to_bytes();
    damaged[30] ^= 4;
    assert!(shared.apply_bytes(&damaged).is_err());
    assert_eq!(shared.to_view(), before);
    shared.apply(&first).unwrap();
    assert_eq!(shared.apply(&first), sequence(1, 2));
    shared.apply(&second).unwrap();
    assert_eq!(shared.reader().get(&11u64), Some(5));
    assert_eq!(shared.number(), 2);
}

const VALID: u64 = 20_000;
const ROUNDS: u64 = 400_000;

/// The low 8 bits of a value are the key's, the rest counts its changes.
fn value(key: u64, round: u64) -> u32 {
    ((round << 8 | key & 0xff) & 0xffff) as u32
}

/// Reads until told to stop: valid keys have a value of their own, always.
fn read(mut reader: SetReader, seed: u64, stop: &AtomicBool, lookups: &AtomicU64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut out = [None; 100];
    while !stop.load(Ordering::Acquire) {
        let keys: [u64; 100] = std::array::from_fn(|_| rng.random_range(0..VALID));
        if rng.random() {
            reader.get_batch(&keys, &mut out);
        } else {
            out.iter_mut().zip(&keys).for_each(|(out, key)| *out = reader.get(key));
        }
        for (key, found) in keys.iter().zip(out) {
            let found = found.unwrap_or_else(|| panic!("key {key} was taken for an alien"));
            assert_eq!(u64::from(found) & 0xff, key & 0xff, "half a message of key {key}");
        }
        lookups.fetch_add(100, Ordering::Relaxed);
    }
}

/// Tells the readers to end, also when the writer panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A key that stays is never taken for an alien and never has another key's value, while it and
/// others change, others come and go, and the table is rebuilt.
#[test]
fn readers_see_all_of_a_message_or_nothing() {
    let seed = seed();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut set: OthelloSet<u64, u32> = OthelloSet::new(16, 8, VALID as usize, seed);
    for key in 0..VALID {
        set.insert(key, value(key, 0)).unwrap();
    }
    let mut shared = SetShared::new(&set.export(0, 0, |&value| value));
    let (stop, lookups) = (AtomicBool::new(false), AtomicU64::new(0));
    let before = set.rebuilds();
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for number in 1..=2 {
            let (reader, stop, lookups) = (shared.reader(), &stop, &lookups);
            scope.spawn(move || read(reader, seed ^ number << 32, stop, lookups));
        }
        let (mut others, mut next) = (Vec::new(), VALID);
        for round in 1..=ROUNDS {
            match rng.random_range(0..4) {
                0 | 1 => {
                    let key = rng.random_range(0..VALID);
                    set.insert(key, value(key, round)).unwrap();
                }
                2 if others.len() > 100 => {
                    let at = rng.random_range(0..others.len());
                    assert!(set.remove(&others.swap_remove(at)).is_some());
                }
                _ => {
                    set.insert(next, rng.random::<u32>() & 0xffff).unwrap();
                    others.push(next);
                    next += 1;
                }
            }
            shared.apply(&set.message(0, round, |&value| value)).unwrap();
        }
    });
    let (lookups, rebuilds) = (lookups.into_inner(), set.rebuilds() - before);
    println!("{lookups} lookups beside {ROUNDS} messages, {rebuilds} rebuilds");
    assert!(rebuilds > 0 && lookups > 0);
}
