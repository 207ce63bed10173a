//! Figures by real packets: frames through the kernel plane's program, over a veth pair.

use crate::Result;
use crate::error::ensure;
use crate::figure::{Axis, Chart, Figure, Measured, Point, Quote, Says, Scale, Series, Setup};
use crate::number::{ratio, short};
use weir_bench::Company;
use weir_bench::xdp::{self, Marks, Request, Row};

pub const FIGURES: &[&Figure] = &[&CONCURY, &JET, &CHEETAH];

const TRACKED: &str = "tracked";
const CONCURY_METHOD: &str = "concury";
const JET_METHOD: &str = "jet";

/// In the order of the figure.
const NAMES: &[&str] =
    &["cheetah", "cheetah-stateful", CONCURY_METHOD, JET_METHOD, "residue", TRACKED];

const NS: &str = "ns per packet, above the reflector";
const SHARE: &str = "time over a connection table's";

const MEASURES: &str = "By real packets: established TCP flows, drawn at random for each frame, \
    through the XDP program of weir (weir bench xdp), on one core. A figure is the processor's time \
    above that of a program that only swaps the MAC addresses: all of parsing, deciding, counting \
    and readdressing, and none of the veth pair. The connection table is tracked's, an LRU map of \
    the kernel. Medians and quartiles of rounds in which the methods take turns.";

const FLOWS: Axis = Axis { label: "concurrent flows", scale: Scale::Log };

const fn by_flows(title: &'static str, label: &'static str) -> Chart {
    Chart { title, x: FLOWS, y: Axis { label, scale: Scale::Linear } }
}

const fn value(
    chart: usize,
    name: &'static str,
    like: &'static str,
    points: &'static [(f64, f64)],
    source: &'static str,
) -> Quote {
    Quote { chart, name, like, says: Says::Value, points, source }
}

static CONCURY: Figure = Figure {
    id: "concury-packets",
    title: "Concury beside a connection table, by real packets in the kernel",
    paper: "Concury, Figs. 13 to 16 and 19, through the kernel plane",
    measures: MEASURES,
    charts: &[by_flows("Here", NS), by_flows("Relative to the connection table", SHARE)],
    quotes: &[value(
        1,
        "Concury over the hash table with digest",
        CONCURY_METHOD,
        &[(1e6, 14.6 / 66.3)],
        "Concury, summary of results at 1M states: 66.3 and 14.6 Mpps",
    )],
    note: "the inverse ratio of the two rates at a million states.",
    why: "Other hardware, and more than the look-up: ours also tells the service, counts the packet, \
        keeps next hops and observes which flows are alive, and its baseline is the kernel's LRU map \
        with whole keys, not a table of digests in user space.",
    times: ["10 s", "1 min", "4 min"],
    run: |setup| rates(setup, CONCURY_METHOD),
};

static JET: Figure = Figure {
    id: "jet-packets",
    title: "JET beside full tracking, by real packets in the kernel",
    paper: "JET, Tables 1 and 2, through the kernel plane",
    measures: MEASURES,
    charts: &[by_flows("Here", NS), by_flows("Relative to full tracking", SHARE)],
    quotes: &[value(
        1,
        "JET over full tracking, table-based HRW",
        JET_METHOD,
        &[(334e3, 54.04 / 61.811), (1.6e6, 24.41 / 49.493)],
        "JET, Tables 1 (UNI1) and 2 (NY18), n = 50",
    )],
    note: "the inverse ratio of the rates of full tracking and of JET, at as many flows as the traces \
        have.",
    why: "The paper's packets come from traces, in which those of a flow come together: there a \
        connection table's entry is often in the nearest cache, here hardly ever. So full tracking \
        costs more here, and JET, which asks its table for one flow in eleven, gains more.",
    times: ["10 s", "1 min", "4 min"],
    run: |setup| rates(setup, JET_METHOD),
};

