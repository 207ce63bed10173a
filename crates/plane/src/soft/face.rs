//! The plane of memory as updates and the control plane see it: what they ask, and what it refuses.

use super::{Bounds, Operation, Soft, SoftError};
use crate::by_id::{IdOutcomes, IdRoutes};
use crate::caps::{CappedFlows, FlowCaps, FlowRoom};
use crate::counters::{InterfaceCounters, LaneCounters, Returned};
use crate::forward::MappingRules;
use crate::forward::mapping::Mapping;
use crate::held::{HeldCounts, held_until};
use crate::limits::Limits;
use crate::listen::Listen;
use crate::pipeline;
use crate::plane::{
    ArmedFlows, Attached, Attachment, Backend, Described, Device, Outcomes, Plane, PrepareResize,
    ReadConnections, SeenFlows, TakenAway, TooManyMacs, TrackedFlows, Translations,
};
use crate::sources::SourceTable;
use crate::trace::{PrepareTrace, Sample, Samples, TraceCounts, Wanted};
use std::any::Any;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weir_steering::{
    BackendId, BackendLoad, Echoes, Event, Flags, Image, Marks, Question, ServiceId, ServiceState,
    Side, StateKey, TrackedFlow,
    cheetah::{Answered, ConnTable, SlotCounts},
    is_armed, update,
    update::Draining,
};
use weir_wire::{FlowKey, map_address};

/// Reports that are taken in one part.
const REPORTS_AT_A_TIME: usize = 8192;

impl update::Plane for Soft {
    type Error = SoftError;

    fn is_full(error: &SoftError) -> bool {
        matches!(error, SoftError::Full(_))
    }

    fn set_flags(
        &mut self,
        service: ServiceId,
        record: bool,
        pending: bool,
    ) -> Result<(), SoftError> {
        self.ask_to(Operation::SetFlags)?;
        self.change_flags(service, Flags::RECORD, record);
        self.change_flags(service, Flags::PENDING, pending);
        Ok(())
    }

    fn freeze(&mut self, service: ServiceId, frozen: bool) -> Result<(), SoftError> {
        self.ask_to(Operation::SetFlags)?;
        self.change_flags(service, Flags::FROZEN, frozen);
        Ok(())
    }

    /// A packet is processed whole here: none is ever under way.
    fn grace(&mut self) -> Result<(), SoftError> {
        self.ask_to(Operation::Grace)
    }

    fn drain(&mut self, take: &mut dyn FnMut(&Event)) -> Result<(), SoftError> {
        self.ask_to(Operation::Drain)?;
        std::mem::take(&mut self.memory.events).iter().for_each(take);
        Ok(())
    }

    fn drain_part(
        &mut self,
        draining: &mut Draining,
        take: &mut dyn FnMut(&Event),
    ) -> Result<bool, SoftError> {
        self.ask_to(Operation::Drain)?;
        let events = &mut self.memory.events;
        let left = draining.left.unwrap_or(events.len()).min(events.len());
        let part = left.min(REPORTS_AT_A_TIME);
        events.drain(..part).for_each(|event| take(&event));
        draining.left = Some(left - part);
        Ok(left > part)
    }

    fn pending(&self) -> Result<Vec<(ServiceState, BackendId)>, SoftError> {
        self.ask(Operation::ReadPending)?;
        Ok(self.memory.pending.iter().map(|(state, backend)| (*state, *backend)).collect())
    }

    fn forget_pending(&mut self, states: &[ServiceState]) -> Result<(), SoftError> {
        self.ask_to(Operation::ForgetPending)?;
        for state in states {
            self.memory.pending.remove(state);
        }
        Ok(())
    }

    fn pinned(&self) -> Result<Vec<(ServiceState, BackendId)>, SoftError> {
        self.ask(Operation::ReadPins)?;
        Ok(self.memory.pinned.iter().map(|(state, backend)| (*state, *backend)).collect())
    }

    fn pin(&mut self, pins: &[(ServiceState, BackendId)]) -> Result<(), SoftError> {
        for (state, backend) in pins {
            self.ask(Operation::Pin)?;
            let room = self.memory.pinned.len() < self.bounds.pins;
            if !room && !self.memory.pinned.contains_key(state) {
                return Err(SoftError::Full(Operation::Pin));
            }
            self.memory.pinned.insert(*state, *backend);
        }
        Ok(())
    }

