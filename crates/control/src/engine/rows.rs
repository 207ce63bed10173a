//! Rows that ask the connection table for connections that are not there any more.
//!
//! A method that tracks some flows goes on asking for them after it has stopped tracking. Now and then it is told
//! what is left, and packets of rows without anything are spared the question by its next table
//! (docs/jet.md, As a service).

use super::{Engine, EngineError, PlaneResult};
use std::ops::Bound;
use std::time::{Duration, Instant};
use tracing::{debug, error};
use weir_plane::Plane;

/// So long after all services were looked at it begins again.
const ROUND_EVERY: Duration = Duration::from_secs(60);
/// A service is looked at so long after another one.
const ONE_EVERY: Duration = Duration::from_secs(1);
/// For each look, which reads the whole connection table, the engine does other things for so many times as long.
const SHARE: u32 = 100;

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
        let next = rest.find(|(_, service)| service.builder.asks_for_former());
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

    /// Nothing is published between the grace period and the end of this, so what is found is of the
    /// table that packets follow.
    fn tell_connections(&mut self, name: &str) -> Result<(), EngineError> {
        let number = self.service(name)?.number;
        self.plane.grace().plane()?;
        let there = self.plane.connections(number).plane()?;
        let mut there = there.into_iter().map(|(state, backend)| (state.key, backend));
        self.service_mut(name)?.builder.tell_connections(&mut there);
        Ok(())
    }
}
