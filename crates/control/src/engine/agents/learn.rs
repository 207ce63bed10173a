//! A balancer that comes new to connections that there may be: it takes no packets before agents have told what they
//! hold, or have had the time for it.

use super::super::Engine;
use super::super::service::ServiceRuntime;
use crate::config::Config;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tracing::{error, info, warn};
use weir_plane::Plane;

/// That no packets are taken yet is written down by this name in the run directory: tables that somebody finds who has
/// been killed meanwhile, and starts again, have led no packet.
const LEARNING: &str = "learning";
/// What could not be attached is tried again after so long.
const AGAIN: Duration = Duration::from_secs(1);

impl<P: Plane> Engine<P> {
    fn mark_of_learning(&self) -> PathBuf {
        self.config.balancer.run_dir.join(LEARNING)
    }

    /// Whether packets are not to be taken yet: nothing is known of connections that there may be, and agents
    /// know.
    pub(in crate::engine) fn begin_to_learn(&mut self, config: &Config) -> bool {
        let learn = config.agents.as_ref().map_or(Duration::ZERO, |agents| agents.learn);
        let asks = self.services.values().any(ServiceRuntime::asks_agents);
        let mark = self.mark_of_learning();
        let learnt = self.resumed && mark.symlink_metadata().is_err();
        if learnt || !asks || learn.is_zero() {
            self.has_learnt();
            return false;
        }
        info!(seconds = learn.as_secs(), "waits for what agents know before it takes packets");
        // Without it, who is killed meanwhile takes packets a little too early.
        if let Err(error) = std::fs::write(mark, "") {
            warn!(%error, "cannot write down that no packets are taken yet");
        }
        // No packet follows what was found: its tables are made anew by what agents tell, and not kept until they have.
        self.agents.settling = None;
        self.agents.learning = Some(Instant::now() + learn);
        true
    }

    fn has_learnt(&mut self) {
        self.agents.learning = None;
        match std::fs::remove_file(self.mark_of_learning()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                warn!(%error, "cannot write down that packets are taken");
            }
            _ => {}
        }
    }

    /// Takes packets, once all agents have told, or it has waited for as long as it may.
    pub(in crate::engine) fn go_on_learning(&mut self) {
        let Some(until) = self.agents.learning else { return };
        let now = Instant::now();
        if self.agents.attach_at.is_some_and(|at| now < at) {
            return;
        }
        let missing = self.silent();
        if (missing > 0 || self.waits_for_step()) && now < until {
            return;
        }
        // Nobody tells it of connections, and no step waits for it.
        if self.is_double() {
            return;
        }
        if missing > 0 {
            warn!(missing, "agents of backends have not told what they hold; goes on without");
        }
        for service in self.services.values_mut().filter(|service| service.asks_agents()) {
            service.dirty = true;
        }
        for failure in self.publish_due() {
            error!(%failure, "cannot publish");
        }
        self.freeze_for_step();
        let config = self.config.clone();
        match self.attach(&config) {
            Ok(()) => {
                self.has_learnt();
                self.compare_with_step();
            }
            Err(error) => {
                error!(%error, "cannot take packets; tried again");
                self.agents.attach_at = Some(Instant::now() + AGAIN);
            }
        }
    }

    /// It has waited for agents for as long as it may.
    #[cfg(test)]
    pub(in crate::engine) fn end_learning(&mut self) {
        self.agents.learning = Some(Instant::now());
        self.look_at_agents();
    }
}
