//! What is announced to routers: the facts for whoever decides it, and the operator's word.

use super::{Engine, EngineError};
use crate::config::Config;
use crate::store::StoreError;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::watch;
use tracing::info;
use weir_announce::{Fact, Facts, Gate, Keeper, Report, Route, SpeakerConfig, Wanted};
use weir_host::files;
use weir_plane::Plane;

/// Where it stands, in the run directory, that this balancer is drained.
const DRAINED: &str = "drained";
/// Where it stands which routes may be announced.
const ANNOUNCED: &str = "announced.json";

/// The way to whoever tells the speaker.
#[derive(Debug)]
pub(super) struct Announcer {
    wanted: watch::Sender<Wanted>,
    report: watch::Receiver<Report>,
    drained: bool,
}

/// The routes that may be announced, for whoever comes after this process.
pub fn announced_file(run_dir: &std::path::Path) -> PathBuf {
    run_dir.join(ANNOUNCED)
}

impl<P: Plane> Engine<P> {
    /// Begins to say what is to be announced. The keeper that is returned does it; it is to run until
    /// it ends by itself.
    ///
    /// # Errors
    /// If what an earlier run has written down cannot be read.
    pub(crate) fn announce(
        &mut self,
    ) -> Result<(Keeper, watch::Receiver<Wanted>, watch::Sender<Report>), EngineError> {
        let run_dir = &self.config.balancer.run_dir;
        let file = announced_file(run_dir);
        let drained = run_dir.join(DRAINED).symlink_metadata().is_ok();
        // A data plane that went on alone may be announced all the while.
        let delay = self.config.announce.as_ref().map_or(Duration::ZERO, |one| one.learn_delay);
        let went_on = self.resumed && !self.is_learning();
        let gate = Gate::new(if went_on { Duration::ZERO } else { delay });
        let keeper = Keeper::new(gate, file.clone()).map_err(|source| StoreError::Io {
            doing: "read",
            path: file,
            source,
        })?;
        crate::unload::taken_up(run_dir);
        let (wanted, wants) = watch::channel(Wanted::default());
        let (reports, report) = watch::channel(Report::default());
        self.announcer = Some(Announcer { wanted, report, drained });
        self.tell_announcer();
        Ok((keeper, wants, reports))
    }

    /// Says what is to be announced now, if it is something else than before.
    pub(super) fn tell_announcer(&self) {
        let Some(announcer) = &self.announcer else { return };
        let speaker = self.config.announce.as_ref().map(|announce| announce.speaker.clone());
        // Nobody asks where nothing was ever announced.
        let facts = if speaker.is_some() { self.facts() } else { Facts::new() };
        let (drained, untaken) = (announcer.drained, self.is_learning());
        let wanted = Wanted { speaker, facts, drained, untaken, stops: None };
        announcer.wanted.send_if_modified(|before| {
            let changed = *before != wanted;
            if changed {
                *before = wanted;
            }
            changed
        });
    }

    /// The last word: the process ends.
    pub(super) fn announce_stop(&self) {
        let withdraw = self.config.announce.as_ref().is_some_and(|one| one.withdraw_at_stop);
        if withdraw && let Some(asks) = self.fleet.as_ref().and_then(|fleet| fleet.asks()) {
            let _ = asks.try_send(weir_fleet::Ask::Leave);
        }
        let Some(announcer) = &self.announcer else { return };
        announcer.wanted.send_modify(|wanted| wanted.stops = Some(withdraw));
    }

    fn facts(&self) -> Facts {
        let mut facts = Facts::new();
        for service in self.services.values() {
            let configured = &service.configured;
            let takes =
                |member: &&super::service::PoolMember| member.up && service.takes_new(member);
            let fact = Fact {
                service: configured.name.clone(),
                served: service.builder.published().is_some() && service.unlisted.is_none(),
                up: service.pool.iter().filter(takes).count(),
                need: configured.need as usize,
                apart: self.is_apart(),
                namesake: self.is_double(),
            };
            let routes = configured.addresses();
            for route in routes.iter().filter_map(|vip| Route::network(vip.address, vip.bits)) {
                facts.entry(route).or_default().push(fact.clone());
            }
        }
        facts
    }

    /// What is announced, and why other routes are not.
    pub(super) fn announce_report(&self) -> Result<Report, EngineError> {
        let report = self.announcer.as_ref().map(|announcer| announcer.report.borrow().clone());
        Ok(report.unwrap_or_default())
    }

