//! Scenario files: worlds and methods in TOML.

use crate::distribution::{DistributionError, StepCdf};
use crate::engine::{Engine, Orphans, World, simulate};
use crate::method::Method;
use crate::methods::{
    Buckets, Cheetah, Concury, Jet, Modulo, Over, Release, Residue, Ring, Scheduler, Tracked,
};
use crate::pool::Departure;
use crate::report::{Report, Row};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use weir_placement::PoolError;

/// Why a scenario cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// Not TOML, or not a scenario: an unknown field, a wrong type. The text shows the line.
    #[error("{path}: {source}")]
    Syntax {
        /// The file.
        path: String,
        /// With line, column and field.
        source: Box<toml::de::Error>,
    },
    /// A value that makes no sense.
    #[error("{path}:{line}: {field}: {what}")]
    Value {
        /// The file.
        path: String,
        /// Counted from 1.
        line: usize,
        /// Dotted, as in `pool.servers`.
        field: String,
        /// What is wrong.
        what: String,
    },
    /// A method that cannot be built with these servers and weights.
    #[error("a method cannot be built: {0}")]
    Method(#[from] PoolError),
    /// A distribution that the scenario names.
    #[error("{path}:{line}: {field}: {source}")]
    Distribution {
        /// The scenario's file.
        path: String,
        /// Counted from 1.
        line: usize,
        /// Dotted.
        field: String,
        /// What is wrong with it.
        source: DistributionError,
    },
}

/// One value, or a list of values to go through.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(untagged)]
pub enum OneOrMany {
    /// One value.
    One(f64),
    /// Each in turn.
    Many(Vec<f64>),
}

impl OneOrMany {
    /// The values.
    pub fn values(&self) -> &[f64] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Many(values) => values,
        }
    }
}

/// A scenario, as it is written. docs/sim.md says what each field means.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What reports call it.
    pub name: String,
    /// The first seed.
    #[serde(default = "one")]
    pub seed: u64,
    /// How many seeds, counted up from the first.
    #[serde(default = "one")]
    pub runs: u64,
    /// Seconds.
    pub duration: f64,
    /// Seconds that are not counted.
    #[serde(default)]
    pub warmup: f64,
    /// Seconds between samples.
    #[serde(default = "one_second")]
    pub sample_every: f64,
    /// `lazy` or `every-packet`.
    #[serde(default)]
    pub engine: Engine,
    /// What clients do.
    pub traffic: TrafficSpec,
    /// What servers do.
    pub pool: PoolSpec,
    /// The methods, played one after the other in the same world.
    #[serde(rename = "method")]
    pub methods: Vec<MethodSpec>,
    /// Where file names are looked up, and what errors call the scenario.
    #[serde(skip)]
    file: PathBuf,
    #[serde(skip)]
    text: String,
}

/// The flows.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TrafficSpec {
    /// Mean number of concurrent flows, or several to go through.
    pub flows: OneOrMany,
    /// Flow durations, seconds: a file; without it, the built-in one.
    pub durations: Option<PathBuf>,
    /// Flow sizes, KB: a file; without it, the built-in one.
    pub sizes: Option<PathBuf>,
    /// Packets per KB.
    #[serde(default = "ten")]
    pub packets_per_kb: f64,
    /// Most packets of a flow.
    pub max_packets: Option<u64>,
}

/// The servers.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PoolSpec {
    /// How many serve at first.
    #[serde(default = "published_servers")]
    pub servers: u16,
    /// Weights, repeated as often as it takes.
    #[serde(default = "equal")]
    pub weights: Vec<u32>,
    /// Departures per minute, or several rates to go through.
    pub updates_per_minute: OneOrMany,
    /// Down-times, seconds: a file; without it, the built-in one.
    pub down_times: Option<PathBuf>,
    /// `fail` or `drain`.
    #[serde(default)]
    pub departure: Departure,
    /// `end` or `adopt`.
    #[serde(default)]
    pub orphans: Orphans,
    /// Size of the horizon.
    #[serde(default)]
    pub horizon: u16,
}

