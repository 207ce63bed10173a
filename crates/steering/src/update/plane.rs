//! The two sides of an update: a data plane, and the services whose tables it holds.

use super::machine::Action;
use crate::ids::{BackendId, ServiceId};
use crate::memory::{Event, TrackedFlow};
use crate::registry::Image;
use crate::state::ServiceState;
use crate::table::Flags;
use std::sync::Arc;

/// How far reports have been taken, of those that were there when it was made ([`Plane::drain_part`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Draining {
    /// Reports that may have been there and are to be taken yet, in their order; none: it has not begun.
    pub left: Option<usize>,
    /// The place among those that had to be put aside where it goes on; none: at their beginning.
    pub aside: Option<u32>,
}

/// A data plane, as an update needs it. Services are told by their numbers; what is asked of one
/// touches no other.
///
/// After an error the plane is as before, except where a method says otherwise.
pub trait Plane {
    /// What can go wrong.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Whether an error means that there was no room: for a table or a pin. Room comes back when
    /// other services have retired theirs.
    fn is_full(error: &Self::Error) -> bool;

    /// Sets and clears the two flags of a service's published table, in place, one
    /// after the other in any order. A service without a table is left alone.
    ///
    /// # Errors
    /// Either flag may have changed.
    fn set_flags(
        &mut self,
        service: ServiceId,
        record: bool,
        pending: bool,
    ) -> Result<(), Self::Error>;

    /// Sets or clears [`Flags::FROZEN`] of a service's published table, in place: for a change in step with
    /// other balancers (docs/fleet.md). A service without a table is left alone.
    ///
    /// # Errors
    /// The flag is as it was.
    fn freeze(&mut self, service: ServiceId, frozen: bool) -> Result<(), Self::Error>;

    /// Waits until every packet whose processing had begun is decided.
    ///
    /// # Errors
    /// It is not known whether they are.
    fn grace(&mut self) -> Result<(), Self::Error>;

    /// Takes the reports that are there, in order. A report counts as taken when `take` returns.
    ///
    /// # Errors
    /// Some may have been taken.
    fn drain(&mut self, take: &mut dyn FnMut(&Event)) -> Result<(), Self::Error>;

    /// As [`drain`](Self::drain), but takes a part of the reports only, some milliseconds' worth, and goes on
    /// from where it was. Returns whether there is more to be taken. If not, all reports have been taken that
    /// were there when `draining` was new; what comes meanwhile, however fast, does not prolong it.
    ///
    /// # Errors
    /// Some may have been taken; whoever goes on begins anew.
    fn drain_part(
        &mut self,
        draining: &mut Draining,
        take: &mut dyn FnMut(&Event),
    ) -> Result<bool, Self::Error> {
        let _ = draining;
        self.drain(take).map(|()| false)
    }

    /// The pending flows of all services: each that is there from beginning to end is among them.
    ///
    /// # Errors
    /// If they cannot be read.
    fn pending(&self) -> Result<Vec<(ServiceState, BackendId)>, Self::Error>;

    /// Removes flows from the pending table; one that is gone already is no error.
    ///
    /// # Errors
    /// Some may have been removed.
    fn forget_pending(&mut self, states: &[ServiceState]) -> Result<(), Self::Error>;

    /// The pinned states of all services.
    ///
    /// # Errors
    /// If they cannot be read.
    fn pinned(&self) -> Result<Vec<(ServiceState, BackendId)>, Self::Error>;

    /// Pins states; one that is pinned is pinned to the backend that is given now.
    ///
    /// # Errors
    /// Some may have been pinned.
    fn pin(&mut self, pins: &[(ServiceState, BackendId)]) -> Result<(), Self::Error>;

    /// Removes pins; one that is gone already is no error.
    ///
    /// # Errors
    /// Some may have been removed.
    fn unpin(&mut self, states: &[ServiceState]) -> Result<(), Self::Error>;

    /// The connections of a service in the connection table whose backends are still the ones they
    /// began at, with what it says of them: each that is there from beginning to end is among them. A plane whose methods have no
    /// connection table has none.
    ///
    /// # Errors
    /// If they cannot be read.
    fn connections(
        &self,
        service: ServiceId,
    ) -> Result<Vec<(ServiceState, TrackedFlow)>, Self::Error> {
        let _ = service;
        Ok(Vec::new())
    }

    /// Puts connections into the connection table, in place of what it says of them.
    ///
    /// # Errors
    /// Some may be there.
    fn track(&mut self, connections: &[(ServiceState, BackendId)]) -> Result<(), Self::Error> {
        let _ = connections;
        Ok(())
    }

    /// Lets packets that come in follow a new table, with these flags. Each packet sees the old
    /// table or the new one, whole.
    ///
    /// # Errors
    /// The old table stays.
    fn show(
        &mut self,
        service: ServiceId,
        image: &Arc<Image>,
        flags: Flags,
    ) -> Result<(), Self::Error>;

