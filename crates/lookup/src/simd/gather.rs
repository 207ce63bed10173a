//! The bound that lookups are held against: reads at random places and nothing else.

use crate::memory::pages::Pages;
use crate::simd::batch::Passes;
use crate::simd::vector::Places;
use crate::{BATCH, Work, vectorised};

/// An array of which `READS` words of 8 bytes are read for a key, at places that one product of
/// the key says. With a structure's number of reads and bytes it is the most that a lookup could
/// reach: the same passes, vectors, prefetching and pages, but no hash, no bits, no comparison.
///
/// ```
/// use weir_lookup::simd::gather::Gather;
///
/// let bound = Gather::<2>::new(1 << 20); // two reads in a megabyte for each key
/// let mut found = [0; 2];
/// bound.get_batch(&[7, 8], &mut found);
/// assert_eq!(found, [bound.get(7), bound.get(8)]);
/// ```
pub struct Gather<const READS: usize> {
    bytes: Pages<u8>,
}

impl<const READS: usize> Gather<READS> {
    /// An array of so many bytes, 8 at least, below 4 GB.
    pub fn new(bytes: usize) -> Self {
        assert!(u32::try_from(bytes).is_ok(), "an array of 4 GB or more");
        Self { bytes: Pages::filled(1, (bytes / 8).max(1) * 8) }
    }

    /// The byte at which each of the words begins.
    #[inline(always)]
    fn places(&self, key: u64) -> [u32; READS] {
        const LOW: u64 = u32::MAX as u64;
        let words = (self.bytes.len() as u64 / 8) & LOW;
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        std::array::from_fn(|i| {
            let bits = mixed.rotate_left(20 * i as u32) >> 32;
            ((bits * words) >> 32) as u32 * 8
        })
    }

    /// The xor of a key's words, the lower half.
    #[inline]
    pub fn get(&self, key: u64) -> u32 {
        let word = |at: u32| {
            let mut word = [0; 8];
            word.copy_from_slice(&self.bytes[at as usize..at as usize + 8]);
            u64::from_le_bytes(word)
        };
        self.places(key).into_iter().fold(0, |x, at| x ^ word(at)) as u32
    }

    /// The same for many keys.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn get_batch(&self, keys: &[u64], out: &mut [u32]) {
        vectorised(Batch { table: self, keys, out });
    }
}

/// The work of [`Gather::get_batch`].
struct Batch<'a, const READS: usize> {
    table: &'a Gather<READS>,
    keys: &'a [u64],
    out: &'a mut [u32],
}

impl<const READS: usize> Work for Batch<'_, READS> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        Passes::run(&self.table, self.keys, self.out, |found| found);
    }
}

impl<'a, const READS: usize> Passes<u64> for &'a Gather<READS> {
    type Value = u32;
    type Block = Places<'a, u64, READS>;

    #[inline(always)]
    fn empty(&self) -> Self::Block {
        Places::new(&self.bytes)
    }

    #[inline(always)]
    fn locate(&self, keys: &[u64; BATCH]) -> Self::Block {
        let mut block = self.empty();
        for (i, &key) in keys.iter().enumerate() {
            for (side, at) in self.places(key).into_iter().enumerate() {
                block.put(side, i, at);
            }
        }
        block
    }

    #[inline(always)]
    fn fetch(&self, block: &Self::Block) {
        block.fetch();
    }

    #[inline(always)]
    fn read(&self, block: &Self::Block) -> [u32; BATCH] {
        let mut found = [0; BATCH];
        for (found, word) in found.iter_mut().zip(block.xor_words()) {
            *found = word as u32;
        }
        found
    }

    #[inline(always)]
    fn one(&self, key: &u64) -> u32 {
        self.get(*key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_read_what_single_lookups_read() {
        let mut table = Gather::<3>::new(100_003);
        for (at, byte) in table.bytes.iter_mut().enumerate() {
            *byte = (at as u32).wrapping_mul(0x9e37_79b9).to_be_bytes()[0];
        }
        let keys: Vec<u64> = (0..1_001).collect();
        let mut out = vec![0; keys.len()];
        table.get_batch(&keys, &mut out);
        assert!(keys.iter().zip(&out).all(|(&key, &found)| table.get(key) == found));
        assert!(out.iter().any(|&found| found != out[0]));
    }
}
