//! Two planes that must be one: the kernel's and its oracle. Whatever an update asks of them must
//! be answered alike. Now and then both refuse.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use weir_dataplane::LivePlane;
use weir_plane::Soft;
use weir_steering::update::Plane;
use weir_steering::{BackendId, Event, Flags, Image, ServiceId, ServiceState};

pub struct Twin {
    pub kernel: LivePlane,
    pub oracle: Soft,
    /// Of so many operations one is refused; 0: none.
    pub refuse_one_in: u32,
    refused: Cell<u64>,
    rng: RefCell<ChaCha8Rng>,
}

/// Both planes refused, as they were told to.
#[derive(Debug, thiserror::Error)]
#[error("refused")]
pub struct Refused;

impl Twin {
    pub fn new(kernel: LivePlane, oracle: Soft, seed: u64) -> Self {
        let rng = RefCell::new(ChaCha8Rng::seed_from_u64(seed));
        Self { kernel, oracle, refuse_one_in: 0, refused: Cell::new(0), rng }
    }

    /// Operations that were refused.
    pub fn refused(&self) -> u64 {
        self.refused.get()
    }

    fn ask(&self) -> Result<(), Refused> {
        if self.refuse_one_in > 0 && self.rng.borrow_mut().random_ratio(1, self.refuse_one_in) {
            self.refused.set(self.refused.get() + 1);
            return Err(Refused);
        }
        Ok(())
    }
}

fn sorted(mut states: Vec<(ServiceState, BackendId)>) -> Vec<(ServiceState, BackendId)> {
    states.sort_unstable();
    states
}

impl Plane for Twin {
    type Error = Refused;

    fn is_full(_: &Refused) -> bool {
        false
    }

    fn set_flags(
        &mut self,
        service: ServiceId,
        record: bool,
        pending: bool,
    ) -> Result<(), Refused> {
        self.ask()?;
        self.kernel.set_flags(service, record, pending).unwrap();
        self.oracle.set_flags(service, record, pending).unwrap();
        Ok(())
    }

    fn freeze(&mut self, service: ServiceId, frozen: bool) -> Result<(), Refused> {
        self.ask()?;
        self.kernel.freeze(service, frozen).unwrap();
        self.oracle.freeze(service, frozen).unwrap();
        Ok(())
    }

    fn grace(&mut self) -> Result<(), Refused> {
        self.ask()
    }

    /// The reports must be the oracle's, in order.
    fn drain(&mut self, take: &mut dyn FnMut(&Event)) -> Result<(), Refused> {
        self.ask()?;
        let (mut found, mut wanted) = (Vec::new(), Vec::new());
        self.kernel.drain(&mut |event| found.push(*event)).unwrap();
        self.oracle.drain(&mut |event| wanted.push(*event)).unwrap();
        assert_eq!(found, wanted, "reports");
        wanted.iter().for_each(take);
        Ok(())
    }

    fn pending(&self) -> Result<Vec<(ServiceState, BackendId)>, Refused> {
        self.ask()?;
        let found = sorted(Plane::pending(&self.kernel).unwrap());
        assert_eq!(found, sorted(self.oracle.pending().unwrap()), "pending flows");
        Ok(found)
    }

    fn forget_pending(&mut self, states: &[ServiceState]) -> Result<(), Refused> {
        self.ask()?;
        Plane::forget_pending(&mut self.kernel, states).unwrap();
        self.oracle.forget_pending(states).unwrap();
        Ok(())
    }

    fn pinned(&self) -> Result<Vec<(ServiceState, BackendId)>, Refused> {
        self.ask()?;
        let found = sorted(Plane::pinned(&self.kernel).unwrap());
        assert_eq!(found, sorted(self.oracle.pinned().unwrap()), "pins");
        Ok(found)
    }

    /// If it refuses, a part is pinned.
    fn pin(&mut self, pins: &[(ServiceState, BackendId)]) -> Result<(), Refused> {
        let refused = self.ask();
        let part = if refused.is_err() { &pins[..pins.len() / 2] } else { pins };
        Plane::pin(&mut self.kernel, part).unwrap();
        self.oracle.pin(part).unwrap();
        refused
    }

    fn unpin(&mut self, states: &[ServiceState]) -> Result<(), Refused> {
        let refused = self.ask();
        let part = if refused.is_err() { &states[..states.len() / 2] } else { states };
        Plane::unpin(&mut self.kernel, part).unwrap();
        self.oracle.unpin(part).unwrap();
        refused
    }

    fn show(
        &mut self,
        service: ServiceId,
        image: &Arc<Image>,
        flags: Flags,
    ) -> Result<(), Refused> {
        self.ask()?;
        Plane::show(&mut self.kernel, service, image, flags).unwrap();
        self.oracle.show(service, image, flags).unwrap();
        let read_back = self.kernel.published(service).unwrap().expect("a table is published");
        assert_eq!(read_back, *self.oracle.tables[&service], "table of service {service}");
        Ok(())
    }

    fn retire(&mut self, service: ServiceId) {
        Plane::retire(&mut self.kernel, service);
        self.oracle.retire(service);
    }

    fn forget_seen(&mut self, service: ServiceId, hashes: &[u64]) {
        Plane::forget_seen(&mut self.kernel, service, hashes);
        self.oracle.forget_seen(service, hashes);
    }
}
