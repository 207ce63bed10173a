//! Services, their tables and backends, as packets see them.

use super::KernelPlane;
use crate::abi::{BackendEntry, types};
use crate::error::Error;
use crate::numbers::{
    TUNNEL_NAT, TUNNEL_NONE, UNUSUAL_ANSWERS, UNUSUAL_ANY_PORT, UNUSUAL_FULL_NAT, UNUSUAL_NAT,
    UNUSUAL_NAT_ANY, UNUSUAL_WIDE,
};
use crate::tables::service_of;
use crate::vips::{Leads, NO_TABLE};
use std::collections::BTreeSet;
use std::mem::offset_of;
use std::sync::atomic::Ordering;
use weir_plane::{Described, Listen, SourceTable, TablesMoved};
use weir_steering::{BackendId, Flags, Image, ServiceId};

impl KernelPlane {
    /// Lets packets find a service there, with the table that it has; and no other one, if there was one.
    /// Until the first table is published its packets are dropped as
    /// [`Reason::NoTable`](weir_wire::Reason::NoTable).
    ///
    /// # Errors
    /// [`Error::Beyond`], [`Error::ServicesFull`], [`Error::KindsFull`].
    pub fn set_service(&mut self, at: impl Into<Listen>, service: ServiceId) -> Result<(), Error> {
        self.check_service(service)?;
        let at = at.into();
        let table = self.tables.current(service).unwrap_or(NO_TABLE);
        let leads = self.leads(service, table);
        let taken = self.vips.contains(&at);
        self.vips.insert(&at, leads)?;
        if taken {
            for places in self.keys.values_mut() {
                places.retain(|place| place.place() != at.place());
            }
            self.keys.retain(|_, places| !places.is_empty());
        }
        self.keys.entry(service).or_default().push(at);
        self.set_unusual(service);
        Ok(())
    }

    /// Does not let packets find a service there any more.
    ///
    /// # Errors
    /// [`Error::System`] if there is no waiting for a grace period.
    pub fn leave_place(&mut self, at: &Listen, service: ServiceId) -> Result<(), Error> {
        let Some(places) = self.keys.get_mut(&service) else { return Ok(()) };
        let before = places.len();
        places.retain(|place| place.place() != at.place());
        if places.len() == before {
            return Ok(());
        }
        if places.is_empty() {
            self.keys.remove(&service);
        }
        self.vips.remove(at);
        self.vips.tidy()?;
        self.set_unusual(service);
        Ok(())
    }

    /// Removes a service and its table; its packets go to the kernel from now on.
    ///
    /// # Errors
    /// [`Error::System`] if there is no waiting for a grace period.
    pub fn remove_service(&mut self, service: ServiceId) -> Result<(), Error> {
        self.set_entered(service, 0);
        if let Some(places) = self.keys.remove(&service) {
            places.iter().for_each(|at| self.vips.remove(at));
            self.vips.tidy()?;
            self.set_unusual(service);
            self.grace()?;
        }
        self.tables.remove(service);
        if let Some(list) = self.lists.leave(service) {
            self.lists.release(list);
        }
        self.capped.remove(&service);
        self.set_id_routes(service, None)
    }

    /// All places of a service lead to one table, and packets ask for all that there is: also after a
    /// process that has died between two of these stores.
    ///
    /// # Errors
    /// [`Error::System`] if there is no waiting for a grace period.
    pub(super) fn mend(&mut self) -> Result<(), Error> {
        let current = |table| self.tables.current(service_of(table));
        let astray = self.vips.services().into_iter().filter(|(_, leads)| leads.table != NO_TABLE);
        let astray = astray.filter(|(_, leads)| current(leads.table) != Some(leads.table));
        let astray: BTreeSet<ServiceId> =
            astray.map(|(_, leads)| service_of(leads.table)).collect();
        for service in &astray {
            self.lead_again(*service)?;
        }
        if !astray.is_empty() {
            self.grace()?;
        }
        if self.vips.is_wide() {
            let word = self.control.word32(offset_of!(types::control, unusual));
            word.fetch_or(UNUSUAL_WIDE, Ordering::Release);
        }
        Ok(())
    }

    /// Where packets of a service with this table are led.
    pub(super) fn leads(&self, service: ServiceId, table: u32) -> Leads {
        let capped = self.capped.contains(&service);
        let list = self.lists.side(service);
        Leads { table, id_lengths: self.ids.lengths(service), list, capped }
    }

    /// Leads packets of a service that they find as it is to be now.
    pub(super) fn lead_again(&mut self, service: ServiceId) -> Result<(), Error> {
        let leads = self.tables.current(service).map(|table| self.leads(service, table));
        let places = self.keys.get(&service).map_or(&[][..], Vec::as_slice);
        match leads {
            Some(leads) => places.iter().try_for_each(|at| self.vips.insert(at, leads)),
            None => Ok(()),
        }
    }

