//! Methods, as scenarios name them.

use super::spec::OneOrMany;
use crate::method::Method;
use crate::methods::{
    Buckets, Card, Cheetah, Connections, Cookies, Eviction, Hnlb, Jet, MethodError, Metric, Modulo,
    Over, Published, Release, Residue, Ring, Scheduler, Tracked,
};
use crate::world::World;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;
use weir_offload::Choice;
use weir_steering::jet::WARM_UP;
use weir_steering::{BuildError, MethodId, SettingError, Settings, TABLE_SIZE};

/// A method and its parameters.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", tag = "kind")]
pub enum MethodSpec {
    /// The hash modulo the number of servers: [`Modulo`].
    Modulo {},
    /// A table of buckets without a second chance: [`Buckets::hash`].
    Hash {
        /// Size of the indirection table.
        #[serde(default = "published_buckets")]
        buckets: usize,
    },
    /// A table of buckets with one previous owner each, as Beamer has it: [`Buckets::chain`].
    Chain {
        /// Size of the indirection table.
        #[serde(default = "published_buckets")]
        buckets: usize,
        /// A server is out of the table while its load is more than this above the average; one
        /// threshold, or several to go through.
        threshold: Option<OneOrMany<f64>>,
    },
    /// Consistent hashing on a circle: [`Ring`].
    Ring {
        /// Points per server.
        #[serde(default = "published_copies")]
        copies: u32,
    },
    /// Cookies in TCP timestamps: [`Cheetah`].
    Cheetah {
        /// Who gets a new flow.
        #[serde(default)]
        scheduler: Scheduler,
        /// Which load is compared.
        #[serde(default)]
        metric: Metric,
        /// `stateless` or `stateful`.
        #[serde(default)]
        cookies: Cookies,
        /// Room in the stateful balancer's table over the target of concurrent flows. Several
        /// balancers share it.
        #[serde(default = "twice")]
        table: f64,
    },
    /// Concury over Othello, as it is published to the data plane: [`Published::concury`].
    Concury {
        /// Bits of a Dcode.
        #[serde(default = "twelve")]
        bits: u32,
    },
    /// Full connection tracking: [`Tracked`].
    Tracked {
        /// Size of the connection table over the target of concurrent flows, or several to go
        /// through. Several balancers share it.
        table: OneOrMany<f64>,
        /// `at-end` or `never`.
        release: Option<Release>,
        /// `buckets`, `exact` or `kernel`.
        eviction: Option<Eviction>,
        /// `table`, `anchor`, `hrw`, `ring` or `maglev`.
        #[serde(default)]
        over: Over,
        /// Rows of the table-based HRW or of Maglev, or points per server of the ring.
        rows: Option<usize>,
    },
    /// Tracking of the flows that an announced change could move: [`Jet`].
    Jet {
        /// As for `tracked`.
        table: OneOrMany<f64>,
        /// `at-end` or `never`.
        release: Option<Release>,
        /// `buckets`, `exact` or `kernel`.
        eviction: Option<Eviction>,
        /// `table`, `anchor`, `hrw` or `ring`.
        #[serde(default)]
        over: Over,
        /// Rows of the table-based HRW, or points per server of the ring.
        rows: Option<usize>,
    },
    /// A table of rows, and the connections that live elsewhere: [`Residue`].
    Residue {
        /// Rows of the table-based HRW.
        #[serde(default = "published_rows")]
        rows: usize,
    },
    /// Any method of the registry, as it is published to the data plane: [`Published`]. Not those whose
    /// packets carry cookies.
    Published {
        /// Its name in the registry, as services have it.
        method: String,
        /// What it is configured with, as services have it.
        #[serde(default)]
        settings: BTreeMap<String, SettingSpec>,
        /// Size of the connection table over the target of concurrent flows, if the method has one. Several
        /// balancers share it.
        #[serde(default = "twice")]
        table: f64,
    },
    /// An emulated card with rules, beside a published method: [`Hnlb`].
    Hnlb {
        /// The method that steers what no rule leads, by its name in the registry.
        #[serde(default = "concury")]
        beside: String,
        /// Rules that the card holds, or several numbers to go through.
        rules: OneOrMany<f64>,
        /// Its receive queues, the software's included: backends beyond them get no rules.
        #[serde(default = "queues")]
        queues: u16,
        /// Seconds from a command until it has been carried out, on average.
        #[serde(default = "delay")]
        delay: f64,
        /// Insertions and deletions that the card takes in a second; no bound if it is not given.
        rate: Option<u32>,
        /// `all` until the table is full, `heavy` by a count-min sketch, or `sampled` by counters.
        #[serde(default)]
        policy: PolicySpec,
        /// Packets (`heavy`), or samples (`sampled`), of a connection before it is worth a rule.
        #[serde(default = "least")]
        least: u32,
        /// Of so many packets one is counted (`sampled`).
        #[serde(default = "one_in")]
        one_in: u32,
    },
}