    fn unpin(&mut self, states: &[ServiceState]) -> Result<(), SoftError> {
        for state in states {
            self.ask(Operation::Unpin)?;
            self.memory.pinned.remove(state);
        }
        Ok(())
    }

    fn connections(
        &self,
        service: ServiceId,
    ) -> Result<Vec<(ServiceState, TrackedFlow)>, SoftError> {
        self.ask(Operation::LookUp)?;
        let memory = &self.memory;
        let lives = |flow: &TrackedFlow| {
            memory.incarnations.get(&flow.backend).is_some_and(|now| flow.is_of(*now))
        };
        let of = memory.connections.iter().filter(|(state, _)| state.service == service);
        Ok(of.filter(|(_, flow)| lives(flow)).map(|(state, flow)| (*state, *flow)).collect())
    }

    fn track(&mut self, connections: &[(ServiceState, BackendId)]) -> Result<(), SoftError> {
        for (state, backend) in connections {
            self.ask(Operation::Track)?;
            if let Some(&incarnation) = self.memory.incarnations.get(backend) {
                let flow = TrackedFlow::new(*backend, incarnation);
                self.memory.connections.insert(*state, flow);
            }
        }
        Ok(())
    }

    fn show(
        &mut self,
        service: ServiceId,
        image: &Arc<Image>,
        flags: Flags,
    ) -> Result<(), SoftError> {
        for frame in std::mem::take(&mut self.meanwhile) {
            let became = self.process(&frame);
            self.came.push(became);
        }
        self.ask_to(Operation::Show)?;
        self.former.remove(&service);
        let room = self.bounds.table_bytes.saturating_sub(self.table_bytes());
        if image.bytes() > room.min(self.bounds.piece) {
            return Err(SoftError::Full(Operation::Show));
        }
        if let Image::CheetahStateful(table) = &**image
            && !self.memory.slots.contains_key(&service)
        {
            let slots = table.body().0.method.connections();
            self.memory.slots.insert(service, slots.map_err(|_| SoftError::Full(Operation::Show))?);
        }
        if self.tables.get(&service).is_none_or(|now| now.header().key != image.header().key) {
            self.memory.watch_all();
        }
        // A copy: its flags are this plane's.
        let copy = Image::clone(image);
        copy.set_flags(flags);
        if let Some(former) = self.tables.insert(service, Arc::new(copy)) {
            self.former.insert(service, former);
        }
        Ok(())
    }

    fn retire(&mut self, service: ServiceId) {
        self.former.remove(&service);
    }

    fn forget_seen(&mut self, service: ServiceId, hashes: &[u64]) {
        hashes.iter().for_each(|hash| self.memory.forget_seen(*hash, service));
    }
}

impl Plane for Soft {
    /// There is nothing to wait for: whoever brings the frames is the one who asks.
    fn wait(
        &mut self,
        _: Duration,
        _: Option<BorrowedFd<'_>>,
        most: usize,
        take: &mut dyn FnMut(&Event),
    ) -> Result<(), SoftError> {
        self.ask_to(Operation::Drain)?;
        let events = &mut self.memory.events;
        events.drain(..most.min(events.len())).for_each(|event| take(&event));
        Ok(())
    }

    fn go_on_guarding(&mut self) -> Option<String> {
        self.stale_guard.clone()
    }

    fn put_aside(&mut self, _: usize, _: &mut dyn FnMut(&Event)) -> Result<bool, SoftError> {
        self.ask(Operation::PutAside).map(|()| false)
    }

