//! The build face: from a pool and what was collected to the next table.

use super::coordinator::Build;
use super::exceptions::{Flow, remaining};
use super::message::{Routes, RowSet};
use super::table::{Published, Table};
use crate::BuildError;
use crate::ids::BackendId;
use crate::pool::{Member, Role};
use crate::table::NO_BACKEND;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weir_hash::{HashKey, scale};
use weir_placement::{Candidate, HrwTable, Incremental, NONE, PoolError};

/// What is known of the flows when a table is built.
#[derive(Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Collected<K> {
    /// Connections that agents hold, with the agents' backends.
    pub listed: Vec<(K, u16)>,
    /// Flows that started at a balancer since *record*, with their backends.
    pub pending: Vec<(K, u16)>,
    /// Backends whose agents did not answer in time.
    pub silent: Vec<u16>,
    /// Exceptions that are said to have ended, and that agents were asked for. What is said later
    /// waits for the next change: balancers let flows start that the prepared table still has.
    pub doubtful: BTreeSet<K>,
}

impl<K> Default for Collected<K> {
    fn default() -> Self {
        Self {
            listed: Vec::new(),
            pending: Vec::new(),
            silent: Vec::new(),
            doubtful: BTreeSet::new(),
        }
    }
}

/// Settings of a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResidueConfig {
    /// Rows of the table, for the service's life; see [`rows_for`].
    pub rows: u32,
    /// Seed of the hash key, which balancers and agents share.
    pub seed: u64,
}

/// Rows for a pool: 65,536, or the power of two that gives 100 rows to the backend with the
/// smallest weight, up to 2^22 (8 MB). The share of a backend that expects n rows deviates by
/// 1 / sqrt(n) from its weight, and one row is the least that moves.
pub fn rows_for(members: &[Member]) -> u32 {
    let weights = members.iter().map(Member::effective_weight).filter(|&weight| weight > 0);
    let total: u64 = weights.clone().map(u64::from).sum();
    let least = u64::from(weights.min().unwrap_or(1));
    let wanted = (total.max(1) * 100).div_ceil(least).next_power_of_two();
    wanted.clamp(1 << 16, 1 << 22) as u32
}

/// A pool with the rows that it asks for.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    members: Vec<Member>,
    rows: HrwTable,
}

impl Placed {
    pub(super) fn new(rows: u32) -> Result<Self, PoolError> {
        Ok(Self { members: Vec::new(), rows: HrwTable::new(rows)? })
    }

    /// Moves the rows that this pool asks to move. On an error some changes may have been made.
    pub(super) fn follow(&mut self, members: &[Member]) -> Result<(), PoolError> {
        for old in std::mem::take(&mut self.members) {
            if members.iter().any(|m| m.backend == old.backend && m.name == old.name) {
                self.members.push(old);
            } else {
                self.rows.remove(old.backend.get())?;
            }
        }
        for member in members {
            let &Member { backend, ref name, .. } = member;
            let weight = member.effective_weight();
            match self.members.iter().find(|old| old.backend == backend) {
                None => self.rows.add(Candidate { name, backend: backend.get(), weight })?,
                Some(old) if old.effective_weight() == weight => {}
                Some(_) => self.rows.reweight(backend.get(), weight)?,
            }
        }
        self.members = members.to_vec();
        Ok(())
    }

    fn bury(&mut self, backend: u16) {
        // A backend that is not in the pool has no rows.
        let _ = self.rows.remove(backend);
        self.members.retain(|member| member.backend != backend);
    }

    fn points_at(&self, row: usize) -> u16 {
        let backend = self.rows.rows()[row];
        if backend == NONE { NO_BACKEND } else { backend }
    }

    pub(super) fn column(&self) -> Arc<[u16]> {
        (0..self.rows.rows().len()).map(|row| self.points_at(row)).collect()
    }

    fn lives(&self, backend: u16) -> bool {
        self.members.iter().any(|member| member.backend == backend)
    }
}

/// One service's tables: the one in force, and the next one.
///
/// Roles: a *serving* member has rows in proportion to its weight; a *draining* one has none and
/// keeps its connections, as exceptions; one that is *down*, or that has left the pool, is dead:
/// it has neither, and its connections are given up.
#[derive(Clone)]
pub struct Residue<K> {
    key: HashKey,
    /// What the operator wants.
    pool: Vec<Member>,
    /// The pool and the rows of the change under way, or of the last one.
    next: Placed,
    exceptions: BTreeMap<K, u16>,
    next_exceptions: BTreeMap<K, u16>,
    doubtful: BTreeSet<K>,
    published: Arc<Published<K>>,
    built: Arc<Published<K>>,
    generation: u64,
}

impl<K: Flow> Residue<K> {
    /// A service with this pool and no flows.
    ///
    /// # Errors
    /// [`BuildError::Pool`]: no rows or too many, or two members with one name or number.
    pub fn new(config: ResidueConfig, members: &[Member]) -> Result<Self, BuildError> {
        let key = HashKey::from_seed(config.seed);
        let mut next = Placed::new(config.rows)?;
        next.follow(&living(members))?;
        let table = Table::new(key, next.column(), &[], 1)?;
        let published = Arc::new(Published { table, entries: Vec::new() });
        Ok(Self {
            key,
            pool: members.to_vec(),
            next,
            exceptions: BTreeMap::new(),
            next_exceptions: BTreeMap::new(),
            doubtful: BTreeSet::new(),
            built: published.clone(),
            published,
            generation: 1,
        })
    }

