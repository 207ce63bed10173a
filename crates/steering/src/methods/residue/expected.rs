//! What the published workload leaves behind, for benchmarks.

use weir_hash::{HashKey, scale};

/// Share of the live connections that are exceptions where a pool changes 10 times a minute.
pub const EXCEPTIONS: f64 = 0.0235;

/// Connections, and the share of the rows that exceptions are drawn in then, at 10 updates a
/// minute and 65,536 rows. With a million connections and more nearly all of these rows have some,
/// and this is what `weir sim residue` finds; of 100,000 connections a quarter of them has none.
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
        // Geometric between two numbers of connections, constant below the first and above the last.
        let rows = ROWS.windows(2).fold(ROWS[0].1, |rows, pair| {
            let ((few, low), (many, high)) = (pair[0], pair[1]);
            let part = ((n / few).ln() / (many / few).ln()).clamp(0.0, 1.0);
            rows * (high / low).powf(part)
        });
        Self { key: HashKey::from_seed(seed), rows }
    }

    /// Whether a connection is an exception, from its number and its row.
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

#[cfg(test)]
mod tests {
    use super::*;

    const ALL_ROWS: usize = 1 << 16;

    /// Shares of the connections that are exceptions and of the rows that have some, means over
    /// eight seeds.
    fn shares(connections: u64) -> (f64, f64) {
        const SEEDS: u64 = 8;
        let (mut exceptions, mut rows) = (0, 0);
        for seed in 1..=SEEDS {
            let left = Leftovers::new(connections as usize, seed);
            let flows = HashKey::from_seed(!seed);
            let mut marked = vec![false; ALL_ROWS];
            for connection in 0..connections {
                let row = flows.hash_word(connection) as u32 >> 16;
                if left.has(connection, row) {
                    exceptions += 1;
                    marked[row as usize] = true;
                }
            }
            rows += marked.iter().filter(|&&marked| marked).count();
        }
        let all = SEEDS as f64;
        (exceptions as f64 / all / connections as f64, rows as f64 / all / ALL_ROWS as f64)
    }

    /// What docs/residue.md says: 2.35 % of the connections; 2.6, 7.4 and 7.8 % of the rows, but
    /// for those that have too few connections for an exception to be among them.
    #[test]
    fn exceptions_and_their_rows_are_as_many_as_the_published_workload_leaves() {
        for (connections, drawn) in [(100_000, 0.026), (1_000_000, 0.074), (8_000_000, 0.078)] {
            let (exceptions, rows) = shares(connections);
            let in_row = connections as f64 / ALL_ROWS as f64 * EXCEPTIONS / drawn;
            let wanted = drawn * (1.0 - (-in_row).exp());
            println!(
                "{connections}: {exceptions:.5} exceptions, {rows:.5} of the rows ({wanted:.5})"
            );
            assert!((exceptions / 0.0235 - 1.0).abs() < 0.05, "{connections}: {exceptions}");
            assert!((rows / wanted - 1.0).abs() < 0.05, "{connections}: {rows} for {wanted}");
        }
    }

    #[test]
    fn rows_grow_with_the_connections_between_the_first_number_and_the_last() {
        let rows = |connections| Leftovers::new(connections, 1).rows;
        assert_eq!([rows(0), rows(1), rows(99_999)], [0.026; 3]);
        let steps = [100_000, 300_000, 1_000_000, 3_000_000, 8_000_000].map(rows);
        assert!(steps.is_sorted() && steps[0] < steps[1] && steps[3] < steps[4], "{steps:?}");
        assert!((steps[2] - 0.074).abs() < 1e-9 && (steps[4] - 0.078).abs() < 1e-9, "{steps:?}");
        assert_eq!(rows(usize::MAX), steps[4]);
    }
}
