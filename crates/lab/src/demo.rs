//! A whole run: a lab, a balancer, traffic, churn, a view, and a verdict.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::agent::Lies;
use crate::balancer::{Balancer, BalancerSpec, PoolControl};
use crate::churn::{Change, Churn, ChurnReport, ChurnSpec, Place};
use crate::error::Result;
use crate::fleet::{Fleet, Happening};
use crate::lab::{Lab, LabSpec};
use crate::loads::Loads;
use crate::narrow::{Link, Told};
use crate::rules::Ruled;
use crate::scenario::{FloodKind, Floods, Scenario, Stress};
use crate::shares::Shares;
use crate::tiers::Tiers;
use crate::topology::Topology;
use crate::traffic::{Kind, KindSnapshot, Report, Snapshot, Traffic, TrafficHandle, TrafficSpec};
use crate::view::{Scene, Show, View};
use weir_testbed::interrupt::{interrupted, sleep};

/// Longest time from the start of the traffic to the first change.
const RAMP_LIMIT: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(50);
/// Changes that a view may want to show.
const LOG_SHOWN: usize = 50;

/// A whole run: the lab, the balancer, the traffic, the churn, and for how long.
#[derive(Clone, Debug)]
pub struct DemoSpec {
    /// Nodes of the laboratory.
    pub lab: LabSpec,
    /// The balancer under test and its services.
    pub balancer: BalancerSpec,
    /// What the clients do.
    pub traffic: TrafficSpec,
    /// What is done to the pool.
    pub churn: ChurnSpec,
    /// What is done besides; [`Scenario::suit`] sets it.
    pub scenario: Scenario,
    /// Floods beside it, whatever the scenario is, each as fast as a thread can send.
    pub floods: Vec<FloodKind>,
    /// Whether the balancer is told the CPU load of each backend, for a scheduler that goes by it;
    /// the lab needs [`LabSpec::cgroups`].
    pub tell_loads: bool,
    /// How long the control plane is dead before the first change, in
    /// [`Scenario::DeadControl`].
    pub dead: Duration,
    /// How long the pool is churned, at least.
    pub duration: Duration,
    /// What has to be reached before it ends.
    pub goals: Goals,
    /// How long the pool is churned at most, if the goals are not reached.
    pub limit: Duration,
    /// After this time new connections follow a change of the pool or of a weight. A backend's share
    /// counts for [`DemoReport::imbalance`] from then on.
    pub settle: Duration,
    /// Where a person can watch.
    pub show: Show,
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
            scenario: Scenario::Churn,
            floods: Vec::new(),
            tell_loads: false,
            dead: Duration::ZERO,
            duration: Duration::from_secs(30),
            goals: Goals::default(),
            limit: Duration::from_secs(600),
            settle: Duration::from_secs(3),
            show: Show::Picture,
        }
    }
}

/// Counts that a run goes on for, so that what it shows does not depend on how fast the machine is.
/// Zero asks for nothing.
#[derive(Clone, Debug, Default)]
pub struct Goals {
    /// Pool changes made.
    pub changes: u64,
    /// Whether every kind of change has to be among them, crashes included.
    pub every_kind: bool,
    /// Kinds of change that have to be among them.
    pub kinds: &'static [&'static str],
    /// How often what the scenario is about has to happen.
    pub met: u64,
    /// Connections open at a time.
    pub open: u64,
    /// Connections completed, of one kind.
    pub completed: Vec<(Kind, u64)>,
    /// Connections that have ended, of all kinds.
    pub ended: u64,
    /// Segments sent, of each flood.
    pub flooded: u64,
    /// Packets that rules of a card have led. If any have to be, what became of rules is asked and reported.
    pub led: u64,
    /// Whether everything has to happen that may happen to a fleet.
    pub every_event: bool,
}

/// What a run has come to so far.
struct SoFar<'a> {
    stats: &'a Snapshot,
    churn: &'a Churn,
    flooded: BTreeMap<&'static str, u64>,
    happened: BTreeMap<&'static str, u64>,
    led: u64,
}

