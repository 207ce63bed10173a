//! Rows that ask the connection table for connections that are not there any more.
//!
//! A method that tracks some flows goes on asking for them after it has stopped tracking. Now and then it is told
//! what is left, and packets of rows without anything are spared the question by its next table
//! (docs/jet.md, As a service).

use super::reload::Plan;
use super::service::ServiceRuntime;
use super::{Engine, EngineError, PlaneResult};
use std::collections::{HashMap, HashSet};
use std::ops::Bound;
use std::time::{Duration, Instant};
use tracing::{debug, error};
use weir_plane::{Listen, Plane};
use weir_steering::{BackendId, MethodId, ServiceId, ServiceState, StateKey};

/// So long after all services were looked at it begins again.
const ROUND_EVERY: Duration = Duration::from_secs(60);
/// A service is looked at so long after another one.
const ONE_EVERY: Duration = Duration::from_secs(1);
/// For each look, which reads the whole connection table, there is none for so many times as long.
const SHARE: u32 = 100;

/// Where packets find services.
type Places = HashMap<ServiceId, Vec<Listen>>;

/// Which service is looked at next, and when.
pub(super) struct Looks {
    again: Instant,
    after: Option<String>,
}

impl Looks {
    /// The first look comes a while after the start, which has enough to do.
    pub fn new() -> Self {
        Self { again: Instant::now() + ROUND_EVERY, after: None }
    }

    /// The first look is due.
    #[cfg(test)]
    pub fn due() -> Self {
        Self { again: Instant::now(), after: None }
    }
}

impl<P: Plane> Engine<P> {
    /// Looks at one service, if it is time.
    pub(super) fn look_at_rows(&mut self, looks: &mut Looks) {
        let begun = Instant::now();
        if begun < looks.again {
            return;
        }
        let from = looks.after.take().map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = self.services.range((from, Bound::Unbounded));
        // Where a place is still to come, its connections could not be seen.
        let gaining = self.gaining(&self.wanted_places());
        let next = rest.find(|(_, service)| {
            service.builder.asks_for_former() && !gaining.contains(&service.number)
        });
        looks.after = next.map(|(name, _)| name.clone());
        let Some(name) = &looks.after else {
            looks.again = begun + ROUND_EVERY;
            return;
        };
        if let Err(error) = self.tell_connections(name) {
            error!(service = name, %error, "cannot look which rows need not ask for connections");
        }
        let took = begun.elapsed();
        debug!(service = name, microseconds = took.as_micros() as u64, "connection table read");
        looks.again = Instant::now() + ONE_EVERY.max(took * SHARE);
    }

    /// The table is read beside the engine. What is found is of the table that packets followed then: if
    /// another one was published meanwhile, it is worth nothing.
    fn tell_connections(&mut self, name: &str) -> Result<(), EngineError> {
        let service = self.service(name)?;
        let (number, generation) = (service.number, service.generation);
        let mut elsewhere = service.builder.elsewhere();
        self.plane.grace().plane()?;
        let mut there: Vec<(StateKey, BackendId)> = Vec::new();
        let mut take = move |state: ServiceState, backend: BackendId| {
            elsewhere(&state.key, backend).then_some((state.key, backend))
        };
        match self.plane.read_connections(number).plane()? {
            Some(read) => {
                let all = self.beside("rows", move || {
                    read(&mut |state, backend| there.extend(take(state, backend))).map(|()| there)
                });
                there = all?.plane()?;
            }
            None => {
                let all = self.plane.connections(number).plane()?;
                there.extend(all.into_iter().filter_map(|(state, flow)| take(state, flow.backend)));
            }
        }
        // Which may be gone, or another one.
        let service = self.service_mut(name)?;
        if (service.number, service.generation) == (number, generation) {
            service.builder.tell_connections(&mut there.into_iter());
        }
        Ok(())
    }

    /// Where packets are to find the services.
    fn wanted_places(&self) -> Places {
        let places = |one: &ServiceRuntime| (one.number, one.salts.places(&one.configured));
        self.services.values().map(places).collect()
    }

    /// The services that are to get packets that the kernel's or another service's table had before: of a place
    /// that they do not have, or of a part of one that another service leaves.
    fn gaining(&self, wanted: &Places) -> HashSet<ServiceId> {
        let there = self.plane.services();
        let has: HashSet<(Listen, ServiceId)> = there.iter().copied().collect();
        let left = there.iter().filter(|(at, number)| {
            !wanted
                .get(number)
                .is_some_and(|places| places.iter().any(|to| to.place() == at.place()))
        });
        let left: Vec<Listen> = left.map(|(at, _)| *at).collect();
        let gains = |number: ServiceId, at: &Listen| {
            let nearer = |gone: &Listen| at.exactness() < gone.exactness() && at.meets(gone);
            !has.contains(&(*at, number)) || left.iter().any(nearer)
        };
        let gaining =
            wanted.iter().filter(|(number, places)| places.iter().any(|at| gains(**number, at)));
        gaining.map(|(number, _)| *number).collect()
    }

    /// Before services get places by a plan, packets of all their rows ask the connection table: no look saw
    /// what may be left there of an earlier time.
    pub(super) fn ask_for_more_places(&mut self, plan: &Plan, publishes: bool) {
        let planned = plan.services.iter().filter_map(|planned| {
            let now = self.services.get(planned.now.as_ref()?)?;
            Some((now.number, planned.places()))
        });
        let gaining = self.gaining(&planned.collect());
        let mut asks = false;
        for service in self.services.values_mut() {
            if gaining.contains(&service.number) && service.in_force.method.id() == MethodId::Jet {
                service.builder.ask_again();
                asks = true;
            }
        }
        if asks && publishes {
            for failure in self.publish_due() {
                error!(%failure, "packets do not ask for all connections yet");
            }
        }
    }
}
