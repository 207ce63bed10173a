//! Buckets of digests and values without gaps, and lookups in batches.

use crate::cuckoo::buckets_for;
use crate::cuckoo::path::{MAX_PATH, Path, SLOTS};
use crate::memory::packed::{Packed, ones};
use crate::{BATCH, HashKey, Key};
use weir_hash::scale;

/// Bucket and slot.
pub(crate) type Place = (u32, u8);

/// Buckets of four slots, each a digest and a value, without gaps. Digest 0 is an empty slot.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slots {
    pub(crate) buckets: u32,
    pub(crate) digest_bits: u32,
    pub(crate) value_bits: u32,
    pub(crate) packed: Packed,
}

impl Slots {
    pub(crate) fn new(digest_bits: u32, value_bits: u32, capacity: usize) -> Self {
        assert!((1..=32).contains(&digest_bits), "a digest has 1..=32 bits");
        assert!((1..=64).contains(&value_bits), "a value has 1..=64 bits");
        let buckets = buckets_for(capacity);
        let packed = Packed::new(Self::bits_for(buckets, digest_bits, value_bits));
        Self { buckets, digest_bits, value_bits, packed }
    }

    /// Bits of so many buckets.
    pub(crate) fn bits_for(buckets: u32, digest_bits: u32, value_bits: u32) -> u64 {
        u64::from(buckets) * SLOTS as u64 * u64::from(digest_bits + value_bits)
    }

    #[inline(always)]
    fn bit(&self, bucket: u32, slot: usize) -> u64 {
        (u64::from(bucket) * SLOTS as u64 + slot as u64)
            * u64::from(self.digest_bits + self.value_bits)
    }

    #[inline(always)]
    pub(crate) fn digest(&self, bucket: u32, slot: usize) -> u32 {
        self.packed.read(self.bit(bucket, slot), self.digest_bits) as u32
    }

    #[inline(always)]
    pub(crate) fn value(&self, bucket: u32, slot: usize) -> u64 {
        self.packed.read(self.bit(bucket, slot) + u64::from(self.digest_bits), self.value_bits)
    }

    pub(crate) fn write(&self, bucket: u32, slot: usize, digest: u32, value: u64) {
        let bit = self.bit(bucket, slot);
        self.packed.write(bit, self.digest_bits, digest.into());
        self.packed.write(bit + u64::from(self.digest_bits), self.value_bits, value);
    }

    /// All slots, used or not.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, usize)> + use<> {
        (0..self.buckets).flat_map(|bucket| (0..SLOTS).map(move |slot| (bucket, slot)))
    }

    /// The slots of a path: `path.len - 1` whose entries move on, and a free one.
    pub(crate) fn places(&self, path: &Path) -> [Place; MAX_PATH] {
        let last = path.len - 1;
        let mut places = std::array::from_fn(|at| (path.buckets[at], path.slots[at]));
        places[last].1 = self.find_in(0, path.buckets[last]).unwrap_or(0) as u8;
        places
    }

    /// Moves each slot's entry to the next slot, last one first, and writes a new one to the first.
    pub(crate) fn shift(&self, places: &[Place], digest: u32, value: u64) {
        for step in places.windows(2).rev() {
            let [(from, old), (to, new)] = [step[0], step[1]];
            let (digest, value) = (self.digest(from, old.into()), self.value(from, old.into()));
            self.write(to, new.into(), digest, value);
        }
        if let Some(&(bucket, slot)) = places.first() {
            self.write(bucket, slot.into(), digest, value);
        }
    }

    /// The first slot of two buckets with this digest (0: the first empty one).
    #[inline(always)]
    pub(crate) fn find(&self, digest: u32, pair: [u32; 2]) -> Option<(u32, usize)> {
        pair.into_iter().find_map(|bucket| Some((bucket, self.find_in(digest, bucket)?)))
    }

    #[inline(always)]
    pub(crate) fn find_in(&self, digest: u32, bucket: u32) -> Option<usize> {
        let mut found = 0u32;
        for slot in 0..SLOTS {
            found |= u32::from(self.digest(bucket, slot) == digest) << slot;
        }
        (found != 0).then(|| found.trailing_zeros() as usize)
    }

    #[inline(always)]
    fn fetch(&self, pair: [u32; 2]) {
        for bucket in pair {
            let width = SLOTS as u64 * u64::from(self.digest_bits + self.value_bits);
            self.packed.fetch(self.bit(bucket, 0), width);
        }
    }

    /// A digest from bits of the hash that do not choose buckets: 1..2^digest_bits, or 1 alone.
    #[inline(always)]
    pub(crate) fn digest_of(&self, hash: u64) -> u32 {
        let folded = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let codes = ones(self.digest_bits) as u32;
        1 + scale((folded >> 32) as u32, codes)
    }

    /// The share of (bucket, digest) pairs that `entries` entries make up. No bucket has a digest
    /// twice, so this is the chance that a bucket has a given digest.
    pub(crate) fn digest_share(&self, entries: usize) -> f64 {
        entries as f64 / f64::from(self.buckets) / ones(self.digest_bits) as f64
    }
}

/// Runs keys through hash and two buckets, a batch ahead of the answers.
pub(crate) fn batched<K: Key>(
    (key, slots): (&HashKey, &Slots),
    keys: &[K],
    out: &mut [Option<u64>],
    pair_of: impl Fn(u64) -> [u32; 2],
    answer: impl Fn(&K, u64, [u32; 2]) -> Option<u64>,
) {
    assert_eq!(keys.len(), out.len(), "one result per key");
    let mut ahead = [[(0u64, [0u32; 2]); BATCH]; 2];
    let batches = keys.len().div_ceil(BATCH);
    for step in 0..=batches {
        for (place, item) in ahead[step & 1].iter_mut().zip(keys.iter().skip(step * BATCH)) {
            let hash = item.hash(key);
            *place = (hash, pair_of(hash));
            slots.fetch(place.1);
        }
        let Some(before) = step.checked_sub(1) else { continue };
        let range = before * BATCH..keys.len().min(step * BATCH);
        let items = keys[range.clone()].iter().zip(&ahead[before & 1]);
        for (out, (item, &(hash, pair))) in out[range].iter_mut().zip(items) {
            *out = answer(item, hash, pair);
        }
    }
}
