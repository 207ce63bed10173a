//! Time that a thread has run.

use std::time::Instant;

/// Shorter work is timed by the clock on the wall: the kernel brings a running thread's own time up
/// to date only at its ticks.
const TICKS: f64 = 0.1;

/// The thread's own time, in seconds, if the kernel tells it.
fn own() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(text.split_whitespace().next()?.parse::<f64>().ok()? / 1e9)
}

/// Runs `work`; also how many seconds the thread took for it, those that others had the processor
/// left out.
pub fn timed<R>(work: impl FnOnce() -> R) -> (R, f64) {
    let (start, wall) = (own(), Instant::now());
    let result = work();
    let wall = wall.elapsed().as_secs_f64();
    match (start, own()) {
        (Some(start), Some(end)) if wall > TICKS && end > start => (result, end - start),
        _ => (result, wall),
    }
}
