//! Ludo against std's HashMap over random histories; views fed by messages; refusals.
//! The seed is printed; `WEIR_SEED=n` repeats a run.

mod seed;

use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use seed::seed;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weir_hash::{HashKey, Key, Octets};
use weir_lookup::message::MessageError;
use weir_lookup::{Error, Ludo, LudoChange, LudoKind, LudoShared, LudoUpdate, LudoView, ludo_seed};

fn mask(bits: u32) -> u64 {
    u64::MAX >> (64 - bits)
}

/// The table, what it must answer, and a view that has seen only messages.
struct Twin<K> {
    table: Ludo<K>,
    model: HashMap<K, u64>,
    view: LudoView,
    bytes: Vec<u8>,
}

impl<K: Key + std::hash::Hash + std::fmt::Debug> Twin<K> {
    fn new(bits: u32, capacity: usize, seed: u64) -> Self {
        let table = Ludo::new(bits, capacity, seed).unwrap();
        let view = LudoView::from_bytes(&table.view().to_bytes()).unwrap();
        Self { table, model: HashMap::new(), view, bytes: Vec::new() }
    }

    /// Sends the last message, now and then by way of bytes.
    fn send(&mut self) {
        let update = self.table.update();
        if update.number().is_multiple_of(3) {
            self.bytes.clear();
            update.encode(&mut self.bytes);
            self.view.apply_bytes(&self.bytes).unwrap();
        } else {
            self.view.apply(update).unwrap();
        }
    }

    fn insert(&mut self, key: K, value: u64) {
        assert_eq!(self.table.insert(key, value).unwrap(), self.model.insert(key, value));
        self.send();
    }

    fn change(&mut self, key: K, value: u64) {
        let former = self.table.change(&key, value).unwrap();
        assert_eq!(former, self.model.get(&key).copied());
        if former.is_some() {
            self.model.insert(key, value);
            self.send();
        }
    }

    fn remove(&mut self, key: K) {
        let former = self.table.remove(&key);
        assert_eq!(former, self.model.remove(&key));
        if former.is_some() {
            self.send();
        }
    }

    fn check(&self) {
        assert_eq!(self.table.len(), self.model.len());
        assert!(self.view == *self.table.view(), "the view is not the exported one");
        let (keys, values): (Vec<K>, Vec<u64>) = self.model.iter().map(|(k, v)| (*k, *v)).unzip();
        let mut out = vec![0; keys.len()];
        self.view.get_batch(&keys, &mut out);
        assert_eq!(out, values, "batch");
        for (key, value) in &self.model {
            assert_eq!(self.view.get(key), *value, "{key:?}");
            assert_eq!(self.table.get(key), Some(*value), "{key:?}");
        }
        let listed: HashMap<K, u64> = self.table.iter().collect();
        assert!(listed == self.model, "iter");
    }
}

/// Phases of growing, shrinking and turnover, with keys from a space that makes hits frequent.
fn history(bits: u32, space: u64, steps: usize, rng: &mut ChaCha8Rng) {
    let mut twin = Twin::<u64>::new(bits, 10, rng.random());
    for phase in 0..10 {
        let share = [0.9, 0.5, 0.5, 0.2, 0.6][phase % 5];
        for _ in 0..steps / 10 {
            let (key, value) = (rng.random_range(0..space), rng.next_u64() & mask(bits));
            match rng.random::<f64>() {
                p if p < 0.2 => twin.change(key, value),
                p if p < 0.2 + 0.8 * share => twin.insert(key, value),
                _ => twin.remove(key),
            }
            if rng.random_range(0..20) == 0 {
                assert_eq!(twin.table.get(&key), twin.model.get(&key).copied());
            }
        }
        twin.check();
    }
    let stats = twin.table.stats();
    println!("{bits} bits, {space} keys: {stats:?}");
}