    fn pin_limit(&self) -> usize {
        self.bounds.pins
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn marked_by(&self, limits: &Limits) -> u32 {
        limits.marked_flows
    }

    fn fits_into(&self, limits: &Limits) -> Result<(), SoftError> {
        let last = self.backends.keys().last().map_or(0, |id| id.index() + 1);
        let fits = Self::table_bytes(self) <= limits.table_bytes as usize
            && self.memory.pinned.len() <= limits.unreported_flows as usize
            && self.places() <= limits.services as usize
            && last <= limits.backends as usize;
        if fits { Ok(()) } else { Err(SoftError::Full(Operation::Resize)) }
    }

    /// Bounds that are set are those of the limits from now on.
    fn resize(&mut self, limits: &Limits) -> Result<(), SoftError> {
        self.ask(Operation::Resize)?;
        self.fits_into(limits)?;
        let bounds = Bounds {
            table_bytes: limits.table_bytes as usize,
            piece: usize::MAX,
            pins: limits.unreported_flows as usize,
            services: limits.services as usize,
            backends: limits.backends as usize,
            reports: self.bounds.reports,
        };
        let before = self.limits.marked_flows;
        let marked_flows = if self.marks_stay { before } else { limits.marked_flows };
        (self.bounds, self.limits) = (bounds, Limits { marked_flows, ..*limits });
        Ok(())
    }

    /// What is refused is refused on the other thread, where that takes its time.
    fn prepare_packing(&mut self) -> Result<Option<PrepareResize<SoftError>>, SoftError> {
        if self.bounds.piece == usize::MAX {
            return Ok(None);
        }
        let asked = self.ask(Operation::PreparePacking);
        if let (false, Err(error)) = (self.takes_time, &asked) {
            return Err(*error);
        }
        Ok(Some(Box::new(move || asked.map(|()| Box::new(()) as Box<dyn Any + Send>))))
    }

    /// What is refused is refused on the other thread.
    fn prepare_resize(&self, _: &Limits) -> Result<Option<PrepareResize<SoftError>>, SoftError> {
        let asked = self.ask(Operation::PrepareResize);
        if !self.takes_time {
            return asked.map(|()| None);
        }
        Ok(Some(Box::new(move || asked.map(|()| Box::new(()) as Box<dyn Any + Send>))))
    }

    fn read_connections(
        &self,
        service: ServiceId,
    ) -> Result<Option<ReadConnections<SoftError>>, SoftError> {
        if !self.takes_time {
            return Ok(None);
        }
        let found = update::Plane::connections(self, service);
        Ok(Some(Box::new(move |visit| {
            found?.into_iter().for_each(|(state, flow)| visit(state, flow.backend));
            Ok(())
        })))
    }

    fn set_service(&mut self, at: impl Into<Listen>, service: ServiceId) -> Result<(), SoftError> {
        self.ask(Operation::SetService)?;
        let at = at.into();
        let known = self.plain(&at).is_some_and(|key| self.vips.contains_key(&key));
        let wide = self.wide.keys().find(|wide| wide.place() == at.place()).copied();
        if !known && wide.is_none() && self.places() >= self.bounds.services {
            return Err(SoftError::Full(Operation::SetService));
        }
        wide.map(|wide| self.wide.remove(&wide));
        at.key().map(|key| self.vips.remove(&key));
        match self.plain(&at) {
            Some(key) => self.vips.insert(key, service),
            None => self.wide.insert(at, service),
        };
        Ok(())
    }

    fn leave_place(&mut self, at: &Listen, service: ServiceId) -> Result<(), SoftError> {
        self.ask(Operation::RemoveService)?;
        let there = |place: Listen, number: ServiceId| place == at.place() && number == service;
        self.vips.retain(|key, number| !there(key.into(), *number));
        self.wide.retain(|wide, number| !there(wide.place(), *number));
        Ok(())
    }

    fn remove_service(&mut self, service: ServiceId) -> Result<(), SoftError> {
        self.vips.retain(|_, number| *number != service);
        self.wide.retain(|_, number| *number != service);
        self.ask(Operation::RemoveService)?;
        self.tables.remove(&service);
        self.former.remove(&service);
        self.id_routes.remove(&service);
        self.sources.remove(&service);
        self.caps.remove(&service);
        self.memory.slots.remove(&service);
        Ok(())
    }

    fn set_id_routes(
        &mut self,
        service: ServiceId,
        routes: Option<&IdRoutes>,
    ) -> Result<(), SoftError> {
        self.ask(Operation::SetService)?;
        match routes {
            Some(routes) => self.id_routes.insert(service, routes.clone()),
            None => self.id_routes.remove(&service),
        };
        Ok(())
    }

    fn set_sources(
        &mut self,
        service: ServiceId,
        sources: Option<&SourceTable>,
    ) -> Result<(), SoftError> {
        self.ask(Operation::SetSources)?;
        match sources {
            Some(sources) => self.sources.insert(service, sources.clone()),
            None => self.sources.remove(&service),
        };
        Ok(())
    }

    fn source_digest(&self, service: ServiceId) -> Option<u64> {
        self.sources.get(&service).map(SourceTable::digest)
    }

    fn set_flow_caps(
        &mut self,
        service: ServiceId,
        caps: Option<&FlowCaps>,
    ) -> Result<(), SoftError> {
        if self.caps.get(&service) == caps {
            return Ok(());
        }
        self.ask(Operation::SetFlowCaps)?;
        match caps {
            Some(caps) => {
                let buckets = self.buckets.get_mut();
                buckets.begin_held(service);
                if self.caps.insert(service, *caps).is_none() {
                    buckets.begin(service);
                }
            }
            None => _ = self.caps.remove(&service),
        }
        Ok(())
    }

    fn flow_caps(&self, service: ServiceId) -> Option<FlowCaps> {
        self.caps.get(&service).copied()
    }

    fn flow_room(
        &self,
        service: ServiceId,
        source: &[u8; 16],
    ) -> Result<Option<FlowRoom>, SoftError> {
        self.ask(Operation::LookUp)?;
        let room = |caps| self.buckets.borrow().room(service, caps, source, self.nanoseconds);
        Ok(self.caps.get(&service).map(room))
    }

    fn capped_flows(&self, service: ServiceId) -> CappedFlows {
        self.buckets.borrow().capped(service)
    }

    fn held(&self) -> Result<HeldCounts, SoftError> {
        self.ask(Operation::ReadHeld)?;
        Ok(self.buckets.borrow().held())
    }

    fn correct_held(
        &mut self,
        before: &HeldCounts,
        counted: &HeldCounts,
        lasts: Duration,
    ) -> Result<(), SoftError> {
        self.ask(Operation::CorrectHeld)?;
        let limited = self.caps.iter().filter(|(_, caps)| caps.held.is_some());
        let (services, until) = (limited.map(|one| *one.0), held_until(self.nanoseconds, lasts));
        self.buckets.borrow_mut().correct_held(before, counted, services, until);
        Ok(())
    }

    fn release_held(&mut self, ended: &[ServiceState]) -> Result<(), SoftError> {
        self.ask(Operation::ReleaseHeld)?;
        for ServiceState { service, key } in ended {
            if let Some(caps) = self.caps.get(service) {
                self.buckets.get_mut().release_held(caps, key);
            }
        }
        Ok(())
    }

    fn set_translations(&mut self, wanted: &Translations) -> Result<(), SoftError> {
        if self.translations != *wanted {
            self.ask(Operation::SetService)?;
            self.translations.clone_from(wanted);
        }
        Ok(())
    }

    fn set_mapping_rules(&mut self, rules: &MappingRules) -> Result<(), SoftError> {
        let mappings = self.mappings.get_mut();
        if mappings.rules != *rules {
            self.ask(Operation::SetService)?;
        }
        let mappings = self.mappings.get_mut();
        mappings.places.resize(crate::limits::mapping_places(self.limits.mappings) as usize, None);
        mappings.rules.clone_from(rules);
        Ok(())
    }

    fn mapping_rules(&self) -> Option<MappingRules> {
        let mappings = self.mappings.borrow();
        (!mappings.rules.origins.is_empty()).then(|| mappings.rules.clone())
    }

    fn mapping_places(&self) -> usize {
        self.mappings.borrow().places.len()
    }

    fn mapping(&self, place: usize) -> Option<Mapping> {
        self.mappings.borrow().places.get(place).copied().flatten()
    }

    fn mapping_tick(&self) -> u32 {
        self.tick()
    }

    fn returned(&self) -> Result<Returned, SoftError> {
        self.ask(Operation::ReadCounters)?;
        Ok(self.counters.returned)
    }

    fn id_outcomes(&self) -> Result<IdOutcomes, SoftError> {
        self.ask(Operation::ReadCounters)?;
        Ok(IdOutcomes::new())
    }

    fn tracked_flows(&self, _: ServiceId) -> Result<TrackedFlows, SoftError> {
        self.ask(Operation::ReadCounters)?;
        Ok(TrackedFlows::default())
    }

    fn services(&self) -> Vec<(Listen, ServiceId)> {
        let plain = self.vips.iter().map(|(key, service)| (Listen::from(key), *service));
        plain.chain(self.wide.iter().map(|(at, service)| (*at, *service))).collect()
    }

    fn published(&self, service: ServiceId) -> Result<Option<Image>, SoftError> {
        self.ask(Operation::ReadTable)?;
        Ok(self.tables.get(&service).map(|image| Image::clone(image)))
    }

    fn described(&self, service: ServiceId) -> Result<Option<Described>, SoftError> {
        self.ask(Operation::ReadTable)?;
        let described = |image: &Arc<Image>| {
            let header = image.header();
            Described { digest: header.digest, states: header.states }
        };
        Ok(self.tables.get(&service).map(described))
    }

    fn table_bytes(&self, service: ServiceId) -> usize {
        self.tables.get(&service).map_or(0, |image| image.bytes())
    }

    fn pool_bytes(&self) -> (usize, usize) {
        (Self::table_bytes(self), self.bounds.table_bytes)
    }

    fn set_backend(&mut self, id: BackendId, backend: Option<&Backend>) -> Result<(), SoftError> {
        self.ask(Operation::SetBackend)?;
        if id.index() >= self.bounds.backends {
            return Err(SoftError::Full(Operation::SetBackend));
        }
        self.memory.incarnations.remove(&id);
        self.memory.down.remove(&id);
        self.backends.remove(&id);
        if let Some(backend) = backend {
            self.memory.incarnations.insert(id, backend.incarnation);
            if !backend.up {
                self.memory.down.insert(id);
            }
            self.backends.insert(id, *backend);
        }
        Ok(())
    }

    fn backend(&self, id: BackendId) -> Option<Backend> {
        self.backends.get(&id).copied()
    }

    fn set_reset_rate(&mut self, resets: u32) {
        self.resets.set(resets);
    }

    fn load(&self, id: BackendId) -> BackendLoad {
        self.memory.loads.get(&id).copied().unwrap_or_default()
    }

    fn set_load(&mut self, id: BackendId, weight: u32, value: Option<i64>) {
        let load = self.memory.loads.entry(id).or_default();
        load.weight = weight;
        load.value = value.unwrap_or(load.value);
    }

    fn add_load(&mut self, id: BackendId, by: i64) {
        self.memory.loads.entry(id).or_default().value += by;
    }

    /// Of the connection table; what is remembered of answers is not looked through.
    fn open_connections(&self, service: ServiceId) -> Result<BTreeMap<BackendId, i64>, SoftError> {
        self.ask(Operation::LookUp)?;
        let mut open = BTreeMap::new();
        for (state, flow) in &self.memory.connections {
            if state.service == service && flow.open {
                *open.entry(flow.backend).or_default() += 1;
            }
        }
        Ok(open)
    }

    fn turn(&self, service: ServiceId) -> u64 {
        self.memory.turns.get(&service).copied().unwrap_or(0)
    }

    fn reset_lane(&mut self, id: BackendId) -> Result<(), SoftError> {
        self.ask(Operation::ResetLane)?;
        self.memory.loads.remove(&id);
        self.memory.echoes.remove(&id);
        self.counters.lanes.remove(&id);
        Ok(())
    }

    fn lanes(&self) -> Result<Vec<LaneCounters>, SoftError> {
        self.ask(Operation::ReadCounters)?;
        let lanes = &self.counters.lanes;
        let numbers = 0..lanes.last_key_value().map_or(0, |(last, _)| last.get() + 1);
        let lane = |id| lanes.get(&BackendId::new(id)?).copied();
        Ok(numbers.map(|id| lane(id).unwrap_or_default()).collect())
    }

    fn outcomes(&self) -> Result<Outcomes, SoftError> {
        self.ask(Operation::ReadCounters)?;
        let mut found = Outcomes::new();
        for (reason, count) in &self.counters.passed {
            found.entry(*reason).or_default().0 = *count;
        }
        for (reason, count) in &self.counters.dropped {
            found.entry(*reason).or_default().1 = *count;
        }
        Ok(found)
    }

    fn unrecorded(&self) -> u64 {
        self.unrecorded
    }

    fn pending_backend(&self, state: &ServiceState) -> Result<Option<BackendId>, SoftError> {
        self.ask(Operation::LookUp)?;
        Ok(self.memory.pending.get(state).copied())
    }

    fn forget_connections(&mut self, service: ServiceId) -> Result<(), SoftError> {
        self.ask(Operation::Track)?;
        self.memory.connections.retain(|state, _| state.service != service);
        Ok(())
    }

    fn connection(&self, flow: &FlowKey) -> Result<Option<TrackedFlow>, SoftError> {
        self.ask(Operation::LookUp)?;
        let there = |at: &Listen| at.has_address(&flow.dst) && at.protocol == flow.protocol;
        let services = self.services();
        let mut services = services.iter().filter(|(at, _)| there(at));
        Ok(services.find_map(|&(at, service)| {
            let key = StateKey::of_flow_to(flow, at.salt_of(&flow.dst));
            self.memory.connections.get(&ServiceState { service, key }).copied()
        }))
    }

    fn answered(&self, flow: &FlowKey) -> Result<Option<u16>, SoftError> {
        self.ask(Operation::LookUp)?;
        let key = StateKey::of_flow(flow);
        let service = pipeline::service_of(flow, &self.view());
        let known = service.and_then(|service| {
            self.memory.answers.get(&ServiceState { service, key }).map(Answered::number)
        });
        Ok(known)
    }

    fn has_answered(&self, service: ServiceId) -> Result<Option<bool>, SoftError> {
        self.ask(Operation::LookUp)?;
        let ours = self.memory.answers.iter().filter(|(state, _)| state.service == service);
        Ok(ours.map(|(_, known)| known.is_answered()).max())
    }

    fn set_clock(&mut self, seconds: u32) {
        self.memory.now = seconds;
    }

    fn bare(&self) -> u32 {
        self.memory.bare
    }

    fn echoes(&self, id: BackendId) -> Echoes {
        self.memory.echoes.get(&id).copied().unwrap_or_default()
    }

    fn clock(&self) -> u32 {
        self.memory.now
    }

    fn slot(&self, question: &Question, part: u16) -> Result<Option<BackendId>, SoftError> {
        self.ask(Operation::LookUp)?;
        let slots = self.memory.slots.get(&question.service);
        Ok(slots.and_then(|slots| slots.get(&question.key, part)).and_then(BackendId::new))
    }

    fn slot_counts(&self, service: ServiceId) -> Option<SlotCounts> {
        self.memory.slots.get(&service).map(ConnTable::counts)
    }

    fn sweep_slots(
        &mut self,
        service: ServiceId,
        steps: u32,
        keep: &dyn Fn(BackendId) -> bool,
    ) -> Result<u32, SoftError> {
        self.ask(Operation::SweepSlots)?;
        let now = self.memory.now;
        let slots = self.memory.slots.get_mut(&service);
        Ok(slots
            .map_or(0, |slots| slots.sweep(steps, now, |at| BackendId::new(at).is_some_and(keep))))
    }

    fn flip_marks(
        &mut self,
        known: &mut dyn Iterator<Item = u64>,
        flows: usize,
    ) -> Result<Side, SoftError> {
        self.ask_to(Operation::FlipMarks)?;
        let side = self.memory.arm(known, flows);
        Ok(std::mem::replace(&mut self.memory.mark_side, side))
    }

    fn watch(&mut self, due: &mut dyn Iterator<Item = u64>) -> Result<(), SoftError> {
        self.ask(Operation::Watch)?;
        self.memory.watch(due);
        Ok(())
    }

    fn take_marks(&mut self, side: Side) -> Result<Marks, SoftError> {
        self.ask_to(Operation::TakeMarks)?;
        Ok(self.memory.take_marks(side))
    }

    fn are_marked(&self, hashes: &[u64]) -> Result<Vec<bool>, SoftError> {
        self.ask(Operation::ReadMarks)?;
        Ok(hashes.iter().map(|hash| self.memory.is_marked(*hash)).collect())
    }

    fn is_armed(&self, hash: u64) -> Result<bool, SoftError> {
        self.ask(Operation::ReadMarks)?;
        Ok(is_armed(|at| self.memory.marks[at], self.memory.mark_side, hash))
    }

    fn armed(&self) -> Result<ArmedFlows, SoftError> {
        self.ask(Operation::ReadMarks)?;
        let (words, side) = (self.memory.marks.clone(), self.memory.mark_side);
        let room = words.len();
        Ok(ArmedFlows { room, has: Box::new(move |hash| is_armed(|at| words[at], side, hash)) })
    }

    fn interfaces(&self) -> Result<Option<BTreeMap<u32, InterfaceCounters>>, SoftError> {
        Ok(self.by_interface.clone())
    }

    fn seen_flows(&self, before: bool) -> Result<SeenFlows, SoftError> {
        self.ask(Operation::ReadSeen)?;
        let now = self.memory.seen_generation;
        let before = match (before, now) {
            (false, _) => now,
            (true, 1) => 3,
            (true, _) => now - 1,
        };
        let tags = self.memory.seen.iter().flatten().copied();
        Ok(SeenFlows::new(tags.filter(|tag| tag & 3 == now || tag & 3 == before)))
    }

    fn next_seen_generation(&mut self) {
        self.memory.next_seen_generation();
    }

    fn limit_of(error: &SoftError) -> Option<&'static str> {
        match error {
            SoftError::Full(Operation::Show) => Some("table_bytes"),
            SoftError::Full(Operation::Pin) => Some("unreported_flows"),
            SoftError::Full(Operation::Resize) => Some("backends"),
            _ => None,
        }
    }

