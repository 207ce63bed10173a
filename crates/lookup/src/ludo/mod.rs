//! Ludo hashing: a map in 3.8 + 1.06 l bits per key that takes updates in constant time.
//!
//! Dissertation chapter 4; `docs/ludo.md` explains the method and what is different here.

mod core;
mod forest;
mod shared;
mod snapshot;
mod source;
mod table;
mod tables;
mod update;
mod view;

pub use shared::{LudoReader, LudoShared};
pub use table::{Ludo, LudoChange, LudoStats};
pub use update::{LudoKind, LudoUpdate};
pub use view::LudoView;

use crate::Error;
use weir_hash::scale;

/// Share of the slots in use at the capacity. Breadth-first search does not fail below 96 %.
pub const LUDO_LOAD: f64 = 0.95;

/// Cells of the bucket locator per key and side, so that their graph is a forest but for an
/// expected 0.67 edges, whatever the number of keys.
const CELLS_PER_SIDE: f64 = 1.165;

/// Cells of a side are numbered with 30 bits: 920 million keys.
const MAX_CELLS: u32 = 1 << 30;

/// Bits of a seed in a bucket.
const SEED_BITS: u32 = 5;

/// Stands for a seed that is in the overflow table; so 31 seeds fit into a bucket.
const OVERFLOW: u64 = (1 << SEED_BITS) - 1;

/// Seeds that share one word of slot choices, two bits each.
const SEEDS_PER_WORD: u32 = 31;

/// Words that are tried: 248 seeds. All of them fail for a full bucket once in 4 * 10^10.
const SEED_WORDS: u32 = 8;

/// Sizes of a table; all arrays follow from them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    /// Bits of a value, 1..=64.
    pub(crate) value_bits: u32,
    /// Buckets of four values.
    pub(crate) buckets: u32,
    /// Cells of each side of the bucket locator.
    pub(crate) cells: u32,
}

impl Shape {
    /// For `capacity` keys at 95 % load.
    pub(crate) fn new(value_bits: u32, capacity: usize) -> Result<Self, Error> {
        assert!((1..=64).contains(&value_bits), "a value has 1..=64 bits");
        let cells = (capacity as f64 * CELLS_PER_SIDE).ceil() + 8.0;
        let buckets = (capacity as f64 / LUDO_LOAD / 4.0).ceil() + 2.0;
        if cells >= f64::from(MAX_CELLS) {
            return Err(Error::TooLarge { keys: capacity });
        }
        Ok(Self { value_bits, buckets: buckets as u32, cells: cells as u32 })
    }

    /// Bits of a bucket: a seed and four values.
    #[inline(always)]
    pub(crate) fn bucket_bits(&self) -> u64 {
        u64::from(SEED_BITS) + 4 * u64::from(self.value_bits)
    }

    /// The two buckets of a hash.
    #[inline(always)]
    pub(crate) fn buckets_of(&self, hash: u64) -> [u32; 2] {
        [scale(hash as u32, self.buckets), scale((hash >> 32) as u32, self.buckets)]
    }

    /// The two cells of a hash: side A first, then side B.
    ///
    /// They come from the same halves as the buckets: the forest needs a random graph, and what
    /// the buckets make of the same numbers does not change that.
    #[inline(always)]
    pub(crate) fn cells_of(&self, hash: u64) -> (u32, u32) {
        (scale(hash as u32, self.cells), self.cells + scale((hash >> 32) as u32, self.cells))
    }
}

/// The slots of a hash under 31 seeds, two bits each.
///
/// Keys of one bucket agree in nearly all bits of one half of their hashes. The fold brings the
/// other half's bits down, the product spreads them, the second fold makes low bits depend on all.
#[inline(always)]
fn slot_word(hash: u64, word: u32) -> u64 {
    let folded = hash ^ (hash >> 32) ^ u64::from(word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let spread = folded.wrapping_mul(0xd6e8_feb8_6659_fd93);
    spread ^ (spread >> 32)
}

/// The slot of a hash under a seed.
#[inline(always)]
fn slot_of(hash: u64, seed: u32) -> u32 {
    let word = slot_word(hash, seed / SEEDS_PER_WORD);
    (word >> (2 * (seed % SEEDS_PER_WORD))) as u32 & 3
}

/// Which of a word's 31 seeds give all hashes different slots: bit `2 i` for seed `i` of the word.
///
/// All seeds are tried at once: two slots of two bits are equal where their xor is 0.
#[inline(always)]
fn valid_seeds(hashes: &[u64], word: u32) -> u64 {
    const LOW: u64 = 0x1555_5555_5555_5555;
    let mut chosen = [0u64; 4];
    for (chosen, &hash) in chosen.iter_mut().zip(hashes) {
        *chosen = slot_word(hash, word);
    }
    let mut valid = LOW;
    for i in 1..hashes.len() {
        for j in 0..i {
            let differ = chosen[i] ^ chosen[j];
            valid &= differ | (differ >> 1);
        }
    }
    valid
}

/// A seed below `31 * words` that gives all hashes different slots: `current`, so that nothing has
/// to move, or the smallest one.
#[inline]
fn find_seed(hashes: &[u64], current: u32, words: u32) -> Option<u8> {
    for word in 0..words {
        let valid = valid_seeds(hashes, word);
        if word == 0 && current < SEEDS_PER_WORD && valid >> (2 * current) & 1 != 0 {
            return Some(current as u8);
        }
        if valid != 0 {
            return Some((word * SEEDS_PER_WORD + valid.trailing_zeros() / 2) as u8);
        }
    }
    None
}

/// The smallest of the 31 seeds of a bucket that gives up to four hashes different slots, if one
/// does. For measurements of the method (dissertation Figs 4.5, 4.7, 4.8).
///
/// # Panics
/// If there are more than four hashes.
pub fn ludo_seed(hashes: &[u64]) -> Option<u8> {
    assert!(hashes.len() <= 4, "a bucket has four slots");
    find_seed(hashes, SEEDS_PER_WORD, 1)
}
