//! What every bench of a burst plane says of a pipeline, whatever its ports.

use crate::Spread;
use serde::Serialize;

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
}

impl Beside {
    /// The ratio with its quartiles, and what the bare forwarder does.
    pub(super) fn ratio(&self) -> String {
        let Self { ratio_to_macswap, ratio_spread: Spread { low, high, .. }, .. } = self;
        let (mpps, ns) = (self.macswap_mpps, self.macswap_ns);
        format!(
            "{ratio_to_macswap:.2} of macswap ({low:.2}..{high:.2}; {mpps:.1} Mpps, {ns:.1} ns)"
        )
    }
}
