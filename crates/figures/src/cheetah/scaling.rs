//! Broken requests while the pool is scaled: figure 9.

use crate::Result;
use crate::figure::{Axis, Chart, Figure, Measured, Quote, Says, Scale, Series, Setup};
use crate::number::short;
use crate::simulated::play;
use weir_sim::{Row, Sample};

const MODULO: &str = "hash modulo servers";
const HASH: &str = "hash (stable buckets)";
const RING: &str = "consistent hash";
const CHAIN: &str = "Beamer";
const CHEETAH: &str = "Cheetah";

const LABELS: [(&str, &str); 5] = [
    ("modulo", MODULO),
    ("hash", HASH),
    ("ring 30", RING),
    ("chain", CHAIN),
    ("cheetah RoundRobin", CHEETAH),
];

const NAMES: &[&str] = &["worst second"];

const fn peak(like: &'static str, points: &'static [(f64, f64)]) -> Quote {
    const SOURCE: &str = "Cheetah, Fig. 9, caption: “up to”";
    Quote { chart: 1, name: like, like, says: Says::Value, points, source: SOURCE }
}

pub static FIG_9: Figure = Figure {
    id: "cheetah-fig9",
    title: "Broken requests while servers are added and drained (simulated)",
    paper: "Cheetah, Fig. 9",
    measures: "Simulated: 1,500 requests a second, rising to 2,500 and falling back within 40 s; \
        24 servers, 7 are added on the way up, 8 drained on the way down. Broken among the \
        requests that ended in each second.",
    charts: &[
        Chart {
            title: "Over time",
            x: Axis { label: "seconds", scale: Scale::Linear },
            y: Axis { label: "broken, percent", scale: Scale::Linear },
        },
        Chart {
            title: "Worst second",
            x: Axis { label: "", scale: Scale::Names(NAMES) },
            y: Axis { label: "broken, percent", scale: Scale::Linear },
        },
    ],
    quotes: &[
        peak(HASH, &[(0.0, 11.0)]),
        peak(RING, &[(0.0, 3.0)]),
        peak(CHAIN, &[(0.0, 0.5)]),
        peak(CHEETAH, &[(0.0, 0.0)]),
    ],
    note: "the caption gives the highest values of its curves.",
    why: "The paper’s run is a testbed with real clients; when its servers came and went, and over \
        what interval it counts, is not said. Here flows have the published durations, of which \
        half are under 10 ms and a few last for minutes; those break, at the changes, and the \
        worst second is the one after. A hash with stable buckets moves as few connections as a \
        consistent hash, so the two are alike here; one modulo the number of servers breaks most. \
        The paper’s hash lies near the first, its consistent hash below ours. Draining is what \
        hurts: the connections of a drained server live on, but their packets go elsewhere. \
        Cheetah breaks none in both.",
    times: ["5 s", "5 s", "5 s"],
    run,
};

fn run(setup: &Setup<'_>) -> Result<Measured> {
    let report = play(setup, "cheetah-9")?;
    let start = report.series.first().and_then(|s| s.samples.last()).map_or(0.0, |s| s.time - 40.0);
    let (mut series, mut facts) = (Vec::new(), Vec::new());
    for (label, name) in LABELS {
        let number = report.rows.iter().position(|row: &Row| row.method == label);
        let Some(run) = number.and_then(|n| report.series.iter().find(|s| s.run == n)) else {
            continue;
        };
        let percent = |s: &Sample| 100.0 * s.completed_broken as f64 / s.completed.max(1) as f64;
        let inside = run.samples.iter().filter(|s| s.time >= start);
        let line = Series::of(0, name, inside.clone().map(|s| (s.time - start, percent(s))));
        let worst = line.range().map_or(0.0, |(_, high)| high);
        let (broken, ended) =
            inside.fold((0, 0), |sum, s| (sum.0 + s.completed_broken, sum.1 + s.completed));
        facts.push(format!(
            "{name}: {broken} of {ended} requests broke, {} % in the worst second.",
            short(worst)
        ));
        series.push(line);
        series.push(Series::of(1, name, [(0.0, worst)]));
    }
    Ok(Measured { series, facts })
}
