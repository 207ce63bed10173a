//! Flows, services and pools of Concury's evaluation (section 6.1).

use weir_steering::{BackendId, Member, Role, StateKey};

/// Services of all of its networks.
pub const SERVICES: usize = 128;

/// Bits of a Dcode.
pub const BITS: u32 = 12;

/// Client number `n`: addresses and ports count up, as they do behind a NAT.
pub fn flow(n: u32) -> StateKey {
    let mut address = [0; 16];
    address[10..12].fill(0xff);
    address[12..].copy_from_slice(&(0x0a00_0000 + n / 1000).to_be_bytes());
    StateKey { address, src_port: (20_000 + n % 1000) as u16, dst_port: 443 }
}

/// As many backends of weight 1.
pub fn pool(backends: u16) -> Vec<Member> {
    (0..backends)
        .map(|backend| Member {
            backend: BackendId::of(backend),
            name: format!("b{backend}"),
            weight: 1,
            role: Role::Serving,
        })
        .collect()
}

/// How backends and states are shared out among the services.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// DIP-E: all services have as many.
    Even,
    /// DIP-V: from a quarter of the average to twice it.
    Varied,
}

/// Backends of each service, on average `mean`.
pub fn backends(sharing: Sharing, mean: u16) -> Vec<u16> {
    // Quarter, half, once and twice the average, as often as makes the average right: 8 to 64
    // around 32, 32 to 256 around 128.
    let quarters = [1, 2, 2, 4, 4, 4, 7, 8];
    (0..SERVICES)
        .map(|service| match sharing {
            Sharing::Even => mean,
            Sharing::Varied => mean * quarters[service % 8] / 4,
        })
        .collect()
}

/// States of each service, in proportion to its backends; they sum up to `states`.
pub fn states(backends: &[u16], states: usize) -> Vec<usize> {
    let total: usize = backends.iter().map(|&b| usize::from(b)).sum();
    let (mut before, mut given) = (0, 0);
    backends
        .iter()
        .map(|&b| {
            before += usize::from(b);
            let upto = states * before / total;
            let mine = upto - given;
            given = upto;
            mine
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_sum_up_and_keep_the_average() {
        for (sharing, mean) in [(Sharing::Even, 32), (Sharing::Varied, 32), (Sharing::Varied, 128)]
        {
            let of = backends(sharing, mean);
            assert_eq!(of.iter().map(|&b| usize::from(b)).sum::<usize>(), usize::from(mean) * 128);
            assert_eq!(states(&of, 1_000_003).iter().sum::<usize>(), 1_000_003);
        }
        let varied = backends(Sharing::Varied, 32);
        assert_eq!((varied.iter().min(), varied.iter().max()), (Some(&8), Some(&64)));
    }
}
