//! What is forwarded by: addresses, flows, names.

use rand::Rng;
use weir_hash::{HashKey, Key, Octets};
use weir_lookup::message::{BitReader, BitWriter, MessageError};

/// A key that can stand in a message and be drawn by seed.
pub trait FibKey: Key + Send + Sync + 'static {
    /// Bytes of a key in a frame or a message.
    const BYTES: usize;

    /// What such keys are called in reports, for example `MAC`.
    const NAME: &'static str;

    /// The key number `n` of an endless list without repetitions, the same for the same `list`.
    /// Lists with different numbers share no key that would show in a test.
    fn numbered(list: u32, n: u64) -> Self;

    /// Appends the key to a message.
    fn put(&self, out: &mut BitWriter);

    /// Reads a key from a message.
    ///
    /// # Errors
    /// [`MessageError::Length`] if the message ends before.
    fn get(input: &mut BitReader<'_>) -> Result<Self, MessageError>;

    /// A random key of a list, out of its first `n`.
    fn any(list: u32, n: u64, rng: &mut impl Rng) -> Self
    where
        Self: Sized,
    {
        Self::numbered(list, rng.random_range(0..n))
    }
}

/// A MAC address in the low 48 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Mac(pub u64);

impl Mac {
    /// From the six bytes of a frame.
    #[inline]
    pub fn from_octets(octets: [u8; 6]) -> Self {
        let mut word = [0; 8];
        word[2..].copy_from_slice(&octets);
        Self(u64::from_be_bytes(word))
    }

    /// The six bytes as they stand in a frame.
    pub fn octets(self) -> [u8; 6] {
        let [_, _, octets @ ..] = self.0.to_be_bytes();
        octets
    }
}

/// An IPv4 address, as a number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ipv4(pub u32);

/// An IPv6 address, 16 bytes in network order.
pub type Ipv6 = Octets<16>;
/// A flow: source and destination address and port, and protocol, 104 bits.
pub type Flow = Octets<13>;
/// The name of a content: 45 bytes, as the dissertation's experiments have them.
pub type ContentName = Octets<45>;
/// The URL of a content: 155 bytes, as the dissertation's experiments have them.
pub type Url = Octets<155>;

impl Key for Mac {
    #[inline(always)]
    fn hash(&self, key: &HashKey) -> u64 {
        key.hash_word(self.0)
    }
}

impl Key for Ipv4 {
    #[inline(always)]
    fn hash(&self, key: &HashKey) -> u64 {
        key.hash_word(self.0.into())
    }
}

/// A bijection on `bits`-wide numbers, by the list's number: so that a list has no repetitions.
fn permute(list: u32, n: u64, bits: u32) -> u64 {
    let mask = u64::MAX >> (64 - bits);
    let mut x = n & mask;
    let odd = 0x9e37_79b9_7f4a_7c15u64.wrapping_add(u64::from(list) << 33);
    for round in 0..3u64 {
        x = x.wrapping_mul(odd | 1).wrapping_add(u64::from(list) ^ round) & mask;
        x ^= x >> (bits / 2);
    }
    x
}

impl FibKey for Mac {
    const BYTES: usize = 6;
    const NAME: &'static str = "MAC";

    fn numbered(list: u32, n: u64) -> Self {
        // Locally administered, unicast; two bits of it say which list (numbers modulo four).
        let low = permute(list, n, 38);
        Self(0x0200_0000_0000 | u64::from(list & 3) << 38 | low)
    }

    fn put(&self, out: &mut BitWriter) {
        out.put(self.0, 48);
    }

    fn get(input: &mut BitReader<'_>) -> Result<Self, MessageError> {
        input.get(48).map(Self)
    }
}

impl FibKey for Ipv4 {
    const BYTES: usize = 4;
    const NAME: &'static str = "IPv4";

    fn numbered(list: u32, n: u64) -> Self {
        Self((list & 0xf) << 28 | permute(list, n, 28) as u32)
    }

    fn put(&self, out: &mut BitWriter) {
        out.put(self.0.into(), 32);
    }

    fn get(input: &mut BitReader<'_>) -> Result<Self, MessageError> {
        input.get(32).map(|word| Self(word as u32))
    }
}

/// What fills a key of N bytes beside its number.
fn filled<const N: usize>(list: u32, n: u64) -> Octets<N> {
    let mut bytes = [0u8; N];
    let key = HashKey::from_seed(n ^ u64::from(list) << 40);
    let readable = N >= 45;
    for (at, chunk) in bytes.chunks_mut(8).enumerate() {
        let word = key.hash_word(at as u64).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    if readable {
        const LETTERS: &[u8; 64] =
            b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
        bytes.iter_mut().for_each(|byte| *byte = LETTERS[usize::from(*byte & 63)]);
        const PREFIX: &[u8] = b"http://content.example/";
        if N > 100 {
            bytes[..PREFIX.len()].copy_from_slice(PREFIX);
        }
    }
    // The number itself, so that no two keys of a list are equal: ten letters or eight bytes.
    let tail = N - 10..N;
    for (place, byte) in bytes[tail].iter_mut().enumerate() {
        *byte = match readable {
            true => b'a' + (n >> (4 * place) & 15) as u8 + (list & 1) as u8 * 9,
            false if place < 2 => (list >> (8 * place)) as u8,
            false => (n >> (8 * (place - 2))) as u8,
        };
    }
    Octets(bytes)
}

macro_rules! octets_key {
    ($bytes:literal, $name:literal) => {
        impl FibKey for Octets<$bytes> {
            const BYTES: usize = $bytes;
            const NAME: &'static str = $name;

            fn numbered(list: u32, n: u64) -> Self {
                filled(list, n)
            }

            fn put(&self, out: &mut BitWriter) {
                out.put_bytes(&self.0);
            }

            fn get(input: &mut BitReader<'_>) -> Result<Self, MessageError> {
                let mut bytes = [0; $bytes];
                input.get_bytes(&mut bytes)?;
                Ok(Self(bytes))
            }
        }
    };
}

octets_key!(16, "IPv6");
octets_key!(13, "5-tuple");
octets_key!(45, "name of 45 B");
octets_key!(155, "URL of 155 B");

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::fmt::Debug;
    use std::hash::Hash;

    fn distinct<K: FibKey + Hash + Debug>() {
        let mut seen = HashSet::new();
        for list in [0, 1, 2] {
            for n in 0..50_000 {
                assert!(seen.insert(K::numbered(list, n)), "{} {list} {n}", K::NAME);
            }
        }
        let mut out = BitWriter::default();
        let key = K::numbered(1, 7);
        key.put(&mut out);
        let bytes = out.finish();
        assert_eq!(bytes.len(), K::BYTES);
        assert_eq!(K::get(&mut BitReader::new(&bytes)), Ok(key));
    }

    #[test]
    fn lists_have_no_repetitions_and_keys_come_back_from_messages() {
        distinct::<Mac>();
        distinct::<Ipv4>();
        distinct::<Ipv6>();
        distinct::<Flow>();
        distinct::<ContentName>();
        distinct::<Url>();
        let octets = [2, 0, 1, 2, 3, 4];
        assert_eq!(Mac::from_octets(octets).octets(), octets);
    }
}
