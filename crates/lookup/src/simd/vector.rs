//! Code compiled for the widest vectors that the processor has, chosen when the program runs.
//!
//! With `prefetch.rs` and `pages.rs` the only unsafe code of this crate. Batched lookups go in
//! passes over arrays ([`passes`](crate::simd::batch::passes)); the passes that compute (hash, places)
//! are plain loops, of which the compiler makes vector instructions: eight keys at once with
//! AVX-512, which has products of 64 bits. The pass that reads memory stays scalar, because
//! gathers are slower than separate loads where the processor's limit is the loads themselves.
#![allow(unsafe_code)]
// Loops over several arrays of one length by index are what the compiler makes vectors of.
#![allow(clippy::needless_range_loop)]

use crate::simd::batch::PREFETCH_FROM;
use crate::{BATCH, Value};
use std::sync::atomic::{AtomicU8, Ordering};

/// A set of vector instructions.
///
/// ```
/// use weir_lookup::Vectors;
///
/// assert!(Vectors::used() <= Vectors::available());
/// // Without vectors everything gives the same results, more slowly.
/// assert_eq!(Vectors::limit(Vectors::Baseline), Vectors::Baseline);
/// assert_eq!(Vectors::used(), Vectors::Baseline);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Vectors {
    /// What every processor of the target has.
    Baseline = 1,
    /// AVX2, BMI1 and BMI2.
    Avx2 = 2,
    /// AVX-512 with its extensions F, BW, DQ and VL.
    Avx512 = 3,
}

/// What is used, as a number; 0 as long as nobody has asked.
static USED: AtomicU8 = AtomicU8::new(0);

impl Vectors {
    /// The widest set of this processor.
    pub fn available() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            macro_rules! have {
                ($($feature:tt),+) => { $(std::arch::is_x86_feature_detected!($feature))&&+ };
            }
            if have!("avx2", "bmi1", "bmi2") {
                return if have!("avx512f", "avx512bw", "avx512dq", "avx512vl") {
                    Self::Avx512
                } else {
                    Self::Avx2
                };
            }
        }
        Self::Baseline
    }

    /// The set that [`vectorised`] uses: the widest, unless [`limit`](Self::limit) was called.
    #[inline]
    pub fn used() -> Self {
        match USED.load(Ordering::Relaxed) {
            3 => Self::Avx512,
            2 => Self::Avx2,
            1 => Self::Baseline,
            _ => Self::limit(Self::Avx512),
        }
    }

    /// From now on the whole process uses `most` or the widest set of this processor, whichever is
    /// narrower; returns it. For tests, and to measure what vectors are worth.
    pub fn limit(most: Self) -> Self {
        let used = most.min(Self::available());
        USED.store(used as u8, Ordering::Relaxed);
        used
    }
}

/// Work on arrays, to be run by [`vectorised`].
///
/// ```
/// use weir_lookup::{Work, vectorised};
///
/// struct Sum<'a>(&'a [u64]);
///
/// impl Work for Sum<'_> {
///     type Output = u64;
///
///     #[inline(always)]
///     fn run(self) -> u64 {
///         self.0.iter().sum()
///     }
/// }
///
/// assert_eq!(vectorised(Sum(&[1, 2, 3])), 6);
/// ```
pub trait Work {
    /// What it results in.
    type Output;

    /// Does it. To be `#[inline(always)]`, and so all that it calls: what is not inlined is not
    /// compiled for vectors. (That is why this is a trait: a closure cannot be forced inline.)
    fn run(self) -> Self::Output;
}

/// Runs `work`, compiled for the vectors that the processor has. The results are the same.
///
/// A loop over arrays profits if it has no branches and no results that the next turn needs.
/// Entering costs a nanosecond or two: it is meant for bursts.
///
/// ```
/// use weir_lookup::{HashKey, Work, vectorised};
///
/// struct Hash<'a>(&'a HashKey, &'a [u64], &'a mut [u64]);
///
/// impl Work for Hash<'_> {
///     type Output = ();
///
///     #[inline(always)]
///     fn run(self) {
///         for (word, hash) in self.1.iter().zip(self.2) {
///             *hash = self.0.hash_word(*word);
///         }
///     }
/// }
///
/// let (key, words, mut hashes) = (HashKey::from_seed(1), [1, 2, 3], [0; 3]);
/// vectorised(Hash(&key, &words, &mut hashes));
/// assert_eq!(hashes[2], key.hash_word(3));
/// ```
#[inline]
pub fn vectorised<W: Work>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    match Vectors::used() {
        // SAFETY: `used` is never wider than `available`, which has asked the processor for all of
        // the features of `avx512`.
        Vectors::Avx512 => return unsafe { avx512(work) },
        // SAFETY: as above, for the features of `avx2`.
        Vectors::Avx2 => return unsafe { avx2(work) },
        Vectors::Baseline => {}
    }
    work.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2")]
