//! What can be a bucket locator: one bit for each key (Figs 4.3, 4.4).

use super::{FUSE, OTHELLO, SETSEP, add, bursts, named, options, quote, set, single};
use crate::Result;
use crate::figure::{Axis, Chart, Figure, Measured, Point, Says, Scale, Setup};
use crate::number::{ratio, short};
use weir_bench::maps::lookups;

const fn chart(title: &'static str, label: &'static str, scale: Scale) -> Chart {
    let x = Axis { label: "keys", scale: Scale::Log };
    Chart { title, x, y: Axis { label, scale } }
}

const SPACE: &str = "dissertation, section 4.4.4";

pub static FIG_4_4: Figure = Figure {
    id: "ludo-fig4.4",
    title: "Candidates for the bucket locator: a bit for each key",
    paper: "dissertation, Figs 4.3 and 4.4",
    measures: "weir bench maps with l = 1: bits per key of the allocations, and lookups by one \
        thread, uniform keys; structures take turns, medians and quartiles.",
    charts: &[
        chart("Memory", "bits per key", Scale::Linear),
        chart("One at a time", "M lookups per second", Scale::Log),
        chart("Bursts of 1,024", "M lookups per second", Scale::Log),
    ],
    quotes: &[
        quote(0, "2.33", OTHELLO, Says::Value, &[(1e5, 2.33), (1e6, 2.33), (4e6, 2.33)], SPACE),
        quote(
            0,
            "about 0.3 less",
            SETSEP,
            Says::Value,
            &[(1e5, 2.03), (1e6, 2.03), (4e6, 2.03)],
            SPACE,
        ),
    ],
    note: "the text gives Othello’s 2.33 bits, and about 0.3 less for SetSep and for filter \
        cascades at the share of ones that a cuckoo table has (28 %). Rates are not in the text.",
    why: "Filter cascades, CHD and RecSplit are not built here; fuse retrieval is, which the \
        dissertation does not know: it has half of Othello’s bits, but it cannot be updated, and \
        the locator has to be with every insertion; an update of SetSep searches seeds anew. \
        Othello’s arrays come in chunks of 4,096 bytes, which shows in tables of so few bits.",
    times: ["1 s", "5 s", "1 min"],
    run,
};

fn run(setup: &Setup<'_>) -> Result<Measured> {
    let sizes: &[usize] = setup.size.pick(
        &[10_000, 100_000],
        &[100_000, 1_000_000, 4_000_000],
        &[100_000, 1_000_000, 4_000_000, 16_000_000],
    );
    let options = options(setup, &["othello", "setsep", "fuse"]);
    let mut series = Vec::new();
    for &count in sizes {
        (setup.progress)(&format!("{} keys", short(count as f64)));
        for row in lookups(&set(setup, count, 1), std::slice::from_ref(&options))? {
            let (x, name) = (count as f64, named(row.structure));
            add(&mut series, 0, name, Point { x, y: row.bits_per_key, spread: None });
            for (chart, (y, spread)) in [(1, single(&row)), (2, bursts(&row))] {
                add(&mut series, chart, name, Point { x, y, spread });
            }
        }
    }
    let measured = Measured { series, facts: Vec::new() };
    let mut facts = Vec::new();
    for other in [SETSEP, FUSE] {
        if let (Some((bits, ..)), Some((one, ..)), Some((burst, ..))) = (
            measured.ratio(0, other, OTHELLO),
            measured.ratio(1, other, OTHELLO),
            measured.ratio(2, other, OTHELLO),
        ) {
            facts.push(format!(
                "{other} over Othello (medians over sizes): memory {}, rate one at a time {}, in \
                 bursts {}.",
                ratio(bits),
                ratio(one),
                ratio(burst)
            ));
        }
    }
    Ok(Measured { facts, ..measured })
}
