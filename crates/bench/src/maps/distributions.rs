//! What a table of rates cannot show: seeds of Ludo's buckets, collisions of short digests, lengths
//! of messages.

use super::keys::{Set, key};
use crate::Result;
use serde::Serialize;
use weir_hash::{HashKey, Key, Octets};
use weir_lookup::{
    Filtable, Ludo, LudoChange, LudoStats, Othello, OthelloSet, PartialCuckoo, SetKind, SetSep,
    ludo_seed,
};

/// Buckets that are tried for each fill.
const BUCKETS: usize = 200_000;
/// Seeds that five bits can say; the last number stands for "overflow".
const SEEDS: usize = 31;

/// Slot seeds: what chance gives, and what a table has (dissertation, Figs 4.5, 4.7, 4.8).
#[derive(Debug, Serialize)]
pub struct Seeds {
    /// By keys of a bucket, from 1 on.
    pub fills: Vec<Fill>,
    /// Share of full buckets whose smallest seed does not fit into 3, 4, 5 bits.
    pub overflow_by_bits: [f64; 3],
    /// A table that insertions filled to its capacity.
    pub table: TableSeeds,
}

/// Random buckets with so many keys.
#[derive(Debug, Serialize)]
pub struct Fill {
    /// Number of keys in the table.
    pub keys: usize,
    /// Share of the buckets whose smallest seed is this one or smaller: seed 0, 1, ... 30.
    pub cumulative: Vec<f64>,
    /// Mean number of seeds tried, among the buckets that find one.
    pub mean_tries: f64,
}

/// What became of a table.
#[derive(Debug, Serialize)]
pub struct TableSeeds {
    /// Number of keys in the table.
    pub keys: usize,
    /// Number of buckets of the table.
    pub buckets: usize,
    /// Share of the buckets with 0, 1, ... 4 keys.
    pub fill: [f64; 5],
    /// Share of the buckets whose seed overflows.
    pub overflow: f64,
    /// Keys in the fallback table.
    pub fallback: usize,
}

/// Slot seeds of random buckets, and of a table of the set.
///
/// # Errors
///
/// A table that cannot be built.
pub fn seeds(set: &Set) -> Result<Seeds> {
    let hash = HashKey::from_seed(set.seed ^ 0x5eed);
    let mut next = 0u64;
    let mut draw = || {
        next += 1;
        key(next).hash(&hash)
    };
    let mut fill = |keys: usize| {
        let mut counts = [0usize; SEEDS];
        for _ in 0..BUCKETS {
            let hashes: Vec<u64> = (0..keys).map(|_| draw()).collect();
            if let Some(seed) = ludo_seed(&hashes) {
                counts[usize::from(seed)] += 1;
            }
        }
        let found: usize = counts.iter().sum();
        let tries: usize = counts.iter().zip(1..).map(|(count, tries)| count * tries).sum();
        let sums = counts.iter().scan(0, |sum, &count| {
            *sum += count;
            Some(*sum as f64 / BUCKETS as f64)
        });
        Fill { keys, cumulative: sums.collect(), mean_tries: tries as f64 / found.max(1) as f64 }
    };
    let fills: Vec<Fill> = (1..=4).map(&mut fill).collect();
    let full = &fills[3].cumulative;
    let overflow_by_bits = [3, 4, 5].map(|bits: u32| 1.0 - full[(1 << bits) - 2]);
    let table = Ludo::build(set.bits, &set.items(), set.seed ^ 0x1d)?;
    let LudoStats { buckets, fill, overflow, fallback, .. } = table.stats();
    let share = |count: usize| count as f64 / buckets as f64;
    let (fill, overflow) = (fill.map(share), share(overflow));
    let table = TableSeeds { keys: set.count, buckets, fill, overflow, fallback };
    Ok(Seeds { fills, overflow_by_bits, table })
}

/// Memory above the values' own, and what it buys (dissertation, Fig 4.30).
#[derive(Debug, Serialize)]
pub struct Collision {
    /// Name of the structure.
    pub structure: &'static str,
    /// Bits of a digest, where there is one.
    pub digest_bits: Option<u32>,
    /// Number of keys in the structure.
    pub keys: usize,
    /// Bits per key above the 20 of a value.
    pub extra_bits_per_key: f64,
    /// Percentage of the keys that share an entry with another key.
    pub colliding_percent: f64,
    /// Percentage of the keys that get another key's value.
    pub wrong_percent: f64,
    /// Percentage of the keys for which no room was found.
    pub refused_percent: f64,
}

/// Bits of a value in Fig 4.30; so an entry can say the number of its key.
const COLLISION_BITS: u32 = 20;

