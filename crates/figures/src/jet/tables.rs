//! Tables 1 and 2, on traces of as many packets and flows as the paper's.

use super::traces::{
    ANCHOR_FULL, ANCHOR_JET, Found, MAGLEV, METHODS, TABLE_FULL, TABLE_JET, flow, run_once,
};
use crate::Result;
use crate::error::ensure;
use crate::figure::{Axis, Chart, Figure, Measured, Quote, Says, Scale, Series, Setup};
use crate::measure::median;
use crate::number::{ratio, short};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use weir_sim::Zipf;

const SIZES: &[&str] = &["n = 50", "n = 500"];

const fn chart(title: &'static str, label: &'static str, scale: Scale) -> Chart {
    let x = Axis { label: "backends", scale: Scale::Names(SIZES) };
    Chart { title, x, y: Axis { label, scale } }
}

const CHARTS: &[Chart] = &[
    chart("Maximum oversubscription", "largest load over average", Scale::Near),
    chart("Tracked connections", "percent of the flows", Scale::Linear),
    chart("Rate", "M packets per second", Scale::Linear),
];

const fn quote(
    chart: usize,
    like: &'static str,
    source: &'static str,
    points: &'static [(f64, f64)],
) -> Quote {
    Quote { chart, name: like, like, says: Says::Value, points, source }
}

const ONE: &str = "JET, Table 1 (UNI1)";
const TWO: &str = "JET, Table 2 (NY18)";

const MEASURES: &str = "A synthetic trace of as many packets and flows as the paper’s: each flow \
    once, the other packets Zipf over the flows with skew 1, all shuffled (fewer of both in the \
    same ratio in smoke and normal size). Horizon a tenth of the backends, no entry is evicted, \
    bursts of 256, one thread; medians and quartiles of runs with other names of the backends.";

const NOTE: &str = "all values are in the table; tracked connections are given here in percent of \
    the trace’s flows.";

const WHY: &str = "Oversubscription and the tracked share depend on the number of flows and \
    backends alone, so they compare directly; in runs with fewer flows than the paper’s \
    oversubscription is larger, as it must be. Rates were taken on an i7-7700 with real traces, \
    which have locality: packets of a flow come together, heavy hitters stay in the nearest cache. \
    Our shuffled trace has none but its skew, which is harder for every method and hardest for \
    full tracking; bursts with many reads under way make up for a part of it. So the ratio of JET \
    to full tracking is the number to look at.";

pub static TABLE_1: Figure = Figure {
    id: "jet-table1",
    title: "A trace like UNI1: 14.7M packets of 334K flows",
    paper: "JET, Table 1",
    measures: MEASURES,
    charts: CHARTS,
    quotes: &[
        quote(0, TABLE_FULL, ONE, &[(0.0, 1.088), (1.0, 1.182)]),
        quote(0, TABLE_JET, ONE, &[(0.0, 1.088), (1.0, 1.182)]),
        quote(0, ANCHOR_FULL, ONE, &[(0.0, 1.028), (1.0, 1.124)]),
        quote(0, ANCHOR_JET, ONE, &[(0.0, 1.028), (1.0, 1.124)]),
        quote(0, MAGLEV, ONE, &[(0.0, 1.028), (1.0, 1.119)]),
        quote(1, TABLE_JET, ONE, &[(0.0, 9.061), (1.0, 9.054)]),
        quote(1, ANCHOR_JET, ONE, &[(0.0, 9.103), (1.0, 9.081)]),
        quote(2, TABLE_FULL, ONE, &[(0.0, 54.040), (1.0, 52.770)]),
        quote(2, TABLE_JET, ONE, &[(0.0, 61.811), (1.0, 60.153)]),
        quote(2, ANCHOR_FULL, ONE, &[(0.0, 45.900), (1.0, 45.849)]),
        quote(2, ANCHOR_JET, ONE, &[(0.0, 33.097), (1.0, 34.282)]),
        quote(2, MAGLEV, ONE, &[(0.0, 54.383), (1.0, 53.599)]),
    ],
    note: NOTE,
    why: WHY,
    times: ["2 s", "30 s", "4 min"],
    run: |setup| run(setup, 14_700_000, 334_399, [54.04 / 61.811, 52.77 / 60.153]),
};

