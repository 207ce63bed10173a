//! Packets per second: figures 4 to 6, and what a packet costs.

use super::{CONCURY, LED, QUEUES, TRACKED, WHY, bed};
use crate::Result;
use crate::figure::{Axis, Chart, Figure, Measured, Quote, Says, Scale, Series, Setup, quote};
use crate::measure::median;
use crate::number::{ratio, short};
use weir_bench::plane::rules::Subject;
use weir_steering::MethodId;

const GAIN_CONCURY: &str = "rules over concury";
const GAIN_TRACKED: &str = "rules over a connection table";

const MEASURES: &str = "Frames of established TCP connections through a burst plane over ports of memory, on one \
    core, by the processor's time: led to their backends by their queues, with a rule for every connection in an \
    emulated card; and steered by software only, with a connection table and with concury. Medians and quartiles \
    of rounds in turn.";

const RATE: Axis = Axis { label: "M packets per second, one core", scale: Scale::Linear };
const GAIN: Axis = Axis { label: "rate with rules over rate without", scale: Scale::Linear };

const fn charts(x: Axis) -> [Chart; 2] {
    [
        Chart { title: "Rate (emulated card)", x, y: RATE },
        Chart { title: "Gain (emulated card)", x, y: GAIN },
    ]
}

const CONNECTIONS: Axis = Axis { label: "concurrent connections", scale: Scale::Log };
const SIZES: Axis = Axis { label: "bytes of a frame", scale: Scale::Linear };

const BY_CONNECTIONS: &[Chart] = &charts(CONNECTIONS);
const BY_SIZE: &[Chart] = &charts(SIZES);
const COSTS: &[Chart] = &[Chart {
    title: "",
    x: CONNECTIONS,
    y: Axis { label: "ns of the processor per packet (emulated card)", scale: Scale::Linear },
}];

pub static FIG_4: Figure = Figure {
    id: "hnlb-fig4",
    title: "The best case: one connection, one backend, frames of 64 bytes (emulated card)",
    paper: "HNLB, Fig. 4",
    measures: MEASURES,
    charts: BY_CONNECTIONS,
    quotes: &[
        quote(
            0,
            "HNLB",
            LED,
            Says::AtLeast,
            &[(1.0, 13.0)],
            "HNLB, section V-A: more than 13 mpps",
        ),
        quote(
            0,
            "software",
            TRACKED,
            Says::Value,
            &[(1.0, 12.0)],
            "HNLB, section V-A: around 12 mpps",
        ),
        quote(
            1,
            "HNLB over software",
            GAIN_TRACKED,
            Says::Value,
            &[(1.0, 13.0 / 12.0)],
            "HNLB, section V-A",
        ),
    ],
    note: "the highest rates without loss.",
    why: WHY,
    times: ["1 s", "5 s", "20 s"],
    run: |setup| by_connections(setup, &[1], 1),
};

pub static FIG_5: Figure = Figure {
    id: "hnlb-fig5",
    title: "Throughput by concurrent connections, frames of 64 bytes, ten queues (emulated card)",
    paper: "HNLB, Fig. 5",
    measures: MEASURES,
    charts: BY_CONNECTIONS,
    quotes: &[quote(
        1,
        "HNLB over software",
        GAIN_TRACKED,
        Says::Value,
        &[(8000.0, 1.5)],
        "HNLB, section V-A: 50 % more at 8000 connections",
    )],
    note: "the text gives the gain at 8,000 connections, and says that the software's rate falls with every \
        step while HNLB's is constant from 100 on.",
    why: WHY,
    times: ["3 s", "20 s", "1 min"],
    run: |setup| by_connections(setup, setup.size.pick(&[10, 8000][..], ALL, ALL), QUEUES),
};

const ALL: &[u32] = &[10, 100, 1000, 2000, 4000, 8000];

pub static FIG_6: Figure = Figure {
    id: "hnlb-fig6",
    title: "Throughput by the size of frames, 1,000 connections, ten queues (emulated card)",
    paper: "HNLB, Fig. 6",
    measures: MEASURES,
    charts: BY_SIZE,
    quotes: &[quote(
        1,
        "HNLB over software",
        GAIN_TRACKED,
        Says::AtLeast,
        &[(128.0, 1.43)],
        "HNLB, section V-A: at least 43 % at 128 bytes",
    )],
    note: "beyond 128 bytes the paper's wire is full in both cases (10 Gbit/s), so it shows no gain.",
    why: WHY,
    times: ["3 s", "15 s", "1 min"],
    run: by_size,
};

