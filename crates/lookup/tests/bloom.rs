//! Bloom filters: no false negatives, false positives by the formula, removal. The seed is printed;
//! `WEIR_SEED=n` repeats a run.

mod seed;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use seed::seed;
use weir_lookup::message::{Message, MessageError, seal};
use weir_lookup::{
    Bloom, BloomFeed, BloomKind, BloomShared, BloomUpdate, BloomView, CountingBloom,
};

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

/// A filter that is fed, the keys in it, and the view and the shared filter elsewhere.
struct World {
    feed: BloomFeed,
    view: BloomView,
    shared: BloomShared,
    present: Vec<bool>,
    rng: ChaCha8Rng,
}

impl World {
    fn new(keys: usize, bits_per_key: f64, seed: u64) -> Self {
        let feed = BloomFeed::new(keys / 2, bits_per_key, seed);
        let view = BloomView::from_bytes(&feed.view().to_bytes()).unwrap();
        let shared = BloomShared::new(view.clone());
        let rng = ChaCha8Rng::seed_from_u64(seed);
        Self { feed, view, shared, present: vec![false; keys], rng }
    }

    fn change(&mut self) -> Vec<u8> {
        let key = self.rng.random_range(0..self.present.len());
        let there = self.present[key];
        self.present[key] = !there;
        if there {
            self.feed.remove(&(key as u64));
        } else if self.feed.len() < self.feed.capacity() {
            self.feed.insert(&(key as u64));
        } else {
            let keys = self.present.iter().zip(0u64..).filter(|(there, _)| **there);
            self.feed.rebuild(self.feed.len() * 3 / 2, keys.map(|(_, key)| key));
        }
        self.feed.update().to_bytes()
    }

    fn apply(&mut self, bytes: &[u8]) {
        self.view.apply_bytes(bytes).unwrap();
        self.shared.apply(&BloomUpdate::from_bytes(bytes).unwrap()).unwrap();
    }
}

#[test]
fn a_view_fed_by_messages_equals_one_exported_whole() {
    let seed = seed();
    for (keys, bits_per_key) in [(400, 10.0), (3_000, 1.0), (3_000, 100.0), (20_000, 8.0)] {
        let mut world = World::new(keys, bits_per_key, seed);
        let mut reader = world.shared.reader();
        let mut kinds = std::collections::HashMap::<BloomKind, usize>::new();
        for step in 0..keys * 6 {
            let bytes = world.change();
            *kinds.entry(world.feed.update().kind()).or_default() += 1;
            world.apply(&bytes);
            if step % (keys * 2) == 0 || step + 1 == keys * 6 {
                assert!(world.view == world.feed.view());
                let whole = world.feed.view().to_bytes();
                assert_eq!(world.view.to_bytes(), whole);
                assert!(BloomView::from_bytes(&whole).unwrap() == world.view);
                let asked: Vec<u64> = (0..keys as u64 * 2).collect();
                let mut out = vec![false; asked.len()];
                reader.contains_batch(&asked, &mut out);
                for (&key, &found) in asked.iter().zip(&out) {
                    assert_eq!(world.view.contains(&key), found);
                    assert_eq!(world.feed.contains(&key), found);
                    assert_eq!(reader.contains(&key), found);
                    assert!(found || !world.present.get(key as usize).is_some_and(|there| *there));
                }
            }
        }
        println!("{keys} keys, {bits_per_key} bits: {kinds:?}");
        assert_eq!(kinds.len(), 3);
        assert_eq!(world.feed.len(), world.present.iter().filter(|there| **there).count());
    }
}

#[test]
fn messages_that_are_lost_repeated_damaged_or_forged_change_nothing() {
    let seed = seed();
    let mut world = World::new(1_000, 10.0, seed);
    let foreign = World::new(1_000, 10.0, seed ^ 1).change();
    let (mut refused, mut tried, mut kinds) = (0, 0, [0; 3]);
    for step in 0..300_000 {
        if step >= 3_000 && kinds.iter().all(|&count| count > 0) {
            break;
        }
        let (lost, bytes) = (world.view.clone(), world.change());
        let kind = world.feed.update().kind() as usize;
        kinds[kind] += 1;
        if kinds[kind] > 40 {
            world.apply(&bytes);
            continue;
        }
        assert!(matches!(world.view.apply_bytes(&foreign), Err(MessageError::OtherTable { .. })));
        for _ in 0..60 {
            let mut damaged = bytes.clone();
            match world.rng.random_range(0..3) {
                0 => damaged.truncate(world.rng.random_range(0..bytes.len())),
                1 => damaged.extend(vec![0; world.rng.random_range(1..9)]),
                _ => {
                    let at = world.rng.random_range(0..bytes.len());
                    damaged[at] ^= 1 << world.rng.random_range(0..8);
                }
            }
            assert!(world.view.apply_bytes(&damaged).is_err());
            assert!(world.view == lost);
            // With the right digest: refused, or whole in itself.
            let Message { kind, table, number, body } = Message::read(&bytes).unwrap();
            let mut forged = body.to_vec();
            let at = world.rng.random_range(0..forged.len().min(60));
            forged[at] = world.rng.random();
            let mut victim = world.view.clone();
            tried += 1;
            match victim.apply_bytes(&seal(kind, table, number, &forged)) {
                Ok(()) => assert!(BloomView::from_bytes(&victim.to_bytes()).unwrap() == victim),
                Err(_) => {
                    refused += 1;
                    assert!(victim == lost);
                }
            }
        }
        let update = BloomUpdate::from_bytes(&bytes).unwrap();
        world.apply(&bytes);
        let (found, expected) = (update.number(), update.number() + 1);
        let repeated = Err(MessageError::OutOfSequence { found, expected });
        assert_eq!(world.view.apply(&update), repeated);
        assert_eq!(world.shared.apply(&update), repeated);
        assert!(world.view == world.feed.view());
    }
    println!("{refused} of {tried} forgeries refused, {kinds:?}");
    assert!(refused * 3 > tried && kinds.iter().all(|&count| count > 0));
    let whole = world.view.to_bytes();
    for _ in 0..1_000 {
        let mut damaged = whole.clone();
        let at = world.rng.random_range(0..whole.len());
        damaged[at] ^= 1 << world.rng.random_range(0..8);
        assert!(BloomView::from_bytes(&damaged).is_err());
        assert!(BloomView::from_bytes(&whole[..at]).is_err());
    }
}
