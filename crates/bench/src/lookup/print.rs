//! Rows, and the ways to show them.

use super::measure::{Amount, Entry, Load};
use super::methods::without_row;
use super::world::World;
use super::{Keys, Request};
use crate::{Spread, put};
use serde::Serialize;

/// The rounds of one method.
#[derive(Default)]
pub struct Samples {
    /// In bursts, and one at a time.
    modes: [Rates; 2],
    /// New flows per second, in bursts and one at a time alike.
    new: Vec<f64>,
    changes: u64,
}

#[derive(Default)]
struct Rates {
    rates: Vec<f64>,
    bounds: Vec<f64>,
}

impl Samples {
    /// Adds a measurement and that of the bound next to it.
    pub fn note(&mut self, single: bool, rate: f64, bound: f64) {
        let rates = &mut self.modes[usize::from(single)];
        rates.rates.push(rate);
        rates.bounds.push(bound);
    }

    /// Adds the new flows per second of a measurement.
    pub fn note_new(&mut self, per_s: f64) {
        self.new.push(per_s);
    }

    /// Adds changes of the pool.
    pub fn note_changes(&mut self, changes: u64) {
        self.changes += changes;
    }
}

/// One method at one number of states and of threads. Rates are millions of lookups per second of
/// all threads, medians of the rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the method.
    pub method: &'static str,
    /// What holds its states, where there is a choice.
    pub codec: Option<&'static str>,
    /// Number of live flows.
    pub states: usize,
    /// How packets were drawn from them.
    pub keys: &'static str,
    /// Number of threads that decided packets.
    pub threads: usize,
    /// Number of packets in a burst.
    pub batch: usize,
    /// Whether a thread on another core walked through a buffer larger than the last-level cache.
    pub neighbour: bool,
    /// Millions of packets per second in bursts, all threads together.
    pub mlookups_per_s: f64,
    /// Quartiles of that rate over the rounds.
    pub mlookups_spread: Spread,
    /// The same rate of the bound: bare reads of the same bytes, in bursts.
    pub bound_mlookups_per_s: f64,
    /// Median of the rounds' ratios of the two rates.
    pub ratio_to_bound: f64,
    /// Ratio to the fastest table of digests in the same round, median; none if none was measured.
    pub ratio_to_best_digest: Option<f64>,
    /// Quartiles of that ratio over the rounds.
    pub ratio_to_best_digest_spread: Option<Spread>,
    /// Millions of packets per second one at a time, all threads together.
    pub single_mlookups_per_s: f64,
    /// Quartiles of that rate over the rounds.
    pub single_mlookups_spread: Spread,
    /// The same rate of the bound, one at a time.
    pub single_bound_mlookups_per_s: f64,
    /// Median of the rounds' ratios of the two rates, one at a time.
    pub single_ratio_to_bound: f64,
    /// As `ratio_to_best_digest`, one at a time.
    pub single_ratio_to_best_digest: Option<f64>,
    /// Quartiles of that ratio over the rounds.
    pub single_ratio_to_best_digest_spread: Option<Spread>,
    /// Bytes that packets may read, of all threads.
    pub bytes: usize,
    /// The same in bits, for each live flow.
    pub bits_per_state: f64,
    /// Flows that were not sent to their backends before the measurement.
    pub wrong_answers: usize,
    /// New flows per second meanwhile, as they were asked for.
    pub new_states_per_s: f64,
    /// Those that there were, median of all measurements: packets of which more than half began flows would be no
    /// measurement of look-ups, so there are no more than that.
    pub new_states_made_per_s: f64,
    /// Changes of the pool meanwhile, of all rounds.
    pub pool_changes: u64,
}

/// Round by round: what the fastest table of digests reached.
fn best_digest(entries: &[Entry], samples: &[Samples], mode: usize) -> Option<Vec<f64>> {
    let digests = entries.iter().zip(samples).filter(|(entry, _)| entry.method.digest);
    let rates = digests.map(|(_, samples)| samples.modes[mode].rates.clone());
    rates.reduce(|a, b| a.iter().zip(&b).map(|(a, b)| a.max(*b)).collect())
}