impl Goals {
    /// What is not reached yet, in words.
    fn missing(&self, so_far: &SoFar<'_>) -> Option<String> {
        let SoFar { stats, churn, flooded, happened, led } = so_far;
        let changes = churn.changes();
        if changes < self.changes {
            return Some(format!("{changes} of {} pool changes", self.changes));
        }
        let wanted = if self.every_kind { &Change::KINDS } else { self.kinds };
        let made = churn.kinds();
        let absent: Vec<&str> =
            wanted.iter().copied().filter(|kind| !made.contains(kind)).collect();
        if !absent.is_empty() {
            return Some(format!("no change of the kind {}", absent.join(", ")));
        }
        if stats.met < self.met {
            return Some(format!("{} of {} times what it is about", stats.met, self.met));
        }
        if stats.peak < self.open {
            return Some(format!("at most {} of {} connections open", stats.peak, self.open));
        }
        if stats.ended() < self.ended {
            return Some(format!("{} of {} connections have ended", stats.ended(), self.ended));
        }
        if *led < self.led {
            return Some(format!("{led} of {} packets led by rules", self.led));
        }
        let few = flooded.iter().find(|(_, sent)| **sent < self.flooded);
        if let Some((kind, sent)) = few {
            return Some(format!("{sent} of {} {kind} segments of the flood", self.flooded));
        }
        if let Some((event, _)) =
            happened.iter().find(|(_, times)| self.every_event && **times == 0)
        {
            return Some(format!("it has not happened that {event}"));
        }
        self.completed.iter().find_map(|(kind, least)| {
            let of_kind = stats.kinds.iter().find(|one| one.kind == *kind)?;
            let few = of_kind.completed < *least;
            let words = || format!("{} of {least} {} completed", of_kind.completed, kind.name());
            few.then(words)
        })
    }
}

/// What a run came to.
#[derive(Clone, Debug, Serialize)]
pub struct DemoReport {
    /// What was done besides changes of the pool.
    pub scenario: Scenario,
    /// Steering method of the services, as the configuration file has it.
    pub method: String,
    /// What the clients saw.
    pub traffic: Report,
    /// What was done to the pool.
    pub churn: ChurnReport,
    /// Balancers of one fleet, among which flows moved; 0: one, or another arrangement.
    pub fleet: usize,
    /// What the backends' agents were made to say wrongly.
    pub lies: Lies,
    /// What happened to the fleet, and how often; everything that may happen is named.
    pub happened: BTreeMap<&'static str, u64>,
    /// The same with times and victims, in the order of their ends.
    pub diary: Vec<Happening>,
    /// Segments of floods that were sent, by their kind.
    pub flooded: BTreeMap<&'static str, u64>,
    /// What became of rules of a card, in a run that is about them.
    pub ruled: Option<Ruled>,
    /// The link between the router and the backends, if it takes less than others.
    pub link: Option<Link>,
    /// Kinds of connections that can only stand still on it: nobody tells their senders, nor makes their segments
    /// smaller. They are counted apart.
    pub stalled: Vec<Kind>,
    /// What was said of packets that are too large, if there is such a link.
    pub told: Option<Told>,
    /// CPU loads of backends that the balancer was told and took; none if it was to be told none.
    pub loads_told: Option<u64>,
    /// How many new connections a backend got for each that its weight's share was, at the backend
    /// where that is most; `docs/lab.md` says which connections count. None if no two backends
    /// served for long enough.
    pub imbalance: Option<f64>,
    /// Seconds from the death of a backend until the balancer sent nothing new there, as it says: median, and
    /// longest. None if none died, or none was asked.
    pub noticed: Option<[f64; 2]>,
    /// Whether the run was ended early, by a signal or a key.
    pub interrupted: bool,
    /// Which of its goals it had not reached at its limit.
    pub missed: Option<String>,
}

/// What a run has shown without a change of the pool.
pub(crate) const UNCHANGED: &str = "the pool did not change, so this run has shown nothing: give a longer --duration, or --changes";