static CHEETAH: Figure = Figure {
    id: "cheetah-fig5-packets",
    title: "Cost of a packet, by real packets in the kernel",
    paper: "Cheetah, Fig. 5, through the kernel plane",
    measures: MEASURES,
    charts: &[
        Chart {
            title: "Here, 65,536 flows",
            x: Axis { label: "", scale: Scale::Names(NAMES) },
            y: Axis { label: NS, scale: Scale::Linear },
        },
        Chart {
            title: "Relative to the connection table",
            x: Axis { label: "", scale: Scale::Names(NAMES) },
            y: Axis { label: SHARE, scale: Scale::Linear },
        },
    ],
    quotes: &[value(
        1,
        "cycles/packet over those of the cuckoo table",
        SHARE,
        &[(0.0, 62.0 / 309.0), (1.0, 119.0 / 309.0), (5.0, 1.0)],
        "Cheetah, Fig. 5 at 640K req/s: 62, 119, 309 cycles",
    )],
    note: "cycles per packet read from the figure at 640K requests a second.",
    why: "Other hardware, and other ways of moving packets. The paper's stateless Cheetah has its hash \
        from the NIC; ours computes it. Its connection table is DPDK's cuckoo table, ours the kernel's \
        LRU map. In both the backends' timestamps are repaired elsewhere: at the server there, and \
        here in the program for answers, which this figure leaves out.",
    times: ["10 s", "30 s", "2 min"],
    run: costs,
};

fn measure(setup: &Setup<'_>, flows: Vec<u32>) -> Result<Vec<Row>> {
    (setup.progress)("sending packets");
    let request = Request {
        flows,
        packets: setup.size.pick(100_000, 1_000_000, 4_000_000),
        rounds: setup.size.pick(1, 5, 9),
        company: Company::Quiet,
        tunnels: Vec::new(),
        decapsulated: Vec::new(),
        nat: false,
        full_nat: false,
        lists: false,
        marks: Marks::On,
        product: None,
    };
    let report = xdp::run(&request, |rows| {
        let flows = rows.first().map_or(0, |row| row.flows);
        (setup.progress)(&format!("{flows} flows are done"));
    })?;
    let lost = report.rows.iter().find(|row| row.returned < 0.99);
    ensure!(lost.is_none(), "packets were lost: {lost:?}");
    Ok(report.rows)
}

fn time(x: f64, row: &Row) -> Point {
    let spread = row.above_floor_spread;
    Point { x, y: row.above_floor_ns, spread: Some((spread.low, spread.high)) }
}

fn share(x: f64, row: &Row) -> Point {
    let spread = row.ratio_spread;
    Point { x, y: row.ratio_to_tracked, spread: Some((spread.low, spread.high)) }
}

/// A method beside tracked, by the number of flows.
fn rates(setup: &Setup<'_>, method: &str) -> Result<Measured> {
    let flows = match method {
        JET_METHOD => setup.size.pick(vec![334_000], vec![65_536, 334_000, 1_600_000], Vec::new()),
        _ => setup.size.pick(vec![65_536], vec![1_000, 65_536, 1_000_000], Vec::new()),
    };
    let all = vec![1_000, 16_384, 65_536, 334_000, 1_000_000, 1_600_000, 4_000_000];
    let rows = measure(setup, if flows.is_empty() { all } else { flows })?;
    let mut series = [method, TRACKED].map(|name| Series::new(0, name));
    let mut shares = Series::new(1, method);
    let mut facts = Vec::new();
    for row in &rows {
        let x = f64::from(row.flows);
        for series in series.iter_mut().filter(|series| series.name == row.method) {
            series.points.push(time(x, row));
        }
        if row.method == method {
            shares.points.push(share(x, row));
            facts.push(format!(
                "{} flows: {method} takes {} ns above the reflector, {} of {TRACKED}'s; with the veth \
                 pair one core sends {} Mpps.",
                short(x),
                short(row.above_floor_ns),
                ratio(row.ratio_to_tracked),
                short(row.mpps)
            ));
        }
    }
    Ok(Measured { facts, series: series.into_iter().chain([shares]).collect() })
}

/// Every method at one number of flows.
fn costs(setup: &Setup<'_>) -> Result<Measured> {
    let rows = measure(setup, vec![65_536])?;
    let (mut times, mut shares) = (Series::new(0, NS), Series::new(1, SHARE));
    let mut facts = Vec::new();
    for (place, name) in NAMES.iter().enumerate() {
        let row = rows.iter().find(|row| row.method == *name);
        let Some(row) = row else { continue };
        times.points.push(time(place as f64, row));
        shares.points.push(share(place as f64, row));
        facts.push(format!(
            "{name}: {} ns above the reflector, {} of {TRACKED}'s.",
            short(row.above_floor_ns),
            ratio(row.ratio_to_tracked)
        ));
    }
    ensure!(times.points.len() == NAMES.len(), "methods were not measured: {facts:?}");
    Ok(Measured { facts, series: vec![times, shares] })
}
