//! Several hash tables with short digests, one behind the other: SilkRoad's connection table.

use super::{Batch, Table, stored, value};
use crate::memory::pages::Pages;
use crate::{Error, HashKey, Key, vectorised};
use weir_hash::scale;

/// Digest (16 bits) and value (16 bits) of 16 entries fill a cache line.
const SLOTS: usize = 16;

/// Slots of each level per key of the capacity, and buckets added so that small tables have slack.
///
/// While entries come and go at full capacity, a bucket turns away what Erlang's loss formula says
/// (16 servers, 16.8 erlangs: 20 %, where filling an empty table leaves over 12 %), and the next
/// level must hold that: 9.7 % of 0.2 and 0.3 % of 0.02 go on. 1.24 slots in all, 40 bits per key.
const LEVELS: [(f64, usize); 4] = [(0.95, 0), (0.24, 1), (0.04, 1), (0.01, 2)];

/// Makes one hash into a bucket per level. Level 0 takes the upper half as it is.
const SPREAD: [u64; LEVELS.len()] =
    [1, 0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f, 0xd6e8_feb8_6659_fd93];

/// One cache line. A value is stored inverted: 0 is an empty slot.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Bucket {
    digests: [u16; SLOTS],
    values: [u16; SLOTS],
}

const EMPTY: Bucket = Bucket { digests: [0; SLOTS], values: [0; SLOTS] };

impl Bucket {
    /// The stored value of a digest, or 0. A digest stands in a bucket at most once.
    #[inline(always)]
    fn find(&self, digest: u16) -> u16 {
        // A mask instead of `if`: all 16 slots are compared by a few vector instructions.
        let mut found = 0;
        for (other, value) in self.digests.iter().zip(&self.values) {
            found |= value & u16::from(*other == digest).wrapping_neg();
        }
        found
    }

    fn slot_of(&self, digest: u16) -> Option<usize> {
        (0..SLOTS).find(|&slot| self.values[slot] != 0 && self.digests[slot] == digest)
    }
}

/// Where [`MultiDigest::insert`] put an entry.
///
/// ```
/// use weir_lookup::MultiDigest;
///
/// // Digests of one bit: most keys meet another one's.
/// let mut table = MultiDigest::with_digest_bits(1000, 1, 1);
/// let placed = table.insert(&7u64, 300)?;
/// assert_eq!((placed.level, placed.shadowed), (0, false));
/// let shadowed = (100..200u64).find(|key| table.insert(key, 5).is_ok_and(|at| at.shadowed));
/// let key = shadowed.expect("one of a hundred meets another");
/// assert!(table.insert(&key, 6).is_err() || table.get(&key).is_some());
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// The level that it stands on, counted from 0.
    pub level: usize,
    /// Whether a level before it has an entry with the same digest in the key's bucket: lookups of
    /// the key get that one's value as long as it is there.
    pub shadowed: bool,
}

/// Four hash tables of decreasing size from 16-bit digests to 16-bit values.
///
/// An entry goes into the first level whose bucket has room and not yet its digest; a lookup asks
/// the levels in order and believes the first answer. See `docs/digest.md`.
///
/// ```
/// use weir_lookup::MultiDigest;
///
/// let mut table = MultiDigest::new(1000, 1);
/// assert!(!table.insert(&7u64, 300)?.shadowed);
/// assert_eq!(table.get(&7u64), Some(300));
/// assert_eq!(table.remove(&7u64), Some(300));
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Clone)]
pub struct MultiDigest {
    key: HashKey,
    digest_mask: u16,
    entries: usize,
    levels: [Pages<Bucket>; LEVELS.len()],
}

impl MultiDigest {
    /// A table that holds `capacity` keys. `seed` makes every run with it the same.
    pub fn new(capacity: usize, seed: u64) -> Self {
        Self::with_digest_bits(capacity, 16, seed)
    }

    /// As [`new`](Self::new), with shorter digests (1..=16 bits). The memory stays the same.
    pub fn with_digest_bits(capacity: usize, bits: u32, seed: u64) -> Self {
        assert!((1..=16).contains(&bits), "a digest has 1..=16 bits");
        let buckets = |(share, more): (f64, usize)| {
            let buckets = (capacity as f64 * share / SLOTS as f64).ceil() as usize + more;
            assert!(u32::try_from(buckets).is_ok(), "too many buckets");
            Pages::filled(EMPTY, buckets.max(1))
        };
        Self {
            key: HashKey::from_seed(seed),
            digest_mask: u16::MAX >> (16 - bits),
            entries: 0,
            levels: LEVELS.map(buckets),
        }
    }

