//! The placements of `weir_placement`, as the methods here use them.

use crate::method::Change;
use weir_placement::{Anchor, Candidate, Horizon, Hrw, HrwTable, Placement, PoolError, Ring};

/// What a connection table stands over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Over {
    /// Table-based HRW hashing: only the flows of changed rows are looked at again.
    #[default]
    Table,
    /// AnchorHash: every change makes the engine look at every flow.
    Anchor,
    /// HRW hashing, as slow as it is exact.
    Hrw,
    /// A ring; `rows` are the points of a server per unit of weight. Every change makes the
    /// engine look at every flow.
    Ring,
    /// Maglev hashing, for full tracking only: the balancer's method `tracked`, as the XDP program
    /// has it. `rows` is the size of the table, a prime.
    Maglev,
}

/// Where a server stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stands {
    Out,
    Working,
    OnHorizon,
}

/// A placement, and the rows that the engine groups flows in: those of the table, or one.
enum Placed {
    Table(Box<HrwTable>),
    Other(Box<dyn Horizon>),
}

/// A placement that follows the changes of a simulated pool.
pub struct Rows {
    placed: Placed,
    rows: usize,
    weights: Vec<u32>,
    stands: Vec<Stands>,
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Rows").field("rows", &self.rows).finish_non_exhaustive()
    }
}

impl Rows {
    /// `rows`: of the table. `weights`: of all servers there will ever be; `largest`: the most
    /// that each will ever have.
    pub fn new(
        over: Over,
        rows: usize,
        weights: &[u32],
        largest: &[u32],
    ) -> Result<Self, PoolError> {
        let capacity = 2 * largest.iter().sum::<u32>().max(1);
        let placed = match over {
            Over::Table => Placed::Table(Box::new(HrwTable::new(rows as u32)?)),
            Over::Anchor => Placed::Other(Box::new(Anchor::new(capacity)?)),
            Over::Hrw => Placed::Other(Box::new(Hrw::new())),
            Over::Ring => Placed::Other(Box::new(Ring::new(rows as u32)?)),
            // A scenario is checked for that.
            Over::Maglev => return Err(PoolError::Size { size: 0, max: 0 }),
        };
        let rows = if over == Over::Table { rows } else { 1 };
        let stands = vec![Stands::Out; weights.len()];
        Ok(Self { placed, rows, weights: weights.to_vec(), stands })
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn row_of(&self, hash: u64) -> u32 {
        match &self.placed {
            Placed::Table(table) => table.row_of(hash) as u32,
            Placed::Other(_) => 0,
        }
    }

    /// Applies changes that come at one instant. Returns the rows in which a verdict has changed.
    pub fn apply(&mut self, changes: &[Change]) -> Vec<u32> {
        let before = self.answers();
        for &change in changes {
            // An error would mean that the engine's pool and this one differ.
            if let Err(error) = self.apply_one(change, changes) {
                debug_assert!(false, "{change:?}: {error}");
            }
        }
        match self.answers().zip(before) {
            Some((now, before)) => {
                let rows = now.iter().zip(&before).enumerate();
                rows.filter(|(_, (a, b))| a != b).map(|(row, _)| row as u32).collect()
            }
            None => vec![0],
        }
    }

    fn answers(&self) -> Option<Vec<(u16, bool)>> {
        match &self.placed {
            Placed::Table(table) => {
                let bit = |row: usize| table.may_differ()[row / 64] >> (row % 64) & 1 != 0;
                let rows = table.rows().iter().enumerate();
                Some(rows.map(|(row, &server)| (server, bit(row))).collect())
            }
            Placed::Other(_) => None,
        }
    }

    fn apply_one(&mut self, change: Change, all: &[Change]) -> Result<(), PoolError> {
        let horizon: &mut dyn Horizon = match &mut self.placed {
            Placed::Table(table) => &mut **table,
            Placed::Other(other) => &mut **other,
        };
        let server = change.server();
        let number = usize::from(server);
        if let Change::Reweight(_, weight) = change {
            self.weights[number] = weight;
        }
        let name = format!("server {server}");
        let candidate = Candidate { name: &name, backend: server, weight: self.weights[number] };
        let stood = self.stands[number];
        let (stands, done) = match change {
            Change::Add(_) if stood == Stands::OnHorizon => {
                (Stands::Working, horizon.admit(server))
            }
            Change::Add(_) => (Stands::Working, horizon.add(candidate)),
            Change::Remove(_) | Change::Drain(_) if all.contains(&Change::Expect(server)) => {
                (Stands::OnHorizon, horizon.retire(server))
            }
            Change::Remove(_) | Change::Drain(_) => (Stands::Out, horizon.remove(server)),
            Change::Expect(_) if stood == Stands::OnHorizon => (stood, Ok(())),
            Change::Expect(_) => (Stands::OnHorizon, horizon.add_horizon(candidate)),
            Change::Unexpect(_) => (Stands::Out, horizon.remove_horizon(server)),
            Change::Reweight(_, weight) => {
                let done = match stood {
                    Stands::Out => Ok(()),
                    Stands::Working => horizon.reweight(server, weight),
                    Stands::OnHorizon => {
                        horizon.remove_horizon(server).and_then(|()| horizon.add_horizon(candidate))
                    }
                };
                (stood, done)
            }
        };
        self.stands[number] = stands;
        done
    }
}

impl Placement for Rows {
    fn lookup(&self, hash: u64) -> Option<u16> {
        match &self.placed {
            Placed::Table(table) => table.lookup(hash),
            Placed::Other(other) => other.lookup(hash),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_comes_back_gets_its_rows_back_and_no_others_move() {
        let weights = [1, 2, 1, 1];
        let mut rows = Rows::new(Over::Table, 4096, &weights, &weights).unwrap();
        rows.apply(&[Change::Add(0), Change::Add(1), Change::Add(2), Change::Expect(3)]);
        let first = rows.answers();
        let unsafe_rows = first.iter().flatten().filter(|row| row.1).count();
        assert!((600..1040).contains(&unsafe_rows), "about a fifth: {unsafe_rows}");
        let moved = rows.apply(&[Change::Add(3)]);
        assert_eq!(moved.len(), unsafe_rows);
        let now = rows.answers().unwrap();
        assert!(moved.iter().all(|&row| now[row as usize].0 == 3));
        rows.apply(&[Change::Remove(3), Change::Remove(1), Change::Expect(1)]);
        rows.apply(&[Change::Add(1), Change::Expect(3)]);
        assert_eq!(rows.answers(), first);
    }
}