impl DemoReport {
    /// Whether what was promised held: the run went to its end and reached its goals, every kind of
    /// connection worked, none was broken, every change could be made, and no first packet went
    /// unseen, so that the verdicts are right.
    pub fn held(&self) -> bool {
        self.fault().is_none()
    }

    /// Why connections may break with this method in this scenario, as its page says.
    pub fn foreseen(&self) -> Option<&'static str> {
        let alone = || self.scenario.foreseen(&self.method);
        match &*self.method {
            "tracked" | "jet" if self.fleet > 0 => Some(
                "a flow that moves to another balancer is not in that one's connection table \
                 (docs/fleet.md, What a fleet keeps)",
            ),
            _ => alone(),
        }
    }

    /// What is said of a run in which the pool did not change: no connection could have broken.
    pub fn unchanged(&self) -> Option<&'static str> {
        (self.churn.changes == 0).then_some(UNCHANGED)
    }

    /// What did not hold, in words; the worst of it.
    pub fn fault(&self) -> Option<String> {
        let broken = self.traffic.totals.broken;
        if broken > 0 && self.foreseen().is_none() {
            return Some(format!("{broken} connections broken"));
        }
        self.fault_but_broken()
    }

    /// What did not hold, connections that broke apart.
    pub fn fault_but_broken(&self) -> Option<String> {
        let totals = &self.traffic.totals;
        // Of few connections all may have sat on servers that were killed.
        let idle = |kind: &&KindSnapshot| {
            let to_complete = !self.stalled.contains(&kind.kind);
            to_complete && kind.started > kind.inevitable && kind.completed == 0
        };
        let flows = |kind: &KindSnapshot| {
            let download = kind.kind == Kind::Download && self.stalled.contains(&kind.kind);
            download && kind.started > kind.inevitable && kind.broken_unpromised == 0
        };
        if self.interrupted {
            return Some("interrupted".into());
        }
        if let Some(missed) = &self.missed {
            return Some(format!("ended at its limit: {missed}"));
        }
        if self.churn.failed > 0 {
            return Some(format!("{} changes could not be made", self.churn.failed));
        }
        if self.traffic.unseen > 0 {
            return Some(format!("{} first packets arrived unseen", self.traffic.unseen));
        }
        if let Some((kind, _)) = self.flooded.iter().find(|(_, sent)| **sent == 0) {
            return Some(format!("no {kind} segment of the flood could be sent"));
        }
        if self.lies.any() && totals.untold == 0 {
            return Some("no connection ended that agents were made not to report".into());
        }
        if self.loads_told == Some(0) {
            return Some("no load could be told".into());
        }
        if let Some(about) = self.scenario.counted().filter(|_| totals.met == 0) {
            return Some(format!("no {about}"));
        }
        if totals.kinds.iter().any(flows) {
            return Some("no download has stood still on a link that tells nobody".into());
        }
        if let Some(kind) = totals.kinds.iter().find(idle) {
            return Some(format!("no {} completed", kind.kind.name()));
        }
        (totals.completed == 0).then(|| "no connection completed".into())
    }

    /// The line that sums it up: `demo: N connections, M pool changes, K inevitable, 0 broken`. Where a card has rules
    /// it says before the last number how many packets came by one.
    pub fn line(&self) -> String {
        let totals = &self.traffic.totals;
        let by_rules = self
            .ruled
            .map_or(String::new(), |ruled| format!("{} packets by a rule (emulated), ", ruled.led));
        format!(
            "demo: {} connections, {} pool changes, {} inevitable, {by_rules}{} broken",
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
            "{:>8}  {:>9}  {:>9}  {:>10}  {:>8}  {:>7}  at the end",
            "backend", "new", "answers", "inevitable", "at start", "broken"
        );
        for (backend, place) in totals.backends.iter().zip(&self.churn.places) {
            let _ = writeln!(
                out,
                "{:>8}  {:>9}  {:>9}  {:>10}  {:>8}  {:>7}  {}",
                backend.name,
                backend.new,
                backend.answers,
                backend.inevitable,
                backend.inevitable_at_start,
                backend.broken,
                place.word()
            );
        }
        let _ = writeln!(
            out,
            "\n{:>9}  {:>9}  {:>9}  {:>10}  {:>7}",
            "kind", "started", "completed", "inevitable", "broken"
        );
        // Not every lab has servers of QUIC.
        for kind in totals.kinds.iter().filter(|one| one.kind != Kind::Quic || one.started > 0) {
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
        for kind in totals.kinds.iter().filter(|kind| !kind.promised && kind.started > 0) {
            let _ = writeln!(
                out,
                "counted apart: {} of {} flows of {} broken, for which nothing is promised here ({})",
                kind.broken_unpromised,
                kind.completed + kind.inevitable + kind.broken + kind.broken_unpromised,
                kind.kind.name(),
                match self.stalled.contains(&kind.kind) {
                    true => "docs/lab.md, A narrow link",
                    false => "docs/fleet.md, What a fleet keeps",
                }
            );
        }
        if totals.moved > 0 {
            let _ = writeln!(
                out,
                "clients of QUIC went on from another address and port {} times",
                totals.moved
            );
        }
        if totals.untold > 0 {
            let _ = writeln!(
                out,
                "counted apart: {} of {} connections broken that agents were made not to report (docs/lab.md, Agents \
                 that lie)",
                totals.broken_untold, totals.untold
            );
        }
        let of_backends: u64 = totals.backends.iter().map(|b| b.inevitable).sum();
        let _ = writeln!(
            out,
            "\ninevitable: {of_backends} with the backend that they sat on, {} before a first answer, \
             with the backend that saw their SYN",
            totals.inevitable - of_backends
        );
        if let Some([median, longest]) = self.noticed {
            let _ = writeln!(
                out,
                "a backend that died got nothing new after {median:.1} s (median), {longest:.1} s at most"
            );
        }
        if let Some(missed) = &self.missed {
            let _ = writeln!(out, "ended at its limit: {missed}");
        }
        if self.traffic.unseen > 0 {
            let _ = writeln!(
                out,
                "{} SYNs or datagrams arrived unseen: verdicts may be wrong",
                self.traffic.unseen
            );
        }
        let _ = writeln!(
            out,
            "method {}, seed {}, {:.1} s, at most {} open, {} crashes of the control plane;\n\
             connect p50 {:.2} ms, p99 {:.2} ms, max {:.1} ms; \
             answer p50 {:.2} ms, p99 {:.2} ms, max {:.1} ms; {} datagrams sent again; imbalance {}",
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
            self.imbalance.map_or("not known".into(), |ratio| format!("{ratio:.3}")),
        );
        if totals.uploaded > 0 {
            let _ = writeln!(out, "{} bytes of uploads came as they were sent", totals.uploaded);
        }
        for (why, changes) in &self.churn.refused {
            let _ = writeln!(out, "{changes} changes refused at first, and made later: {why}");
        }
        for (what, times) in self.happened.iter().filter(|(_, times)| **times > 0) {
            let _ = writeln!(out, "{times} times {what}");
        }
        for (kind, sent) in &self.flooded {
            let _ = writeln!(out, "{sent} {kind} segments of a flood");
        }
        if let Some(ruled) = &self.ruled {
            let _ = writeln!(out, "{}", ruled.words());
        }
        if let Some((told, link)) = self.told.zip(self.link) {
            let _ = writeln!(out, "{}", told.words(link));
        }
        if let Some(told) = self.loads_told {
            let _ = writeln!(out, "{told} CPU loads told");
        }
        if let Some(about) = self.scenario.counted() {
            let _ = writeln!(out, "scenario {}: {} {about}", self.scenario, totals.met);
        }
        if let Some(why) = self.unchanged() {
            let _ = writeln!(out, "{why}");
        }
        if let Some(why) = self.foreseen().filter(|_| totals.broken > 0) {
            let _ = writeln!(out, "broken, as foreseen: {why}");
        }
        for broken in self.traffic.broken_connections.iter().take(20) {
            let _ = writeln!(out, "broken: {broken}");
        }
        // What a broken connection may have met.
        for one in self.diary.iter().filter(|_| totals.broken > 0) {
            let whom = if one.whom.is_empty() { "" } else { ": " };
            let _ = writeln!(
                out,
                "{:.3}..{:.3} s, {}{whom}{}",
                one.from, one.until, one.what, one.whom
            );
        }
        for change in self.churn.log.iter().filter(|c| c.error.is_some()) {
            let error = change.error.as_deref().unwrap_or_default();
            let _ = writeln!(out, "failed: {:.3} s, {}: {error}", change.at, change.what);
        }
        out
    }
}

