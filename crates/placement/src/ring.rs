//! The consistent-hashing ring.
//!
//! Karger et al., "Consistent Hashing and Random Trees", STOC 1997; Chord, 2001. JET on it:
//! section 3.3 and Algorithm 3.

use crate::pool::{Candidate, Member, NONE, PoolError, Pools};
use crate::score::{STEP, mix};
use crate::traits::{Horizon, Incremental, Placement, Verdict};
use std::cmp::Ordering;

/// One virtual copy of a backend. 16 bytes, so that a lookup reads one cache line of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Point {
    position: u64,
    /// Whose point it is: the answer for W + H.
    owner: u16,
    /// The owner of the next point of a working backend: the answer for W.
    working: u16,
}

impl Point {
    #[inline(always)]
    fn verdict(&self) -> Option<Verdict> {
        let may_differ = self.owner != self.working;
        (self.working != NONE).then_some(Verdict { backend: self.working, may_differ })
    }
}

/// Searches that are begun together.
const BLOCK: usize = 16;

/// Backends own points on a circle of 2^64 positions; a flow goes to the owner of the first
/// point at or after its hash.
///
/// The circle is divided into as many equal buckets as there are points (rounded up to a power
/// of two), and each bucket knows its first point: a lookup searches one bucket, which holds
/// one point or less on average, and O(log) of them at worst.
///
/// The points of the horizon are on the same circle, and every point knows the next working
/// owner as well, so that one search answers for W and for W + H (the paper's flag per entry
/// is `owner != working`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ring {
    pools: Pools,
    copies: u32,
    points: Vec<Point>,
    /// `first[b]`: the first point at or after the start of bucket b. One more than buckets.
    first: Vec<u32>,
    shift: u32,
}

impl Ring {
    /// The largest number of points, of all backends together.
    pub const MAX_POINTS: u32 = 1 << 24;

    /// An empty ring on which a backend gets `copies` points for each unit of weight.
    ///
    /// The shares are uneven by about 1 / sqrt(copies of a backend): 160 copies give a standard
    /// deviation of 8 % of a share.
    ///
    /// # Errors
    ///
    /// [`PoolError::Size`] for no copies, or too many.
    pub fn new(copies: u32) -> Result<Self, PoolError> {
        if copies == 0 || copies > Self::MAX_POINTS {
            return Err(PoolError::Size { size: copies, max: Self::MAX_POINTS });
        }
        let mut ring = Self {
            pools: Pools::default(),
            copies,
            points: Vec::new(),
            first: Vec::new(),
            shift: 63,
        };
        ring.finish();
        Ok(ring)
    }

    /// The number of points of all backends.
    pub fn points(&self) -> usize {
        self.points.len()
    }

    /// Bytes of the tables that a lookup reads.
    pub fn memory(&self) -> usize {
        self.points.len() * size_of::<Point>() + self.first.len() * size_of::<u32>()
    }

