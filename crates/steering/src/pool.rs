//! The backends of a service, as steering sees them.

use crate::ids::BackendId;

/// What a backend may get.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// New connections in proportion to the weight, and its own.
    Serving,
    /// Its own connections only: draining, or weight 0.
    Draining,
    /// Down by its health check. It keeps its connections: if it is dead nothing is lost by that,
    /// and if the check was wrong nothing breaks. But a SYN goes elsewhere, even if it looks like
    /// a repetition.
    Down,
}

/// A backend of a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Number in the data plane.
    pub backend: BackendId,
    /// Stable name; placement derives from it.
    pub name: String,
    /// Share of new connections, relative to the other members.
    pub weight: u32,
    /// What it may get.
    pub role: Role,
}

impl Member {
    /// The weight that counts: 0 unless serving.
    pub fn effective_weight(&self) -> u32 {
        match self.role {
            Role::Serving => self.weight,
            Role::Draining | Role::Down => 0,
        }
    }
}

/// Every backend as often as its effective weight says, in the order of the pool. There are at most
/// `most` entries, unless more backends have a weight; then, shares are off by one entry at most.
pub(crate) fn shares(members: &[Member], most: u64) -> Vec<u16> {
    let weights: Vec<(u16, u64)> = members
        .iter()
        .filter(|member| member.effective_weight() > 0)
        .map(|member| (member.backend.get(), member.effective_weight().into()))
        .collect();
    let total: u64 = weights.iter().map(|(_, weight)| weight).sum();
    let common = weights.iter().fold(0, |common, (_, weight)| gcd(common, *weight)).max(1);
    let entries = (total / common).min(most).max(weights.len() as u64);
    let share = |weight: u64| ((weight * entries + total / 2) / total.max(1)).max(1) as usize;
    let copies = |&(backend, weight): &(u16, u64)| std::iter::repeat_n(backend, share(weight));
    weights.iter().flat_map(copies).collect()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_weights() {
        let member = |(backend, weight): (u16, u32)| {
            let name = format!("b{backend}");
            Member { backend: BackendId::of(backend), name, weight, role: Role::Serving }
        };
        let shared = |weights: &[(u16, u32)], most| {
            let members: Vec<Member> = weights.iter().copied().map(member).collect();
            shares(&members, most)
        };
        assert_eq!(shared(&[(3, 20), (1, 40), (2, 0)], 100), [3, 1, 1]);
        assert_eq!(shared(&[], 100), []);
        let all = shared(&[(0, 65_535), (1, 32_768), (2, 1)], 4_096);
        let count = |of| all.iter().filter(|&&backend| backend == of).count();
        assert_eq!([count(0), count(1), count(2)], [2_731, 1_365, 1]);
        assert_eq!(shared(&[(0, 7), (1, 5), (2, 3)], 2), [0, 1, 2]);
    }
}
