//! SetSep: a static map that finds, for every bit of the values, a hash that happens to give it.

mod map;

pub use map::SetSepMap;

use crate::memory::packed::{Packed, ones};
use crate::{BATCH, HashKey, Key};
use weir_hash::scale;

/// Buckets of a block.
const BUCKETS: usize = 256;
/// Keys of a block, on average: 14.5 for each group. With 16, one key in 12 of a map of 8-bit values
/// falls into a group without a seed, with 14.5 one in 190.
const KEYS: usize = 930;
/// Groups of a block.
const GROUPS: usize = 64;
/// Groups that a bucket can choose from, with two bits.
const CHOICES: usize = 4;
/// Bits of a group for each bit of a value: a seed and an array.
const SEED_BITS: u64 = 8;
const ARRAY_BITS: u64 = 16;
const FIELD_BITS: u64 = SEED_BITS + ARRAY_BITS;
/// Bits of a block's choices.
const CHOICE_BITS: u64 = 2 * BUCKETS as u64;
/// The first seed of a group that could not be built.
const FAILED: u64 = (1 << SEED_BITS) - 1;
/// Hash keys that are tried until no two keys have one hash.
const MAX_TRIES: u32 = 16;

/// A static map in 0.55 + 1.65 l bits per key, and 128 bits for each key of the plain table
/// (ScaleBricks; dissertation 4.2, which counts 0.5 + 1.5 l, with groups of 16 keys).
///
/// Keys fall into buckets of 4, and each bucket chooses one of four groups, so that all groups are
/// nearly equal. For each bit of the values, a group stores an 8-bit seed under which its keys'
/// 16-way hashes agree with a 16-bit array. The keys of a group without such a seed stand in a plain
/// table, by hash.
///
/// Built whole, then only read; [`SetSepMap`] is a maintainer that changes it.
///
/// ```
/// use weir_lookup::SetSep;
///
/// let items: Vec<(u64, u64)> = (0..10_000).map(|key| (key, key % 16)).collect();
/// let map = SetSep::build(4, &items, 1);
/// assert_eq!(map.get(&77u64), 77 % 16);
/// assert!(map.bytes() * 8 < 10_000 * 9);
/// let _any_of_16 = map.get(&(1u64 << 40)); // a key that is not in the map
/// ```
#[derive(Clone, Debug)]
pub struct SetSep {
    key: HashKey,
    value_bits: u32,
    buckets: u32,
    blocks: Packed,
    /// Hash and value, in the order of hashes.
    fallback: Vec<(u64, u64)>,
}

/// The group that a bucket gets by a choice: the same in every block.
#[inline(always)]
fn candidate(bucket: usize, choice: usize) -> usize {
    let mixed = ((bucket * CHOICES + choice) as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ (mixed >> 31)).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 58) as usize
}

/// The element of a group's array that a key reads under a seed.
#[inline(always)]
fn element(hash: u64, seed: u64) -> u64 {
    let folded = hash ^ (hash >> 32) ^ (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    folded.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 60
}

/// A seed and an array that give `bit` of every value.
fn solve(keys: &[(u64, u64)], bit: u32, seeds: u64) -> Option<u64> {
    'seeds: for seed in 0..seeds {
        let (mut set, mut clear) = (0u64, 0u64);
        for &(hash, value) in keys {
            let element = 1 << element(hash, seed);
            *if value >> bit & 1 == 0 { &mut clear } else { &mut set } |= element;
            if set & clear != 0 {
                continue 'seeds;
            }
        }
        return Some(seed | set << SEED_BITS);
    }
    None
}

/// Seeds that may be tried for a bit: the last one of the first bit marks a group that has none.
fn seeds(bit: u32) -> u64 {
    if bit == 0 { FAILED } else { FAILED + 1 }
}

