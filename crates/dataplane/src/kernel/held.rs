//! How many connections prefixes of sources hold: counters that packets raise, and that are set right from above.

use super::KernelPlane;
use super::trace::monotonic;
use crate::error::Error;
use crate::mapped::Mapped;
use crate::numbers::{
    HELD_COUNT_SHIFT, HELD_CROWD, HELD_FLOWS, HELD_MOST, HELD_ROW, HELD_TICK_SHIFT,
};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use weir_hash::Key;
use weir_plane::{
    FlowCaps, HELD_COUNTERS, HeldCounts, correction, counters, held_until, is_believed, is_counted,
    is_old, next_count, room,
};
use weir_steering::{ServiceId, ServiceState};

const _: () = assert!(
    HELD_ROW == weir_plane::HELD_ROW
        && HELD_CROWD == weir_plane::HELD_CROWD
        && HELD_FLOWS == weir_plane::HELD_FLOWS
        && HELD_MOST == weir_plane::HELD_MOST
        && HELD_TICK_SHIFT == weir_plane::HELD_TICK_SHIFT,
    "both pipelines count alike"
);

/// The maps of the counters, and of the connections that were counted lately.
const HELD: &str = "held";
const HELD_FLOWS_MAP: &str = "held_flows";
/// Where the tick stands until which a count is believed.
const UNTIL_SHIFT: u32 = 32;

/// The counters of all prefixes, by their places: a column has one of each row, and behind them is that of all.
struct Counters(Mapped);

impl Counters {
    fn at(&self, place: u32) -> &AtomicU32 {
        self.0.word32(place as usize * size_of::<u32>())
    }

    fn change(&self, place: u32, change: impl Fn(u32) -> u32) {
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let _ = self.at(place).fetch_update(set, fetch, |now| Some(change(now)));
    }
}

impl KernelPlane {
    /// What the counters say of connections that prefixes hold, of all services.
    ///
    /// # Errors
    /// [`Error::System`] if they cannot be mapped.
    pub fn held(&self) -> Result<HeldCounts, Error> {
        let counters = self.held_counters()?;
        let said = |place| counters.at(place).load(Ordering::Relaxed);
        Ok(HeldCounts::from_counters((0..HELD_COUNTERS).map(said).collect()))
    }

    /// Sets them right: they said `before` when `counted` was begun to be found out. No connection is refused by
    /// a limit when so much time has passed without another count.
    ///
    /// # Errors
    /// [`Error::System`] if they cannot be mapped.
    pub fn correct_held(
        &mut self,
        before: &HeldCounts,
        counted: &HeldCounts,
        lasts: Duration,
    ) -> Result<(), Error> {
        let held = self.held_counters()?;
        for place in 0..HELD_COUNTERS {
            let (before, counted) = (before.at(place), counted.at(place));
            if before != counted {
                held.change(place, |now| correction(now, before, counted));
            }
        }
        self.held_count = next_count(self.held_count);
        let (count, until) = (self.held_count, held_until(monotonic(), lasts));
        let flows = self.held_flows()?;
        for at in 0..HELD_FLOWS {
            let word = flow_word(&flows, at);
            let known = word.load(Ordering::Relaxed);
            if is_old(known, count) {
                // Unless another one has come there.
                let _ = word.compare_exchange(known, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
        for service in self.capped() {
            let word = self.limit_word(service);
            let most = word.load(Ordering::Relaxed) & u64::from(HELD_MOST);
            if most != 0 {
                let told = most | u64::from(count) << HELD_COUNT_SHIFT;
                word.store(told | u64::from(until) << UNTIL_SHIFT, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Connections that were counted have ended.
    ///
    /// # Errors
    /// [`Error::System`] if the counters cannot be mapped.
    pub fn release_held(&mut self, ended: &[ServiceState]) -> Result<(), Error> {
        let (held, flows) = (self.held_counters()?, self.held_flows()?);
        let mut of: Option<(ServiceId, Option<FlowCaps>)> = None;
        for ServiceState { service, key } in ended {
            // Those of a service come together.
            if of.is_none_or(|(known, _)| known != *service) {
                of = Some((*service, self.flow_caps(*service)));
            }
            let Some((_, Some(caps))) = of else { continue };
            let Some(places) = caps.counters_of(&key.address) else { continue };
            for place in counters(places) {
                held.change(place, |now| now.saturating_sub(1));
            }
            let flow = key.hash(&caps.key);
            let word = flow_word(&flows, flow as u32 & (HELD_FLOWS - 1));
            let known = word.load(Ordering::Relaxed);
            if is_counted(known, flow) {
                let _ = word.compare_exchange(known, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// How many connections more a source's prefix may begin; `None`: any number.
    pub(super) fn connection_room(
        &self,
        service: ServiceId,
        caps: &FlowCaps,
        source: &[u8; 16],
    ) -> Result<Option<u64>, Error> {
        let until = (self.limit_word(service).load(Ordering::Relaxed) >> UNTIL_SHIFT) as u32;
        let Some((limit, places)) = caps.held.zip(caps.counters_of(source)) else {
            return Ok(None);
        };
        if !is_believed(until, monotonic()) {
            return Ok(None);
        }
        let held = self.held_counters()?;
        let said = counters(places).map(|place| held.at(place).load(Ordering::Relaxed));
        Ok(room(&limit, said).map(u64::from))
    }

    /// As if so much time had passed since connections were counted, for tests that do not wait.
    #[doc(hidden)]
    pub fn age_held(&self, nanoseconds: u64) {
        let ticks = (nanoseconds >> HELD_TICK_SHIFT) as u32;
        for service in self.capped() {
            let word = self.limit_word(service);
            let limit = word.load(Ordering::Relaxed);
            let until = ((limit >> UNTIL_SHIFT) as u32).wrapping_sub(ticks);
            let told = limit & u64::from(u32::MAX) | u64::from(until) << UNTIL_SHIFT;
            word.store(told, Ordering::Relaxed);
        }
    }

    fn held_counters(&self) -> Result<Counters, Error> {
        let (_, map) = self.shared(HELD)?;
        let columns = HELD_ROW as usize + 1;
        Mapped::new(map, columns * 2 * size_of::<u32>()).map(Counters)
    }

    fn held_flows(&self) -> Result<Mapped, Error> {
        let (_, map) = self.shared(HELD_FLOWS_MAP)?;
        Mapped::new(map, HELD_FLOWS as usize * size_of::<u64>())
    }
}

fn flow_word(flows: &Mapped, at: u32) -> &AtomicU64 {
    flows.word64(at as usize * size_of::<u64>())
}
