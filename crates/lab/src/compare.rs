//! The same churn with one method after the other, and a row for each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

use crate::balancer::{Balancer, PoolControl};
use crate::demo::{self, DemoReport, DemoSpec, UNCHANGED};
use crate::error::{Error, Result};
use crate::kernel::{Entries, Measuring, Runs};
use crate::lab::Lab;
use crate::scenario::Scenario;
use weir_testbed::interrupt::{interrupted, sleep};

/// Longest wait for a status: the control plane may be busy with the last change.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a comparison came to: the object that `weir lab compare --json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Seed of all runs: connections are planned and changes drawn from it alike.
    pub seed: u64,
    /// A row for each method, in the order in which they ran.
    pub rows: Vec<Row>,
    /// Whether it was ended early, by a signal or a key; then rows are missing.
    pub interrupted: bool,
}

/// One method's run.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What was done besides changes of the pool.
    pub scenario: Scenario,
    /// Steering method of the services.
    pub method: String,
    /// How the nodes were wired.
    pub topology: &'static str,
    /// Connections that did all that they were to do, on one backend.
    pub completed: u64,
    /// Connections that failed with their backend.
    pub inevitable: u64,
    /// Connections that failed without an excuse.
    pub broken: u64,
    /// Why connections of this method may break in this scenario, as its page says; then they are no
    /// fault.
    pub foreseen: Option<&'static str>,
    /// How often that happened which the scenario is about; see [`Scenario::counted`].
    pub met: u64,
    /// How unevenly backends were loaded at the end; see [`DemoReport::imbalance`].
    pub imbalance: Option<f64>,
    /// Connections that the balancer remembered at the end of the churn: `states`, `connections` and
    /// `slots`.
    pub tracked: u64,
    /// Connections known to the control plane, over all services.
    pub states: u64,
    /// Entries in the kernel's connection table, over all services.
    pub connections: u64,
    /// Slots in use in the kernel's tables of connections by index, over all services.
    pub slots: u64,
    /// Entries in the kernel's table of timestamps, of connections whose answers are rewritten. They
    /// do not decide where a packet goes.
    pub answers: u64,
    /// Memory of the method: `control_bytes`, `table_bytes` and `entry_bytes`.
    pub state_bytes: u64,
    /// Bytes of the control plane's own structures, over all services.
    pub control_bytes: u64,
    /// Bytes of the published tables, over all services.
    pub table_bytes: u64,
    /// Bytes of the keys and values of `connections` and `answers`, and of `slots`.
    pub entry_bytes: u64,
    /// Mean time of the XDP program for a packet, as the kernel measures it.
    pub ns_per_packet: Option<f64>,
    /// Why there is no such time.
    pub no_time: Option<String>,
    /// Number of pool changes that were made.
    pub changes: u64,
    /// Times that the control plane was killed and started again.
    pub crashes: u64,
    /// Length of the run in seconds.
    pub seconds: f64,
    /// What should have held and did not, in words.
    pub fault: Option<String>,
}

impl Comparison {
    /// Whether every method ran, and kept what is promised.
    pub fn held(&self) -> bool {
        !self.interrupted && !self.rows.is_empty() && self.rows.iter().all(|r| r.fault.is_none())
    }

    /// The rows as a table, and what did not hold below it.
    pub fn table(&self) -> String {
        let heads = [
            "method",
            "scenario",
            "completed",
            "inevitable",
            "broken",
            "imbalance",
            "tracked",
            "state",
            "ns/packet",
        ];
        let cells = self.rows.iter().map(|row| {
            let ratio = |value: Option<f64>, digits| {
                value.map_or("-".to_string(), |value| format!("{value:.digits$}"))
            };
            [
                row.method.clone(),
                row.scenario.to_string(),
                row.completed.to_string(),
                row.inevitable.to_string(),
                row.broken.to_string(),
                ratio(row.imbalance, 3),
                row.tracked.to_string(),
                kib(row.state_bytes),
                ratio(row.ns_per_packet, 0),
            ]
        });
        let lines: Vec<[String; 9]> =
            std::iter::once(heads.map(String::from)).chain(cells).collect();
        let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
        let mut out = String::new();
        for line in &lines {
            out += &format!("{:<w$}  {:<v$}", line[0], line[1], w = width(0), v = width(1));
            for (column, cell) in line.iter().enumerate().skip(2) {
                out += &format!("  {cell:>w$}", w = width(column));
            }
            out.push('\n');
        }
        for row in &self.rows {
            let foreseen = row.foreseen.filter(|_| row.broken > 0).map(String::from);
            let unchanged = (row.changes == 0).then(|| UNCHANGED.to_owned());
            let said = [
                ("", &row.fault),
                ("", &unchanged),
                ("broken as foreseen: ", &foreseen),
                ("no time of packets: ", &row.no_time),
            ];
            for (about, text) in said.iter().filter_map(|(about, t)| Some((about, t.as_ref()?))) {
                out += &format!("{}, {}: {about}{text}\n", row.method, row.scenario);
            }
        }
        out
    }
}