#[test]
fn equals_a_hash_map_over_millions_of_steps() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    history(12, 200_000, 2_000_000, &mut rng);
    for bits in [1, 8, 14, 15, 20, 40, 63, 64] {
        history(bits, 30_000, 100_000, &mut rng);
    }
    for space in [3, 30, 300] {
        for _ in 0..50 {
            history(12, space, 1_000, &mut rng);
        }
    }
}

#[test]
fn batches_of_updates_equal_single_ones() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    let mut twin = Twin::<u64>::new(20, 100, rng.random());
    for _ in 0..100 {
        let changes: Vec<LudoChange<u64>> = (0..rng.random_range(0..2_000))
            .map(|_| {
                let (key, value) = (rng.random_range(0..40_000u64), rng.random_range(0..1 << 20));
                match rng.random_range(0..5) {
                    0 => LudoChange::Remove(key),
                    1 => LudoChange::Change(key, value),
                    _ => LudoChange::Insert(key, value),
                }
            })
            .collect();
        let Twin { table, model, view, .. } = &mut twin;
        table.change_batch(&changes, |update| view.apply(update).unwrap()).unwrap();
        for change in changes {
            match change {
                LudoChange::Remove(key) => drop(model.remove(&key)),
                LudoChange::Change(key, value) => {
                    model.entry(key).and_modify(|old| *old = value);
                }
                LudoChange::Insert(key, value) => drop(model.insert(key, value)),
            }
        }
    }
    twin.check();
    println!("{:?}", twin.table.stats());
}

/// Names as keys; and a table that shrinks.
#[test]
fn byte_strings_and_resizing() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    let mut twin = Twin::<Octets<45>>::new(10, 1_000, rng.random());
    let name = |n: u64| {
        let mut bytes = [b'x'; 45];
        bytes[30..38].copy_from_slice(&n.to_be_bytes());
        Octets(bytes)
    };
    (0..20_000).for_each(|n| twin.insert(name(n), n & 1023));
    (0..18_000).for_each(|n| twin.remove(name(n)));
    twin.check();
    let before = twin.table.view().bytes();
    twin.table.resize(2_500).unwrap();
    twin.send();
    assert!(twin.table.view().bytes() * 4 < before);
    twin.check();
}

/// A key type whose hash collides under half of all hash keys: the table draws another one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Weak(u64);

impl Key for Weak {
    fn hash(&self, key: &HashKey) -> u64 {
        let dropped = if key.words()[0] & 1 == 0 { self.0 & !1 } else { self.0 };
        key.hash_word(dropped)
    }
}

/// A key type whose hash is broken: equal hashes under every key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Broken(u64);

impl Key for Broken {
    fn hash(&self, key: &HashKey) -> u64 {
        key.hash_word(self.0 >> 1)
    }
}

#[test]
fn equal_hashes_of_different_keys_draw_a_new_hash_key_or_are_refused() {
    for table_seed in 0..8 {
        let mut twin = Twin::<Weak>::new(12, 3_000, table_seed);
        (0..2_000).for_each(|n| twin.insert(Weak(n), n));
        twin.check();

        let mut table = Ludo::new(12, 100, table_seed).unwrap();
        table.insert(Broken(0), 7).unwrap();
        let refused = table.insert(Broken(1), 8);
        assert!(matches!(refused, Err(Error::KeysCollide { keys: 2, .. })), "{refused:?}");
        assert_eq!((table.get(&Broken(0)), table.get(&Broken(1))), (Some(7), None));
        assert_eq!(table.len(), 1);
        table.insert(Broken(2), 9).unwrap();
        assert_eq!(table.view().get(&Broken(0)), 7);
    }
}

