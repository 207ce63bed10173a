//! A steering method as a data plane in user space runs it: packets in bursts, one service.

use weir_lookup::Key;

/// Decides where the packets of one service go, one at a time or in bursts.
///
/// A flow is a key that tells it from all others of the service: a `u64` that holds an IPv4
/// client's address and both ports, or a [`StateKey`](crate::StateKey). Methods that remember may
/// write at any packet, hence `&mut`. Answers are backends, or
/// [`NO_BACKEND`](crate::NO_BACKEND).
pub trait Steer<K: Key> {
    /// Where a packet of this flow goes.
    fn steer(&mut self, flow: &K) -> u16;

    /// Where a burst of packets goes: the same answers as [`steer`](Self::steer) one after the
    /// other, with the memory reads of many packets under way at once.
    ///
    /// # Panics
    ///
    /// If the two slices differ in length.
    fn steer_batch(&mut self, flows: &[K], out: &mut [u16]);

    /// The flow has ended: what is remembered of it, if anything, may go.
    fn end(&mut self, flow: &K);

    /// Bytes that packets may read, from the allocations.
    fn bytes(&self) -> usize;
}
