//! The data plane in the kernel, as updates drive it.

use crate::abi::{BackendEntry, BackendFlags};
use crate::error::Error;
use crate::kernel::{KernelPlane, ResizeStep};
use crate::link::XdpMode;
use crate::reports::Reports;
use std::any::Any;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weir_plane::forward::{Mapping, MappingRules, NextHop};
use weir_plane::{
    ArmedFlows, Attached, Attachment, Backend, CappedFlows, Described, Device, FlowCaps, FlowRoom,
    HeldCounts, Hop, IdOutcomes, IdRoutes, InterfaceCounters, LaneCounters, Limits, Listen,
    Outcomes, Plane, PrepareResize, PrepareTrace, ReadConnections, Returned, Samples, SeenFlows,
    SourceTable, TablesMoved, TakenAway, TooManyMacs, TraceCounts, TrackedFlows, Translations,
    UserStatus, Wanted,
};
use weir_steering::cheetah::SlotCounts;
use weir_steering::{
    BackendId, BackendLoad, Echoes, Event, Flags, Image, Marks, Question, ServiceId, ServiceState,
    Side, TrackedFlow, update, update::Draining,
};
use weir_wire::{FlowKey, unmap_address};

/// Reports that are taken in one part: some milliseconds' worth.
const REPORTS_AT_A_TIME: usize = 8192;

/// The data plane in the kernel with the one consumer of its reports.
pub struct LivePlane {
    /// Programs and maps.
    pub kernel: KernelPlane,
    /// The ring, and the map behind it.
    pub reports: Reports,
    /// Why the guard reads a table of services that is not filled any more, if it does.
    stale_guard: Option<String>,
    /// Whether there was a guard at the start: where the kernel cannot, there is none.
    guarded: bool,
}

impl LivePlane {
    /// Becomes the consumer of a data plane's reports.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn new(kernel: KernelPlane) -> Result<Self, Error> {
        let reports = kernel.reports()?;
        let guarded = kernel.is_wholly_guarded();
        Ok(Self { kernel, reports, stale_guard: None, guarded })
    }

    /// As [`Plane::resize`], and ends after a step, as a control plane that is killed.
    ///
    /// # Errors
    /// As [`Plane::resize`].
    #[doc(hidden)]
    pub fn resize_until(&mut self, limits: &Limits, last: ResizeStep) -> Result<(), Error> {
        self.kernel.resize(limits, Some(last)).map(drop)
    }

    /// The memory may be another.
    fn resized(&mut self, reports: Option<Reports>) {
        if let Some(reports) = reports {
            self.reports = reports;
            self.guard_anew();
        }
    }

    /// The guard reads the service table, which may be another now. Where there was none, as the kernel cannot, there
    /// is none, and that was said at the start.
    fn guard_anew(&mut self) {
        let guarded = self.kernel.is_guarded();
        self.stale_guard = match self.kernel.guard() {
            Err(error) if guarded => Some(error.to_string()),
            _ => None,
        };
    }

    /// The guard ends with the process, if its pins are gone.
    fn lacks_guard(&self) -> bool {
        self.guarded && !self.kernel.is_wholly_guarded()
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

    fn set_flags(&mut self, service: ServiceId, record: bool, pending: bool) -> Result<(), Error> {
        self.kernel.set_flags(service, Flags::RECORD, record);
        self.kernel.set_flags(service, Flags::PENDING, pending);
        Ok(())
    }

    fn freeze(&mut self, service: ServiceId, frozen: bool) -> Result<(), Error> {
        self.kernel.set_flags(service, Flags::FROZEN, frozen);
        Ok(())
    }

    fn grace(&mut self) -> Result<(), Error> {
        self.kernel.arrive()?;
        self.kernel.grace()
    }

    fn drain(&mut self, take: &mut dyn FnMut(&Event)) -> Result<(), Error> {
        let mut draining = Draining::default();
        while self.drain_part(&mut draining, take)? {}
        Ok(())
    }

    /// The ring, then what it had no room for.
    fn drain_part(
        &mut self,
        draining: &mut Draining,
        take: &mut dyn FnMut(&Event),
    ) -> Result<bool, Error> {
        self.settle(take)?;
        if draining.left != Some(0) {
            self.reports.drain_part(&mut draining.left, REPORTS_AT_A_TIME, |event| take(&event))?;
            return Ok(true);
        }
        let begins = draining.aside.is_none();
        let (flows, next) = self.reports.part_of_unreported(draining.aside, REPORTS_AT_A_TIME)?;
        flows.iter().for_each(take);
        self.reports.forget_unreported(&flows)?;
        if !flows.is_empty() {
            self.kernel.forget_untold(&flows, begins && next.is_none());
        }
        draining.aside = next;
        Ok(next.is_some())
    }

    fn pending(&self) -> Result<Vec<(ServiceState, BackendId)>, Error> {
        self.kernel.pending()
    }

    fn forget_pending(&mut self, states: &[ServiceState]) -> Result<(), Error> {
        self.kernel.forget_pending(states)
    }

    fn pinned(&self) -> Result<Vec<(ServiceState, BackendId)>, Error> {
        self.kernel.pinned()
    }

    fn pin(&mut self, pins: &[(ServiceState, BackendId)]) -> Result<(), Error> {
        self.kernel.pin(pins)
    }

    fn unpin(&mut self, states: &[ServiceState]) -> Result<(), Error> {
        self.kernel.unpin(states)
    }

    fn connections(&self, service: ServiceId) -> Result<Vec<(ServiceState, TrackedFlow)>, Error> {
        self.kernel.connections(service)
    }

    fn track(&mut self, connections: &[(ServiceState, BackendId)]) -> Result<(), Error> {
        self.kernel.take_over(connections)
    }

    fn show(&mut self, service: ServiceId, image: &Arc<Image>, flags: Flags) -> Result<(), Error> {
        self.kernel.show(service, image, flags)
    }

    fn retire(&mut self, service: ServiceId) {
        self.kernel.retire(service);
    }

    fn forget_seen(&mut self, service: ServiceId, hashes: &[u64]) {
        // Without, the flows are not reported before they have been silent for a while.
        let _ = self.kernel.forget_seen(service, hashes);
    }
}

