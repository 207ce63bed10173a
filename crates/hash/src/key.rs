//! What is hashed: integers and byte strings.

use crate::HashKey;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A key that can be hashed under a [`HashKey`].
///
/// Two different keys must not collide under every hash key: a table that meets a collision it
/// cannot place draws another hash key and starts again.
///
/// ```
/// use weir_hash::{HashKey, Key};
///
/// #[derive(Clone, Copy, PartialEq, Eq)]
/// struct Mac([u8; 6]);
///
/// impl Key for Mac {
///     fn hash(&self, key: &HashKey) -> u64 {
///         let mut word = [0; 8];
///         word[..6].copy_from_slice(&self.0);
///         key.hash_word(u64::from_le_bytes(word))
///     }
/// }
/// ```
pub trait Key: Copy + Eq {
    /// 64 uniform bits. Structures take their positions from both halves, so both must be good.
    fn hash(&self, key: &HashKey) -> u64;
}

/// A key that can be written out and read back: what maps ask for whose messages carry whole keys.
pub trait FixedKey: Key {
    /// Bytes of a key.
    const BYTES: usize;

    /// The key as [`Self::BYTES`] bytes.
    fn to_bytes(&self) -> impl AsRef<[u8]>;

    /// The key with these bytes, if there is one.
    fn from_bytes(bytes: &[u8]) -> Option<Self>;
}

impl Key for u64 {
    #[inline(always)]
    fn hash(&self, key: &HashKey) -> u64 {
        key.hash_word(*self)
    }
}

impl FixedKey for u64 {
    const BYTES: usize = 8;

    fn to_bytes(&self) -> impl AsRef<[u8]> {
        self.to_le_bytes()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self::from_le_bytes)
    }
}

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
    key.hash_word(xxh3_64_with_seed(bytes, key.words()[1]))
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

impl<const N: usize> FixedKey for Octets<N> {
    const BYTES: usize = N;

    fn to_bytes(&self) -> impl AsRef<[u8]> {
        self.0
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comes_back<K: FixedKey + std::fmt::Debug>(key: K) {
        let bytes = key.to_bytes();
        assert_eq!(bytes.as_ref().len(), K::BYTES);
        assert_eq!(K::from_bytes(bytes.as_ref()), Some(key));
        assert_eq!(K::from_bytes(&bytes.as_ref()[1..]), None);
    }

    #[test]
    fn keys_come_back_from_their_bytes() {
        comes_back(0x0123_4567_89ab_cdefu64);
        comes_back(Octets(*b"a name"));
    }

    #[test]
    fn a_string_hashes_alike_borrowed_and_owned() {
        let key = HashKey::from_seed(3);
        assert_eq!(Bytes(b"a name").hash(&key), Octets(*b"a name").hash(&key));
        assert_ne!(Bytes(b"a name").hash(&key), Bytes(b"a name\0").hash(&key));
    }
}