/// From real allocations, at the capacity a table is made for, for every l in 8..=40.
#[test]
fn memory_is_within_the_promise() {
    let items: Vec<(u64, u64)> = (0..1_000_000).map(|key| (key, key & 0xff)).collect();
    for bits in [8, 12, 24, 40] {
        let table = Ludo::build(bits, &items, seed()).unwrap();
        let per_key = table.view().bytes() as f64 * 8.0 / items.len() as f64;
        let promise = 3.80 + 1.06 * f64::from(bits);
        println!("{bits} bits: {per_key:.3} per key, promise {promise:.3}, {:?}", table.stats());
        assert!(per_key <= promise);
        assert_eq!(table.stats().rebuilds, 0, "all keys fit into the size that was asked for");
    }
}

/// Seeds for random sets of four: each is valid with probability 3/32, so the mean of the first
/// valid one among 31 and the share without one are known (dissertation Figs 4.5, 4.7, 4.8).
#[test]
fn seeds_are_distributed_as_independent_hashes_are() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    const SETS: u32 = 400_000;
    for (keys, p) in [(4, 3.0 / 32.0), (3, 3.0 / 8.0), (2, 3.0 / 4.0)] {
        let (mut tries, mut none) = (0.0, 0.0);
        for _ in 0..SETS {
            // As in a bucket: one half of the hashes nearly the same.
            let shared = rng.next_u64() & !0xff;
            let hash = |rng: &mut ChaCha8Rng| match rng.random() {
                true => shared << 32 >> 32 | rng.next_u64() << 32 | rng.random_range(0..256),
                false => {
                    (shared << 32) | u64::from(rng.next_u32()) | rng.random_range(0..256) << 32
                }
            };
            let hashes: Vec<u64> = (0..keys).map(|_| hash(&mut rng)).collect();
            match ludo_seed(&hashes) {
                Some(seed) => tries += f64::from(seed) + 1.0,
                None => none += 1.0,
            }
        }
        let q: f64 = 1.0 - p;
        let share_none = q.powi(31);
        let mean_tries = (1.0 - q.powi(31) * (1.0 + 31.0 * p)) / p / (1.0 - share_none);
        let found = f64::from(SETS) - none;
        let (mean, share) = (tries / found, none / f64::from(SETS));
        println!(
            "{keys} keys: {mean:.3} tries ({mean_tries:.3}), {share:.5} without ({share_none:.5})"
        );
        assert!((mean / mean_tries - 1.0).abs() < 0.01);
        assert!((share - share_none).abs() < 0.002, "{share} without a seed, not {share_none}");
    }
}

/// In a table few buckets overflow, because insertions look for a path without one.
#[test]
fn few_buckets_overflow() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    let items: Vec<(u64, u64)> = (0..200_000).map(|_| (rng.next_u64(), 0)).collect();
    let stats = Ludo::build(1, &items, rng.random()).unwrap().stats();
    let full = stats.fill[4] as f64;
    println!("{stats:?}");
    assert!(full > 0.8 * stats.buckets as f64);
    assert!((stats.overflow as f64) < 0.005 * full, "independent hashes would give 4.7 %");
    assert!(stats.fallback < 12, "cycles in the locator are few: {}", stats.fallback);
}

/// A table with one change of each kind, and their messages.
fn messages() -> (LudoView, Vec<Vec<u8>>) {
    let items: Vec<(u64, u64)> = (0..500).map(|key| (key, key)).collect();
    let mut table = Ludo::build(12, &items, 5).unwrap();
    let view = table.view().clone();
    let mut sent = Vec::new();
    table.change(&7, 8).unwrap();
    sent.push(table.update().to_bytes());
    table.remove(&9);
    sent.push(table.update().to_bytes());
    table.insert(1_000, 3).unwrap();
    sent.push(table.update().to_bytes());
    table.insert(1_001, 4).unwrap();
    assert_eq!(table.update().kind(), LudoKind::Rebuild);
    sent.push(table.update().to_bytes());
    (view, sent)
}

