//! The structures: how each is filled, updated and looked up, and what a lookup must read.

use super::clock::timed;
use super::keys::Set;
use super::race::{Maintainer, Writer};
use super::reader::{MakeReader, Reads, readers};
use super::updates::{self, Updates, Ways};
use crate::Result;
use crate::error::{demand, ensure};
use std::sync::Arc;
use weir_lookup::{
    CountingBloom, Cuckoo, DigestCuckoo, Filtable, Fuse, Ludo, LudoShared, LudoView, MISS,
    MultiDigest, Othello, OthelloShared, PartialCuckoo, SetSep, SetSepMap, Value,
};

/// A structure, filled and updated.
pub struct Built {
    /// Makes a reader for each thread.
    pub make: MakeReader,
    /// What a lookup of a valid key must read.
    pub reads: Reads,
    /// Bytes that lookups may read.
    pub bytes: usize,
    /// Bytes of the maintainer, the view included, where that is apart.
    pub control_bytes: Option<usize>,
    /// Seconds from the items to the full structure.
    pub build_s: f64,
    /// Rates of updates one at a time.
    pub updates: Option<Updates>,
    /// Rates of updates in batches.
    pub batched_updates: Option<Updates>,
    /// Valid keys may get wrong answers.
    pub may_err: bool,
    /// What is answered where the set says a value.
    pub expected: fn(u64) -> u64,
    /// What makes updates while readers run.
    pub writer: Option<Writer>,
}

/// A structure that can be built.
pub struct Structure {
    /// Its name on the command line.
    pub name: &'static str,
    /// Most bits of a value.
    pub most_bits: u32,
    /// Fills it with a set and measures that and `rounds` rounds of updates.
    pub build: fn(&Set, u32) -> Result<Built>,
}

/// All structures, in the order of reports. A new one is one more line here, and its `build`.
pub const STRUCTURES: [Structure; 12] = [
    Structure { name: "othello", most_bits: 64, build: othello },
    Structure { name: "othello-shared", most_bits: 64, build: othello_shared },
    Structure { name: "fuse", most_bits: 64, build: fuse },
    Structure { name: "ludo", most_bits: 64, build: ludo },
    Structure { name: "ludo-shared", most_bits: 64, build: ludo_shared },
    Structure { name: "setsep", most_bits: 64, build: setsep },
    Structure { name: "cuckoo", most_bits: 64, build: cuckoo },
    Structure { name: "partial-cuckoo", most_bits: 64, build: partial_cuckoo },
    Structure { name: "filtable", most_bits: 64, build: filtable },
    Structure { name: "digest-cuckoo", most_bits: 16, build: digest_cuckoo },
    Structure { name: "multi-digest", most_bits: 16, build: multi_digest },
    Structure { name: "bloom", most_bits: 64, build: bloom },
];

/// Structures by name; all if there are no names.
///
/// # Errors
///
/// An unknown name.
pub fn find(names: &[String]) -> Result<Vec<&'static Structure>> {
    for name in names {
        let known = STRUCTURES.iter().any(|structure| structure.name == name);
        let all: Vec<_> = STRUCTURES.iter().map(|structure| structure.name).collect();
        demand!(known, "no structure {name}; there are {}", all.join(", "));
    }
    let asked = |name: &str| names.is_empty() || names.iter().any(|asked| asked == name);
    Ok(STRUCTURES.iter().filter(|structure| asked(structure.name)).collect())
}

impl Built {
    /// What is looked up without updates, and is never wrong.
    fn fixed(make: MakeReader, reads: Reads, bytes: usize, build_s: f64) -> Self {
        Self {
            make,
            reads,
            bytes,
            control_bytes: None,
            build_s,
            updates: None,
            batched_updates: None,
            may_err: false,
            expected: |value| value,
            writer: None,
        }
    }
}

/// Inserts all items; returns seconds.
fn filled<T>(table: &mut T, set: &Set, insert: fn(&mut T, u64, u64) -> bool) -> Result<f64> {
    let items = set.items();
    let (good, seconds) =
        timed(|| items.iter().fold(true, |good, item| good & insert(table, item.0, item.1)));
    ensure!(good, "an insertion failed");
    Ok(seconds)
}

fn othello(set: &Set, rounds: u32) -> Result<Built> {
    if set.bits <= 32 { othello_of::<u32>(set, rounds) } else { othello_of::<u64>(set, rounds) }
}

