//! How large the data plane is, and how it becomes as the file wants it while packets are forwarded.

use super::{Engine, EngineError, PlaneResult};
use crate::config::Config;
use tracing::{info, warn};
use weir_plane::{Limits, Plane};

impl<P: Plane> Engine<P> {
    /// Makes room for a configuration that is about to be applied. What it wants smaller stays
    /// until it has been.
    ///
    /// # Errors
    /// If memory cannot be had; all is as before then.
    pub(super) fn grow(&mut self, config: &Config) -> Result<(), EngineError> {
        let now = self.plane.limits();
        self.resize(&wanted(config).or_larger(&now))
    }

    /// Gives back what the configuration, which has been applied, does not want. Where something in
    /// use does not fit, all sizes stay, with a warning, until the next reload or start.
    pub(super) fn fit(&mut self, config: &Config) {
        let states = config.limits.states_per_service as usize;
        for service in self.services.values_mut() {
            service.builder.set_max_states(states);
        }
        let fitted = self.drain_reports().and_then(|()| self.resize(&wanted(config)));
        self.oversize = fitted.err().map(|error| {
            warn!(%error, "limits stay as they were");
            format!("limits stay as they were until the next reload: {error}")
        });
    }

    fn resize(&mut self, limits: &Limits) -> Result<(), EngineError> {
        let before = self.plane.limits();
        if before == *limits {
            return Ok(());
        }
        self.plane.resize(limits).plane()?;
        let now = self.plane.limits();
        if now != before {
            info!(?before, ?now, "the data plane has other limits");
        }
        Ok(())
    }
}

/// What the file wants.
pub(super) fn wanted(config: &Config) -> Limits {
    let given = &config.limits;
    Limits {
        services: given.services,
        table_bytes: given.table_bytes.into(),
        backends: given.backends,
        pending_flows: given.pending_flows,
        unreported_flows: given.unreported_flows,
        tracked_flows: given.tracked_flows,
        udp_flows: given.udp_flows,
        event_ring_bytes: given.event_ring_bytes,
        marked_flows: given.states_per_service,
        ..Limits::default()
    }
}
