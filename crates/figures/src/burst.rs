//! Concury's network figures over the burst plane, whose ports are memory: the software of a forwarder is measured,
//! cards and wires are not.

use super::figure::{
    Axis, Chart, Figure, Measured, Point, Quote, Says, Scale, Series, Setup, quote,
};
use crate::Result;
use crate::number::{ratio, short};
use weir_bench::plane::{self, Forward, Request, Row};
use weir_steering::MethodId;

pub const FIGURES: &[&Figure] = &[&FIG_19, &FIG_5_19, &FIG_5_20];

const ONE: &str = "concury, 1 core";
const TWO: &str = "concury, 2 cores";
const TABLE_ONE: &str = "connection table, 1 core";
const TABLE_TWO: &str = "connection table, 2 cores";
const CAPACITY: &str = "MAC addresses swapped, 1 core";
const MILLION: &str = "concury";

const MEASURES: &str = "The whole pipeline of the burst plane (parse, service, decision, next hop, counters) over \
    ports of memory: frames stand in a stock of all connections in random order, are copied into the port's \
    buffers as a card does it, and sent ones give their buffers back. The capacity is a forwarder over the same \
    port that swaps MAC addresses and does nothing else, in the same rounds. Rates are for each second of the \
    processors. The hash table is the plane's connection table, which has every connection with its whole key.";

const WHY: &str = "The paper's capacity is what two cards of 10 or 100 Gbit/s and their driver carry, ours what a \
    core does without either: a swap of addresses in a buffer that is in its cache, which takes a few nanoseconds. \
    So a share of it is a much harder measure here. Over null ports of DPDK, whose driver takes its time as the \
    paper's does, the same pipeline has a larger share (weir bench plane --ports dpdk).";

const NOTE: &str =
    "shares of the paper's capacity, a forwarder that reads five-tuples and looks nothing up.";

const BY_FLOWS: Axis = Axis { label: "connections", scale: Scale::Log };

const CHARTS: &[Chart] = &[
    Chart {
        title: "Rate",
        x: BY_FLOWS,
        y: Axis { label: "million packets per second", scale: Scale::Linear },
    },
    Chart {
        title: "Share of the capacity of as many cores",
        x: BY_FLOWS,
        y: Axis { label: "share", scale: Scale::Linear },
    },
];

