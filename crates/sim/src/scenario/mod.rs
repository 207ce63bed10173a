//! Scenario files: worlds and methods in TOML.

mod builtin;
mod check;
mod lines;
mod method;
mod play;
mod section;
mod spec;

pub use builtin::{BUILTIN, builtin, builtin_text};
pub use method::{MethodSpec, SettingSpec};
pub use play::{Progress, run, run_file, run_with};
pub use spec::{EventSpec, OneOrMany, PoolSpec, ReweightSpec, Scenario, TrafficSpec};

use crate::distribution::{DistributionError, StepCdf};
use crate::methods::MethodError;
use crate::world::{Scripted, World};
use lines::line_of;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Why a scenario cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("cannot read {path}: {cause}")]
    Io {
        /// The file.
        path: String,
        /// What the system says.
        cause: std::io::Error,
    },
    /// Not TOML, or not a scenario: an unknown field, a wrong type. The text shows the line.
    #[error("{path}: {cause}")]
    Syntax {
        /// The file.
        path: String,
        /// With line, column and field.
        cause: Box<toml::de::Error>,
    },
    /// A section that is no method: of no kind that there is, or with a field that is missing, unknown or of a wrong
    /// type.
    #[error("{path}:{line}: {field}: {what}")]
    Section {
        /// The file.
        path: String,
        /// Counted from 1.
        line: usize,
        /// Dotted, as in `method.2.table`.
        field: String,
        /// What is wrong with it.
        what: String,
    },
    /// With what is different in a size it is not a scenario.
    #[error("{path}:{line}: size.{size}: {what}")]
    Size {
        /// The file.
        path: String,
        /// Where the size begins, counted from 1.
        line: usize,
        /// The size.
        size: &'static str,
        /// What is wrong.
        what: String,
    },
    /// A value that makes no sense.
    #[error("{path}:{line}: {field} must be {right}; it is {is}")]
    Value {
        /// The file.
        path: String,
        /// Counted from 1.
        line: usize,
        /// Dotted, as in `pool.servers`.
        field: String,
        /// What it may be.
        right: String,
        /// What it is, as it is written.
        is: String,
    },
    /// A method that cannot be built with these servers and weights.
    #[error("{path}:{line}: the method {method} cannot be built: {cause}")]
    Method {
        /// The scenario's file.
        path: String,
        /// Where the method begins, counted from 1.
        line: usize,
        /// The method's label.
        method: String,
        /// What is wrong.
        cause: MethodError,
    },
    /// A distribution that the scenario names.
    #[error("{path}:{line}: {field}: {cause}")]
    Distribution {
        /// The scenario's file.
        path: String,
        /// Counted from 1.
        line: usize,
        /// Dotted.
        field: String,
        /// What is wrong with it.
        cause: DistributionError,
    },
    /// No scenario is built in under this name.
    #[error("there is no scenario {name:?}; built in are {known}")]
    Unknown {
        /// The name that was asked for.
        name: String,
        /// The names that there are.
        known: String,
    },
}

/// How much of a scenario is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Size {
    /// Seconds: enough to see that it works.
    Smoke,
    /// Up to a minute or two: the shape of the figure.
    #[default]
    Normal,
    /// With as many flows and as much time as in the paper.
    Full,
}

impl Size {
    /// All, smallest first.
    pub const ALL: [Self; 3] = [Self::Smoke, Self::Normal, Self::Full];

    /// Its name in scenario files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Smoke => "smoke",
            Self::Normal => "normal",
            Self::Full => "full",
        }
    }
}

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|size| size.name() == text);
        named.ok_or_else(|| format!("{text:?} is no size; sizes are smoke, normal and full"))
    }
}

impl Scenario {
    /// Reads and checks a scenario, in all sizes, and returns it in the normal one.
    ///
    /// # Errors
    ///
    /// [`ScenarioError`]; it names the line and the field.
    pub fn load(path: &Path) -> Result<Self, ScenarioError> {
        Self::load_sized(path, Size::Normal)
    }

    /// The same in a size.
    ///
    /// # Errors
    ///
    /// As [`Self::load`].
    pub fn load_sized(path: &Path, size: Size) -> Result<Self, ScenarioError> {
        let text = std::fs::read_to_string(path)
            .map_err(|cause| ScenarioError::Io { path: path.display().to_string(), cause })?;
        Self::parse_sized(&text, path, size)
    }