    /// The arcs of the circle in order, each by its last hash and the backend that it leads to in
    /// CH(W), [`NONE`] for none. What is behind the last belongs to the first.
    pub fn arcs(&self) -> impl Iterator<Item = (u64, u16)> + '_ {
        self.points.iter().map(|point| (point.position, point.working))
    }

    /// The part of the circle that a backend gets in CH(W), from 0 to 1. Exact.
    pub fn share(&self, backend: u16) -> f64 {
        let Some(last) = self.points.last() else {
            return 0.0;
        };
        let mut before = last.position;
        let mut arc: u128 = 0;
        for point in &self.points {
            if point.working == backend {
                arc += u128::from(point.position.wrapping_sub(before));
            }
            before = point.position;
        }
        // With a single point the one arc is the whole circle, which wraps to zero.
        if self.points.len() == 1 && last.working == backend {
            return 1.0;
        }
        arc as f64 / 2f64.powi(64)
    }

    /// The points that a search for the hash's successor looks at.
    #[inline(always)]
    fn bucket(&self, hash: u64) -> (usize, usize) {
        let bucket = (hash >> self.shift) as usize;
        (self.first[bucket] as usize, self.first[bucket + 1] as usize)
    }

    #[inline(always)]
    fn successor(&self, hash: u64) -> Option<&Point> {
        self.search(hash, self.bucket(hash))
    }

    /// The successors of many hashes. All buckets of a block are read before the first point is
    /// asked for, so that the reads of both kinds overlap.
    #[inline(always)]
    fn successors(&self, hashes: &[u64], mut answer: impl FnMut(usize, Option<&Point>)) {
        for (block, hashes) in hashes.chunks(BLOCK).enumerate() {
            let mut buckets = [(0, 0); BLOCK];
            for (bucket, &hash) in buckets.iter_mut().zip(hashes) {
                *bucket = self.bucket(hash);
            }
            for (i, (&hash, &bucket)) in hashes.iter().zip(&buckets).enumerate() {
                answer(block * BLOCK + i, self.search(hash, bucket));
            }
        }
    }

    #[inline(always)]
    fn search(&self, hash: u64, (from, to): (usize, usize)) -> Option<&Point> {
        let within = self.points[from..to].partition_point(|point| point.position < hash);
        // Past the last point the circle closes.
        self.points.get(from + within).or_else(|| self.points.first())
    }

    fn points_of(&self, member: &Member) -> Vec<Point> {
        let copies = u64::from(self.copies) * u64::from(member.weight);
        let owner = member.backend;
        let mut points: Vec<_> = (1..=copies)
            .map(|copy| Point {
                position: mix(member.seed.wrapping_add(copy.wrapping_mul(STEP))),
                owner,
                working: NONE,
            })
            .collect();
        points.sort_unstable_by_key(|point| point.position);
        points
    }

    fn check_room(&self, weight: u32, freed: u32) -> Result<(), PoolError> {
        let per_unit = u64::from(self.copies);
        let held = self.points.len() as u64 - per_unit * u64::from(freed);
        let (room, wanted) = (u64::from(Self::MAX_POINTS) - held, per_unit * u64::from(weight));
        if wanted > room { Err(PoolError::NoRoom { room, wanted }) } else { Ok(()) }
    }

    /// Merges the points of a member, which is in the pools already, into the ring.
    fn insert(&mut self, member: &Member) {
        let new = self.points_of(member);
        let old = std::mem::take(&mut self.points);
        self.points.reserve_exact(old.len() + new.len());
        let mut new = new.into_iter().peekable();
        for point in old {
            while let Some(next) = new.next_if(|next| self.precedes(next, &point)) {
                self.points.push(next);
            }
            self.points.push(point);
        }
        self.points.extend(new);
        self.finish();
    }

    /// Merges the points of many members at once, which `known` puts into the pools: a merge for each goes through
    /// all points as often as there are members.
    fn insert_all(
        &mut self,
        candidates: &[Candidate<'_>],
        known: impl Fn(&mut Pools, Member),
    ) -> Result<(), PoolError> {
        let taken = candidates.iter().try_for_each(|candidate| -> Result<(), PoolError> {
            let member = self.pools.check(candidate)?;
            self.check_room(member.weight, 0)?;
            known(&mut self.pools, member);
            let new = self.points_of(&member);
            self.points.extend(new);
            Ok(())
        });
        let mut points = std::mem::take(&mut self.points);
        points.sort_by(|a, b| self.order(a, b));
        points.shrink_to_fit();
        self.points = points;
        self.finish();
        taken
    }

    /// The order on the circle; where points coincide (one chance in 2^32 for a ring of 80,000)
    /// the seeds decide, so that the order of arrival does not.
    fn order(&self, a: &Point, b: &Point) -> Ordering {
        let seed = |point: &Point| {
            let owner = point.owner;
            self.pools
                .working
                .find(owner)
                .or_else(|| self.pools.horizon.find(owner))
                .map(|m| m.seed)
        };
        a.position.cmp(&b.position).then_with(|| seed(a).cmp(&seed(b)))
    }

    fn precedes(&self, a: &Point, b: &Point) -> bool {
        self.order(a, b) == Ordering::Less
    }

    fn erase(&mut self, backend: u16) {
        self.points.retain(|point| point.owner != backend);
        self.finish();
    }

    /// Works out what follows from the points and the pools: the next working owners, from the
    /// end backwards, and the jump table.
    fn finish(&mut self) {
        let mut works = vec![false; usize::from(NONE) + 1];
        for member in self.pools.working.iter() {
            works[usize::from(member.backend)] = true;
        }
        let first_working = self.points.iter().find(|point| works[usize::from(point.owner)]);
        let mut next = first_working.map_or(NONE, |point| point.owner);
        for point in self.points.iter_mut().rev() {
            if works[usize::from(point.owner)] {
                next = point.owner;
            }
            point.working = next;
        }

        // At least two buckets: a shift by 64 is not one.
        let buckets = self.points.len().next_power_of_two().max(2);
        self.shift = 64 - buckets.trailing_zeros();
        self.first.clear();
        self.first.reserve_exact(buckets + 1);
        for (index, point) in (0u32..).zip(&self.points) {
            let bucket = (point.position >> self.shift) as usize;
            // All buckets up to this one begin here, but for those that began earlier.
            while self.first.len() <= bucket {
                self.first.push(index);
            }
        }
        self.first.resize(buckets + 1, self.points.len() as u32);
    }
}