    /// Number of entries, on all levels.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Number of slots on all levels, in use or free.
    pub fn slots(&self) -> usize {
        self.levels.iter().map(|level| level.len() * SLOTS).sum()
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        self.levels.iter().map(Pages::allocated).sum()
    }

    /// Number of entries on each level.
    pub fn entries_by_level(&self) -> [usize; LEVELS.len()] {
        self.levels.each_ref().map(|level| {
            level.iter().flat_map(|bucket| bucket.values).filter(|&value| value != 0).count()
        })
    }

    /// The chance that an unknown key is answered: one digest in `2^bits` for each of the entries
    /// that stand in its bucket of each level.
    pub fn false_hit_rate(&self) -> f64 {
        let compared: f64 = (self.entries_by_level().iter().zip(&self.levels))
            .map(|(&entries, level)| entries as f64 / level.len() as f64)
            .sum();
        1.0 - (1.0 - 1.0 / (f64::from(self.digest_mask) + 1.0)).powf(compared)
    }

    #[inline(always)]
    fn digest(&self, hash: u64) -> u16 {
        hash as u16 & self.digest_mask
    }

    #[inline(always)]
    fn bucket(&self, level: usize, hash: u64) -> usize {
        let mixed = (hash.wrapping_mul(SPREAD[level]) >> 32) as u32;
        scale(mixed, self.levels[level].len() as u32) as usize
    }

    /// The value of a key, or of another one with the same digest in one of its buckets.
    #[inline]
    pub fn get<K: Key>(&self, key: &K) -> Option<u16> {
        let hash = key.hash(&self.key);
        let digest = self.digest(hash);
        let find = |level: usize| self.levels[level][self.bucket(level, hash)].find(digest);
        value((0..LEVELS.len()).map(find).find(|&stored| stored != 0).unwrap_or(0))
    }

    /// Values of many keys ([`MISS`](crate::MISS) for those not found), with the cache misses of 32
    /// lookups under way at a time; level by level.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn get_batch<K: Key>(&self, keys: &[K], out: &mut [u32]) {
        vectorised(Batch { table: self, keys, out });
    }

    /// Adds a key that is **not** in the table: to the first level whose bucket has room and not
    /// the same digest.
    ///
    /// # Errors
    /// [`Error::Full`] if no level takes it, [`Error::ReservedValue`] for 65,535. The table is
    /// unchanged then.
    pub fn insert<K: Key>(&mut self, key: &K, new: u16) -> Result<Placed, Error> {
        let new = stored(new)?;
        let hash = key.hash(&self.key);
        let digest = self.digest(hash);
        let mut shadowed = false;
        for level in 0..LEVELS.len() {
            let at = self.bucket(level, hash);
            let bucket = &mut self.levels[level][at];
            if bucket.slot_of(digest).is_some() {
                shadowed = true;
            } else if let Some(slot) = bucket.values.iter().position(|&value| value == 0) {
                bucket.digests[slot] = digest;
                bucket.values[slot] = new;
                self.entries += 1;
                return Ok(Placed { level, shadowed });
            }
        }
        Err(Error::Full { entries: self.entries, slots: self.slots() })
    }

    /// Removes the entry that [`get`](Self::get) finds, which may be another key's.
    pub fn remove<K: Key>(&mut self, key: &K) -> Option<u16> {
        let hash = key.hash(&self.key);
        let digest = self.digest(hash);
        for level in 0..LEVELS.len() {
            let at = self.bucket(level, hash);
            let bucket = &mut self.levels[level][at];
            if let Some(slot) = bucket.slot_of(digest) {
                self.entries -= 1;
                return value(std::mem::take(&mut bucket.values[slot]));
            }
        }
        None
    }
}

impl super::Bucket for Bucket {
    #[inline(always)]
    fn find(&self, digest: u64) -> u16 {
        self.find(digest as u16)
    }
}

impl Table for MultiDigest {
    type Bucket = Bucket;

    const WAYS: usize = LEVELS.len();

    #[inline(always)]
    fn key(&self) -> &HashKey {
        &self.key
    }

    #[inline(always)]
    fn buckets(&self, level: usize) -> &[Bucket] {
        &self.levels[level]
    }

    #[inline(always)]
    fn place(&self, level: usize, hash: u64) -> (u64, u32) {
        (u64::from(self.digest(hash)), self.bucket(level, hash) as u32)
    }
}
