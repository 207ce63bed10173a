//! Memory, lookups, updates and construction of the compact maps and of what they are compared with.
//!
//! * `cargo run --release -p weir-lookup --example maps -- [keys...]` (1M and 8M if none is given):
//!   one table per number of keys.
//! * `... -- ludo KEYS`: construction of one large Ludo table, with its memory.
//! * `... -- racing KEYS`: a reader of a shared Ludo view beside a writer.
//! * `... -- filtable KEYS`: no key shadowing in so many keys; the false-positive rate.
//!
//! Times are the thread's own (`/proc/thread-self/schedstat`), so that what else runs on the machine
//! takes part only through the caches. Keys that are looked up are known ones at random, made in
//! blocks of 1,024 by a generator whose time is in every figure. Five rounds visit all structures in
//! turn; medians are printed.

use std::cell::RefCell;
use std::hint::black_box;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use weir_lookup::{
    CountingBloom, Cuckoo, Filtable, Fuse, Ludo, LudoChange, LudoShared, LudoView, Othello,
    PartialCuckoo, SetSep,
};

const BITS: u32 = 12;
const ROUNDS: usize = 5;
const LOOKUPS: usize = 1 << 22;
const BLOCK: usize = 1024;

/// Seconds that this thread has run.
fn now() -> f64 {
    let own = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = own.and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok());
    nanoseconds.map_or_else(
        || {
            static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
            START.get_or_init(Instant::now).elapsed().as_secs_f64()
        },
        |nanoseconds| nanoseconds / 1e9,
    )
}

fn timed<R>(work: impl FnOnce() -> R) -> (R, f64) {
    let start = now();
    let result = work();
    (result, now() - start)
}

/// The key number `n` of the set.
fn key(n: u64) -> u64 {
    let x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (((self.next() >> 32) * n as u64) >> 32) as usize
    }
}

/// Millions of keys per second that go through `work`.
fn rate(keys: usize, work: &mut dyn FnMut(&[u64]) -> u64) -> f64 {
    let mut random = Random(7);
    let mut block = [0u64; BLOCK];
    let ((), seconds) = timed(|| {
        let mut sum = 0u64;
        for _ in 0..LOOKUPS / BLOCK {
            block.fill_with(|| key(random.below(keys) as u64));
            sum = sum.wrapping_add(work(&block));
        }
        black_box(sum);
    });
    LOOKUPS as f64 / seconds / 1e6
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Looks up a block of keys; returns something that depends on all answers.
type Lookup = Box<dyn FnMut(&[u64]) -> u64>;

/// An answer to begin with, a structure's batch lookup, and an answer as a number.
type Batched<T, O> = (O, fn(&T, &[u64], &mut [O]), fn(O) -> u64);

struct Row {
    name: &'static str,
    bits_per_key: f64,
    build: f64,
    /// Millions per second: insert, change, remove; as text, since some cannot.
    updates: [String; 3],
    single: Lookup,
    batched: Lookup,
    rates: [Vec<f64>; 2],
}

/// The keys that all structures are filled with, and those that are changed and removed.
struct Set {
    items: Vec<(u64, u64)>,
    picked: Vec<u64>,
}

fn singly(lookup: impl Fn(&u64) -> u64 + 'static) -> Lookup {
    Box::new(move |keys| keys.iter().fold(0, |sum, key| sum.wrapping_add(lookup(key))))
}

fn in_batches<T: Copy + 'static>(
    empty: T,
    mut lookup: impl FnMut(&[u64], &mut [T]) + 'static,
    word: fn(T) -> u64,
) -> Lookup {
    let mut out = vec![empty; BLOCK];
    Box::new(move |keys| {
        lookup(keys, &mut out);
        out.iter().fold(0, |sum, &value| sum.wrapping_add(word(value)))
    })
}

impl Row {
    /// `seconds`: of the insertion of all keys, and of the changes and removals of the picked ones.
    fn new<T: 'static, O: Copy + 'static>(
        name: &'static str,
        set: &Set,
        (table, bytes): (T, usize),
        seconds: [Option<f64>; 3],
        single: fn(&T, &u64) -> u64,
        batched: Batched<T, O>,
    ) -> Self {
        let keys = set.items.len() as f64;
        let counts = [keys, set.picked.len() as f64, set.picked.len() as f64];
        let updates = std::array::from_fn(|kind| {
            seconds[kind].map_or("-".into(), |s| format!("{:.2}", counts[kind] / s / 1e6))
        });
        let table = Rc::new(table);
        let same = table.clone();
        let (empty, lookup, word) = batched;
        Self {
            name,
            bits_per_key: bytes as f64 * 8.0 / keys,
            build: seconds[0].unwrap_or(0.0),
            updates,
            single: singly(move |key| single(&table, key)),
            batched: in_batches(empty, move |keys, out| lookup(&same, keys, out), word),
            rates: [Vec::new(), Vec::new()],
        }
    }

