//! *Settle*: what becomes of pending flows when a table is published.

use super::machine::Update;
use super::perform::Progress;
use super::plane::{Judgement, Services};
use crate::ids::{BackendId, ServiceId};
use crate::state::ServiceState;
use std::collections::BTreeMap;

/// Pending flows, by what becomes of them.
#[derive(Debug, Default)]
pub struct Settling {
    /// Those that need not be pending.
    pub over: Vec<ServiceState>,
    /// Those that need not be once they are in the connection table.
    pub tracked: Vec<(ServiceState, BackendId)>,
    /// By service, how many the published table does not lead to their backends.
    pub left: BTreeMap<ServiceId, usize>,
}

impl Settling {
    /// Judges pending flows of these services; with each, whether the pool that its table was built of is in force.
    pub fn of(
        pending: impl IntoIterator<Item = (ServiceState, BackendId)>,
        in_force: &BTreeMap<ServiceId, bool>,
        services: &impl Services,
    ) -> Self {
        let mut settling = Self::default();
        for (state, backend) in pending {
            let Some(&in_force) = in_force.get(&state.service) else { continue };
            match services.judge(&state, backend) {
                Judgement::Agreed => settling.over.push(state),
                Judgement::Tracked => settling.tracked.push((state, backend)),
                // Gone from a pool that may not be in force: the flow may live.
                Judgement::Lost if in_force => settling.over.push(state),
                Judgement::Reserved => {}
                Judgement::Lost | Judgement::Apart => {
                    *settling.left.entry(state.service).or_default() += 1;
                }
            }
        }
        settling
    }
}

/// What an update is told when so many pending flows of its service are left.
pub fn settled(
    update: &Update,
    service: ServiceId,
    left: usize,
    services: &impl Services,
) -> Progress {
    // Where no flow starts meanwhile there is nothing that another round would find.
    let left = if update.is_frozen() { 0 } else { left };
    let avoids = update.has_failed() && services.avoids(service) || services.keeps_off(service);
    Progress::Settled { left, avoids }
}