#[test]
fn lost_repeated_and_foreign_messages_are_refused() {
    let (view, sent) = messages();
    let mut fed = view.clone();
    for (at, message) in sent.iter().enumerate() {
        for (other, wrong) in sent.iter().enumerate().filter(|(other, _)| *other != at) {
            let before = fed.clone();
            let refused = fed.apply_bytes(wrong);
            assert!(matches!(refused, Err(MessageError::OutOfSequence { .. })), "{at} {other}");
            assert!(fed == before, "a refused message changes nothing");
        }
        fed.apply_bytes(message).unwrap();
    }
    assert_eq!((fed.get(&7u64), fed.get(&1_001u64)), (8, 4));
    let mut other = Ludo::<u64>::new(12, 500, 6).unwrap().view().clone();
    assert!(matches!(other.apply_bytes(&sent[0]), Err(MessageError::OtherTable { .. })));
}

/// Every bit of a message or a snapshot matters, and so does every length; what is refused changes
/// nothing.
#[test]
fn damaged_messages_and_snapshots_are_refused() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    let (mut view, sent) = messages();
    for message in &sent {
        let before = view.clone();
        for _ in 0..3_000 {
            let mut damaged = message.clone();
            let at = rng.random_range(0..damaged.len());
            if rng.random() {
                damaged[at] ^= 1 << rng.random_range(0..8);
            } else {
                damaged.truncate(at);
            }
            assert!(view.apply_bytes(&damaged).is_err());
            assert!(LudoView::from_bytes(&damaged).is_err());
        }
        let longer = [&message[..], &[0]].concat();
        assert!(view.apply_bytes(&longer).is_err());
        assert!(view == before);
        view.apply_bytes(message).unwrap();
    }
    let snapshot = view.to_bytes();
    assert!(LudoView::from_bytes(&snapshot).unwrap() == view);
    for _ in 0..3_000 {
        let mut damaged = snapshot.clone();
        let at = rng.random_range(0..damaged.len());
        damaged[at] ^= 1 << rng.random_range(0..8);
        assert!(LudoView::from_bytes(&damaged).is_err());
        assert!(LudoView::from_bytes(&snapshot[..at]).is_err());
    }
}

/// Messages whose sum is right but whose fields are not (a faulty sender) are refused as well:
/// fields of a message are overwritten and the sum made anew.
#[test]
fn messages_with_a_right_sum_and_wrong_fields_do_no_harm() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    let (view, sent) = messages();
    let mut views = vec![view];
    for message in &sent[..2] {
        let mut next = views[views.len() - 1].clone();
        next.apply_bytes(message).unwrap();
        views.push(next);
    }
    let sum = |body: &[u8]| xxhash_rust::xxh3::xxh3_64(body).to_le_bytes();
    let mut refused = 0;
    for _ in 0..20_000 {
        let number = rng.random_range(0..3);
        let (view, mut bytes) = (&views[number], sent[number].clone());
        for _ in 0..rng.random_range(1..4) {
            let at = rng.random_range(24..bytes.len() - 8);
            bytes[at] = rng.random();
        }
        let end = bytes.len() - 8;
        let sum = sum(&bytes[..end]);
        bytes[end..].copy_from_slice(&sum);
        let mut fed = view.clone();
        if fed.apply_bytes(&bytes).is_err() {
            assert!(fed == *view);
            refused += 1;
        } else {
            // It may be a message that a maintainer could have sent; lookups stay in bounds.
            (0..600u64).for_each(|key| assert!(fed.get(&key) < 1 << 12));
        }
    }
    println!("{refused} of 20000 refused");
    assert!((1_000..19_000).contains(&refused));
}

#[test]
fn values_that_are_too_wide_are_refused() {
    let mut table = Ludo::new(12, 10, 1).unwrap();
    let wide = Err(Error::ValueTooWide { value: 4096, bits: 12 });
    assert_eq!(table.insert(1u64, 4096), wide);
    assert_eq!(table.insert(1, 4095), Ok(None));
    assert_eq!(table.change(&1, 4096), wide);
    assert_eq!(table.get(&1), Some(4095));
    assert_eq!(table.view().number(), 1, "what is refused has no number");
}