/// Which connections get a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicySpec {
    /// All, until the table is full.
    All,
    /// The heavy ones, by a count-min sketch.
    #[default]
    Heavy,
    /// The heavy ones, by counters of a sample.
    Sampled,
}

impl PolicySpec {
    fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Heavy => "heavy",
            Self::Sampled => "sampled",
        }
    }

    fn choice(self, rules: usize, least: u32, one_in: u32) -> Choice {
        match self {
            Self::All => Choice::All,
            // Four counters for each rule, and as many more.
            Self::Heavy => Choice::Heavy { width: (8 * rules as u32).max(1 << 12), least },
            Self::Sampled => Choice::Sampled { one_in, least, flows: (4 * rules).max(1 << 10) },
        }
    }
}

/// A setting of a method, a number or one of its words.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(untagged, expecting = "expected a whole number, or one of the setting's words")]
pub enum SettingSpec {
    /// A number within the setting's range.
    Number(u64),
    /// One of the words that the setting has.
    Word(String),
}

/// The methods that [`MethodSpec::Published`] can be. Cookies come back in packets, of which those with a
/// table alone know nothing: they are [`MethodSpec::Cheetah`].
fn publishable() -> impl Iterator<Item = MethodId> {
    MethodId::published().filter(|method| !method.needs().timestamps)
}

/// The settings of such a method. A change takes no time here, so JET has nothing to warm up for unless it
/// is asked to.
fn settings_of(
    method: MethodId,
    given: &BTreeMap<String, SettingSpec>,
) -> Result<Settings, (String, SettingError)> {
    let mut settings = Settings::of(method);
    if method == MethodId::Jet {
        settings.set(WARM_UP, 0).map_err(|error| (WARM_UP.to_owned(), error))?;
    }
    for (name, value) in given {
        match value {
            SettingSpec::Number(number) => settings.set(name, *number),
            SettingSpec::Word(word) => settings.set_word(name, word),
        }
        .map_err(|error| (name.clone(), error))?;
    }
    Ok(settings)
}

fn twice() -> f64 {
    2.0
}
fn concury() -> String {
    "concury".to_owned()
}
fn queues() -> u16 {
    64
}
fn delay() -> f64 {
    25e-6
}
fn least() -> u32 {
    4
}
fn one_in() -> u32 {
    8
}
fn twelve() -> u32 {
    12
}
fn published_buckets() -> usize {
    46_800
}
fn published_copies() -> u32 {
    30
}
fn published_rows() -> usize {
    65_537
}

/// Rows, or points of a server, where the scenario does not say.
fn rows_of(over: Over, rows: Option<usize>) -> usize {
    rows.unwrap_or(if over == Over::Ring { 100 } else { published_rows() })
}

/// How entries leave the connection table where the scenario does not say: over Maglev, as the XDP
/// program's do; else as those of data planes in user space.
fn as_is(over: Over, eviction: Option<Eviction>, release: Option<Release>) -> (Eviction, Release) {
    match over {
        Over::Maglev => (eviction.unwrap_or(Eviction::Kernel), release.unwrap_or(Release::Never)),
        _ => (eviction.unwrap_or_default(), release.unwrap_or_default()),
    }
}

