//! What a cell can hold.

use rand::Rng;
use std::fmt::Debug;
use std::ops::{BitAnd, BitXor, BitXorAssign};

/// The values of a table of cells: `u32` for cells of 1..=32 bits, `u64` for cells of 1..=64 bits.
///
/// A table's type says which: `Fuse<u64>`; `Fuse` alone is `Fuse<u32>`. The cells are the same, and
/// narrow ones are read in the same way, whichever type the answers have.
///
/// ```
/// use weir_lookup::Fuse;
///
/// let keys = [10u64, 11, 12];
/// let fuse = Fuse::build(40, &keys, |i| 0x12_3456_7890 + i as u64, 1).unwrap();
/// assert_eq!(fuse.get(&11), 0x12_3456_7891);
/// ```
pub trait Value:
    Copy
    + Debug
    + Default
    + Eq
    + From<u32>
    + Into<u64>
    + BitAnd<Output = Self>
    + BitXor<Output = Self>
    + BitXorAssign
    + Send
    + Sync
    + 'static
    + sealed::Sealed
{
    /// Bits of the widest cell.
    const BITS: u32;

    /// The low bits of a word.
    fn of_word(word: u64) -> Self;

    /// All ones in the low `bits` (1..=[`BITS`](Self::BITS)) bits.
    #[inline(always)]
    fn mask(bits: u32) -> Self {
        Self::of_word(u64::MAX >> (64 - bits))
    }

    /// Panics if cells of `bits` bits cannot be.
    fn assert_width(bits: u32) {
        assert!((1..=Self::BITS).contains(&bits), "a cell has 1..={} bits", Self::BITS);
    }
}

mod sealed {
    /// What only this crate can implement.
    pub trait Sealed: Sized {
        /// Random numbers.
        fn fill(numbers: &mut [Self], rng: &mut impl super::Rng);
    }
}

macro_rules! values {
    ($($value:ty),+) => {$(
        impl Value for $value {
            const BITS: u32 = <$value>::BITS;

            #[inline(always)]
            fn of_word(word: u64) -> Self {
                word as Self
            }
        }

        impl sealed::Sealed for $value {
            fn fill(numbers: &mut [Self], rng: &mut impl Rng) {
                rng.fill(numbers);
            }
        }
    )+};
}
values!(u32, u64);
