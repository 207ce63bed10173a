//! Holds what a speaker announces against what is wanted.

use crate::{Facts, Gate, Route, Speaker, SpeakerConfig, Verdict, Why};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tracing::{info, warn};
use weir_host::files::{self, is_gone};

/// How often a speaker is asked what it announces, beside each change: one that was restarted has lost it.
pub const LOOK_EVERY: Duration = Duration::from_secs(2);
/// After a failure; doubled each time.
const AGAIN: Duration = Duration::from_millis(500);
/// At the most.
const AGAIN_AT_MOST: Duration = Duration::from_secs(10);

/// What is wanted, as whoever knows the services says it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    /// Through whom; none: nothing is announced any more.
    pub speaker: Option<SpeakerConfig>,
    /// What there is to know of the services' addresses, by which each is announced or not.
    pub facts: Facts,
    /// The operator has withdrawn this balancer.
    pub drained: bool,
    /// No packets are taken yet: whoever sends them here loses them.
    pub untaken: bool,
    /// The balancer stops; whether routes are to be withdrawn.
    pub stops: Option<bool>,
}

/// What is announced.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// Through whom; none: announcing is not configured.
    pub speaker: Option<String>,
    /// Why the speaker could not be told.
    pub error: Option<String>,
    /// The operator has withdrawn this balancer.
    pub drained: bool,
    /// All routes, in order.
    pub routes: Vec<RouteReport>,
}

/// A route, whether it is to be announced, and whether the speaker announces it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RouteReport {
    /// The route: an address of a service, as the speaker is told it.
    pub route: Route,
    /// Why it is not to be announced; none: it is to be.
    #[serde(flatten)]
    pub withheld: Option<Why>,
    /// Whether the speaker announces it; none if that is not known.
    pub announced: Option<bool>,
}

/// What compares, and tells the speaker.
#[derive(Debug)]
pub struct Keeper {
    gate: Gate,
    began: Instant,
    /// Where it stands which routes may be announced.
    file: PathBuf,
    /// Those: whatever was announced and has not been seen withdrawn since.
    known: BTreeSet<Route>,
    speaker: Option<(SpeakerConfig, Speaker)>,
    announced: Option<BTreeSet<Route>>,
    said: BTreeMap<Route, Verdict>,
    failures: u32,
}

impl Keeper {
    /// One that begins now. `file` remembers, over restarts, which routes may be announced.
    ///
    /// # Errors
    /// If the file is there and cannot be read.
    pub fn new(gate: Gate, file: PathBuf) -> io::Result<Self> {
        let known = written_down(&file)?;
        Ok(Self {
            gate,
            began: Instant::now(),
            file,
            known,
            speaker: None,
            announced: None,
            said: BTreeMap::new(),
            failures: 0,
        })
    }

    /// Goes on until whoever says what is wanted stops, or is gone.
    pub async fn run(
        mut self,
        mut wanted: watch::Receiver<Wanted>,
        reports: watch::Sender<Report>,
    ) {
        loop {
            let now_wanted = wanted.borrow_and_update().clone();
            let (report, again) = self.look(&now_wanted).await;
            reports.send_if_modified(|before| {
                let changed = *before != report;
                *before = report;
                changed
            });
            if now_wanted.stops.is_some() {
                if let Some(error) = &reports.borrow().error
                    && !self.known.is_empty()
                {
                    let routes: Vec<String> = self.known.iter().map(ToString::to_string).collect();
                    warn!(%error, routes = routes.join(", "), "stops, and these may still be announced");
                }
                return;
            }
            tokio::select! {
                changed = wanted.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(again) => {}
            }
        }
    }

    /// One comparison. Returns when the next one is due, whatever happens.
    async fn look(&mut self, wanted: &Wanted) -> (Report, Duration) {
        let now = self.began.elapsed();
        if !wanted.untaken {
            self.gate.takes(now);
        }
        let verdicts = match (&wanted.stops, &wanted.speaker) {
            (Some(true), _) => self.gate.decide(&wanted.facts, true, now),
            (Some(false), _) => return (Report::default(), Duration::ZERO),
            (None, Some(_)) => self.gate.decide(&wanted.facts, wanted.drained, now),
            (None, None) => BTreeMap::new(),
        };
        let told = self.tell(wanted.speaker.as_ref(), &verdicts).await;
        let again = match &told {
            Ok(()) => {
                self.failures = 0;
                LOOK_EVERY
            }
            Err(_) => {
                self.announced = None;
                self.failures = self.failures.saturating_add(1);
                AGAIN.saturating_mul(1 << self.failures.min(8)).min(AGAIN_AT_MOST)
            }
        };
        let error = told.err();
        if let (Some(error), 1) = (&error, self.failures) {
            warn!(%error, "routes are not announced as they should be; tried again");
        }
        let routes = verdicts.iter().map(|(route, verdict)| RouteReport {
            route: *route,
            withheld: verdict.clone().err(),
            announced: self.announced.as_ref().map(|all| all.contains(route)),
        });
        let report = Report {
            speaker: wanted.speaker.as_ref().map(ToString::to_string),
            error,
            drained: wanted.drained,
            routes: routes.collect(),
        };
        (report, self.gate.changes_in(now).map_or(again, |change| change.min(again)))
    }

