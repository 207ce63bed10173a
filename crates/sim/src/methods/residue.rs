//! residue: only what a change has left behind.

use super::placed::{Over, Rows};
use crate::flow::Traffic;
use crate::method::{Change, ENTRY_BYTES, Effects, FlowRef, Gauges, Method, NOBODY, Probe};
use weir_placement::PoolError;

/// residue in its exact form: a table of rows, a mark on the rows that have exceptions, and a map
/// of the flows that live where the table no longer points.
///
/// A change records, collects and commits in no time: what may happen in between is for the model
/// checker, not for the simulator.
#[derive(Debug)]
pub struct Residue {
    rows: Rows,
    /// By flow slot; [`NOBODY`] if the flow is no exception.
    exceptions: Vec<u16>,
    /// Exceptions in each row.
    in_row: Vec<u32>,
    count: usize,
    marked: usize,
}

impl Residue {
    /// A table of `rows` rows without servers. `weights`: of all there will ever be.
    ///
    /// # Errors
    ///
    /// No row, or too many.
    pub fn new(rows: usize, weights: &[u32]) -> Result<Self, PoolError> {
        Ok(Self {
            rows: Rows::new(Over::Table, rows, weights, weights)?,
            exceptions: Vec::new(),
            in_row: vec![0; rows],
            count: 0,
            marked: 0,
        })
    }

    fn exception(&self, slot: u32) -> Option<u16> {
        let server = *self.exceptions.get(slot as usize)?;
        (server != NOBODY).then_some(server)
    }

    fn note(&mut self, flow: FlowRef, row: u32) {
        let slot = flow.slot as usize;
        self.exceptions.resize(self.exceptions.len().max(slot + 1), NOBODY);
        if self.exceptions[slot] == NOBODY {
            self.count += 1;
            self.in_row[row as usize] += 1;
            self.marked += usize::from(self.in_row[row as usize] == 1);
        }
        self.exceptions[slot] = flow.owner;
    }

    fn clear(&mut self, slot: u32, row: u32) {
        if self.exception(slot).is_some() {
            self.exceptions[slot as usize] = NOBODY;
            self.count -= 1;
            self.in_row[row as usize] -= 1;
            self.marked -= usize::from(self.in_row[row as usize] == 0);
        }
    }
}

impl Method for Residue {
    fn rows(&self) -> usize {
        self.rows.rows()
    }

    fn row_of(&self, hash: u64) -> u32 {
        self.rows.row_of(hash)
    }

    fn first(&mut self, flow: FlowRef, _: &mut Traffic, _: &mut Effects) -> Option<u16> {
        let server = self.rows.server(self.rows.row_of(flow.hash));
        (server != NOBODY).then_some(server)
    }

    fn probe(&self, flow: FlowRef) -> Probe {
        let row = self.rows.row_of(flow.hash);
        let marked = self.in_row[row as usize] > 0;
        let exception = marked.then(|| self.exception(flow.slot)).flatten();
        Probe::quiet(exception.unwrap_or_else(|| self.rows.server(row)))
    }

    fn end(&mut self, flow: FlowRef, _: &mut Traffic) {
        self.clear(flow.slot, self.rows.row_of(flow.hash));
    }

    fn change(&mut self, changes: &[Change], traffic: &mut Traffic, effects: &mut Effects) {
        let differing = self.rows.apply(changes);
        for &row in &differing {
            let server = self.rows.server(row);
            for flow in traffic.in_row(row) {
                match flow.owner {
                    NOBODY => {}
                    owner if owner == server => self.clear(flow.slot, row),
                    _ => self.note(flow, row),
                }
            }
        }
        effects.rows.extend(differing);
    }

    fn gauges(&self, _: &Traffic) -> Gauges {
        Gauges {
            tracked: self.count,
            marked_rows: self.marked as f64 / self.rows.rows() as f64,
            state_bytes: self.count as f64 * ENTRY_BYTES,
            evictions: 0,
        }
    }
}