/// Each bucket's choice: large buckets choose first, and then all choose again a few times, so that
/// the groups are nearly equal.
fn choose_groups(buckets: &[Vec<(u64, u64)>]) -> [usize; BUCKETS] {
    let mut order: Vec<usize> = (0..BUCKETS).collect();
    order.sort_by_key(|&bucket| std::cmp::Reverse(buckets[bucket].len()));
    let mut loads = [0usize; GROUPS];
    let mut choices = [0; BUCKETS];
    for round in 0..8 {
        for &bucket in &order {
            if round > 0 {
                loads[candidate(bucket, choices[bucket])] -= buckets[bucket].len();
            }
            let load = |&choice: &usize| loads[candidate(bucket, choice)];
            choices[bucket] = (0..CHOICES).min_by_key(load).unwrap_or(0);
            loads[candidate(bucket, choices[bucket])] += buckets[bucket].len();
        }
    }
    choices
}

impl SetSep {
    /// Builds a map of different keys to values of `value_bits` (1..=64) bits.
    ///
    /// # Panics
    /// If the width is another.
    pub fn build<K: Key>(value_bits: u32, items: &[(K, u64)], seed: u64) -> Self {
        let mut key = HashKey::from_seed(seed);
        let mut map = Self::empty(value_bits, items.len(), key);
        let mut sorted = map.sorted(items);
        // Two keys with one hash cannot be told apart. (Equal keys do not end this either.)
        for _ in 1..MAX_TRIES {
            if sorted.windows(2).all(|pair| pair[0].1 != pair[1].1) {
                break;
            }
            key = HashKey::from_seed(key.hash_word(0));
            map.key = key;
            sorted = map.sorted(items);
        }
        let mut rest = &sorted[..];
        for block in 0..map.blocks() {
            let end = rest.partition_point(|item| (item.0 as usize) < (block + 1) * BUCKETS);
            let failed = map.build_block(block, rest[..end].iter().copied());
            map.fallback.extend(failed);
            rest = &rest[end..];
        }
        map.fallback.sort_unstable();
        map.fallback.shrink_to_fit();
        map
    }

    /// A map of blocks for so many keys, to be built.
    fn empty(value_bits: u32, keys: usize, key: HashKey) -> Self {
        assert!((1..=64).contains(&value_bits), "a value has 1..=64 bits");
        let count = keys.div_ceil(KEYS).max(1);
        let bits =
            count as u64 * (CHOICE_BITS + GROUPS as u64 * FIELD_BITS * u64::from(value_bits));
        Self {
            key,
            value_bits,
            buckets: (count * BUCKETS) as u32,
            blocks: Packed::new(bits),
            fallback: Vec::new(),
        }
    }

    fn blocks(&self) -> usize {
        self.buckets as usize / BUCKETS
    }

    /// Bucket, hash and value of all items, in order.
    fn sorted<K: Key>(&self, items: &[(K, u64)]) -> Vec<(u32, u64, u64)> {
        let placed = items.iter().map(|(item, value)| {
            let hash = item.hash(&self.key);
            (self.bucket(hash), hash, value & ones(self.value_bits))
        });
        let mut sorted: Vec<_> = placed.collect();
        sorted.sort_unstable();
        sorted
    }

    /// Builds a block of bucket, hash and value of its items; returns those of groups that cannot be
    /// built.
    fn build_block(
        &self,
        block: usize,
        items: impl Iterator<Item = (u32, u64, u64)>,
    ) -> Vec<(u64, u64)> {
        let mut buckets = vec![Vec::new(); BUCKETS];
        for (bucket, hash, value) in items {
            buckets[bucket as usize % BUCKETS].push((hash, value));
        }
        let choices = choose_groups(&buckets);
        let mut groups = vec![Vec::new(); GROUPS];
        for (bucket, &choice) in choices.iter().enumerate() {
            groups[candidate(bucket, choice)].extend_from_slice(&buckets[bucket]);
            self.blocks.write(self.block_bit(block) + 2 * bucket as u64, 2, choice as u64);
        }
        let mut failed = Vec::new();
        for (group, keys) in groups.iter().enumerate() {
            if !self.build_group(self.group_bit(block, group), keys) {
                failed.extend_from_slice(keys);
            }
        }
        failed
    }