    fn accept_own_macs(&mut self, _: &[String]) -> Result<Option<TooManyMacs>, SoftError> {
        self.ask(Operation::OwnMacs)?;
        Ok(self.too_many_macs)
    }

    fn attach(
        &mut self,
        interfaces: &[String],
        how: Attachment,
    ) -> Result<Vec<Attached>, SoftError> {
        self.ask(Operation::Attach)?;
        self.attached = interfaces.to_vec();
        self.taken.interfaces.clear();
        let generic = how == Attachment::Generic;
        let attached = |name: &String| Attached { interface: name.clone(), generic };
        Ok(interfaces.iter().map(attached).collect())
    }

    fn taken_away(&self, interfaces: &[String]) -> TakenAway {
        let mut taken = self.taken.clone();
        taken.interfaces.retain(|(name, _)| interfaces.contains(name));
        taken
    }

    fn put_back(&mut self) -> Result<(), SoftError> {
        self.ask(Operation::Attach)?;
        self.taken.pins = None;
        Ok(())
    }

    fn hand_on(&mut self, _: Option<&Path>) -> Result<(), SoftError> {
        self.ask(Operation::HandOn)
    }

    fn set_devices(&mut self, _: &[Device]) -> Result<(), SoftError> {
        self.ask(Operation::SetDevices)
    }

