//! What a lookup costs by number of ports (Fig 3.11).

use super::world::{Draw, Rates, Widths, World, mesh};
use super::{BFW, CFW, LUDO, OFW, add, at, quote};
use crate::Result;
use crate::figure::{Axis, Chart, Figure, Measured, Point, Says, Scale, Setup};
use crate::number::ratio;
use weir_fib::ContentName;

const PORTS: Axis = Axis { label: "ports of the node", scale: Scale::Log };
const LEAST: f64 = 8.0;

const fn chart(title: &'static str, label: &'static str) -> Chart {
    Chart { title, x: PORTS, y: Axis { label, scale: Scale::Log } }
}

pub static FIG_3_11: Figure = Figure {
    id: "fib-fig3.11",
    title: "Cost of a lookup by number of ports",
    paper: "dissertation, Fig 3.11",
    measures: "Time of a lookup one at a time in an overlay whose nodes have so many ports: names \
        of 45 bytes, 8 bits for fingerprint and digest, 100K keys (10K in smoke, 4M in full size). \
        Forwarders take turns; medians and quartiles of the rounds.",
    charts: &[
        chart("Valid keys", "ns per lookup"),
        chart("Alien keys", "ns per lookup"),
        chart("Valid keys, over the time with 8 ports", "ratio"),
    ],
    quotes: &[
        quote(
            2,
            "linear in the number of ports",
            BFW,
            Says::Value,
            &[(16.0, 2.0), (32.0, 4.0), (64.0, 8.0), (128.0, 16.0), (256.0, 32.0)],
            "dissertation, section 3.5.4: linear to d",
        ),
        quote(
            2,
            "3 hashes for a valid key",
            OFW,
            Says::Value,
            &[(16.0, 1.0), (32.0, 1.0), (64.0, 1.0), (128.0, 1.0), (256.0, 1.0)],
            "dissertation, section 3.5.4: exactly 3 for a valid key",
        ),
    ],
    note: "the paper counts calls of a hash function: 3 for OFW, at most 9 for CFW, linear in the \
        number of ports for BFW. Here time is measured; the quotes are what those counts say about \
        its growth.",
    why: "BFW asks half of the ports’ filters for a valid key on average and all of them for an \
        alien one. It hashes the key for each filter anew, as the paper’s does. OFW, CFW and Ludo \
        do not know how many ports there are but by the width of a value.",
    times: ["1 s", "20 s", "8 min"],
    run,
};

fn run(setup: &Setup<'_>) -> Result<Measured> {
    let count = setup.size.pick(10_000, 100_000, 4_000_000);
    let widths = Widths { ofw: 8, cfw: 8, bfw: 16.0 };
    let all = [8, 16, 32, 64, 128, 256];
    let ports = setup.size.pick(&[8, 64][..], &all, &all);
    let mut measured = Measured::default();
    for &ports in ports {
        (setup.progress)(&format!("{ports} ports"));
        let world = World::<ContentName>::new(&mesh(ports), count, widths, setup.seed)?;
        for (chart, draw) in [(0, Draw::Uniform), (1, Draw::Alien)] {
            for Rates { name, single, .. } in world.rates(setup, ports as f64, draw)? {
                add(&mut measured.series, chart, name, time(single));
            }
        }
    }
    for name in [OFW, CFW, LUDO, BFW] {
        let Some(points) = measured.find(0, name).map(|series| series.points.clone()) else {
            continue;
        };
        let Some(base) = points.iter().find(|p| p.x == LEAST).map(|p| p.y) else { continue };
        for p in &points {
            add(&mut measured.series, 2, name, at(p.x, p.y / base));
        }
        if let Some(last) = points.last() {
            measured.facts.push(format!(
                "{name}: with {} ports a lookup of a valid key takes {} times as long as with 8.",
                last.x,
                ratio(last.y / base)
            ));
        }
    }
    Ok(measured)
}

/// ns from M/s.
fn time(rate: Point) -> Point {
    let spread = rate.spread.map(|(low, high)| (1e3 / high, 1e3 / low));
    Point { x: rate.x, y: 1e3 / rate.y, spread }
}