    /// Finds a seed for every bit of a group's values; marks the group if there is none.
    fn build_group(&self, start: u64, keys: &[(u64, u64)]) -> bool {
        let fields: Option<Vec<u64>> =
            (0..self.value_bits).map(|bit| solve(keys, bit, seeds(bit))).collect();
        match &fields {
            Some(fields) => {
                fields.iter().zip(0..).for_each(|(&field, bit)| self.write(start, bit, field));
            }
            None => self.blocks.write(start, SEED_BITS as u32, FAILED),
        }
        fields.is_some()
    }

    fn write(&self, start: u64, bit: u32, field: u64) {
        self.blocks.write(start + u64::from(bit) * FIELD_BITS, FIELD_BITS as u32, field);
    }

    #[inline(always)]
    fn is_failed(&self, start: u64) -> bool {
        self.blocks.read(start, SEED_BITS as u32) == FAILED
    }

    fn bucket(&self, hash: u64) -> u32 {
        scale((hash >> 32) as u32, self.buckets)
    }

    #[inline(always)]
    fn block_bit(&self, block: usize) -> u64 {
        let group_bits = FIELD_BITS * u64::from(self.value_bits);
        block as u64 * (CHOICE_BITS + GROUPS as u64 * group_bits)
    }

    #[inline(always)]
    fn group_bit(&self, block: usize, group: usize) -> u64 {
        let group_bits = FIELD_BITS * u64::from(self.value_bits);
        self.block_bit(block) + CHOICE_BITS + group as u64 * group_bits
    }

    /// Where a bucket's choice stands.
    #[inline(always)]
    fn choice_bit(&self, bucket: usize) -> u64 {
        self.block_bit(bucket / BUCKETS) + 2 * (bucket % BUCKETS) as u64
    }

    /// Where the group of a hash begins.
    #[inline(always)]
    fn locate(&self, hash: u64) -> u64 {
        let bucket = self.bucket(hash) as usize;
        let choice = self.blocks.read(self.choice_bit(bucket), 2) as usize;
        self.group_bit(bucket / BUCKETS, candidate(bucket % BUCKETS, choice))
    }

    #[inline(always)]
    fn value(&self, hash: u64, start: u64) -> u64 {
        if self.is_failed(start) {
            let place = self.fallback.binary_search_by_key(&hash, |&(hash, _)| hash);
            return place.map_or(0, |at| self.fallback[at].1);
        }
        (0..self.value_bits).fold(0, |value, bit| {
            let at = start + u64::from(bit) * FIELD_BITS;
            let field = self.blocks.read(at, FIELD_BITS as u32);
            let array = field >> SEED_BITS;
            value | (array >> element(hash, field & FAILED) & 1) << bit
        })
    }

    /// Value of a key; an arbitrary value for a key that is not in the map.
    #[inline]
    pub fn get<K: Key>(&self, key: &K) -> u64 {
        let hash = key.hash(&self.key);
        self.value(hash, self.locate(hash))
    }

    /// Values of many keys, in three stages: choices, groups, answers.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn get_batch<K: Key>(&self, keys: &[K], out: &mut [u64]) {
        assert_eq!(keys.len(), out.len(), "one result per key");
        let width = FIELD_BITS * u64::from(self.value_bits);
        for (keys, out) in keys.chunks(BATCH).zip(out.chunks_mut(BATCH)) {
            let mut places = [(0u64, 0u64); BATCH];
            for ((hash, _), key) in places.iter_mut().zip(keys) {
                *hash = key.hash(&self.key);
                self.blocks.fetch(self.choice_bit(self.bucket(*hash) as usize), 2);
            }
            for (hash, start) in places.iter_mut().take(keys.len()) {
                *start = self.locate(*hash);
                self.blocks.fetch(*start, width);
            }
            for (out, &(hash, start)) in out.iter_mut().zip(&places) {
                *out = self.value(hash, start);
            }
        }
    }

    /// Number of keys in the fallback table: those of groups for which no seed was found.
    pub fn fallback_len(&self) -> usize {
        self.fallback.len()
    }

    /// Bytes of all allocations.
    pub fn bytes(&self) -> usize {
        self.blocks.bytes() + self.fallback.capacity() * size_of::<(u64, u64)>()
    }
}