    /// The pool that the next change leads to. Backends that have gone down or left are to be
    /// given to [`Coordinator::died`](super::Coordinator::died), too.
    ///
    /// # Errors
    /// [`BuildError::Pool`]: two members with one name or number. Nothing has changed then.
    pub fn set_pool(&mut self, members: &[Member]) -> Result<(), BuildError> {
        self.next.clone().follow(&living(members))?;
        self.pool = members.to_vec();
        Ok(())
    }

    /// The pool that was asked for.
    pub fn pool(&self) -> &[Member] {
        &self.pool
    }

    /// The table in force.
    pub fn published(&self) -> &Arc<Published<K>> {
        &self.published
    }

    /// The exceptions of the table in force.
    pub fn exceptions(&self) -> &BTreeMap<K, u16> {
        &self.exceptions
    }

    /// The row of a flow: what agents need to answer requests.
    pub fn row(&self, flow: &K) -> u32 {
        scale(flow.hash(&self.key) as u32, self.published.table.rows().len() as u32)
    }

    /// Backends that take new flows and expect fewer than `rows` rows, with the rows they expect:
    /// their shares are coarse.
    pub fn coarse(&self, rows: f64) -> Vec<(BackendId, f64)> {
        let total: f64 = self.pool.iter().map(|m| f64::from(m.effective_weight())).sum();
        let all = self.published.table.rows().len() as f64;
        let expects = |m: &Member| (m.backend, f64::from(m.effective_weight()) / total * all);
        let serving = self.pool.iter().filter(|m| m.effective_weight() > 0);
        serving.map(expects).filter(|(_, expected)| *expected < rows).collect()
    }

    /// An agent says that a flow has no connection any more. If it is an exception, the agent is
    /// asked again by the next change, which lets it go.
    pub fn ended(&mut self, flow: K) {
        if self.exceptions.contains_key(&flow) {
            self.doubtful.insert(flow);
        }
    }

    /// Exceptions that have ended and wait for a change to let them go.
    pub fn doubtful(&self) -> usize {
        self.doubtful.len()
    }

    fn table(&mut self, rows: Arc<[u16]>, entries: &BTreeMap<K, u16>) -> Arc<Published<K>> {
        let entries: Vec<_> = entries.iter().map(|(&flow, &backend)| (flow, backend)).collect();
        self.generation += 1;
        match Table::new(self.key, rows, &entries, self.generation) {
            Ok(table) => Arc::new(Published { table, entries }),
            // Sixteen seeds in a row that cannot place different hashes.
            Err(error) => unreachable!("exceptions cannot be placed: {error}"),
        }
    }
}

fn living(members: &[Member]) -> Vec<Member> {
    members.iter().filter(|member| member.role != Role::Down).cloned().collect()
}

impl<K: Flow> Build<K> for Residue<K> {
    type Table = Arc<Published<K>>;

    fn base(&self) -> Self::Table {
        self.published.clone()
    }

    fn begin(&mut self) -> Option<RowSet> {
        let pool = living(&self.pool);
        // The pool was tried when it was set, and what is tried can be done.
        if self.next.follow(&pool).is_err() {
            return None;
        }
        let rows = RowSet::differing(self.published.table.rows(), &self.next.column());
        let gone: BTreeSet<u16> = self.exceptions.values().copied().collect();
        let gone = gone.iter().any(|&backend| !self.next.lives(backend));
        (!rows.is_empty() || !self.doubtful.is_empty() || gone).then_some(rows)
    }

    fn doubtful(&self) -> Vec<(K, u16)> {
        self.doubtful.iter().map(|flow| (*flow, self.exceptions[flow])).collect()
    }

    fn next(&mut self, collected: &Collected<K>) -> Self::Table {
        let points = |flow: &K| self.next.points_at(self.row(flow) as usize);
        let lives = |backend: u16| self.next.lives(backend);
        let (base, kept) = (&self.published, &self.exceptions);
        let entries = remaining(base, kept, collected, points, lives);
        self.built = self.table(self.next.column(), &entries);
        self.next_exceptions = entries;
        self.built.clone()
    }

    fn commit(&mut self) {
        self.published = self.built.clone();
        self.exceptions = self.next_exceptions.clone();
        let exceptions = &self.exceptions;
        self.doubtful.retain(|flow| exceptions.contains_key(flow));
    }

    /// The rows of the dead go where the next table wants them; no other row moves.
    fn bury(&mut self, backend: u16) {
        self.next.bury(backend);
        self.pool.retain(|member| member.backend != backend || member.role == Role::Down);
        self.exceptions.retain(|_, at| *at != backend);
        let exceptions = &self.exceptions;
        self.doubtful.retain(|flow| exceptions.contains_key(flow));
        let rows = self.published.table.rows().iter().enumerate();
        let rows = rows
            .map(|(row, &at)| if at == backend { self.next.points_at(row) } else { at })
            .collect();
        let entries = self.exceptions.clone();
        self.published = self.table(rows, &entries);
        self.built = self.published.clone();
    }

    fn adopt(&mut self, table: &Self::Table) {
        self.generation = self.generation.max(table.generation());
        self.exceptions = table.entries.iter().copied().collect();
        self.published = table.clone();
        self.built = table.clone();
        self.doubtful.clear();
    }
}
