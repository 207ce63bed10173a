//! The baseline: every flow is tracked.

use crate::ConnectionTable;
use crate::connections::Connections;
use crate::forwarder::{Parts, steers};
use crate::methods::tracked::Tracking;
use weir_placement::Placement;

/// Full connection tracking over any placement, Maglev included: a flow goes where the table says,
/// and a new one where the placement says. Nothing breaks while the table evicts nothing, whatever
/// changes; in return every flow has an entry and every packet reads it.
///
/// It decides as `tracked` does ([`Tracking`]), with a [`ConnectionTable`] for a memory.
#[derive(Clone, Debug)]
pub struct FullTracking<P, C> {
    placed: Tracking<P>,
    connections: Connections<C>,
}

impl<P: Placement, C: ConnectionTable> FullTracking<P, C> {
    /// Full tracking without flows yet. The placement's backend numbers must be below
    /// [`NO_BACKEND`](crate::NO_BACKEND).
    pub fn new(placement: P, connections: C) -> Self {
        let placed = Tracking::new(*connections.hash_key(), placement);
        Self { placed, connections: Connections(connections) }
    }

    /// The placement, which new flows follow.
    pub fn placement(&self) -> &P {
        &self.placed.placement
    }

    /// The placement, to change its pool. After a backend has left, call
    /// [`forget_backend`](Self::forget_backend).
    pub fn placement_mut(&mut self) -> &mut P {
        &mut self.placed.placement
    }

    /// The connection table, with every flow.
    pub fn connections(&self) -> &C {
        &self.connections.0
    }

    /// Forgets the flows of a backend that is gone; returns how many.
    pub fn forget_backend(&mut self, backend: u16) -> usize {
        self.connections.0.forget_backend(backend)
    }
}

steers!([P: Placement, C: ConnectionTable] FullTracking<P, C>, C::Flow);

impl<P: Placement, C: ConnectionTable> Parts<C::Flow> for FullTracking<P, C> {
    type Table = Tracking<P>;
    type Memory = Connections<C>;

    #[inline(always)]
    fn with_parts<R>(&mut self, run: impl FnOnce(&Tracking<P>, &mut Connections<C>) -> R) -> R {
        run(&self.placed, &mut self.connections)
    }

    /// The connection table. The placement's tables, which only first packets read, are apart.
    fn bytes(&self) -> usize {
        self.connections.0.bytes()
    }
}
