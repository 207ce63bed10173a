//! Weighted random scores, in integers only.
//!
//! The logarithmic method gives a backend of weight w the score -w / ln(u), u being uniform in
//! (0, 1] and drawn from (backend, key); the highest wins, and each wins with probability
//! w / sum of weights. That is a race of exponential clocks, and the *lowest* -log2(u) / w is
//! the same winner, which is what is computed here.
//!
//! Balancers that place the same flow must agree to the last bit, and `ln` is not the same in
//! every C library. So there is no floating point: the logarithm is a table of 1,025 fixed-point
//! values, computed by the compiler with integers, and straight lines between them. The division
//! by w is a product with its reciprocal, rounded down. Both steps are monotone, so a larger u
//! or a larger weight never loses to its smaller self. Lines between exact points of a concave
//! function err by at most one part in 4,096, next to u = 1, where winners are: a share is off
//! by less than 0.05 % of itself.

/// Fraction bits of a cost. A cost is at most 64, so it fits 63 bits and its end point.
const FRACTION: u32 = 57;
/// Lines per octave of the logarithm: 2 to this power.
const INDEX_BITS: u32 = 10;
const LINES: usize = 1 << INDEX_BITS;

/// `(1 - log2(1 + i / 1024)) * 2^57`: 8 KiB, which stay in a first-level cache.
static LOG: [u64; LINES + 1] = log_table();

const fn log_table() -> [u64; LINES + 1] {
    let mut table = [0; LINES + 1];
    let mut i = 0;
    while i < LINES {
        table[i] = (1 << FRACTION) - log2_of_mantissa((LINES + i) as u64);
        i += 1;
    }
    table
}

/// log2(x / 1024) for x in 1024..2048, by squaring: each squaring doubles the logarithm, and
/// its integer part is the next bit.
const fn log2_of_mantissa(x: u64) -> u64 {
    let mut y = x << (63 - INDEX_BITS);
    let mut log = 0;
    let mut bit = 0;
    while bit < FRACTION {
        let square = (y as u128 * y as u128) >> 63;
        log <<= 1;
        if square >> 64 != 0 {
            log |= 1;
            y = (square >> 1) as u64;
        } else {
            y = square as u64;
        }
        bit += 1;
    }
    log
}

#[inline(always)]
fn high_product(a: u64, b: u64) -> u64 {
    ((u128::from(a) * u128::from(b)) >> 64) as u64
}

/// -log2((x + 1) / 2^64), with 57 fraction bits. Never rises with x.
#[inline(always)]
pub(crate) fn cost(x: u64) -> u64 {
    let Some(v) = x.checked_add(1) else {
        return 0;
    };
    let octave = v.leading_zeros();
    let fraction = (v << octave) << 1;
    let line = (fraction >> (64 - INDEX_BITS)) as usize;
    let (left, right) = (LOG[line], LOG[line + 1]);
    // The line falls by less than its height over the whole of its width.
    (u64::from(octave) << FRACTION) + left - high_product(left - right, fraction << INDEX_BITS)
}

/// The reciprocal that [`score`] multiplies with; zero for weight zero.
pub(crate) fn inverse(weight: u32) -> u64 {
    (1_u64 << 63).checked_div(u64::from(weight)).unwrap_or(0)
}

/// The score of a backend for a key; the lowest wins. At most 2^62.
#[inline(always)]
pub(crate) fn score(seed: u64, inverse: u64, key: u64) -> u64 {
    high_product(cost(mix(seed ^ key)), inverse)
}

/// The finalizer of MurmurHash3 (A. Appleby): a bijection in which each input bit flips each
/// output bit with probability one half. The same as in the programs of C: two products.
#[inline(always)]
pub(crate) const fn mix(word: u64) -> u64 {
    let mut hash = word;
    hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}

/// An odd number without structure (2^64 over the golden ratio), to step through seeds.
pub(crate) const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// FNV-1a, then [`mix`], which FNV needs: its high bits hardly depend on the last letters,
/// and names differ in the last letters.
///
/// Not keyed, so that balancers agree without sharing a secret. An outsider does not
/// choose the names; what he chooses, the flow, is hashed with a key elsewhere.
pub(crate) fn hash_name(name: &str) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in name.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    mix(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(x: u64) -> f64 {
        // ln_1p of the distance to one keeps the digits that 64-bit floats lose there.
        let below = (u64::MAX - x) as f64 / 2f64.powi(64);
        if below < 0.5 {
            -(-below).ln_1p() / std::f64::consts::LN_2
        } else {
            64.0 - ((x as f64) + 1.0).log2()
        }
    }

    #[test]
    fn table_points_are_the_logarithm() {
        for (i, &value) in LOG.iter().enumerate() {
            let log = 1.0 - (1.0 + i as f64 / LINES as f64).log2();
            assert!((value as f64 / (1u64 << FRACTION) as f64 - log).abs() < 1e-15, "{i}");
        }
    }

    #[test]
    fn cost_is_within_a_4096th_of_the_logarithm() {
        let mut x = 1u64;
        for step in 0..200_000u64 {
            x = mix(x.wrapping_add(STEP));
            // Every magnitude of the distance to one, and of the distance to zero.
            let shift = (step % 40) as u32;
            for x in [x, x >> shift, u64::MAX - (x >> shift)] {
                let (is, want) = (cost(x) as f64 / (1u64 << FRACTION) as f64, exact(x));
                let error = (is - want).abs();
                assert!(error <= want / 4090.0 + 1e-15, "{x:#x}: {is} for {want}");
            }
        }
        assert_eq!(cost(u64::MAX), 0);
        assert_eq!(cost(0), 64 << FRACTION);
    }

    #[test]
    fn cost_never_rises() {
        let mut x = 7u64;
        for step in 0..200_000 {
            x = mix(x.wrapping_add(STEP));
            // Neighbours, and both sides of a table point.
            let point = ((x >> 54) << 54).wrapping_sub(3) >> (step % 20);
            for base in [x, point] {
                for near in 0..6 {
                    let left = base.saturating_add(near);
                    assert!(cost(left) >= cost(left.saturating_add(1)), "{left:#x}");
                }
            }
        }
    }

    #[test]
    fn more_weight_never_scores_worse() {
        for key in 0..2_000 {
            let mut last = u64::MAX;
            for weight in [1, 2, 3, 10, 99, 100, 65_535, 1 << 20, u32::MAX] {
                let score = score(42, inverse(weight), mix(key));
                assert!(score <= last);
                last = score;
            }
        }
    }

    /// Scores are the same on every machine: the digest was worked out apart, with the unbounded
    /// integers of a Python program.
    #[test]
    fn known_answers() {
        let digest = (0..10_000u64).fold(0, |digest, key| {
            mix(digest ^ score(hash_name("a"), inverse(key as u32 % 7 + 1), mix(key)))
        });
        assert_eq!((cost(1 << 63), digest), (1 << FRACTION, 10_378_648_594_603_134_521));
    }
}