pub static COST: Figure = Figure {
    id: "hnlb-cost",
    title: "What a packet costs with a rule and without (emulated card)",
    paper: "HNLB, section VI",
    measures: MEASURES,
    charts: COSTS,
    quotes: &[] as &[Quote],
    note: "the paper gives no cycles; it says that hashing and looking up are what a rule saves, and that the \
        look-up grows with the table.",
    why: WHY,
    times: ["3 s", "20 s", "1 min"],
    run: costs,
};

/// Nanoseconds for a packet: of rounds, by rules, by concury, by a connection table.
fn rounds(setup: &Setup<'_>, connections: u32, bytes: usize, queues: u16) -> Result<[Vec<f64>; 3]> {
    (setup.progress)(&format!("{connections} connections, {bytes} bytes"));
    let mut concury = bed(MethodId::Concury, connections, bytes, queues, setup.seed)?;
    let mut tracked = bed(MethodId::Tracked, connections, bytes, queues, setup.seed)?;
    let packets = setup.size.pick(50_000, 400_000, 2_000_000);
    let mut found = [const { Vec::new() }; 3];
    for _ in 0..setup.size.pick(3, 7, 15) {
        found[0].push(concury.cost(Subject::Led, packets)?);
        found[1].push(concury.cost(Subject::Software, packets)?);
        found[2].push(tracked.cost(Subject::Software, packets / 2)?);
    }
    Ok(found)
}

/// Adds a place along the axis to both charts.
fn place(x: f64, [led, concury, tracked]: &[Vec<f64>; 3], all: &mut [Series; 5]) {
    let rate = |ns: &[f64]| median(x, ns.iter().map(|ns| 1e3 / ns).collect());
    let gain =
        |over: &[f64]| median(x, over.iter().zip(led).map(|(over, led)| over / led).collect());
    let points = [rate(led), rate(concury), rate(tracked), gain(concury), gain(tracked)];
    all.iter_mut().zip(points).for_each(|(series, point)| series.points.push(point));
}

fn empty() -> [Series; 5] {
    [(0, LED), (0, CONCURY), (0, TRACKED), (1, GAIN_CONCURY), (1, GAIN_TRACKED)]
        .map(|(chart, name)| Series::new(chart, name))
}

fn measured(all: [Series; 5], what: &str) -> Measured {
    let mut facts = Vec::new();
    if let (Some(first), Some(last)) = (all[3].points.first(), all[3].points.last()) {
        let beside = |at: usize| all[4].points.get(at).map_or(0.0, |point| point.y);
        facts.push(format!(
            "Emulated card: with rules a core takes {} times the packets of concury at {} {what} and {} times \
             at {}; of a connection table {} and {} times.",
            ratio(first.y),
            short(first.x),
            ratio(last.y),
            short(last.x),
            ratio(beside(0)),
            ratio(beside(all[4].points.len().saturating_sub(1))),
        ));
    }
    Measured { series: all.into_iter().collect(), facts }
}

fn by_connections(setup: &Setup<'_>, connections: &[u32], queues: u16) -> Result<Measured> {
    let mut all = empty();
    for &count in connections {
        let found = rounds(setup, count, 64, queues.min(count as u16))?;
        place(count.into(), &found, &mut all);
    }
    Ok(measured(all, "connections"))
}

fn by_size(setup: &Setup<'_>) -> Result<Measured> {
    let mut all = empty();
    let sizes: &[usize] =
        setup.size.pick(&[64, 128][..], &[64, 128, 256, 512, 1024, 1500], SIZES_FULL);
    for &bytes in sizes {
        let found = rounds(setup, 1000, bytes, QUEUES)?;
        place(bytes as f64, &found, &mut all);
    }
    Ok(measured(all, "bytes"))
}

const SIZES_FULL: &[usize] = &[64, 128, 256, 512, 768, 1024, 1280, 1500];

fn costs(setup: &Setup<'_>) -> Result<Measured> {
    let mut all = [LED, CONCURY, TRACKED].map(|name| Series::new(0, name));
    for &count in setup.size.pick(&[10, 1000][..], ALL, ALL) {
        let found = rounds(setup, count, 64, QUEUES)?;
        for (series, found) in all.iter_mut().zip(found) {
            series.points.push(median(count.into(), found));
        }
    }
    Ok(Measured { series: all.into_iter().collect(), facts: Vec::new() })
}