impl Placement for Ring {
    fn lookup(&self, hash: u64) -> Option<u16> {
        self.successor(hash).map(|point| point.working).filter(|&backend| backend != NONE)
    }

    fn lookup_batch(&self, hashes: &[u64], out: &mut [u16]) {
        assert_eq!(hashes.len(), out.len(), "one answer per hash");
        self.successors(hashes, |i, point| out[i] = point.map_or(NONE, |point| point.working));
    }
}

impl Incremental for Ring {
    fn add(&mut self, candidate: Candidate<'_>) -> Result<(), PoolError> {
        let member = self.pools.check(&candidate)?;
        self.check_room(member.weight, 0)?;
        self.pools.add(member);
        self.insert(&member);
        Ok(())
    }

    fn add_all(&mut self, candidates: &[Candidate<'_>]) -> Result<(), PoolError> {
        self.insert_all(candidates, Pools::add)
    }

    fn remove(&mut self, backend: u16) -> Result<(), PoolError> {
        self.pools.remove(backend)?;
        self.erase(backend);
        Ok(())
    }

    fn reweight(&mut self, backend: u16, weight: u32) -> Result<(), PoolError> {
        let old = self.pools.find_working(backend)?;
        self.check_room(weight, old.weight)?;
        let member = self.pools.reweight(backend, weight)?;
        self.points.retain(|point| point.owner != backend);
        self.insert(&member);
        Ok(())
    }
}

impl Horizon for Ring {
    fn verdict(&self, hash: u64) -> Option<Verdict> {
        self.successor(hash).and_then(Point::verdict)
    }

    fn verdict_batch(&self, hashes: &[u64], out: &mut [Option<Verdict>]) {
        assert_eq!(hashes.len(), out.len(), "one answer per hash");
        self.successors(hashes, |i, point| out[i] = point.and_then(Point::verdict));
    }

    fn lookup_all(&self, hash: u64) -> Option<u16> {
        self.successor(hash).map(|point| point.owner)
    }

    fn add_horizon(&mut self, candidate: Candidate<'_>) -> Result<(), PoolError> {
        let member = self.pools.check(&candidate)?;
        self.check_room(member.weight, 0)?;
        self.pools.add_horizon(member);
        self.insert(&member);
        Ok(())
    }

    fn add_all_horizon(&mut self, candidates: &[Candidate<'_>]) -> Result<(), PoolError> {
        self.insert_all(candidates, Pools::add_horizon)
    }

    fn remove_horizon(&mut self, backend: u16) -> Result<(), PoolError> {
        self.pools.remove_horizon(backend)?;
        self.erase(backend);
        Ok(())
    }

    fn admit(&mut self, backend: u16) -> Result<(), PoolError> {
        self.pools.admit(backend)?;
        self.finish();
        Ok(())
    }

    fn retire(&mut self, backend: u16) -> Result<(), PoolError> {
        self.pools.retire(backend)?;
        self.finish();
        Ok(())
    }
}