fn othello_of<V: Value>(set: &Set, rounds: u32) -> Result<Built> {
    let items: Vec<(u64, V)> =
        set.items().into_iter().map(|(key, value)| (key, V::of_word(value))).collect();
    let (table, build_s) = timed(|| Othello::build(set.bits, &items, set.seed ^ 0x0e));
    let mut table = table?;
    let [one_at_a_time, batched] = updates::othello(&mut table, set, rounds)?;
    let control_bytes = Some(table.control_bytes());
    let view = Arc::new(table.view());
    let bytes = view.bytes();
    let make = readers(
        view,
        V::default(),
        |v, key| v.get(key),
        |v, k, out| v.get_batch(k, out),
        |value| Some(value.into()),
    );
    let built = Built::fixed(make, Reads::of(2, bytes), bytes, build_s);
    let (updates, batched_updates) = (Some(one_at_a_time), Some(batched));
    Ok(Built { updates, batched_updates, control_bytes, ..built })
}

fn fuse(set: &Set, _: u32) -> Result<Built> {
    if set.bits <= 32 { fuse_of::<u32>(set) } else { fuse_of::<u64>(set) }
}

fn fuse_of<V: Value>(set: &Set) -> Result<Built> {
    let keys: Vec<u64> = set.items().into_iter().map(|item| item.0).collect();
    let value = |at: usize| V::of_word(set.value(keys[at]));
    let (table, build_s) = timed(|| Fuse::build(set.bits, &keys, value, set.seed ^ 0xf));
    let table = Arc::new(table?);
    let bytes = table.bytes();
    let make = readers(
        table,
        V::default(),
        |t, key| t.get(key),
        |t, k, out| t.get_batch(k, out),
        |value| Some(value.into()),
    );
    Ok(Built::fixed(make, Reads::of(3, bytes), bytes, build_s))
}

/// Two cells of the locator, then the bucket that they tell.
fn ludo_reads(view: &LudoView) -> Reads {
    let locator = view.locator_bytes();
    Reads { first: 2, bytes: locator, then: Some(view.bytes() - locator) }
}

fn ludo(set: &Set, rounds: u32) -> Result<Built> {
    let items = set.items();
    let (table, build_s) = timed(|| Ludo::build(set.bits, &items, set.seed ^ 0x1d));
    let mut table = table?;
    let ways = Ways {
        insert: |t: &mut Ludo<u64>, key, value| t.insert(key, value).is_ok(),
        change: Some(|t, key, value| t.change(&key, value).is_ok()),
        delete: |t, key| t.remove(&key).is_some(),
    };
    let updates = Some(updates::one_at_a_time(&mut table, set, rounds, ways)?);
    let batched_updates = Some(updates::batched(&mut table, set, rounds)?);
    let control_bytes = Some(table.control_bytes());
    let view = Arc::new(table.view().clone());
    let (reads, bytes) = (ludo_reads(&view), view.bytes());
    let make = readers(view, 0, |v, key| v.get(key), |v, k, out| v.get_batch(k, out), Some);
    let built = Built::fixed(make, reads, bytes, build_s);
    Ok(Built { updates, batched_updates, control_bytes, ..built })
}

/// How a maintainer with readers is updated.
fn shared_ways<T: Maintainer>() -> Ways<T> {
    Ways {
        insert: |table, key, value| matches!(table.insert(key, value), Ok(true)),
        change: Some(|table, key, value| matches!(table.change(key, value), Ok(true))),
        delete: |table, key| matches!(table.remove(key), Ok(true)),
    }
}

/// An update is one of the maintainer and of the cells that readers share.
fn othello_shared(set: &Set, rounds: u32) -> Result<Built> {
    let mut table = OthelloShared::new(set.bits, set.count, set.seed ^ 0x05);
    let build_s = filled(&mut table, set, |t, key, value| t.insert(key, value).is_ok())?;
    let updates = Some(updates::one_at_a_time(&mut table, set, rounds, shared_ways())?);
    let (bytes, control_bytes) = (table.bytes(), Some(table.control_bytes()));
    let reader = table.reader();
    let make = readers(reader, 0, |r, key| r.get(key), |r, k, out| r.get_batch(k, out), Some);
    let built = Built::fixed(make, Reads::of(2, bytes), bytes, build_s);
    Ok(Built { updates, control_bytes, writer: Some(Writer::new(table, set)), ..built })
}

