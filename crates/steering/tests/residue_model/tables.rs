//! Tables and the build face in the small: flow i is alone in row i.

use std::collections::{BTreeMap, BTreeSet};
use weir_steering::residue::{Build, Collected, Routes, RowSet, remaining};

/// Flows, and rows.
pub const FLOWS: usize = 2;
/// Backends.
pub const BACKENDS: u8 = 3;
const NONE: u8 = u8::MAX;

/// A table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Tiny {
    pub generation: u8,
    pub rows: [u8; FLOWS],
    pub exceptions: [u8; FLOWS],
}

impl Tiny {
    pub fn new(rows: [u8; FLOWS]) -> Self {
        Self { generation: 1, rows, exceptions: [NONE; FLOWS] }
    }

    pub fn has_exception(&self, flow: u8) -> bool {
        self.exceptions[usize::from(flow)] != NONE
    }
}

impl Routes<u8> for Tiny {
    fn row(&self, flow: &u8) -> u32 {
        u32::from(*flow)
    }

    fn points_at(&self, flow: &u8) -> u16 {
        u16::from(self.rows[usize::from(*flow)])
    }

    fn exception(&self, flow: &u8) -> Option<u16> {
        let at = self.exceptions[usize::from(*flow)];
        (at != NONE).then_some(u16::from(at))
    }

    fn generation(&self) -> u64 {
        u64::from(self.generation)
    }
}

/// The build face.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TinyBuild {
    /// What the operator wants.
    pub pool: [u8; FLOWS],
    pub base: Tiny,
    target: [u8; FLOWS],
    built: Tiny,
    /// Exceptions that are said to have ended, rightly or not.
    pub doubtful: BTreeSet<u8>,
    dead: [bool; BACKENDS as usize],
    /// A departure: what is said to have ended is not asked for again.
    pub trusts_ends: bool,
    /// A departure: what is said to have ended counts whenever it is said.
    pub doubts_late: bool,
    /// A departure: a restarted control plane believes what it finds on its disk.
    pub adopts_nothing: bool,
}

impl TinyBuild {
    pub fn new(rows: [u8; FLOWS]) -> Self {
        Self {
            pool: rows,
            base: Tiny::new(rows),
            target: rows,
            built: Tiny::new(rows),
            doubtful: BTreeSet::new(),
            dead: [false; BACKENDS as usize],
            trusts_ends: false,
            doubts_late: false,
            adopts_nothing: false,
        }
    }

    /// What is left of it when the control plane dies: the configuration, and an old table.
    pub fn restarted(&self, disk: Tiny) -> Self {
        Self { base: disk, built: disk, target: disk.rows, doubtful: BTreeSet::new(), ..*self }
    }

    fn alive(&self, backend: u8) -> u8 {
        let after = |b: u8| (b + 1) % BACKENDS;
        let mut at = backend;
        while self.dead[usize::from(at)] {
            at = after(at);
        }
        at
    }
}

impl Build<u8> for TinyBuild {
    type Table = Tiny;

    fn base(&self) -> Tiny {
        self.base
    }

    fn begin(&mut self) -> Option<RowSet> {
        self.target = self.pool.map(|at| self.alive(at));
        let rows = RowSet::of(FLOWS, |row| self.target[row] != self.base.rows[row]);
        (!rows.is_empty() || !self.doubtful.is_empty()).then_some(rows)
    }

    fn doubtful(&self) -> Vec<(u8, u16)> {
        let at = |flow: u8| u16::from(self.base.exceptions[usize::from(flow)]);
        self.doubtful.iter().map(|&flow| (flow, at(flow))).collect()
    }

    fn next(&mut self, collected: &Collected<u8>) -> Tiny {
        let base = self.base;
        let kept: BTreeMap<u8, u16> =
            (0..FLOWS as u8).filter_map(|flow| Some((flow, base.exception(&flow)?))).collect();
        let mut collected = collected.clone();
        if self.doubts_late {
            collected.doubtful = self.doubtful.clone();
        }
        if self.trusts_ends {
            collected.listed.retain(|(flow, _)| !collected.doubtful.contains(flow));
        }
        let next = |flow: &u8| u16::from(self.target[usize::from(*flow)]);
        let lives = |backend: u16| !self.dead[usize::from(backend)];
        let entries = remaining(&base, &kept, &collected, next, lives);
        let mut exceptions = [NONE; FLOWS];
        for (flow, backend) in entries {
            exceptions[usize::from(flow)] = backend as u8;
        }
        self.built = Tiny { generation: base.generation + 1, rows: self.target, exceptions };
        self.built
    }

    fn commit(&mut self) {
        self.base = self.built;
        let base = self.base;
        // What was said meanwhile waits for the next change.
        self.doubtful.retain(|&flow| base.has_exception(flow));
    }

    fn bury(&mut self, backend: u16) {
        self.dead[usize::from(backend)] = true;
        let alive = |at: u8| self.alive(at);
        let mut base = self.base;
        base.generation += 1;
        self.target = self.target.map(alive);
        for flow in 0..FLOWS {
            if self.dead[usize::from(base.rows[flow])] {
                base.rows[flow] = self.target[flow];
            }
            if u16::from(base.exceptions[flow]) == backend {
                base.exceptions[flow] = NONE;
            }
        }
        (self.base, self.built) = (base, base);
        self.doubtful.retain(|&flow| base.has_exception(flow));
    }

    fn adopt(&mut self, table: &Tiny) {
        if !self.adopts_nothing {
            (self.base, self.built) = (*table, *table);
        }
    }
}