/// Partial-key cuckoo with digests of 1 to 20 bits, and what stores no digests.
///
/// # Errors
///
/// A table that cannot be built.
pub fn collisions(count: usize, seed: u64) -> Result<Vec<Collision>> {
    let count = count.min(1 << COLLISION_BITS);
    let mac = |n: usize| {
        let [a, b, c, d, e, f, ..] = key(n as u64 ^ (seed << 32)).to_be_bytes();
        Octets([a, b, c, d, e, f])
    };
    // Two of the 48-bit keys may be equal; a structure takes the key once.
    let mut macs: Vec<Octets<6>> = (0..count).map(mac).collect();
    macs.sort_unstable();
    macs.dedup();
    let mut rows: Vec<Collision> = (1..=20).map(|bits| partial(bits, &macs, seed)).collect();
    let items: Vec<(Octets<6>, u64)> = macs.iter().copied().zip(0..).collect();
    let mut othello = Othello::new(COLLISION_BITS, items.len(), seed);
    for &(mac, value) in &items {
        othello.insert(mac, value as u32)?;
    }
    let view = othello.view();
    let ludo = Ludo::build(COLLISION_BITS, &items, seed)?;
    let setsep = SetSep::build(COLLISION_BITS, &items, seed);
    let wrong = |lookup: &dyn Fn(&Octets<6>) -> u64| {
        items.iter().filter(|(mac, value)| lookup(mac) != *value).count()
    };
    for (structure, bytes, wrong) in [
        ("othello", view.bytes(), wrong(&|mac| view.get(mac).into())),
        ("ludo", ludo.view().bytes(), wrong(&|mac| ludo.view().get(mac))),
        ("setsep", setsep.bytes(), wrong(&|mac| setsep.get(mac))),
    ] {
        rows.push(Collision::new((structure, None), items.len(), bytes, [0, wrong, 0]));
    }
    Ok(rows)
}