impl From<&Backend> for BackendEntry {
    fn from(backend: &Backend) -> Self {
        let entry = Self::new(backend.address, backend.incarnation).with_health(backend.up);
        let entry = match (&backend.tunnel, &backend.translation) {
            (Some(tunnel), _) => entry.with_tunnel(tunnel),
            (None, Some(translation)) => entry.with_translation(translation),
            (None, None) => entry,
        };
        let entry = entry.with_segments(backend.segments).with_resets(backend.resets);
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
    pub(crate) fn backend(&self) -> Option<Backend> {
        let has = |flag| self.flags & flag != 0;
        has(BackendFlags::PRESENT).then(|| Backend {
            address: unmap_address(&self.address),
            incarnation: self.incarnation,
            up: !has(BackendFlags::DOWN),
            resets: has(BackendFlags::RESETS),
            hop: has(BackendFlags::HAS_MAC).then_some(Hop {
                next: NextHop { mac: self.mac, source_mac: self.source_mac },
                ifindex: self.ifindex,
            }),
            tunnel: self.tunnel(),
            translation: self.translation(),
            segments: self.segments(),
        })
    }
}

impl Plane for LivePlane {
    fn go_on_guarding(&mut self) -> Option<String> {
        if self.stale_guard.is_some() {
            self.guard_anew();
        }
        self.stale_guard.clone()
    }

    fn wait(
        &mut self,
        limit: Duration,
        wake: Option<BorrowedFd<'_>>,
        most: usize,
        take: &mut dyn FnMut(&Event),
    ) -> Result<(), Error> {
        self.settle(take)?;
        self.reports.wait(limit, wake, most, |event| take(&event))
    }

    fn put_aside(&mut self, most: usize, take: &mut dyn FnMut(&Event)) -> Result<bool, Error> {
        self.settle(take)?;
        let flows = self.reports.take_unreported(most)?;
        flows.iter().for_each(take);
        self.reports.forget_unreported(&flows)?;
        let more = flows.len() >= most;
        if !flows.is_empty() {
            self.kernel.forget_untold(&flows, !more);
        }
        Ok(more)
    }

    fn pin_limit(&self) -> usize {
        self.kernel.pin_limit()
    }

    fn limits(&self) -> Limits {
        self.kernel.limits()
    }

    fn marked_by(&self, limits: &Limits) -> u32 {
        self.kernel.marked_by(limits)
    }

    fn resize(&mut self, limits: &Limits) -> Result<(), Error> {
        let reports = self.kernel.resize(limits, None)?;
        self.resized(reports);
        Ok(())
    }

    fn fits_into(&self, limits: &Limits) -> Result<(), Error> {
        self.kernel.fits_into(limits)
    }

