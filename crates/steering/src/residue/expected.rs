//! What the published workload leaves behind, for benchmarks.

use weir_lookup::HashKey;
use weir_wire::hash::scale;

/// Live connections that are exceptions, at 10 updates a minute.
pub const EXCEPTIONS: f64 = 0.0235;

/// Connections, and the share of the rows that have exceptions then, at 10 updates a minute and
/// 65,536 rows. Below 100,000 connections most of the rows that have moved have none at all.
/// (`weir sim` with the scenario `residue` and other numbers of flows.)
const ROWS: [(f64, f64); 3] = [(1e5, 0.026), (1e6, 0.074), (8e6, 0.078)];

/// Which connections are exceptions: a stand-in for a history of the published workload at 10
/// updates a minute (docs/residue.md). Exceptions stand together, in the rows that have moved while
/// their connections lived.
#[derive(Clone, Copy, Debug)]
pub struct Leftovers {
    key: HashKey,
    rows: f64,
}

impl Leftovers {
    /// For this many connections. `seed` makes every run with it the same.
    pub fn new(connections: usize, seed: u64) -> Self {
        let n = connections as f64;
        let after = ROWS.iter().position(|row| row.0 > n).unwrap_or(ROWS.len());
        let rows = match (after.checked_sub(1).map(|at| ROWS[at]), ROWS.get(after)) {
            (None, Some(first)) => first.1,
            (Some(last), None) => last.1,
            (Some(low), Some(high)) => {
                let part = (n / low.0).ln() / (high.0 / low.0).ln();
                low.1 * (high.1 / low.1).powf(part)
            }
            (None, None) => EXCEPTIONS,
        };
        Self { key: HashKey::from_seed(seed), rows }
    }

    /// Whether a connection is one, from its number and its row.
    pub fn has(&self, connection: u64, row: u32) -> bool {
        let below = |hash: u64, share: f64| scale((hash >> 32) as u32, 1 << 24) < limit(share);
        below(self.key.hash_word(u64::from(row)), self.rows)
            && below(self.key.hash_word(!connection), EXCEPTIONS / self.rows)
    }
}

/// A share of 2^24.
fn limit(share: f64) -> u32 {
    (share * f64::from(1 << 24)) as u32
}
