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

/// One sample: a point of every series.
#[derive(Clone, Copy, Default, PartialEq, Debug, Serialize)]
pub struct Sample {
    /// Simulated time, in seconds from the start.
    pub time: f64,
    /// How far the busiest server is above the average, in percent: the largest load of a working
    /// server over the mean of all of them, minus 1. A load is the live flows for each unit of
    /// weight.
    pub imbalance_percent: f64,
    /// Flows that have started and not ended.
    pub live: f64,
    /// Servers that take new flows.
    pub working: f64,
    /// Entries in the connection tables of all balancers.
    pub tracked: f64,
    /// Bytes of state that grow with the number of flows.
    pub state_bytes: f64,
    /// Flows that completed since the sample before, those of the warm-up as well.
    pub completed: u64,
    /// Those of them that had broken.
    pub completed_broken: u64,
}

/// Completion times in the queueing model, seconds, and how uneven the work is.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Percentiles {
    /// Average completion time, in seconds.
    pub mean: f64,
    /// Median of the completion times, in seconds.
    pub p50: f64,
    /// 99th percentile of the completion times, in seconds.
    pub p99: f64,
    /// Variance, among the servers, of the share of the time that each was busy between two
    /// samples; the average over the samples.
    pub load_variance: f64,
}

/// The counts and samples of one run. Flows that started before the warm-up's end are not counted.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Outcome {
    /// Flows that started.
    pub flows: u64,
    /// Flows that found no server.
    pub refused: u64,
    /// Flows that had a packet sent to another server although the one that held their connection
    /// lived.
    pub broken: u64,
    /// Flows that had packets left to send when their server failed, and were not broken before: no
    /// method can save them.
    pub inevitable: u64,
    /// Packets that went to another server than the flow's.
    pub misdirected: u64,
    /// Times that a server left the pool, over the whole run.
    pub departures: u64,
    /// Times that a server joined or came back after the start, over the whole run.
    pub returns: u64,
    /// How often the flows were spread anew over the balancers.
    pub reshuffles: u64,
    /// Entries thrown out to make room, over the whole run.
    pub evictions: u64,
    /// How far the busiest server is above the average; see [`Sample::imbalance_percent`], here as
    /// a share.
    pub imbalance: Series,
    /// The samples themselves.
    pub samples: Vec<Sample>,
    /// Flows that have completed since the last sample, and those of them that had broken.
    pub(crate) window: (u64, u64),
    /// Completion times; only the queueing model has them.
    pub completion: Option<Percentiles>,
    /// Flows that have started and not ended.
    pub live: Series,
    /// Servers that take new flows.
    pub working: Series,
    /// Entries in the connection tables of all balancers.
    pub tracked: Series,
    /// Entries over live flows.
    pub tracked_share: Series,
    /// Share of rows in which a packet must look for an entry.
    pub marked_rows: Series,
    /// Bits of state over live flows.
    pub state_bits: Series,
    /// Rules in the card (HNLB).
    pub rules: Series,
    /// Packets that a rule has led, and all but first ones, since the warm-up; neither without rules.
    pub led: (u64, u64),
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
        let imbalance = if load > 0.0 { most * weight / load - 1.0 } else { 0.0 };
        if load > 0.0 {
            self.imbalance.add(imbalance);
        }
        let (gauges, live) = (method.gauges(traffic), traffic.live() as f64);
        let (completed, completed_broken) = std::mem::take(&mut self.window);
        self.samples.push(Sample {
            time: traffic.now(),
            imbalance_percent: 100.0 * imbalance,
            live,
            working: working.len() as f64,
            tracked: gauges.tracked as f64,
            state_bytes: gauges.state_bytes,
            completed,
            completed_broken,
        });
        self.live.add(live);
        self.working.add(working.len() as f64);
        self.tracked.add(gauges.tracked as f64);
        self.marked_rows.add(gauges.marked_rows);
        self.rules.add(gauges.rules as f64);
        self.led = (gauges.led, gauges.packets);
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
    /// The method with its parameters; see [`MethodSpec::label`](crate::MethodSpec::label).
    pub method: String,
    /// The seed of the run.
    pub seed: u64,
    /// Mean number of concurrent flows that the scenario asks for.
    pub target_flows: f64,
    /// Departures of servers per minute that the scenario asks for.
    pub updates_per_minute: f64,
    /// Servers that serve at first.
    pub servers: u16,
    /// Servers that are announced as the next to join (JET, section 3).
    pub horizon: u16,
    /// Balancers that share the flows.
    pub balancers: u16,
    /// How often per minute the flows are spread anew over them.
    pub reshuffles_per_minute: f64,
    /// Flows that started after the warm-up.
    pub flows: u64,
    /// Flows that found no server.
    pub refused: u64,
    /// Flows of which a packet went to another server although theirs lived.
    pub broken: u64,
    /// `broken` for every 100 of `flows`.
    pub broken_percent: f64,
    /// Flows that lost their server with packets left to send.
    pub inevitable: u64,
    /// `inevitable` for every 100 of `flows`.
    pub inevitable_percent: f64,
    /// Packets that went to another server than the flow's.
    pub misdirected: u64,
    /// Times that a server left the pool.
    pub departures: u64,
    /// Times that a server joined or came back after the start.
    pub returns: u64,
    /// How often the flows were spread anew over the balancers.
    pub reshuffles: u64,
    /// Average over the samples of [`Sample::imbalance_percent`].
    pub imbalance_percent: f64,
    /// The largest of these samples.
    pub imbalance_max_percent: f64,
    /// Average number of live flows.
    pub live: f64,
    /// Average number of working servers.
    pub working: f64,
    /// Average number of entries in connection tables.
    pub tracked: f64,
    /// The largest number of entries in a sample.
    pub tracked_max: f64,
    /// Average of entries over live flows, in percent.
    pub tracked_percent: f64,
    /// Average share of rows with a mark, in percent.
    pub marked_rows_percent: f64,
    /// Entries thrown out to make room.
    pub evictions: u64,
    /// Average of bits of state over live flows.
    pub state_bits_per_connection: f64,
    /// HNLB: average number of rules in the card, which is emulated.
    pub rules: f64,
    /// HNLB: packets, but first ones, that rules have led past the software, in percent.
    pub led_percent: f64,
    /// Queueing model: the share of the servers' time that is needed.
    pub load: Option<f64>,
    /// Queueing model: average completion time, ms.
    pub completion_mean_ms: Option<f64>,
    /// Queueing model: median completion time, ms.
    pub completion_p50_ms: Option<f64>,
    /// Queueing model: 99th percentile of the completion times, ms.
    pub completion_p99_ms: Option<f64>,
    /// Queueing model: variance among servers of their busy share in a sample's time.
    pub load_variance: Option<f64>,
}