    /// What an operator should know of the speaker.
    pub(super) fn announce_warning(&self) -> Option<String> {
        let report = self.announcer.as_ref()?.report.borrow();
        let error = report.error.as_ref()?;
        Some(format!(
            "routes are not announced, or withdrawn, as they should be: {error}; tried again (weir announce)"
        ))
    }

    /// Why nothing is to be announced by a configuration for now, though it names a speaker: the one of before it has
    /// announced routes, and does not answer whoever asks it to withdraw them.
    pub(super) fn speaker_held(&self, config: &Config) -> Option<String> {
        let before = &self.config.announce.as_ref()?.speaker;
        let after = config.announce.as_ref().map(|announce| &announce.speaker);
        if after == Some(before) {
            return None;
        }
        let report = self.announcer.as_ref()?.report.borrow();
        let error = report.error.as_ref()?;
        let file = announced_file(&self.config.balancer.run_dir);
        let routes: BTreeSet<Route> = serde_json::from_slice(&files::read(&file).ok()?).ok()?;
        if routes.is_empty() {
            return None;
        }
        let then = match after {
            None | Some(SpeakerConfig::None) => "they stay until then".to_owned(),
            Some(after) => format!("{after} is told of no route before"),
        };
        Some(format!(
            "{before} may still announce routes of this balancer, and has to withdraw them first, but: {error}; \
             {then}. If it is gone for good, stop weir, remove {}, and start it again",
            file.display()
        ))
    }

    /// The routes that are announced, and whether this balancer is drained.
    pub(super) fn announced(&self) -> (Vec<String>, bool) {
        let Some(announcer) = &self.announcer else { return (Vec::new(), false) };
        let report = announcer.report.borrow();
        let announced = report.routes.iter().filter(|one| one.announced == Some(true));
        (announced.map(|one| one.route.to_string()).collect(), announcer.drained)
    }

    /// The routes of which it is not known whether they are announced, as the speaker does not say so.
    pub(super) fn announced_unknown(&self) -> Vec<String> {
        let Some(announcer) = &self.announcer else { return Vec::new() };
        let report = announcer.report.borrow();
        let unknown = report.routes.iter().filter(|one| one.announced.is_none());
        unknown.map(|one| one.route.to_string()).collect()
    }

    /// Where it stands that this balancer is drained, if it is.
    pub(super) fn drained_file(&self) -> Option<PathBuf> {
        let drained = self.announcer.as_ref().is_some_and(|announcer| announcer.drained);
        drained.then(|| self.config.balancer.run_dir.join(DRAINED))
    }

    /// Withdraws all routes of this balancer, or announces them again. It outlives restarts. Also says whether that
    /// has changed anything.
    pub(super) fn drain_self(&mut self, drain: bool) -> Result<(String, bool), EngineError> {
        let file = self.config.balancer.run_dir.join(DRAINED);
        let announcer = self.announcer.as_ref();
        let was = announcer.map_or_else(|| file.symlink_metadata().is_ok(), |one| one.drained);
        let changed = drain != was;
        // Said twice, it is written and told twice: somebody may have cleared it away.
        let written = if drain { files::write(&file, b"") } else { files::gone(&file) };
        written.map_err(|source| StoreError::Io { doing: "write", path: file, source })?;
        if let Some(announcer) = &mut self.announcer {
            announcer.drained = drain;
        }
        self.tell_announcer();
        info!(drain, "this balancer");
        let trouble = self.announcer.as_ref().and_then(|one| one.report.borrow().error.clone());
        if let (Some(error), true) = (trouble, self.config.announce.is_some()) {
            let done =
                if drain { "drained, but its routes are not withdrawn" } else { "not announced" };
            if changed {
                self.remember_kept(format!("this balancer is {done} yet"), None);
            }
            return Err(EngineError::Unfinished(format!(
                "this balancer is {done} yet: {error}; it is tried again, and weir announce says when it is done"
            )));
        }
        let already = if changed { "" } else { " already" };
        let said = match (drain, self.config.announce.is_some()) {
            (true, true) => {
                let over = !changed && self.announced().0.is_empty();
                let being = if over { "" } else { "being " };
                format!("this balancer is drained{already}: its routes are {being}withdrawn")
            }
            (false, true) => {
                let again = if changed { "again" } else { "already" };
                format!("this balancer is announced {again}, as far as its services stand")
            }
            (true, false) => format!(
                "this balancer is drained{already}; its file has no [announce], so no route was its own"
            ),
            (false, false) => {
                let word = if changed { "is not drained any more" } else { "was not drained" };
                format!("this balancer {word}; its file has no [announce]")
            }
        };
        Ok((said, changed))
    }
}
