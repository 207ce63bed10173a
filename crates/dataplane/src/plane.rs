//! The data plane in the kernel, as updates drive it.

use crate::abi::{BackendEntry, BackendFlags};
use crate::error::Error;
use crate::kernel::{self, KernelPlane, ResizeStep};
use crate::link::XdpMode;
use crate::reports::Reports;
use std::sync::Arc;
use std::time::Duration;
use weir_plane::forward::NextHop;
use weir_plane::{
    Attached, Attachment, Backend, Device, Hop, LaneCounters, Limits, Outcomes, Plane, SeenFlows,
    VipKey,
};
use weir_steering::{Event, Flags, Image, Marks, ServiceState, Side, TrackedFlow, update};
use weir_wire::{FlowKey, unmap_address};

/// The data plane in the kernel with the one consumer of its reports.
pub struct LivePlane {
    /// Programs and maps.
    pub kernel: KernelPlane,
    /// The ring, and the map behind it.
    pub reports: Reports,
}

impl LivePlane {
    /// Becomes the consumer of a data plane's reports.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn new(kernel: KernelPlane) -> Result<Self, Error> {
        let reports = kernel.reports()?;
        Ok(Self { kernel, reports })
    }

    /// As [`Plane::resize`], and ends after a step, as a control plane that is killed.
    ///
    /// # Errors
    /// As [`Plane::resize`].
    #[doc(hidden)]
    pub fn resize_until(&mut self, limits: &Limits, last: ResizeStep) -> Result<(), Error> {
        self.kernel.resize(limits, Some(last)).map(drop)
    }

    /// Reports in memory whose place this one has taken come before all others; then nothing is
    /// left in it.
    fn settle(&mut self, take: &mut dyn FnMut(&Event)) -> Result<(), Error> {
        self.kernel.arrive()?;
        if let Some(reports) = self.kernel.former_reports()? {
            reports.take_all(take)?;
        }
        self.kernel.forget_former()
    }
}

impl std::ops::Deref for LivePlane {
    type Target = KernelPlane;

    fn deref(&self) -> &KernelPlane {
        &self.kernel
    }
}

impl std::ops::DerefMut for LivePlane {
    fn deref_mut(&mut self) -> &mut KernelPlane {
        &mut self.kernel
    }
}

impl update::Plane for LivePlane {
    type Error = Error;

    fn is_full(error: &Error) -> bool {
        match error {
            Error::PoolFull { .. } | Error::PinsFull { .. } => true,
            // A hash map without room answers E2BIG.
            Error::Bpf { source, .. } => source.kind() == libbpf_rs::ErrorKind::TooBig,
            _ => false,
        }
    }

    fn set_flags(&mut self, service: u32, record: bool, pending: bool) -> Result<(), Error> {
        self.kernel.set_flags(service, Flags::RECORD, record);
        self.kernel.set_flags(service, Flags::PENDING, pending);
        Ok(())
    }

    fn grace(&mut self) -> Result<(), Error> {
        self.kernel.arrive()?;
        kernel::grace()
    }

    /// The ring, then what it had no room for.
    fn drain(&mut self, take: &mut dyn FnMut(&Event)) -> Result<(), Error> {
        self.settle(take)?;
        self.reports.drain(|event| take(&event))?;
        self.put_aside(usize::MAX, take).map(drop)
    }

    fn pending(&self) -> Result<Vec<(ServiceState, u16)>, Error> {
        self.kernel.pending()
    }

    fn forget_pending(&mut self, states: &[ServiceState]) -> Result<(), Error> {
        self.kernel.forget_pending(states)
    }

    fn pinned(&self) -> Result<Vec<(ServiceState, u16)>, Error> {
        self.kernel.pinned()
    }

    fn pin(&mut self, pins: &[(ServiceState, u16)]) -> Result<(), Error> {
        self.kernel.pin(pins)
    }

    fn unpin(&mut self, states: &[ServiceState]) -> Result<(), Error> {
        self.kernel.unpin(states)
    }

    fn show(&mut self, service: u32, image: &Arc<Image>, flags: Flags) -> Result<(), Error> {
        self.kernel.show(service, image, flags)
    }

    fn retire(&mut self, service: u32) {
        self.kernel.retire(service);
    }

    fn forget_seen(&mut self, service: u32, hashes: &[u64]) {
        self.kernel.forget_seen(service, hashes.iter().copied());
    }
}

impl From<&Backend> for BackendEntry {
    fn from(backend: &Backend) -> Self {
        let entry = Self::new(backend.address, backend.incarnation).with_health(backend.up);
        match backend.hop {
            Some(Hop { next, ifindex }) => {
                entry.with_next_hop(next.mac, next.source_mac, ifindex, false)
            }
            None => entry,
        }
    }
}

