//! Fuse: a static map of three cells per key, about 1.13 l bits per key.

mod build;

use crate::bits::{fetch, mask, narrow_load, read};
use crate::{Error, HashKey, Key, pipeline};
use weir_wire::hash::scale;

/// Bytes behind the last cell, so that a load of 8 bytes never leaves the array.
const PADDING: usize = 8;

/// The smallest table. A key's cells can stand in this many cells in 12.6 million ways, so the
/// share of one 12-bit code among unknown keys is off by 2 % at most, by 0.001 % at a million keys.
const MIN_CELLS: u64 = 1024;

/// Bounds of `segment_bits`. From 18 bits on the two offsets would share hash bits.
const SEGMENT_BITS: std::ops::RangeInclusive<u32> = 7..=18;

/// Shape of a [`Fuse`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FuseShape {
    /// Width of a cell, 1..=32 bits.
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
    /// If `bits` is not in 1..=32.
    pub fn for_keys(bits: u32, keys: usize) -> Self {
        assert!((1..=32).contains(&bits), "a cell has 1..=32 bits");
        let log = (keys.max(2) as f64).ln();
        let factor = (0.875 + 0.25 * 1e6f64.ln() / log).max(1.125);
        let cells = ((keys as f64 * factor).ceil() as u64).max(MIN_CELLS);
        let segment_bits = (log / 3.33f64.ln() + 2.25).floor() as u32;
        let segment_bits = segment_bits.clamp(*SEGMENT_BITS.start(), *SEGMENT_BITS.end());
        Self { bits, segment_bits, segments: cells.div_ceil(1 << segment_bits).max(3) as u32 }
    }

    /// All cells.
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
        let start = scale((hash >> 32) as u32, self.starts());
        let second = (start + segment) ^ (hash as u32 & (segment - 1));
        let third = (start + 2 * segment) ^ ((hash >> 18) as u32 & (segment - 1));
        [start, second, third]
    }
}

/// A map from keys to l-bit values that was built whole and is looked up without the keys.
///
/// The value of a key is the xor of its three cells. Cells that no key determines are uniformly
/// random, so unknown keys spread uniformly over the values. See `docs/fuse.md`.
///
/// The bytes: cell `i` stands from bit `bits * i` on, little-endian, without gaps; then zeros up to
/// a whole byte; then 8 bytes of zeros, so that every cell can be read by one load of 8 bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fuse {
    key: HashKey,
    shape: FuseShape,
    bytes: Vec<u8>,
}

impl Fuse {
    /// Builds the table in which `keys[i]` has the value `value(i)`, of which the low `bits` bits
    /// (1..=32) count. `seed` makes every run with it the same. O(n) expected time.
    ///
    /// # Errors
    /// [`Error::DuplicateKey`] if two keys are equal, [`Error::NoAcyclicGraph`] if no seed works,
    /// which means that the key type's hash is broken.
    ///
    /// # Panics
    /// If `bits` is not in 1..=32.
    pub fn build<K: Key>(
        bits: u32,
        keys: &[K],
        value: impl Fn(usize) -> u32,
        seed: u64,
    ) -> Result<Self, Error> {
        build::build(FuseShape::for_keys(bits, keys.len()), keys, value, seed)
    }

    /// A table from the bytes of a published one.
    ///
    /// # Panics
    /// If the shape is impossible, or the number of bytes does not match it.
    pub fn from_bytes(key: HashKey, shape: FuseShape, bytes: Vec<u8>) -> Self {
        assert!((1..=32).contains(&shape.bits), "a cell has 1..=32 bits");
        assert!(shape.segment_bits <= *SEGMENT_BITS.end() && shape.segments >= 3, "segments");
        assert!(u64::from(shape.segments) << shape.segment_bits <= u64::from(u32::MAX), "cells");
        assert_eq!(bytes.len(), shape.bytes(), "bytes of a fuse");
        Self { key, shape, bytes }
    }

    /// The hash key of this table.
    pub fn key(&self) -> &HashKey {
        &self.key
    }

    /// The shape of this table.
    pub fn shape(&self) -> FuseShape {
        self.shape
    }

    /// The packed bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Value of a key: the stored one if the key was built in, else an arbitrary one.
    ///
    /// Three reads at random places, near each other; `shape().bits` wide result.
    #[inline]
    pub fn lookup<K: Key>(&self, key: &K) -> u32 {
        self.lookup_hash(key.hash(&self.key))
    }

    /// As [`lookup`](Self::lookup), with the hash at hand.
    #[inline]
    pub fn lookup_hash(&self, hash: u64) -> u32 {
        let places = self.locate(hash);
        match narrow_load(self.shape.bits) {
            2 => self.value::<2>(places),
            4 => self.value::<4>(places),
            _ => self.value::<8>(places),
        }
    }

    /// Values of many keys, with the cache misses of 32 lookups under way at a time.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn lookup_batch<K: Key>(&self, keys: &[K], out: &mut [u32]) {
        // The branch on the width stands outside the loop.
        match narrow_load(self.shape.bits) {
            2 => self.batch::<K, 2>(keys, out),
            4 => self.batch::<K, 4>(keys, out),
            _ => self.batch::<K, 8>(keys, out),
        }
    }

    #[inline(always)]
    fn batch<K: Key, const LOAD: usize>(&self, keys: &[K], out: &mut [u32]) {
        let bytes = &self.bytes[..];
        let locate = |key: &K| self.locate(key.hash(&self.key));
        let fetch = |places: [u64; 3]| places.iter().for_each(|&bit| fetch::<LOAD>(bytes, bit));
        pipeline(keys, out, locate, fetch, |places| self.value::<LOAD>(places));
    }

    /// The bits at which the three cells of a hash begin.
    #[inline(always)]
    fn locate(&self, hash: u64) -> [u64; 3] {
        self.shape.cells_of(hash).map(|cell| u64::from(cell) * u64::from(self.shape.bits))
    }

    #[inline(always)]
    fn value<const LOAD: usize>(&self, places: [u64; 3]) -> u32 {
        let [a, b, c] = places.map(|bit| read::<LOAD>(&self.bytes, bit));
        (a ^ b ^ c) & mask(self.shape.bits)
    }
}
