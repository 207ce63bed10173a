//! Broken connections.

use crate::Result;
use crate::figure::{Axis, Chart, Figure, Measured, Quote, Says, Scale, Setup};
use crate::number::short;
use crate::simulated::{play, series};

const HASH: &str = "hash";
const CHAIN: &str = "daisy chain (Beamer, Faild)";
const RING: &str = "consistent hash";
const CHEETAH: &str = "Cheetah";

const SOURCE: &str = "Cheetah, Fig. 2a; values from the authors’ published simulator";

pub static FIG_2A: Figure = Figure {
    id: "cheetah-fig2a",
    title: "Broken connections by rate of pool updates",
    paper: "Cheetah, Fig. 2a",
    measures: "Simulated: 468 servers that leave and return after the published down-times, \
        flows of the published durations and sizes; the share of flows that had a packet sent to \
        another server while theirs lived.",
    charts: &[Chart {
        title: "",
        x: Axis { label: "DIP updates per minute", scale: Scale::Log },
        y: Axis { label: "broken connections, percent", scale: Scale::Log },
    }],
    quotes: &[
        Quote {
            chart: 0,
            name: HASH,
            like: HASH,
            says: Says::Value,
            points: &[
                (1.56, 0.099),
                (3.12, 0.199),
                (7.8, 0.493),
                (15.6, 1.006),
                (31.2, 1.960),
                (78.0, 4.905),
            ],
            source: SOURCE,
        },
        Quote {
            chart: 0,
            name: CHAIN,
            like: CHAIN,
            says: Says::Value,
            points: &[
                (1.56, 0.0004),
                (3.12, 0.0016),
                (7.8, 0.0102),
                (15.6, 0.038),
                (31.2, 0.137),
                (78.0, 0.624),
            ],
            source: SOURCE,
        },
        Quote {
            chart: 0,
            name: CHEETAH,
            like: CHEETAH,
            says: Says::Value,
            points: &[(1.56, 0.0), (3.12, 0.0), (7.8, 0.0), (15.6, 0.0), (31.2, 0.0), (78.0, 0.0)],
            source: SOURCE,
        },
    ],
    note: "the figure has no numbers in the text beyond “almost 1 %” for Beamer at the highest \
        rate; the values are those that the authors’ simulator gives, 70,000 flows and 10,000 s. \
        Its consistent hash is not among them.",
    why: "The published “hash” is Beamer’s table without its chain (a modulo would break half of \
        all flows), and flows whose server failed live on at the server that their next packet \
        reaches; with both, the curves fall together. At the highest rates 2 % of the departures \
        last longer than the run, so ours wears the pool down to a third of its servers and hands \
        buckets over less often (hash) or more often twice (chain); the published simulation must \
        keep more of them. Small runs see few breaks of the chain at low rates: a handful, or \
        none, of some hundred thousand flows.",
    times: ["5 s", "3 min", "15 min"],
    run: run_2a,
};

fn run_2a(setup: &Setup<'_>) -> Result<Measured> {
    let rows = play(setup, "cheetah-2a")?.rows;
    let of = |name, prefix: &str| {
        let named = |row: &weir_sim::Row| row.method.starts_with(prefix);
        series(0, name, &rows, named, |row| row.updates_per_minute, |row| row.broken_percent)
    };
    let series =
        vec![of(HASH, "hash"), of(CHAIN, "chain"), of(RING, "ring"), of(CHEETAH, "cheetah")];
    let measured = Measured { series, facts: Vec::new() };
    let mut facts = Vec::new();
    if let Some((median, low, high)) = measured.ratio(0, RING, HASH) {
        facts.push(format!(
            "Consistent hashing breaks {} times what the table without a chain breaks (from {} to \
             {}, by rate).",
            short(median),
            short(low),
            short(high)
        ));
    }
    Ok(Measured { facts, ..measured })
}