pub static TABLE_2: Figure = Figure {
    id: "jet-table2",
    title: "A trace like NY18: 34.1M packets of 1.6M flows",
    paper: "JET, Table 2",
    measures: MEASURES,
    charts: CHARTS,
    quotes: &[
        quote(0, TABLE_FULL, TWO, &[(0.0, 1.085), (1.0, 1.139)]),
        quote(0, TABLE_JET, TWO, &[(0.0, 1.085), (1.0, 1.139)]),
        quote(0, ANCHOR_FULL, TWO, &[(0.0, 1.014), (1.0, 1.052)]),
        quote(0, ANCHOR_JET, TWO, &[(0.0, 1.014), (1.0, 1.052)]),
        quote(0, MAGLEV, TWO, &[(0.0, 1.016), (1.0, 1.054)]),
        quote(1, TABLE_JET, TWO, &[(0.0, 9.047), (1.0, 9.075)]),
        quote(1, ANCHOR_JET, TWO, &[(0.0, 9.085), (1.0, 9.085)]),
        quote(2, TABLE_FULL, TWO, &[(0.0, 24.410), (1.0, 22.883)]),
        quote(2, TABLE_JET, TWO, &[(0.0, 49.493), (1.0, 45.567)]),
        quote(2, ANCHOR_FULL, TWO, &[(0.0, 22.772), (1.0, 22.702)]),
        quote(2, ANCHOR_JET, TWO, &[(0.0, 30.998), (1.0, 30.856)]),
        quote(2, MAGLEV, TWO, &[(0.0, 25.564), (1.0, 23.446)]),
    ],
    note: NOTE,
    why: WHY,
    times: ["2 s", "1 min", "10 min"],
    run: |setup| run(setup, 34_100_000, 1_602_007, [24.41 / 49.493, 22.883 / 45.567]),
};

/// `full_over_jet`: the paper's, with the table, for both numbers of backends.
fn run(setup: &Setup<'_>, packets: u64, flows: u64, full_over_jet: [f64; 2]) -> Result<Measured> {
    let shrink = setup.size.pick(100, 4, 1);
    let runs = setup.size.pick(1, 3, 7);
    (setup.progress)("making the trace");
    let trace = trace(packets / shrink, flows / shrink, setup.seed)?;
    let mut all: Vec<[Series; 3]> =
        METHODS.iter().map(|&name| [0, 1, 2].map(|chart| Series::new(chart, name))).collect();
    let mut facts = vec![format!(
        "The trace has {} packets of {} flows.",
        short((packets / shrink) as f64),
        short((flows / shrink) as f64)
    )];
    for (place, working) in [50, 500].into_iter().enumerate() {
        let mut found: [Found; 5] = Default::default();
        for run in 0..runs {
            (setup.progress)(&format!("n = {working}, run {}", run + 1));
            let seen = run_once(&mut found, &trace, working, setup.seed + run)?;
            ensure!(seen as u64 == flows / shrink, "{seen} flows in the trace");
        }
        let rate = |which: usize| median(0.0, found[which].mpps.clone()).y;
        facts.push(format!(
            "n = {working}: JET over full tracking with the table {} (paper {}), with AnchorHash \
             {}.",
            ratio(rate(1) / rate(0)),
            ratio(1.0 / full_over_jet[place]),
            ratio(rate(3) / rate(2))
        ));
        for (mut found, series) in found.into_iter().zip(&mut all) {
            let percent = 100.0 / (flows / shrink) as f64;
            found.tracked.iter_mut().for_each(|tracked| *tracked *= percent);
            found.into_points(place as f64, series);
        }
    }
    Ok(Measured { series: all.into_iter().flatten().collect(), facts })
}

/// Each flow once, the other packets Zipf with skew 1, all shuffled.
fn trace(packets: u64, flows: u64, seed: u64) -> Result<Vec<u64>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let zipf = Zipf::new(flows, 1.0)?;
    let mut trace: Vec<u64> = (1..=flows).map(flow).collect();
    trace.extend((flows..packets).map(|_| flow(zipf.sample(&mut rng))));
    trace.shuffle(&mut rng);
    Ok(trace)
}
