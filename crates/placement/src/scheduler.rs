//! Schedulers: who gets the next first packet.
//!
//! Unlike a placement, a scheduler remembers: whose turn it is, how many connections are open,
//! what a backend reported. The same flow asked twice may get two answers, so later packets
//! must find their backend without it (Cheetah's cookie, a connection table).
//!
//! Nothing here reads a clock or draws a random number: randomness is an argument.

mod load;
mod rotation;

pub use load::{LeastLoaded, Metric, PowerOfTwo};
pub use rotation::{Awrr, RoundRobin, WeightedRoundRobin};

use crate::traits::Placement;

/// Picks a backend for each new connection.
pub trait Scheduler {
    /// The backend for the next connection; `None` if no backend has weight.
    ///
    /// `random`: 64 uniform bits, fresh for each pick; a scheduler that needs none ignores them.
    /// For [`Hashed`] it is the flow's hash.
    fn pick(&mut self, random: u64) -> Option<u16>;

    /// Adds a backend, or changes its weight. With weight zero it drains: it gets nothing new,
    /// and what is known of its load is kept.
    fn set(&mut self, backend: u16, weight: u32);

    /// Takes a backend out of the pool, with all that is known of its load. Open connections of a
    /// removed backend are not counted any more.
    fn remove(&mut self, backend: u16);

    /// A connection to the backend was opened. The caller says so after a pick, or when it
    /// sees the handshake end, as it likes; a pick alone counts nothing.
    fn on_open(&mut self, _backend: u16) {}

    /// A connection to the backend was closed.
    fn on_close(&mut self, _backend: u16) {}

    /// The backend's load as it was reported or measured: processor time, packets per second,
    /// bytes, any unit, the same for all backends.
    fn on_load(&mut self, _backend: u16, _load: u64) {}
}

/// A placement in the place of a scheduler: the choice of the hash, which knows no load.
/// Changes of the pool are made to the placement itself.
#[derive(Clone, Debug)]
pub struct Hashed<P>(pub P);

impl<P: Placement> Scheduler for Hashed<P> {
    fn pick(&mut self, random: u64) -> Option<u16> {
        self.0.lookup(random)
    }

    fn set(&mut self, _backend: u16, _weight: u32) {}

    fn remove(&mut self, _backend: u16) {}
}