    /// A structure that is built whole has no rate of insertions.
    fn built_whole(mut self) -> Self {
        self.updates[0] = "-".into();
        self
    }
}

/// One key in ten, at random: those that are changed, removed and added again.
fn sample(keys: usize) -> Vec<u64> {
    let mut order: Vec<u64> = (0..keys as u64).collect();
    let mut random = Random(3);
    for at in 0..keys / 10 {
        order.swap(at, at + random.below(keys - at));
    }
    order.truncate(keys / 10);
    order.iter().map(|&n| key(n)).collect()
}

/// Seconds for all insertions, and for changes and removals of the sample.
fn updates<T>(
    table: &mut T,
    set: &Set,
    mut insert: impl FnMut(&mut T, u64, u64),
    mut remove: impl FnMut(&mut T, u64),
) -> [Option<f64>; 3] {
    let Set { items, picked } = set;
    let ((), filled) = timed(|| items.iter().for_each(|&(key, value)| insert(table, key, value)));
    let ((), changed) = timed(|| picked.iter().for_each(|&key| insert(table, key, 77)));
    let ((), removed) = timed(|| picked.iter().for_each(|&key| remove(table, key)));
    picked.iter().for_each(|&key| insert(table, key, 77));
    [Some(filled), Some(changed), Some(removed)]
}

/// One at a time, and in batches.
fn ludo_rows(set: &Set) -> [Row; 3] {
    let Set { items, picked } = set;
    let mut table = Ludo::new(BITS, items.len(), 5).expect("a table of this size");
    let single = updates(
        &mut table,
        set,
        |table, key, value| assert!(table.insert(key, value).is_ok()),
        |table, key| assert!(table.remove(&key).is_some()),
    );
    drop(table);
    let mut table = Ludo::new(BITS, items.len(), 1).expect("a table of this size");
    let ((), insert) = timed(|| table.insert_batch(items, |_| ()).expect("different keys"));
    let mut batch = |change: fn(u64) -> LudoChange<u64>| {
        let changes: Vec<_> = picked.iter().copied().map(change).collect();
        timed(|| table.update_batch(&changes, |_| ()).expect("values of 12 bits")).1
    };
    let change = batch(|key| LudoChange::Change(key, 77));
    let remove = batch(LudoChange::Remove);
    let again = batch(|key| LudoChange::Insert(key, 77));
    let sample = picked.len() as f64 / 1e6;
    println!(
        "Ludo: {:.2} M inserts/s from 85.5 to 95 % load, in batches; {:?}",
        sample / again,
        table.stats(),
    );
    let view = table.view().clone();
    let shared = LudoShared::new(view.clone());
    let bytes = view.bytes();
    let lookups = (0u64, LudoView::lookup_batch as fn(&LudoView, &[u64], &mut [u64]), same as _);
    [
        Row::new("Ludo", set, (view.clone(), bytes), single, LudoView::lookup, lookups),
        Row::new(
            "Ludo, updates in batches",
            set,
            (view, bytes),
            [Some(insert), Some(change), Some(remove)],
            LudoView::lookup,
            lookups,
        ),
        Row::new(
            "Ludo, shared reader",
            set,
            (RefCell::new(shared.reader()), bytes),
            [None; 3],
            |reader, key| reader.borrow_mut().lookup(key),
            (0u64, |reader, keys, out| reader.borrow_mut().lookup_batch(keys, out), same),
        ),
    ]
}

fn same(value: u64) -> u64 {
    value
}

fn cell_rows(set: &Set) -> [Row; 3] {
    let Set { items, .. } = set;
    let mut othello = Othello::new(BITS, items.len(), 2);
    let ((), filled) = timed(|| {
        items.iter().for_each(|&(key, value)| drop(othello.insert(key, value as u32)));
    });
    let view = othello.view();
    drop(othello);
    let bare: Vec<u64> = items.iter().map(|item| item.0).collect();
    let (fuse, fused) =
        timed(|| Fuse::build(BITS, &bare, |at| items[at].1 as u32, 3).expect("different keys"));
    let (setsep, separated) = timed(|| SetSep::build(BITS, items, 4));
    let (view_bytes, fuse_bytes) = (view.bytes().len(), fuse.bytes().len());
    let setsep_bytes = setsep.bytes();
    [
        Row::new(
            "Othello",
            set,
            (view, view_bytes),
            [Some(filled), None, None],
            |view, key| view.lookup(key).into(),
            (0u32, |view, keys, out| view.lookup_batch(keys, out), u64::from),
        ),
        Row::new(
            "Fuse",
            set,
            (fuse, fuse_bytes),
            [Some(fused), None, None],
            |fuse, key| fuse.lookup(key).into(),
            (0u32, |fuse, keys, out| fuse.lookup_batch(keys, out), u64::from),
        )
        .built_whole(),
        Row::new(
            "SetSep",
            set,
            (setsep, setsep_bytes),
            [Some(separated), None, None],
            |map, key| map.lookup(key),
            (0u64, |map, keys, out| map.lookup_batch(keys, out), same),
        )
        .built_whole(),
    ]
}

