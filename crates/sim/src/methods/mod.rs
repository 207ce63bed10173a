//! The methods under simulation: those of `weir_steering`, each through [`Steered`].

mod buckets;
mod cheetah;
mod flat;
mod hnlb;
mod jet;
mod memory;
mod placed;
mod pool;
mod registered;
mod residue;
mod steered;
mod tables;
mod tracking;

pub use buckets::Buckets;
pub use cheetah::{Cheetah, Cookies, Metric, Scheduler};
pub use flat::{Modulo, Ring};
pub use hnlb::{Card, Hnlb};
pub use jet::Jet;
pub use placed::Over;
pub use registered::{MethodError, Published};
pub use residue::Residue;
pub use steered::Steered;
pub use tables::{Connections, Eviction, Release};
pub use tracking::Tracked;

#[cfg(test)]
pub(crate) use memory::Remembered;
#[cfg(test)]
pub(crate) use steered::Face;

use crate::method::NOBODY;
use weir_steering::NO_BACKEND;

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

/// The server of an answer of `weir_steering`: [`NOBODY`] if it is none.
pub(crate) fn server(backend: u16) -> u16 {
    if backend >= NO_BACKEND { NOBODY } else { backend }
}
