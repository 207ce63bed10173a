//! AES-128 as a program without instructions for it runs it: tables of words, and expanded keys.
//!
//! The crate `aes` encrypts and decrypts in Rust. This is what the kernel's program needs instead:
//! a round is sixteen look-ups in tables of 256 words, each of which holds what a byte contributes
//! to a column (FIPS 197 section 5, and the implementation that the authors of Rijndael propose in
//! section 5.2 of theirs). Columns are words as they stand in memory, the first byte lowest.
//!
//! The program is not secret from who runs on the same processor: look-ups by secret bytes leave
//! traces in its caches.

/// Words of an expanded key: eleven round keys.
pub const KEY_WORDS: usize = 44;

/// Tables of rounds: what the byte in each of the four places of a column contributes.
pub type Tables = [[u32; 256]; 4];

/// FIPS 197 section 4.2: times x, modulo x^8 + x^4 + x^3 + x + 1.
const fn double(a: u8) -> u8 {
    a << 1 ^ if a & 0x80 != 0 { 0x1b } else { 0 }
}

/// The product in that field.
const fn times(a: u8, b: u8) -> u8 {
    let (mut power, mut sum, mut bit) = (a, 0, 0);
    while bit < 8 {
        if b >> bit & 1 != 0 {
            sum ^= power;
        }
        power = double(power);
        bit += 1;
    }
    sum
}

/// SubBytes, section 5.1.1: the inverse in the field, and an affine map.
pub fn substitution() -> [u8; 256] {
    std::array::from_fn(|a| {
        let inverse = (0..=255u8).find(|b| times(a as u8, *b) == 1).unwrap_or(0);
        (0..5).fold(0x63, |sum, by| sum ^ inverse.rotate_left(by))
    })
}

/// InvSubBytes, section 5.3.2.
pub fn inverse_substitution() -> [u8; 256] {
    let mut inverse = [0; 256];
    for (from, to) in (0..=255u8).zip(substitution()) {
        inverse[usize::from(to)] = from;
    }
    inverse
}

/// Four tables: the same words, turned by a byte for each place.
fn tables(of: [u8; 256], factors: [u8; 4]) -> Tables {
    std::array::from_fn(|place| {
        of.map(|byte| u32::from_le_bytes(factors.map(|factor| times(byte, factor))))
            .map(|word| word.rotate_left(8 * place as u32))
    })
}

/// SubBytes and MixColumns at once (section 5.1.3).
pub fn encryption() -> Tables {
    tables(substitution(), [2, 1, 1, 3])
}

/// InvSubBytes and InvMixColumns at once (section 5.3.3).
pub fn decryption() -> Tables {
    tables(inverse_substitution(), [14, 9, 13, 11])
}

/// The round keys for encryption, section 5.2.
pub fn expand(key: &[u8; 16]) -> [u32; KEY_WORDS] {
    let (sbox, mut words, mut constant) = (substitution(), [0; KEY_WORDS], 1);
    let (given, _) = key.as_chunks();
    for (word, bytes) in words.iter_mut().zip(given) {
        *word = u32::from_le_bytes(*bytes);
    }
    for at in 4..KEY_WORDS {
        let mut before = words[at - 1];
        if at % 4 == 0 {
            let turned = before.rotate_right(8).to_le_bytes();
            before = u32::from_le_bytes(turned.map(|byte| sbox[usize::from(byte)])) ^ constant;
            constant = double(constant as u8).into();
        }
        words[at] = words[at - 4] ^ before;
    }
    words
}

/// The round keys for decryption by the equivalent inverse cipher, section 5.3.5, in the order of
/// their use.
pub fn expand_inverse(key: &[u8; 16]) -> [u32; KEY_WORDS] {
    let (words, sbox, tables) = (expand(key), substitution(), decryption());
    std::array::from_fn(|at| {
        let (round, column) = (at / 4, at % 4);
        let word = words[(10 - round) * 4 + column];
        if matches!(round, 0 | 10) {
            return word;
        }
        let bytes = word.to_le_bytes();
        (0..4)
            .fold(0, |sum, place| sum ^ tables[place][usize::from(sbox[usize::from(bytes[place])])])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::aes::Aes128;
    use ::aes::cipher::{BlockDecrypt, BlockEncrypt, KeyInit};

    /// The rounds as the program takes them. `turn`: the column that the byte in the second place
    /// is from, behind a column's own.
    fn run(
        keys: &[u32; KEY_WORDS],
        tables: &Tables,
        last: &[u8; 256],
        turn: usize,
        block: [u8; 16],
    ) -> [u8; 16] {
        let mut state: [u32; 4] =
            std::array::from_fn(|i| u32::from_le_bytes(block.as_chunks().0[i]) ^ keys[i]);
        let byte = |state: &[u32; 4], column: usize, place: usize| {
            usize::from(state[(column + place * turn) % 4].to_le_bytes()[place])
        };
        for round in 1..10 {
            state = std::array::from_fn(|column| {
                (0..4).fold(keys[round * 4 + column], |sum, place| {
                    sum ^ tables[place][byte(&state, column, place)]
                })
            });
        }
        let end: [[u8; 4]; 4] = std::array::from_fn(|column| {
            let bytes = std::array::from_fn(|place| last[byte(&state, column, place)]);
            (u32::from_le_bytes(bytes) ^ keys[40 + column]).to_le_bytes()
        });
        end.as_flattened().try_into().expect("four times four bytes")
    }

    #[test]
    fn tables_encrypt_and_decrypt_as_the_standard() {
        let mut word = 1u64;
        let mut random = || {
            std::array::from_fn(|_| {
                word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                (word >> 56) as u8
            })
        };
        for _ in 0..200 {
            let (key, block): ([u8; 16], [u8; 16]) = (random(), random());
            let cipher = Aes128::new(&key.into());
            let mut wanted = block.into();
            cipher.encrypt_block(&mut wanted);
            let made = run(&expand(&key), &encryption(), &substitution(), 1, block);
            assert_eq!(made, <[u8; 16]>::from(wanted));
            let mut wanted = block.into();
            cipher.decrypt_block(&mut wanted);
            let keys = expand_inverse(&key);
            let made = run(&keys, &decryption(), &inverse_substitution(), 3, block);
            assert_eq!(made, <[u8; 16]>::from(wanted));
        }
    }
}
