//! residue: only what a change has left behind.

use super::memory::Remembered;
use super::pool::Members;
use super::steered::{Face, Steered};
use crate::flow::Traffic;
use crate::method::{Change, Effects, FlowRef, Gauges};
use std::sync::Arc;
use weir_hash::HashKey;
use weir_steering::residue::{Build, Collected, Published, Residue as Control, ResidueConfig};
use weir_steering::{BuildError, Decide, Decision, Memory, Question};

/// residue (`weir_steering::residue`): its build face, and the table of rows, flags and exceptions
/// that it makes.
///
/// A change asks the servers for the connections in the rows that will move, and what has become of
/// the exceptions whose end was reported; then it builds and commits, all in no time. What may
/// happen in between, on several balancers, is for the model checker and not for the simulator.
pub type Residue = Steered<ResidueFace>;

const SEED: u64 = 0x7265_7369;

impl Residue {
    /// A table of `rows` rows without servers. `weights`: of all there will ever be.
    ///
    /// # Errors
    ///
    /// No row, or too many.
    pub fn new(rows: usize, weights: &[u32]) -> Result<Self, BuildError> {
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        let control = Control::new(ResidueConfig { rows, seed: SEED }, &[])?;
        let table = control.published().clone();
        let members = Members::new(weights);
        Ok(Steered::alone(ResidueFace { control, members, table, marked: 0.0 }))
    }
}

/// The build face of [`Residue`].
#[derive(Clone)]
pub struct ResidueFace {
    control: Control<u64>,
    members: Members,
    table: Arc<Published<u64>>,
    marked: f64,
}

impl std::fmt::Debug for ResidueFace {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("ResidueFace").field("members", &self.members).finish_non_exhaustive()
    }
}

impl ResidueFace {
    /// What the servers answer: the connections that they hold in the rows that move, and those
    /// exceptions that are said to have ended and have not.
    fn collect(&self, rows: impl Iterator<Item = u32>, traffic: &Traffic) -> Collected<u64> {
        let listed = rows.flat_map(|row| traffic.listed(row));
        let listed = listed.map(|(flow, holder)| (flow.id, holder)).collect();
        let doubtful = Build::doubtful(&self.control).into_iter().map(|(flow, _)| flow).collect();
        Collected { listed, doubtful, ..Collected::default() }
    }
}

impl Face for ResidueFace {
    fn hash_key(&self, _: u16) -> &HashKey {
        self.table.table.key()
    }

    fn decide<M: Memory<u64>>(&self, _: u16, question: &Question<u64>, memory: &mut M) -> Decision {
        self.table.table.decide(question, memory)
    }

    fn rows(&self) -> usize {
        self.table.table.rows().len()
    }

    fn row_of(&self, hash: u64) -> u32 {
        weir_hash::scale(hash as u32, self.rows() as u32)
    }

    fn row_points_at(&self, question: &Question<u64>) -> u16 {
        self.table.table.rows()[self.row_of(question.hash) as usize]
    }

    /// A server's agent says that a connection has ended.
    fn ended(&mut self, flow: FlowRef) {
        self.control.ended(flow.id);
    }

    fn change(
        &mut self,
        changes: &[Change],
        _: &mut [Remembered],
        traffic: &mut Traffic,
        effects: &mut Effects,
    ) {
        changes.iter().for_each(|&change| self.members.follow(change));
        let set = self.control.set_pool(self.members.all());
        debug_assert!(set.is_ok(), "{set:?}");
        let Some(rows) = self.control.begin() else {
            return;
        };
        let before = self.table.clone();
        let moving = (0..self.rows() as u32).filter(|&row| rows.contains(row));
        let collected = self.collect(moving, traffic);
        self.control.next(&collected);
        self.control.commit();
        self.table = self.control.published().clone();
        effects.rows.extend((0..self.rows() as u32).filter(|&row| rows.contains(row)));
        let (old, new) = (&before.entries, &self.table.entries);
        effects.rows.extend(old.iter().chain(new).map(|(flow, _)| self.table.table.row(flow)));
        self.marked = marked(&self.table);
    }

    /// Entries are the exceptions whose connections live: those that have ended wait for the next
    /// change to let them go.
    fn gauges(&self, _: &[Remembered]) -> Gauges {
        let tracked = self.control.exceptions().len() - self.control.doubtful();
        let state_bytes = self.table.table.exception_bytes() as f64;
        Gauges { tracked, marked_rows: self.marked, state_bytes, evictions: 0, ..Gauges::default() }
    }
}

/// The share of the rows that have exceptions.
fn marked(table: &Published<u64>) -> f64 {
    let mut rows: Vec<u32> = table.entries.iter().map(|(flow, _)| table.table.row(flow)).collect();
    rows.sort_unstable();
    rows.dedup();
    rows.len() as f64 / table.table.rows().len() as f64
}
