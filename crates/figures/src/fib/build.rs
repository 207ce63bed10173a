//! Construction: of control planes (Figs 3.27, 3.28), and of data planes from them (3.21, 3.29).

use super::world::{NODE, fill, filled, host, isp, overlay};
use super::{BFW, CFW, LUDO, OFW, add, add_ratio, quote};
use crate::Result;
use crate::figure::{Axis, Chart, Figure, Measured, Says, Scale, Series, Setup};
use crate::measure::{median, timed};
use crate::number::{ratio, short};
use std::hint::black_box;
use std::sync::Arc;
use weir_fib::{Bfw, Cfw, ContentName, Control, FibKey, LudoFib, Mac, Network, Ofw};
use weir_lookup::Othello;

const KEYS: Axis = Axis { label: "keys", scale: Scale::Log };

const fn seconds(title: &'static str) -> Chart {
    Chart { title, x: KEYS, y: Axis { label: "seconds", scale: Scale::Log } }
}

const fn ratios(title: &'static str) -> Chart {
    Chart { title, x: KEYS, y: Axis { label: "ratio", scale: Scale::Log } }
}

const MANY: &str = "OFW, one of 20 together";
const SCRATCH: &str = "Othello from scratch";
const SCRATCH_OFW: &str = "Othello from scratch over OFW";
const SCRATCH_MANY: &str = "Othello from scratch over OFW, one of 20 together";
const TOGETHER: usize = 20;

pub static FIG_3_21: Figure = Figure {
    id: "fib-fig3.21",
    title: "Construction of a data plane, from the skeleton and from scratch",
    paper: "dissertation, Figs 3.21 and 3.29",
    measures: "Seconds to build the data plane of one node of the L2 network from the control \
        plane’s skeleton; for OFW also each of 20 nodes whose planes are built together, and an \
        Othello built from keys and ports without a skeleton. MAC addresses, no fingerprint, \
        digests of 13 bits. In turn; medians and quartiles of the rounds.",
    charts: &[seconds("One data plane"), ratios("From scratch over from the skeleton")],
    quotes: &[quote(
        1,
        "more than 3",
        SCRATCH_OFW,
        Says::AtLeast,
        &[(1e4, 3.0), (64e6, 3.0)],
        "dissertation, section 3.7.2: > 3 times faster from the skeleton",
    )],
    note: "the text gives the ratio, at 64M entries, and that CFW is fast.",
    why: "A data plane of CFW follows slot after slot. One of OFW follows the trees of the graph, \
        whose cells are at random places, once to find the order and once to fill it: that order \
        is the same at all nodes and is found once where planes are built together, which is what \
        a controller does. Building from scratch is Othello::build here, which finds the graph’s \
        cycles by disjoint sets and in batches, and is faster than the paper’s. Ludo’s planes are \
        copies of one table.",
    times: ["1 s", "15 s", "5 min"],
    run: planes,
};

fn planes(setup: &Setup<'_>) -> Result<Measured> {
    let sizes: &[usize] = setup.size.pick(
        &[10_000, 40_000],
        &[64_000, 256_000, 1_000_000],
        &[64_000, 1_000_000, 4_000_000, 16_000_000],
    );
    let network = isp(setup);
    let mut measured = Measured::default();
    for &count in sizes {
        (setup.progress)(&format!("{} keys", short(count as f64)));
        one_size(setup, &network, count, &mut measured.series)?;
    }
    add_ratio(&mut measured, 1, 0, SCRATCH, OFW);
    add_ratio(&mut measured, 1, 0, SCRATCH, MANY);
    let mut facts = Vec::new();
    for (name, words) in [(SCRATCH_OFW, "alone"), (SCRATCH_MANY, "together with 19 others")] {
        if let Some(last) = measured.find(1, name).and_then(|series| series.points.last()) {
            facts.push(format!(
                "At {} keys a plane of OFW that is built {words} takes {} of the time from scratch \
                 (paper: less than a third at 64M).",
                short(last.x),
                ratio(1.0 / last.y)
            ));
        }
    }
    if let Some((cfw, ..)) = measured.ratio(0, CFW, OFW) {
        facts.push(format!("CFW’s takes {} of OFW’s time (paper: CFW is fast).", ratio(cfw)));
    }
    Ok(Measured { facts, ..measured })
}

fn one_size(
    setup: &Setup<'_>,
    network: &Arc<Network>,
    count: usize,
    series: &mut Vec<Series>,
) -> Result<()> {
    let (net, seed) = (|| Arc::clone(network), setup.seed);
    let mut ofw = filled(Ofw::<Mac>::new(net(), 0, count, seed), count)?;
    let mut cfw = filled(Cfw::<Mac>::new(net(), 13, count, seed), count)?;
    let mut ludo = filled::<Mac, _>(LudoFib::new(net(), count, seed)?, count)?;
    let mut bfw = filled(Bfw::<Mac>::new(net(), 16.0, count, seed), count)?;
    let many: Vec<usize> = (0..TOGETHER).collect();
    let bits = network.port_bits();
    let mut times: [(&str, Vec<f64>); 6] =
        [OFW, MANY, SCRATCH, CFW, LUDO, BFW].map(|name| (name, Vec::new()));
    for round in 0..setup.size.pick(3, 5, 7) {
        let [alone, each, scratch, cfws, ludos, bfws] = &mut times;
        alone.1.push(timed(|| drop(black_box(ofw.build(NODE)))).1);
        each.1.push(timed(|| drop(black_box(ofw.build_many(&many)))).1 / TOGETHER as f64);
        let (made, ms) = timed(|| -> Result<()> {
            let item = |n| (Mac::numbered(0, n), network.port(NODE, host(network, n)).into());
            let items: Vec<(Mac, u32)> = (0..count as u64).map(item).collect();
            black_box(Othello::build(bits, &items, seed + round)?.view());
            Ok(())
        });
        made?;
        scratch.1.push(ms);
        cfws.1.push(timed(|| drop(black_box(cfw.build(NODE)))).1);
        ludos.1.push(timed(|| drop(black_box(ludo.build(NODE)))).1);
        bfws.1.push(timed(|| drop(black_box(bfw.build(NODE)))).1);
    }
    for (name, mut ms) in times {
        ms.iter_mut().for_each(|ms| *ms /= 1e3);
        add(series, 0, name, median(count as f64, ms));
    }
    Ok(())
}