impl Row {
    pub(crate) fn new(
        method: String,
        world: &crate::World,
        load: Option<f64>,
        outcome: &Outcome,
    ) -> Self {
        let ms = |figure: fn(&Percentiles) -> f64| outcome.completion.as_ref().map(figure);
        Self {
            method,
            seed: world.seed,
            target_flows: world.flows,
            updates_per_minute: world.updates_per_minute,
            servers: world.servers,
            horizon: world.horizon,
            balancers: world.balancers,
            reshuffles_per_minute: world.reshuffles_per_minute,
            flows: outcome.flows,
            refused: outcome.refused,
            broken: outcome.broken,
            broken_percent: outcome.broken_percent(),
            inevitable: outcome.inevitable,
            inevitable_percent: outcome.inevitable_percent(),
            misdirected: outcome.misdirected,
            departures: outcome.departures,
            returns: outcome.returns,
            reshuffles: outcome.reshuffles,
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
            rules: outcome.rules.mean(),
            led_percent: percent(outcome.led.0, outcome.led.1),
            load,
            completion_mean_ms: ms(|times| 1000.0 * times.mean),
            completion_p50_ms: ms(|times| 1000.0 * times.p50),
            completion_p99_ms: ms(|times| 1000.0 * times.p99),
            load_variance: ms(|times| times.load_variance),
        }
    }
}

/// The samples of one run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct RunSeries {
    /// Its place among the rows, from 0.
    pub run: usize,
    /// In the order of time.
    pub samples: Vec<Sample>,
}

/// All runs of a scenario.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// The scenario's name.
    pub scenario: String,
    /// One per method, load and world, in this order of nesting from the inside;
    /// [`crate::Scenario::worlds`] has that of the worlds.
    pub rows: Vec<Row>,
    /// One per row.
    pub series: Vec<RunSeries>,
}

