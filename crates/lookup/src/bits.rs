//! Reading a cell that begins at any bit of a byte array.
// Loops over several arrays of one length by index are what the compiler makes vectors of.
#![allow(clippy::needless_range_loop)]

use crate::batch::Passes;
use crate::vector::{Places, Word};
use crate::{BATCH, prefetch};
use std::marker::PhantomData;

/// Bytes that a load must have so that it covers `bits` from any bit of its first byte on.
pub(crate) const fn load_bytes(bits: u32) -> u32 {
    if bits <= 25 { 4 } else { 8 }
}

/// Bytes with which cells of this width are read if they stand one after the other: the fewest
/// that do, because a load that reaches into a second cache line waits for it, needed or not.
/// (At 12 bits cells start at bit 0 or 4 of a byte; two bytes cover them, and one load in 64
/// crosses a line instead of one in 21.)
#[inline(always)]
pub(crate) const fn narrow_load(bits: u32) -> u32 {
    let alignment: u32 = 1 << bits.trailing_zeros();
    let last_start = 8u32.saturating_sub(alignment);
    match last_start + bits {
        0..=16 => 2,
        17..=32 => 4,
        _ => 8,
    }
}

/// All ones in the low `bits` (1..=32) bits.
#[inline(always)]
pub(crate) const fn mask(bits: u32) -> u32 {
    (u64::MAX >> (64 - bits)) as u32
}

/// The cell that begins at `bit`, with other cells above it, by a load of `LOAD` bytes.
#[inline(always)]
pub(crate) fn read<const LOAD: usize>(bytes: &[u8], bit: u64) -> u32 {
    let at = (bit >> 3) as usize;
    let loaded = &bytes[at..at + LOAD];
    match LOAD {
        2 => u32::from(u16::from_le_bytes(fixed(loaded))) >> (bit & 7),
        4 => u32::from_le_bytes(fixed(loaded)) >> (bit & 7),
        _ => (u64::from_le_bytes(fixed(loaded)) >> (bit & 7)) as u32,
    }
}

/// Prefetches what [`read`] will load. A load of two bytes reaches into a second line so seldom
/// that asking for it each time costs more.
#[inline(always)]
pub(crate) fn fetch<const LOAD: usize>(bytes: &[u8], bit: u64) {
    let at = (bit >> 3) as usize;
    prefetch(bytes, at);
    if LOAD > 2 {
        prefetch(bytes, at + LOAD - 1);
    }
}

/// A slice of known length as an array.
#[inline(always)]
fn fixed<const N: usize>(slice: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(slice);
    array
}

/// A table of packed cells: the value of a key is the xor of `READS` cells.
pub(crate) trait Cells<const READS: usize> {
    /// The bits at which the cells of a hash begin; `#[inline(always)]`.
    fn bits_of(&self, hash: u64) -> [u64; READS];

    /// The value of a hash.
    fn value_of(&self, hash: u64) -> u32;
}

/// Such a table as it is read in blocks. A load of a `W` covers a cell from any bit of a byte at
/// which one begins. If `ALIGNED`, all cells of a key begin at the same bit of a byte.
pub(crate) struct Packed<'a, T, W, H, const READS: usize, const ALIGNED: bool> {
    table: &'a T,
    bytes: &'a [u8],
    bits: u32,
    hash: &'a H,
    word: PhantomData<W>,
}

impl<'a, T, W, H, const READS: usize, const ALIGNED: bool> Packed<'a, T, W, H, READS, ALIGNED> {
    /// A table with cells of `bits` bits in `bytes`, and the hash of a key.
    pub(crate) fn new(table: &'a T, bytes: &'a [u8], bits: u32, hash: &'a H) -> Self {
        Self { table, bytes, bits, hash, word: PhantomData }
    }
}

/// Whether all bits of a table have numbers of 32 bits: [`Packed`] works with these, sixteen to a
/// vector.
pub(crate) fn is_narrow(bytes: &[u8]) -> bool {
    bytes.len() < 1 << 29
}

/// Where the cells of a block of keys begin: words, and bits in them.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a, W, const READS: usize> {
    places: Places<'a, W, READS>,
    shifts: [[u8; BATCH]; READS],
}

impl<'a, K, T, W, H, const READS: usize, const ALIGNED: bool> Passes<K>
    for Packed<'a, T, W, H, READS, ALIGNED>
where
    T: Cells<READS>,
    W: Word + Into<u32>,
    H: Fn(&K) -> u64,
{
    type Block = Block<'a, W, READS>;

    #[inline(always)]
    fn empty(&self) -> Self::Block {
        Block { places: Places::new(self.bytes), shifts: [[0; BATCH]; READS] }
    }

    #[inline(always)]
    fn locate(&self, keys: &[K; BATCH]) -> Self::Block {
        let mut block: Self::Block = <Self as Passes<K>>::empty(self);
        let mut hashes = [0; BATCH];
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = (self.hash)(key);
        }
        for (i, hash) in hashes.into_iter().enumerate() {
            for (side, bit) in self.table.bits_of(hash).into_iter().enumerate() {
                block.places.put(side, i, bit as u32 >> 3);
                if side == 0 || !ALIGNED {
                    block.shifts[side][i] = bit as u8 & 7;
                }
            }
        }
        block
    }

    #[inline(always)]
    fn fetch(&self, block: &Self::Block) {
        block.places.fetch();
    }

    #[inline(always)]
    fn read(&self, block: &Self::Block) -> [u32; BATCH] {
        let mask = mask(self.bits);
        let mut found = [0; BATCH];
        if ALIGNED {
            let words = block.places.xor_words();
            for i in 0..BATCH {
                found[i] = (words[i].into() >> block.shifts[0][i]) & mask;
            }
        } else {
            for (words, shifts) in block.places.words().iter().zip(&block.shifts) {
                for i in 0..BATCH {
                    found[i] ^= (words[i].into() >> shifts[i]) & mask;
                }
            }
        }
        found
    }

    #[inline(always)]
    fn one(&self, key: &K) -> u32 {
        self.table.value_of((self.hash)(key))
    }
}