fn found(value: Option<u64>) -> u64 {
    value.unwrap_or(0)
}

fn cuckoo_rows(set: &Set) -> [Row; 3] {
    let keys = set.items.len();
    let mut cuckoo = Cuckoo::new(BITS, keys, 5);
    let whole = updates(
        &mut cuckoo,
        set,
        |table, key, value| _ = table.insert(key, value),
        |table, key| assert!(table.remove(&key).is_some()),
    );
    let mut partial = PartialCuckoo::new(16, BITS, keys, 6);
    let digests = updates(
        &mut partial,
        set,
        |table, key, value| assert!(table.insert(&key, value).is_ok()),
        |table, key| _ = table.remove(&key),
    );
    let mut filtable = Filtable::new(10, BITS, keys, 7);
    let levels = updates(
        &mut filtable,
        set,
        |table, key, value| assert!(table.insert(key, value).is_ok()),
        |table, key| assert!(table.remove(&key).is_some()),
    );
    let view = filtable.view().clone();
    let bytes = [cuckoo.bytes(), partial.bytes(), view.bytes()];
    [
        Row::new(
            "Cuckoo, whole keys",
            set,
            (cuckoo, bytes[0]),
            whole,
            |table, key| found(table.get(key)),
            (None, |table, keys, out| table.lookup_batch(keys, out), found),
        ),
        Row::new(
            "PartialCuckoo, 16-bit digests",
            set,
            (partial, bytes[1]),
            digests,
            |table, key| found(table.get(key)),
            (None, |table, keys, out| table.lookup_batch(keys, out), found),
        ),
        Row::new(
            "Filtable, 10-bit digests",
            set,
            (view, bytes[2]),
            levels,
            |view, key| found(view.get(key)),
            (None, |view, keys, out| view.lookup_batch(keys, out), found),
        ),
    ]
}

fn bloom_row(set: &Set) -> Row {
    let Set { items, picked } = set;
    let mut counting = CountingBloom::new(items.len(), 10.0, 8);
    let ((), insert) = timed(|| items.iter().for_each(|(key, _)| counting.insert(key, |_| ())));
    let bloom = counting.to_bloom();
    let ((), remove) = timed(|| picked.iter().for_each(|key| counting.remove(key, |_| ())));
    let bytes = bloom.bytes();
    Row::new(
        "Bloom, 10 bits (no values)",
        set,
        (bloom, bytes),
        [Some(insert), None, Some(remove)],
        |bloom, key| bloom.contains(key).into(),
        (false, |bloom, keys, out| bloom.contains_batch(keys, out), u64::from),
    )
}

fn compare(keys: usize) {
    let items = (0..keys as u64).map(|n| (key(n), n & 0xfff)).collect();
    let set = Set { items, picked: sample(keys) };
    let mut rows: Vec<Row> = ludo_rows(&set).into();
    rows.extend(cell_rows(&set));
    rows.extend(cuckoo_rows(&set));
    rows.push(bloom_row(&set));
    print_rows(rows, keys);
}

fn print_rows(mut rows: Vec<Row>, keys: usize) {
    for _ in 0..ROUNDS {
        for Row { single, batched, rates, .. } in &mut rows {
            rates[0].push(rate(keys, single.as_mut()));
            rates[1].push(rate(keys, batched.as_mut()));
        }
    }
    println!("\n{keys} keys, l = {BITS}; M per second\n");
    println!("| structure | bits/key | batched | single | insert | change | remove | build s |");
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    for Row { name, bits_per_key, build, updates, mut rates, .. } in rows {
        let [single, batched] = &mut rates;
        println!(
            "| {name} | {bits_per_key:.2} | {:.1} | {:.1} | {} | {build:.2} |",
            median(batched),
            median(single),
            updates.join(" | "),
        );
    }
    println!();
}

