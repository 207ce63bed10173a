//! A balancer that has just come and waits for what agents know before it takes packets: which of its tables are to be
//! made anew meanwhile. It follows no step, as no packet follows its tables.

use super::Engine;
use crate::engine::service::ServiceRuntime;
use weir_plane::Plane;

impl<P: Plane> Engine<P> {
    /// The step may have other pools by now, or another table, than a table was made by.
    pub(super) fn look_whether_step_moved(&mut self) {
        let Some(step) = self.fleet.as_ref().and_then(|fleet| fleet.stepping.step.clone()) else {
            return;
        };
        for (name, service) in &mut self.services {
            if !service.changes_in_step() {
                continue;
            }
            let Some(pool) = step.pool_at(step.stage, name) else { continue };
            let table = step.table_at(step.stage, name).filter(|_| service.is_shared());
            service.dirty |= service.agreed.as_ref() != Some(pool)
                || table.is_some_and(|digest| service.lacks(digest));
        }
    }

    /// What has changed since the step is compared with it, now that packets are taken.
    pub(in crate::engine) fn compare_with_step(&mut self) {
        let agreed = |service: &&mut ServiceRuntime| service.agreed.is_some();
        self.services.values_mut().filter(agreed).for_each(|service| service.dirty = true);
    }
}
