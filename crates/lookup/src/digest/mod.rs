//! Tables that store digests instead of keys: the two designs that Concury compares itself with.
//!
//! A digest may be shared by two keys, so these tables can answer for a key that is not theirs
//! (a *false hit*). Who knows the truth counts them with [`HitCount`].
// Loops over several arrays of one length by index are what the compiler makes vectors of.
#![allow(clippy::needless_range_loop)]

mod cuckoo;
mod multi;

pub use cuckoo::DigestCuckoo;
pub use multi::{MultiDigest, Placed};

use crate::simd::batch::Passes;
use crate::{BATCH, Error, HashKey, Key, Work, prefetch};

/// What `get_batch` of a table of digests writes for a key that is not found.
pub const MISS: u32 = u32::MAX;

/// What a caller that knows the truth found out about the answers of a table of digests.
///
/// ```
/// use weir_lookup::HitCount;
///
/// let mut count = HitCount::default();
/// count.note(Some(1), Some(1)); // right
/// count.note(Some(1), None); // a value for a key that is not in the table
/// assert_eq!((count.right, count.false_hits, count.wrong, count.lost), (1, 1, 0, 0));
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct HitCount {
    /// Known keys with their own value, and unknown keys that were not found.
    pub right: u64,
    /// Unknown keys that got a value all the same.
    pub false_hits: u64,
    /// Known keys that got another key's value.
    pub wrong: u64,
    /// Known keys that were not found.
    pub lost: u64,
}

impl HitCount {
    /// Counts one answer. (Two keys with equal values look right to each other, as they are.)
    pub fn note(&mut self, found: Option<u16>, truth: Option<u16>) {
        *match (found, truth) {
            _ if found == truth => &mut self.right,
            (Some(_), None) => &mut self.false_hits,
            (Some(_), Some(_)) => &mut self.wrong,
            (None, _) => &mut self.lost,
        } += 1;
    }
}

/// A value as it stands in a slot: 0 is an empty one, so `or` over a bucket gives the answer.
fn stored(value: u16) -> Result<u16, Error> {
    if value == u16::MAX { Err(Error::ReservedValue) } else { Ok(!value) }
}

/// The answer that a stored value stands for.
#[inline(always)]
fn value(stored: u16) -> Option<u16> {
    (stored != 0).then_some(!stored)
}

/// The same for a batch: [`MISS`] instead of `None`.
#[inline(always)]
fn batch_value(stored: u16) -> u32 {
    if stored == 0 { MISS } else { u32::from(!stored) }
}

/// A line of digests with their values.
trait Bucket {
    /// The stored value of a digest, or 0; `#[inline(always)]`.
    fn find(&self, digest: u64) -> u16;
}

/// A table in which an entry may stand in one of several buckets, asked in the order of the ways.
/// All functions are `#[inline(always)]`.
trait Table {
    type Bucket: Bucket;

    /// How many buckets a lookup may have to ask.
    const WAYS: usize;

    fn key(&self) -> &HashKey;

    /// The array in which the buckets of a way stand.
    fn buckets(&self, way: usize) -> &[Self::Bucket];

    /// Digest and bucket of a hash.
    fn place(&self, way: usize, hash: u64) -> (u64, u32);

