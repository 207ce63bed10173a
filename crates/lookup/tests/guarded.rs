//! A filter in front of a map that threads read while both change: a key that is in all the time is
//! never refused and never wrong, others get their value or none, aliens pass at the filter's rate.
//! The seed is printed; `WEIR_SEED=n` repeats a run (of the writer).

mod seed;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use seed::seed;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use weir_lookup::{
    Bloom, BloomFeed, BloomShared, BloomUpdate, BloomView, Cuckoo, Filtable, FiltableView, Guarded,
    GuardedReader, GuardedShared, Lookup, Ludo, LudoShared, LudoUpdate, LudoView, LudoWriter,
    MapReader, OthelloSet, OthelloShared, PartialCuckoo, SetSep, SharedMap,
};

const BITS: u32 = 40;

/// Values for the keys that come and go: they follow from the key, so a reader can tell.
fn fixed(key: u64) -> u64 {
    (key ^ key >> 29).wrapping_mul(0xd6e8_feb8_6659_fd93) >> (64 - BITS)
}

/// Keys that stay: the low half of a value names the key, the high half counts its changes.
fn counted(key: u64, round: u64) -> u64 {
    (round << 20 | key & 0xf_ffff) & (u64::MAX >> (64 - BITS))
}

const STAYING: u64 = 4_000;
const PASSING: u64 = 6_000;
const FIRST_PASSING: u64 = 1 << 30;
const FIRST_ALIEN: u64 = 1 << 40;

#[derive(Default)]
struct Race {
    stop: AtomicBool,
    lookups: AtomicU64,
    aliens: AtomicU64,
    let_through: AtomicU64,
    /// Answers for keys that come and go that are neither their value nor none.
    strange: AtomicU64,
    /// The times that a key was seen, and not seen.
    seen: [AtomicU64; 2],
}

impl Race {
    fn read<R: MapReader<u64, Value = u64>>(&self, seed: u64, mut reader: GuardedReader<R>) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut out = [None; 300];
        while !self.stop.load(Acquire) {
            let keys: [u64; 300] = std::array::from_fn(|at| match at % 3 {
                0 => rng.random_range(0..STAYING),
                1 => FIRST_PASSING + rng.random_range(0..PASSING),
                _ => FIRST_ALIEN + rng.random_range(0..1 << 20),
            });
            if rng.random() {
                reader.get_batch(&keys, &mut out);
            } else {
                out.iter_mut().zip(&keys).for_each(|(out, key)| *out = reader.get(key));
            }
            for (&key, &value) in keys.iter().zip(&out) {
                if key < STAYING {
                    let value = value.expect("a valid key is never refused");
                    assert_eq!(value & 0xf_ffff, counted(key, 0), "key {key}");
                } else if key < FIRST_ALIEN {
                    self.seen[usize::from(value.is_some())].fetch_add(1, Relaxed);
                    self.strange.fetch_add(value.is_some_and(|v| v != fixed(key)).into(), Relaxed);
                } else {
                    self.let_through.fetch_add(value.is_some().into(), Relaxed);
                }
            }
            self.lookups.fetch_add(300, Relaxed);
            self.aliens.fetch_add(100, Relaxed);
        }
    }
}

/// Tells the readers to end, also when the writer panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Release);
    }
}

