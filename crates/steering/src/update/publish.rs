//! *Publish*: a table that has been built, from its pins to its packets.

use super::kept::Kept;
use super::pins::Pins;
use super::plane::{Built, Plane, Services};
use crate::ids::{BackendId, ServiceId};
use crate::state::ServiceState;
use crate::table::Flags;

/// What is done next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Part {
    /// Pin what it needs, before the table that reserves their Dcodes is seen.
    Pin,
    /// Put connections into the connection table, before a table is seen whose packets ask for them.
    Track,
    /// Let packets follow it.
    Show,
}

/// A table that is being published.
#[derive(Debug)]
pub struct Publishing {
    service: ServiceId,
    built: Built,
    flags: Flags,
    next: Pins,
    missing: Vec<(ServiceState, BackendId)>,
    /// The former table's pins that it does not need, if those are known.
    stale: Option<Vec<ServiceState>>,
    part: Part,
}

impl Publishing {
    /// From the beginning. `records`: new flows are noted meanwhile, and until it is stopped; `frozen`: none starts.
    pub fn of(service: ServiceId, built: Built, kept: &Kept, records: bool, frozen: bool) -> Self {
        let flags = built.image.header().flags().with(Flags::FROZEN, frozen);
        let flags = flags.with(Flags::RECORD, records).with(Flags::PENDING, records);
        // Those of the table before stand already.
        let (next, there) = (Pins::of(&built.pins), kept.certain());
        let (missing, stale) = next.beside(there);
        let stale = there.map(|_| stale);
        Self { service, built, flags, next, missing, stale, part: Part::Pin }
    }

    /// The same, with all before this part behind it.
    #[must_use]
    pub fn at(self, part: Part) -> Self {
        Self { part, ..self }
    }

    /// Performs a part. Returns whether there is more.
    ///
    /// # Errors
    /// What the plane says; then it is to be [given up](Self::refused).
    pub fn part<D: Plane>(&mut self, plane: &mut D) -> Result<bool, D::Error> {
        self.part = match self.part {
            Part::Pin => {
                plane.pin(&self.missing)?;
                Part::Track
            }
            Part::Track => {
                plane.track(&self.built.tracked)?;
                Part::Show
            }
            Part::Show => {
                plane.show(self.service, &self.built.image, self.flags)?;
                return Ok(false);
            }
        };
        Ok(true)
    }

    /// Packets follow it.
    pub fn shown(self, kept: &mut Kept, plane: &mut impl Plane, services: &mut impl Services) {
        let strangers = services.published(self.service);
        plane.forget_seen(self.service, &strangers);
        kept.shown(self.next, self.stale);
    }

    /// It could not be published: some of its pins may stand. Returns the table, to be tried again or discarded.
    pub fn refused(self, kept: &mut Kept) -> Built {
        kept.doubtful = true;
        self.built
    }
}
