//! The dissertation's chapter 3: forwarding by name with Bloom filters, cuckoo tables and Othello.

mod aliens;
mod build;
pub mod forwarding;
mod memory;
mod messages;
mod ports;
mod rates;
mod world;

use super::figure::{Figure, Measured, Point, add, quote};

pub const FIGURES: &[&Figure] = &[
    &memory::FIG_3_6,
    &memory::FIG_3_7,
    &aliens::EQUATIONS,
    &ports::FIG_3_11,
    &rates::FIG_3_12,
    &rates::FIG_3_16,
    &memory::FIG_3_20,
    &build::FIG_3_21,
    &messages::FIG_3_22,
    &messages::FIG_3_24,
    &rates::FIG_3_26,
    &build::FIG_3_27,
    &forwarding::FIG_3_30,
    &forwarding::FIG_3_34,
];

const BFW: &str = "BFW";
const CFW: &str = "CFW";
const OFW: &str = "OFW";
const LUDO: &str = "Ludo";
const GATEWAY: &str = "gateway, whole keys";

/// A value without spread.
fn at(x: f64, y: f64) -> Point {
    Point { x, y, spread: None }
}

/// Adds to a chart what one series of another chart is over another, where both have a value.
fn add_ratio(measured: &mut Measured, chart: usize, of: usize, over: &str, under: &str) {
    let (Some(a), Some(b)) = (measured.find(of, over), measured.find(of, under)) else { return };
    let name = format!("{over} over {under}");
    measured.series.push(super::simulated::quotient(chart, &name, a, b));
}