/// What a method with a connection table is called in reports: with the eviction, unless it is
/// that of our data planes.
fn tracking(kind: &str, table: f64, over: Over, eviction: Option<Eviction>) -> String {
    let usual = as_is(over, None, None).0;
    let eviction = eviction.filter(|&eviction| eviction != usual).map(|eviction| match eviction {
        Eviction::Buckets => " bucket-LRU",
        Eviction::Exact => " exact-LRU",
        Eviction::Kernel => " kernel-LRU",
    });
    let over = if over == Over::Table { String::new() } else { format!(" {over:?}") };
    format!("{kind} {table}{over}{}", eviction.unwrap_or_default())
}

impl MethodSpec {
    /// One for each value of a list.
    pub fn each(&self) -> Vec<Self> {
        let with = |values: &OneOrMany<f64>, set: &dyn Fn(&mut Self, OneOrMany<f64>)| {
            let one = |&value: &f64| {
                let mut spec = self.clone();
                set(&mut spec, OneOrMany::One(value));
                spec
            };
            values.values().iter().map(one).collect()
        };
        match self {
            Self::Chain { threshold: Some(values), .. } => with(values, &|spec, value| {
                if let Self::Chain { threshold, .. } = spec {
                    *threshold = Some(value);
                }
            }),
            Self::Tracked { table: values, .. } | Self::Jet { table: values, .. } => {
                with(values, &|spec, value| {
                    if let Self::Tracked { table, .. } | Self::Jet { table, .. } = spec {
                        *table = value;
                    }
                })
            }
            Self::Hnlb { rules: values, .. } => with(values, &|spec, value| {
                if let Self::Hnlb { rules, .. } = spec {
                    *rules = value;
                }
            }),
            _ => vec![self.clone()],
        }
    }

    /// A fresh method for a world. Of a list, the first value counts.
    ///
    /// # Errors
    ///
    /// A table without rows or with too many, or too much weight.
    pub fn build(&self, world: &World) -> Result<Box<dyn Method>, MethodError> {
        let weights = world.server_weights();
        let home = &weights[..usize::from(world.servers)];
        let room =
            |table: f64| (table * world.flows / f64::from(world.balancers.max(1))).round() as usize;
        let capacity = |table: &OneOrMany<f64>| room(table.first());
        Ok(match self {
            Self::Modulo {} => Box::new(Modulo::new(&weights)),
            &Self::Hash { buckets } => {
                Box::new(Buckets::hash(buckets, home).with_weights(&weights))
            }
            Self::Chain { buckets, threshold } => {
                let chain = Buckets::chain(*buckets, home).with_weights(&weights);
                Box::new(match threshold {
                    Some(threshold) => chain.with_threshold(threshold.first()),
                    None => chain,
                })
            }
            &Self::Ring { copies } => {
                Box::new(Ring::new(copies, &weights).map_err(BuildError::from)?)
            }
            &Self::Cheetah { scheduler, metric, cookies, table } => {
                Box::new(Cheetah::for_world(scheduler, metric, cookies, room(table), world))
            }
            &Self::Concury { bits } => Box::new(Published::concury(bits, world)?),
            Self::Tracked { table, release, eviction, over, rows } => {
                let (rows, room) = (rows_of(*over, *rows), capacity(table));
                let (lru, release) = as_is(*over, *eviction, *release);
                if *over == Over::Maglev {
                    let mut settings = Settings::of(MethodId::Tracked);
                    settings.set(TABLE_SIZE, rows as u64)?;
                    return Ok(Box::new(Published::new(settings, world, room, lru, release)?));
                }
                let tracked =
                    Tracked::new(*over, rows, world, Connections::new(room, lru, release));
                Box::new(tracked.map_err(BuildError::from)?)
            }
            Self::Jet { table, release, eviction, over, rows } => {
                let (rows, room) = (rows_of(*over, *rows), capacity(table));
                let (lru, release) = as_is(*over, *eviction, *release);
                let jet = Jet::new(*over, rows, world, Connections::new(room, lru, release));
                Box::new(jet?)
            }
            &Self::Residue { rows } => Box::new(Residue::new(rows, &weights)?),
            Self::Published { method, settings, table } => {
                let id = publishable().find(|id| id.name() == method);
                let id = id.ok_or_else(|| MethodError::NoTables(method.clone()))?;
                let settings = settings_of(id, settings).map_err(|(_, error)| error)?;
                let (eviction, release) = (Eviction::Kernel, Release::Never);
                Box::new(Published::new(settings, world, room(*table), eviction, release)?)
            }
            Self::Hnlb { beside, rules, queues, delay, rate, policy, least, one_in } => {
                let method = Self::Published {
                    method: beside.clone(),
                    settings: BTreeMap::new(),
                    table: 2.0,
                };
                let rules = rules.first() as usize;
                let card = Card {
                    rules,
                    queues: *queues,
                    delay: Duration::from_secs_f64(*delay),
                    rate: *rate,
                    choice: policy.choice(rules, *least, *one_in),
                };
                Box::new(Hnlb::new(method.build(world)?, card, world)?)
            }
        })
    }