    fn prepare_resize(&self, limits: &Limits) -> Result<Option<PrepareResize<Error>>, Error> {
        let Some(making) = self.kernel.making(limits)? else { return Ok(None) };
        Ok(Some(Box::new(|| Ok(Box::new(making.make()?) as Box<dyn Any + Send>))))
    }

    fn prepare_packing(&mut self) -> Result<Option<PrepareResize<Error>>, Error> {
        let Some(making) = self.kernel.packing()? else { return Ok(None) };
        Ok(Some(Box::new(|| Ok(Box::new(making.make()?) as Box<dyn Any + Send>))))
    }

    fn read_connections(
        &self,
        service: ServiceId,
    ) -> Result<Option<ReadConnections<Error>>, Error> {
        self.kernel.read_connections(service).map(Some)
    }

    fn resize_prepared(
        &mut self,
        limits: &Limits,
        prepared: Box<dyn Any + Send>,
    ) -> Result<(), Error> {
        let Ok(made) = prepared.downcast() else { return self.resize(limits) };
        let reports = self.kernel.take_place(*made, None)?;
        self.resized(reports);
        Ok(())
    }

    fn set_service(&mut self, at: impl Into<Listen>, service: ServiceId) -> Result<(), Error> {
        self.kernel.set_service(at, service)
    }

    fn leave_place(&mut self, at: &Listen, service: ServiceId) -> Result<(), Error> {
        self.kernel.leave_place(at, service)
    }

    fn remove_service(&mut self, service: ServiceId) -> Result<(), Error> {
        self.kernel.remove_service(service)
    }

    fn set_id_routes(
        &mut self,
        service: ServiceId,
        routes: Option<&IdRoutes>,
    ) -> Result<(), Error> {
        self.kernel.set_id_routes(service, routes)
    }

    fn set_sources(
        &mut self,
        service: ServiceId,
        sources: Option<&SourceTable>,
    ) -> Result<(), Error> {
        self.kernel.set_sources(service, sources)
    }

    fn source_digest(&self, service: ServiceId) -> Option<u64> {
        self.kernel.source_digest(service)
    }

    fn set_flow_caps(&mut self, service: ServiceId, caps: Option<&FlowCaps>) -> Result<(), Error> {
        self.kernel.set_flow_caps(service, caps)
    }

    fn flow_caps(&self, service: ServiceId) -> Option<FlowCaps> {
        self.kernel.flow_caps(service)
    }

    fn flow_room(&self, service: ServiceId, source: &[u8; 16]) -> Result<Option<FlowRoom>, Error> {
        self.kernel.flow_room(service, source)
    }

    fn capped_flows(&self, service: ServiceId) -> CappedFlows {
        self.kernel.capped_flows(service)
    }

    fn held(&self) -> Result<HeldCounts, Error> {
        self.kernel.held()
    }

    fn correct_held(
        &mut self,
        before: &HeldCounts,
        counted: &HeldCounts,
        lasts: Duration,
    ) -> Result<(), Error> {
        self.kernel.correct_held(before, counted, lasts)
    }

    fn release_held(&mut self, ended: &[ServiceState]) -> Result<(), Error> {
        self.kernel.release_held(ended)
    }

    fn set_translations(&mut self, wanted: &Translations) -> Result<(), Error> {
        self.kernel.set_translations(wanted)
    }

    fn set_mapping_rules(&mut self, rules: &MappingRules) -> Result<(), Error> {
        self.kernel.set_mapping_rules(rules)
    }

    fn mapping_rules(&self) -> Option<MappingRules> {
        self.kernel.mapping_rules()
    }

    fn mapping_places(&self) -> usize {
        self.kernel.mapping_places()
    }

    fn mapping(&self, place: usize) -> Option<Mapping> {
        self.kernel.mapping(place)
    }

    fn mapping_tick(&self) -> u32 {
        self.kernel.mapping_tick()
    }

    fn returned(&self) -> Result<Returned, Error> {
        self.kernel.returned()
    }

    fn id_outcomes(&self) -> Result<IdOutcomes, Error> {
        self.kernel.id_outcomes()
    }

    fn services(&self) -> Vec<(Listen, ServiceId)> {
        self.kernel.services()
    }

    fn published(&self, service: ServiceId) -> Result<Option<Image>, Error> {
        self.kernel.published(service)
    }

    fn described(&self, service: ServiceId) -> Result<Option<Described>, Error> {
        Ok(self.kernel.described(service))
    }

    fn table_bytes(&self, service: ServiceId) -> usize {
        self.kernel.table_bytes(service)
    }

