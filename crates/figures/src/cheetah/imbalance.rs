//! Imbalance by scheduler.

use crate::Result;
use crate::figure::{Axis, Chart, Figure, Measured, Quote, Says, Scale, Setup};
use crate::number::short;
use crate::simulated::{play, series};

const HASH: &str = "hash (Beamer)";
const RING: &str = "consistent hash";
const ROBIN: &str = "round robin";
const TWO: &str = "power of two choices";
const LEAST: &str = "least loaded";
const SOURCE: &str = "Cheetah, Fig. 2b at 100K; values from the authors’ published simulator";

const fn quote(name: &'static str, points: &'static [(f64, f64)]) -> Quote {
    Quote { chart: 0, name, like: name, says: Says::Value, points, source: SOURCE }
}

pub static FIG_2B: Figure = Figure {
    id: "cheetah-fig2b",
    title: "Imbalance by scheduler",
    paper: "Cheetah, Fig. 2b",
    measures: "Simulated: 468 servers that stay; the largest number of connections on a server \
        over the average, minus 1, sampled each second and averaged.",
    charts: &[Chart {
        title: "",
        x: Axis { label: "active connections", scale: Scale::Log },
        y: Axis { label: "imbalance, percent", scale: Scale::Log },
    }],
    quotes: &[
        quote(HASH, &[(100e3, 22.5)]),
        quote(ROBIN, &[(100e3, 19.3)]),
        quote(TWO, &[(100e3, 2.02)]),
        quote(LEAST, &[(100e3, 0.51)]),
    ],
    note: "the text gives factors: consistent hashing twice a uniform hash, round robin 1.2 times \
        better than a hash, power of two choices 10 times better than round robin, least loaded \
        another 4 times better. The values at 100K are those of the authors’ simulator.",
    why: "Order and factors hold. A perfect scheduler cannot be below 0.23 % at 100K, as loads are \
        whole numbers, 214 on average; ours is nearer to that than the published one by half a \
        connection per server. Averages here begin after the system has filled; an average from \
        the empty start on, as in the published runs, is a tenth to a fifth higher.",
    times: ["15 s", "30 s", "8 min"],
    run,
};

fn run(setup: &Setup<'_>) -> Result<Measured> {
    let rows = play(setup, "cheetah-2b")?.rows;
    let of = |name, method: &str| {
        let named = |row: &weir_sim::Row| row.method == method;
        series(0, name, &rows, named, |row| row.target_flows, |row| row.imbalance_percent)
    };
    let series = vec![
        of(HASH, "hash"),
        of(ROBIN, "cheetah RoundRobin"),
        of(TWO, "cheetah PowerOfTwo"),
        of(LEAST, "cheetah LeastLoaded"),
        of(RING, "ring 30"),
    ];
    let measured = Measured { series, facts: Vec::new() };
    let factor = |over, under, words: &str| {
        measured
            .ratio(0, over, under)
            .map(|(median, ..)| format!("{words} {} here.", short(median)))
    };
    let facts = [
        factor(RING, HASH, "Consistent hash over hash: 2 in the paper’s text,"),
        factor(HASH, ROBIN, "Hash over round robin: 1.2 in the text,"),
        factor(ROBIN, TWO, "Round robin over power of two choices: 10 in the text,"),
        factor(TWO, LEAST, "Power of two choices over least loaded: 4 in the text,"),
    ];
    Ok(Measured { facts: facts.into_iter().flatten().collect(), ..measured })
}
