//! Lookups per second by threads, and under updates: figures 17 and 18.

use super::{DIGEST, FUSE, MULTI, ORIGINAL};
use crate::Result;
use crate::figure::{Axis, Chart, Figure, Measured, Point, Quote, Says, Scale, Series, Setup};
use crate::number::short;
use std::time::Duration;
use weir_bench::lookup::{Amount, Load, Request, Row, rows};

/// Names of `weir bench lookup`, and ours.
const METHODS: [(&str, &str); 4] = [
    ("concury-othello", ORIGINAL),
    ("concury-fuse", FUSE),
    ("digest", DIGEST),
    ("multi-digest", MULTI),
];

fn request(setup: &Setup<'_>) -> Request {
    Request {
        methods: METHODS.iter().map(|(method, _)| (*method).to_owned()).collect(),
        backends: 128,
        amount: Amount::Lookups(setup.size.pick(1 << 18, 1 << 22, 1 << 24)),
        rounds: setup.size.pick(3, 5, 9),
        seed: setup.seed,
        ..Request::default()
    }
}

/// Both ways to look up, as series of two charts: in bursts and one at a time.
fn series(rows: &[Row], x: impl Fn(&Row) -> f64) -> Vec<Series> {
    let mut all = Vec::new();
    for chart in 0..2 {
        for (method, name) in METHODS {
            let of = |row: &&Row| match row.codec {
                Some(codec) => format!("{}-{codec}", row.method) == method,
                None => row.method == method,
            };
            let points = rows.iter().filter(of).map(|row| {
                let (y, spread) = match chart {
                    0 => (row.mlookups_per_s, row.mlookups_spread),
                    _ => (row.single_mlookups_per_s, row.single_mlookups_spread),
                };
                Point { x: x(row), y, spread: Some((spread.low, spread.high)) }
            });
            all.push(Series { points: points.collect(), ..Series::new(chart, name) });
        }
    }
    all
}

const fn charts(x: Axis) -> [Chart; 2] {
    const Y: Axis = Axis { label: "M lookups per second", scale: Scale::Linear };
    [
        Chart { title: "In bursts of 32 packets", x, y: Y },
        Chart { title: "One packet at a time", x, y: Y },
    ]
}

pub static FIG_17: Figure = Figure {
    id: "concury-fig17",
    title: "Lookup rate by threads",
    paper: "Concury, Fig. 17 (dissertation, Fig. 5.16)",
    measures: "weir bench lookup: one service of 1M states (64K in smoke size), flows of a linear \
        feedback shift register, threads on the same read-only tables; tables of digests, which \
        packets write, are split among the threads by flow.",
    charts: &charts(Axis { label: "threads", scale: Scale::Linear }),
    quotes: &[Quote {
        chart: 1,
        name: "Concury, below 1M states, 8 logical cores",
        like: ORIGINAL,
        says: Says::AtLeast,
        points: &[(8.0, 250.0)],
        source: "Concury, section 6.2: > 250 Mpps with < 1M states",
    }],
    note: "the text gives one number, reached with all threads of a processor of 4 cores and 8 \
        threads.",
    why: "The number of threads is bounded by the cores here, so the paper’s number has no \
        counterpart unless there are 8. What compares is the slope: the threads share nothing that \
        is written, so rates add up as long as the memory’s bandwidth and the shared cache allow. \
        Virtual cores that share a physical one, or neighbours on the machine, flatten it.",
    times: ["2 s", "30 s", "2 min"],
    run: threads,
};

fn threads(setup: &Setup<'_>) -> Result<Measured> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let counts: Vec<usize> = [1, 2, 4, 6, 8].into_iter().filter(|&n| n <= cores).collect();
    let request = Request {
        states: vec![setup.size.pick(64_000, 1_000_000, 1_000_000)],
        threads: counts,
        ..request(setup)
    };
    (setup.progress)("building");
    let rows = rows(&request, |_| (setup.progress)("a number of threads is done"))?;
    let series = series(&rows, |row| row.threads as f64);
    let mut facts = Vec::new();
    for line in series.iter().filter(|s| s.chart == 0) {
        if let (Some(first), Some(last)) = (line.points.first(), line.points.last()) {
            facts.push(format!(
                "{}: {} threads reach {} times the rate of one.",
                line.name,
                last.x,
                short(last.y / first.y)
            ));
        }
    }
    Ok(Measured { series, facts })
}

