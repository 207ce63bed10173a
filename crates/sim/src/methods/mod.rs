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
pub use jet::{Jet, Tracked};
pub use placed::Over;
pub use residue::Residue;
pub use ring::Ring;

use crate::method::NOBODY;

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

/// Deals slots to servers, `(server, weight)`, in proportion to their weights. A slot changes its
/// owner only if that is gone or has too many.
pub(crate) fn deal(owners: &mut [u16], servers: &[(u16, u32)]) {
    let total: usize = servers.iter().map(|&(_, weight)| weight as usize).sum();
    if total == 0 {
        owners.fill(NOBODY);
        return;
    }
    let mut room = vec![0usize; usize::from(NOBODY) + 1];
    let mut upto = 0;
    for &(server, weight) in servers {
        let below = owners.len() * upto / total;
        upto += weight as usize;
        room[usize::from(server)] = owners.len() * upto / total - below;
    }
    for owner in owners.iter_mut() {
        match &mut room[usize::from(*owner)] {
            0 => *owner = NOBODY,
            room => *room -= 1,
        }
    }
    let short = servers
        .iter()
        .flat_map(|&(server, _)| std::iter::repeat_n(server, room[usize::from(server)]));
    let empty = owners.iter_mut().filter(|owner| **owner == NOBODY);
    empty.zip(short).for_each(|(owner, server)| *owner = server);
}
