//! The baseline: every flow is tracked.

use crate::image::{NO_BACKEND, SLOT_BACKEND};
use crate::{ConnectionTable, Steer};
use weir_lookup::{BATCH, Key};
use weir_placement::Placement;

/// Full connection tracking over any placement, Maglev included: a flow goes where the table says,
/// and a new one where the placement says. Nothing breaks while the table evicts nothing, whatever
/// changes; in return every flow has an entry and every packet reads it.
#[derive(Clone, Debug)]
pub struct FullTracking<P, C> {
    placement: P,
    connections: C,
}

/// The hashes of packets whose cache lines are on their way.
type Hashes = [u64; BATCH];

impl<P: Placement, C: ConnectionTable> FullTracking<P, C> {
    /// No flow yet; backend numbers must be below [`NO_BACKEND`].
    pub fn new(placement: P, connections: C) -> Self {
        Self { placement, connections }
    }

    /// Where new flows go.
    pub fn placement(&self) -> &P {
        &self.placement
    }

    /// To change where new flows go. After a backend has left, call
    /// [`forget_backend`](Self::forget_backend).
    pub fn placement_mut(&mut self) -> &mut P {
        &mut self.placement
    }

    /// The connection table.
    pub fn connections(&self) -> &C {
        &self.connections
    }

    /// Forgets the flows of a backend that is gone; returns how many.
    pub fn forget_backend(&mut self, backend: u16) -> usize {
        self.connections.forget_backend(backend)
    }

    #[inline(always)]
    fn get(&mut self, hash: u64, flow: &C::Flow) -> u16 {
        match self.connections.get(hash, flow) {
            Some(tracked) => tracked,
            None => self.track(hash, flow),
        }
    }

    #[inline(never)]
    fn track(&mut self, hash: u64, flow: &C::Flow) -> u16 {
        let Some(backend) = self.placement.lookup(hash) else {
            return NO_BACKEND;
        };
        debug_assert!(backend <= SLOT_BACKEND);
        self.connections.insert(hash, *flow, backend);
        backend
    }

    #[inline(always)]
    fn fetch(&self, flows: &[C::Flow]) -> Hashes {
        let mut hashes = [0; BATCH];
        for (hash, flow) in hashes.iter_mut().zip(flows) {
            *hash = flow.hash(self.connections.hash_key());
            self.connections.prefetch(*hash);
        }
        hashes
    }
}

impl<P: Placement, C: ConnectionTable> Steer<C::Flow> for FullTracking<P, C> {
    fn steer(&mut self, flow: &C::Flow) -> u16 {
        self.get(flow.hash(self.connections.hash_key()), flow)
    }

    fn steer_batch(&mut self, flows: &[C::Flow], out: &mut [u16]) {
        assert_eq!(flows.len(), out.len(), "one answer per packet");
        let mut hashes = self.fetch(&flows[..BATCH.min(flows.len())]);
        for (start, out) in (0..).step_by(BATCH).zip(out.chunks_mut(BATCH)) {
            // The lines of the next packets are asked for before these are read.
            let (now, later) = flows[start..].split_at(out.len());
            let next = self.fetch(&later[..BATCH.min(later.len())]);
            for ((out, flow), &hash) in out.iter_mut().zip(now).zip(&hashes) {
                *out = self.get(hash, flow);
            }
            hashes = next;
        }
    }

    fn end(&mut self, flow: &C::Flow) {
        self.connections.remove(flow.hash(self.connections.hash_key()), flow);
    }

    /// The connection table. The placement's tables, which only first packets read, are apart.
    fn bytes(&self) -> usize {
        self.connections.bytes()
    }
}
