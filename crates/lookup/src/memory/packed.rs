//! Bits in a row of atomic words: one writer, readers that may look on.

use crate::memory::pages::Pages;
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

    /// As many bits as `bytes` have to hold; `None` if they hold more or fewer.
    pub(crate) fn from_bytes(bytes: &[u8], bits: u64) -> Option<Self> {
        let over = (bytes.len() as u64 * 8).checked_sub(bits)?;
        let is_clear = |last: &u8| u32::from(*last) >> (8 - over) == 0;
        if over >= 8 || over > 0 && !bytes.last().is_some_and(is_clear) {
            return None;
        }
        let mut words = vec![0u64; Self::words_for(bits)];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_le_bytes(whole);
        }
        Some(Self::from_words(words))
    }

    /// The bytes that hold the first `bits` bits.
    pub(crate) fn to_bytes(&self, bits: u64) -> impl Iterator<Item = u8> + '_ {
        self.words().flat_map(u64::to_le_bytes).take(bits.div_ceil(8) as usize)
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
    fn bytes_hold_exactly_the_bits() {
        for bits in [1u64, 7, 8, 63, 64, 65, 800] {
            let packed = Packed::new(bits);
            (0..bits).filter(|bit| bit % 3 != 1).for_each(|bit| packed.flip(bit));
            let mut bytes: Vec<u8> = packed.to_bytes(bits).collect();
            assert_eq!(bytes.len() as u64, bits.div_ceil(8));
            assert_eq!(Packed::from_bytes(&bytes, bits).as_ref(), Some(&packed));
            if !bits.is_multiple_of(8) {
                *bytes.last_mut().unwrap() |= 0x80;
                assert_eq!(Packed::from_bytes(&bytes, bits), None);
            }
            bytes.push(0);
            assert_eq!(Packed::from_bytes(&bytes, bits), None);
            assert_eq!(Packed::from_bytes(&bytes[..bytes.len() - 2], bits), None);
        }
    }

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
