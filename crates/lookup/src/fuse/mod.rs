//! Fuse: a static map of three cells per key, about 1.13 l bits per key.

mod build;

use crate::memory::bits::{Batch, Cells, narrow_load, read};
use crate::memory::pages::Pages;
use crate::{Error, HashKey, Key, Value, vectorised};
use std::marker::PhantomData;
use weir_hash::scale;

/// Bytes behind the last cell, so that a load of 8 bytes never leaves the array. (Nor does one of 9
/// bytes, which only cells of 59 bits and more need.)
const PADDING: usize = 8;

/// The smallest table, in segments of the smallest size: 1,024 cells, or 1,280 if the cells of a
/// key are congruent. A key's cells can then stand in 12.6 million ways, so the share of one 12-bit
/// code among unknown keys is off by 2 % at most, by 0.001 % at a million keys.
const MIN_SEGMENTS: [u64; 2] = [8, 5];

/// Bounds of `segment_bits`. From 18 bits on the two offsets would share hash bits.
const SEGMENT_BITS: std::ops::RangeInclusive<u32> = 7..=18;

/// The numbers from which the places of a key follow in a [`Fuse`].
///
/// ```
/// use weir_lookup::FuseShape;
///
/// let shape = FuseShape::for_keys(12, 1_000_000);
/// let bits_per_key = 8.0 * shape.bytes() as f64 / 1e6;
/// assert!((13.5..13.7).contains(&bits_per_key), "1.13 times 12 bits: {bits_per_key}");
/// assert_eq!(shape.stride(), 2); // every other cell begins in the middle of a byte
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FuseShape {
    /// Width of a cell, 1..=64 bits.
    pub bits: u32,
    /// Binary logarithm of the cells of a segment.
    pub segment_bits: u32,
    /// Segments; a key's first cell stands in one of all but the last two.
    pub segments: u32,
}

impl FuseShape {
    /// The shape for `keys` keys: segment length and size factor as Graf and Lemire found them for
    /// three cells per key ("Binary Fuse Filters", 2022, section 3).
    ///
    /// # Panics
    /// If `bits` is not in 1..=64.
    pub fn for_keys(bits: u32, keys: usize) -> Self {
        u64::assert_width(bits);
        // What holds for a graph of so many keys holds for each of the independent ones.
        let keys_of_one = keys as f64 / f64::from(stride(bits));
        let log = keys_of_one.max(2.0).ln();
        let factor = (0.875 + 0.25 * 1e6f64.ln() / log).max(1.125);
        let halves = stride(bits) - 1;
        let least_bits = SEGMENT_BITS.start() + halves;
        let least = MIN_SEGMENTS[halves as usize] << least_bits;
        let cells = ((keys as f64 * factor).ceil() as u64).max(least);
        let segment_bits = (log / 3.33f64.ln() + 2.25).floor() as u32;
        let segment_bits = segment_bits.clamp(least_bits, *SEGMENT_BITS.end());
        Self { bits, segment_bits, segments: cells.div_ceil(1 << segment_bits).max(3) as u32 }
    }

    /// The cells of a key are congruent modulo this number, 1 or 2.
    ///
    /// 2 where every other cell begins in the middle of a byte (4, 12, 20, ... bits): the cells
    /// of a key then begin at the same bit of a byte, so that they are shifted once, after the
    /// xor. The graph falls into two that know nothing of each other.
    pub const fn stride(&self) -> u32 {
        stride(self.bits)
    }

    /// Number of cells, used or free.
    pub fn cells(&self) -> usize {
        (self.segments as usize) << self.segment_bits
    }

    /// Bytes of a table of this shape.
    pub fn bytes(&self) -> usize {
        (self.cells() * self.bits as usize).div_ceil(8) + PADDING
    }

    /// Cells at which a key's first cell may stand.
    #[inline(always)]
    fn starts(&self) -> u32 {
        (self.segments - 2) << self.segment_bits
    }

    /// The three cells of a hash, each in a segment of its own. The upper half of the hash chooses
    /// the first one; bits 0..18 and 18..36 choose where in the next two segments the others are.
    /// (Multiplying by a range leaves the lower bits of a half unused as long as the range is
    /// small, so the overlap of four bits cannot be seen.)
    #[inline(always)]
    pub fn cells_of(&self, hash: u64) -> [u32; 3] {
        let segment = 1u32 << self.segment_bits;
        let within = segment - self.stride();
        let start = scale((hash >> 32) as u32, self.starts());
        let second = (start + segment) ^ (hash as u32 & within);
        let third = (start + 2 * segment) ^ ((hash >> 18) as u32 & within);
        [start, second, third]
    }
}

const fn stride(bits: u32) -> u32 {
    if bits % 8 == 4 { 2 } else { 1 }
}

/// A map from keys to l-bit values that was built whole and is looked up without the keys.
///
/// The value of a key is the xor of its three cells. Cells that no key determines are uniformly
/// random, so unknown keys spread uniformly over the values. See `docs/fuse.md`.
///
/// The bytes: cell `i` stands from bit `bits * i` on, little-endian, without gaps; then zeros up to
/// a whole byte; then 8 bytes of zeros, so that every cell can be read by one load of 8 bytes (of 9,
/// if it has 59, 61, 62 or 63 bits). They do not depend on `V`, the type of the values.
///
/// ```
/// use weir_lookup::Fuse;
///
/// let keys: Vec<u64> = (0..100_000).map(|n| n * n).collect();
/// let fuse = Fuse::build(12, &keys, |number| number as u32 % 4096, 1)?;
/// let mut found = [0; 3];
/// fuse.get_batch(&keys[5..8], &mut found);
/// assert_eq!(found, [5, 6, 7]);
/// assert!((fuse.bytes() * 8) as f64 / 100_000.0 < 12.0 * 1.25); // 1.14 at a million keys
/// let _any_of_4096 = fuse.get(&3u64); // a key that is not in the table
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fuse<V = u32> {
    key: HashKey,
    shape: FuseShape,
    /// How a single cell is read: bytes of a load, and whether the cells of a key begin at the same
    /// bit of a byte.
    load: (u32, bool),
    bytes: Pages<u8>,
    values: PhantomData<V>,
}