fn ratios(a: &[f64], b: &[f64]) -> Spread {
    Spread::of(a.iter().zip(b).map(|(a, b)| a / b))
}

/// The rows of a block.
pub fn rows(
    request: &Request,
    world: &World,
    neighbour: bool,
    entries: &[Entry],
    samples: &[Samples],
) -> Vec<Row> {
    let best = [0, 1].map(|mode| best_digest(entries, samples, mode));
    let row = |(entry, samples): (&Entry, &Samples)| {
        let [burst, single] = &samples.modes;
        let to_best =
            |mode: usize| best[mode].as_ref().map(|best| ratios(&samples.modes[mode].rates, best));
        let spread = |samples: &[f64]| Spread::of(samples.iter().copied());
        let (in_bursts, alone) = (spread(&burst.rates), spread(&single.rates));
        Row {
            method: entry.method.name,
            codec: entry.method.codec,
            states: world.states,
            keys: request.keys.name(),
            threads: world.threads,
            batch: request.batch,
            neighbour,
            mlookups_per_s: in_bursts.median,
            mlookups_spread: in_bursts,
            bound_mlookups_per_s: spread(&burst.bounds).median,
            ratio_to_bound: ratios(&burst.rates, &burst.bounds).median,
            ratio_to_best_digest: to_best(0).map(|spread| spread.median),
            ratio_to_best_digest_spread: to_best(0),
            single_mlookups_per_s: alone.median,
            single_mlookups_spread: alone,
            single_bound_mlookups_per_s: spread(&single.bounds).median,
            single_ratio_to_bound: ratios(&single.rates, &single.bounds).median,
            single_ratio_to_best_digest: to_best(1).map(|spread| spread.median),
            single_ratio_to_best_digest_spread: to_best(1),
            bytes: entry.bytes,
            bits_per_state: entry.bytes as f64 * 8.0 / world.states as f64,
            wrong_answers: entry.wrong,
            new_states_per_s: request.load.map_or(0.0, |load| load.new_states_per_s),
            new_states_made_per_s: spread(&samples.new).median,
            pool_changes: samples.changes,
        }
    };
    entries.iter().zip(samples).map(row).collect()
}

impl Row {
    /// Name of the method, with its codec if it has a choice.
    pub fn label(&self) -> String {
        match self.codec {
            Some(codec) => format!("{}-{codec}", self.method),
            None => self.method.to_owned(),
        }
    }
}

/// What the bench prints as JSON.
#[derive(Serialize)]
pub struct Report {
    seed: u64,
    rounds: u32,
    backends: u16,
    batch: usize,
    /// Exponent of the Zipf distribution.
    skew: Option<f64>,
    /// Lookups of each measurement, if these were counted.
    lookups: Option<usize>,
    /// Seconds of each measurement otherwise.
    seconds: Option<f64>,
    /// Seconds between two changes of the pool.
    pool_change_every: Option<f64>,
    /// Bytes that the neighbour walks through, if there was one.
    neighbour_bytes: Option<usize>,
    machine: Machine,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Machine {
    cpu: Option<String>,
    cores: usize,
    kernel: Option<String>,
    architecture: &'static str,
}

impl Machine {
    fn here() -> Self {
        let cpu = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        });
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok();
        Self {
            cpu,
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: kernel.map(|text| text.trim().to_owned()),
            architecture: std::env::consts::ARCH,
        }
    }
}

impl Report {
    /// A report of these rows, and of what was asked for.
    pub fn new(request: &Request, rows: Vec<Row>) -> Self {
        let (lookups, seconds) = match request.amount {
            Amount::Lookups(lookups) => (Some(lookups), None),
            Amount::Time(time) => (None, Some(time.as_secs_f64())),
        };
        let skew = match request.keys {
            Keys::Zipf { skew } => Some(skew),
            _ => None,
        };
        Self {
            seed: request.seed,
            rounds: request.rounds,
            backends: request.backends,
            batch: request.batch,
            skew,
            lookups,
            seconds,
            pool_change_every: request.load.map(|Load { change_every: e, .. }| e.as_secs_f64()),
            neighbour_bytes: request.company.bytes(),
            machine: Machine::here(),
            rows,
        }
    }
}