/// Rates by connections, with frames of one length.
const fn rates(
    [id, title, paper]: [&'static str; 3],
    quotes: &'static [Quote],
    run: fn(&Setup<'_>) -> Result<Measured>,
) -> Figure {
    Figure {
        id,
        title,
        paper,
        measures: MEASURES,
        charts: CHARTS,
        quotes,
        note: NOTE,
        why: WHY,
        times: ["10 s", "2 min", "20 min"],
        run,
    }
}

static FIG_19: Figure = rates(
    [
        "concury-fig19",
        "Throughput of a burst plane by connections, frames of 64 bytes",
        "Concury, Fig. 19 (dissertation, Fig. 5.21), over ports of memory",
    ],
    &[
        quote(
            1,
            "Concury, one thread",
            ONE,
            Says::AtLeast,
            &[(1e3, 17.63 / 28.24), (16e6, 17.63 / 28.24)],
            "Concury, section 6.3: at least 17.63 of 28.24 Mpps, to 16M connections",
        ),
        quote(
            1,
            "Concury, two threads",
            TWO,
            Says::Value,
            &[(1e6, 1.0)],
            "Concury, section 6.3: two threads reach the capacity",
        ),
    ],
    |setup| throughput(setup, 64),
);

static FIG_5_19: Figure = rates(
    [
        "concury-fig5.19",
        "Throughput of a burst plane by connections, frames of 256 bytes",
        "Dissertation, Fig. 5.19, over ports of memory",
    ],
    &[quote(
        1,
        "Concury, one thread",
        ONE,
        Says::Value,
        &[(1e6, 0.93)],
        "Dissertation, section 5.6.4: 67.20 of 72.02 Gbit/s",
    )],
    |setup| throughput(setup, 256),
);

static FIG_5_20: Figure = Figure {
    id: "concury-fig5.20",
    title: "Latency of a burst of 24 packets, as a distribution",
    paper: "Dissertation, Fig. 5.20, over ports of memory",
    measures: "Time by the wall clock from before 24 packets are fetched from a port of memory until all have been \
        sent, frames of 256 bytes. What other work takes of the processor meanwhile is in it.",
    charts: &[Chart {
        title: "",
        x: Axis { label: "microseconds", scale: Scale::Log },
        y: Axis { label: "share of bursts that take at most so long", scale: Scale::Linear },
    }],
    quotes: &[quote(
        0,
        "Concury",
        MILLION,
        Says::AtLeast,
        &[(7.0, 0.99)],
        "Dissertation, section 5.6.4: more than 99 % in less than 7 us",
    )],
    note: "the one number in the text.",
    why: WHY,
    times: ["5 s", "15 s", "2 min"],
    run: latency,
};

/// Cores that there are, of two.
pub fn cores() -> Vec<usize> {
    let two = std::thread::available_parallelism().is_ok_and(|there| there.get() >= 2);
    if two { vec![1, 2] } else { vec![1] }
}

fn throughput(setup: &Setup<'_>, frame_bytes: usize) -> Result<Measured> {
    const NORMAL: &[u32] = &[1_000, 16_000, 256_000, 1_000_000, 4_000_000];
    const FULL: &[u32] = &[1_000, 16_000, 64_000, 256_000, 1_000_000, 4_000_000, 16_000_000];
    let request = Request {
        methods: vec![MethodId::Concury, MethodId::Tracked],
        forward: vec![Forward::L2],
        flows: setup.size.pick(&[1_000, 16_000][..], NORMAL, FULL).to_vec(),
        residue_flows: Vec::new(),
        cores: cores(),
        frame_bytes,
        packets: setup.size.pick(100_000, 1_000_000, 4_000_000),
        rounds: setup.size.pick(2, 7, 10),
        seed: setup.seed,
    };
    let report = plane::run(&request, |row| (setup.progress)(&row.to_string()))?;
    let mut series = Vec::new();
    for (chart, name) in [(0, CAPACITY)].into_iter().chain(
        [0, 1]
            .into_iter()
            .flat_map(|chart| [ONE, TWO, TABLE_ONE, TABLE_TWO].map(|name| (chart, name))),
    ) {
        let points: Vec<Point> =
            report.rows.iter().filter_map(|row| point(chart, name, row)).collect();
        if !points.is_empty() {
            series.push(Series { points, ..Series::new(chart, name) });
        }
    }
    let facts =
        report.rows.iter().filter(|row| row.beside.flows == *request.flows.last().unwrap_or(&0));
    let facts = facts.map(|row| {
        format!(
            "{} connections, {} on {} core{}: {} Mpps, {} of the capacity, {} of it with bare reads of as much \
             memory.",
            short(f64::from(row.beside.flows)),
            row.beside.method,
            row.beside.cores,
            if row.beside.cores == 1 { "" } else { "s" },
            short(row.beside.mpps),
            ratio(row.beside.ratio_to_macswap),
            ratio(row.ratio_to_bound),
        )
    });
    Ok(Measured { facts: facts.collect(), series })
}

/// A row's point in a series, if it belongs there.
fn point(chart: usize, name: &str, row: &Row) -> Option<Point> {
    let beside = &row.beside;
    let x = f64::from(beside.flows);
    let concury = beside.method == MethodId::Concury.name();
    if name == CAPACITY {
        let spread = row.macswap_mpps_spread;
        let of = Point { x, y: beside.macswap_mpps, spread: Some((spread.low, spread.high)) };
        return (concury && beside.cores == 1).then_some(of);
    }
    let own = match (concury, beside.cores) {
        (true, 1) => ONE,
        (true, _) => TWO,
        (false, 1) => TABLE_ONE,
        (false, _) => TABLE_TWO,
    };
    let (y, spread) = match chart {
        0 => (beside.mpps, row.mpps_spread),
        _ => (beside.ratio_to_macswap, beside.ratio_spread),
    };
    (own == name).then_some(Point { x, y, spread: Some((spread.low, spread.high)) })
}

/// Packets of a burst in the dissertation.
const PACKETS: usize = 24;

fn latency(setup: &Setup<'_>) -> Result<Measured> {
    let flows =
        setup.size.pick(&[16_000][..], &[16_000, 1_000_000], &[16_000, 1_000_000, 16_000_000]);
    let bursts = setup.size.pick(5_000, 200_000, 1_000_000);
    let (mut series, mut facts) = (Vec::new(), Vec::new());
    for &count in flows {
        (setup.progress)(&format!("{count} connections"));
        for method in [MethodId::Concury, MethodId::Tracked] {
            let mut times = plane::latencies(method, count, 256, (PACKETS, bursts), setup.seed)?;
            times.sort_by(f64::total_cmp);
            let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize] / 1e3;
            // The paper's one number is held against what stands nearest to a million connections.
            let held = method == MethodId::Concury && count == flows[flows.len().min(2) - 1];
            let name = match (held, method) {
                (true, _) => MILLION.to_owned(),
                (false, method) => {
                    let name =
                        if method == MethodId::Concury { "concury" } else { "connection table" };
                    format!("{name}, {} connections", short(f64::from(count)))
                }
            };
            let mut points: Vec<(f64, f64)> = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1.0]
                .map(|share| (at(share), share))
                .to_vec();
            let within = times.partition_point(|ns| *ns <= 7e3) as f64 / times.len() as f64;
            points.push((7.0, within));
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            series.push(Series::of(0, name, points));
            facts.push(format!(
                "{} at {} connections: half of the bursts take at most {} us, 99 % {} us, 99.9 % {} us; {} % less \
                 than 7 us.",
                method.name(),
                short(f64::from(count)),
                short(at(0.5)),
                short(at(0.99)),
                short(at(0.999)),
                short(within * 100.0),
            ));
        }
    }
    Ok(Measured { facts, series })
}
