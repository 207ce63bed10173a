//! Where each row of JET's table would go: CH(W) and CH(W + H), as the pool changes.

use super::config::PLACEMENTS;
use crate::pool::{Member, Role};
use crate::table::NO_BACKEND;
use weir_placement::{Anchor, Candidate, Horizon, HrwTable, PoolError, Ring};

/// Points of a ring for each unit of weight.
const COPIES: u32 = 160;
/// Buckets of an anchor at least.
const BUCKETS: u32 = 1 << 10;

/// A placement of the rows.
#[derive(Clone, Debug)]
enum Placed {
    Table(HrwTable),
    Ring(Ring),
    Anchor(Box<Anchor>),
}

impl Placed {
    fn new(placement: u32, rows: u32, members: &[Member]) -> Result<Self, PoolError> {
        match PLACEMENTS.get(placement as usize) {
            Some(&"ring") => Ring::new(COPIES).map(Self::Ring),
            Some(&"anchor") => {
                let weights = members.iter().map(|member| u64::from(member.weight));
                // Twice what is there, so that walks are short and others may join.
                let wanted = (2 * weights.sum::<u64>()).next_power_of_two();
                let most = u64::from(Anchor::MAX_CAPACITY);
                let capacity = wanted.clamp(BUCKETS.into(), most) as u32;
                Ok(Self::Anchor(Box::new(Anchor::new(capacity)?)))
            }
            _ => HrwTable::new(rows).map(Self::Table),
        }
    }

    fn get(&self) -> &dyn Horizon {
        match self {
            Self::Table(table) => table,
            Self::Ring(ring) => ring,
            Self::Anchor(anchor) => &**anchor,
        }
    }

    fn get_mut(&mut self) -> &mut dyn Horizon {
        match self {
            Self::Table(table) => table,
            Self::Ring(ring) => ring,
            Self::Anchor(anchor) => &mut **anchor,
        }
    }

    /// A hash that stands for all flows of a row.
    fn row_hash(&self, row: u32, rows: u32) -> u64 {
        match self {
            // The least 32 bits that lead to the row.
            Self::Table(_) => (u64::from(row) << 32).div_ceil(rows.into()),
            _ => HrwTable::row_key(row as usize),
        }
    }
}

/// A pool, and where it places each row. W: the members that serve. H, the horizon: those that
/// drain or are down, and may serve again.
#[derive(Clone, Debug)]
pub(crate) struct Columns {
    rows: u32,
    placed: Placed,
    members: Vec<Member>,
}

fn works(member: &Member) -> bool {
    member.role == Role::Serving
}

impl Columns {
    pub fn new(placement: u32, rows: u32, members: &[Member]) -> Result<Self, PoolError> {
        let placed = Placed::new(placement, rows, members)?;
        let mut columns = Self { rows, placed, members: Vec::new() };
        columns.follow(members)?;
        Ok(columns)
    }

    /// Makes the pool this one. After an error it is neither.
    pub fn follow(&mut self, members: &[Member]) -> Result<(), PoolError> {
        let wanted: Vec<&Member> = members.iter().filter(|member| member.weight > 0).collect();
        let horizon = self.placed.get_mut();
        for old in std::mem::take(&mut self.members) {
            let same = |new: &&&Member| {
                (new.backend, &new.name, new.weight) == (old.backend, &old.name, old.weight)
            };
            match wanted.iter().find(same) {
                Some(new) if works(new) && !works(&old) => horizon.admit(old.backend.get())?,
                Some(new) if !works(new) && works(&old) => horizon.retire(old.backend.get())?,
                Some(_) => {}
                None if works(&old) => horizon.remove(old.backend.get())?,
                None => horizon.remove_horizon(old.backend.get())?,
            }
            if let Some(new) = wanted.iter().find(same) {
                self.members.push(Member::clone(new));
            }
        }
        for new in wanted {
            if self.members.iter().any(|old| old.backend == new.backend) {
                continue;
            }
            let &Member { backend, ref name, weight, .. } = new;
            let candidate = Candidate { name, backend: backend.get(), weight };
            if works(new) {
                horizon.add(candidate)?;
            } else {
                horizon.add_horizon(candidate)?;
            }
            self.members.push(new.clone());
        }
        Ok(())
    }

    /// Where a row's flows should go, or [`NO_BACKEND`]; and whether that changes if somebody on
    /// the horizon serves.
    pub fn at(&self, row: u32) -> (u16, bool) {
        let (placed, hash) = (self.placed.get(), self.placed.row_hash(row, self.rows));
        match placed.verdict(hash) {
            Some(verdict) => (verdict.backend, verdict.may_differ),
            None => (NO_BACKEND, placed.lookup_all(hash).is_some()),
        }
    }
}