/// Readers race a writer that inserts, changes, removes and grows. The value of a key is its number
/// and the round in which it was written, so a reader can tell a value that was right at some time
/// during its lookup from any other one. Other keys come and go.
#[test]
fn readers_never_see_a_wrong_value() {
    let seed = seed();
    const VALID: u64 = 20_000;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut table = Ludo::new(48, VALID as usize, rng.random()).unwrap();
    for key in 0..VALID {
        table.insert(key, key).unwrap();
    }
    let mut shared = LudoShared::new(table.view().clone());
    // The round of each key: at least this one, as a change is noted when it is applied.
    let rounds: Vec<AtomicU64> = (0..VALID).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    let lookups = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for number in 0..2 {
            let mut reader = shared.reader();
            let (rounds, stop, lookups) = (&rounds, &stop, &lookups);
            let mut rng = ChaCha8Rng::seed_from_u64(seed + 1 + number);
            scope.spawn(move || {
                let mut out = [0; 100];
                while !stop.load(Ordering::Acquire) {
                    let keys: [u64; 100] = std::array::from_fn(|_| rng.random_range(0..VALID));
                    let least = keys.map(|key| rounds[key as usize].load(Ordering::Acquire));
                    if rng.random() {
                        reader.get_batch(&keys, &mut out);
                    } else {
                        out.iter_mut().zip(&keys).for_each(|(out, key)| *out = reader.get(key));
                    }
                    for ((key, least), value) in keys.iter().zip(least).zip(out) {
                        assert_eq!(value & 0xff_ffff, *key, "another key's value");
                        assert!(value >> 24 >= least, "an old value of key {key}");
                    }
                    lookups.fetch_add(100, Ordering::Relaxed);
                }
            });
        }
        let (mut others, mut next) = (Vec::new(), VALID);
        for round in 1..=300_000u64 {
            match rng.random_range(0..3) {
                0 => {
                    let key = rng.random_range(0..VALID);
                    table.change(&key, round << 24 | key).unwrap();
                    shared.apply(table.update()).unwrap();
                    rounds[key as usize].store(round, Ordering::Release);
                }
                1 if others.len() > 100 => {
                    let at = rng.random_range(0..others.len());
                    table.remove(&others.swap_remove(at)).unwrap();
                    shared.apply(table.update()).unwrap();
                }
                _ => {
                    table.insert(next, next).unwrap();
                    others.push(next);
                    next += 1;
                    shared.apply(table.update()).unwrap();
                }
            }
        }
        stop.store(true, Ordering::Release);
    });
    assert!(shared.to_view() == *table.view());
    println!("{} lookups, {:?}", lookups.load(Ordering::Relaxed), table.stats());
    assert!(table.stats().rebuilds > 0 && lookups.load(Ordering::Relaxed) > 0);
}

/// What a message is made of can be told from outside: no key, and a length that follows its parts.
#[test]
fn messages_are_short() {
    let items: Vec<(u64, u64)> = (0..50_000).map(|key| (key, key & 0xfff)).collect();
    let mut table = Ludo::new(12, items.len(), 3).unwrap();
    let (mut bytes, mut nodes, mut cells) = (0, 0, 0);
    table
        .insert_batch(&items, |update| {
            let length = update.to_bytes().len();
            assert_eq!(update.kind(), LudoKind::Insert);
            assert!(length <= 47 + 8 * update.path_len() + 4 * update.flipped_cells() + 8);
            bytes += length;
            nodes += update.path_len();
            cells += update.flipped_cells();
            assert_eq!(LudoUpdate::from_bytes(&update.to_bytes()).as_ref(), Ok(update));
        })
        .unwrap();
    let mean = |sum: usize| sum as f64 / items.len() as f64;
    println!("{:.1} bytes, {:.2} buckets, {:.2} cells", mean(bytes), mean(nodes), mean(cells));
    assert!(mean(bytes) < 70.0);
}
