//! Lookups per second by number of keys (Figs 4.17, 4.18).

use super::{
    CUCKOO, FUSE, LUDO, OTHELLO, PARTIAL, SETSEP, TABLE_1_1, add, bursts, named, options, quote,
    set, single,
};
use crate::Result;
use crate::figure::{Axis, Chart, Figure, Measured, Point, Says, Scale, Setup};
use crate::number::{ratio, short};
use weir_bench::maps::Request;
use weir_bench::maps::lookups;

const fn chart(title: &'static str) -> Chart {
    Chart {
        title,
        x: Axis { label: "keys", scale: Scale::Log },
        y: Axis { label: "M lookups per second, one thread", scale: Scale::Log },
    }
}

const UNIFORM: usize = 0;
const ZIPF: usize = 1;
const ALIEN: usize = 2;
const BURSTS: usize = 3;

pub static FIG_4_17: Figure = Figure {
    id: "ludo-fig4.17",
    title: "Lookup rate by number of keys: uniform, Zipf and alien keys",
    paper: "dissertation, Figs 4.17 and 4.18",
    measures: "weir bench maps with l = 20 and 64-bit keys: every table is asked for all of its \
        keys first, and one wrong answer ends the run (4 in 1,000 are let pass for digests of 16 \
        bits). Structures take turns; medians and quartiles of the rounds.",
    charts: &[
        chart("One at a time, uniform keys"),
        chart("One at a time, Zipf 1"),
        chart("One at a time, alien keys"),
        chart("Bursts of 1,024, uniform keys"),
    ],
    quotes: &[
        quote(
            UNIFORM,
            "Ludo, up to 16M keys",
            LUDO,
            Says::AtLeast,
            &[(1e4, 5.0), (16e6, 5.0)],
            "dissertation, section 4.6.2: > 5M for n up to 16M",
        ),
        quote(UNIFORM, "Ludo, 303 ns", LUDO, Says::Value, &[(64e6, 3.300)], TABLE_1_1),
        quote(UNIFORM, "Othello, 187 ns", OTHELLO, Says::Value, &[(64e6, 5.348)], TABLE_1_1),
        quote(UNIFORM, "partial key, 163 ns", PARTIAL, Says::Value, &[(64e6, 6.135)], TABLE_1_1),
        quote(UNIFORM, "SetSep, 212 ns", SETSEP, Says::Value, &[(64e6, 4.717)], TABLE_1_1),
    ],
    note: "Table 1.1 has the time of a lookup at 64M keys and l = 20, drawn here as its inverse; \
        the text adds that Ludo does more than 5M/s up to 16M keys and more than 3M/s at a \
        billion. The curves’ values are not in the text.",
    why: "Rates depend on caches and clock; their order compares. Othello reads two cells and \
        xors; Ludo reads two bits of its locator, then one bucket at a place that these tell, and \
        computes a slot and a shift between, so it is slower, most of all while everything is in \
        the cache. Fuse retrieval (not in the dissertation) reads three cells near each other. Our \
        tables of digests of 16 bits compare slots one after another, without vector code, where \
        the dissertation’s partial-key table is the fastest of its Table 1.1; and SetSep here \
        reads its group bit by bit. In bursts the reads of many keys overlap, which takes most of \
        the memory’s latency away from all of them. Whether a key is in the table makes no \
        difference to structures that store nothing of a key; tables with keys or digests search \
        both buckets for an alien one, and then read no value.",
    times: ["1 s", "30 s", "15 min"],
    run,
};

fn run(setup: &Setup<'_>) -> Result<Measured> {
    let sizes: &[usize] = setup.size.pick(
        &[10_000, 40_000],
        &[100_000, 1_000_000, 4_000_000],
        &[100_000, 1_000_000, 4_000_000, 16_000_000, 64_000_000],
    );
    let plain = options(setup, &["ludo", "othello", "setsep", "partial-cuckoo", "cuckoo", "fuse"]);
    let plain = Request { rounds: setup.size.pick(3, 3, 7), ..plain };
    let ways = [
        plain.clone(),
        Request { zipf: Some(1.0), ..plain.clone() },
        Request { alien: true, ..plain },
    ];
    let mut series = Vec::new();
    for &count in sizes {
        (setup.progress)(&format!("{} keys", short(count as f64)));
        for row in lookups(&set(setup, count, 20), &ways)? {
            let chart = match (row.alien, row.zipf) {
                (true, _) => ALIEN,
                (_, Some(_)) => ZIPF,
                _ => UNIFORM,
            };
            let (x, name) = (count as f64, named(row.structure));
            let (y, spread) = single(&row);
            add(&mut series, chart, name, Point { x, y, spread });
            if chart == UNIFORM {
                let (y, spread) = bursts(&row);
                add(&mut series, BURSTS, name, Point { x, y, spread });
            }
        }
    }
    let measured = Measured { series, facts: Vec::new() };
    let facts = [order(&measured), alien(&measured), drop(&measured), overlap(&measured)];
    Ok(Measured { facts: facts.into_iter().flatten().collect(), ..measured })
}

/// Who is fastest at the largest number of keys, of those that the dissertation compares.
fn order(measured: &Measured) -> Option<String> {
    let last = |name| Some((name, measured.find(UNIFORM, name)?.points.last()?.y));
    let mut all: Vec<(&str, f64)> =
        [LUDO, OTHELLO, PARTIAL, SETSEP].into_iter().filter_map(last).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    let words: Vec<String> = all.iter().map(|(name, y)| format!("{name} {}", short(*y))).collect();
    let keys = short(measured.find(UNIFORM, LUDO)?.points.last()?.x);
    let holds = if all.first()?.0 == OTHELLO { "which holds" } else { "which does not hold" };
    Some(format!(
        "One at a time at {keys} keys, M/s: {}. The text has Othello highest, {holds} here.",
        words.join(", ")
    ))
}

fn alien(measured: &Measured) -> Option<String> {
    let over = |name: &str| {
        let valid = measured.find(UNIFORM, name)?.points.last()?.y;
        let alien = measured.find(ALIEN, name)?.points.last()?.y;
        Some(format!("{name} {}", ratio(alien / valid)))
    };
    let all: Vec<String> =
        [LUDO, OTHELLO, FUSE, PARTIAL, CUCKOO].into_iter().filter_map(over).collect();
    Some(format!("Alien keys over valid ones, one at a time: {}.", all.join(", ")))
}

/// What more keys cost with each distribution.
fn drop(measured: &Measured) -> Option<String> {
    let kept = |chart, name| {
        let points = &measured.find(chart, name)?.points;
        Some(points.last()?.y / points.first()?.y)
    };
    let (uniform, zipf) = (kept(UNIFORM, LUDO)?, kept(ZIPF, LUDO)?);
    Some(format!(
        "From the smallest to the largest table Ludo keeps {:.0} % of its rate with uniform and \
         {:.0} % with Zipf keys (paper: Zipf keys suffer less).",
        100.0 * uniform,
        100.0 * zipf
    ))
}

fn overlap(measured: &Measured) -> Option<String> {
    let gain = |name: &str| {
        let burst = measured.find(BURSTS, name)?.points.last()?.y;
        Some(format!("{name} {}", ratio(burst / measured.find(UNIFORM, name)?.points.last()?.y)))
    };
    let all: Vec<String> = [LUDO, OTHELLO, FUSE].into_iter().filter_map(gain).collect();
    Some(format!("Bursts over one at a time at the largest table: {}.", all.join(", ")))
}
