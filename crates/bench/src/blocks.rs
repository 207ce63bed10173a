//! Times of blocks of lookups, and the rate that they come to.

use std::time::Duration;

/// What becomes of blocks that took over four times as long as the median one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Slow {
    /// They are left out: nothing changes meanwhile, so the thread was interrupted, for thousands
    /// of times the length of a lookup.
    LeftOut,
    /// They count: somebody writes meanwhile, and waiting for a writer is a reader's own time.
    Kept,
}

/// Millions of lookups per second; 0 without blocks. A block has `size` lookups.
pub(crate) fn rate(mut blocks: Vec<Duration>, size: usize, slow: Slow) -> f64 {
    if blocks.is_empty() {
        return 0.0;
    }
    if slow == Slow::LeftOut {
        let middle = blocks.len() / 2;
        let (_, &mut median, _) = blocks.select_nth_unstable(middle);
        blocks.retain(|&block| block <= 4 * median);
    }
    let spent: Duration = blocks.iter().sum();
    (blocks.len() * size) as f64 / spent.as_secs_f64() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_blocks_count_where_somebody_writes() {
        let mut blocks = vec![Duration::from_micros(10); 99];
        blocks.push(Duration::from_micros(1010));
        // 1,000 lookups in 10 us: 100 M/s. With the slow block, 100,000 in 2,000 us.
        assert!((rate(blocks.clone(), 1000, Slow::LeftOut) - 100.0).abs() < 1e-9);
        assert!((rate(blocks, 1000, Slow::Kept) - 50.0).abs() < 1e-9);
        assert_eq!(rate(Vec::new(), 1000, Slow::LeftOut), 0.0);
    }
}