fn kib(bytes: u64) -> String {
    format!("{} KiB", bytes.div_ceil(1024))
}

/// Runs one spec after the other, each in a laboratory of its own, and hands over each row and its
/// report as they are ready. An interrupt ends the comparison with the rows that are whole.
///
/// # Errors
/// If a lab or a balancer cannot be started, or does not tell its status.
pub fn run(specs: Vec<DemoSpec>, mut ready: impl FnMut(&Row, &DemoReport)) -> Result<Comparison> {
    let seed = specs.first().map_or(0, |spec| spec.traffic.seed);
    let mut rows = Vec::with_capacity(specs.len());
    for spec in specs {
        let Some((row, report)) = unless_interrupted(one(&spec))? else { break };
        ready(&row, &report);
        rows.push(row);
    }
    Ok(Comparison { seed, rows, interrupted: interrupted() })
}

/// An interrupt makes what runs fail in many ways, none of which is of interest.
fn unless_interrupted<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        _ if interrupted() => Ok(None),
        result => result.map(Some),
    }
}

/// What was seen of a balancer while the connections were open.
struct Look {
    status: Value,
    entries: Entries,
    time: Result<f64, String>,
}

fn one(spec: &DemoSpec) -> Result<(Row, DemoReport)> {
    let lab = Arc::new(Lab::create(spec.lab.clone())?);
    let balancer = Arc::new(Balancer::start(&lab, spec.balancer.clone())?);
    let measuring = Measuring::begin();
    let before = Runs::of(&lab)?;
    let look = || -> Result<Look> {
        let time = match &measuring {
            Err(error) => Err(format!("the kernel does not measure BPF programs: {error}")),
            Ok(_) => Runs::of(&lab)?.mean_since(&before).ok_or("no packet came".to_string()),
        };
        Ok(Look { status: status(&balancer)?, entries: Entries::of(&balancer.pins())?, time })
    };
    let control: Arc<dyn PoolControl> = Arc::clone(&balancer) as _;
    let (report, look) = demo::run_until(&lab, control, spec, look)?;
    let look = look?;
    Ok((row(spec, &report, look)?, report))
}

fn status(balancer: &Balancer) -> Result<Value> {
    let started = Instant::now();
    loop {
        match balancer.status() {
            Err(_) if started.elapsed() < PATIENCE && sleep(Duration::from_millis(100)) => {}
            result => return result,
        }
    }
}

/// Bytes of a connection by index (docs/cheetah.md).
const SLOT_BYTES: u64 = 16;

fn row(spec: &DemoSpec, report: &DemoReport, look: Look) -> Result<Row> {
    let Look { status, entries, time } = look;
    let sum = |field: &str| sum(&status, field);
    let (states, control, tables) = (sum("states")?, sum("control_bytes")?, sum("table_bytes")?);
    let services = status["services"].as_array().into_iter().flatten();
    let slots: u64 = services.filter_map(|one| one["slots"]["used"].as_u64()).sum();
    let entry_bytes = entries.bytes + slots * SLOT_BYTES;
    let totals = &report.traffic.totals;
    Ok(Row {
        scenario: spec.scenario,
        method: report.method.clone(),
        topology: spec.lab.topology.name(),
        completed: totals.completed,
        inevitable: totals.inevitable,
        broken: totals.broken,
        foreseen: report.foreseen(),
        met: totals.met,
        imbalance: report.imbalance,
        tracked: states + entries.connections + slots,
        states,
        connections: entries.connections,
        slots,
        answers: entries.answers,
        state_bytes: control + tables + entry_bytes,
        control_bytes: control,
        table_bytes: tables,
        entry_bytes,
        ns_per_packet: time.as_ref().ok().copied(),
        no_time: time.err(),
        changes: report.churn.changes,
        crashes: report.churn.crashes,
        seconds: report.traffic.seconds,
        fault: report.fault(),
    })
}