/// An update is one of the maintainer and of the view that readers share.
fn ludo_shared(set: &Set, rounds: u32) -> Result<Built> {
    let items = set.items();
    let (table, build_s) = timed(|| Ludo::build(set.bits, &items, set.seed ^ 0x15));
    let table = table?;
    let shared = LudoShared::new(table.view().clone());
    let (reads, bytes) = (ludo_reads(table.view()), table.view().bytes());
    let mut both = (table, shared);
    let updates = Some(updates::one_at_a_time(&mut both, set, rounds, shared_ways())?);
    let control_bytes = Some(both.0.control_bytes());
    let reader = both.1.reader();
    let make = readers(reader, 0, |r, key| r.get(key), |r, k, out| r.get_batch(k, out), Some);
    let built = Built::fixed(make, reads, bytes, build_s);
    Ok(Built { updates, control_bytes, writer: Some(Writer::new(both, set)), ..built })
}

/// A group's choice, then the group. Built without a maintainer, which then makes updates for one
/// round only, as they take fifty times what those of others take.
fn setsep(set: &Set, rounds: u32) -> Result<Built> {
    let items = set.items();
    let (table, build_s) = timed(|| SetSep::build(set.bits, &items, set.seed ^ 0x5e));
    let bytes = table.bytes();
    let mut map = SetSepMap::build(set.bits, &items, set.seed ^ 0x5e)?;
    let insert = |t: &mut SetSepMap<u64>, key, value| t.insert(key, value).is_ok();
    let delete = |t: &mut SetSepMap<u64>, key| t.remove(&key).is_some();
    let ways = Ways { insert, change: Some(insert), delete };
    let updates = Some(updates::one_at_a_time(&mut map, set, rounds.min(1), ways)?);
    let control_bytes = Some(map.control_bytes());
    let reads = Reads { first: 1, bytes, then: Some(bytes) };
    let table = Arc::new(map.view().clone());
    let make = readers(table, 0, |t, key| t.get(key), |t, k, out| t.get_batch(k, out), Some);
    Ok(Built { updates, control_bytes, ..Built::fixed(make, reads, bytes, build_s) })
}

fn same(value: Option<u64>) -> Option<u64> {
    value
}

/// The keys of a bucket, then a value.
fn cuckoo(set: &Set, rounds: u32) -> Result<Built> {
    let mut table = Cuckoo::new(set.bits, set.count, set.seed ^ 0xc0);
    let insert = |t: &mut Cuckoo<u64>, key, value| t.insert(key, value).is_none();
    let build_s = filled(&mut table, set, insert)?;
    let change = |t: &mut Cuckoo<u64>, key, value| t.insert(key, value).is_some();
    let delete = |t: &mut Cuckoo<u64>, key| t.remove(&key).is_some();
    let ways = Ways { insert, change: Some(change), delete };
    let updates = Some(updates::one_at_a_time(&mut table, set, rounds, ways)?);
    let bytes = table.bytes();
    let key_bytes = (bytes as f64 * 64.0 / f64::from(65 + set.bits)) as usize;
    let reads = Reads { first: 1, bytes: key_bytes, then: Some(bytes - key_bytes) };
    let table = Arc::new(table);
    let make = readers(table, None, |t, k| t.get(k), |t, k, out| t.get_batch(k, out), same);
    Ok(Built { updates, ..Built::fixed(make, reads, bytes, build_s) })
}

/// Digests of 16 bits. Keys with one digest and a bucket in common are one entry.
fn partial_cuckoo(set: &Set, rounds: u32) -> Result<Built> {
    let mut table = PartialCuckoo::new(16, set.bits, set.count, set.seed ^ 0x9c);
    let insert = |t: &mut PartialCuckoo, key: u64, value| t.insert(&key, value).is_ok();
    let build_s = filled(&mut table, set, insert)?;
    let delete = |t: &mut PartialCuckoo, key: u64| {
        t.remove(&key);
        true
    };
    let ways = Ways { insert, change: Some(insert), delete };
    let updates = Some(updates::one_at_a_time(&mut table, set, rounds, ways)?);
    let bytes = table.bytes();
    let table = Arc::new(table);
    let make = readers(table, None, |t, k| t.get(k), |t, k, out| t.get_batch(k, out), same);
    let built = Built::fixed(make, Reads::of(1, bytes), bytes, build_s);
    Ok(Built { updates, may_err: true, ..built })
}

