//! Whether the others could follow this balancer if it led: of services whose table all have alike they get the tables
//! from it, over TLS, and a leader of whom nobody can get any leaves them all behind.

use super::ServiceRuntime;
use crate::certificates;
use crate::engine::Engine;
use weir_fleet::Report;
use weir_plane::Plane;

impl<P: Plane> Engine<P> {
    /// Why this balancer does not run for leader, if it does not.
    pub(super) fn unfit(&self) -> Option<String> {
        let agents = self.config.agents.as_ref()?;
        if !self.services.values().any(ServiceRuntime::is_shared) {
            return None;
        }
        if let Some(trouble) = self.agents_trouble() {
            return Some(format!("nobody could get tables from it: {trouble}"));
        }
        let ended = self.own_certificate_ends().is_some_and(certificates::has_ended);
        ended.then(|| {
            format!(
                "its certificate for agents and other balancers ({}) has ended; put a new one there, and weir reload",
                agents.certificate.display()
            )
        })
    }
}

/// The balancers that do not run for leader, and why, a sentence each.
pub(in crate::engine) fn words(report: &Report) -> Vec<String> {
    let signs = report.balancers.iter();
    let said = signs.filter_map(|(name, sign)| Some(sentence(name, sign.unfit.as_ref()?)));
    said.collect()
}

/// What there is to say of a balancer that does not run for leader.
pub(super) fn sentence(name: &str, why: &str) -> String {
    format!("{name} does not run for leader: {why}")
}
