//! The key of the hash, and its mixers.
//!
//! What the hash must do, and how it does it:
//!
//! * **Cheap in BPF.** There is no CRC and no 128-bit product there. The mixer uses two 64-bit
//!   products and three xor-shifts. One word takes 15 BPF instructions, three of which load the
//!   key (12 on x86-64), an IPv4 flow 18, an IPv6 flow 43 (`scripts/hash-instructions` counts).
//! * **No collision of words.** The mixer is a bijection for any key, so two different words never
//!   share a hash. Inside one service only source address and ports of a flow vary, which is one
//!   word for IPv4. Longer keys run through a bijection for each word and collide like random
//!   values.
//! * **Keyed.** The xor words *and* the multipliers are secret, so a known input difference has no
//!   known output difference; who does not know the key cannot aim at a table row or a backend.
//! * **Independent seeds.** Two keys give two functions. (CRC with two seeds does not: the results
//!   differ by a constant, and a table rebuilt with another seed meets the same collisions.)

use rand_core::RngCore;

/// Key of the hash: two xor words and two odd multipliers, 32 bytes.
///
/// The same seed gives the same key, and the same key the same hashes, on every machine and in the
/// kernel. Keys stand in tables and snapshots as 32 bytes ([`Self::to_bytes`]).
///
/// ```
/// use weir_hash::HashKey;
///
/// let key = HashKey::from_seed(1);
/// assert_eq!(HashKey::from_bytes(&key.to_bytes()), key);
/// assert_ne!(key.hash_word(1), key.hash_word(2));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct HashKey {
    /// Added (xor) to the last word that is hashed.
    xor: u64,
    /// Added (xor) to the first word of what takes several.
    xor_wide: u64,
    /// The multiplier of the first product, odd.
    mul1: u64,
    /// The multiplier of the second product, odd.
    mul2: u64,
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

    /// Makes a key of the next four words of a random generator.
    pub fn from_rng(rng: &mut impl RngCore) -> Self {
        Self::from_words(std::array::from_fn(|_| rng.next_u64()))
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

    /// The key with the bytes of [`Self::to_bytes`], whatever its multipliers are.
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        let words = bytes.as_chunks().0;
        let word = |at: usize| u64::from_le_bytes(words[at]);
        Self { xor: word(0), xor_wide: word(1), mul1: word(2), mul2: word(3) }
    }

    /// The words one after the other, little-endian: how keys stand in tables and snapshots.
    pub fn to_bytes(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(self.words()) {
            *bytes = word.to_le_bytes();
        }
        bytes
    }

    /// The four words as `struct hash_key` of the BPF program has them: the xor word, the xor word
    /// of longer keys, and the two multipliers.
    #[inline(always)]
    pub fn words(&self) -> [u64; 4] {
        [self.xor, self.xor_wide, self.mul1, self.mul2]
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

    /// The first round of what takes several words: `mix(next ^ mix_first(first))` and so on, and
    /// [`Self::hash_word`] at the end. It has a secret word of its own, so that a long key and the
    /// short one that is its last word are unrelated.
    #[inline(always)]
    pub fn mix_first(&self, word: u64) -> u64 {
        self.mix(word ^ self.xor_wide)
    }

    /// Hashes one 64-bit word. Two different words never share a hash.
    #[inline(always)]
    pub fn hash_word(&self, word: u64) -> u64 {
        self.mix(word ^ self.xor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_key_comes_back_from_its_bytes_and_its_words() {
        for seed in 0..1_000 {
            let key = HashKey::from_seed(seed);
            assert_eq!(HashKey::from_bytes(&key.to_bytes()), key);
            assert_eq!(HashKey::from_words(key.words()), key);
            assert!(key.words()[2..].iter().all(|multiplier| multiplier % 2 == 1));
        }
    }

    /// What the function was when the first snapshots were written.
    #[test]
    fn known_answers() {
        let key = HashKey::from_seed(1);
        assert_eq!(key.words()[0], 0x910a_2dec_8902_5cc1);
        assert_eq!(key.hash_word(key.words()[0]), 0);
        assert_eq!(key.hash_word(0), key.mix(key.words()[0]));
        assert_eq!(key.mix_first(5), key.mix(5 ^ key.words()[1]));
        assert_eq!(crate::scale(u32::MAX, 7), 6);
    }
}