/// The sum of a number over the services of a status.
fn sum(status: &Value, field: &str) -> Result<u64> {
    let services = status["services"].as_array().filter(|services| !services.is_empty());
    services
        .and_then(|services| services.iter().map(|one| one[field].as_u64()).sum::<Option<u64>>())
        .ok_or_else(|| Error::BadFile {
            path: "weir status --json".into(),
            what: format!("its services do not tell {field}, a number"),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(method: &str) -> Row {
        Row {
            scenario: Scenario::Churn,
            method: method.into(),
            topology: "l2",
            completed: 1234,
            inevitable: 5,
            broken: 0,
            foreseen: None,
            met: 0,
            imbalance: Some(1.0625),
            tracked: 30,
            states: 10,
            connections: 20,
            slots: 0,
            answers: 0,
            state_bytes: 6001,
            control_bytes: 1000,
            table_bytes: 4001,
            entry_bytes: 1000,
            ns_per_packet: Some(99.6),
            no_time: None,
            changes: 10,
            crashes: 1,
            seconds: 12.5,
            fault: None,
        }
    }

    fn comparison(rows: Vec<Row>) -> Comparison {
        Comparison { seed: 7, rows, interrupted: false }
    }

    #[test]
    fn it_holds_only_if_every_method_ran_and_kept_its_promise() {
        let good = comparison(vec![row("concury"), row("jet")]);
        assert!(good.held());
        let mut bad = good.clone();
        bad.rows[1].fault = Some("1 connections broken".into());
        assert!(!bad.held());
        assert!(!Comparison { interrupted: true, ..good }.held());
        assert!(!comparison(Vec::new()).held());
    }

    #[test]
    fn the_table_has_a_line_for_each_row_and_says_what_did_not_hold() {
        let mut all = comparison(vec![row("concury"), row("jet")]);
        all.rows[1].imbalance = None;
        (all.rows[1].ns_per_packet, all.rows[1].no_time) = (None, Some("too old".into()));
        all.rows[1].fault = Some("3 connections broken".into());
        assert_eq!(
            all.table(),
            "method   scenario  completed  inevitable  broken  imbalance  tracked  state  ns/packet\n\
             concury  churn          1234           5       0      1.062       30  6 KiB        100\n\
             jet      churn          1234           5       0          -       30  6 KiB          -\n\
             jet, churn: 3 connections broken\n\
             jet, churn: no time of packets: too old\n"
        );
    }

    #[test]
    fn a_row_without_a_change_of_the_pool_says_so() {
        let all = comparison(vec![row("concury"), Row { changes: 0, ..row("jet") }]);
        let said: Vec<String> = all.table().lines().skip(3).map(ToOwned::to_owned).collect();
        assert_eq!(said, [format!("jet, churn: {UNCHANGED}")]);
        assert!(all.held(), "it is no fault");
    }

    #[test]
    fn the_json_has_the_promised_fields() {
        let json = serde_json::to_value(comparison(vec![row("concury")])).unwrap();
        assert_eq!(json["seed"], 7);
        let row = json["rows"][0].as_object().unwrap();
        for name in ["completed", "inevitable", "broken", "tracked", "state_bytes"] {
            assert!(row[name].is_u64(), "{name}: {row:?}");
        }
        assert_eq!((&row["method"], &row["scenario"]), (&json!("concury"), &json!("churn")));
        assert!(row["imbalance"].is_f64() && row["ns_per_packet"].is_f64(), "{row:?}");
        assert!(row["no_time"].is_null() && row["fault"].is_null(), "{row:?}");
    }

    #[test]
    fn a_status_is_summed_over_its_services() {
        let status = json!({"services": [{"states": 3}, {"states": 4}]});
        assert_eq!(sum(&status, "states").unwrap(), 7);
        let error = sum(&status, "table_bytes").unwrap_err().to_string();
        assert!(error.contains("table_bytes"), "{error}");
        assert!(sum(&json!({"services": []}), "states").is_err());
    }
}
