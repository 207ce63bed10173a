//! What stands of a service's pins in the data plane, as far as it is known.

use super::pins::Pins;
use super::plane::{Plane, Services};
use crate::ids::{BackendId, ServiceId};
use crate::state::ServiceState;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The pins of one service.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// Those that the published table needs, and the backends that they name, where known: not after a restart.
    pub needed: Option<Pins>,
    /// Those that tables before the published one needed, and this one does not.
    pub stale: Vec<ServiceState>,
    /// Those that stand beside the ones that the published table needs.
    pub beside: HashMap<ServiceState, BackendId>,
    /// There may be some that none of these knows: those of an earlier process, or of a table that could not be
    /// published. The plane is asked for them.
    pub unread: bool,
    /// One may name another backend than it says here: that of a table which could not be published.
    pub doubtful: bool,
}

impl Kept {
    /// Those that the published table needs, if they stand as it says here.
    pub fn certain(&self) -> Option<&Pins> {
        self.needed.as_ref().filter(|_| !self.doubtful)
    }

    /// Whether all that stands is known.
    fn is_known(&self) -> bool {
        self.certain().is_some() && !self.unread
    }

    /// Whether one is needed; none, if it is not known which are.
    fn needs(&self, state: &ServiceState) -> Option<bool> {
        let beside = self.beside.contains_key(state);
        match &self.needed {
            Some(pins) => Some(beside || pins.at(state).is_some()),
            None => beside.then_some(true),
        }
    }

    /// The pins of these backends go.
    pub fn unpinned(&mut self, backends: &HashSet<BackendId>) {
        if let Some(pins) = &mut self.needed {
            pins.forget(backends);
        }
        self.beside.retain(|_, backend| !backends.contains(backend));
    }

    /// Pins states beside those that the published table needs.
    ///
    /// # Errors
    /// What the plane says. What stands of them is found when pins are read.
    pub fn pin_beside<D: Plane>(
        &mut self,
        pins: &[(ServiceState, BackendId)],
        plane: &mut D,
    ) -> Result<(), D::Error> {
        let at = |state: &ServiceState| self.needed.as_ref().and_then(|pins| pins.at(state));
        let stands = |(state, backend): &&(ServiceState, BackendId)| {
            at(state) == Some(*backend) || self.beside.get(state) == Some(backend)
        };
        let missing: Vec<_> = pins.iter().filter(|pin| !stands(pin)).copied().collect();
        if let Err(error) = plane.pin(&missing) {
            self.unread = true;
            return Err(error);
        }
        self.beside.extend(missing);
        Ok(())
    }

    /// A table is published that needs these; of those before, these are not needed any more, if that is known.
    pub(super) fn shown(&mut self, next: Pins, stale: Option<Vec<ServiceState>>) {
        match stale {
            Some(stale) => self.stale.extend(stale),
            None => self.unread = true,
        }
        self.stale.extend(std::mem::take(&mut self.beside).into_keys());
        self.needed = Some(next);
        self.doubtful = false;
    }
}

/// Removes the pins that no published table of these services needs: where all are known, of those that are; for the
/// others the plane is read. Where publishing has failed, these are the pins of the table that was to be.
///
/// # Errors
/// What the plane says. Some may be removed, and it may be tried again.
pub fn unpin<D: Plane>(
    retiring: &mut BTreeMap<ServiceId, Kept>,
    plane: &mut D,
    services: &impl Services,
) -> Result<(), D::Error> {
    // A key may be needed again since.
    let over = |kept: &Kept, state: &ServiceState| kept.needs(state) != Some(true);
    let known = retiring.values().filter(|kept| kept.is_known());
    let mut stale: Vec<ServiceState> = known
        .flat_map(|kept| kept.stale.iter().filter(|state| over(kept, state)).copied())
        .collect();
    if !retiring.values().all(|kept| kept.is_known()) {
        stale.extend(plane.pinned()?.into_iter().filter_map(|(state, backend)| {
            let kept = retiring.get(&state.service).filter(|kept| !kept.is_known())?;
            let needed = kept.needs(&state).unwrap_or_else(|| services.knows(&state, backend));
            (!needed).then_some(state)
        }));
    }
    plane.unpin(&stale)?;
    for kept in retiring.values_mut() {
        kept.stale.clear();
        // What a table that failed has left is known only when another one stands.
        kept.unread &= kept.doubtful;
    }
    Ok(())
}