impl BackendEntry {
    /// What it says of a backend; `None` if there is none.
    fn backend(&self) -> Option<Backend> {
        let has = |flag| self.flags & flag != 0;
        has(BackendFlags::PRESENT).then(|| Backend {
            address: unmap_address(&self.address),
            incarnation: self.incarnation,
            up: !has(BackendFlags::DOWN),
            hop: has(BackendFlags::HAS_MAC).then_some(Hop {
                next: NextHop { mac: self.mac, source_mac: self.source_mac },
                ifindex: self.ifindex,
            }),
        })
    }
}

impl Plane for LivePlane {
    fn wait(
        &mut self,
        limit: Duration,
        most: usize,
        take: &mut dyn FnMut(&Event),
    ) -> Result<(), Error> {
        self.settle(take)?;
        self.reports.wait(limit, most, |event| take(&event))
    }

    fn put_aside(&mut self, most: usize, take: &mut dyn FnMut(&Event)) -> Result<bool, Error> {
        self.settle(take)?;
        let flows = self.reports.take_unreported(most)?;
        flows.iter().for_each(take);
        self.reports.forget_unreported(&flows)?;
        Ok(flows.len() >= most)
    }

    fn pin_limit(&self) -> usize {
        self.kernel.pin_limit()
    }

    fn limits(&self) -> Limits {
        self.kernel.limits()
    }

    fn resize(&mut self, limits: &Limits) -> Result<(), Error> {
        if let Some(reports) = self.kernel.resize(limits, None)? {
            self.reports = reports;
            // It reads the service table, which may be another now. Without it nothing else differs.
            let _ = self.kernel.guard();
        }
        Ok(())
    }

    fn set_service(&mut self, key: &VipKey, service: u32) -> Result<(), Error> {
        self.kernel.set_service(key, service)
    }

    fn remove_service(&mut self, service: u32) -> Result<(), Error> {
        self.kernel.remove_service(service)
    }

    fn services(&self) -> Vec<(VipKey, u32)> {
        self.kernel.services()
    }

    fn published(&self, service: u32) -> Result<Option<Image>, Error> {
        self.kernel.published(service)
    }

    fn table_bytes(&self, service: u32) -> usize {
        self.kernel.table_bytes(service)
    }

    fn pool_bytes(&self) -> (usize, usize) {
        self.kernel.pool_bytes()
    }

    fn set_backend(&mut self, id: u16, backend: Option<&Backend>) -> Result<(), Error> {
        self.kernel.set_backend(id, &backend.map_or_else(BackendEntry::default, Into::into))
    }

    fn backend(&self, id: u16) -> Option<Backend> {
        self.kernel.backend(id).backend()
    }

    fn reset_lane(&mut self, id: u16) -> Result<(), Error> {
        self.kernel.reset_lane(id)
    }

    fn lane(&self, id: u16) -> Result<LaneCounters, Error> {
        self.kernel.lane(id)
    }

    fn outcomes(&self) -> Result<Outcomes, Error> {
        self.kernel.outcomes()
    }

    fn unrecorded(&self) -> u64 {
        self.kernel.unrecorded()
    }

    fn pending_backend(&self, state: &ServiceState) -> Result<Option<u16>, Error> {
        self.kernel.pending_backend(state)
    }

    fn connection(&self, flow: &FlowKey) -> Result<Option<TrackedFlow>, Error> {
        self.kernel.connection(flow)
    }

    fn flip_marks(&mut self, known: &mut dyn Iterator<Item = u64>, flows: usize) -> Side {
        self.kernel.flip_marks(known, flows)
    }

    fn take_marks(&mut self, side: Side) -> Marks {
        self.kernel.take_marks(side)
    }

    fn is_armed(&self, hash: u64) -> bool {
        self.kernel.is_armed(hash)
    }

    fn seen_flows(&self) -> SeenFlows {
        self.kernel.seen_flows()
    }

    fn next_seen_generation(&mut self) {
        self.kernel.next_seen_generation();
    }

    fn accept_own_macs(&mut self, interfaces: &[String]) -> Result<(), Error> {
        self.kernel.accept_own_macs(interfaces);
        Ok(())
    }

    fn attach(&mut self, interfaces: &[String], how: Attachment) -> Result<Vec<Attached>, Error> {
        Ok(named(self.kernel.attach(interfaces, mode_of(how))?))
    }

    fn reattach(&mut self, interfaces: &[String], how: Attachment) -> Result<Vec<Attached>, Error> {
        Ok(named(self.kernel.reattach(interfaces, mode_of(how))?))
    }

    fn set_devices(&mut self, devices: &[Device]) -> Result<(), Error> {
        self.kernel.set_devices(devices)
    }

    fn forget_hop(&mut self, backend: u16) -> Result<(), Error> {
        self.kernel.forget_hop(backend)
    }
}

fn mode_of(how: Attachment) -> XdpMode {
    match how {
        Attachment::Auto => XdpMode::Auto,
        Attachment::Native => XdpMode::Native,
        Attachment::Generic => XdpMode::Generic,
    }
}

fn named(attached: Vec<crate::Attached>) -> Vec<Attached> {
    let one = |a: crate::Attached| Attached { interface: a.interface.name, generic: a.generic };
    attached.into_iter().map(one).collect()
}
