//! util+ of polling loops: figures 7 and 8.

use super::{CONCURY, LED, QUEUES, WHY, bed};
use crate::Result;
use crate::figure::{Axis, Chart, Figure, Measured, Point, Says, Scale, Setup, add, quote};
use crate::number::ratio;
use std::time::Duration;
use weir_bench::plane::rules::Subject;
use weir_steering::MethodId;

const MEASURES: &str = "A loop that polls one queue (software only, concury) or ten (rules of an emulated card, \
    half of the largest burst as B in the paper's second equation), to which packets come at a rate that is held \
    for a while. Shown are util+ by Algorithm 1, and util, the share of time that is spent on bursts. Rates are \
    over the most that the software alone takes.";

const LOAD: Axis = Axis { label: "rate over the software's most", scale: Scale::Linear };

const CHARTS: &[Chart] = &[
    Chart {
        title: "util+ (emulated card)",
        x: LOAD,
        y: Axis { label: "util+", scale: Scale::Linear },
    },
    Chart {
        title: "util, without the weight (emulated card)",
        x: LOAD,
        y: Axis { label: "util", scale: Scale::Linear },
    },
];

pub static FIG_7: Figure = Figure {
    id: "hnlb-fig7",
    title: "util+ by offered load and connections, frames of 64 bytes (emulated card)",
    paper: "HNLB, Fig. 7",
    measures: MEASURES,
    charts: CHARTS,
    quotes: &[
        quote(
            0,
            "software, 1,000 connections",
            "software only, concury, 1000 connections",
            Says::Value,
            &[(1.0, 1.0)],
            "HNLB, section V-B: 100 % at 10 mpps, its most",
        ),
        quote(
            0,
            "HNLB, 1,000 connections",
            "rules (emulated card), 1000 connections",
            Says::Value,
            &[(1.0, 0.7), (1.3, 1.0)],
            "HNLB, section V-B: 70 % at 10 mpps, 100 % at 13 mpps",
        ),
    ],
    note: "rates over 10 mpps, where the paper's software loses its first packet.",
    why: WHY,
    times: ["3 s", "20 s", "1 min"],
    run: |setup| {
        let connections = setup.size.pick(&[1000][..], &[10, 1000, 8000], &[10, 100, 1000, 8000]);
        let beds = connections.iter().map(|count| (*count, 64, format!("{count} connections")));
        loads(setup, beds.collect())
    },
};

pub static FIG_8: Figure = Figure {
    id: "hnlb-fig8",
    title: "util+ by offered load and size of frames, 1,000 connections (emulated card)",
    paper: "HNLB, Fig. 8",
    measures: MEASURES,
    charts: CHARTS,
    quotes: &[],
    note: "the paper's figure has no numbers in its text.",
    why: WHY,
    times: ["3 s", "20 s", "1 min"],
    run: |setup| {
        let sizes = setup.size.pick(&[128][..], &[128, 512, 1500], &[128, 256, 512, 1024, 1500]);
        let beds = sizes.iter().map(|bytes| (1000, *bytes, format!("{bytes} bytes")));
        loads(setup, beds.collect())
    },
};

fn loads(setup: &Setup<'_>, beds: Vec<(u32, usize, String)>) -> Result<Measured> {
    let mut series = Vec::new();
    let mut facts = Vec::new();
    for (connections, bytes, what) in beds {
        (setup.progress)(&what);
        let mut bed = bed(MethodId::Concury, connections, bytes, QUEUES, setup.seed)?;
        let packets = setup.size.pick(50_000, 400_000, 1_000_000);
        let mut costs: Vec<f64> = Vec::new();
        for _ in 0..5 {
            costs.push(bed.cost(Subject::Software, packets)?);
        }
        costs.sort_by(f64::total_cmp);
        let most = 1e9 / costs[2];
        for (subject, name) in [(Subject::Software, CONCURY), (Subject::Led, LED)] {
            let name = format!("{name}, {what}");
            let (mut points, mut processor) = (Vec::new(), 1.0f64);
            for step in 0..=setup.size.pick(5, 15, 30) {
                let x = f64::from(step) / setup.size.pick(5.0, 10.0, 20.0);
                let mut found = Vec::new();
                for _ in 0..setup.size.pick(1, 3, 5) {
                    let long = Duration::from_millis(setup.size.pick(20, 40, 100));
                    found.push(bed.offer(subject, x * most, long)?);
                }
                found.sort_by(|a, b| a.util_plus.total_cmp(&b.util_plus));
                let (low, high) = (found[0].util_plus, found[found.len() - 1].util_plus);
                let middle = found[found.len() / 2];
                let spread = (found.len() > 1).then_some((low, high));
                add(&mut series, 0, &name, Point { x, y: middle.util_plus, spread });
                add(&mut series, 1, &name, Point { x, y: middle.util, spread: None });
                processor = processor.min(middle.processor);
                // What is lost is no load that was taken.
                if middle.lost < 0.01 {
                    points.push((x, middle.util_plus));
                }
            }
            facts.push(format!(
                "{name}: up to {} of the software's most next to nothing is lost, and util+ is a straight line \
                 of the load with R^2 = {}; getrusage says {} of a processor at the least.",
                ratio(points.last().map_or(0.0, |point| point.0)),
                ratio(straightness(&points)),
                ratio(processor),
            ));
        }
    }
    Ok(Measured { series, facts })
}

/// The coefficient of determination of a straight line through points.
fn straightness(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n.max(1.0);
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let sum = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>();
    let (xx, yy) = (sum(&|p| (p.0 - x).powi(2)), sum(&|p| (p.1 - y).powi(2)));
    let xy = sum(&|p| (p.0 - x) * (p.1 - y));
    if xx * yy == 0.0 { 1.0 } else { xy * xy / (xx * yy) }
}

#[cfg(test)]
mod tests {
    use super::straightness;

    #[test]
    fn a_straight_line_is_straight() {
        assert_eq!(straightness(&[(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]), 1.0);
        let bent = straightness(&[(0.0, 0.0), (1.0, 1.0), (2.0, 0.0)]);
        assert!(bent < 0.01, "{bent}");
    }
}
