//! What this balancer does in steps, as it stands in the log of those who ask for it
//! (`WEIR_LOG=weir::steps=debug`), and is held to the rules of steps afterwards ([`weir_fleet::replay`]).

use crate::engine::Engine;
use crate::engine::fleet::digest_of;
use tracing::{Level, debug, enabled};
use weir_fleet::{Did, Mark, Step, StepId, TARGET};
use weir_plane::Plane;
use weir_steering::ServiceId;

fn is_wanted() -> bool {
    cfg!(test) || enabled!(target: TARGET, Level::DEBUG)
}

impl<P: Plane> Engine<P> {
    /// This balancer does something in a step now.
    pub(super) fn note(&mut self, step: StepId, did: Did) {
        let Some(fleet) = self.fleet.as_mut().filter(|_| is_wanted()) else { return };
        let begins = std::mem::replace(&mut fleet.stepping.noted, true);
        let begins = (!begins).then_some(Did::Begins);
        for did in begins.into_iter().chain([did]) {
            let mark = Mark::now(fleet.id(), step, did);
            debug!(target: TARGET, "{}", serde_json::to_string(&mark).unwrap_or_default());
            #[cfg(test)]
            fleet.stepping.marks.push(mark);
        }
    }

    /// The same, of the tables that packets follow by it from now on.
    pub(super) fn note_tables(&mut self, step: &Step, services: &[ServiceId]) {
        if !is_wanted() {
            return;
        }
        for number in services {
            let service = self.names.get(number).and_then(|name| self.services.get(name));
            let image = service.and_then(|service| service.builder.published());
            let Some((service, image)) = service.zip(image) else { continue };
            let name = service.configured.name.clone();
            let wanted = step.table_at(step.stage, &name).or(step.rows_at(step.stage, &name));
            let did = Did::Follows {
                stage: step.stage,
                generation: service.generation,
                digest: digest_of(service, image),
                wanted: wanted.cloned(),
                service: name,
            };
            self.note(step.id(), did);
        }
    }
}