/// A third each of changes, insertions and deletions; a filter and a map that grow several times.
fn race<M: SharedMap<u64>>(name: &str, map: M, bits_per_key: f64, steps: u64, seed: u64)
where
    M::Reader: MapReader<u64, Value = u64> + Send,
{
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut table = GuardedShared::new(map, bits_per_key, seed);
    for key in 0..STAYING {
        assert_eq!(table.insert(key, counted(key, 0)).unwrap(), None);
    }
    let race = Race::default();
    let mut model = HashMap::new();
    std::thread::scope(|scope| {
        let _stop = Stop(&race.stop);
        for number in 1..=2 {
            let (race, reader) = (&race, table.reader());
            scope.spawn(move || race.read(seed ^ number << 40, reader));
        }
        let mut own = table.reader();
        for step in 0..steps {
            let passing = FIRST_PASSING + rng.random_range(0..PASSING);
            match rng.random_range(0..3) {
                0 => {
                    let key = rng.random_range(0..STAYING);
                    assert!(table.insert(key, counted(key, step & 0xf_ffff)).unwrap().is_some());
                    assert_eq!(own.get(&key), Some(counted(key, step & 0xf_ffff)));
                }
                1 => {
                    let value = fixed(passing);
                    assert_eq!(table.insert(passing, value).unwrap(), model.insert(passing, value));
                    assert_eq!(own.get(&passing), Some(value));
                }
                _ => {
                    assert_eq!(table.remove(&passing).unwrap(), model.remove(&passing));
                }
            }
        }
    });
    let [lookups, aliens, passed, strange] =
        [&race.lookups, &race.aliens, &race.let_through, &race.strange].map(|n| n.load(Relaxed));
    let share = passed as f64 / aliens as f64;
    let [unseen, seen] = race.seen.each_ref().map(|n| n.load(Relaxed));
    println!(
        "{name}: {lookups} lookups beside {steps} updates; {passed} of {aliens} aliens passed \
         ({share:.5}, the filter's rate is {:.5}); keys that come and go: seen {seen}, not seen \
         {unseen}, strange {strange}",
        table.false_positive_rate()
    );
    // A full filter lets (1 - e^(-k n / m))^k = 0.6185^(m / n) pass. A key that is out is an alien to
    // it, and only that: with the strict filter, none gets a value that is not its own.
    let full = 0.6185f64.powf(bits_per_key);
    let most = if full < 1e-9 { 0.0 } else { 1.2 * full + 0.001 };
    assert!(aliens > 1_000 && share <= most.max(1e-5), "{share} of the aliens pass");
    let strange = strange as f64 / (unseen + 1) as f64;
    assert!(strange <= most, "{strange} of the keys that are out get a value");
    assert!(seen > 0 && unseen > 0);
    let mut reader = table.reader();
    for (key, &value) in &model {
        assert_eq!((reader.get(key), table.get(key)), (Some(value), Some(value)));
    }
}

#[test]
fn an_othello_behind_a_filter_is_read_while_both_change() {
    let seed = seed();
    race("othello", OthelloShared::new(BITS, 100, seed), 10.0, 400_000, seed);
    race("othello, strict filter", OthelloShared::new(BITS, 100, seed), 64.0, 400_000, seed);
}

#[test]
fn a_ludo_behind_a_filter_is_read_while_both_change() {
    let seed = seed();
    let ludo = || LudoWriter::new(Ludo::new(BITS, 100, seed).unwrap());
    race("ludo", ludo(), 10.0, 400_000, seed);
    race("ludo, strict filter", ludo(), 64.0, 400_000, seed);
}

/// A filter that is put in front of a map that holds keys already.
#[test]
fn keys_that_were_there_before_the_filter_pass() {
    let mut map = OthelloShared::new(BITS, 10, seed());
    for key in 0..5_000u64 {
        map.insert(key, fixed(key)).unwrap();
    }
    let mut table = GuardedShared::new(map, 64.0, 1);
    let mut reader = table.reader();
    assert!((0..5_000).all(|key| reader.get(&key) == Some(fixed(key))));
    for key in 0..5_000u64 {
        assert_eq!(table.remove(&key), Ok(Some(fixed(key))));
        assert_eq!((reader.get(&key), table.remove(&key)), (None, Ok(None)));
    }
    assert_eq!(table.map().len(), 0);
    let passed = (0..100_000u64).filter(|key| reader.get(key).is_some()).count();
    assert_eq!(passed, 0, "nothing passes an empty filter");
}

