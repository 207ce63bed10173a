//! Byte strings and flows as keys.

use crate::{HashKey, Key};
use weir_wire::FlowKey;
use weir_wire::hash::ports_word;
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

/// Addresses word by word through the keyed mixer, then ports and protocol. IPv4 takes two rounds,
/// else five; each round is a bijection of its word, so two flows that differ in one word never
/// collide, and others do as random numbers do.
impl Key for FlowKey {
    #[inline]
    fn hash(&self, key: &HashKey) -> u64 {
        let [src, dst] = [&self.src, &self.dst].map(halves);
        let is_ipv4 = |[high, low]: [u64; 2]| high == 0 && low as u32 == 0xffff_0000;
        let rest = u64::from(ports_word(self.src_port, self.dst_port))
            | u64::from(self.protocol.number()) << 32;
        let addresses = if is_ipv4(src) && is_ipv4(dst) {
            key.mix(key.xor_wide ^ (src[1] >> 32 | dst[1] & !0xffff_ffff))
        } else {
            let words = [src[0], src[1], dst[0], dst[1]];
            words.into_iter().fold(key.xor_wide, |sum, word| key.mix(sum ^ word))
        };
        key.hash_word(addresses ^ rest)
    }
}

/// The two little-endian halves of an address.
#[inline(always)]
fn halves(address: &[u8; 16]) -> [u64; 2] {
    [0, 8].map(|at| {
        let mut word = [0; 8];
        word.copy_from_slice(&address[at..at + 8]);
        u64::from_le_bytes(word)
    })
}