/// A method and its parameters.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", tag = "kind")]
pub enum MethodSpec {
    /// [`Modulo`].
    Modulo {},
    /// [`Buckets::hash`].
    Hash {
        /// Size of the indirection table.
        #[serde(default = "published_buckets")]
        buckets: usize,
    },
    /// [`Buckets::chain`].
    Chain {
        /// Size of the indirection table.
        #[serde(default = "published_buckets")]
        buckets: usize,
    },
    /// [`Ring`].
    Ring {
        /// Points per server.
        #[serde(default = "published_copies")]
        copies: u32,
    },
    /// [`Cheetah`].
    Cheetah {
        /// Who gets a new flow.
        #[serde(default)]
        scheduler: Scheduler,
    },
    /// [`Concury`].
    Concury {
        /// Bits of a Dcode.
        #[serde(default = "twelve")]
        bits: u32,
    },
    /// [`Tracked`].
    Tracked {
        /// Size of the connection table over the target of concurrent flows.
        table: f64,
        /// `at-end` or `never`.
        #[serde(default)]
        release: Release,
        /// `table`, `anchor` or `hrw`.
        #[serde(default)]
        over: Over,
        /// Rows of the table-based HRW.
        #[serde(default = "rows")]
        rows: usize,
    },
    /// [`Jet`].
    Jet {
        /// Size of the connection table over the target of concurrent flows.
        table: f64,
        /// `at-end` or `never`.
        #[serde(default)]
        release: Release,
        /// `table`, `anchor` or `hrw`.
        #[serde(default)]
        over: Over,
        /// Rows of the table-based HRW.
        #[serde(default = "rows")]
        rows: usize,
    },
    /// [`Residue`].
    Residue {
        /// Rows of the table-based HRW.
        #[serde(default = "rows")]
        rows: usize,
    },
}

fn one() -> u64 {
    1
}
fn one_second() -> f64 {
    1.0
}
fn ten() -> f64 {
    10.0
}
fn twelve() -> u32 {
    12
}
fn equal() -> Vec<u32> {
    vec![1]
}
fn published_servers() -> u16 {
    468
}
fn published_buckets() -> usize {
    46_800
}
fn published_copies() -> u32 {
    30
}
fn rows() -> usize {
    65_537
}

impl MethodSpec {
    /// A fresh method for a world.
    ///
    /// # Errors
    ///
    /// A table without rows or with too many, or too much weight.
    pub fn build(&self, world: &World) -> Result<Box<dyn Method>, PoolError> {
        let weights = world.server_weights();
        let home = &weights[..usize::from(world.servers)];
        let capacity = |table: f64| (table * world.flows).round() as usize;
        Ok(match *self {
            Self::Modulo {} => Box::new(Modulo::new()),
            Self::Hash { buckets } => Box::new(Buckets::hash(buckets, home)),
            Self::Chain { buckets } => Box::new(Buckets::chain(buckets, home)),
            Self::Ring { copies } => Box::new(Ring::new(copies, &weights)),
            Self::Cheetah { scheduler } => Box::new(Cheetah::new(scheduler)),
            Self::Concury { bits } => Box::new(Concury::new(bits, &weights)),
            Self::Tracked { table, release, over, rows } => {
                Box::new(Tracked::new(over, rows, &weights, capacity(table), release)?)
            }
            Self::Jet { table, release, over, rows } => {
                Box::new(Jet::new(over, rows, &weights, capacity(table), release)?)
            }
            Self::Residue { rows } => Box::new(Residue::new(rows, &weights)?),
        })
    }

    /// The name in reports: kind and parameters.
    pub fn label(&self) -> String {
        match self {
            Self::Modulo {} => "modulo".into(),
            Self::Hash { .. } => "hash".into(),
            Self::Chain { .. } => "chain".into(),
            Self::Ring { copies } => format!("ring {copies}"),
            Self::Cheetah { scheduler } => format!("cheetah {scheduler:?}"),
            Self::Concury { .. } => "concury".into(),
            Self::Tracked { table, over: Over::Table, .. } => format!("tracked {table}"),
            Self::Tracked { table, over, .. } => format!("tracked {table} {over:?}"),
            Self::Jet { table, over: Over::Table, .. } => format!("jet {table}"),
            Self::Jet { table, over, .. } => format!("jet {table} {over:?}"),
            Self::Residue { .. } => "residue".into(),
        }
    }

    /// The first parameter that makes no sense, and why.
    fn fault(&self) -> Option<(&'static str, &'static str)> {
        const ROWS: &str = "from 1 to 67,108,864";
        let bad = |n: usize| n == 0 || n > 1 << 26;
        match *self {
            Self::Hash { buckets } | Self::Chain { buckets } if bad(buckets) => {
                Some(("buckets", ROWS))
            }
            Self::Ring { copies } if copies == 0 || copies > 10_000 => {
                Some(("copies", "from 1 to 10,000"))
            }
            Self::Concury { bits } if !(1..=15).contains(&bits) => Some(("bits", "from 1 to 15")),
            Self::Tracked { rows, .. } | Self::Jet { rows, .. } | Self::Residue { rows }
                if bad(rows) =>
            {
                Some(("rows", ROWS))
            }
            Self::Tracked { table, .. } | Self::Jet { table, .. }
                if !(0.0..=1000.0).contains(&table) =>
            {
                Some(("table", "from 0 to 1,000 (times the target of concurrent flows)"))
            }
            _ => None,
        }
    }
}