/// A block as tables for people: one of the quiet machine, one beside a neighbour.
pub fn table(rows: &[Row]) -> String {
    rows.chunk_by(|a, b| a.neighbour == b.neighbour).map(table_of).collect()
}

fn table_of(rows: &[Row]) -> String {
    let mut out = String::new();
    let Some(first) = rows.first() else {
        return out;
    };
    put!(
        out,
        "{} states, {} keys, {} thread(s), bursts of {}{}; M lookups/s",
        first.states,
        first.keys,
        first.threads,
        first.batch,
        if first.neighbour { ", beside a neighbour" } else { "" }
    );
    put!(
        out,
        "{:16}{:>11} {:>9}{:>17}{:>9}{:>7}{:>8} {:>9}{:>9}{:>7}{:>8}",
        "",
        "bits/state",
        "bursts",
        "(quartiles)",
        "bound",
        "of it",
        "/digest",
        "single",
        "bound",
        "of it",
        "/digest"
    );
    let ratio = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
    for row in rows {
        let spread = row.mlookups_spread;
        put!(
            out,
            "{:16}{:>11.2} {:>9.1}{:>17}{:>9.1}{:>7.2}{:>8} {:>9.1}{:>9.1}{:>7.2}{:>8}{}",
            row.label(),
            row.bits_per_state,
            row.mlookups_per_s,
            format!("({:.1}..{:.1})", spread.low, spread.high),
            row.bound_mlookups_per_s,
            row.ratio_to_bound,
            ratio(row.ratio_to_best_digest),
            row.single_mlookups_per_s,
            row.single_bound_mlookups_per_s,
            row.single_ratio_to_bound,
            ratio(row.single_ratio_to_best_digest),
            match row.wrong_answers {
                0 => String::new(),
                wrong => format!("  {wrong} flows astray"),
            },
        );
    }
    put!(out);
    out
}

/// The methods of the registry that have no row, one in a line, with the command that measures each.
pub fn not_measured() -> String {
    let mut out = String::new();
    for (id, command) in without_row() {
        put!(out, "not measured here: {id} ({})", command.unwrap_or("nor anywhere else yet"));
    }
    out
}

/// All rows as comma-separated values. No field needs quotes.
pub fn csv(rows: &[Row]) -> String {
    let mut out = String::new();
    put!(
        out,
        "method,codec,states,keys,threads,batch,neighbour,mlookups_per_s,mlookups_low,mlookups_high,\
         bound_mlookups_per_s,ratio_to_bound,ratio_to_best_digest,single_mlookups_per_s,\
         single_mlookups_low,single_mlookups_high,single_bound_mlookups_per_s,\
         single_ratio_to_bound,single_ratio_to_best_digest,bytes,bits_per_state,wrong_answers,\
         new_states_per_s,pool_changes,new_states_made_per_s"
    );
    let optional = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    for row in rows {
        let fields = [
            row.method.to_owned(),
            row.codec.unwrap_or_default().to_owned(),
            row.states.to_string(),
            row.keys.to_owned(),
            row.threads.to_string(),
            row.batch.to_string(),
            row.neighbour.to_string(),
            row.mlookups_per_s.to_string(),
            row.mlookups_spread.low.to_string(),
            row.mlookups_spread.high.to_string(),
            row.bound_mlookups_per_s.to_string(),
            row.ratio_to_bound.to_string(),
            optional(row.ratio_to_best_digest),
            row.single_mlookups_per_s.to_string(),
            row.single_mlookups_spread.low.to_string(),
            row.single_mlookups_spread.high.to_string(),
            row.single_bound_mlookups_per_s.to_string(),
            row.single_ratio_to_bound.to_string(),
            optional(row.single_ratio_to_best_digest),
            row.bytes.to_string(),
            row.bits_per_state.to_string(),
            row.wrong_answers.to_string(),
            row.new_states_per_s.to_string(),
            row.pool_changes.to_string(),
            row.new_states_made_per_s.to_string(),
        ];
        put!(out, "{}", fields.join(","));
    }
    out
}