    fn set_members(&mut self, _: &[u32]) -> Result<(), SoftError> {
        self.ask(Operation::SetMembers)
    }

    fn path_mtu(&self, to: IpAddr) -> Result<Option<u32>, SoftError> {
        self.ask(Operation::ReadPaths)?;
        let known = self.paths.lower(&map_address(to), 0, self.nanoseconds);
        Ok((known > 0).then_some(known))
    }

    fn lost(&self) -> Result<Option<BTreeMap<u32, u64>>, SoftError> {
        self.ask(Operation::ReadLost).map(|()| self.lost.clone())
    }

    fn forget_hop(&mut self, _: BackendId) -> Result<(), SoftError> {
        self.ask(Operation::ForgetHop)
    }

    fn prepare_trace(&self) -> Result<Option<PrepareTrace>, SoftError> {
        self.ask(Operation::PrepareTrace)?;
        let nothing = || Ok(Box::new(()) as Box<dyn Any + Send>);
        Ok(self.takes_time.then(|| Box::new(nothing) as PrepareTrace))
    }

    /// Of which nothing is ever told.
    fn trace(
        &mut self,
        _: Box<dyn Any + Send>,
        _: &Wanted,
    ) -> Result<Option<Box<dyn Samples>>, SoftError> {
        self.ask(Operation::Trace)?;
        Ok(Some(Box::new(Nothing)))
    }

    fn keep_tracing(&mut self) -> Result<Option<TraceCounts>, SoftError> {
        self.ask(Operation::KeepTracing)?;
        Ok(self.takes_time.then(TraceCounts::default))
    }

    fn end_trace(&mut self) -> Result<(), SoftError> {
        self.ask(Operation::EndTrace)
    }
}

/// No packet is ever told of.
struct Nothing;

impl Samples for Nothing {
    fn follow(
        self: Box<Self>,
        patience: Duration,
        take: &mut dyn FnMut(Option<Sample>) -> bool,
    ) -> std::io::Result<()> {
        while take(None) {
            std::thread::sleep(patience);
        }
        Ok(())
    }
}