impl Scenario {
    /// Reads and checks a scenario.
    ///
    /// # Errors
    ///
    /// [`ScenarioError`]; it names the line and the field.
    pub fn load(path: &Path) -> Result<Self, ScenarioError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ScenarioError::Io { path: path.display().to_string(), source })?;
        Self::parse(&text, path)
    }

    /// The same for a text. `path`: what errors call it; its directory is where the files that the
    /// scenario names are.
    ///
    /// # Errors
    ///
    /// As [`Self::load`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, ScenarioError> {
        let mut scenario: Self = toml::from_str(text).map_err(|error| ScenarioError::Syntax {
            path: path.display().to_string(),
            source: Box::new(error),
        })?;
        scenario.file = path.to_owned();
        scenario.text = text.to_owned();
        scenario.check()?;
        scenario.worlds()?;
        Ok(scenario)
    }

    fn check(&self) -> Result<(), ScenarioError> {
        let positive = |v: f64| v > 0.0 && v.is_finite();
        let not_negative = |v: f64| v >= 0.0 && v.is_finite();
        let fail = |field: &str, what: &str| Err(self.value(field, what));
        if self.runs == 0 {
            return fail("runs", "at least 1");
        }
        if !positive(self.duration) {
            return fail("duration", "more than 0 seconds");
        }
        if !not_negative(self.warmup) || self.warmup >= self.duration {
            return fail("warmup", "from 0 to less than the duration");
        }
        if !positive(self.sample_every) {
            return fail("sample_every", "more than 0 seconds");
        }
        let flows = self.traffic.flows.values();
        if flows.is_empty() || !flows.iter().all(|&v| positive(v)) {
            return fail("traffic.flows", "more than 0");
        }
        if !not_negative(self.traffic.packets_per_kb) {
            return fail("traffic.packets_per_kb", "at least 0");
        }
        if self.traffic.max_packets == Some(0) {
            return fail("traffic.max_packets", "at least 1");
        }
        let rates = self.pool.updates_per_minute.values();
        if rates.is_empty() || !rates.iter().all(|&v| not_negative(v)) {
            return fail("pool.updates_per_minute", "at least 0");
        }
        if self.pool.servers == 0
            || u32::from(self.pool.servers) + u32::from(self.pool.horizon) > 60_000
        {
            return fail("pool.servers", "from 1, and with the horizon at most 60,000");
        }
        let weights = &self.pool.weights;
        if weights.is_empty() || !weights.iter().all(|weight| (1..=1000).contains(weight)) {
            return fail("pool.weights", "at least one, each from 1 to 1,000");
        }
        if self.methods.is_empty() {
            return fail("method", "at least one");
        }
        for (place, method) in self.methods.iter().enumerate() {
            if let Some((field, what)) = method.fault() {
                return fail(&format!("method.{place}.{field}"), what);
            }
        }
        Ok(())
    }

    fn value(&self, field: &str, what: &str) -> ScenarioError {
        ScenarioError::Value {
            path: self.file.display().to_string(),
            line: line_of(&self.text, field),
            field: field.to_owned(),
            what: what.to_owned(),
        }
    }

    fn distribution(
        &self,
        field: &str,
        file: Option<&PathBuf>,
        built_in: fn() -> StepCdf,
    ) -> Result<StepCdf, ScenarioError> {
        let Some(file) = file else {
            return Ok(built_in());
        };
        let directory = self.file.parent().unwrap_or(Path::new(""));
        let cdf =
            StepCdf::load(&directory.join(file)).map_err(|source| ScenarioError::Distribution {
                path: self.file.display().to_string(),
                line: line_of(&self.text, field),
                field: field.to_owned(),
                source,
            })?;
        match cdf.mean() > 0.0 {
            true => Ok(cdf),
            false => Err(self.value(field, "a distribution with a mean of more than 0")),
        }
    }

    /// The worlds it describes: for each seed, each target, each rate.
    ///
    /// # Errors
    ///
    /// A distribution that cannot be read.
    pub fn worlds(&self) -> Result<Vec<World>, ScenarioError> {
        let (traffic, pool) = (&self.traffic, &self.pool);
        let base = World {
            seed: self.seed,
            duration: self.duration,
            warmup: self.warmup,
            sample_every: self.sample_every,
            engine: self.engine,
            flows: 0.0,
            durations: self.distribution(
                "traffic.durations",
                traffic.durations.as_ref(),
                StepCdf::hadoop_durations,
            )?,
            sizes: self.distribution(
                "traffic.sizes",
                traffic.sizes.as_ref(),
                StepCdf::hadoop_sizes,
            )?,
            packets_per_kb: traffic.packets_per_kb,
            max_packets: traffic.max_packets.unwrap_or(u64::MAX),
            servers: pool.servers,
            weights: pool.weights.clone(),
            updates_per_minute: 0.0,
            down_times: self.distribution(
                "pool.down_times",
                pool.down_times.as_ref(),
                StepCdf::upgrade_down_times,
            )?,
            departure: pool.departure,
            orphans: pool.orphans,
            horizon: pool.horizon,
        };
        let mut worlds = Vec::new();
        for seed in (0..self.runs).map(|run| self.seed.wrapping_add(run)) {
            for &flows in traffic.flows.values() {
                for &updates_per_minute in pool.updates_per_minute.values() {
                    worlds.push(World { seed, flows, updates_per_minute, ..base.clone() });
                }
            }
        }
        Ok(worlds)
    }
}