/// Runs it all. What it shows on the way goes where the spec says; the table and the line are left
/// to the caller. An interrupted run ends early and politely, and says so in its report.
///
/// # Errors
/// If the lab or the balancer cannot be started.
pub fn run(spec: DemoSpec) -> Result<DemoReport> {
    let lab = Arc::new(Lab::create(spec.lab.clone())?);
    if lab.spec().topology == Topology::Tiers {
        let tiers = Arc::new(Tiers::start(&lab, &spec.balancer)?);
        let control: Arc<dyn PoolControl> = Arc::clone(&tiers) as _;
        return tiers.churned(|| run_in(&lab, control, &spec))?;
    }
    if lab.spec().topology == Topology::Fleet {
        let fleet = Arc::new(Fleet::start(&lab, &spec.balancer, spec.churn.seed)?);
        let control: Arc<dyn PoolControl> = Arc::clone(&fleet) as _;
        return fleet.churned(|| run_in(&lab, control, &spec))?;
    }
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
    run_until(lab, control, spec, || {}).map(|(report, ())| report)
}

/// As [`run_in`], with what a `look` at the balancer finds when the last change is made and the
/// connections are still open.
pub(crate) fn run_until<T>(
    lab: &Arc<Lab>,
    control: Arc<dyn PoolControl>,
    spec: &DemoSpec,
    look: impl FnOnce() -> T,
) -> Result<(DemoReport, T)> {
    let loads = match spec.tell_loads {
        true => Some(Loads::start(lab, Arc::clone(&control))?),
        false => None,
    };
    spec.scenario.prepare(lab)?;
    if spec.scenario == Scenario::Idle {
        // What has just joined is a change, too: jet would track every connection that begins now,
        // and forget none that is silent.
        sleep(spec.settle);
    }
    let traffic = Traffic::start(lab, spec.traffic.clone())?;
    let title = format!("weir lab {} ({})", lab.id(), spec.balancer.method);
    let pool = spec.balancer.pool;
    let mut stage = Stage {
        traffic: &traffic,
        view: View::open(spec.show),
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
        shares: Shares::new(lab.backends().len(), spec.settle),
        left_alone: spec.churn.leave.clone(),
        broken: 0,
    };
    let enough = spec.traffic.connections as u64 * 9 / 10;
    stage.play("ramp", None, |stage| {
        stage.started.elapsed() < RAMP_LIMIT && stage.traffic.stats().snapshot().open < enough
    });
    let happening = Arc::clone(&control);
    let stress = Stress::begin(lab, control, spec, &traffic)?;
    let mut floods = Floods::begin(lab, &spec.floods, spec.traffic.seed)?;
    stage.total = spec.dead + stage.started.elapsed();
    stage.play("scenario", None, |_| stress.holds_changes(spec.scenario));
    stage.total = spec.duration + stage.started.elapsed();

    let stats = Arc::clone(traffic.stats());
    let open = move |backend| stats.open_on(backend);
    let churn = Churn::start(Arc::clone(lab), stress.control(), pool, open, spec.churn.clone());
    let limit = stage.started.elapsed() + spec.limit.max(spec.duration);
    // While the control plane is killed nobody says it.
    let ruled = Cell::new(None);
    let look_at_rules = || {
        if spec.goals.led > 0 {
            ruled.set(happening.ruled().or(ruled.get()));
        }
        ruled.get()
    };
    let missing = || {
        let (flooded, happened) = (floods.sent(), happening.happened());
        let stats = &traffic.stats().snapshot();
        let led = look_at_rules().map_or(0, |ruled| ruled.led);
        spec.goals.missing(&SoFar { stats, churn: &churn, flooded, happened, led })
    };
    stage.play("churn", Some(&churn), |stage| {
        let elapsed = stage.started.elapsed();
        elapsed < stage.total || elapsed < limit && missing().is_some()
    });
    let missed = missing();
    churn.halt();
    stage.play("churn", Some(&churn), |_| !churn.is_done());
    let found = look();
    let ruled = look_at_rules();
    let link = spec.lab.link;
    let told = link.and_then(|_| happening.told());
    stress.end()?;
    floods.end()?;
    traffic.wind_down();
    stage.play("ending", Some(&churn), |stage| !stage.traffic.is_done());
    let imbalance = stage.shares.imbalance();
    drop(stage);
    let churn = churn.finish();

    let interrupted = interrupted();
    let times = lab.events().notice_times();
    let seconds = |at: usize| times.get(at).map(Duration::as_secs_f64);
    let noticed = seconds(times.len() / 2).zip(seconds(times.len().wrapping_sub(1)));
    let report = DemoReport {
        scenario: spec.scenario,
        method: spec.balancer.method.clone(),
        fleet: match lab.spec().topology {
            Topology::Fleet => lab.spec().balancers,
            _ => 0,
        },
        lies: spec.lab.agent.as_ref().map(|agent| agent.lies).unwrap_or_default(),
        happened: happening.happened(),
        diary: happening.diary(),
        flooded: floods.sent(),
        traffic: if interrupted { traffic.give_up()? } else { traffic.finish()? },
        churn,
        ruled,
        link,
        stalled: match link {
            Some(_) => spec.traffic.unpromised.clone(),
            None => Vec::new(),
        },
        told,
        loads_told: loads.map(|loads| loads.told()),
        imbalance,
        noticed: noticed.map(|(median, longest)| [median, longest]),
        interrupted,
        missed,
    };
    Ok((report, found))
}

