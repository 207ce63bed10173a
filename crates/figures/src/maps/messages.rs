//! Lengths of Ludo's update messages (section 4.5.4).

use super::{LUDO, quote, set};
use crate::Result;
use crate::figure::{Axis, Chart, Figure, Measured, Point, Says, Scale, Series, Setup};
use crate::number::short;
use weir_bench::maps::distributions::{Message, messages};

/// Kinds of `weir bench maps`, in the order of the axis.
const KINDS: &[&str] = &["insert", "insert at 95 %", "change", "delete"];

const SET: &str = "Othello set (OFW)";

pub static MESSAGES: Figure = Figure {
    id: "ludo-messages",
    title: "Length of Ludo’s update messages",
    paper: "dissertation, section 4.5.4",
    measures: "Mean bytes of the messages of a whole fill, of changes and of deletions (a tenth of \
        the keys each), l = 20, 1M keys (20K in smoke size); bars show the median and what 1 in \
        100 exceeds. The first chart is without the envelope (32 bytes), in which \
        weir says what the message is, of which table and which number, with a digest.",
    charts: &[
        Chart {
            title: "Fields",
            x: Axis { label: "kind", scale: Scale::Names(KINDS) },
            y: Axis { label: "bytes", scale: Scale::Linear },
        },
        Chart {
            title: "With envelope",
            x: Axis { label: "kind", scale: Scale::Names(KINDS) },
            y: Axis { label: "bytes", scale: Scale::Linear },
        },
    ],
    quotes: &[
        quote(
            0,
            "one bucket, no cell",
            LUDO,
            Says::AtLeast,
            &[(0.0, 8.625), (1.0, 8.625)],
            "dissertation, section 4.5.4: 1 + 30 + 2 + 8 + 8 bits and the value",
        ),
        quote(
            0,
            "no change to the lookup structure",
            LUDO,
            Says::Value,
            &[(3.0, 0.0)],
            "dissertation, section 4.4.8: item deletion",
        ),
    ],
    note: "the text gives the fields’ lengths: a bit for the type, the value, 48 bits for each \
        bucket of the path and 32 for each cell of the locator that changes. The least insertion \
        has one bucket and no cell, 69 bits with a value of 20. How many buckets and cells there \
        are on average is not in the text.",
    why: "Our fields begin at byte boundaries: 8 bytes for a value, 8 for a bucket of the path, 4 \
        for a cell, and how many there are; quick to read, and some bytes more than packed bits. A \
        deletion changes nothing in a view here either, but has a message so that views can count, \
        and see that none is missing.",
    times: ["1 s", "3 s", "3 s"],
    run,
};

fn run(setup: &Setup<'_>) -> Result<Measured> {
    let count = setup.size.pick(20_000, 1_000_000, 1_000_000);
    (setup.progress)("updating");
    let found = messages(&set(setup, count, 20))?;
    let of = |chart: usize, name: &str, structure: &str, less: f64| {
        let rows = found.iter().filter(|row| row.structure == structure);
        let point = |row: &Message| {
            let x = KINDS.iter().position(|kind| *kind == row.kind)? as f64;
            let bytes = |n: usize| n as f64 - less;
            let y = row.mean_bytes - less;
            let ends = (bytes(row.median).min(y), bytes(row.p99).max(y));
            Some(Point { x, y, spread: Some(ends) })
        };
        let mut points: Vec<Point> = rows.filter_map(point).collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        Series { points, ..Series::new(chart, name) }
    };
    let envelope = weir_fib::ENVELOPE as f64;
    let series = vec![
        of(0, LUDO, "ludo", envelope),
        of(0, SET, "othello-set", envelope),
        of(1, LUDO, "ludo", 0.0),
        of(1, SET, "othello-set", 0.0),
    ];
    let inserted = found.iter().find(|row| row.structure == "ludo" && row.kind == KINDS[0]);
    let facts = inserted.map(|row| {
        format!(
            "Of Ludo’s {} insertions of a whole fill the shortest message has {} bytes, the median \
             {}; 1 in 100 exceeds {}, the longest has {}.",
            short(row.messages as f64),
            row.least,
            row.median,
            row.p99,
            row.most
        )
    });
    Ok(Measured { series, facts: facts.into_iter().collect() })
}
