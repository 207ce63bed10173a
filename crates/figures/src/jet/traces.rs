//! Traces of packets through full tracking and JET: figure 7, tables 1 and 2.

use crate::Result;
use crate::error::ensure;
use crate::figure::{Axis, Chart, Figure, Measured, Quote, Says, Scale, Series, Setup};
use crate::measure::{median, timed};
use crate::number::{ratio, short};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;
use std::hint::black_box;
use std::time::Duration;
use weir_hash::HashKey;
use weir_placement::{Anchor, Candidate, Horizon, HrwTable, Maglev};
use weir_sim::Zipf;
use weir_steering::jet::{FullTracking, Jet, JetTable};
use weir_steering::{ConnectionTable, Steer, Unbounded};

pub const TABLE_FULL: &str = "table HRW, full";
pub const TABLE_JET: &str = "table HRW, JET";
pub const ANCHOR_FULL: &str = "AnchorHash, full";
pub const ANCHOR_JET: &str = "AnchorHash, JET";
pub const MAGLEV: &str = "Maglev, full";
pub const METHODS: [&str; 5] = [TABLE_FULL, TABLE_JET, ANCHOR_FULL, ANCHOR_JET, MAGLEV];

/// Packets handed over at once.
const BURST: usize = 256;

/// What the runs of one method showed.
#[derive(Default)]
pub struct Found {
    pub oversubscription: Vec<f64>,
    pub tracked: Vec<f64>,
    pub mpps: Vec<f64>,
}

impl Found {
    /// Adds a point to the series of its three charts.
    pub fn into_points(self, x: f64, series: &mut [Series; 3]) {
        let samples = [self.oversubscription, self.tracked, self.mpps];
        for (series, samples) in series.iter_mut().zip(samples) {
            series.points.push(median(x, samples));
        }
    }
}

/// A pool of `n` backends and a horizon of a tenth, under the names of a run, so that the luck of
/// one table does not count twice.
struct Pool {
    working: u16,
    names: Vec<String>,
}

impl Pool {
    fn new(working: u16, run: u64) -> Self {
        let names = (0..working + working / 10).map(|i| format!("run{run}-b{i}")).collect();
        Self { working, names }
    }

    fn candidates(&self) -> Vec<Candidate<'_>> {
        let numbered = (0..).zip(&self.names);
        numbered.map(|(backend, name)| Candidate { name, backend, weight: 1 }).collect()
    }

    fn fill<P: Horizon>(&self, mut placement: P) -> Result<P> {
        for candidate in self.candidates() {
            match candidate.backend < self.working {
                true => placement.add(candidate)?,
                false => placement.add_horizon(candidate)?,
            }
        }
        Ok(placement)
    }
}

/// Plays a trace from an empty, growing connection table. Returns the answers and M packets/s.
fn play(method: &mut impl Steer<u64>, packets: &[u64]) -> (Vec<u16>, f64) {
    let mut out = vec![0u16; packets.len()];
    let ((), ms) = timed(|| {
        for (packets, out) in packets.chunks(BURST).zip(out.chunks_mut(BURST)) {
            method.steer_batch(packets, out);
        }
    });
    black_box(&out);
    (out, packets.len() as f64 / ms / 1e3)
}

/// Flows of the backend that has most, over the average; and the number of flows.
fn oversubscription(packets: &[u64], answers: &[u16], working: u16) -> (f64, usize) {
    let owners: HashMap<u64, u16> = packets.iter().copied().zip(answers.iter().copied()).collect();
    let mut loads = vec![0u32; usize::from(working)];
    for &owner in owners.values() {
        if let Some(load) = loads.get_mut(usize::from(owner)) {
            *load += 1;
        }
    }
    let most = loads.iter().copied().max().unwrap_or(0);
    (f64::from(most) * f64::from(working) / owners.len().max(1) as f64, owners.len())
}

/// All five methods on one trace, once.
pub fn run_once(found: &mut [Found; 5], packets: &[u64], working: u16, run: u64) -> Result<usize> {
    let pool = Pool::new(working, run);
    let connections = || Unbounded::<u64>::new(HashKey::from_seed(run));
    let table = pool.fill(HrwTable::new(rows(working))?)?;
    let anchor = pool.fill(Anchor::new(u32::from(working) * 11 / 8)?)?;
    let maglev = Maglev::build(65_537, &pool.candidates()[..usize::from(working)])?;
    let mut flows = 0;
    let mut add = |which: usize, answers: &[u16], mpps: f64, tracked: usize| {
        // JET decides as full tracking does (its proposition 4.1): its load need not be counted.
        if which.is_multiple_of(2) {
            let (most, all) = oversubscription(packets, answers, working);
            flows = all;
            found[which].oversubscription.push(most);
            if which < 4 {
                found[which + 1].oversubscription.push(most);
            }
        }
        found[which].mpps.push(mpps);
        found[which].tracked.push(tracked as f64);
    };
    let mut full = FullTracking::new(table.clone(), connections());
    let (of_full, mpps) = play(&mut full, packets);
    add(0, &of_full, mpps, full.connections().len());
    drop(full);
    let mut jet = JetTable::by_row(table, connections(), Duration::ZERO)?;
    let (answers, mpps) = play(&mut jet, packets);
    ensure!(answers == of_full, "JET and full tracking over a table decide differently");
    add(1, &answers, mpps, jet.connections().len());
    drop(jet);
    let mut full = FullTracking::new(anchor.clone(), connections());
    let (of_full, mpps) = play(&mut full, packets);
    add(2, &of_full, mpps, full.connections().len());
    drop(full);
    let mut jet = Jet::new(anchor, connections(), Duration::ZERO);
    let (answers, mpps) = play(&mut jet, packets);
    ensure!(answers == of_full, "JET and full tracking over an anchor decide differently");
    add(3, &answers, mpps, jet.connections().len());
    drop(jet);
    let mut full = FullTracking::new(maglev, connections());
    let (answers, mpps) = play(&mut full, packets);
    add(4, &answers, mpps, full.connections().len());
    Ok(flows)
}