const fn under_updates(name: &'static str, like: &'static str, says: Says, mpps: f64) -> Quote {
    // The text gives one value for the whole range of rates: where the curve ends.
    let points: &'static [(f64, f64)] = match mpps as u32 {
        42 => &[(256e3, 42.0)],
        _ => &[(1e3, 10.0), (256e3, 10.0)],
    };
    const SOURCE: &str = "Concury, section 6.2, cost of data plane update";
    Quote { chart: 1, name, like, says, points, source: SOURCE }
}

pub static FIG_18: Figure = Figure {
    id: "concury-fig18",
    title: "Lookup rate under new states and pool changes",
    paper: "Concury, Fig. 18 (dissertation, Fig. 5.17)",
    measures: "weir bench lookup: one service of 1M states (64K in smoke size); new states come \
        and as many end at the given rate, and the pool changes every 10 s (normal: 1 s, smoke: \
        0.1 s). The control plane is a thread of its own.",
    charts: &charts(Axis { label: "new states per second", scale: Scale::Log }),
    quotes: &[
        under_updates("Concury, downgraded", ORIGINAL, Says::Value, 42.0),
        under_updates("hash table with digest", DIGEST, Says::AtMost, 10.0),
        under_updates("multi-level digest", MULTI, Says::AtMost, 10.0),
    ],
    note: "the text gives “to 42 Mpps” for Concury (taken for the highest rate) and “to < 10 Mpps” \
        for both others.",
    why: "The paper’s tables are locked while the thread that looks up writes them. Here Concury’s \
        tables are built beside the old ones by another thread and put in place at once; what \
        lookups lose is the share of the cache and of the memory that the builder takes, and the \
        first reads of new, cold tables. Tables of digests are written by the packets that start \
        a flow, and copied for a changed pool. How much that is depends on how often the pool \
        changes: only full size has the paper’s 10 s, the smaller ones change it ten and a hundred \
        times as often, and on a machine of few cores the builder also takes time from the \
        readers. Rates in bursts at rest are far above the paper’s, so the same loss is a larger \
        share.",
    times: ["20 s", "4 min", "30 min"],
    run: updates,
};

fn updates(setup: &Setup<'_>) -> Result<Measured> {
    let rates = setup.size.pick(
        &[1e3, 256e3][..],
        &[1e3, 16e3, 64e3, 256e3],
        &[1e3, 4e3, 16e3, 64e3, 256e3],
    );
    let every = setup.size.pick(0.1, 1.0, 10.0);
    let mut found = Vec::new();
    for &rate in std::iter::once(&0.0).chain(rates) {
        (setup.progress)(&format!("{} new states/s", short(rate)));
        let change_every = Duration::from_secs_f64(every);
        let load = (rate > 0.0).then_some(Load { new_states_per_s: rate, change_every });
        let request = Request {
            states: vec![setup.size.pick(64_000, 1_000_000, 1_000_000)],
            load,
            amount: Amount::Time(Duration::from_secs_f64(1.5 * every)),
            rounds: setup.size.pick(1, 3, 3),
            ..request(setup)
        };
        found.extend(rows(&request, |_| {})?);
    }
    let (rest, loaded): (Vec<Row>, Vec<Row>) =
        found.into_iter().partition(|row| row.new_states_per_s == 0.0);
    let series = series(&loaded, |row| row.new_states_per_s);
    let quiet = self::series(&rest, |_| 0.0);
    let mut facts = Vec::new();
    for (line, rest) in series.iter().zip(&quiet).filter(|(line, _)| line.chart == 0) {
        if let (Some(last), Some(rest)) = (line.points.last(), rest.points.first()) {
            facts.push(format!(
                "{}: at {} new states/s {:.0} % of its rate at rest ({} M/s).",
                line.name,
                short(last.x),
                100.0 * last.y / rest.y,
                short(rest.y)
            ));
        }
    }
    Ok(Measured { series, facts })
}
