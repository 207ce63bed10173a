//! Services, their tables and backends, as packets see them.

use super::{KernelPlane, grace};
use crate::abi::{BackendEntry, types};
use crate::error::Error;
use crate::vips::NO_TABLE;
use std::mem::offset_of;
use std::sync::atomic::Ordering;
use weir_plane::VipKey;
use weir_steering::{Flags, Image};

impl KernelPlane {
    /// Lets packets find a service, with the table that it has. Until the first table is published
    /// its packets are dropped as [`Reason::NoTable`](weir_wire::Reason::NoTable).
    ///
    /// # Errors
    /// [`Error::Beyond`], [`Error::ServicesFull`].
    pub fn set_service(&mut self, key: &VipKey, service: u32) -> Result<(), Error> {
        self.check_service(service)?;
        let table = self.tables.current(service).unwrap_or(NO_TABLE);
        self.vips.insert(key, table)?;
        self.keys.insert(service, *key);
        self.set_any_port();
        Ok(())
    }

    /// Removes a service and its table; its packets go to the kernel from now on.
    ///
    /// # Errors
    /// [`Error::System`] if there is no waiting for a grace period.
    pub fn remove_service(&mut self, service: u32) -> Result<(), Error> {
        if let Some(key) = self.keys.remove(&service) {
            self.vips.remove(&key);
            self.set_any_port();
            grace()?;
        }
        self.tables.remove(service);
        Ok(())
    }

    /// The services in the data plane, by number.
    pub fn services(&self) -> Vec<(VipKey, u32)> {
        self.keys.iter().map(|(service, key)| (*key, *service)).collect()
    }

    fn set_any_port(&self) {
        let any = self.vips.services().iter().any(|(key, _)| key.port.is_none());
        let word = self.control.word32(offset_of!(types::control, any_port));
        word.store(any.into(), Ordering::Relaxed);
    }

    /// Publishes a table: writes it beside the one in use, then lets packets see it. A packet sees
    /// the old table or the new one, whole; when this returns, no packet sees the old one, and its
    /// room is free again.
    ///
    /// # Errors
    /// [`Error::Beyond`], [`Error::PoolFull`], [`Error::Codec`]; the old table stays then.
    pub fn publish(&mut self, service: u32, image: &Image) -> Result<(), Error> {
        self.publish_with(service, image, image.header().flags())
    }

    /// As [`publish`](Self::publish), with other flags than the image's.
    ///
    /// # Errors
    /// As above.
    pub fn publish_with(&mut self, service: u32, image: &Image, flags: Flags) -> Result<(), Error> {
        self.show(service, image, flags)?;
        grace()?;
        self.tables.release(service);
        Ok(())
    }

    /// The first half of publishing: when it returns, packets that come in follow the new table.
    /// Follow it with [`grace`] and [`retire`](Self::retire).
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub fn show(&mut self, service: u32, image: &Image, flags: Flags) -> Result<(), Error> {
        self.check_service(service)?;
        let number = self.tables.write(service, image, flags)?;
        let seen = self.lead_to(service, number);
        match seen {
            Ok(()) => self.tables.published(number),
            Err(_) => self.tables.discard(number),
        }
        seen
    }

    /// Lets packets of a service see a table that is written.
    fn lead_to(&mut self, service: u32, number: u32) -> Result<(), Error> {
        if let (Some(stamp), Some(header)) = (&mut self.stamp, self.tables.header(number)) {
            stamp.note(header.method, header.layout)?;
        }
        match self.keys.get(&service) {
            Some(key) => self.vips.insert(key, number),
            None => Ok(()),
        }
    }

    /// Frees a service's former table, a grace period after [`show`](Self::show).
    pub fn retire(&mut self, service: u32) {
        self.tables.release(service);
    }

    /// Reads a published table back and checks its digest.
    ///
    /// # Errors
    /// [`Error::Table`] if it does not check out.
    pub fn published(&self, service: u32) -> Result<Option<Image>, Error> {
        self.tables.read(service).transpose().map_err(|source| Error::Table { service, source })
    }

    /// Sets or clears flags of the published table, in place. Packets see them at once; a grace
    /// period later no packet has missed them. A service without a table is left alone.
    pub fn set_flags(&self, service: u32, flag: u32, on: bool) {
        self.tables.set_flags(service, flag, on);
    }

    /// Bytes of the pool that published tables take, and bytes there are.
    pub fn pool_bytes(&self) -> (usize, usize) {
        self.tables.bytes()
    }

    /// Bytes of a service's published table: header, slots and cells.
    pub fn table_bytes(&self, service: u32) -> usize {
        self.tables.bytes_of(service)
    }

    /// Sets a backend's entry.
    ///
    /// # Errors
    /// [`Error::Beyond`].
    pub fn set_backend(&self, backend: u16, entry: &BackendEntry) -> Result<(), Error> {
        if u32::from(backend) >= self.sizes.backends {
            return Err(Error::Beyond {
                what: "backend",
                number: backend.into(),
                limit: self.sizes.backends,
            });
        }
        let last = offset_of!(types::backend, flags);
        self.backends.store_record(usize::from(backend), &types::backend::from(entry), last);
        Ok(())
    }

    /// What packets find of a backend: its addresses and flags.
    pub fn backend(&self, backend: u16) -> BackendEntry {
        self.backends.load_record::<types::backend>(usize::from(backend)).into()
    }

    fn check_service(&self, service: u32) -> Result<(), Error> {
        if service >= self.sizes.services {
            let limit = self.sizes.services;
            return Err(Error::Beyond { what: "service", number: service, limit });
        }
        Ok(())
    }
}