fn avx512<W: Work>(work: W) -> W::Output {
    work.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn avx2<W: Work>(work: W) -> W::Output {
    work.run()
}

/// A number that is loaded from any address, little-endian.
pub(crate) trait Word: Copy + Default + std::ops::BitXor<Output = Self> {
    /// Bytes that are loaded.
    const BYTES: usize;

    /// # Safety
    /// The `BYTES` bytes at `from` can be read.
    unsafe fn load(from: *const u8) -> Self;

    /// The bits from bit `shift` (0..8) on, as many as a value has.
    fn cell<V: Value>(self, shift: u8) -> V;

    /// The same number, of which the compiler knows nothing any more.
    fn opaque(self) -> Self;
}

macro_rules! word {
    ($($word:ty: $register:literal, shifted as $shifted:ty;)+) => { $(
        impl Word for $word {
            const BYTES: usize = size_of::<Self>();

            #[inline(always)]
            unsafe fn load(from: *const u8) -> Self {
                // SAFETY: the caller's promise; the load is an unaligned one.
                Self::from_le(unsafe { from.cast::<Self>().read_unaligned() })
            }

            #[inline(always)]
            fn cell<V: Value>(self, shift: u8) -> V {
                V::of_word(u64::from(<$shifted>::from(self) >> shift))
            }

            #[inline(always)]
            fn opaque(self) -> Self {
                #[cfg(target_arch = "x86_64")]
                {
                    let mut word = self;
                    // SAFETY: the text is a comment; nothing happens.
                    unsafe {
                        core::arch::asm!(
                            concat!("/* {0", $register, "} */"),
                            inout(reg) word,
                            options(pure, nomem, nostack, preserves_flags)
                        );
                    }
                    word
                }
                #[cfg(not(target_arch = "x86_64"))]
                self
            }
        }
    )+ };
}
word!(u16: ":x", shifted as u32; u32: ":e", shifted as u32; u64: ":r", shifted as u64;);

/// Nine bytes: two words that overlap.
#[derive(Clone, Copy, Default)]
pub(crate) struct Nine(u64, u64);

impl Nine {
    /// The 64 bits from bit `shift` (0..8) of the first word on; the second one begins a byte later.
    #[inline(always)]
    pub(crate) fn window(first: u64, second: u64, shift: u8) -> u64 {
        (first >> shift) | (second << (8 - shift))
    }
}

impl std::ops::BitXor for Nine {
    type Output = Self;

    #[inline(always)]
    fn bitxor(self, other: Self) -> Self {
        Self(self.0 ^ other.0, self.1 ^ other.1)
    }
}

impl Word for Nine {
    const BYTES: usize = 9;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's promise, for nine bytes.
        unsafe { Self(u64::load(from), u64::load(from.add(1))) }
    }

    #[inline(always)]
    fn cell<V: Value>(self, shift: u8) -> V {
        V::of_word(Self::window(self.0, self.1, shift))
    }

    #[inline(always)]
    fn opaque(self) -> Self {
        Self(self.0.opaque(), self.1.opaque())
    }
}

/// Where the words of a block of keys stand in a table, `READS` for each key.
///
/// All of them lie in the table: that is seen to when they are [`put`](Self::put), in a loop of
/// vector instructions, so that loads need no checks.
#[derive(Clone, Copy)]
pub(crate) struct Places<'a, W, const READS: usize> {
    bytes: &'a [u8],
    /// The last byte at which a word can begin.
    last: u32,
    at: [[u32; BATCH]; READS],
    word: std::marker::PhantomData<W>,
}

impl<'a, W: Word, const READS: usize> Places<'a, W, READS> {
    /// Places in a table, the first word for all.
    ///
    /// # Panics
    /// If it has no room for a word, or 4 GB and more.
    #[inline(always)]
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        assert!(bytes.len() >= W::BYTES && bytes.len() >> 32 == 0, "size of a table");
        let last = (bytes.len() - W::BYTES) as u32;
        Self { bytes, last, at: [[0; BATCH]; READS], word: std::marker::PhantomData }
    }

    /// Sets a place of a key: the byte at which the word begins, or the last one that is possible.
    #[inline(always)]
    pub(crate) fn put(&mut self, read: usize, key: usize, at: u32) {
        self.at[read][key] = at.min(self.last);
    }

    /// A word.
    #[inline(always)]
    fn load(&self, read: usize, key: usize) -> W {
        let at = self.at[read][key].opaque() as usize;
        // SAFETY: `at` is at most `last` (only `new` and `put` write places), so the word ends
        // inside of `bytes`.
        unsafe { W::load(self.bytes.as_ptr().add(at)) }
    }

    /// For each key the xor of its words.
    #[inline(always)]
    pub(crate) fn xor_words(&self) -> [W; BATCH] {
        let mut out = [W::default(); BATCH];
        for key in 0..BATCH {
            let mut word = self.load(0, key);
            for read in 1..READS {
                word = word ^ self.load(read, key);
            }
            // Without this the compiler puts words together in vector registers, one insertion
            // after the other, which is slower than storing them.
            out[key] = word.opaque();
        }
        out
    }

    /// The words of each key.
    #[inline(always)]
    pub(crate) fn words(&self) -> [[W; BATCH]; READS] {
        let mut out = [[W::default(); BATCH]; READS];
        for read in 0..READS {
            for key in 0..BATCH {
                out[read][key] = self.load(read, key).opaque();
            }
        }
        out
    }

    /// Prefetches the line in which each word begins, if the table is so large that it is of use.
    #[inline(always)]
    pub(crate) fn fetch(&self) {
        self.fetch_byte(0);
    }

    /// The same for the line in which each word ends.
    #[inline(always)]
    pub(crate) fn fetch_ends(&self) {
        self.fetch_byte(W::BYTES - 1);
    }

    #[inline(always)]
    fn fetch_byte(&self, number: usize) {
        if self.bytes.len() >= PREFETCH_FROM {
            for read in 0..READS {
                for key in 0..BATCH {
                    crate::prefetch(self.bytes, self.at[read][key].opaque() as usize + number);
                }
            }
        }
    }
}