    /// Takes packets of a service from these sources alone, from now on; `None`: from all. The list is
    /// written beside the one in use and seen by one store. When this returns, no packet follows the
    /// former one, and its room is free again.
    ///
    /// # Errors
    /// [`Error::Beyond`], [`Error::ListsFull`]; the former list holds then. [`Error::System`] if there is
    /// no waiting for a grace period: the new one holds, and the former one's room is not free.
    pub fn set_sources(
        &mut self,
        service: ServiceId,
        sources: Option<&SourceTable>,
    ) -> Result<(), Error> {
        self.check_service(service)?;
        if sources.map(SourceTable::digest) == self.lists.digest(service) {
            return Ok(());
        }
        let former = match sources {
            Some(sources) => self.lists.write(service, sources)?,
            None => self.lists.leave(service),
        };
        if let Err(error) = self.lead_again(service) {
            self.lists.undo(service, former);
            return Err(error);
        }
        let Some(former) = former else { return Ok(()) };
        self.grace()?;
        self.lists.release(former);
        Ok(())
    }

    /// The digest of the sources that packets of a service are taken from; `None`: all are.
    pub fn source_digest(&self, service: ServiceId) -> Option<u64> {
        self.lists.digest(service)
    }

    /// Where services are found in the data plane.
    pub fn services(&self) -> Vec<(Listen, ServiceId)> {
        let places = self.keys.iter();
        places.flat_map(|(service, all)| all.iter().map(|at| (*at, *service))).collect()
    }

    /// What packets ask if no service has their address and port, after a change of one service.
    fn set_unusual(&self, changed: ServiceId) {
        let word = self.control.word32(offset_of!(types::control, unusual));
        let (before, own) = (word.load(Ordering::Relaxed), self.unusual_of(changed));
        // Others are asked only if what the changed one has not may be gone with it.
        let all = || self.keys.keys().fold(0, |all, service| all | self.unusual_of(*service));
        let wide = if self.vips.is_wide() { UNUSUAL_WIDE } else { 0 };
        let translated = before & (UNUSUAL_NAT | UNUSUAL_NAT_ANY | UNUSUAL_FULL_NAT);
        let now = if before & !own == 0 { own } else { all() };
        word.store(now | wide | translated, Ordering::Release);
    }

    fn unusual_of(&self, service: ServiceId) -> u32 {
        let Some(places) = self.keys.get(&service) else { return 0 };
        let header = self.tables.current(service).and_then(|number| self.tables.header(number));
        let answers = header.is_some_and(|header| Flags(header.flags).has(Flags::ANSWERS));
        let any = places.iter().any(|at| at.exactness() == (128, 0));
        let any_port = if any { UNUSUAL_ANY_PORT } else { 0 };
        any_port | if answers { UNUSUAL_ANSWERS } else { 0 }
    }

    /// Publishes a table: writes it beside the one in use, then lets packets see it. A packet sees
    /// the old table or the new one, whole; when this returns, no packet sees the old one, and its
    /// room is free again.
    ///
    /// # Errors
    /// [`Error::Beyond`], [`Error::PoolFull`], [`Error::Codec`]; the old table stays then.
    pub fn publish(&mut self, service: ServiceId, image: &Image) -> Result<(), Error> {
        self.publish_with(service, image, image.header().flags())
    }

    /// As [`publish`](Self::publish), with other flags than the image's.
    ///
    /// # Errors
    /// As above.
    pub fn publish_with(
        &mut self,
        service: ServiceId,
        image: &Image,
        flags: Flags,
    ) -> Result<(), Error> {
        self.show(service, image, flags)?;
        self.grace()?;
        self.tables.release(service);
        Ok(())
    }

    /// The first half of publishing: when it returns, packets that come in follow the new table.
    /// Follow it with a grace period and [`retire`](Self::retire).
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub fn show(&mut self, service: ServiceId, image: &Image, flags: Flags) -> Result<(), Error> {
        self.check_service(service)?;
        let key = |number| self.tables.header(number).map(|header| header.key);
        let former = self.tables.current(service).and_then(key);
        let number = match self.tables.write(service, image, flags) {
            Err(Error::PoolFull { .. }) if self.make_room(service, image)? => {
                self.tables.write(service, image, flags)?
            }
            written => written?,
        };
        // Flows are watched by their hashes, which are others from here on.
        if former.as_ref() != Some(&image.header().key) {
            self.watch_all();
        }
        let seen = self.lead_to(service, number);
        match seen {
            Ok(()) => self.tables.published(number),
            Err(_) => self.tables.discard(number),
        }
        self.set_unusual(service);
        seen
    }