    /// The same for a text. `path`: what errors call it; its directory is where the files that the
    /// scenario names are.
    ///
    /// # Errors
    ///
    /// As [`Self::load`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, ScenarioError> {
        Self::parse_sized(text, path, Size::Normal)
    }

    /// The same in a size.
    ///
    /// # Errors
    ///
    /// As [`Self::load`].
    pub fn parse_sized(text: &str, path: &Path, size: Size) -> Result<Self, ScenarioError> {
        let syntax = |error| ScenarioError::Syntax {
            path: path.display().to_string(),
            cause: Box::new(error),
        };
        // Read as it stands first, because only then errors know their lines.
        let table: toml::Table = toml::from_str(text).map_err(syntax)?;
        check_sections(&table, text, path, None)?;
        let plain: Self = toml::from_str(text).map_err(syntax)?;
        plain.finish(text, path, None)?;
        let mut chosen = None;
        for each in Size::ALL {
            let table = sized(&table, each);
            check_sections(&table, text, path, Some(each))?;
            let scenario = Self::deserialize(table).map_err(|error| ScenarioError::Size {
                path: path.display().to_string(),
                line: line_of(text, None, &format!("size.{}", each.name())),
                size: each.name(),
                what: error.to_string().trim().replace('\n', "; "),
            })?;
            let scenario = scenario.finish(text, path, Some(each))?;
            if each == size {
                chosen = Some(scenario);
            }
        }
        chosen.ok_or_else(|| unreachable!("one of all sizes"))
    }

    fn finish(
        mut self,
        text: &str,
        path: &Path,
        size: Option<Size>,
    ) -> Result<Self, ScenarioError> {
        self.file = path.to_owned();
        self.text = text.to_owned();
        self.in_size = size;
        self.check()?;
        self.worlds()?;
        Ok(self)
    }

    fn value(&self, field: &str, right: &str) -> ScenarioError {
        let line = line_of(&self.text, self.in_size, field);
        let written = self.text.lines().nth(line.saturating_sub(1)).unwrap_or("").trim();
        let is = match written.split_once('=') {
            Some((key, value)) if field.ends_with(key.trim()) => value.trim().to_owned(),
            _ => "not given, or the table is".to_owned(),
        };
        ScenarioError::Value {
            path: self.file.display().to_string(),
            line,
            field: field.to_owned(),
            right: right.to_owned(),
            is,
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
            StepCdf::load(&directory.join(file)).map_err(|cause| ScenarioError::Distribution {
                path: self.file.display().to_string(),
                line: line_of(&self.text, self.in_size, field),
                field: field.to_owned(),
                cause,
            })?;
        match cdf.mean() > 0.0 {
            true => Ok(cdf),
            false => Err(self.value(field, "a distribution with a mean of more than 0")),
        }
    }

    /// What all worlds have in common.
    fn base(&self) -> Result<World, ScenarioError> {
        let (traffic, pool) = (&self.traffic, &self.pool);
        let durations = self.distribution(
            "traffic.durations",
            traffic.durations.as_ref(),
            StepCdf::hadoop_durations,
        )?;
        let sizes =
            self.distribution("traffic.sizes", traffic.sizes.as_ref(), StepCdf::hadoop_sizes)?;
        let down_times = self.distribution(
            "pool.down_times",
            pool.down_times.as_ref(),
            StepCdf::upgrade_down_times,
        )?;
        let script = self.events.iter().filter_map(|event| {
            let (_, action) = event.actions().pop()?;
            Some(Scripted { at: event.at, every: event.every, action })
        });
        Ok(World {
            duration: self.duration,
            warmup: self.warmup,
            sample_every: self.sample_every,
            engine: self.engine,
            peak: traffic.peak.unwrap_or(1.0),
            period: traffic.period.unwrap_or(1.0),
            durations,
            sizes,
            packets_per_kb: traffic.packets_per_kb.unwrap_or(10.0),
            max_packets: traffic.max_packets.unwrap_or(u64::MAX),
            standby: pool.standby,
            weights: pool.weights.clone(),
            down_times,
            departure: pool.departure,
            orphans: pool.orphans,
            script: script.collect(),
            balancers: pool.balancers,
            feedback: self.feedback,
            ..World::published(0.0, self.seed)
        })
    }

    /// The worlds it describes: for each seed, number of servers, horizon, target of flows, rate
    /// of reshuffles and rate of departures, in this order of nesting from the outside.
    ///
    /// # Errors
    ///
    /// A distribution that cannot be read.
    pub fn worlds(&self) -> Result<Vec<World>, ScenarioError> {
        let (traffic, pool) = (&self.traffic, &self.pool);
        let base = self.base()?;
        let mean = base.durations.mean();
        let targets: Vec<f64> = match (&traffic.flows, &traffic.rate) {
            (Some(flows), _) => flows.values().to_vec(),
            (None, Some(rates)) => rates.values().iter().map(|rate| rate * mean).collect(),
            (None, None) => vec![0.0],
        };
        let mut worlds = Vec::new();
        for seed in (0..self.runs).map(|run| self.seed.wrapping_add(run)) {
            for &servers in pool.servers.values() {
                for &horizon in pool.horizon.values() {
                    for &flows in &targets {
                        for &reshuffles_per_minute in pool.reshuffles_per_minute.values() {
                            for &updates_per_minute in pool.updates_per_minute.values() {
                                worlds.push(World {
                                    seed,
                                    servers,
                                    horizon,
                                    flows,
                                    reshuffles_per_minute,
                                    updates_per_minute,
                                    ..base.clone()
                                });
                            }
                        }
                    }
                }
            }
        }
        Ok(worlds)
    }
}

