//! What a simulation yields.

use crate::flow::Traffic;
use crate::method::Method;
use serde::Serialize;

/// A figure that is sampled.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Series {
    sum: f64,
    /// The largest sample.
    pub max: f64,
    samples: u64,
}

impl Series {
    /// Adds a sample.
    pub fn add(&mut self, value: f64) {
        self.sum += value;
        self.max = self.max.max(value);
        self.samples += 1;
    }

    /// The average, 0 without samples.
    pub fn mean(&self) -> f64 {
        if self.samples == 0 { 0.0 } else { self.sum / self.samples as f64 }
    }
}

/// The counts and samples of one run. Flows that started before the warm-up's end are not counted.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Outcome {
    /// Flows that started.
    pub flows: u64,
    /// Flows that found no server.
    pub refused: u64,
    /// Flows that had a packet sent to another server although theirs lived.
    pub broken: u64,
    /// Flows that were not broken and had packets left to send when their server failed.
    pub inevitable: u64,
    /// Packets that went to another server than the flow's.
    pub misdirected: u64,
    /// Servers that left, and that came back, over the whole run.
    pub departures: u64,
    /// Servers that came back.
    pub returns: u64,
    /// Entries thrown out to make room, over the whole run.
    pub evictions: u64,
    /// Largest load of a working server over the average, minus 1; loads per unit of weight.
    pub imbalance: Series,
    /// (time, imbalance) of each sample.
    pub imbalance_over_time: Vec<(f64, f64)>,
    /// Live flows.
    pub live: Series,
    /// Working servers.
    pub working: Series,
    /// Entries.
    pub tracked: Series,
    /// Entries over live flows.
    pub tracked_share: Series,
    /// Share of rows in which a packet must look for an entry.
    pub marked_rows: Series,
    /// Bits of state over live flows.
    pub state_bits: Series,
}

impl Outcome {
    pub(crate) fn sample(&mut self, working: &[u16], traffic: &Traffic, method: &dyn Method) {
        let (mut load, mut weight, mut most) = (0.0, 0.0, 0.0f64);
        for &server in working.iter().filter(|&&server| traffic.weight(server) > 0) {
            let (l, w) = (f64::from(traffic.load(server)), f64::from(traffic.weight(server)));
            load += l;
            weight += w;
            most = most.max(l / w);
        }
        if load > 0.0 {
            let imbalance = most * weight / load - 1.0;
            self.imbalance.add(imbalance);
            self.imbalance_over_time.push((traffic.now(), imbalance));
        }
        let (gauges, live) = (method.gauges(traffic), traffic.live() as f64);
        self.live.add(live);
        self.working.add(working.len() as f64);
        self.tracked.add(gauges.tracked as f64);
        self.marked_rows.add(gauges.marked_rows);
        if live > 0.0 {
            self.tracked_share.add(gauges.tracked as f64 / live);
            self.state_bits.add(gauges.state_bytes * 8.0 / live);
        }
    }

    /// Broken flows in 100.
    pub fn broken_percent(&self) -> f64 {
        percent(self.broken, self.flows)
    }

    /// Inevitably broken flows in 100.
    pub fn inevitable_percent(&self) -> f64 {
        percent(self.inevitable, self.flows)
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

/// One run of one method: a line of the CSV.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// The method, as the scenario names it.
    pub method: String,
    /// The seed of the run.
    pub seed: u64,
    /// Target of concurrent flows.
    pub target_flows: f64,
    /// Departures per minute.
    pub updates_per_minute: f64,
    /// Size of the horizon.
    pub horizon: u16,
    /// Flows counted.
    pub flows: u64,
    /// Flows without a server.
    pub refused: u64,
    /// Flows broken.
    pub broken: u64,
    /// The same in 100 flows.
    pub broken_percent: f64,
    /// Flows whose server failed.
    pub inevitable: u64,
    /// The same in 100 flows.
    pub inevitable_percent: f64,
    /// Packets sent to a wrong server.
    pub misdirected: u64,
    /// Servers that left.
    pub departures: u64,
    /// Servers that came back.
    pub returns: u64,
    /// Average of max/avg - 1, in percent.
    pub imbalance_percent: f64,
    /// Largest max/avg - 1, in percent.
    pub imbalance_max_percent: f64,
    /// Average number of live flows.
    pub live: f64,
    /// Average number of working servers.
    pub working: f64,
    /// Average number of entries.
    pub tracked: f64,
    /// Largest number of entries.
    pub tracked_max: f64,
    /// Average of entries over live flows, in percent.
    pub tracked_percent: f64,
    /// Average share of rows with a mark, in percent.
    pub marked_rows_percent: f64,
    /// Entries thrown out to make room.
    pub evictions: u64,
    /// Average of bits of state over live flows.
    pub state_bits_per_connection: f64,
}

impl Row {
    pub(crate) fn new(method: String, world: &crate::World, outcome: &Outcome) -> Self {
        Self {
            method,
            seed: world.seed,
            target_flows: world.flows,
            updates_per_minute: world.updates_per_minute,
            horizon: world.horizon,
            flows: outcome.flows,
            refused: outcome.refused,
            broken: outcome.broken,
            broken_percent: outcome.broken_percent(),
            inevitable: outcome.inevitable,
            inevitable_percent: outcome.inevitable_percent(),
            misdirected: outcome.misdirected,
            departures: outcome.departures,
            returns: outcome.returns,
            imbalance_percent: 100.0 * outcome.imbalance.mean(),
            imbalance_max_percent: 100.0 * outcome.imbalance.max,
            live: outcome.live.mean(),
            working: outcome.working.mean(),
            tracked: outcome.tracked.mean(),
            tracked_max: outcome.tracked.max,
            tracked_percent: 100.0 * outcome.tracked_share.mean(),
            marked_rows_percent: 100.0 * outcome.marked_rows.mean(),
            evictions: outcome.evictions,
            state_bits_per_connection: outcome.state_bits.mean(),
        }
    }
}

/// All runs of a scenario.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// The scenario's name.
    pub scenario: String,
    /// One per method, rate, target and seed, in this order of nesting from the inside: method,
    /// rate, target, seed.
    pub rows: Vec<Row>,
}

impl Report {
    /// All rows, with a header, as comma-separated values.
    ///
    /// # Errors
    ///
    /// What the writer says; there is no reason known.
    pub fn to_csv(&self) -> Result<String, csv::Error> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        for row in &self.rows {
            writer.serialize(row)?;
        }
        let bytes = writer.into_inner().map_err(|error| error.into_error())?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The columns that a person looks at first.
    pub fn to_table(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
        table.set_header([
            "method",
            "flows",
            "updates/min",
            "seed",
            "broken %",
            "inevitable %",
            "imbalance %",
            "tracked %",
            "rows %",
            "evictions",
            "bits/conn",
        ]);
        for row in &self.rows {
            table.add_row([
                row.method.clone(),
                format!("{}", row.target_flows),
                format!("{}", row.updates_per_minute),
                format!("{}", row.seed),
                format!("{:.4}", row.broken_percent),
                format!("{:.4}", row.inevitable_percent),
                format!("{:.2}", row.imbalance_percent),
                format!("{:.3}", row.tracked_percent),
                format!("{:.2}", row.marked_rows_percent),
                format!("{}", row.evictions),
                format!("{:.2}", row.state_bits_per_connection),
            ]);
        }
        format!("{}\n{table}\n", self.scenario)
    }
}
