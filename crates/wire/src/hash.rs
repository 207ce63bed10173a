//! The keyed 64-bit flow hash: the same function here and in the BPF program (`hash.h`).
//!
//! What it must do, and how it does it:
//!
//! * **Cheap in BPF.** There is no CRC and no 128-bit product there. The mixer uses two 64-bit
//!   products and three xor-shifts. One word takes 15 BPF instructions, three of which load the
//!   key (12 on x86-64), an IPv4 flow 18, an IPv6 flow 43 (`scripts/hash-instructions` counts).
//! * **No collision for IPv4.** Inside one service only source address and ports vary: 64 bits for
//!   IPv4. The mixer is a bijection for any key, so two different IPv4 flows of a service never
//!   share a hash. IPv6 flows run through three bijective rounds and collide like random values.
//! * **Keyed.** The xor words *and* the multipliers are secret, so a known input difference has no
//!   known output difference; who does not know the key cannot aim at a table row or a backend.
//! * **Independent seeds.** Two keys give two functions. (CRC with two seeds does not: the results
//!   differ by a constant, and a table rebuilt with another seed meets the same collisions.)

/// Key of the flow hash: two xor words and two odd multipliers. 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct HashKey {
    /// Added (xor) to the last word that is hashed.
    pub xor: u64,
    /// Added (xor) to the first word of a 16-byte address.
    pub xor_wide: u64,
    /// First multiplier, odd.
    pub mul1: u64,
    /// Second multiplier, odd.
    pub mul2: u64,
}

impl HashKey {
    /// Derives a key from a 64-bit seed with SplitMix64 (Steele, Lea, Flood 2014).
    pub fn from_seed(seed: u64) -> Self {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        Self::from_words([next(), next(), next(), next()])
    }

    /// Makes a key of four random words. The multipliers become odd, and one with too few or too
    /// many bits set (a poor multiplier; 1 random word in 400) is xored with an even pattern.
    pub fn from_words(words: [u64; 4]) -> Self {
        let multiplier = |word: u64| {
            let odd = word | 1;
            if (20..=44).contains(&odd.count_ones()) { odd } else { odd ^ 0xaaaa_aaaa_aaaa_aaaa }
        };
        Self {
            xor: words[0],
            xor_wide: words[1],
            mul1: multiplier(words[2]),
            mul2: multiplier(words[3]),
        }
    }

    /// The bijection on 64-bit words at the heart of the hash.
    #[inline(always)]
    pub fn mix(&self, word: u64) -> u64 {
        let mut x = word;
        x ^= x >> 32;
        x = x.wrapping_mul(self.mul1);
        x ^= x >> 29;
        x = x.wrapping_mul(self.mul2);
        x ^ (x >> 32)
    }

    /// Hashes one 64-bit word.
    #[inline(always)]
    pub fn hash_word(&self, word: u64) -> u64 {
        self.mix(word ^ self.xor)
    }

    /// Hashes an address (IPv4 as `::ffff:a.b.c.d`) and a 32-bit word, for flows the two ports.
    #[inline(always)]
    pub fn hash_address(&self, address: &[u8; 16], word: u32) -> u64 {
        let (high, low) = halves(address);
        if high == 0 && low as u32 == 0xffff_0000 {
            self.hash_word((low & !0xffff_ffff) | u64::from(word))
        } else {
            let wide = self.mix(low ^ self.mix(high ^ self.xor_wide));
            self.hash_word(wide ^ u64::from(word))
        }
    }
}

/// The two little-endian halves of an address, as the BPF program loads them.
#[inline(always)]
fn halves(address: &[u8; 16]) -> (u64, u64) {
    let word = |range: std::ops::Range<usize>| {
        let mut bytes = [0u8; 8];
        bytes.copy_from_slice(&address[range]);
        u64::from_le_bytes(bytes)
    };
    (word(0..8), word(8..16))
}

/// The two ports as the BPF program loads them: network order, source first.
#[inline(always)]
pub fn ports_word(src_port: u16, dst_port: u16) -> u32 {
    u32::from(src_port.to_be()) | u32::from(dst_port.to_be()) << 16
}

/// Maps 32 uniform bits onto `0..n` without a division (Lemire 2019).
#[inline(always)]
pub fn scale(hash32: u32, n: u32) -> u32 {
    ((u64::from(hash32) * u64::from(n)) >> 32) as u32
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

    /// Flipping any input bit flips each output bit with probability 1/2. With 4,096 samples a
    /// fair coin stays within 0.5 +- 0.05 (6.4 standard deviations) for all 64 x 64 pairs.
    #[test]
    fn avalanche_of_every_input_bit() {
        const SAMPLES: u32 = 4096;
        for seed in 0..8u64 {
            let key = HashKey::from_seed(seed.wrapping_mul(0x1234_5678_9abc_def1));
            for bit in 0..64 {
                let mut flips = [0u32; 64];
                for sample in 0..u64::from(SAMPLES) {
                    // Inputs as they come in practice: neighbouring addresses and ports.
                    let word = 0x0a00_0000_0050_0000 ^ (sample << 33) ^ (sample * 7);
                    let diff = key.hash_word(word) ^ key.hash_word(word ^ (1 << bit));
                    for (out, flip) in flips.iter_mut().enumerate() {
                        *flip += (diff >> out) as u32 & 1;
                    }
                }
                for (out, &flip) in flips.iter().enumerate() {
                    let share = f64::from(flip) / f64::from(SAMPLES);
                    assert!(
                        (share - 0.5).abs() < 0.05,
                        "seed {seed}: input bit {bit} flips output bit {out} with {share:.3}"
                    );
                }
            }
        }
    }

    #[test]
    fn ipv4_flows_never_collide() {
        let key = HashKey::from_seed(42);
        let mut seen = std::collections::HashSet::new();
        for n in 0..1u32 << 18 {
            let address = v4(0x0a4d_0000 | (n >> 8));
            assert!(seen.insert(key.hash_address(&address, n & 0xff)));
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
                    let a = first.hash_address(&v4(n), 80) >> shift & 15;
                    let b = second.hash_address(&v4(n), 80) >> shift & 15;
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
        assert_eq!(key.hash_word(0), key.mix(key.xor));
        assert_ne!(key.hash_address(&v6, 1), key.hash_address(&v6, 2));
        assert_eq!(ports_word(0x1234, 0x5678), 0x7856_3412);
        assert_eq!(scale(u32::MAX, 7), 6);
    }
}
