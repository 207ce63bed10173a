//! Reading a cell that begins at any bit of a byte array.
// Loops over several arrays of one length by index are what the compiler makes vectors of.
#![allow(clippy::needless_range_loop)]

use crate::simd::batch::Passes;
use crate::simd::vector::{Nine, Places, Word};
use crate::{BATCH, Value, Work, pipeline, prefetch};
use std::marker::PhantomData;

/// Bytes that a load must have so that it covers `bits` from any bit of its first byte on (from 58
/// bits on: from any at which a cell can begin). It is part of the layout of views.
pub(crate) const fn load_bytes(bits: u32) -> u32 {
    match bits {
        0..=25 => 4,
        26..=57 => 8,
        _ => narrow_load(bits),
    }
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
        33..=64 => 8,
        // 59, 61, 62 and 63 bits.
        _ => 9,
    }
}

/// All ones in the low `bits` (1..=32) bits.
#[inline(always)]
pub(crate) fn mask(bits: u32) -> u32 {
    u32::mask(bits)
}

/// The cell that begins at `bit`, with other cells above it, by a load of `LOAD` bytes.
#[inline(always)]
pub(crate) fn read<const LOAD: usize, V: Value>(bytes: &[u8], bit: u64) -> V {
    let at = (bit >> 3) as usize;
    let loaded = &bytes[at..at + LOAD];
    match LOAD {
        2 => V::from(u32::from(u16::from_le_bytes(fixed(loaded))) >> (bit & 7)),
        4 => V::from(u32::from_le_bytes(fixed(loaded)) >> (bit & 7)),
        8 => V::of_word(u64::from_le_bytes(fixed(loaded)) >> (bit & 7)),
        _ => {
            let [first, second] =
                [&loaded[..8], &loaded[1..]].map(|at| u64::from_le_bytes(fixed(at)));
            V::of_word(Nine::window(first, second, bit as u8 & 7))
        }
    }
}

/// As [`read`], where the width is not known to the compiler: `load` is its [`narrow_load`].
#[inline(always)]
pub(crate) fn read_by<V: Value>(load: u32, bytes: &[u8], bit: u64) -> V {
    match load {
        2 => read::<2, V>(bytes, bit),
        4 => read::<4, V>(bytes, bit),
        9 if V::BITS > 32 => read::<9, V>(bytes, bit),
        _ => read::<8, V>(bytes, bit),
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
    /// What it is a map to.
    type Value: Value;

    /// Whether the cells of a key begin at the same bit of a byte where cells have a multiple of 4
    /// bits.
    const NEAR: bool;

    /// All cells, and the width of one in bits.
    fn cells(&self) -> (&[u8], u32);

    /// The bits at which the cells of a hash begin; `#[inline(always)]`.
    fn bits_of(&self, hash: u64) -> [u64; READS];

    /// The xor of the cells that begin at these bits; `#[inline(always)]`.
    fn value_at(&self, places: [u64; READS]) -> Self::Value;
}

/// Values of many keys: `out[i] = finish(value of hash(keys[i]))`, in order.
pub(crate) struct Batch<'a, T, K, R, H, F, const READS: usize> {
    pub(crate) table: &'a T,
    pub(crate) keys: &'a [K],
    pub(crate) out: &'a mut [R],
    pub(crate) hash: H,
    pub(crate) finish: F,
}

impl<T, K, R, H, F, const READS: usize> Work for Batch<'_, T, K, R, H, F, READS>
where
    T: Cells<READS>,
    H: Fn(&K) -> u64,
    F: FnMut(T::Value) -> R,
    [u64; READS]: Default,
{
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { table, keys, out, hash, finish } = self;
        let (bytes, bits) = table.cells();
        macro_rules! packed {
            ($word:ty, $aligned:literal) => {
                Packed::<_, $word, _, READS, $aligned>::new(table, bytes, bits, &hash)
                    .run(keys, out, finish)
            };
        }
        // The branches on the width stand outside the loop.
        let load = narrow_load(bits);
        if !is_packed(bytes, load) {
            large(table, keys, out, &hash, finish);
        } else if T::NEAR && bits.is_multiple_of(4) {
            match load {
                2 => packed!(u16, true),
                4 => packed!(u32, true),
                _ => packed!(u64, true),
            }
        } else {
            match load {
                2 => packed!(u16, false),
                4 => packed!(u32, false),
                9 if T::Value::BITS > 32 => packed!(Nine, false),
                _ => packed!(u64, false),
            }
        }
    }
}

/// The same of tables too large for [`Packed`].
#[inline(always)]
pub(crate) fn large<T: Cells<READS>, K, R, const READS: usize>(
    table: &T,
    keys: &[K],
    out: &mut [R],
    hash: impl Fn(&K) -> u64,
    mut finish: impl FnMut(T::Value) -> R,
) where
    [u64; READS]: Default,
{
    let bytes = table.cells().0;
    let fetch = |places: [u64; READS]| places.iter().for_each(|&bit| fetch::<8>(bytes, bit));
    let locate = |key: &K| table.bits_of(hash(key));
    pipeline(keys, out, locate, fetch, |places| finish(table.value_at(places)));
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

/// Whether [`Packed`] can read a table by loads of `load` bytes. All bytes must have numbers of 32
/// bits; for loads of 2 and 4 bytes all bits, as these are computed sixteen to a vector.
pub(crate) fn is_packed(bytes: &[u8], load: u32) -> bool {
    bytes.len() >> if load < 8 { 29 } else { 32 } == 0
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
    W: Word,
    H: Fn(&K) -> u64,
{
    type Value = T::Value;
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
                let at = if W::BYTES < 8 { bit as u32 >> 3 } else { (bit >> 3) as u32 };
                block.places.put(side, i, at);
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
        // One load in 9 (of 8 bytes) or 21 (of 4) reaches into a second line. A few misses that
        // nobody has asked for hold up a block: tables of 8M keys and 17 to 57 bits answer 1.1 to
        // 1.4 times as fast with this. Cells of 32 and 64 bits do not span lines; for loads of two
        // bytes, one in 64, asking each time costs more.
        if W::BYTES > 2 && !self.bits.is_power_of_two() {
            block.places.fetch_ends();
        }
    }

    #[inline(always)]
    fn read(&self, block: &Self::Block) -> [T::Value; BATCH] {
        let mask = T::Value::mask(self.bits);
        let mut found = [T::Value::default(); BATCH];
        if ALIGNED {
            let words = block.places.xor_words();
            for i in 0..BATCH {
                found[i] = words[i].cell::<T::Value>(block.shifts[0][i]) & mask;
            }
        } else {
            for (words, shifts) in block.places.words().iter().zip(&block.shifts) {
                for i in 0..BATCH {
                    found[i] ^= words[i].cell::<T::Value>(shifts[i]) & mask;
                }
            }
        }
        found
    }

    #[inline(always)]
    fn one(&self, key: &K) -> T::Value {
        self.table.value_at(self.table.bits_of((self.hash)(key)))
    }
}
