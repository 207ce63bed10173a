//! Table-based HRW hashing (JET, section 3.4 and Algorithm 4).

use crate::pool::{Best, Candidate, Member, NONE, PoolError, Pools, Roster};
use crate::score::{STEP, mix};
use crate::traits::{Horizon, Incremental, Placement, Verdict};
use weir_hash::scale;

/// One answer per row, with the score that earned it.
///
/// The scores are what makes a change cheap: a newcomer is compared with the holder of a row
/// without asking anybody else.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Column {
    backends: Vec<u16>,
    scores: Vec<u64>,
}

impl Column {
    fn new(rows: u32) -> Self {
        Self { backends: vec![NONE; rows as usize], scores: vec![u64::MAX; rows as usize] }
    }

    fn set(&mut self, row: usize, best: Best) {
        self.backends[row] = best.backend;
        self.scores[row] = best.score;
    }

    /// Whether `best` beats the holder of the row. Scores tie about once in 2^56 / (sum of
    /// weights) rows; then the seed of the holder is looked for in the pools.
    fn loses_to(&self, row: usize, best: Best, pools: &Pools) -> bool {
        if best.score != self.scores[row] {
            return best.score < self.scores[row];
        }
        let holder = self.backends[row];
        let member = pools.working.find(holder).or_else(|| pools.horizon.find(holder));
        member.is_none_or(|member| best.seed < member.seed)
    }
}

/// A table in which every row is a key of HRW hashing, worked out in advance: row r holds the
/// winner of [`crate::Hrw`] for [`HrwTable::row_key`]`(r)`.
///
/// It keeps two columns, CH(W) and CH(W + H), and the bitmap of the rows in which they differ
/// (the paper's TR). What a change costs, in scores computed, with R rows and n = |W|:
///
/// | change | scores |
/// |---|---|
/// | `add`, `add_horizon` | R |
/// | `admit` | one per unsafe row that another holder of CH(W + H) has: about R \|H\| / (n + \|H\|) |
/// | `retire` | n for each row it held: about R in all |
/// | `remove` | n + \|H\| for each row it held |
/// | `remove_horizon` | \|H\| for each row it would have got |
///
/// The number of rows may be any: a row is found by multiply-shift, which needs neither a prime
/// nor a power of two. (Maglev's walks need the prime; here there is no walk.)
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HrwTable {
    pools: Pools,
    working: Column,
    all: Column,
    may_differ: Vec<u64>,
    was_unsafe: Vec<u64>,
}

impl HrwTable {
    /// The largest number of rows: 2^26, 1.3 GB.
    pub const MAX_ROWS: u32 = 1 << 26;

    /// A table of `rows` rows whose pool is empty.
    ///
    /// # Errors
    ///
    /// [`PoolError::Size`] if there are no rows, or more than [`Self::MAX_ROWS`].
    pub fn new(rows: u32) -> Result<Self, PoolError> {
        if rows == 0 || rows > Self::MAX_ROWS {
            return Err(PoolError::Size { size: rows, max: Self::MAX_ROWS });
        }
        let bits = vec![0; (rows as usize).div_ceil(64)];
        Ok(Self {
            pools: Pools::default(),
            working: Column::new(rows),
            all: Column::new(rows),
            may_differ: bits.clone(),
            was_unsafe: bits,
        })
    }

    /// The row of a flow; only the low 32 bits of its hash count, as in Maglev.
    #[inline(always)]
    pub fn row_of(&self, hash: u64) -> usize {
        scale(hash as u32, self.working.backends.len() as u32) as usize
    }

    /// The HRW key that a row stands for.
    #[inline(always)]
    pub fn row_key(row: usize) -> u64 {
        mix((row as u64 + 1).wrapping_mul(STEP))
    }

    /// CH(W) of each row, or [`NONE`].
    pub fn rows(&self) -> &[u16] {
        &self.working.backends
    }

    /// CH(W + H) of each row, or [`NONE`].
    pub fn rows_all(&self) -> &[u16] {
        &self.all.backends
    }

    /// Bit r % 64 of word r / 64: the two columns differ in row r.
    pub fn may_differ(&self) -> &[u64] {
        &self.may_differ
    }

    /// The rows that may have differed at any time since the start, or since the last call of
    /// [`Self::forget_unsafe`]: only their flows can be in a connection table, so the packets of
    /// all other rows need not look there.
    pub fn was_unsafe(&self) -> &[u64] {
        &self.was_unsafe
    }

    /// To be called when no connection is tracked in any row that is safe now.
    pub fn forget_unsafe(&mut self) {
        self.was_unsafe.clone_from(&self.may_differ);
    }

    /// How many rows a backend holds in CH(W).
    pub fn held(&self, backend: u16) -> usize {
        self.working.backends.iter().filter(|&&holder| holder == backend).count()
    }

    fn is_unsafe(&self, row: usize) -> bool {
        self.may_differ[row / 64] >> (row % 64) & 1 != 0
    }

    /// Sets the row's bit to what its two columns say.
    fn mark(&mut self, row: usize) {
        let differ = u64::from(self.working.backends[row] != self.all.backends[row]);
        let word = &mut self.may_differ[row / 64];
        *word = *word & !(1 << (row % 64)) | differ << (row % 64);
        self.was_unsafe[row / 64] |= differ << (row % 64);
    }

