//! Connections by index, which the data plane keeps itself: the clock by which they grow old, and the
//! slots of those whose time is up.

use super::status::SlotStatus;
use super::{Engine, EngineError, PlaneResult};
use weir_plane::Plane;
use weir_steering::{BackendId, ServiceId};

/// The clock goes on by so many seconds at a time at most: while nobody turns it nobody grows old, as the
/// packets of that time could not be told from none.
const MOST_SECONDS: u32 = 5;
/// Of all slots of a service so many parts are looked over in a second.
const ROUND_SECONDS: u64 = 16;

impl<P: Plane> Engine<P> {
    /// Turns the clock. Called many times a second.
    pub(super) fn turn_clock(&mut self) {
        let now = self.now();
        let passed = now.wrapping_sub(self.clocked);
        if passed > 0 {
            self.clocked = now;
            let clock = self.plane.clock().wrapping_add(passed.min(MOST_SECONDS));
            self.plane.set_clock(clock);
        }
    }

    /// Gives slots back whose time is up, and those of backends that are gone.
    pub(super) fn sweep_slots(&mut self) -> Result<(), EngineError> {
        for service in self.services.values() {
            let Some(counts) = self.plane.slot_counts(service.number) else { continue };
            let steps = counts.slots.div_ceil(ROUND_SECONDS) as u32;
            let here = |backend: BackendId| service.by_id(backend).is_some();
            self.plane.sweep_slots(service.number, steps, &here).plane()?;
        }
        Ok(())
    }

    /// How full a service's table of connections by index is.
    pub(super) fn slot_status(&self, service: ServiceId) -> Option<SlotStatus> {
        let counts = self.plane.slot_counts(service)?;
        Some(SlotStatus {
            used: counts.used,
            slots: counts.slots,
            full: counts.full,
            stale_cookies: counts.stale,
            foreign_cookies: counts.foreign,
        })
    }
}