/// With what is different in a size.
fn sized(table: &toml::Table, size: Size) -> toml::Table {
    let mut table = table.clone();
    if let Some(toml::Value::Table(mut sizes)) = table.remove("size")
        && let Some(toml::Value::Table(changes)) = sizes.remove(size.name())
    {
        merge(&mut table, changes);
    }
    table
}

/// The first section that is no method is an error. What is in the place of sections, and is none, is not looked at.
fn check_sections(
    table: &toml::Table,
    text: &str,
    path: &Path,
    size: Option<Size>,
) -> Result<(), ScenarioError> {
    let Some(toml::Value::Array(sections)) = table.get("method") else {
        return Ok(());
    };
    for (place, section) in sections.iter().enumerate() {
        let fault = section.as_table().and_then(section::fault);
        if let Some((field, what)) = fault {
            let field = format!("method.{place}.{field}");
            let line = line_of(text, size, &field);
            return Err(ScenarioError::Section {
                path: path.display().to_string(),
                line,
                field,
                what,
            });
        }
    }
    Ok(())
}

/// Tables are merged, everything else is replaced.
fn merge(into: &mut toml::Table, from: toml::Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(toml::Value::Table(known)), toml::Value::Table(new)) => merge(known, new),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "name = \"small\"\nduration = 20.0\n[traffic]\nflows = [50, 60]\n\
        [pool]\nservers = 5\nupdates_per_minute = 10\n[[method]]\nkind = \"hash\"\n\
        [[method]]\nkind = \"jet\"\ntable = [0.5, 1]\nrows = 500\n\
        [size.smoke]\nduration = 10.0\ntraffic.flows = 40\n";

    fn fault(from: &str, to: &str) -> String {
        let text = SMALL.replace(from, to);
        Scenario::parse(&text, Path::new("x.toml")).unwrap_err().to_string()
    }

    #[test]
    fn a_scenario_is_swept_and_repeats_itself() {
        let scenario = Scenario::parse(SMALL, Path::new("x.toml")).unwrap();
        let mut seen = Vec::new();
        let report = run_with(&scenario, &mut |progress| seen.push(progress.run)).unwrap();
        let labels: Vec<_> = report.rows.iter().map(|row| row.method.as_str()).collect();
        assert_eq!(labels, ["hash", "jet 0.5", "jet 1", "hash", "jet 0.5", "jet 1"]);
        assert_eq!(seen, [0, 1, 2, 3, 4, 5], "each is announced");
        assert_eq!(report, run(&scenario).unwrap());
        assert_eq!(report.to_csv().unwrap().lines().count(), 7);
        assert_eq!(report.series_to_csv().unwrap().lines().count(), 1 + 6 * 20);
        let table = report.to_table();
        assert!(table.contains("broken %") && table.contains("flows"), "{table}");
        assert!(!table.contains("horizon"), "what is the same in all rows is left out: {table}");
    }

    #[test]
    fn a_size_changes_what_it_names_and_nothing_else() {
        let [smoke, normal, full] =
            Size::ALL.map(|size| Scenario::parse_sized(SMALL, Path::new("x.toml"), size).unwrap());
        assert_eq!((smoke.duration, normal.duration), (10.0, 20.0));
        assert_eq!(smoke.traffic.flows.as_ref().unwrap().values(), [40.0]);
        assert_eq!((smoke.pool, &smoke.methods), (normal.pool, &normal.methods));
        assert_eq!(full.traffic, normal.traffic);
    }

    #[test]
    fn errors_name_line_and_field_and_what_would_be_right() {
        let at = |from: &str, to: &str, start: &str, part: &str| {
            let message = fault(from, to);
            assert!(message.starts_with(start) && message.contains(part), "{message}");
        };
        at("rows = 500", "rows = 0", "x.toml:13: method.1.rows must be from 1 to", "it is 0");
        at("servers = 5", "servers = 0", "x.toml:6: pool.servers must be from 1", "it is 0");
        at("duration = 20.0", "duration = -1.0", "x.toml:2: duration must be more", "it is -1.0");
        at("table = [0.5, 1]", "table = []", "x.toml:12: method.1.table must be", "it is []");
        let concury = "kind = \"concury\"\nbits = 2";
        at("kind = \"hash\"", concury, "x.toml:10: method.0.bits must be so many", "it is 2");
        at("flows = [50, 60]", "flows = 9\nsizes = \"nowhere\"", "x.toml:5: traffic.sizes", "");
        at("flows = 40", "flows = -40", "x.toml:16: traffic.flows must be more than 0", "-40");
        at("traffic.flows = 40", "trafic.flows = 40", "x.toml:14: size.smoke: ", "trafic");
        at("[size.smoke]", "[size.tiny]", "x.toml: TOML parse error at line 14", "tiny");
        let published = |line: u32, rest: &str, of: &str, part: &str| {
            let start = format!("x.toml:{line}: method.0.{of} must be ");
            at(r#"kind = "hash""#, &format!("kind = \"published\"\n{rest}"), &start, part);
        };
        published(10, r#"method = "hesh""#, "method", "one of concury");
        published(10, r#"method = "cheetah""#, "method", r#"it is "cheetah""#);
        let few = "method = \"residue\"\nsettings.rows = 0";
        published(11, few, "settings.rows", "it is 0");
        let other = "method = \"ecmp\"\nsettings.dcode_bits = 8";
        published(11, other, "settings.dcode_bits", "has no setting");
        let warm = "method = \"jet\"\nsettings.warm_up = 9";
        published(11, warm, "settings.warm_up", "it is 9");
        let message = fault("servers = 5", "severs = 5");
        assert!(message.contains("line 6") && message.contains("severs"), "{message}");
        let message = fault("kind = \"hash\"", "kind = \"hesh\"");
        assert!(message.contains("hesh") && message.contains("`chain`"), "{message}");
        let message = fault("servers = 5", "servers = -5");
        assert!(message.contains("line 6") && message.contains("a number in"), "{message}");
        let second = |to: &str, start: &str, part: &str| at("rows = 500", to, start, part);
        second("over = \"nope\"", "x.toml:13: method.1.over: ", "expected one of `table`");
        second("raws = 5", "x.toml:13: method.1.raws: unknown field", "`rows`");
        second("rows = \"5\"", "x.toml:13: method.1.rows: invalid type", "usize");
        at("table = [0.5, 1]\n", "", "x.toml:10: method.1.table: missing field", "`table`");
        at("kind = \"jet\"", "kind = \"jot\"", "x.toml:11: method.1.kind: ", "`jet`");
        at("kind = \"jet\"\n", "", "x.toml:10: method.1.kind: missing field", "");
        let half = "kind = \"published\"\nmethod = \"ecmp\"\nsettings.a = 1.5";
        at("kind = \"hash\"", half, "x.toml:11: method.0.settings.a: expected a whole", "");
        let maglev = "over = \"maglev\"\nrows = 65536";
        let of_maglev = SMALL.replace("kind = \"jet\"", "kind = \"tracked\"");
        let text = of_maglev.replace("rows = 500", maglev);
        let message = Scenario::parse(&text, Path::new("x.toml")).unwrap_err().to_string();
        assert!(message.starts_with("x.toml:14: method.1.rows must be "), "{message}");
        assert!(message.contains("prime") && message.ends_with("it is 65536"), "{message}");
        let event = "[[event]]\nat = 3\n";
        at(
            "[size.smoke]",
            &format!("{event}[size.smoke]"),
            "x.toml:14: event.0 must be one of",
            "",
        );
        let event = format!("{event}add = 5\n[size.smoke]");
        at("[size.smoke]", &event, "x.toml:16: event.0.add must be numbers", "it is 5");
        let deaf = "kind = \"cheetah\"\nscheduler = \"automatic\"";
        at("kind = \"hash\"", deaf, "x.toml:10: method.0.scheduler must be", "[feedback]");
        at("duration = 20.0", "duration = 1e300", "x.toml:2: duration must be", "a year");
        at("[traffic]", "sample_every = 1e-9\n[traffic]", "x.toml:3: sample_every must be", "");
    }

    #[test]
    fn events_without_effect_are_refused() {
        let play = |events: &str| {
            let text =
                SMALL.replace("updates_per_minute = 10", "updates_per_minute = 0\nstandby = 2");
            let text = text.replace("[size.smoke]", &format!("{events}[size.smoke]"));
            Scenario::parse(&text, Path::new("x.toml")).map_err(|error| error.to_string())
        };
        for (events, start) in [
            ("[[event]]\nat = 20\nadd = 5\n", "x.toml:16: event.0.at must be less than"),
            ("[[event]]\nat = 500\nadd = 5\n", "x.toml:16: event.0.at must be less than"),
            // Of the size with 10 seconds.
            ("[[event]]\nat = 15\nadd = 5\n", "x.toml:16: event.0.at must be less than"),
            ("[[event]]\nat = 3\nadd = 3\n", "x.toml:17: event.0.add must be"),
            ("[[event]]\nat = 3\nremove = 5\n", "x.toml:17: event.0.remove must be"),
            ("[[event]]\nat = 3\ndrain = [1, 6]\n", "x.toml:17: event.0.drain must be"),
            (
                "[[event]]\nat = 4\nadd = 5\n[[event]]\nat = 3\nadd = 5\n",
                "x.toml:17: event.0.add must be",
            ),
            ("[[event]]\nat = 1\nevery = 1e-9\nadd = 5\n", "x.toml:17: event.0.every must be"),
        ] {
            let message = play(events).unwrap_err();
            assert!(message.starts_with(start), "{events}: {message}");
        }
        for events in [
            "[[event]]\nat = 3\nadd = [5, 6]\n[[event]]\nat = 4\nremove = 5\n",
            "[[event]]\nat = 5\nadd = 1\n[[event]]\nat = 3\ndrain = 1\n",
            // What drains loses its connections.
            "[[event]]\nat = 3\ndrain = 1\n[[event]]\nat = 5\nremove = 1\n",
            "[[event]]\nat = 1\nevery = 4\nadd = 1\n[[event]]\nat = 3\nevery = 4\ndrain = 1\n",
        ] {
            assert_eq!(play(events).err(), None, "{events}");
        }
        // Where servers depart by themselves, one may be away.
        let text = SMALL.replace("[size.smoke]", "[[event]]\nat = 3\nadd = 3\n[size.smoke]");
        assert!(Scenario::parse(&text, Path::new("x.toml")).is_ok());
    }

    #[test]
    fn every_built_in_scenario_is_one_in_every_size() {
        for name in BUILTIN {
            for size in Size::ALL {
                let scenario = builtin(name, size).unwrap();
                assert!(!scenario.worlds().unwrap().is_empty(), "{name}");
            }
        }
        let message = builtin("jet-33", Size::Smoke).unwrap_err().to_string();
        assert!(message.contains("jet-33") && message.contains("jet-3,"), "{message}");
    }
}