/// One map behind a filter: its keys get what they get without, aliens pass as the product of both
/// rates says.
fn in_front_of<M: Lookup<u64>>(name: &str, keys: u64, map: M, own_rate: f64)
where
    M::Value: Into<u64>,
{
    let mut filter = Bloom::new(keys as usize, 6.0, 3);
    (0..keys).for_each(|key| filter.insert(&key));
    let rate = filter.false_positive_rate() * own_rate;
    let guarded = Guarded::new(filter, map);
    let asked: Vec<u64> = (0..keys).chain(1 << 40..(1 << 40) + 400_000).collect();
    let mut out = vec![None; asked.len()];
    guarded.get_batch(&asked, &mut out);
    let mut passed = 0;
    for (key, found) in asked.iter().zip(out) {
        let found: Option<u64> = found.map(Into::into);
        assert_eq!(guarded.get(key).map(Into::into), found, "{name}, key {key}");
        if *key < keys {
            assert_eq!(found, Some(key & 0xff), "{name}, key {key}");
        } else {
            passed += u64::from(found.is_some());
        }
    }
    let share = passed as f64 / 400_000.0;
    println!("{name}: {share:.5} of the aliens get a value, {rate:.5} expected");
    assert!((share - rate).abs() < 0.1 * rate + 0.0002, "{share} and not {rate}");
}

#[test]
fn a_filter_stands_in_front_of_every_map() {
    const KEYS: u64 = 20_000;
    let seed = seed();
    let mut cuckoo = Cuckoo::new(8, 10, seed);
    let mut partial = PartialCuckoo::new(16, 8, KEYS as usize, seed);
    let mut filtable = Filtable::new(8, 8, 10, seed);
    let mut set = OthelloSet::new(8, 2, 10, seed);
    let items: Vec<(u64, u64)> = (0..KEYS).map(|key| (key, key & 0xff)).collect();
    let mut ludo = Ludo::new(8, 10, seed).unwrap();
    let mut shadowed = false;
    for &(key, value) in &items {
        cuckoo.insert(key, value);
        shadowed |= partial.insert(&key, value).unwrap().is_some();
        filtable.insert(key, value).unwrap();
        set.insert(key, value as u32).unwrap();
        ludo.insert(key, value).unwrap();
    }
    in_front_of("cuckoo", KEYS, cuckoo, 0.0);
    if !shadowed {
        let rate = partial.false_positive_rate();
        in_front_of("partial", KEYS, partial, rate);
    }
    let rate = filtable.false_positive_rate();
    let view: FiltableView<u64> = filtable.view().clone();
    in_front_of("filtable", KEYS, view, rate);
    let rate = set.false_positive_rate();
    in_front_of("othello set", KEYS, set.export(0, 0, |&value| value), rate);
    in_front_of("setsep", KEYS, SetSep::build(8, &items, seed), 1.0);
    in_front_of("ludo", KEYS, ludo.view().clone(), 1.0);
}

/// A filter and a map in another process: both are fed by messages, and read by threads.
#[test]
fn views_fed_by_messages_are_guarded_as_well() {
    let seed = seed();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut ludo = Ludo::new(BITS, 10, seed).unwrap();
    let mut feed = BloomFeed::new(20_000, 64.0, seed);
    let mut map = LudoShared::new(LudoView::from_bytes(&ludo.view().to_bytes()).unwrap());
    let mut filter = BloomShared::new(BloomView::from_bytes(&feed.view().to_bytes()).unwrap());
    let mut reader = GuardedReader::new(filter.reader(), map.reader());
    let mut model = HashMap::new();
    for _ in 0..60_000 {
        let key = rng.random_range(0..8_000u64);
        if rng.random_bool(0.6) {
            let former = ludo.insert(key, fixed(key)).unwrap();
            map.apply(&LudoUpdate::from_bytes(&ludo.update().to_bytes()).unwrap()).unwrap();
            if former.is_none() {
                feed.insert(&key);
                filter.apply(&BloomUpdate::from_bytes(&feed.update().to_bytes()).unwrap()).unwrap();
            }
            assert_eq!(former, model.insert(key, fixed(key)));
        } else if model.remove(&key).is_some() {
            feed.remove(&key);
            filter.apply(&BloomUpdate::from_bytes(&feed.update().to_bytes()).unwrap()).unwrap();
            ludo.remove(&key).unwrap();
            map.apply(&LudoUpdate::from_bytes(&ludo.update().to_bytes()).unwrap()).unwrap();
        }
        assert_eq!(reader.get(&key), model.get(&key).copied());
    }
    let keys: Vec<u64> = (0..16_000).collect();
    let mut out = vec![None; keys.len()];
    reader.get_batch(&keys, &mut out);
    assert!(keys.iter().zip(out).all(|(key, found)| found == model.get(key).copied()));
}