/// What stays the same from one picture to the next.
struct Stage<'a> {
    traffic: &'a TrafficHandle,
    view: View,
    title: String,
    started: Instant,
    total: Duration,
    still: Vec<Place>,
    shares: Shares,
    left_alone: Vec<usize>,
    /// Broken connections that were shown.
    broken: usize,
}

impl Stage<'_> {
    fn play(&mut self, phase: &str, churn: Option<&Churn>, goes_on: impl Fn(&Self) -> bool) {
        while goes_on(self) && sleep(TICK) {
            let broken = self.traffic.stats().broken_after(self.broken);
            self.broken += broken.len();
            let stats = self.traffic.stats().snapshot();
            let log = churn.map_or(Vec::new(), |churn| churn.last(LOG_SHOWN));
            let unchanged = || self.still.iter().map(|place| (*place, 1)).collect();
            let standings = churn.map_or_else(unchanged, Churn::standings);
            let new: Vec<u64> = stats.backends.iter().map(|backend| backend.new).collect();
            let mut counted = standings.clone();
            // What somebody else does to them says nothing of shares.
            for backend in &self.left_alone {
                counted[*backend].0 = Place::Out;
            }
            self.shares.look(self.started.elapsed(), &counted, &new);
            let places: Vec<Place> = standings.iter().map(|(place, _)| *place).collect();
            self.view.show(&Scene {
                title: &self.title,
                phase,
                elapsed: self.started.elapsed(),
                total: self.total,
                stats: &stats,
                changes: churn.map_or(0, Churn::changes),
                log: &log,
                places: &places,
                broken: &broken,
            });
        }
    }
}
