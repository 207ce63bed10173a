//! Bits in a row of atomic words: one writer, readers that may look on.

use crate::pages::Pages;
use crate::prefetch;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A bit array without gaps. Bit `i` is bit `i % 64` of word `i / 64`.
///
/// The words are atomic so that readers may read while one writer writes; a relaxed load costs
/// what a plain one does. What spans words is torn for such readers, who must check for that.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    words: Pages<AtomicU64>,
}

impl Packed {
    /// Zeros. One more word stands at the end, so that every bit begins a window.
    pub(crate) fn new(bits: u64) -> Self {
        let words = Self::words_for(bits);
        Self::collected(words, std::iter::repeat_n(0, words))
    }

    pub(crate) fn words_for(bits: u64) -> usize {
        bits.div_ceil(64) as usize + 1
    }

    pub(crate) fn from_words(words: Vec<u64>) -> Self {
        Self::collected(words.len(), words.into_iter())
    }

    fn collected(len: usize, words: impl Iterator<Item = u64>) -> Self {
        Self { words: Pages::collected(len, words.map(AtomicU64::new)) }
    }

    pub(crate) fn words(&self) -> impl Iterator<Item = u64> + '_ {
        self.words.iter().map(|word| word.load(Relaxed))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.words.allocated()
    }

    /// The 64 bits that begin at `bit`.
    #[inline(always)]
    pub(crate) fn window(&self, bit: u64) -> u64 {
        let at = (bit >> 6) as usize;
        let pair = &self.words[at..at + 2];
        let shift = bit & 63;
        let (low, high) = (pair[0].load(Relaxed), pair[1].load(Relaxed));
        (low >> shift) | (high << 1 << (63 - shift))
    }

    /// `width` (1..=64) bits from `bit` on.
    #[inline(always)]
    pub(crate) fn read(&self, bit: u64, width: u32) -> u64 {
        self.window(bit) & ones(width)
    }

    /// Writes the low `width` (1..=64) bits of `value`. One writer at a time.
    #[inline]
    pub(crate) fn write(&self, bit: u64, width: u32, value: u64) {
        let (mask, at, shift) = (ones(width), (bit >> 6) as usize, bit & 63);
        let value = value & mask;
        self.replace(at, mask << shift, value << shift);
        if shift + u64::from(width) > 64 {
            self.replace(at + 1, mask >> (64 - shift), value >> (64 - shift));
        }
    }

    #[inline(always)]
    fn replace(&self, at: usize, mask: u64, value: u64) {
        let word = &self.words[at];
        word.store((word.load(Relaxed) & !mask) | value, Relaxed);
    }

    /// One bit, as 0 or 1.
    #[inline(always)]
    pub(crate) fn bit(&self, bit: u64) -> u64 {
        (self.words[(bit >> 6) as usize].load(Relaxed) >> (bit & 63)) & 1
    }

    /// Inverts one bit. One writer at a time.
    #[inline(always)]
    pub(crate) fn flip(&self, bit: u64) {
        let word = &self.words[(bit >> 6) as usize];
        word.store(word.load(Relaxed) ^ (1 << (bit & 63)), Relaxed);
    }

    /// Asks for the line that holds a bit.
    #[inline(always)]
    pub(crate) fn fetch_bit(&self, bit: u64) {
        prefetch(&self.words, (bit >> 6) as usize);
    }

    /// Asks for the line or lines that hold `width` bits from `bit` on.
    #[inline(always)]
    pub(crate) fn fetch(&self, bit: u64, width: u64) {
        prefetch(&self.words, (bit >> 6) as usize);
        prefetch(&self.words, ((bit + width - 1) >> 6) as usize);
    }
}

impl Clone for Packed {
    fn clone(&self) -> Self {
        Self::collected(self.words.len(), self.words())
    }
}

impl PartialEq for Packed {
    fn eq(&self, other: &Self) -> bool {
        self.words().eq(other.words())
    }
}

/// All ones in the low `width` (1..=64) bits.
#[inline(always)]
pub(crate) const fn ones(width: u32) -> u64 {
    u64::MAX >> (64 - width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_every_width_are_independent() {
        for width in 1..=64u32 {
            let packed = Packed::new(u64::from(width) * 100);
            let value = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) & ones(width);
            for i in (0..100).rev() {
                packed.write(i * u64::from(width), width, u64::MAX);
            }
            for i in 0..100 {
                packed.write(i * u64::from(width), width, value(i));
            }
            for i in 0..100 {
                assert_eq!(packed.read(i * u64::from(width), width), value(i), "{width} bits, {i}");
            }
        }
    }
}
