//! Lookups beside updates, and by threads (Figs 4.19, 4.20).

use super::{
    LUDO, OTHELLO, PARTIAL, SETSEP, SHARED, Value, add, bursts, named, options, quote, set, single,
};
use crate::Result;
use crate::figure::{Axis, Chart, Figure, Measured, Point, Quote, Says, Scale, Setup};
use crate::number::short;
use weir_bench::maps::Request;
use weir_bench::maps::{Row, lookups};

const PER_S: Axis = Axis { label: "updates per second asked for", scale: Scale::Log };

pub static FIG_4_19: Figure = Figure {
    id: "ludo-fig4.19",
    title: "Lookup rate beside updates",
    paper: "dissertation, Fig 4.19",
    measures: "weir bench maps: one thread looks keys up in a shared view in bursts of 1,024 while \
        another changes, deletes and inserts keys; l = 20, 1M keys (50K in smoke, 16M in full \
        size). The rate without updates is taken right before, and the ratio is the median of the \
        rounds’. A wrong value for a key that is not being updated ends the run.",
    charts: &[
        Chart {
            title: "Rate",
            x: PER_S,
            y: Axis { label: "M lookups per second, one thread", scale: Scale::Linear },
        },
        Chart {
            title: "Over the rate without updates",
            x: PER_S,
            y: Axis { label: "ratio", scale: Scale::Linear },
        },
    ],
    quotes: &[quote(
        1,
        "no noticeable degradation",
        SHARED,
        Says::Value,
        &[(100.0, 1.0), (1.6e3, 1.0)],
        "dissertation, section 4.6.2, throughput under updates",
    )],
    note: "the text says “no noticeable throughput degradation” up to 1,600 updates per second \
        (taken as a ratio of 1); the curve’s values are not in the text.",
    why: "Readers take no lock: they read a version, the bucket, and the version again. A writer \
        costs them the cache lines that it writes, and repeated reads when they meet it, which is \
        rare. What is seen beyond that at a million updates per second is the memory that the \
        writer’s own search takes from the cache that both share. On a machine whose cores are \
        busy the writer also takes time from the reader, and the asked rate is not reached; the \
        sentence says what was.",
    times: ["1 s", "15 s", "3 min"],
    run: beside,
};

/// Bursts while updates are made: rate and ratio to the quiet rate.
fn rates_beside(row: &Row) -> Option<[Value; 2]> {
    let beside = row.beside_updates?;
    let ratio = beside.ratio_to_quiet;
    Some([(beside.mlookups_per_s, None), (ratio.median, Some((ratio.low, ratio.high)))])
}

fn beside(setup: &Setup<'_>) -> Result<Measured> {
    let keys = setup.size.pick(50_000, 1_000_000, 16_000_000);
    let plain = Request {
        lookups: setup.size.pick(1 << 18, 1 << 21, 1 << 25),
        rounds: setup.size.pick(3, 3, 7),
        ..options(setup, &["ludo-shared", "othello-shared"])
    };
    let rates = [100.0, 400.0, 1.6e3, 1e4, 1e5, 1e6];
    let ways = rates.map(|updates| Request { updates, ..plain.clone() });
    (setup.progress)("building");
    let rows = lookups(&set(setup, keys, 20), &ways)?;
    let mut series = Vec::new();
    let mut facts = Vec::new();
    for (rows, x) in rows.chunks(plain.structures.len()).zip(rates) {
        for row in rows {
            let (Some(values), Some(beside)) = (rates_beside(row), row.beside_updates) else {
                continue;
            };
            let name = named(row.structure);
            for (chart, (y, spread)) in values.into_iter().enumerate() {
                add(&mut series, chart, name, Point { x, y, spread });
            }
            if [1.6e3, 1e5, 1e6].contains(&x) {
                facts.push(format!(
                    "{name}, beside {} updates/s ({}K made per second): {:.0} % of the quiet rate, \
                     {} M/s, {} wrong answers.",
                    short(x),
                    short(beside.kupdates_per_s),
                    100.0 * beside.ratio_to_quiet.median,
                    short(beside.mlookups_per_s),
                    beside.wrong_answers
                ));
            }
        }
    }
    Ok(Measured { series, facts })
}

const THREADS: Axis = Axis { label: "threads", scale: Scale::Linear };

const fn by_threads(title: &'static str) -> Chart {
    let y = Axis { label: "M lookups per second, all threads", scale: Scale::Linear };
    Chart { title, x: THREADS, y }
}