/// The line of a field, or of the table that it should be in; 1 if neither is found. Tables are
/// looked for by their headers; `method.2.rows` is in the third `[[method]]`.
fn line_of(text: &str, field: &str) -> usize {
    let (table, key) = field.rsplit_once('.').unwrap_or(("", field));
    let mut counts = std::collections::HashMap::new();
    let (mut here, mut header) = (String::new(), 1);
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(name) = line.strip_prefix("[[").and_then(|rest| rest.split("]]").next()) {
            let count = counts.entry(name.trim().to_owned()).or_insert(0);
            here = format!("{}.{count}", name.trim());
            *count += 1;
        } else if let Some(name) = line.strip_prefix('[').and_then(|r| r.split(']').next()) {
            here = name.trim().to_owned();
        } else if here == table && line.split('=').next().map(str::trim) == Some(key) {
            return number + 1;
        }
        if here == table && line.starts_with('[') {
            header = number + 1;
        }
    }
    header
}

/// Plays all methods of a scenario in all its worlds.
///
/// # Errors
///
/// A distribution that has become unreadable since the scenario was loaded, or weights that are
/// too much for a method.
pub fn run(scenario: &Scenario) -> Result<Report, ScenarioError> {
    let mut rows = Vec::new();
    for world in scenario.worlds()? {
        for spec in &scenario.methods {
            let mut method = spec.build(&world)?;
            let outcome = simulate(&world, &mut *method);
            rows.push(Row::new(spec.label(), &world, &outcome));
        }
    }
    Ok(Report { scenario: scenario.name.clone(), rows })
}

/// Runs a scenario file: a table for a person, or the whole report in JSON.
///
/// # Errors
///
/// [`ScenarioError`].
pub fn run_file(path: &Path, json: bool) -> Result<String, ScenarioError> {
    let report = run(&Scenario::load(path)?)?;
    if !json {
        return Ok(report.to_table());
    }
    // Numbers and strings only: there is nothing that JSON cannot say.
    Ok(serde_json::to_string_pretty(&report).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "name = \"small\"\nduration = 20.0\n[traffic]\nflows = [50, 60]\n\
        [pool]\nservers = 5\nupdates_per_minute = 10\n[[method]]\nkind = \"hash\"\n\
        [[method]]\nkind = \"jet\"\ntable = 0.5\nrows = 500\n";

    fn fault(from: &str, to: &str) -> String {
        let text = SMALL.replace(from, to);
        Scenario::parse(&text, Path::new("x.toml")).unwrap_err().to_string()
    }

    #[test]
    fn a_scenario_is_swept_and_repeats_itself() {
        let scenario = Scenario::parse(SMALL, Path::new("x.toml")).unwrap();
        let report = run(&scenario).unwrap();
        let labels: Vec<_> = report.rows.iter().map(|row| row.method.as_str()).collect();
        assert_eq!(labels, ["hash", "jet 0.5", "hash", "jet 0.5"]);
        assert_eq!(report, run(&scenario).unwrap());
        assert_eq!(report.to_csv().unwrap().lines().count(), 5);
        assert!(report.to_table().contains("broken %"));
    }

    #[test]
    fn errors_name_line_and_field() {
        let message = fault("rows = 500", "rows = 0");
        assert!(message.starts_with("x.toml:13: method.1.rows: "), "{message}");
        let message = fault("servers = 5", "servers = 0");
        assert!(message.starts_with("x.toml:6: pool.servers: "), "{message}");
        let message = fault("duration = 20.0", "duration = -1.0");
        assert!(message.starts_with("x.toml:2: duration: "), "{message}");
        let message = fault("servers = 5", "severs = 5");
        assert!(message.contains("line 6") && message.contains("severs"), "{message}");
        let message = fault("flows = [50, 60]", "flows = 9\nsizes = \"nowhere\"");
        assert!(message.starts_with("x.toml:5: traffic.sizes: "), "{message}");
    }
}
