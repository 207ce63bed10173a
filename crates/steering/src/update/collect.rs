//! *Collect*: what has started, from the data plane into the states.

use super::plane::{Draining, Plane, Services};
use crate::ids::{BackendId, ServiceId};
use crate::memory::TrackedFlow;
use crate::state::ServiceState;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Pending flows that are taken up in one step: some milliseconds' worth.
const COLLECTED_AT_A_TIME: usize = 8192;

/// What is taken up after the reports.
#[derive(Clone, Copy, Debug)]
pub enum Found {
    /// It is in the connection table.
    Tracked(ServiceState, TrackedFlow),
    /// It is in the pending table.
    Pending(ServiceState, BackendId),
}

impl Found {
    /// Whose it is.
    pub fn state(&self) -> &ServiceState {
        match self {
            Self::Tracked(state, _) | Self::Pending(state, _) => state,
        }
    }
}

/// How far a *collect* has come.
#[derive(Clone, Debug)]
pub enum Collected {
    /// Reports are taken.
    Reports(Draining),
    /// They are through: the pending table, and the connection table, are read next.
    Tables,
    /// What was there, and is to be taken up.
    Found(std::vec::IntoIter<Found>),
}

/// A *collect* that goes on for several steps: there may be as many reports as a flood brings.
///
/// That it takes its time does no harm. What is to be collected is what was there when it began, after the grace
/// period. Reports are taken in their order, and those put aside by a place that only goes forward, so none of them
/// is left behind; what came of flows since is found pending, as all are noted until the next table is seen.
#[derive(Debug)]
pub struct Collecting<S> {
    /// The lanes that it is for: another one that comes to it meanwhile has one of its own.
    services: HashSet<ServiceId>,
    at: Collected,
    /// Services for which something could not be taken up.
    refused: BTreeMap<ServiceId, Arc<S>>,
}

impl<S> Collecting<S> {
    /// For these services, from the beginning.
    pub fn of(services: HashSet<ServiceId>) -> Self {
        Self::at(services, Collected::Reports(Draining::default()))
    }

    /// One that has come so far, and has taken up all on its way.
    pub fn at(services: HashSet<ServiceId>, at: Collected) -> Self {
        Self { services, at, refused: BTreeMap::new() }
    }

    /// How far it has come.
    pub fn place(&self) -> &Collected {
        &self.at
    }

    /// Whether it is for a service.
    pub fn is_for(&self, service: ServiceId) -> bool {
        self.services.contains(&service)
    }

    /// Why something of a service could not be taken up, if so.
    pub fn refused(&self, service: ServiceId) -> Option<&Arc<S>> {
        self.refused.get(&service)
    }

    /// A service is gone; its number may soon be another one's.
    pub fn forget(&mut self, service: ServiceId) {
        self.services.remove(&service);
        self.refused.remove(&service);
        if let Collected::Found(found) = &mut self.at {
            let others: Vec<_> =
                found.by_ref().filter(|found| found.state().service != service).collect();
            *found = others.into_iter();
        }
    }

    /// Some reports, or then all that is pending, or then some of that, into the states. Returns whether there is
    /// more.
    ///
    /// # Errors
    /// What the plane says. It is over then.
    pub fn part<D, T>(&mut self, plane: &mut D, services: &mut T) -> Result<bool, D::Error>
    where
        D: Plane,
        T: Services<Error = S>,
    {
        match &mut self.at {
            Collected::Reports(draining) => {
                let refused = &mut self.refused;
                let more = plane.drain_part(draining, &mut |event| {
                    check(refused, event.state.service, services.report(event));
                })?;
                if !more {
                    self.at = Collected::Tables;
                }
                Ok(true)
            }
            Collected::Tables => {
                let mut found = Vec::new();
                for &service in &self.services {
                    if services.takes_connections(service) {
                        let connections = plane.connections(service)?.into_iter();
                        found.extend(connections.map(|(state, flow)| Found::Tracked(state, flow)));
                    }
                }
                let pending = plane.pending()?.into_iter();
                let of = pending.filter(|(state, _)| self.services.contains(&state.service));
                found.extend(of.map(|(state, backend)| Found::Pending(state, backend)));
                let any = !found.is_empty();
                self.at = Collected::Found(found.into_iter());
                Ok(any)
            }
            Collected::Found(found) => {
                for found in found.by_ref().take(COLLECTED_AT_A_TIME) {
                    let taken = match &found {
                        Found::Tracked(state, flow) => {
                            services.take_connection(state, flow.backend, flow.ended)
                        }
                        Found::Pending(state, backend) => services.collect(state, *backend),
                    };
                    check(&mut self.refused, found.state().service, taken);
                }
                Ok(!found.as_slice().is_empty())
            }
        }
    }
}

fn check<S>(refused: &mut BTreeMap<ServiceId, Arc<S>>, service: ServiceId, result: Result<(), S>) {
    if let Err(error) = result {
        refused.entry(service).or_insert_with(|| Arc::new(error));
    }
}
