//! A whole run: a lab, a balancer, traffic, churn, a view, and a verdict.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::balancer::{Balancer, BalancerSpec, PoolControl};
use crate::churn::{Churn, ChurnReport, ChurnSpec, Place};
use crate::error::Result;
use crate::interrupt::{interrupted, sleep};
use crate::lab::{Lab, LabSpec};
use crate::traffic::{KindSnapshot, Report, Traffic, TrafficHandle, TrafficSpec};
use crate::view::{Scene, View};

/// Longest time from the start of the traffic to the first change.
const RAMP_LIMIT: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(50);
/// Changes that a view may want to show.
const LOG_SHOWN: usize = 50;

/// What to run.
#[derive(Clone, Debug)]
pub struct DemoSpec {
    /// The lab.
    pub lab: LabSpec,
    /// The balancer.
    pub balancer: BalancerSpec,
    /// The traffic.
    pub traffic: TrafficSpec,
    /// The churn.
    pub churn: ChurnSpec,
    /// How long the pool is churned.
    pub duration: Duration,
    /// Lines instead of a live picture, also on a terminal.
    pub plain: bool,
}

impl DemoSpec {
    /// Twelve backends, nine of which are in the pool at the start, and everything drawn from
    /// one seed.
    pub fn new(weir: impl AsRef<Path>, seed: u64) -> Self {
        Self {
            lab: LabSpec::default(),
            balancer: BalancerSpec::new(weir.as_ref(), 9),
            traffic: TrafficSpec { seed, connections: 4000, ..TrafficSpec::default() },
            churn: ChurnSpec { seed, ..ChurnSpec::default() },
            duration: Duration::from_secs(30),
            plain: false,
        }
    }
}

/// What a run came to.
#[derive(Clone, Debug, Serialize)]
pub struct DemoReport {
    /// The steering method.
    pub method: String,
    /// What the clients saw.
    pub traffic: Report,
    /// What was done to the pool.
    pub churn: ChurnReport,
    /// Whether it was ended early.
    pub interrupted: bool,
}

impl DemoReport {
    /// Whether what was promised held: the run went to its end, every kind of connection worked,
    /// none was broken, and every change could be made.
    pub fn held(&self) -> bool {
        let totals = &self.traffic.totals;
        let works = |kind: &KindSnapshot| kind.started == 0 || kind.completed > 0;
        !self.interrupted
            && totals.completed > 0
            && totals.kinds.iter().all(works)
            && totals.broken == 0
            && self.churn.failed == 0
    }

    /// The line that sums it up: `demo: N connections, M pool changes, K inevitable, 0 broken`.
    pub fn line(&self) -> String {
        let totals = &self.traffic.totals;
        format!(
            "demo: {} connections, {} pool changes, {} inevitable, {} broken",
            totals.ended(),
            self.churn.changes,
            totals.inevitable,
            totals.broken
        )
    }

    /// The final table: backends, kinds, and, if there are any, broken connections and changes
    /// that failed.
    pub fn table(&self) -> String {
        let totals = &self.traffic.totals;
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{:>8}  {:>9}  {:>9}  {:>10}  {:>7}  at the end",
            "backend", "new", "answers", "inevitable", "broken"
        );
        for (backend, place) in totals.backends.iter().zip(&self.churn.places) {
            let _ = writeln!(
                out,
                "{:>8}  {:>9}  {:>9}  {:>10}  {:>7}  {}",
                backend.name,
                backend.new,
                backend.answers,
                backend.inevitable,
                backend.broken,
                place.word()
            );
        }
        let _ = writeln!(
            out,
            "\n{:>9}  {:>9}  {:>9}  {:>10}  {:>7}",
            "kind", "started", "completed", "inevitable", "broken"
        );
        for kind in &totals.kinds {
            let _ = writeln!(
                out,
                "{:>9}  {:>9}  {:>9}  {:>10}  {:>7}",
                kind.kind.name(),
                kind.started,
                kind.completed,
                kind.inevitable,
                kind.broken
            );
        }
        let of_backends: u64 = totals.backends.iter().map(|b| b.inevitable).sum();
        let _ = writeln!(
            out,
            "\ninevitable: {of_backends} with the backend that they sat on, {} before a first answer",
            totals.inevitable - of_backends
        );
        let _ = writeln!(
            out,
            "method {}, seed {}, {:.1} s, at most {} open, {} crashes of the control plane;\n\
             connect p50 {:.2} ms, p99 {:.2} ms, max {:.1} ms; \
             answer p50 {:.2} ms, p99 {:.2} ms, max {:.1} ms; {} datagrams sent again",
            self.method,
            self.traffic.seed,
            self.traffic.seconds,
            totals.peak,
            self.churn.crashes,
            totals.connect.p50,
            totals.connect.p99,
            totals.connect.max,
            totals.answer.p50,
            totals.answer.p99,
            totals.answer.max,
            totals.resent,
        );
        for broken in self.traffic.broken_connections.iter().take(20) {
            let _ = writeln!(
                out,
                "broken: {} from {} on {}, {:.3}..{:.3} s, {} answers: {}",
                broken.kind.name(),
                broken.source,
                broken.backend.as_deref().unwrap_or("no backend yet"),
                broken.started,
                broken.failed,
                broken.answers,
                broken.reason
            );
        }
        for change in self.churn.log.iter().filter(|c| c.error.is_some()) {
            let error = change.error.as_deref().unwrap_or_default();
            let _ = writeln!(out, "failed: {:.3} s, {}: {error}", change.at, change.what);
        }
        out
    }
}