    /// Values of many keys, inside of [`vectorised`](crate::vectorised): first buckets first, then
    /// second ones for those keys only that were not there, and so on.
    #[inline(always)]
    fn batch<K: Key>(&self, keys: &[K], out: &mut [u32]) {
        assert_eq!(keys.len(), out.len(), "one result per key");
        // A burst of the usual size needs no room for more.
        if keys.len() <= BATCH {
            return self.batch_block::<K, BATCH>(keys, out);
        }
        for (keys, out) in keys.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
            self.batch_block::<K, BLOCK>(keys, out);
        }
    }

    /// Values of at most `ROOM` keys.
    #[inline(always)]
    fn batch_block<K: Key, const ROOM: usize>(&self, keys: &[K], out: &mut [u32]) {
        let mut hashes = [0; ROOM];
        for i in 0..keys.len() {
            hashes[i] = keys[i].hash(self.key());
        }
        Way { table: self, way: 0 }.run(&hashes[..keys.len()], out, |found| found);
        self.other_ways(&mut hashes, out);
    }

    /// Asks the other ways for the keys of a block that are not found yet.
    #[inline(always)]
    fn other_ways<const ROOM: usize>(&self, hashes: &mut [u64; ROOM], out: &mut [u32]) {
        // Without branches, as each would be a coin toss.
        let mut positions = [0u16; ROOM];
        let mut left = 0;
        for (at, &found) in out.iter().enumerate() {
            positions[left % ROOM] = at as u16;
            hashes[left % ROOM] = hashes[at];
            left += usize::from(found == MISS);
        }
        for way in 1..Self::WAYS {
            if left == 0 {
                return;
            }
            let mut found = [MISS; ROOM];
            // A few are looked up one at a time; else a block is filled up with what stands there.
            let asked = if left % BATCH < 8 { left } else { left.next_multiple_of(BATCH) };
            Way { table: self, way }.run(&hashes[..asked], &mut found[..asked], |found| found);
            let mut still = 0;
            for i in 0..left {
                out[usize::from(positions[i])] = found[i];
                (positions[still], hashes[still]) = (positions[i], hashes[i]);
                still += usize::from(found[i] == MISS);
            }
            left = still;
        }
    }
}

/// The work of the `get_batch` of a table.
struct Batch<'a, T, K> {
    table: &'a T,
    keys: &'a [K],
    out: &'a mut [u32],
}

impl<T: Table, K: Key> Work for Batch<'_, T, K> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.table.batch(self.keys, self.out);
    }
}

/// Keys that go through all ways together: enough to fill blocks of [`BATCH`] with those that the
/// first way did not find, few enough for the first-level cache.
const BLOCK: usize = 32 * BATCH;

/// Tables of this size and more are prefetched. (Comparing takes more instructions than the xor of
/// cells, so the processor sees fewer lookups ahead: below [`crate::simd::batch::PREFETCH_FROM`] it is of
/// use too.)
const PREFETCH_FROM: usize = 512 << 10;

/// One way of a table as it is read in blocks of hashes.
struct Way<'a, T: ?Sized> {
    table: &'a T,
    way: usize,
}

impl<T: Table + ?Sized> Passes<u64> for Way<'_, T> {
    type Value = u32;

    /// Digests and buckets.
    type Block = ([u64; BATCH], [u32; BATCH]);

    #[inline(always)]
    fn empty(&self) -> Self::Block {
        ([0; BATCH], [0; BATCH])
    }

    #[inline(always)]
    fn locate(&self, hashes: &[u64; BATCH]) -> Self::Block {
        let (mut digests, mut buckets) = self.empty();
        for (i, &hash) in hashes.iter().enumerate() {
            (digests[i], buckets[i]) = self.table.place(self.way, hash);
        }
        (digests, buckets)
    }

    #[inline(always)]
    fn fetch(&self, (_, buckets): &Self::Block) {
        let table = self.table.buckets(self.way);
        if size_of_val(table) >= PREFETCH_FROM {
            buckets.iter().for_each(|&bucket| prefetch(table, bucket as usize));
        }
    }

    #[inline(always)]
    fn read(&self, (digests, buckets): &Self::Block) -> [u32; BATCH] {
        let table = self.table.buckets(self.way);
        let mut found = [0; BATCH];
        for i in 0..BATCH {
            found[i] = table[buckets[i] as usize].find(digests[i]);
        }
        let mut values = [0; BATCH];
        for i in 0..BATCH {
            values[i] = batch_value(found[i]);
        }
        values
    }

    #[inline(always)]
    fn one(&self, &hash: &u64) -> u32 {
        let (digest, bucket) = self.table.place(self.way, hash);
        batch_value(self.table.buckets(self.way)[bucket as usize].find(digest))
    }
}