    /// Moves tables of other services, or this one's, out of the way of a new one for which there is enough room
    /// in sum and none in a row. Each is written a second time, and packets are led there; none reads a former
    /// place when this returns. Returns whether there is room now. A table that cannot be copied ends it, and
    /// those that packets follow elsewhere by then stay there.
    ///
    /// # Errors
    /// [`Error::System`] if there is no waiting for a grace period: both places of a table stay taken then,
    /// until its service's next one.
    fn make_room(&mut self, service: ServiceId, image: &Image) -> Result<bool, Error> {
        let Some(moves) = self.tables.moves_for(service, image.elements() as u32) else {
            return Ok(false);
        };
        // All of them, before packets follow any.
        let mut copies = Vec::new();
        for one in &moves {
            match self.tables.copy(*one) {
                Ok(Some(number)) => copies.push(number),
                Ok(None) | Err(_) => {
                    copies.iter().for_each(|number| self.tables.forget_copy(*number));
                    self.tables.scatter(service);
                    return Ok(false);
                }
            }
        }
        let mut whole = true;
        for number in copies {
            match self.lead_to(service_of(number), number) {
                Ok(()) => {
                    self.tables.published(number);
                    let bytes = self.tables.bytes_of(service_of(number));
                    self.tables.moved[0].add(bytes);
                }
                // Some of its places may lead there: they are led back.
                Err(_) => {
                    whole = false;
                    self.lead_again(service_of(number))?;
                    self.grace()?;
                    self.tables.forget_copy(number);
                }
            }
        }
        self.grace()?;
        moves.iter().for_each(|one| self.tables.leave(one.service));
        if !whole {
            self.tables.scatter(service);
        }
        Ok(whole)
    }

    /// Lets packets of a service see a table that is written.
    fn lead_to(&mut self, service: ServiceId, number: u32) -> Result<(), Error> {
        if let (Some(stamp), Some(header)) = (&mut self.stamp, self.tables.header(number)) {
            stamp.note(header.method, header.layout)?;
        }
        let leads = self.leads(service, number);
        let places = self.keys.get(&service).map_or(&[][..], Vec::as_slice);
        places.iter().try_for_each(|at| self.vips.insert(at, leads))
    }

    /// Frees a service's former table, a grace period after [`show`](Self::show).
    pub fn retire(&mut self, service: ServiceId) {
        self.tables.release(service);
    }

    /// Reads a published table back and checks its digest.
    ///
    /// # Errors
    /// [`Error::Table`] if it does not check out.
    pub fn published(&self, service: ServiceId) -> Result<Option<Image>, Error> {
        self.tables.read(service)
    }

    /// What a published table says of itself.
    pub fn described(&self, service: ServiceId) -> Option<Described> {
        let header = self.tables.header(self.tables.current(service)?)?;
        Some(Described { digest: header.digest, states: header.states })
    }

    /// Sets or clears flags of the published table, in place. Packets see them at once; a grace
    /// period later no packet has missed them. A service without a table is left alone.
    pub fn set_flags(&self, service: ServiceId, flag: u32, on: bool) {
        self.tables.set_flags(service, flag, on);
    }

    /// Bytes of the pool that published tables take, and bytes there are.
    pub fn pool_bytes(&self) -> (usize, usize) {
        self.tables.bytes()
    }

    /// Tables that were written a second time since the start: within this memory, and into other memory.
    pub fn tables_moved(&self) -> [TablesMoved; 2] {
        self.tables.moved
    }

    /// Bytes of a service's published table: header, slots and cells.
    pub fn table_bytes(&self, service: ServiceId) -> usize {
        self.tables.bytes_of(service)
    }

    /// Sets a backend's entry.
    ///
    /// # Errors
    /// [`Error::Beyond`].
    pub fn set_backend(&self, backend: BackendId, entry: &BackendEntry) -> Result<(), Error> {
        if u32::from(backend.get()) >= self.sizes.backends {
            return Err(Error::Beyond {
                what: "backend",
                number: backend.get().into(),
                limit: self.sizes.backends,
            });
        }
        let last = offset_of!(types::backend, flags);
        let (before, now) = (self.is_behind_tunnel(backend.index()), entry.tunnel().is_some());
        let tunnels = self.control.word32(offset_of!(types::control, tunnels));
        if now && !before {
            tunnels.fetch_add(1, Ordering::Release);
        }
        self.backends.store_record(backend.index(), &types::backend::from(entry), last);
        if before && !now {
            tunnels.fetch_sub(1, Ordering::Release);
        }
        Ok(())
    }

    fn is_behind_tunnel(&self, backend: usize) -> bool {
        const AT: usize = offset_of!(types::backend, tunnel);
        let word = self.backends.word32(backend * size_of::<types::backend>() + (AT & !3));
        let kind = word.load(Ordering::Relaxed).to_ne_bytes()[AT & 3];
        (TUNNEL_NONE + 1..TUNNEL_NAT).contains(&kind)
    }

    /// Counts the backends behind tunnels. A control plane may have died between an entry and its count.
    pub(super) fn count_tunnels(&self) {
        let all = 0..self.sizes.backends as usize;
        let tunnels = all.filter(|backend| self.is_behind_tunnel(*backend)).count() as u32;
        self.control.word32(offset_of!(types::control, tunnels)).store(tunnels, Ordering::Release);
    }

    /// What packets find of a backend: its addresses and flags.
    pub fn backend(&self, backend: BackendId) -> BackendEntry {
        self.backends.load_record::<types::backend>(backend.index()).into()
    }

    pub(super) fn check_service(&self, service: ServiceId) -> Result<(), Error> {
        if service.0 >= self.sizes.services {
            let limit = self.sizes.services;
            return Err(Error::Beyond { what: "service", number: service.0, limit });
        }
        Ok(())
    }
}
