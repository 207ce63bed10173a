//! The methods under simulation.

mod buckets;
mod cheetah;
mod concury;
mod connection_table;
mod hash;
mod jet;
mod placed;
mod residue;
mod ring;

pub use buckets::Buckets;
pub use cheetah::{Cheetah, Metric, Scheduler};
pub use concury::Concury;
pub use connection_table::{ConnectionTable, Release};
pub use hash::Modulo;
pub use jet::{Jet, Tracked, Tracking};
pub use placed::Over;
pub use residue::Residue;
pub use ring::Ring;

/// SplitMix64's finaliser: for small choices inside the methods.
pub(crate) fn mix(word: u64) -> u64 {
    let mut z = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Maps 64 uniform bits onto `0..n`.
pub(crate) fn below(hash: u64, n: usize) -> usize {
    ((u128::from(hash) * n as u128) >> 64) as usize
}
