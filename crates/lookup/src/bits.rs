//! Reading a cell that begins at any bit of a byte array.

use crate::prefetch;

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
    if last_start + bits <= 16 { 2 } else { load_bytes(bits) }
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

/// Prefetches what [`read`] will load.
#[inline(always)]
pub(crate) fn fetch<const LOAD: usize>(bytes: &[u8], bit: u64) {
    let at = (bit >> 3) as usize;
    prefetch(bytes, at);
    prefetch(bytes, at + LOAD - 1);
}

/// A slice of known length as an array.
#[inline(always)]
fn fixed<const N: usize>(slice: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(slice);
    array
}
