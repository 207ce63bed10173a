//! Updates per second (Fig 4.16).

use super::{LUDO, OTHELLO, SETSEP, TABLE_1_1, add, named, quote, set};
use crate::Result;
use crate::figure::{Axis, Chart, Figure, Measured, Point, Says, Scale, Series, Setup};
use crate::number::{ratio, short};
use weir_bench::maps::Updates;
use weir_bench::maps::structures::find;

const BATCHED: &str = "Ludo, in batches";
const OTHELLO_BATCHED: &str = "Othello, in batches";

const fn chart(title: &'static str) -> Chart {
    Chart {
        title,
        x: Axis { label: "keys", scale: Scale::Log },
        y: Axis { label: "M updates per second, one thread", scale: Scale::Log },
    }
}

const PLACE: &str = "dissertation, section 4.6.2: > 5 Mops";

pub static FIG_4_16: Figure = Figure {
    id: "ludo-fig4.16",
    title: "Update rate by number of keys and kind",
    paper: "dissertation, Fig 4.16",
    measures: "weir bench maps with l = 20: a tenth of the keys (250K at most) change their \
        values, are deleted and come back, at nearly full load, at the maintainer and its view; \
        the first chart has as many of each kind. Medians and quartiles of the rounds, in the \
        thread’s own time.",
    charts: &[chart("As many of each kind"), chart("Insert"), chart("Change"), chart("Delete")],
    quotes: &[
        quote(0, "Ludo", LUDO, Says::AtLeast, &[(1e4, 5.0), (1e9, 5.0)], PLACE),
        quote(0, "Ludo, 163 ns", LUDO, Says::Value, &[(64e6, 6.135)], TABLE_1_1),
        quote(0, "Othello, 173 ns", OTHELLO, Says::Value, &[(64e6, 5.780)], TABLE_1_1),
    ],
    note: "Table 1.1 has the time of an update at 64M keys, drawn here as its inverse; the text \
        says more than 5M/s for Ludo, the chapter’s summary more than 6M/s.",
    why: "What limits an update here is memory: an insertion into Ludo reads and writes a cuckoo \
        table of whole keys, the locator’s graph and the view, at random places, and ours also \
        chooses paths whose seeds fit (docs/ludo.md). While they are in the cache, updates are \
        faster. In batches the memory of the next changes is on its way while one is made. \
        Othello’s change recolours a tree, where the dissertation’s writes are of the same kind. \
        SetSep has to find seeds of a group again for each bit of a value, and is measured up to a \
        million keys; without updates of its own it is built whole.",
    times: ["1 s", "20 s", "10 min"],
    run,
};

fn run(setup: &Setup<'_>) -> Result<Measured> {
    let sizes: &[usize] = setup.size.pick(
        &[10_000, 40_000],
        &[100_000, 1_000_000, 4_000_000],
        &[100_000, 1_000_000, 4_000_000, 16_000_000, 64_000_000],
    );
    let rounds = setup.size.pick(3, 5, 9);
    let names = ["ludo", "othello", "cuckoo", "partial-cuckoo", "setsep"].map(str::to_owned);
    let mut series = Vec::new();
    let mut whole = None;
    for &count in sizes {
        (setup.progress)(&format!("{} keys", short(count as f64)));
        let set = set(setup, count, 20);
        for structure in find(&names)? {
            let slow = structure.name == "setsep";
            if slow && count > 1_000_000 {
                continue;
            }
            let built = (structure.build)(&set, rounds)?;
            if slow {
                whole = Some((count as f64, built.build_s));
            }
            let batched = if structure.name == "ludo" { BATCHED } else { OTHELLO_BATCHED };
            for (name, updates) in
                [(named(structure.name), built.updates), (batched, built.batched_updates)]
            {
                if let Some(updates) = updates {
                    note(&mut series, name, count as f64, &updates);
                }
            }
        }
    }
    let measured = Measured { series, facts: Vec::new() };
    let mut facts: Vec<String> = kinds(&measured).into_iter().collect();
    if let Some((middle, low, high)) = measured.ratio(0, LUDO, OTHELLO) {
        facts.push(format!(
            "Ludo over Othello, as many of each kind: {} ({} to {} by size; the paper calls them \
             comparable, 1.06 at 64M keys).",
            ratio(middle),
            ratio(low),
            ratio(high)
        ));
    }
    facts.extend(setsep(&measured, whole));
    Ok(Measured { facts, ..measured })
}

/// What SetSep's updates cost beside Ludo's, or building it whole for `(keys, seconds)`.
fn setsep(measured: &Measured, whole: Option<(f64, f64)>) -> Option<String> {
    const PAPER: &str = "the paper’s SetSep is more than 1,000 times slower, even where it needs \
                         no rebuild";
    if let Some((.., most)) = measured.ratio(0, LUDO, SETSEP) {
        return Some(format!("Ludo makes up to {} times SetSep’s updates ({PAPER}).", ratio(most)));
    }
    let (count, seconds) = whole?;
    let rate = measured.find(0, LUDO)?.at(count)?;
    Some(format!(
        "Building SetSep whole for {} keys takes {} s, as long as {} updates of Ludo ({PAPER}).",
        short(count),
        short(seconds),
        short(seconds * rate * 1e6)
    ))
}

/// A structure's rates in all charts.
fn note(series: &mut Vec<Series>, name: &str, x: f64, updates: &Updates) {
    add(series, 0, name, Point { x, y: updates.mixed(), spread: None });
    let kinds = [Some(updates.insert), updates.change, Some(updates.delete)];
    for (chart, rate) in (1..).zip(kinds) {
        if let Some(rate) = rate {
            let spread = Some((rate.low, rate.high));
            add(series, chart, name, Point { x, y: rate.median, spread });
        }
    }
}

/// The kinds at the largest table.
fn kinds(measured: &Measured) -> Option<String> {
    let last = |chart, name| Some(short(measured.find(chart, name)?.points.last()?.y));
    let keys = short(measured.find(0, LUDO)?.points.last()?.x);
    let of = |name| {
        let (insert, change, delete) = (last(1, name)?, last(2, name)?, last(3, name)?);
        Some(format!("{name} {insert}, {change}, {delete}"))
    };
    let all: Vec<String> =
        [LUDO, BATCHED, OTHELLO, OTHELLO_BATCHED].into_iter().filter_map(of).collect();
    Some(format!("Insert, change, delete at {keys} keys, M/s: {}.", all.join("; ")))
}