    /// The name in reports: kind and parameters.
    pub fn label(&self) -> String {
        match self {
            Self::Modulo {} => "modulo".into(),
            Self::Hash { .. } => "hash".into(),
            Self::Chain { threshold: None, .. } => "chain".into(),
            Self::Chain { threshold: Some(threshold), .. } => {
                format!("chain {}", threshold.first())
            }
            Self::Ring { copies } => format!("ring {copies}"),
            Self::Cheetah { scheduler, metric, cookies, .. } => {
                let stateful = if *cookies == Cookies::Stateful { " stateful" } else { "" };
                let reported = if *metric == Metric::Reported { " reported" } else { "" };
                format!("cheetah {scheduler:?}{reported}{stateful}")
            }
            Self::Concury { .. } => "concury".into(),
            Self::Tracked { table, over, eviction, .. } => {
                tracking("tracked", table.first(), *over, *eviction)
            }
            Self::Jet { table, over, eviction, .. } => {
                tracking("jet", table.first(), *over, *eviction)
            }
            Self::Residue { .. } => "residue".into(),
            Self::Published { method, .. } => format!("{method} published"),
            Self::Hnlb { beside, rules, policy, .. } => {
                format!("hnlb {} {} beside {beside}", policy.name(), rules.first())
            }
        }
    }

    /// Whether it depends on what servers report.
    pub(super) fn needs_feedback(&self) -> bool {
        use Scheduler::{Automatic, LeastLoaded, PowerOfTwo};
        match self {
            Self::Cheetah { scheduler: Automatic, .. } => true,
            Self::Cheetah { scheduler: PowerOfTwo | LeastLoaded, metric, .. } => {
                *metric == Metric::Reported
            }
            _ => false,
        }
    }

    /// The first parameter that makes no sense with so many servers, and what would make sense.
    pub(super) fn fault(&self, servers: u32) -> Option<(String, Cow<'static, str>)> {
        match self {
            Self::Published { method, settings, table } => {
                published_fault(method, settings, *table, servers)
            }
            Self::Hnlb { beside, .. } => {
                let fault = published_fault(beside, &BTreeMap::new(), 2.0, servers);
                let fault = fault.map(|(field, right)| match &*field {
                    "method" => ("beside".to_owned(), right),
                    _ => (field, right),
                });
                let own = || self.own_fault(servers);
                fault.or_else(|| own().map(|(field, right)| (field.to_owned(), right.into())))
            }
            _ => self
                .own_fault(servers)
                .map(|(field, right)| (field.to_owned(), right.into()))
                .or_else(|| self.maglev_fault()),
        }
    }

    /// Maglev's table is that of the published method, with its bounds.
    fn maglev_fault(&self) -> Option<(String, Cow<'static, str>)> {
        let Self::Tracked { over: Over::Maglev, rows, .. } = self else {
            return None;
        };
        let rows = rows_of(Over::Maglev, *rows) as u64;
        let error = Settings::of(MethodId::Tracked).set(TABLE_SIZE, rows).err()?;
        Some(("rows".to_owned(), format!("as Maglev has them ({error})").into()))
    }