impl<V: Value> Fuse<V> {
    /// Builds the table in which `keys[i]` has the value `value(i)`, of which the low `bits` bits
    /// count. `seed` makes every run with it the same. O(n) expected time.
    ///
    /// # Errors
    /// [`Error::DuplicateKey`] if two keys are equal, [`Error::NoAcyclicGraph`] if no seed works,
    /// which means that the key type's hash is broken.
    ///
    /// # Panics
    /// If `bits` is not in 1..=32, or 1..=64 for values of type `u64`.
    pub fn build<K: Key>(
        bits: u32,
        keys: &[K],
        value: impl Fn(usize) -> V,
        seed: u64,
    ) -> Result<Self, Error> {
        V::assert_width(bits);
        build::build(FuseShape::for_keys(bits, keys.len()), keys, value, seed)
    }

    /// A table from the bytes of a published one.
    ///
    /// # Panics
    /// If the shape is impossible, or the number of bytes does not match it.
    pub fn from_bytes(key: HashKey, shape: FuseShape, bytes: Vec<u8>) -> Self {
        V::assert_width(shape.bits);
        assert!(shape.segment_bits <= *SEGMENT_BITS.end() && shape.segments >= 3, "segments");
        assert!(u64::from(shape.segments) << shape.segment_bits <= u64::from(u32::MAX), "cells");
        assert_eq!(bytes.len(), shape.bytes(), "bytes of a fuse");
        let load = (narrow_load(shape.bits), shape.bits.is_multiple_of(4));
        Self { key, shape, load, bytes: Pages::of(bytes), values: PhantomData }
    }

    /// The hash key of this table.
    pub fn hash_key(&self) -> &HashKey {
        &self.key
    }

    /// The shape of this table.
    pub fn shape(&self) -> FuseShape {
        self.shape
    }

    /// The cells, packed without gaps, and what lookups read beyond them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes of the packed cells.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Value of a key: the stored one if the key was built in, else an arbitrary one.
    ///
    /// Three reads at random places, near each other; `shape().bits` wide result.
    #[inline]
    pub fn get<K: Key>(&self, key: &K) -> V {
        self.get_hash(key.hash(&self.key))
    }

    /// As [`get`](Self::get), with the hash at hand.
    #[inline]
    pub fn get_hash(&self, hash: u64) -> V {
        self.value_at(self.bits_of(hash))
    }

    /// Values of many keys, with the cache misses of 32 lookups under way at a time.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn get_batch<K: Key>(&self, keys: &[K], out: &mut [V]) {
        self.get_batch_with(keys, out, |key| key.hash(&self.key), |value| value);
    }

    /// As [`get_batch`](Self::get_batch) for a caller who hashes keys in a way of its own and
    /// goes on from the values: `out[i] = finish(get_hash(hash(&keys[i])))`, in order.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn get_batch_with<K, R>(
        &self,
        keys: &[K],
        out: &mut [R],
        hash: impl Fn(&K) -> u64,
        finish: impl FnMut(V) -> R,
    ) {
        vectorised(Batch { table: self, keys, out, hash, finish });
    }
}

impl<V: Value> Cells<3> for Fuse<V> {
    type Value = V;

    const NEAR: bool = true;

    #[inline(always)]
    fn cells(&self) -> (&[u8], u32) {
        (&self.bytes, self.shape.bits)
    }

    #[inline(always)]
    fn bits_of(&self, hash: u64) -> [u64; 3] {
        self.shape.cells_of(hash).map(|cell| u64::from(cell) * u64::from(self.shape.bits))
    }

    #[inline(always)]
    fn value_at(&self, places: [u64; 3]) -> V {
        let bytes = &self.bytes[..];
        let [a, b, c] = match self.load {
            (2, true) => {
                let [a, b, c] = places.map(|bit| read::<2, u32>(bytes, bit & !7));
                return V::from((a ^ b ^ c) >> (places[0] & 7)) & V::mask(self.shape.bits);
            }
            (2, _) => places.map(|bit| read::<2, V>(bytes, bit)),
            (4, _) => places.map(|bit| read::<4, V>(bytes, bit)),
            (9, _) if V::BITS > 32 => places.map(|bit| read::<9, V>(bytes, bit)),
            _ => places.map(|bit| read::<8, V>(bytes, bit)),
        };
        (a ^ b ^ c) & V::mask(self.shape.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::bits::large;

    /// As tables of 512 MB and more are read in batches.
    #[test]
    fn large_tables_are_read_as_others() {
        fn check<V: Value>(bits: u32) {
            let keys: Vec<u64> = (0..5_001).collect();
            let value = |i: usize| V::of_word((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let fuse = Fuse::build(bits, &keys, value, 1).unwrap();
            let mut out = vec![V::default(); keys.len()];
            large(&fuse, &keys, &mut out, |key| key.hash(fuse.hash_key()), |value| value);
            assert!(keys.iter().zip(out).all(|(key, found)| found == fuse.get(key)), "{bits}");
        }
        (1..=32).for_each(check::<u32>);
        (1..=64).for_each(check::<u64>);
    }
}
