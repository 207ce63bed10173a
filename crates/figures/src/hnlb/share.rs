//! What share of packets rules take off the software, in the simulator: HNLB's future work.

use crate::Result;
use crate::figure::{Axis, Chart, Figure, Measured, Scale, Setup};
use crate::number::{ratio, short};
use crate::simulated::{play, series};

const POLICIES: [&str; 3] = ["all", "heavy", "sampled"];

pub static SHARE: Figure = Figure {
    id: "hnlb-share",
    title: "Packets that rules take off the software, by policy and capacity (emulated card)",
    paper: "HNLB, section VIII (future work)",
    measures: "The scenario hnlb: flows with the published durations and sizes, whose packets an emulated card \
        leads if their connection has a rule; concury steers the others. Rules are given to all until the table \
        is full, to heavy connections by a count-min sketch, or to heavy ones by counters of a sample.",
    charts: &[Chart {
        title: "",
        x: Axis { label: "rules of the card (emulated)", scale: Scale::Log },
        y: Axis { label: "packets that rules lead, percent", scale: Scale::Linear },
    }],
    quotes: &[],
    note: "the paper says that a subset of the connections causes a large share of the rate, and measures none.",
    why: "The published workload is as heavy-tailed as workloads get: half of the flows are smaller than a \
        kilobyte, and their mean is 3 MB. So a few rules carry nearly all packets. Flows have fewer packets than \
        published, each in the same proportion.",
    times: ["2 s", "2 min", "20 min"],
    run,
};

fn run(setup: &Setup<'_>) -> Result<Measured> {
    let report = play(setup, "hnlb")?;
    let mut all = Vec::new();
    let mut facts = Vec::new();
    for policy in POLICIES {
        let begins = format!("hnlb {policy} ");
        let rules = |row: &weir_sim::Row| {
            let rest = row.method.strip_prefix(&begins);
            let number = rest.and_then(|rest| rest.split(' ').next());
            number.and_then(|number| number.parse::<f64>().ok())
        };
        let of = |row: &weir_sim::Row| rules(row).is_some();
        let found = series(
            0,
            policy,
            &report.rows,
            of,
            |row| rules(row).unwrap_or(0.0),
            |row| row.led_percent,
        );
        if let Some(first) = found.points.first() {
            facts.push(format!(
                "{policy}: {} rules lead {} % of the packets of {} connections (emulated card).",
                short(first.x),
                ratio(first.y),
                short(report.rows.first().map_or(0.0, |row| row.live)),
            ));
        }
        all.push(found);
    }
    let broken: u64 = report.rows.iter().map(|row| row.broken).sum();
    facts.push(format!("{broken} connections break in all runs together."));
    Ok(Measured { series: all, facts })
}
