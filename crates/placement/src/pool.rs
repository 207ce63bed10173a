//! Who takes part: candidates, members, the working set and the horizon.

use crate::score::{hash_name, inverse, score};

/// The slot value that stands for "no backend".
pub const NONE: u16 = 0xffff;

/// A backend that may get a share of the new flows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate<'a> {
    /// The stable identity. The backend's place follows from it alone, so two balancers
    /// that know the backend by the same name build the same table.
    pub name: &'a str,
    /// What a lookup answers. Any number but [`NONE`].
    pub backend: u16,
    /// The share of new flows, in proportion to the other candidates. Zero: none.
    pub weight: u32,
}

/// Why a change of the pool is refused. Nothing has changed then.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PoolError {
    /// The name, or one that hashes to the same 64 bits, is in the pool.
    #[error("backend {0}: its name is in the pool already")]
    DuplicateName(u16),
    /// The number is in the pool.
    #[error("backend {0} is in the pool already")]
    DuplicateBackend(u16),
    /// The number is the one that marks "no backend".
    #[error("{NONE} is reserved, it cannot number a backend")]
    ReservedBackend,
    /// The backend is not in the working set.
    #[error("backend {0} is not in the working set")]
    NotWorking(u16),
    /// The backend is not on the horizon.
    #[error("backend {0} is not on the horizon")]
    NotInHorizon(u16),
    /// The structure has no room for the weight.
    #[error("room for {room} more points or buckets, {wanted} wanted")]
    NoRoom {
        /// Units of weight that are left.
        room: u64,
        /// Units of weight that the change needs.
        wanted: u64,
    },
    /// A size, capacity or number of copies that cannot be had.
    #[error("size {size} is not between 1 and {max}")]
    Size {
        /// The size that was asked for.
        size: u32,
        /// The largest size that can be had.
        max: u32,
    },
}

/// A backend in the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Member {
    /// The hash of its name.
    pub seed: u64,
    /// 2^63 over the weight, rounded down; 0 for weight 0 ([`inverse`]).
    inverse: u64,
    pub weight: u32,
    pub backend: u16,
}

impl Member {
    pub fn with_weight(self, weight: u32) -> Self {
        Self { weight, inverse: inverse(weight), ..self }
    }
}

/// A score and who has it. The order is that of the race: lower is better, and the seed
/// decides between equals, so that neither numbers nor order of arrival matter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Best {
    pub score: u64,
    pub seed: u64,
    pub backend: u16,
}

impl Best {
    pub const NOBODY: Self = Self { score: u64::MAX, seed: u64::MAX, backend: NONE };

    pub fn backend(self) -> Option<u16> {
        (self.backend != NONE).then_some(self.backend)
    }
}

/// A set of members, in the order of their seeds.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Roster {
    members: Vec<Member>,
}

impl Roster {
    pub fn iter(&self) -> impl Iterator<Item = &Member> {
        self.members.iter()
    }

    pub fn find(&self, backend: u16) -> Option<Member> {
        self.members.iter().find(|member| member.backend == backend).copied()
    }

    fn insert(&mut self, member: Member) {
        let place = self.members.partition_point(|other| other.seed < member.seed);
        self.members.insert(place, member);
    }

    fn take(&mut self, backend: u16) -> Option<Member> {
        let place = self.members.iter().position(|member| member.backend == backend)?;
        Some(self.members.remove(place))
    }

    /// The member's score for a key; [`Best::NOBODY`] without weight.
    #[inline(always)]
    pub fn score(member: &Member, key: u64) -> Best {
        if member.weight == 0 {
            return Best::NOBODY;
        }
        let score = score(member.seed, member.inverse, key);
        Best { score, seed: member.seed, backend: member.backend }
    }

    /// The winner for a key.
    #[inline]
    pub fn best(&self, key: u64) -> Best {
        self.members.iter().map(|m| Self::score(m, key)).fold(Best::NOBODY, Best::min)
    }
}

/// The working set and the horizon. A name or number is in one of them at most.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Pools {
    pub working: Roster,
    pub horizon: Roster,
}

impl Pools {
    /// The member that the candidate would become.
    pub fn check(&self, candidate: &Candidate<'_>) -> Result<Member, PoolError> {
        let &Candidate { name, backend, weight } = candidate;
        self.check_identity(hash_name(name), backend, weight)
    }

    /// The same for a name that is known by its hash.
    pub fn check_identity(
        &self,
        seed: u64,
        backend: u16,
        weight: u32,
    ) -> Result<Member, PoolError> {
        if backend == NONE {
            return Err(PoolError::ReservedBackend);
        }
        for member in self.working.iter().chain(self.horizon.iter()) {
            if member.backend == backend {
                return Err(PoolError::DuplicateBackend(backend));
            }
            if member.seed == seed {
                return Err(PoolError::DuplicateName(backend));
            }
        }
        Ok(Member { seed, inverse: inverse(weight), weight, backend })
    }

    pub fn find_working(&self, backend: u16) -> Result<Member, PoolError> {
        self.working.find(backend).ok_or(PoolError::NotWorking(backend))
    }

    pub fn add(&mut self, member: Member) {
        self.working.insert(member);
    }

    pub fn add_horizon(&mut self, member: Member) {
        self.horizon.insert(member);
    }

    pub fn remove(&mut self, backend: u16) -> Result<Member, PoolError> {
        self.working.take(backend).ok_or(PoolError::NotWorking(backend))
    }

    pub fn remove_horizon(&mut self, backend: u16) -> Result<Member, PoolError> {
        self.horizon.take(backend).ok_or(PoolError::NotInHorizon(backend))
    }

    pub fn admit(&mut self, backend: u16) -> Result<Member, PoolError> {
        let member = self.remove_horizon(backend)?;
        self.working.insert(member);
        Ok(member)
    }

    pub fn retire(&mut self, backend: u16) -> Result<Member, PoolError> {
        let member = self.remove(backend)?;
        self.horizon.insert(member);
        Ok(member)
    }

    /// Replaces a working member by itself with another weight.
    pub fn reweight(&mut self, backend: u16, weight: u32) -> Result<Member, PoolError> {
        let member = self.remove(backend)?.with_weight(weight);
        self.working.insert(member);
        Ok(member)
    }
}