    fn pool_bytes(&self) -> (usize, usize) {
        self.kernel.pool_bytes()
    }

    fn tables_moved(&self) -> [TablesMoved; 2] {
        self.kernel.tables_moved()
    }

    fn set_backend(&mut self, id: BackendId, backend: Option<&Backend>) -> Result<(), Error> {
        self.kernel.set_backend(id, &backend.map_or_else(BackendEntry::default, Into::into))
    }

    fn backend(&self, id: BackendId) -> Option<Backend> {
        self.kernel.backend(id).backend()
    }

    fn load(&self, id: BackendId) -> BackendLoad {
        self.kernel.load(id)
    }

    fn set_load(&mut self, id: BackendId, weight: u32, value: Option<i64>) {
        self.kernel.set_load(id, weight, value);
    }

    fn add_load(&mut self, id: BackendId, by: i64) {
        self.kernel.add_load(id, by);
    }

    fn open_connections(&self, service: ServiceId) -> Result<BTreeMap<BackendId, i64>, Error> {
        self.kernel.open_connections(service)
    }

    fn turn(&self, service: ServiceId) -> u64 {
        self.kernel.turn(service)
    }

    fn reset_lane(&mut self, id: BackendId) -> Result<(), Error> {
        self.kernel.set_load(id, 0, Some(0));
        self.kernel.forget_echoes(id);
        self.kernel.reset_lane(id)
    }

    fn lanes(&self) -> Result<Vec<LaneCounters>, Error> {
        self.kernel.lanes()
    }

    fn outcomes(&self) -> Result<Outcomes, Error> {
        self.kernel.outcomes()
    }

    fn unrecorded(&self) -> u64 {
        self.kernel.unrecorded()
    }

    fn pending_backend(&self, state: &ServiceState) -> Result<Option<BackendId>, Error> {
        self.kernel.pending_backend(state)
    }

    fn forget_connections(&mut self, service: ServiceId) -> Result<(), Error> {
        self.kernel.forget_connections(service)
    }

    fn tracked_flows(&self, service: ServiceId) -> Result<TrackedFlows, Error> {
        self.kernel.tracked_flows(service)
    }

    fn connection(&self, flow: &FlowKey) -> Result<Option<TrackedFlow>, Error> {
        self.kernel.connection(flow)
    }

    fn answered(&self, flow: &FlowKey) -> Result<Option<u16>, Error> {
        self.kernel.answered(flow)
    }

    fn has_answered(&self, service: ServiceId) -> Result<Option<bool>, Error> {
        self.kernel.has_answered(service)
    }

    fn set_clock(&mut self, seconds: u32) {
        self.kernel.set_clock(seconds);
    }

    fn bare(&self) -> u32 {
        self.kernel.bare()
    }

    fn echoes(&self, id: BackendId) -> Echoes {
        self.kernel.echoes(id)
    }

    fn clock(&self) -> u32 {
        self.kernel.clock()
    }

    fn slot(&self, question: &Question, part: u16) -> Result<Option<BackendId>, Error> {
        self.kernel.slot(question.service, question.hash, part)
    }

    fn slot_counts(&self, service: ServiceId) -> Option<SlotCounts> {
        self.kernel.slot_counts(service)
    }

    fn sweep_slots(
        &mut self,
        service: ServiceId,
        steps: u32,
        keep: &dyn Fn(BackendId) -> bool,
    ) -> Result<u32, Error> {
        self.kernel.sweep_slots(service, steps, keep)
    }

    fn flip_marks(
        &mut self,
        known: &mut dyn Iterator<Item = u64>,
        flows: usize,
    ) -> Result<Side, Error> {
        // What was marked in memory that goes belongs to the marks before.
        self.kernel.arrive()?;
        self.kernel.flip_marks(known, flows)
    }

    fn watch(&mut self, due: &mut dyn Iterator<Item = u64>) -> Result<(), Error> {
        self.kernel.watch(due)
    }

    fn are_marked(&self, hashes: &[u64]) -> Result<Vec<bool>, Error> {
        self.kernel.are_marked(hashes)
    }

    fn take_marks(&mut self, side: Side) -> Result<Marks, Error> {
        self.kernel.arrive()?;
        self.kernel.take_marks(side)
    }

    fn is_armed(&self, hash: u64) -> Result<bool, Error> {
        self.kernel.is_armed(hash)
    }

    fn armed(&self) -> Result<ArmedFlows, Error> {
        self.kernel.armed()
    }

    fn seen_flows(&self, before: bool) -> Result<SeenFlows, Error> {
        self.kernel.seen_flows(before)
    }