impl Collision {
    /// `counts`: keys that collide, that get wrong answers, that were refused.
    fn new(
        (structure, digest_bits): (&'static str, Option<u32>),
        keys: usize,
        bytes: usize,
        counts: [usize; 3],
    ) -> Self {
        let [colliding, wrong, refused] = counts.map(|n| n as f64 * 100.0 / keys as f64);
        Self {
            structure,
            digest_bits,
            keys,
            extra_bits_per_key: bytes as f64 * 8.0 / keys as f64 - f64::from(COLLISION_BITS),
            colliding_percent: colliding,
            wrong_percent: wrong,
            refused_percent: refused,
        }
    }
}

/// The value of a key is its number, so that an answer tells whose entry it is.
fn partial(digest_bits: u32, macs: &[Octets<6>], seed: u64) -> Collision {
    let mut table = PartialCuckoo::new(digest_bits, COLLISION_BITS, macs.len(), seed);
    let numbered = macs.iter().zip(0u64..);
    let refused = numbered.filter(|&(mac, number)| table.insert(mac, number).is_err()).count();
    let answers: Vec<Option<u64>> = macs.iter().map(|mac| table.get(mac)).collect();
    let mut users = vec![0u32; macs.len()];
    answers.iter().flatten().for_each(|&owner| users[owner as usize] += 1);
    let colliding = answers.iter().flatten().filter(|&&owner| users[owner as usize] > 1).count();
    let wrong =
        answers.iter().zip(0..).filter(|(answer, number)| **answer != Some(*number)).count();
    let name = ("partial-cuckoo", Some(digest_bits));
    Collision::new(name, macs.len(), table.bytes(), [colliding, wrong, refused])
}

/// Lengths of the messages of one kind.
#[derive(Debug, Serialize)]
pub struct Message {
    /// Name of the structure, as `weir bench maps` has it.
    pub structure: &'static str,
    /// insert, change, delete; `insert at 95 %`: the last tenth of the insertions.
    pub kind: &'static str,
    /// How many there were.
    pub messages: usize,
    /// Bytes on average, with envelope.
    pub mean_bytes: f64,
    /// Bytes of the shortest.
    pub least: usize,
    /// Bytes of the median.
    pub median: usize,
    /// Bytes that 1 in 100 exceeds.
    pub p99: usize,
    /// Bytes of the longest.
    pub most: usize,
}

impl Message {
    fn of(structure: &'static str, kind: &'static str, mut lengths: Vec<usize>) -> Option<Self> {
        lengths.sort_unstable();
        let at = |share: f64| lengths[((lengths.len() - 1) as f64 * share) as usize];
        (!lengths.is_empty()).then(|| Self {
            structure,
            kind,
            messages: lengths.len(),
            mean_bytes: lengths.iter().sum::<usize>() as f64 / lengths.len() as f64,
            least: at(0.0),
            median: at(0.5),
            p99: at(0.99),
            most: at(1.0),
        })
    }
}

/// Messages of a whole fill, then of changes and deletions of a tenth of the keys.
///
/// # Errors
///
/// An update that fails.
pub fn messages(set: &Set) -> Result<Vec<Message>> {
    let picked: Vec<(u64, u64)> = set.numbered(set.sample(usize::MAX).into_iter()).collect();
    let mut rows = ludo_messages(set, &picked)?;
    rows.extend(othello_messages(set, &picked)?);
    rows.extend(filtable_messages(set, &picked)?);
    Ok(rows)
}

const KINDS: [&str; 4] = ["insert", "insert at 95 %", "change", "delete"];

/// Fills a table, then changes and deletes the picked items. `length` makes one change and tells how
/// long its message is; none if it was a rebuild.
fn rows_of(
    structure: &'static str,
    set: &Set,
    picked: &[(u64, u64)],
    mut length: impl FnMut(LudoChange<u64>) -> Result<Option<usize>>,
) -> Result<Vec<Message>> {
    let mut lengths = |changes: &mut dyn Iterator<Item = LudoChange<u64>>| {
        changes.filter_map(|change| length(change).transpose()).collect::<Result<Vec<usize>>>()
    };
    let fill = set.numbered(0..set.count as u64);
    let insert = lengths(&mut fill.map(|(key, value)| LudoChange::Insert(key, value)))?;
    let picked = || picked.iter().copied();
    let change = lengths(&mut picked().map(|(key, value)| LudoChange::Change(key, value ^ 1)))?;
    let delete = lengths(&mut picked().map(|(key, _)| LudoChange::Remove(key)))?;
    let last = insert[insert.len() - insert.len() / 10..].to_vec();
    let kinds = KINDS.into_iter().zip([insert, last, change, delete]);
    Ok(kinds.filter_map(|(kind, lengths)| Message::of(structure, kind, lengths)).collect())
}

fn ludo_messages(set: &Set, picked: &[(u64, u64)]) -> Result<Vec<Message>> {
    let mut table = Ludo::new(set.bits, set.count, set.seed ^ 0x1d)?;
    let mut bytes = Vec::new();
    rows_of("ludo", set, picked, |change| {
        table.change_batch(&[change], |_| ())?;
        bytes.clear();
        table.update().encode(&mut bytes);
        Ok(Some(bytes.len()))
    })
}

/// The OFW's set without fingerprint. A rebuild is no message: it needs a whole view.
fn othello_messages(set: &Set, picked: &[(u64, u64)]) -> Result<Vec<Message>> {
    if set.bits > 31 {
        return Ok(Vec::new());
    }
    let mut table = OthelloSet::new(set.bits, 0, set.count, set.seed ^ 0x0e);
    rows_of("othello-set", set, picked, |change| {
        match change {
            LudoChange::Insert(key, value) | LudoChange::Change(key, value) => {
                table.insert(key, value)?
            }
            LudoChange::Remove(key) => table.remove(&key),
        };
        let message = || table.message(0, 0, |&value| value as u32).to_bytes().len();
        Ok((table.kind() != SetKind::Rebuild).then(message))
    })
}

/// Digests of 10 bits, as the table of rates has it.
fn filtable_messages(set: &Set, picked: &[(u64, u64)]) -> Result<Vec<Message>> {
    let mut table = Filtable::new(10, set.bits, set.count, set.seed ^ 0xf1);
    rows_of("filtable", set, picked, |change| {
        match change {
            LudoChange::Insert(key, value) | LudoChange::Change(key, value) => {
                table.insert(key, value)?
            }
            LudoChange::Remove(key) => table.remove(&key),
        };
        Ok(Some(table.update().to_bytes().len()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message is its envelope, 32 bytes, and the few that tell what has changed.
    #[test]
    fn messages_of_all_kinds_are_measured() {
        let rows = messages(&Set { count: 20_000, bits: 12, seed: 3 }).expect("updates");
        for structure in ["ludo", "othello-set", "filtable"] {
            let kinds = rows.iter().filter(|row| row.structure == structure);
            assert_eq!(kinds.map(|row| row.kind).collect::<Vec<_>>(), KINDS);
        }
        // An insertion that rebuilds an Othello has no message of its own.
        for row in &rows {
            assert!(row.messages >= 1_900 && row.least > 24 && row.median < 80, "{row:?}");
        }
    }

    /// 2 digests' worth of places: about 2 * 4 * 0.95 / 2^d of the keys meet another's entry.
    #[test]
    fn collisions_halve_with_each_bit_and_compact_maps_have_none() {
        let rows = collisions(50_000, 5).expect("tables that can be built");
        for row in &rows {
            match row.digest_bits {
                Some(bits @ 8..=10) => {
                    let expected = 100.0 * 2.0 * 4.0 * 0.95 / 2f64.powi(bits as i32);
                    let ratio = row.colliding_percent / expected;
                    assert!((0.8..1.2).contains(&ratio), "{row:?}, expected {expected}");
                }
                Some(_) => {}
                None => assert_eq!(row.wrong_percent, 0.0, "{row:?}"),
            }
        }
        assert_eq!(rows.len(), 23);
    }

    #[test]
    fn seeds_of_full_buckets_are_geometric() {
        let seeds = seeds(&Set { count: 10_000, bits: 12, seed: 3 }).expect("a table");
        // One seed in 32/3 gives four keys four slots.
        for (bits, share) in [3, 4, 5].into_iter().zip(seeds.overflow_by_bits) {
            let chance = (1.0 - 24.0 / 256.0f64).powi((1 << bits) - 1);
            assert!((share - chance).abs() < 0.006, "{bits} bits: {share}, chance {chance}");
        }
    }
}