/// The paper has 300 copies per server; ours is the next power of two.
fn rows(working: u16) -> u32 {
    (u32::from(working) * 300).next_power_of_two()
}

/// A flow's key: client address and ports, in no order.
pub fn flow(rank: u64) -> u64 {
    HashKey::from_seed(3).hash_word(rank)
}

const RATE: Axis = Axis { label: "M packets per second", scale: Scale::Linear };
const SKEW: Axis = Axis { label: "skew", scale: Scale::Near };

const fn fig_7_charts() -> [Chart; 6] {
    const OVER: Axis = Axis { label: "maximum oversubscription", scale: Scale::Near };
    const TRACKED: Axis = Axis { label: "tracked connections", scale: Scale::Log };
    [
        Chart { title: "n = 50: oversubscription", x: SKEW, y: OVER },
        Chart { title: "n = 50: tracked", x: SKEW, y: TRACKED },
        Chart { title: "n = 50: rate", x: SKEW, y: RATE },
        Chart { title: "n = 500: oversubscription", x: SKEW, y: OVER },
        Chart { title: "n = 500: tracked", x: SKEW, y: TRACKED },
        Chart { title: "n = 500: rate", x: SKEW, y: RATE },
    ]
}

const fn authors(like: &'static str, points: &'static [(f64, f64)]) -> Quote {
    const SOURCE: &str = "JET’s published C++ code on a machine of our kind, 10M packets";
    Quote { chart: 5, name: like, like, says: Says::Value, points, source: SOURCE }
}

pub static FIG_7: Figure = Figure {
    id: "jet-fig7",
    title: "Zipf traces: oversubscription, tracked connections, rate",
    paper: "JET, Fig. 7",
    measures: "Packets of 2^24 flows drawn from a Zipf distribution, played from an empty, growing \
        connection table through each method in bursts of 256; horizon a tenth of the backends; \
        one thread. Medians and quartiles of runs, each with other names of the backends. Full \
        tracking and JET must give the same answers, or the run fails.",
    charts: &fig_7_charts(),
    quotes: &[
        authors(ANCHOR_FULL, &[(0.6, 3.28), (1.0, 6.43), (1.4, 34.7)]),
        authors(ANCHOR_JET, &[(0.6, 15.1), (1.0, 25.3), (1.4, 32.1)]),
        authors(TABLE_FULL, &[(0.6, 3.19), (1.0, 6.09), (1.4, 30.6)]),
        authors(TABLE_JET, &[(0.6, 12.6), (1.0, 23.7), (1.4, 35.3)]),
    ],
    note: "the figure’s lines have no numbers in the text. Those shown were obtained with the \
        authors’ published code on a machine like the project’s, 10M packets, n = 500, horizon \
        50: the same as our normal size.",
    why: "Ours is faster than the published code in both roles, because a burst has many memory \
        reads under way at once, and table-based JET asks the connection table only in rows where \
        a horizon server could take over (about one in eleven). With much skew everything is in \
        the caches and the methods come together, as in the paper. Smoke runs have too few \
        packets for tables to leave the caches: only their tracked share compares. A table of \
        rows that a hash fills is a little less even than AnchorHash, as in the paper.",
    times: ["3 s", "4 min", "20 min"],
    run: fig_7,
};

fn fig_7(setup: &Setup<'_>) -> Result<Measured> {
    let packets = setup.size.pick(200_000, 10_000_000, 100_000_000);
    let runs = setup.size.pick(1, 3, 5);
    let skews: &[f64] =
        setup.size.pick(&[0.6, 1.0, 1.4], &[0.6, 1.0, 1.4], &[0.6, 0.8, 1.0, 1.2, 1.4]);
    let ranks = setup.size.pick(1 << 20, 1 << 24, 1 << 24);
    let mut all: Vec<[Series; 3]> = Vec::new();
    for chart in [0, 3] {
        all.extend(METHODS.map(|name| [0, 1, 2].map(|i| Series::new(chart + i, name))));
    }
    let mut facts = Vec::new();
    for &skew in skews {
        (setup.progress)(&format!("skew {skew}: making the trace"));
        let mut rng = ChaCha8Rng::seed_from_u64(setup.seed);
        let zipf = Zipf::new(ranks, skew)?;
        let trace: Vec<u64> = (0..packets).map(|_| flow(zipf.sample(&mut rng))).collect();
        for (number, working) in [50, 500].into_iter().enumerate() {
            let mut found: [Found; 5] = Default::default();
            let mut flows = 0;
            for run in 0..runs {
                (setup.progress)(&format!("skew {skew}, n = {working}, run {}", run + 1));
                flows = run_once(&mut found, &trace, working, setup.seed + run)?;
            }
            let middle = |which: usize| median(0.0, found[which].mpps.clone()).y;
            facts.push(format!(
                "Skew {skew}, n = {working}: {} flows, JET tracks {:.2} % of them; JET over full \
                 tracking {} times with the table, {} with AnchorHash.",
                short(flows as f64),
                100.0 * median(0.0, found[1].tracked.clone()).y / flows as f64,
                ratio(middle(1) / middle(0)),
                ratio(middle(3) / middle(2))
            ));
            for (which, found) in found.into_iter().enumerate() {
                found.into_points(skew, &mut all[number * METHODS.len() + which]);
            }
        }
    }
    Ok(Measured { series: all.into_iter().flatten().collect(), facts })
}
