//! Flows under the keyed hash of `weir_hash`: which words of a packet are hashed, and in which
//! order. The BPF program's `hash.h` does the same.

use crate::{FlowKey, Protocol};
use weir_hash::{FixedKey, HashKey, Key};

/// Hashes an address (IPv4 as `::ffff:a.b.c.d`) and a 32-bit word, for flows the two ports.
///
/// Two IPv4 addresses with their words never share a hash; IPv6 takes three rounds and collides
/// like random values.
#[inline(always)]
pub fn hash_address(key: &HashKey, address: &[u8; 16], word: u32) -> u64 {
    let [high, low] = halves(address);
    if is_ipv4([high, low]) {
        key.hash_word((low & !0xffff_ffff) | u64::from(word))
    } else {
        let wide = key.mix(low ^ key.mix_first(high));
        key.hash_word(wide ^ u64::from(word))
    }
}

/// The two ports as the BPF program loads them: network order, source first.
#[inline(always)]
pub fn ports_word(src_port: u16, dst_port: u16) -> u32 {
    u32::from(src_port.to_be()) | u32::from(dst_port.to_be()) << 16
}

/// The two little-endian halves of an address, as the BPF program loads them.
#[inline(always)]
fn halves(address: &[u8; 16]) -> [u64; 2] {
    [0, 8].map(|at| {
        let mut word = [0; 8];
        word.copy_from_slice(&address[at..at + 8]);
        u64::from_le_bytes(word)
    })
}

/// Whether the halves are those of `::ffff:a.b.c.d`.
#[inline(always)]
fn is_ipv4([high, low]: [u64; 2]) -> bool {
    high == 0 && low as u32 == 0xffff_0000
}

/// Addresses word by word through the keyed mixer, then ports and protocol. IPv4 takes two rounds,
/// else five; each round is a bijection of its word, so two flows that differ in one word never
/// collide, and others do as random numbers do.
impl Key for FlowKey {
    #[inline]
    fn hash(&self, key: &HashKey) -> u64 {
        let [src, dst] = [&self.src, &self.dst].map(halves);
        let rest = u64::from(ports_word(self.src_port, self.dst_port))
            | u64::from(self.protocol.number()) << 32;
        let addresses = if is_ipv4(src) && is_ipv4(dst) {
            key.mix_first(src[1] >> 32 | dst[1] & !0xffff_ffff)
        } else {
            let first = key.mix_first(src[0]);
            [src[1], dst[0], dst[1]].into_iter().fold(first, |sum, word| key.mix(sum ^ word))
        };
        key.hash_word(addresses ^ rest)
    }
}

/// Addresses, ports in network order, protocol: 37 bytes.
impl FixedKey for FlowKey {
    const BYTES: usize = 37;

    fn to_bytes(&self) -> impl AsRef<[u8]> {
        let mut out = [0; Self::BYTES];
        out[..16].copy_from_slice(&self.src);
        out[16..32].copy_from_slice(&self.dst);
        out[32..34].copy_from_slice(&self.src_port.to_be_bytes());
        out[34..36].copy_from_slice(&self.dst_port.to_be_bytes());
        out[36] = self.protocol.number();
        out
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; 37] = bytes.try_into().ok()?;
        let (addresses, rest) = bytes.as_chunks::<16>();
        Some(Self {
            src: addresses[0],
            dst: addresses[1],
            src_port: u16::from_be_bytes([rest[0], rest[1]]),
            dst_port: u16::from_be_bytes([rest[2], rest[3]]),
            protocol: Protocol::from_number(rest[4])?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(n: u32) -> [u8; 16] {
        let mut a = [0u8; 16];
        a[10] = 0xff;
        a[11] = 0xff;
        a[12..].copy_from_slice(&n.to_be_bytes());
        a
    }

    #[test]
    fn ipv4_flows_never_collide() {
        let key = HashKey::from_seed(42);
        let mut seen = std::collections::HashSet::new();
        for n in 0..1u32 << 18 {
            let address = v4(0x0a4d_0000 | (n >> 8));
            assert!(seen.insert(hash_address(&key, &address, n & 0xff)));
        }
    }

    /// Chi-squared of the joint distribution of 4 + 4 bits under two keys: 255 degrees of freedom,
    /// 99.99 % below 349. A CRC under two seeds puts everything into 16 of the 256 cells.
    #[test]
    fn two_keys_are_two_functions() {
        for shift in [0, 28, 60] {
            for pair in 0..16u64 {
                let (first, second) = (HashKey::from_seed(pair), HashKey::from_seed(pair + 1000));
                let mut cells = [0f64; 256];
                const N: u32 = 1 << 16;
                for n in 0..N {
                    let a = hash_address(&first, &v4(n), 80) >> shift & 15;
                    let b = hash_address(&second, &v4(n), 80) >> shift & 15;
                    cells[(a << 4 | b) as usize] += 1.0;
                }
                let expected = f64::from(N) / 256.0;
                let chi: f64 = cells.iter().map(|c| (c - expected).powi(2) / expected).sum();
                assert!(chi < 360.0, "keys {pair}: chi-squared {chi:.0} at bit {shift}");
            }
        }
    }

    /// The known answer that the C twin is held to as well (crates/dataplane/tests).
    #[test]
    fn known_answers() {
        let key = HashKey::from_seed(1);
        let v6 = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
        assert_ne!(hash_address(&key, &v6, 1), hash_address(&key, &v6, 2));
        assert_eq!(ports_word(0x1234, 0x5678), 0x7856_3412);
        assert_eq!(
            hash_address(&key, &v4(0x0a00_0001), ports_word(80, 443)),
            key.hash_word(0x0100_000a_bb01_5000)
        );
    }

    #[test]
    fn flows_come_back_from_their_bytes() {
        let [src, dst] = ["10.0.0.1:5555", "[2001:db8::2]:53"].map(|text| text.parse().unwrap());
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            for flow in [FlowKey::new(src, dst, protocol), FlowKey::new(dst, src, protocol)] {
                let mut bytes = flow.to_bytes().as_ref().to_vec();
                assert_eq!(bytes.len(), FlowKey::BYTES);
                assert_eq!(FlowKey::from_bytes(&bytes), Some(flow));
                assert_eq!(FlowKey::from_bytes(&bytes[1..]), None);
                bytes[36] = 1;
                assert_eq!(FlowKey::from_bytes(&bytes), None);
            }
        }
    }
}