    /// Frees the table before the published one. A grace period has passed since
    /// [`show`](Self::show).
    fn retire(&mut self, service: ServiceId);

    /// Takes UDP flows, by their hashes under the published table's key, out of the "seen
    /// recently" filter, so that their next packets count as first ones.
    fn forget_seen(&mut self, service: ServiceId, hashes: &[u64]);
}

/// A table that can be published.
#[derive(Clone, Debug)]
pub struct Built {
    /// The table, complete but for where its body will stand.
    pub image: Arc<Image>,
    /// The states that the data plane must know exactly while packets follow it.
    pub pins: Vec<(ServiceState, BackendId)>,
    /// Connections that the table before had, and the connection table must have now.
    pub tracked: Vec<(ServiceState, BackendId)>,
}

impl Built {
    /// A table of the method that the service has had.
    pub fn new(image: Arc<Image>, pins: Vec<(ServiceState, BackendId)>) -> Self {
        Self { image, pins, tracked: Vec::new() }
    }
}

/// What a published table says of a pending flow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Judgement {
    /// It leads the flow to its backend: the flow need not be pending.
    Agreed,
    /// The backend is gone, or is down and reached anyway: the flow need not be pending.
    Lost,
    /// The method keeps connections in the connection table of the data plane: the flow belongs
    /// there, and need not be pending then.
    Tracked,
    /// The flow has a reserved Dcode: it stays pending, and packets look it up there anyway.
    Reserved,
    /// It leads elsewhere: the flow must be pending, or in the next table.
    Apart,
}

/// The services of a balancer: what is known of their flows, and how tables are built of it.
pub trait Services {
    /// What can go wrong.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Takes up a report of any service; one that is not known is passed over.
    ///
    /// # Errors
    /// If the flow is not remembered. No table of its service is published on the strength of it.
    fn report(&mut self, event: &Event) -> Result<(), Self::Error>;

    /// Takes up a pending flow.
    ///
    /// # Errors
    /// As [`report`](Self::report).
    fn collect(&mut self, state: &ServiceState, backend: BackendId) -> Result<(), Self::Error>;

    /// Takes up a connection of the data plane's connection table. `ended`: FIN or RST has said so.
    ///
    /// # Errors
    /// As [`report`](Self::report).
    fn take_connection(
        &mut self,
        state: &ServiceState,
        backend: BackendId,
        ended: bool,
    ) -> Result<(), Self::Error> {
        let _ = ended;
        self.collect(state, backend)
    }

    /// Whether a service's next table is of a method that has to be told the connections in the
    /// data plane's connection table, which are [taken up](Self::take_connection) then.
    fn takes_connections(&self, service: ServiceId) -> bool {
        let _ = service;
        false
    }

    /// Whether a backend that is down may still be in a service's published table: then packets go
    /// on asking the pending table, as new flows are kept from it by that alone.
    fn avoids(&self, service: ServiceId) -> bool {
        let _ = service;
        false
    }

    /// Whether a backend has been marked as down since the update has begun, though the service's table leads there:
    /// then as well, until another update. Between the settling of pending flows and the end of the pass no backend
    /// may be marked so; see [`Driver::is_clearing`](super::Driver::is_clearing).
    fn keeps_off(&self, service: ServiceId) -> bool {
        let _ = service;
        false
    }

    /// Whether a flow is known to live at this backend. Asked after a restart, to tell the pins
    /// that the published table needs from those that an update before it has left.
    fn knows(&self, state: &ServiceState, backend: BackendId) -> bool;

    /// Builds a service's next table. It is not published by that: until
    /// [`published`](Self::published), the former one is what packets follow.
    ///
    /// # Errors
    /// If there is none; then nothing has changed.
    fn build(&mut self, service: ServiceId) -> Result<Built, Self::Error>;

    /// The table built last is published. Returns hashes for [`Plane::forget_seen`].
    fn published(&mut self, service: ServiceId) -> Vec<u64>;

    /// The table built last cannot be published: the former one stays. What was collected for it
    /// stays known.
    fn discard(&mut self, service: ServiceId);

    /// What a service's published table says of a pending flow.
    fn judge(&self, state: &ServiceState, backend: BackendId) -> Judgement;
}

/// Why an action of an update was left out. `P` is what the data plane says, `S` what the services
/// say.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure<P, S> {
    /// The data plane refused.
    #[error("cannot {action}: {source}")]
    Plane {
        /// What was tried.
        action: Action,
        /// Why not; shared by all services that it concerns.
        source: Arc<P>,
    },
    /// The service's own side refused.
    #[error("cannot {action}: {source}")]
    Service {
        /// What was tried.
        action: Action,
        /// Why not.
        source: Arc<S>,
    },
}

impl<P, S> Failure<P, S> {
    /// What was tried.
    pub fn action(&self) -> Action {
        match self {
            Self::Plane { action, .. } | Self::Service { action, .. } => *action,
        }
    }
}
