//! What every bench of a burst plane says of a pipeline, whatever its ports.

use crate::Spread;
use serde::Serialize;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use weir_testbed::process::time_stamp;

/// A pipeline beside a bare forwarder, which swaps MAC addresses and does nothing else. Rates are of all cores
/// together, medians of the rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Beside {
    /// Which ports the plane has.
    pub plane: &'static str,
    /// The steering method.
    pub method: &'static str,
    /// How frames get to backends.
    pub forward: &'static str,
    /// Flows, of which the frames are.
    pub flows: u32,
    /// Number of cores that run the pipeline, each with ports of its own.
    pub cores: usize,
    /// Millions of packets through the whole pipeline for each second of the processors that it takes.
    pub mpps: f64,
    /// The same of the bare forwarder.
    pub macswap_mpps: f64,
    /// Median of the rounds' ratios of the two rates.
    pub ratio_to_macswap: f64,
    /// Quartiles of that ratio over the rounds.
    pub ratio_spread: Spread,
    /// Nanoseconds of a core per packet.
    pub ns: f64,
    /// As `ns`, of the bare forwarder.
    pub macswap_ns: f64,
    /// Cycles of a core per packet: `ns` by the rate of the time stamp counter, which is the processor's nominal one.
    /// None where there is no such counter.
    pub cycles: Option<f64>,
    /// As `cycles`, of the bare forwarder.
    pub macswap_cycles: Option<f64>,
}

/// Cycles in so many nanoseconds.
pub(super) fn cycles(ns: f64) -> Option<f64> {
    static IN_A_NANOSECOND: OnceLock<Option<f64>> = OnceLock::new();
    IN_A_NANOSECOND.get_or_init(counted).map(|cycles| ns * cycles)
}

/// Cycles of the time stamp counter in a nanosecond, counted.
fn counted() -> Option<f64> {
    let (begin, at) = (Instant::now(), time_stamp()?);
    std::thread::sleep(Duration::from_millis(20));
    let (cycles, time) = (time_stamp()?.wrapping_sub(at), begin.elapsed());
    Some(cycles as f64 / time.as_nanos() as f64)
}

impl Beside {
    /// The ratio with its quartiles, and what the bare forwarder does.
    pub(super) fn ratio(&self) -> String {
        let Self { ratio_to_macswap, ratio_spread: Spread { low, high, .. }, .. } = self;
        let (mpps, ns) = (self.macswap_mpps, self.macswap_ns);
        let cycles = self.cycles.map_or(String::new(), |cycles| format!("{cycles:.0} cycles, "));
        format!(
            "{cycles}{ratio_to_macswap:.2} of macswap ({low:.2}..{high:.2}; {mpps:.1} Mpps, {ns:.1} ns)"
        )
    }
}
