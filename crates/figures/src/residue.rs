//! residue's expected figures (docs/residue.md), confirmed or corrected.

use super::figure::{Axis, Chart, Figure, Measured, Quote, Says, Scale, Setup};
use super::simulated::{play, series};
use crate::Result;
use weir_sim::Row;

pub const FIGURES: &[&Figure] = &[&TABLE];

const NAME: &str = "residue";
const SOURCE: &str = "design of residue, table of expected figures";

const fn chart(title: &'static str, label: &'static str) -> Chart {
    Chart {
        title,
        x: Axis { label: "pool updates per minute", scale: Scale::Log },
        y: Axis { label, scale: Scale::Log },
    }
}

const fn quote(chart: usize, points: &'static [(f64, f64)]) -> Quote {
    Quote { chart, name: "expected", like: NAME, says: Says::Value, points, source: SOURCE }
}

static TABLE: Figure = Figure {
    id: "residue-table",
    title: "residue: what it must remember, by rate of pool updates",
    paper: "weir’s own method; design, expected figures",
    measures: "Simulated: 468 backends, table-based HRW with 65,537 rows, the published \
        distributions of flows and down-times. Averages from 300 s on, when the first servers \
        have come back; entries are counted as 20 bytes each.",
    charts: &[
        chart("Exceptions over live connections", "percent"),
        chart("Rows with exceptions", "percent"),
        chart("State", "bits per connection"),
    ],
    quotes: &[
        quote(0, &[(1.0, 0.22), (10.0, 2.35), (40.0, 8.1), (80.0, 13.6)]),
        quote(1, &[(1.0, 0.3), (10.0, 2.6), (40.0, 8.0), (80.0, 11.2)]),
        quote(2, &[(1.0, 0.35), (10.0, 3.8), (40.0, 12.9), (80.0, 21.7)]),
    ],
    note: "the expectation is itself a simulation, written before this one and independent of it.",
    why: "At one update a minute a run sees 17 departures, and seeds differ by a third; at the \
        other rates what is left is noise between seeds and the number of flows. The share of \
        rows grows with the number of connections for each row, so runs with fewer flows than \
        100,000 show fewer rows with exceptions, while exceptions over connections and bits per \
        connection stay. Shorter runs also see fewer returns of servers.",
    times: ["5 s", "1 min", "1 min"],
    run,
};

fn run(setup: &Setup<'_>) -> Result<Measured> {
    let rows = play(setup, "residue")?.rows;
    let of = |chart, y: fn(&Row) -> f64| {
        series(chart, NAME, &rows, |_| true, |row| row.updates_per_minute, y)
    };
    let series = vec![
        of(0, |row| row.tracked_percent),
        of(1, |row| row.marked_rows_percent),
        of(2, |row| row.state_bits_per_connection),
    ];
    let mut facts = Vec::new();
    if let (Some(rows), Some(bits)) = (series[1].at(10.0), series[2].at(10.0)) {
        facts.push(format!(
            "At 10 updates a minute {:.1} packets in 100 fall on rows without exceptions and cost \
             one read; {bits:.2} bits are kept for each connection.",
            100.0 - rows
        ));
    }
    Ok(Measured { series, facts })
}