    fn own_fault(&self, servers: u32) -> Option<(&'static str, &'static str)> {
        const ROWS: &str = "from 1 to 67,108,864";
        let bad = |n: usize| n == 0 || n > 1 << 26;
        match self {
            Self::Hash { buckets } | Self::Chain { buckets, .. } if bad(*buckets) => {
                Some(("buckets", ROWS))
            }
            Self::Chain { threshold: Some(threshold), .. }
                if !threshold.all(|value| value > 0.0 && value.is_finite()) =>
            {
                Some(("threshold", "more than 0 (0.1 is a load of 1.1 times the average)"))
            }
            Self::Ring { copies } if !(1..=10_000).contains(copies) => {
                Some(("copies", "from 1 to 10,000"))
            }
            Self::Concury { bits } if !(1..=15).contains(bits) => Some(("bits", "from 1 to 15")),
            Self::Concury { bits } if servers >= 1 << bits => {
                Some(("bits", "so many that there are more Dcodes, 2^bits, than servers"))
            }
            Self::Cheetah { table, .. } if !(0.0..=1000.0).contains(table) => {
                Some(("table", "from 0 to 1,000 (times the target of concurrent flows)"))
            }
            Self::Residue { rows } if bad(*rows) => Some(("rows", ROWS)),
            Self::Hnlb { rules, .. }
                if !rules
                    .all(|value| (1.0..=65_536.0).contains(&value) && value.fract() == 0.0) =>
            {
                Some(("rules", "whole numbers from 1 to 65,536; cards have 2,048 to 8,192"))
            }
            Self::Hnlb { queues, .. } if !(2..=4096).contains(queues) => {
                Some(("queues", "from 2, of which one is the software's, to 4,096"))
            }
            Self::Hnlb { delay, .. } if !(0.0..=60.0).contains(delay) => {
                Some(("delay", "from 0 to 60 seconds"))
            }
            Self::Hnlb { rate: Some(0), .. } => Some(("rate", "at least 1 in a second")),
            Self::Hnlb { least: 0, .. } => Some(("least", "at least 1")),
            Self::Hnlb { one_in: 0, .. } => Some(("one_in", "at least 1")),
            Self::Tracked { rows, over, .. } | Self::Jet { rows, over, .. }
                if bad(rows_of(*over, *rows)) =>
            {
                Some(("rows", ROWS))
            }
            Self::Jet { over: Over::Maglev, .. } => Some((
                "over",
                "table, anchor, hrw or ring: nothing tells which flows Maglev will move",
            )),
            Self::Tracked { table, .. } | Self::Jet { table, .. }
                if !table.all(|value| (0.0..=1000.0).contains(&value)) =>
            {
                Some(("table", "from 0 to 1,000 (times the target of concurrent flows)"))
            }
            _ => None,
        }
    }
}

fn published_fault(
    method: &str,
    settings: &BTreeMap<String, SettingSpec>,
    table: f64,
    servers: u32,
) -> Option<(String, Cow<'static, str>)> {
    let Some(id) = publishable().find(|id| id.name() == method) else {
        let names: Vec<_> = publishable().map(MethodId::name).collect();
        return Some(("method".to_owned(), format!("one of {}", names.join(", ")).into()));
    };
    if !(0.0..=1000.0).contains(&table) {
        let right = "from 0 to 1,000 (times the target of concurrent flows)";
        return Some(("table".to_owned(), right.into()));
    }
    let settings = match settings_of(id, settings) {
        Ok(settings) => settings,
        Err((name, error)) => {
            return Some((
                format!("settings.{name}"),
                format!("as {method} has it ({error})").into(),
            ));
        }
    };
    if id == MethodId::Jet && settings.get(WARM_UP) > 0 {
        let right = "0, as a change takes no time here, so that nothing waits";
        return Some((format!("settings.{WARM_UP}"), right.into()));
    }
    let fits = (id.info().fits)(&settings, servers as usize);
    fits.err().map(|error| {
        let right = format!("such that so many servers fit: {error}");
        (format!("settings.{}", error.setting), right.into())
    })
}