/// Runs it all. What it shows on the way goes to standard output; the table and the line are left
/// to the caller. An interrupted run ends early and politely, and says so in its report.
///
/// # Errors
/// If the lab or the balancer cannot be started.
pub fn run(spec: DemoSpec) -> Result<DemoReport> {
    let lab = Arc::new(Lab::create(spec.lab.clone())?);
    let balancer = Arc::new(Balancer::start(&lab, spec.balancer.clone())?);
    let control: Arc<dyn PoolControl> = Arc::clone(&balancer) as _;
    run_in(&lab, control, &spec)
}

/// Runs traffic and churn in a lab whose balancer runs already.
///
/// # Errors
/// If the traffic cannot be started.
pub fn run_in(
    lab: &Arc<Lab>,
    control: Arc<dyn PoolControl>,
    spec: &DemoSpec,
) -> Result<DemoReport> {
    let traffic = Traffic::start(lab, spec.traffic.clone())?;
    let title = format!("weir lab {} ({})", lab.id(), spec.balancer.method);
    let pool = spec.balancer.pool;
    let mut stage = Stage {
        traffic: &traffic,
        view: View::open(spec.plain),
        title,
        started: Instant::now(),
        // The ramp is as long as it takes, and mostly short.
        total: spec.duration,
        still: (0..lab.backends().len())
            .map(|backend| match backend < pool {
                true => Place::Serving,
                false => Place::Out,
            })
            .collect(),
    };
    let enough = spec.traffic.connections as u64 * 9 / 10;
    stage.play("ramp", None, |stage| {
        stage.started.elapsed() < RAMP_LIMIT && stage.traffic.stats().snapshot().open < enough
    });
    stage.total += stage.started.elapsed();

    let stats = Arc::clone(traffic.stats());
    let open = move |backend| stats.open_on(backend);
    let churn = Churn::start(Arc::clone(lab), control, pool, open, spec.churn.clone());
    stage.play("churn", Some(&churn), |stage| stage.started.elapsed() < stage.total);
    churn.halt();
    traffic.wind_down();
    stage.play("ending", Some(&churn), |stage| !stage.traffic.is_done());
    drop(stage);
    let churn = churn.finish();

    let interrupted = interrupted();
    Ok(DemoReport {
        method: spec.balancer.method.clone(),
        traffic: if interrupted { traffic.give_up()? } else { traffic.finish()? },
        churn,
        interrupted,
    })
}

/// What stays the same from one picture to the next.
struct Stage<'a> {
    traffic: &'a TrafficHandle,
    view: View,
    title: String,
    started: Instant,
    total: Duration,
    still: Vec<Place>,
}

impl Stage<'_> {
    fn play(&mut self, phase: &str, churn: Option<&Churn>, goes_on: impl Fn(&Self) -> bool) {
        while goes_on(self) && sleep(TICK) {
            let stats = self.traffic.stats().snapshot();
            let log = churn.map_or(Vec::new(), |churn| churn.last(LOG_SHOWN));
            let places = churn.map_or_else(|| self.still.clone(), Churn::places);
            self.view.show(&Scene {
                title: &self.title,
                phase,
                elapsed: self.started.elapsed(),
                total: self.total,
                stats: &stats,
                changes: churn.map_or(0, Churn::changes),
                log: &log,
                places: &places,
            });
        }
    }
}