    async fn tell(
        &mut self,
        config: Option<&SpeakerConfig>,
        verdicts: &BTreeMap<Route, Verdict>,
    ) -> Result<(), String> {
        if self.speaker.as_ref().map(|(config, _)| config) != config {
            // The one before must not go on announcing; if it cannot be told, the new one waits. One that has
            // never been told anything announces nothing.
            if let Some((_, before)) = &mut self.speaker
                && !self.known.is_empty()
            {
                let held = |error| {
                    let file = self.file.display();
                    format!(
                        "{error}; it may still announce routes, so the one that is configured now is not told; if \
                         it is gone for good, stop weir, remove {file}, and start it again"
                    )
                };
                before.withdraw(&self.known).await.map_err(held)?;
                // Whoever unloads this looks for no speaker of what nobody announces.
                if write_down(&self.file, &BTreeSet::new()).is_ok() {
                    self.known.clear();
                }
            }
            self.speaker = config.map(|config| (config.clone(), Speaker::new(config)));
            self.said.clear();
        }
        let Some((_, speaker)) = &mut self.speaker else {
            self.announced = None;
            return Ok(());
        };
        let wanted: BTreeSet<Route> = verdicts
            .iter()
            .filter(|(_, verdict)| verdict.is_ok())
            .map(|(route, _)| *route)
            .collect();
        let all: BTreeSet<Route> = self.known.union(&wanted).copied().collect();
        // Whoever cannot be asked is told nothing.
        let current = speaker.current(&all).await.map_err(|error| error.to_string())?;
        // Somebody may have removed what was written down.
        if all != self.known || !all.is_empty() && is_gone(&self.file) {
            // First written down: what is announced must be known to whoever comes after a SIGKILL.
            if let Err(error) = write_down(&self.file, &all) {
                // What is withdrawn need not be known to anybody.
                let fewer = wanted.intersection(&self.known).copied().collect();
                speaker.set(&current, &fewer).await.map_err(|error| error.to_string())?;
                return Err(format!("{}: {error}", self.file.display()));
            }
            self.known = all;
        }
        speaker.set(&current, &wanted).await.map_err(|error| error.to_string())?;
        for (route, verdict) in verdicts {
            if self.said.get(route) != Some(verdict) {
                match verdict {
                    Ok(()) => info!(%route, "announced"),
                    Err(Why::Untaken | Why::Learning { .. }) => {}
                    Err(why) => info!(%route, "withdrawn: {why}"),
                }
                self.said.insert(*route, verdict.clone());
            }
        }
        self.said.retain(|route, _| verdicts.contains_key(route));
        if wanted != self.known {
            write_down(&self.file, &wanted).map_err(|e| format!("{}: {e}", self.file.display()))?;
            self.known.clone_from(&wanted);
        }
        self.announced = Some(wanted);
        Ok(())
    }
}

/// The routes that may be announced, as a file says that remembers them; none if there is no such file.
///
/// # Errors
/// If it is there and cannot be read.
pub fn written_down(file: &Path) -> io::Result<BTreeSet<Route>> {
    match files::read(file) {
        Ok(text) => serde_json::from_slice(&text).map_err(io::Error::other),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(BTreeSet::new()),
        Err(error) => Err(error),
    }
}

/// Withdraws the routes that a file says may be announced, and writes down that none is. For whoever comes after a
/// keeper that does not come back.
///
/// # Errors
/// A sentence, if the speaker cannot be told, or that it was cannot be written down.
pub async fn withdraw_all(config: &SpeakerConfig, file: &Path) -> Result<(), String> {
    let named = |error: io::Error| format!("{}: {error}", file.display());
    let known = written_down(file).map_err(named)?;
    if known.is_empty() {
        return Ok(());
    }
    let withdrawn = Speaker::new(config).withdraw(&known).await;
    withdrawn.map_err(|error| error.to_string())?;
    // A full disc has room for one file less.
    write_down(file, &BTreeSet::new()).or_else(|_| files::gone(file)).map_err(named)
}

fn write_down(path: &Path, routes: &BTreeSet<Route>) -> io::Result<()> {
    files::write_through(path, &serde_json::to_vec(routes)?)
}
