//! Times.

use super::figure::Point;
use std::time::Instant;

/// A result and how many milliseconds it took.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let started = Instant::now();
    let result = work();
    (result, started.elapsed().as_secs_f64() * 1e3)
}

/// The median of at least one sample, with the quartiles if there are more.
pub fn median(x: f64, mut samples: Vec<f64>) -> Point {
    samples.sort_by(f64::total_cmp);
    let at = |share: f64| samples[((samples.len() - 1) as f64 * share).round() as usize];
    Point { x, y: at(0.5), spread: (samples.len() > 1).then(|| (at(0.25), at(0.75))) }
}