/// Digests of 10 bits, and whole keys for those that collide.
fn filtable(set: &Set, rounds: u32) -> Result<Built> {
    let mut table = Filtable::new(10, set.bits, set.count, set.seed ^ 0xf1);
    let insert = |t: &mut Filtable<u64>, key, value| t.insert(key, value).is_ok();
    let build_s = filled(&mut table, set, insert)?;
    let delete = |t: &mut Filtable<u64>, key| t.remove(&key).is_some();
    let ways = Ways { insert, change: Some(insert), delete };
    let updates = Some(updates::one_at_a_time(&mut table, set, rounds, ways)?);
    let control_bytes = Some(table.control_bytes());
    let view = Arc::new(table.view().clone());
    let bytes = view.bytes();
    let make = readers(view, None, |v, k| v.get(k), |v, k, out| v.get_batch(k, out), same);
    let built = Built::fixed(make, Reads::of(1, bytes), bytes, build_s);
    Ok(Built { updates, control_bytes, ..built })
}

/// Values of tables of digests: 65,535 is reserved there.
fn digest_value(value: u64) -> u64 {
    value.min(0xfffe)
}

fn hit(found: u32) -> Option<u64> {
    (found != MISS).then_some(found.into())
}

/// Digests of 64 bits and values of 16.
fn digest_cuckoo(set: &Set, rounds: u32) -> Result<Built> {
    type Table = DigestCuckoo<4>;
    let mut table = Table::new(set.count, set.seed ^ 0xdc);
    let insert =
        |t: &mut Table, key: u64, value| t.insert(&key, digest_value(value) as u16).is_ok();
    let build_s = filled(&mut table, set, insert)?;
    let delete = |t: &mut Table, key: u64| t.remove(&key).is_some();
    let ways = Ways { insert, change: Some(insert), delete };
    let updates = Some(updates::one_at_a_time(&mut table, set, rounds, ways)?);
    let bytes = table.bytes();
    let table = Arc::new(table);
    let single = |t: &mut Arc<Table>, key: &u64| t.get(key).map_or(MISS, u32::from);
    let make = readers(table, MISS, single, |t, k, out| t.get_batch(k, out), hit);
    let built = Built::fixed(make, Reads::of(1, bytes), bytes, build_s);
    Ok(Built { updates, may_err: true, expected: digest_value, ..built })
}

/// Digests of 16 bits and values of 16. A change is not an operation of its own.
fn multi_digest(set: &Set, rounds: u32) -> Result<Built> {
    let mut table = MultiDigest::new(set.count, set.seed ^ 0x3d);
    let insert =
        |t: &mut MultiDigest, key: u64, value| t.insert(&key, digest_value(value) as u16).is_ok();
    let build_s = filled(&mut table, set, insert)?;
    let delete = |t: &mut MultiDigest, key: u64| {
        t.remove(&key);
        true
    };
    let ways = Ways { insert, change: None, delete };
    let updates = Some(updates::one_at_a_time(&mut table, set, rounds, ways)?);
    let bytes = table.bytes();
    let table = Arc::new(table);
    let single = |t: &mut Arc<MultiDigest>, key: &u64| t.get(key).map_or(MISS, u32::from);
    let make = readers(table, MISS, single, |t, k, out| t.get_batch(k, out), hit);
    let built = Built::fixed(make, Reads::of(1, bytes), bytes, build_s);
    Ok(Built { updates, may_err: true, expected: digest_value, ..built })
}

/// Ten bits per key and seven hashes. It says whether a key is there, and has no values.
fn bloom(set: &Set, rounds: u32) -> Result<Built> {
    let mut table = CountingBloom::new(set.count, 10.0, set.seed ^ 0xb1);
    let insert = |t: &mut CountingBloom, key: u64, _| {
        t.insert(&key, |_| ());
        true
    };
    let build_s = filled(&mut table, set, insert)?;
    let delete = |t: &mut CountingBloom, key: u64| {
        t.remove(&key, |_| ());
        true
    };
    let ways = Ways { insert, change: None, delete };
    let updates = Some(updates::one_at_a_time(&mut table, set, rounds, ways)?);
    let control_bytes = Some(table.bytes());
    let filter = Arc::new(table.to_bloom());
    let bytes = filter.bytes();
    let single = |f: &mut Arc<weir_lookup::Bloom>, key: &u64| f.contains(key);
    let word = |there: bool| there.then_some(1);
    let make = readers(filter, false, single, |f, k, out| f.contains_batch(k, out), word);
    let built = Built::fixed(make, Reads::of(7, bytes), bytes, build_s);
    Ok(Built { updates, control_bytes, expected: |_| 1, ..built })
}
