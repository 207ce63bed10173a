//! Byte strings as keys.

use crate::{HashKey, Key};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A byte string of any length, borrowed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Bytes<'a>(pub &'a [u8]);

/// A byte string of fixed length: a MAC address, a content's name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Octets<const N: usize>(pub [u8; N]);

/// XXH3 reads the string under one secret word, the keyed mixer of integers takes its result with
/// another, so two hash keys give two functions. XXH3 is no cryptographic hash: who can choose the
/// keys of a table should not be able to watch it.
#[inline(always)]
fn hash_bytes(bytes: &[u8], key: &HashKey) -> u64 {
    key.hash_word(xxh3_64_with_seed(bytes, key.xor_wide))
}

impl Key for Bytes<'_> {
    #[inline]
    fn hash(&self, key: &HashKey) -> u64 {
        hash_bytes(self.0, key)
    }
}

impl<const N: usize> Key for Octets<N> {
    #[inline]
    fn hash(&self, key: &HashKey) -> u64 {
        hash_bytes(&self.0, key)
    }
}