const SECOND: &[(f64, f64)] = &[(1e6, 1.0)];
const FIVE: &[(f64, f64)] = &[(64e3, 5.0), (256e3, 5.0), (1e6, 5.0)];
const SUMMARY: &str = "dissertation, section 3.7.4: about 5x slower than BFW, < 1 s for 1M";
const CFW_BFW: &str = "CFW over BFW";
const OFW_BFW: &str = "OFW over BFW";

pub static FIG_3_27: Figure = Figure {
    id: "fib-fig3.27",
    title: "Construction of the control plane",
    paper: "dissertation, Figs 3.27 and 3.28",
    measures: "Seconds to give an empty control plane its keys with their hosts, one after the \
        other: MAC addresses in the L2 network (OFW without fingerprint, CFW with digests of 13 \
        bits), names of 45 bytes in the L7 overlay (8 bits both). Drawing the keys is part of it. \
        In turn; medians and quartiles of the rounds.",
    charts: &[seconds("L2"), seconds("L7"), ratios("Over BFW, L2"), ratios("Over BFW, L7")],
    quotes: &[
        quote(0, "CFW, 1M keys", CFW, Says::AtMost, SECOND, SUMMARY),
        quote(0, "OFW, 1M keys", OFW, Says::AtMost, SECOND, SUMMARY),
        quote(2, "about 5", CFW_BFW, Says::Value, FIVE, SUMMARY),
        quote(2, "about 5", OFW_BFW, Says::Value, FIVE, SUMMARY),
    ],
    note: "the text gives the factor and the bound at a million keys.",
    why: "BFW’s control plane is a cuckoo table of whole keys: its filters belong to the data \
        planes, as in the dissertation. OFW also links an edge into its graph, and CFW enters \
        every key into two collision-avoidance sets and searches them, which is what the factor \
        is. Names are hashed for 45 bytes, and drawn for longer, in all of them alike, so the \
        factor is smaller in L7. When an edge closes a cycle, an OFW is built anew under another \
        seed; which sizes that meets is chance.",
    times: ["1 s", "25 s", "3 min"],
    run: controls,
};

fn controls(setup: &Setup<'_>) -> Result<Measured> {
    let sizes: &[usize] = setup.size.pick(
        &[10_000, 40_000],
        &[64_000, 256_000, 1_000_000],
        &[64_000, 256_000, 1_000_000, 4_000_000],
    );
    let (l2, l7) = (isp(setup), overlay(setup));
    let mut measured = Measured::default();
    for &count in sizes {
        (setup.progress)(&format!("{} keys", short(count as f64)));
        control_times::<Mac>(setup, &l2, count, [0, 13], (0, &mut measured.series))?;
        control_times::<ContentName>(setup, &l7, count, [8, 8], (1, &mut measured.series))?;
    }
    for (chart, of) in [(2, 0), (3, 1)] {
        for name in [CFW, OFW, LUDO] {
            add_ratio(&mut measured, chart, of, name, BFW);
        }
    }
    for (chart, network) in [(0, "L2"), (1, "L7")] {
        let last = |name: &str| {
            let point = measured.find(chart, name)?.points.last()?;
            Some(format!("{name} {}", short(point.x / point.y / 1e6)))
        };
        let all: Vec<String> = [BFW, LUDO, OFW, CFW].into_iter().filter_map(last).collect();
        measured
            .facts
            .push(format!("{network}, at the most keys, M keys per second: {}.", all.join(", ")));
    }
    Ok(measured)
}

/// `widths`: bits of OFW's fingerprint and of CFW's digest.
fn control_times<K: FibKey>(
    setup: &Setup<'_>,
    network: &Arc<Network>,
    count: usize,
    widths: [u32; 2],
    (chart, series): (usize, &mut Vec<Series>),
) -> Result<()> {
    fn time<K: FibKey, C: Control<K>>(mut control: C, count: usize) -> Result<f64> {
        let (done, ms) = timed(|| fill(&mut control, count));
        done?;
        Ok(ms / 1e3)
    }
    let mut times: [(&str, Vec<f64>); 4] = [OFW, CFW, LUDO, BFW].map(|name| (name, Vec::new()));
    for round in 0..setup.size.pick(3, 3, 5) {
        let (net, seed) = (|| Arc::clone(network), setup.seed + round);
        let [ofw, cfw, ludo, bfw] = &mut times;
        ofw.1.push(time(Ofw::<K>::new(net(), widths[0], count, seed), count)?);
        cfw.1.push(time(Cfw::<K>::new(net(), widths[1], count, seed), count)?);
        ludo.1.push(time::<K, _>(LudoFib::new(net(), count, seed)?, count)?);
        bfw.1.push(time(Bfw::<K>::new(net(), 16.0, count, seed), count)?);
    }
    for (name, times) in times {
        add(series, chart, name, median(count as f64, times));
    }
    Ok(())
}