    fn is_seen(&self, hash: u64, service: ServiceId) -> Result<bool, Error> {
        self.kernel.is_seen(hash, service)
    }

    fn next_seen_generation(&mut self) {
        // Where it cannot be mapped the generation goes on, until it can.
        let _ = self.kernel.next_seen_generation();
    }

    fn prepare_trace(&self) -> Result<Option<PrepareTrace>, Error> {
        let load = self.kernel.trace_program()?;
        Ok(Some(Box::new(|| match load() {
            Ok(program) => Ok(Box::new(program) as Box<dyn Any + Send>),
            Err(error) => Err(error.into()),
        })))
    }

    fn trace(
        &mut self,
        prepared: Box<dyn Any + Send>,
        wanted: &Wanted,
    ) -> Result<Option<Box<dyn Samples>>, Error> {
        match prepared.downcast() {
            Ok(program) => self.kernel.trace(*program, wanted).map(Some),
            Err(_) => Ok(None),
        }
    }

    fn keep_tracing(&mut self) -> Result<Option<TraceCounts>, Error> {
        self.kernel.keep_tracing()
    }

    fn end_trace(&mut self) -> Result<(), Error> {
        self.kernel.end_trace()
    }

    fn lost(&self) -> Result<Option<BTreeMap<u32, u64>>, Error> {
        self.kernel.lost()
    }

    fn interfaces(&self) -> Result<Option<BTreeMap<u32, InterfaceCounters>>, Error> {
        self.kernel.interfaces()
    }

    fn accept_own_macs(&mut self, interfaces: &[String]) -> Result<Option<TooManyMacs>, Error> {
        Ok(self.kernel.accept_own_macs(interfaces))
    }

    fn hand_on(&mut self, program: Option<&Path>) -> Result<(), Error> {
        self.kernel.hand_on(program)
    }

    fn hand_on_as_before(&mut self) -> Result<bool, Error> {
        self.kernel.hand_on_as_before()
    }

    fn attach(&mut self, interfaces: &[String], how: Attachment) -> Result<Vec<Attached>, Error> {
        Ok(named(self.kernel.attach(interfaces, mode_of(how))?))
    }

    fn reattach(&mut self, interfaces: &[String], how: Attachment) -> Result<Vec<Attached>, Error> {
        Ok(named(self.kernel.reattach(interfaces, mode_of(how))?))
    }

    fn taken_away(&self, interfaces: &[String]) -> TakenAway {
        let mut taken = self.kernel.taken_away(interfaces);
        taken.guard = if self.lacks_guard() {
            Some("its pin was removed".into())
        } else {
            self.kernel.is_guard_detached().then(|| "it was detached".into())
        };
        taken
    }

    fn put_back(&mut self) -> Result<(), Error> {
        self.kernel.put_back()?;
        let detached = self.kernel.is_guard_detached();
        if detached || self.lacks_guard() {
            if detached { self.kernel.guard() } else { self.kernel.guard_again() }?;
            self.stale_guard = None;
        }
        Ok(())
    }

    fn set_devices(&mut self, devices: &[Device]) -> Result<(), Error> {
        self.kernel.set_devices(devices)
    }

    fn limit_of(error: &Error) -> Option<&'static str> {
        match error {
            Error::TooSmall { limit, .. } => Some(limit),
            Error::ServicesFull => Some("services"),
            Error::PoolFull { .. } | Error::NoMemory { .. } => Some("table_bytes"),
            Error::ListsFull { .. } => Some("list_prefixes"),
            Error::SlotsFull { .. } => Some("slot_partitions"),
            Error::PinsFull { .. } => Some("unreported_flows"),
            _ => None,
        }
    }

    fn is_busy(error: &Error) -> bool {
        matches!(error, Error::Resizing)
    }

    fn set_members(&mut self, members: &[u32]) -> Result<(), Error> {
        self.kernel.set_members(members)
    }

    fn set_message_rates(&mut self, errors: u32, echoes: u32) {
        self.kernel.set_message_rates(errors, echoes);
    }

    fn set_reset_rate(&mut self, resets: u32) {
        self.kernel.set_reset_rate(resets);
    }

    fn path_mtu(&self, to: IpAddr) -> Result<Option<u32>, Error> {
        self.kernel.path_mtu(to)
    }

    fn user_space(&self) -> Option<UserStatus> {
        self.kernel.user_space()
    }

    fn forget_hop(&mut self, backend: BackendId) -> Result<(), Error> {
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