impl Report {
    /// Rows and series in JSON.
    pub fn to_json(&self) -> String {
        // Numbers and strings only: there is nothing that JSON cannot say.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// All rows, with a header, as comma-separated values.
    ///
    /// # Errors
    ///
    /// What the writer says; there is no reason known.
    pub fn to_csv(&self) -> Result<String, csv::Error> {
        to_csv(&self.rows)
    }

    /// All samples, with a header, as comma-separated values: run, method, seed, target, rate,
    /// then the sample.
    ///
    /// # Errors
    ///
    /// As [`Self::to_csv`].
    pub fn series_to_csv(&self) -> Result<String, csv::Error> {
        #[derive(Serialize)]
        struct Line<'a> {
            run: usize,
            method: &'a str,
            seed: u64,
            target_flows: f64,
            updates_per_minute: f64,
            time: f64,
            imbalance_percent: f64,
            live: f64,
            working: f64,
            tracked: f64,
            state_bytes: f64,
            completed: u64,
            completed_broken: u64,
        }
        let lines = self.series.iter().flat_map(|series| {
            let row = &self.rows[series.run];
            series.samples.iter().map(|sample| Line {
                run: series.run,
                method: &row.method,
                seed: row.seed,
                target_flows: row.target_flows,
                updates_per_minute: row.updates_per_minute,
                time: sample.time,
                imbalance_percent: sample.imbalance_percent,
                live: sample.live,
                working: sample.working,
                tracked: sample.tracked,
                state_bytes: sample.state_bytes,
                completed: sample.completed,
                completed_broken: sample.completed_broken,
            })
        });
        to_csv(lines)
    }

    /// The columns that a person looks at first: of the world, those that differ.
    pub fn to_table(&self) -> String {
        type Column = (&'static str, fn(&Row) -> String);
        let world: [Column; 7] = [
            ("seed", |row| row.seed.to_string()),
            ("servers", |row| row.servers.to_string()),
            ("horizon", |row| row.horizon.to_string()),
            ("flows", |row| format!("{:.0}", row.target_flows)),
            ("reshuffles/min", |row| row.reshuffles_per_minute.to_string()),
            ("updates/min", |row| row.updates_per_minute.to_string()),
            ("load", |row| row.load.map_or(String::new(), |load| load.to_string())),
        ];
        let flows: [Column; 8] = [
            ("broken %", |row| format!("{:.4}", row.broken_percent)),
            ("inevitable %", |row| format!("{:.4}", row.inevitable_percent)),
            ("imbalance %", |row| format!("{:.2}", row.imbalance_percent)),
            ("most %", |row| format!("{:.1}", row.imbalance_max_percent)),
            ("tracked %", |row| format!("{:.3}", row.tracked_percent)),
            ("rows %", |row| format!("{:.2}", row.marked_rows_percent)),
            ("evictions", |row| row.evictions.to_string()),
            ("bits/conn", |row| format!("{:.2}", row.state_bits_per_connection)),
        ];
        fn some(value: Option<f64>, digits: usize) -> String {
            value.map_or(String::new(), |value| format!("{value:.digits$}"))
        }
        let queue: [Column; 4] = [
            ("mean ms", |row| some(row.completion_mean_ms, 2)),
            ("median ms", |row| some(row.completion_p50_ms, 2)),
            ("p99 ms", |row| some(row.completion_p99_ms, 2)),
            ("variance", |row| some(row.load_variance, 5)),
        ];
        let differs = |column: &Column| {
            self.rows.windows(2).any(|pair| column.1(&pair[0]) != column.1(&pair[1]))
        };
        let queued = self.rows.iter().any(|row| row.load.is_some());
        let mut columns: Vec<Column> = vec![("method", |row| row.method.clone())];
        columns.extend(world.into_iter().filter(differs));
        match queued {
            true => columns.extend(queue),
            false => columns.extend(flows),
        }
        if self.rows.iter().any(|row| row.rules > 0.0) {
            columns.push(("rules (emulated)", |row| format!("{:.0}", row.rules)));
            columns.push(("led by rules %", |row| format!("{:.1}", row.led_percent)));
        }
        let mut table = comfy_table::Table::new();
        table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
        table.set_header(columns.iter().map(|column| column.0));
        for row in &self.rows {
            table.add_row(columns.iter().map(|column| column.1(row)));
        }
        format!("{}\n{table}\n", self.scenario)
    }
}

fn to_csv<T: Serialize>(rows: impl IntoIterator<Item = T>) -> Result<String, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in rows {
        writer.serialize(row)?;
    }
    let bytes = writer.into_inner().map_err(|error| error.into_error())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