const fn linear(like: &'static str) -> Quote {
    const SAME: &[(f64, f64)] = &[(1.0, 1.0), (2.0, 2.0), (4.0, 4.0), (8.0, 8.0), (20.0, 20.0)];
    quote(2, "linear", like, Says::Value, SAME, "dissertation, section 4.6.2: scales linearly")
}

pub static FIG_4_20: Figure = Figure {
    id: "ludo-fig4.20",
    title: "Lookup rate by threads, with and without updates",
    paper: "dissertation, Fig 4.20",
    measures: "weir bench maps, l = 20, 1M keys (50K in smoke, 16M in full size): threads draw \
        their own keys and read one table; rates are sums. Beside 100 and 1,600 updates per second \
        a writer has a thread of its own.",
    charts: &[
        by_threads("One at a time"),
        by_threads("Bursts of 1,024"),
        Chart {
            title: "Over the rate of one thread, one at a time",
            x: THREADS,
            y: Axis { label: "ratio", scale: Scale::Linear },
        },
    ],
    quotes: &[
        quote(
            0,
            "Ludo, 20 threads, 1G keys",
            LUDO,
            Says::AtLeast,
            &[(20.0, 300.0)],
            "dissertation, section 4.6.2: > 300 Mqps with 20 threads for n = 1B",
        ),
        quote(
            0,
            "Ludo, “65 Mqps on one node”",
            LUDO,
            Says::Value,
            &[(20.0, 65.0)],
            "dissertation, section 4.6.6 (and 4.1: over 65 million)",
        ),
        linear(LUDO),
        linear(OTHELLO),
    ],
    note: "the text gives “linear”, and contradicts itself in the rate at 20 threads: more than \
        300M/s in the evaluation, 65M/s in overview and summary. With 3M/s for one thread 20 \
        threads make 60.",
    why: "The number of threads is bounded by the cores here; what compares is the slope. Readers \
        share nothing that is written, so rates add up as far as memory bandwidth and the shared \
        cache allow. Virtual cores that share a physical one, or neighbours on the machine, \
        flatten it, as does the writer where there is no core left for it.",
    times: ["1 s", "20 s", "4 min"],
    run: threads,
};

fn threads(setup: &Setup<'_>) -> Result<Measured> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let counts: Vec<usize> = [1, 2, 4, 8, 16, 20].into_iter().filter(|&n| n <= cores).collect();
    let keys = setup.size.pick(50_000, 1_000_000, 16_000_000);
    let names = ["ludo", "ludo-shared", "othello", "setsep", "partial-cuckoo"];
    let plain = Request {
        threads: counts,
        lookups: setup.size.pick(1 << 17, 1 << 19, 1 << 23),
        rounds: setup.size.pick(3, 5, 7),
        ..options(setup, &names)
    };
    (setup.progress)("at rest");
    let set = set(setup, keys, 20);
    let mut series = Vec::new();
    for row in lookups(&set, std::slice::from_ref(&plain))? {
        let (x, name) = (row.threads as f64, named(row.structure));
        for (chart, (y, spread)) in [single(&row), bursts(&row)].into_iter().enumerate() {
            add(&mut series, chart, name, Point { x, y, spread });
        }
    }
    let shared = vec!["ludo-shared".to_owned()];
    let plain = Request { structures: shared, lookups: 4 * plain.lookups, ..plain };
    for updates in [100.0, 1.6e3] {
        (setup.progress)(&format!("beside {} updates/s", short(updates)));
        for row in lookups(&set, &[Request { updates, ..plain.clone() }])? {
            if let Some([(y, spread), _]) = rates_beside(&row) {
                let name = format!("{SHARED}, {} updates/s", short(updates));
                add(&mut series, 1, &name, Point { x: row.threads as f64, y, spread });
            }
        }
    }
    let mut measured = Measured { series, facts: Vec::new() };
    for name in [LUDO, OTHELLO, SETSEP, PARTIAL] {
        let Some(first) = measured.find(0, name).and_then(|s| s.points.first()).copied() else {
            continue;
        };
        let points = measured.find(0, name).map(|s| s.points.clone()).unwrap_or_default();
        for p in &points {
            let point = Point { x: p.x, y: p.y / first.y, spread: None };
            add(&mut measured.series, 2, name, point);
        }
        if let Some(last) = points.last() {
            measured.facts.push(format!(
                "{name}: {} threads reach {} times the rate of one.",
                last.x,
                short(last.y / first.y)
            ));
        }
    }
    Ok(measured)
}