/// One large table, made key by key, so that no list of items stands beside it.
fn large_ludo(keys: usize) {
    let (table, seconds) = timed(|| {
        let mut table = Ludo::new(BITS, keys, 9).expect("a table of this size");
        let mut items = Vec::with_capacity(BLOCK);
        for start in (0..keys as u64).step_by(BLOCK) {
            items.clear();
            let end = (start + BLOCK as u64).min(keys as u64);
            items.extend((start..end).map(|n| (key(n), n & 0xfff)));
            table.insert_batch(&items, |_| ()).expect("different keys");
        }
        table
    });
    let per_key = |bytes: usize| bytes as f64 / keys as f64;
    let view = table.view();
    let wrong = (0..keys as u64).filter(|&n| view.lookup(&key(n)) != n & 0xfff).count();
    println!(
        "{keys} keys in {seconds:.1} s ({:.2} M/s): view {:.2} bits per key, all {:.1} bytes per \
         key; {wrong} wrong values; {:?}",
        keys as f64 / seconds / 1e6,
        8.0 * per_key(view.bytes()),
        per_key(table.control_bytes()),
        table.stats(),
    );
    let view = view.clone();
    let mut lookup = in_batches(0u64, move |keys, out| view.lookup_batch(keys, out), same);
    let mut rates: Vec<f64> = (0..ROUNDS).map(|_| rate(keys, lookup.as_mut())).collect();
    println!("{:.1} M lookups/s in batches", median(&mut rates));
}

/// A reader's rate alone, and beside a writer that makes 100 updates in each millisecond.
fn racing(keys: usize) {
    let items: Vec<(u64, u64)> = (0..keys as u64).map(|n| (key(n), n & 0xfff)).collect();
    let mut table = Ludo::build(BITS, &items, 13).expect("different keys");
    let mut shared = LudoShared::new(table.view().clone());
    let mut reader = shared.reader();
    let mut batched = in_batches(0u64, move |keys, out| reader.lookup_batch(keys, out), same);
    let mut random = Random(17);
    let [mut alone, mut raced, mut updates] = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        alone.push(rate(keys, batched.as_mut()));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let (start, mut made) = (Instant::now(), 0);
                while !stop.load(Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                    // Made up for if the thread woke late.
                    while made < start.elapsed().as_millis() as u64 * 100 {
                        let key = items[random.below(keys)].0;
                        match table.remove(&key) {
                            Some(_) => {}
                            None => drop(table.insert(key, made & 0xfff)),
                        }
                        shared.apply(table.update()).expect("the next message");
                        made += 1;
                    }
                }
                made as f64 / start.elapsed().as_secs_f64() / 1e3
            });
            raced.push(rate(keys, batched.as_mut()));
            stop.store(true, Relaxed);
            updates.push(writer.join().expect("a writer that ends"));
        });
    }
    let mut ratios: Vec<f64> =
        raced.iter().zip(&alone).map(|(raced, alone)| raced / alone).collect();
    println!(
        "{keys} keys: reader alone {:.1} M/s, beside {:.0} K updates/s {:.1}: {:.2} of it",
        median(&mut alone),
        median(&mut updates),
        median(&mut raced),
        median(&mut ratios),
    );
}

fn shadowing(keys: usize) {
    let mut table = Filtable::new(8, BITS, keys, 11);
    let ((), seconds) = timed(|| {
        (0..keys as u64).for_each(|n| drop(table.insert(key(n), n & 0xfff)));
    });
    let view = table.view();
    let wrong = (0..keys as u64).filter(|&n| view.get(&key(n)) != Some(n & 0xfff)).count();
    let asked = 10_000_000;
    let hits = (0..asked).filter(|&n| view.get(&key(keys as u64 + n)).is_some()).count();
    let level1 = 1.0 - view.level2_len() as f64 / keys as f64;
    println!(
        "{keys} keys in {seconds:.1} s, 8-bit digests: {wrong} shadowed, {:.2} % in level 2, \
         {:.2} bits per key; false positives {:.5}, equation 3.8 {:.5}",
        (1.0 - level1) * 100.0,
        view.bytes() as f64 * 8.0 / keys as f64,
        hits as f64 / asked as f64,
        1.0 - (1.0 - 0.5f64.powi(8)).powf(0.95 * level1 * 8.0),
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |text: &String| text.parse::<usize>().expect("a number of keys");
    match arguments.first().map(String::as_str) {
        Some("ludo") => arguments[1..].iter().map(number).for_each(large_ludo),
        Some("racing") => arguments[1..].iter().map(number).for_each(racing),
        Some("filtable") => arguments[1..].iter().map(number).for_each(shadowing),
        None => [1_000_000, 8_000_000].into_iter().for_each(compare),
        Some(_) => arguments.iter().map(number).for_each(compare),
    }
}
