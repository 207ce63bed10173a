//! Seeds that nobody gave.

use std::hash::{BuildHasher, RandomState};

/// Bits of a whole number that every reader of JSON holds: JavaScript's numbers, and those of jq, are floating-point
/// ones of 53 bits. A larger seed would be read as another one, and the run could not be repeated from its report.
const BITS: u32 = 53;

/// A seed for a run that nobody gave one, below 2^53.
pub fn draw_seed() -> u64 {
    RandomState::new().hash_one(()) >> (u64::BITS - BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_differ_and_are_numbers_of_javascript() {
        let seeds: Vec<u64> = (0..100).map(|_| draw_seed()).collect();
        assert!(seeds.iter().all(|&seed| seed as f64 as u64 == seed && seed < 1 << BITS));
        assert!(seeds.windows(2).all(|pair| pair[0] != pair[1]), "{seeds:?}");
    }
}
