//! The tables of digests against std's HashMap, and how often they are wrong.
//! The seed is printed; `WEIR_SEED=n` repeats a run.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use weir_lookup::{DigestCuckoo, Error, HitCount, MISS, MultiDigest};

fn rng() -> ChaCha8Rng {
    let seed =
        std::env::var("WEIR_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("WEIR_SEED={seed}");
    ChaCha8Rng::seed_from_u64(seed)
}

fn value(rng: &mut ChaCha8Rng) -> u16 {
    rng.random_range(0..u16::MAX)
}

/// Expected number of rare events, with room for what chance does once in a million runs.
fn range(expected: f64) -> std::ops::RangeInclusive<f64> {
    let room = 5.0 * expected.sqrt() + 12.0;
    expected - room..=expected + room
}

/// 64-bit digests of 64-bit keys are the hashes, a bijection: the table is exact.
fn cuckoo_equals_a_hash_map<const SLOTS: usize>() {
    let mut rng = rng();
    let mut table = DigestCuckoo::<SLOTS>::with_digest_bits(20_000, 64, rng.random());
    let mut model = HashMap::new();
    for phase in 0..60 {
        for _ in 0..3_000 {
            let key = rng.random_range(0..40_000u64);
            // Up to the capacity, where insertions have to move entries, and down again.
            if rng.random_bool(if phase % 8 < 6 { 0.9 } else { 0.1 }) && model.len() < 20_000 {
                let value = value(&mut rng);
                assert_eq!(table.insert(&key, value), Ok(model.insert(key, value)));
            } else {
                assert_eq!(table.remove(&key), model.remove(&key));
            }
        }
        assert_eq!(table.len(), model.len());
        let keys: Vec<u64> = (0..40_001).collect();
        let mut batch = vec![0; keys.len()];
        table.get_batch(&keys, &mut batch);
        for (key, found) in keys.iter().zip(batch) {
            let truth = model.get(key).copied();
            assert_eq!(table.get(key), truth, "key {key}, phase {phase}");
            assert_eq!(found, truth.map_or(MISS, u32::from), "key {key}, phase {phase}, batched");
        }
    }
}

#[test]
fn cuckoo_of_four_slots_equals_a_hash_map() {
    cuckoo_equals_a_hash_map::<4>();
}

#[test]
fn cuckoo_of_six_slots_equals_a_hash_map() {
    cuckoo_equals_a_hash_map::<6>();
}

/// Removed digests stay in their slots; neither they nor the zeros of slots never used may hide or
/// invent an entry.
#[test]
fn an_empty_slot_answers_nothing() {
    let mut table = DigestCuckoo::new(8, 1);
    for round in 0..1_000u64 {
        for key in 0..8 {
            assert_eq!(table.get(&(round + key)), None);
            table.insert(&(round + key), key as u16).unwrap();
        }
        for key in 0..8 {
            assert_eq!(table.remove(&(round + key)), Some(key as u16));
        }
    }
    let multi = MultiDigest::with_digest_bits(100, 1, 1);
    assert!((0..1_000u64).all(|key| multi.get(&key).is_none()));
}

#[test]
fn cuckoo_holds_its_capacity_and_then_says_that_it_is_full() {
    let mut rng = rng();
    for capacity in [0, 1, 2, 5, 10, 100, 1_000, 100_000] {
        let mut table = DigestCuckoo::new(capacity, rng.random());
        for key in 0..capacity as u64 {
            table.insert(&key, key as u16 & 0xfff).unwrap();
        }
        let mut more = capacity as u64;
        let error = loop {
            match table.insert(&more, 1) {
                Ok(_) => more += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error, Error::Full { entries: more as usize, slots: table.slots() });
        println!("{capacity}: full at {:.4} of the slots", more as f64 / table.slots() as f64);
        for key in 0..more {
            let want = if key < capacity as u64 { key as u16 & 0xfff } else { 1 };
            assert_eq!(table.get(&key), Some(want), "an insertion that failed changed something");
        }
    }
}

#[test]
fn both_hold_their_capacity_whatever_it_is() {
    let mut rng = rng();
    for capacity in [0, 1, 2, 10, 16, 17, 50, 100, 333, 1_000, 10_000, 300_000] {
        for _ in 0..(300_000 / (capacity + 1)).clamp(1, 300) {
            let mut cuckoo = DigestCuckoo::new(capacity, rng.random());
            let mut multi = MultiDigest::new(capacity, rng.random());
            for key in 0..capacity as u64 {
                cuckoo.insert(&key, 1).unwrap();
                multi.insert(&key, 1).unwrap();
            }
            assert_eq!((cuckoo.len(), multi.len()), (capacity, capacity));
            assert_eq!(multi.entries_by_level().iter().sum::<usize>(), capacity);
        }
    }
}

/// Entries of later levels do not move back when earlier levels empty, so a table in use is fuller
/// there than one that was filled once.
#[test]
fn multi_level_holds_its_capacity_while_entries_come_and_go() {
    let mut rng = rng();
    for capacity in [100usize, 1_000, 20_000] {
        let mut table = MultiDigest::new(capacity, rng.random());
        let mut held: Vec<u64> = (0..capacity as u64).collect();
        held.iter().for_each(|key| assert!(table.insert(key, 1).is_ok()));
        let turnovers = 30 * capacity;
        for next in 0..turnovers as u64 {
            let slot = rng.random_range(0..capacity);
            table.remove(&held[slot]);
            held[slot] = (capacity as u64) + next;
            table.insert(&held[slot], 1).unwrap();
        }
        let shares = table.entries_by_level().map(|n| n as f64 / capacity as f64);
        // Removing by digest takes another key's entry now and then, whose own removal then finds
        // nothing: entries that nobody will remove pile up (Concury, related work).
        let orphans = table.len() - capacity;
        println!("{capacity}: shares of the levels {shares:.4?}, {orphans} orphans");
        assert!(orphans * 1_000 <= turnovers + 30_000, "{orphans} orphans");
    }
}

#[test]
fn the_reserved_value_is_refused() {
    assert_eq!(DigestCuckoo::new(1, 1).insert(&1u64, u16::MAX), Err(Error::ReservedValue));
    assert_eq!(MultiDigest::new(1, 1).insert(&1u64, u16::MAX), Err(Error::ReservedValue));
}

/// Unknown keys are answered as often as the formula says: at digests of 8 to 16 bits, which make
/// the events countable. 64-bit digests answer none of 2M.
#[test]
fn false_hits_are_as_frequent_as_expected() {
    let mut rng = rng();
    const KEYS: u64 = 50_000;
    const ALIENS: u64 = 2_000_000;
    for bits in [8, 12, 16, 64] {
        let mut cuckoo = DigestCuckoo::<4>::with_digest_bits(KEYS as usize, bits, rng.random());
        let mut multi =
            MultiDigest::with_digest_bits(KEYS as usize * 2, bits.min(16), rng.random());
        for key in 0..KEYS {
            cuckoo.insert(&key, 1).unwrap();
            multi.insert(&key, 1).unwrap();
        }
        let (mut of_cuckoo, mut of_multi) = (HitCount::default(), HitCount::default());
        for alien in (0..ALIENS).map(|n| n | 1 << 40) {
            of_cuckoo.note(cuckoo.get(&alien), None);
            of_multi.note(multi.get(&alien), None);
        }
        for (name, count, rate) in [
            ("cuckoo", of_cuckoo, cuckoo.false_hit_rate()),
            ("multi-level", of_multi, multi.false_hit_rate()),
        ] {
            let (hits, expected) = (count.false_hits as f64, rate * ALIENS as f64);
            println!("{name}, {bits} bits: {hits} false hits, {expected:.1} expected");
            // The buckets an alien meets are a sample; 2 % on top of its own chance.
            let range = range(expected);
            assert!(hits >= range.start() * 0.98 && hits <= range.end() * 1.02, "{name}: {hits}");
            assert_eq!(count.right + count.false_hits, ALIENS);
        }
        assert!(bits < 64 || of_cuckoo.false_hits == 0);
    }
}

/// The multi-level table over random histories: a known key is answered wrongly only if another
/// one shares its digest and a bucket, and that is rare and counted.
#[test]
fn multi_level_is_nearly_a_hash_map() {
    let mut rng = rng();
    let mut table = MultiDigest::new(20_000, rng.random());
    let mut model = HashMap::new();
    let mut count = HitCount::default();
    let mut shadowed = 0;
    for phase in 0..40 {
        for _ in 0..3_000 {
            let key = rng.random::<u32>() as u64;
            if rng.random_bool(if phase % 8 < 6 { 0.9 } else { 0.1 }) && model.len() < 20_000 {
                if let Entry::Vacant(entry) = model.entry(key) {
                    let value = value(&mut rng);
                    shadowed += u64::from(table.insert(&key, value).unwrap().shadowed);
                    entry.insert(value);
                }
            } else if let Some(&key) = model.keys().next() {
                count.note(table.remove(&key), model.remove(&key));
            }
        }
        let keys: Vec<u64> = model.keys().copied().collect();
        let mut batch = vec![0; keys.len()];
        table.get_batch(&keys, &mut batch);
        for (key, found) in keys.iter().zip(batch) {
            assert_eq!(table.get(key).map_or(MISS, u32::from), found, "batched");
            count.note(table.get(key), model.get(key).copied());
        }
    }
    println!("{count:?}, {shadowed} shadowed at insertion");
    let bad = count.wrong + count.lost;
    // 16 digests in a bucket: 1 in 4,096 keys shares its digest; twice that, and some, at most.
    assert!(bad as f64 <= *range(count.right as f64 / 1_500.0).end(), "{bad} wrong answers");
    assert_eq!(count.false_hits, 0, "unknown keys were not asked");
}

/// With one-bit digests nearly every insertion meets its own digest: it goes on to the next level,
/// and removing what stands before it brings it to light.
#[test]
fn a_collision_goes_to_the_next_level() {
    let mut table = MultiDigest::with_digest_bits(2, 1, 3);
    let placed: Vec<_> = (0..40u64).map_while(|key| table.insert(&key, key as u16).ok()).collect();
    assert!(placed.iter().any(|placed| placed.level > 0 && placed.shadowed));
    assert!(placed.iter().all(|placed| placed.shadowed == (placed.level > 0)));
    let last = placed.iter().rposition(|placed| placed.shadowed).unwrap() as u64;
    assert_ne!(table.get(&last), Some(last as u16));
    while let Some(found) = table.remove(&last) {
        if found == last as u16 {
            return;
        }
    }
    panic!("key {last} was not in the table");
}

#[test]
fn bits_per_key() {
    for n in [1_000usize, 65_536, 1_000_000] {
        let bits = |bytes: usize| bytes as f64 * 8.0 / n as f64;
        let (cuckoo, multi) = (DigestCuckoo::new(n, 1).bytes(), MultiDigest::new(n, 1).bytes());
        let six = DigestCuckoo::<6>::with_digest_bits(n, 64, 1).bytes();
        println!(
            "{n}: {:.1} (2,4), {:.1} (2,6), {:.1} multi-level",
            bits(cuckoo),
            bits(six),
            bits(multi)
        );
        assert!(n < 65_536 || bits(cuckoo) <= 135.0 && bits(six) <= 90.0);
        assert!(bits(multi) <= if n < 65_536 { 46.0 } else { 39.9 });
    }
}