    fn row_numbers(&self) -> std::ops::Range<usize> {
        0..self.working.backends.len()
    }

    /// A new member of W competes for every row: in both columns.
    fn compete(&mut self, member: &Member) {
        for row in self.row_numbers() {
            let best = Roster::score(member, Self::row_key(row));
            if best.backend != NONE && self.all.loses_to(row, best, &self.pools) {
                self.all.set(row, best);
                self.working.set(row, best);
                self.mark(row);
            } else if best.backend != NONE
                && self.is_unsafe(row)
                && self.working.loses_to(row, best, &self.pools)
            {
                // A safe row has the same holder in both, and was not lost above.
                self.working.set(row, best);
            }
        }
    }

    /// A new member of H competes for every row of CH(W + H).
    fn compete_horizon(&mut self, member: &Member) {
        for row in self.row_numbers() {
            let best = Roster::score(member, Self::row_key(row));
            if best.backend != NONE && self.all.loses_to(row, best, &self.pools) {
                self.all.set(row, best);
                self.mark(row);
            }
        }
    }

    /// Gives the rows of `backend`, which has left W + H, to the next best.
    fn leave(&mut self, backend: u16) {
        for row in self.row_numbers() {
            let held = self.working.backends[row] == backend;
            if !held && self.all.backends[row] != backend {
                continue;
            }
            let key = Self::row_key(row);
            let working = if held { self.pools.working.best(key) } else { self.holder(row) };
            self.working.set(row, working);
            if self.all.backends[row] == backend {
                self.all.set(row, Best::min(working, self.pools.horizon.best(key)));
            }
            self.mark(row);
        }
    }

    /// The holder of a row in CH(W), as it was scored.
    fn holder(&self, row: usize) -> Best {
        let backend = self.working.backends[row];
        let score = self.working.scores[row];
        let member = self.pools.working.find(backend);
        member.map_or(Best::NOBODY, |member| Best { score, seed: member.seed, backend })
    }
}

impl Placement for HrwTable {
    #[inline]
    fn lookup(&self, hash: u64) -> Option<u16> {
        let backend = self.working.backends[self.row_of(hash)];
        (backend != NONE).then_some(backend)
    }

    fn lookup_batch(&self, hashes: &[u64], out: &mut [u16]) {
        assert_eq!(hashes.len(), out.len(), "one answer per hash");
        // No branch: the processor overlaps the reads.
        for (answer, &hash) in out.iter_mut().zip(hashes) {
            *answer = self.working.backends[self.row_of(hash)];
        }
    }
}

impl Incremental for HrwTable {
    fn add(&mut self, candidate: Candidate<'_>) -> Result<(), PoolError> {
        let member = self.pools.check(&candidate)?;
        self.pools.add(member);
        self.compete(&member);
        Ok(())
    }

    fn remove(&mut self, backend: u16) -> Result<(), PoolError> {
        self.pools.remove(backend)?;
        self.leave(backend);
        Ok(())
    }

    fn reweight(&mut self, backend: u16, weight: u32) -> Result<(), PoolError> {
        let old = self.pools.find_working(backend)?;
        // Without itself it is the same as leaving and coming back, row by row.
        self.pools.remove(backend)?;
        self.leave(backend);
        let member = old.with_weight(weight);
        self.pools.add(member);
        self.compete(&member);
        Ok(())
    }
}

impl Horizon for HrwTable {
    fn verdict(&self, hash: u64) -> Option<Verdict> {
        let row = self.row_of(hash);
        let backend = self.working.backends[row];
        (backend != NONE).then(|| Verdict { backend, may_differ: self.is_unsafe(row) })
    }

    fn lookup_all(&self, hash: u64) -> Option<u16> {
        let backend = self.all.backends[self.row_of(hash)];
        (backend != NONE).then_some(backend)
    }

    fn add_horizon(&mut self, candidate: Candidate<'_>) -> Result<(), PoolError> {
        let member = self.pools.check(&candidate)?;
        self.pools.add_horizon(member);
        self.compete_horizon(&member);
        Ok(())
    }

    fn remove_horizon(&mut self, backend: u16) -> Result<(), PoolError> {
        self.pools.remove_horizon(backend)?;
        self.leave(backend);
        Ok(())
    }

    /// CH(W + H) stays; in CH(W) only unsafe rows can change hands.
    fn admit(&mut self, backend: u16) -> Result<(), PoolError> {
        let member = self.pools.admit(backend)?;
        for row in self.row_numbers().filter(|&row| self.is_unsafe(row)).collect::<Vec<_>>() {
            if self.all.backends[row] == backend {
                self.working.backends[row] = backend;
                self.working.scores[row] = self.all.scores[row];
                self.mark(row);
                continue;
            }
            let best = Roster::score(&member, Self::row_key(row));
            if best.backend != NONE && self.working.loses_to(row, best, &self.pools) {
                self.working.set(row, best);
            }
        }
        Ok(())
    }

    /// CH(W + H) stays; in CH(W) the rows of the backend go to the next best, and are unsafe.
    fn retire(&mut self, backend: u16) -> Result<(), PoolError> {
        self.pools.retire(backend)?;
        for row in self.row_numbers() {
            if self.working.backends[row] == backend {
                self.working.set(row, self.pools.working.best(Self::row_key(row)));
                self.mark(row);
            }
        }
        Ok(())
    }
}
