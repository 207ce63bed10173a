//! What a control plane and updates ask.

use super::fill::{backend_writes, pin_write, place_of, service_writes};
use super::{Core, Port};
use crate::error::Error;
use crate::layout::{
    BACKENDS, CELLS, PENDING_SETS, PENDING_WAYS, PINS, Register, SERVICES, SLOTS, STRANGER_WORDS,
    TRACKED_PLACES, Table,
};
use crate::target::{Target, Write, index_of, link_write};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nametoindex;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use weir_plane::forward::{Mapping, MappingRules};
use weir_plane::{
    ArmedFlows, Attached, Attachment, Backend, CappedFlows, Described, FlowCaps, IdRoutes,
    LaneCounters, Limits, Listen, Outcomes, Plane, Returned, SeenFlows, SourceTable, TooManyMacs,
    Translations, VipKey,
};
use weir_steering::cheetah::{self, SlotCounts};
use weir_steering::{
    BackendId, BackendLoad, Event, Flags, Former, Image, Marks, ServiceId, ServiceState, Side,
    StateKey, TrackedFlow, is_armed, is_marked, update,
};
use weir_wire::{FlowKey, Protocol};

/// A plane on a switch. What is read of it needs the connection, too, so that it is behind a cell.
pub struct P4<T>(RefCell<Core<T>>);

impl<T: Target> P4<T> {
    /// A plane on this switch, whatever is in it: it is emptied and filled.
    ///
    /// # Errors
    /// If the switch refuses.
    pub fn new(target: T) -> Result<Self, Error> {
        Core::new(target).map(|core| Self(RefCell::new(core)))
    }

    /// A plane on this switch, which is left as it is until [interfaces are attached](Plane::attach): what an
    /// earlier process has filled forwards until then, and what it left there in reports, pending flows and
    /// counters is taken over.
    ///
    /// # Errors
    /// If the switch is not there, or runs another program.
    pub fn over(target: T) -> Result<Self, Error> {
        Core::over(target).map(|core| Self(RefCell::new(core)))
    }

    /// Whether an earlier process had filled the switch.
    pub fn was_filled(&self) -> bool {
        self.0.borrow().was_filled()
    }

    /// The switch.
    pub fn target(&mut self) -> &mut T {
        &mut self.0.get_mut().target
    }

    /// The switch, which stays as it is.
    pub fn into_target(self) -> T {
        self.0.into_inner().into_target()
    }

    /// How often it was filled: once, and once more for each time that it was started anew.
    pub fn fills(&self) -> u64 {
        self.0.borrow().fills
    }

    /// Takes frames to these MAC addresses, from now on, and drops those of services to others; without any it takes
    /// all.
    ///
    /// # Errors
    /// If the switch refuses.
    pub fn set_own_macs(&mut self, macs: Vec<[u8; 6]>) -> Result<(), Error> {
        let core = self.core();
        let gone = core.macs.iter().filter(|mac| !macs.contains(mac));
        let mut writes: Vec<Write> = gone
            .map(|mac| Write::Remove { table: Table::OwnMacs, key: vec![mac.to_vec()] })
            .collect();
        core.macs = macs;
        writes.extend(core.mac_writes());
        core.write(&writes)
    }

    fn core(&mut self) -> &mut Core<T> {
        self.0.get_mut()
    }
}

fn unsupported(what: &str, right: &'static str) -> Error {
    Error::Unsupported { what: what.to_owned(), right }
}

fn full(what: &'static str, wanted: usize, most: u32, name: &'static str) -> Error {
    Error::Full { what, wanted: wanted as u64, most: most.into(), name }
}

impl<T: Target> update::Plane for P4<T> {
    type Error = Error;

    fn is_full(error: &Error) -> bool {
        matches!(error, Error::Full { .. })
    }

    fn set_flags(&mut self, service: ServiceId, record: bool, pending: bool) -> Result<(), Error> {
        let core = self.core();
        let Some(versions) = core.versions.get_mut(&service).filter(|of| of.shown.is_some()) else {
            return Ok(());
        };
        let flags = versions.flags.with(Flags::RECORD, record).with(Flags::PENDING, pending);
        versions.flags = flags;
        if let Some(table) = core.record.tables.get(&service) {
            table.set_flags(flags);
        }
        core.write_selector(service)
    }

    fn freeze(&mut self, _: ServiceId, frozen: bool) -> Result<(), Error> {
        if !frozen {
            return Ok(());
        }
        Err(Error::Unsupported {
            what: "keep flows from starting at a service".into(),
            right: "a fleet needs the kernel's plane or a burst plane for it",
        })
    }

    fn grace(&mut self) -> Result<(), Error> {
        self.core().wait_for_packets()
    }

    fn drain(&mut self, take: &mut dyn FnMut(&Event)) -> Result<(), Error> {
        let core = self.core();
        core.fetch()?;
        core.hand_over(usize::MAX, take)
    }

    fn pending(&self) -> Result<Vec<(ServiceState, BackendId)>, Error> {
        let found = self.0.borrow_mut().read_pending()?;
        Ok(found.into_iter().map(|(state, backend, _)| (state, backend)).collect())
    }

    fn forget_pending(&mut self, states: &[ServiceState]) -> Result<(), Error> {
        self.core().remove_pending(states)
    }

    fn pinned(&self) -> Result<Vec<(ServiceState, BackendId)>, Error> {
        Ok(update::Plane::pinned(&self.0.borrow().record)?)
    }

    fn pin(&mut self, pins: &[(ServiceState, BackendId)]) -> Result<(), Error> {
        let core = self.core();
        let pinned = &core.record.memory.pinned;
        let new = pins.iter().filter(|(state, _)| !pinned.contains_key(state)).count();
        if pinned.len() + new > PINS as usize {
            return Err(full("pins", pinned.len() + new, PINS, "the table pins"));
        }
        let writes: Vec<Write> =
            pins.iter().map(|(state, backend)| pin_write(state, Some(*backend))).collect();
        core.write(&writes)?;
        Ok(update::Plane::pin(&mut core.record, pins)?)
    }

    fn unpin(&mut self, states: &[ServiceState]) -> Result<(), Error> {
        let core = self.core();
        let writes: Vec<Write> = states.iter().map(|state| pin_write(state, None)).collect();
        core.write(&writes)?;
        Ok(update::Plane::unpin(&mut core.record, states)?)
    }

    fn show(&mut self, service: ServiceId, image: &Arc<Image>, flags: Flags) -> Result<(), Error> {
        let core = self.core();
        core.publish(service, image, flags)?;
        Ok(update::Plane::show(&mut core.record, service, image, flags)?)
    }

    /// The registers stay its service's, for the table after the next.
    fn retire(&mut self, service: ServiceId) {
        update::Plane::retire(&mut self.core().record, service);
    }

    fn forget_seen(&mut self, service: ServiceId, hashes: &[u64]) {
        if let Err(error) = self.core().remove_seen(service, hashes) {
            tracing::warn!(%error, "datagrams of flows that have ended count as later ones");
        }
    }
}

impl<T: Target> Plane for P4<T> {
    fn wait(
        &mut self,
        limit: Duration,
        wake: Option<BorrowedFd<'_>>,
        most: usize,
        take: &mut dyn FnMut(&Event),
    ) -> Result<(), Error> {
        self.core().wait_for_reports(limit, wake, most, take)
    }

    fn put_aside(&mut self, _: usize, _: &mut dyn FnMut(&Event)) -> Result<bool, Error> {
        Ok(false)
    }

    fn pin_limit(&self) -> usize {
        PINS as usize
    }

    /// What the program was compiled for.
    fn limits(&self) -> Limits {
        Limits {
            services: SERVICES,
            table_bytes: u64::from(SLOTS + 2 * CELLS) * 2,
            backends: BACKENDS,
            pending_flows: PENDING_SETS * PENDING_WAYS,
            unreported_flows: PINS,
            marked_flows: crate::layout::MARK_WORDS * 3,
            stranger_bits: STRANGER_WORDS * 64,
            tracked_flows: TRACKED_PLACES,
            // Nobody waits for others: a service that finds no room for its own is refused.
            slot_partitions: self.0.borrow().record.limits.slot_partitions,
            ..self.0.borrow().record.limits
        }
    }

    /// The registers have the sizes that the program was compiled with. What fits is taken.
    fn resize(&mut self, limits: &Limits) -> Result<(), Error> {
        let core = self.core();
        let backends = core.record.backends.keys().last().map_or(0, |id| id.index() + 1);
        if limits.services > SERVICES {
            return Err(full("services", limits.services as usize, SERVICES, "SERVICES"));
        }
        if limits.backends > BACKENDS || backends > limits.backends as usize {
            return Err(full("backends", limits.backends as usize, BACKENDS, "BACKENDS"));
        }
        core.record.limits = *limits;
        Ok(())
    }

    fn set_service(&mut self, at: impl Into<Listen>, service: ServiceId) -> Result<(), Error> {
        let at = at.into();
        let Some(key) = at.key().filter(|_| !at.is_salted()) else {
            return Err(unsupported(
                "find services by prefixes, blocks of ports or several addresses",
                "give it one address of each family, and one port or any",
            ));
        };
        if key.protocol == Protocol::Sctp {
            return Err(unsupported("read SCTP", "give the service protocol tcp or udp"));
        }
        if service.0 >= SERVICES {
            return Err(full("services", service.0 as usize + 1, SERVICES, "SERVICES"));
        }
        let core = self.core();
        if core.record.vips.len() as u32 >= Table::Services.size() {
            let (count, most) = (core.record.vips.len() + 1, Table::Services.size());
            return Err(full("addresses of services", count, most, "the table services"));
        }
        core.write(&service_writes(&key, service))?;
        Ok(core.record.set_service(at, service)?)
    }

    fn leave_place(&mut self, at: &Listen, service: ServiceId) -> Result<(), Error> {
        let core = self.core();
        let key = at.key().filter(|key| core.record.vips.get(key) == Some(&service));
        let Some(key) = key else { return Ok(()) };
        core.record.leave_place(at, service)?;
        let (table, entry) = place_of(&key);
        let mut writes = vec![Write::Remove { table, key: entry }];
        if !core.record.vips.keys().any(|other| other.address == key.address) {
            writes.push(Write::Remove { table: Table::Addresses, key: vec![key.address.to_vec()] });
        }
        core.write(&writes)?;
        core.wait_for_packets()
    }

    fn remove_service(&mut self, service: ServiceId) -> Result<(), Error> {
        for (at, number) in self.services() {
            if number == service {
                self.leave_place(&at, service)?;
            }
        }
        let core = self.core();
        let Some(mut versions) = core.versions.remove(&service) else { return Ok(()) };
        let shown = versions.shown.take();
        core.versions.insert(service, versions);
        if shown.is_some() {
            core.write_selector(service)?;
        }
        core.wait_for_packets()?;
        core.free(service)?;
        core.record.remove_service(service)?;
        Ok(())
    }

    fn services(&self) -> Vec<(Listen, ServiceId)> {
        self.0.borrow().record.services()
    }

    fn set_id_routes(&mut self, _: ServiceId, routes: Option<&IdRoutes>) -> Result<(), Error> {
        match routes {
            None => Ok(()),
            Some(_) => Err(unsupported("read QUIC ids", "leave the service's ids out")),
        }
    }

    fn set_sources(&mut self, _: ServiceId, sources: Option<&SourceTable>) -> Result<(), Error> {
        match sources {
            None => Ok(()),
            Some(_) => Err(unsupported("hold lists of sources", "leave allow and deny out")),
        }
    }

    fn source_digest(&self, _: ServiceId) -> Option<u64> {
        None
    }

    fn set_flow_caps(&mut self, _: ServiceId, caps: Option<&FlowCaps>) -> Result<(), Error> {
        match caps {
            None => Ok(()),
            Some(_) => Err(unsupported("hold rates of new flows", "leave new_flows out")),
        }
    }

    fn flow_caps(&self, _: ServiceId) -> Option<FlowCaps> {
        None
    }

    fn capped_flows(&self, _: ServiceId) -> CappedFlows {
        CappedFlows::default()
    }

    fn set_translations(&mut self, wanted: &Translations) -> Result<(), Error> {
        match wanted.is_empty() {
            true => Ok(()),
            false => Err(unsupported("translate answers", "set forward = \"l2\" or \"ipip\"")),
        }
    }

    fn set_mapping_rules(&mut self, rules: &MappingRules) -> Result<(), Error> {
        match rules.origins.iter().flatten().next() {
            None => Ok(()),
            Some(_) => Err(unsupported("do full NAT", "set forward = \"l2\" or \"ipip\"")),
        }
    }

    fn mapping_rules(&self) -> Option<MappingRules> {
        None
    }

    fn mapping_places(&self) -> usize {
        0
    }

    fn mapping(&self, _: usize) -> Option<Mapping> {
        None
    }

    fn mapping_tick(&self) -> u32 {
        0
    }

    fn returned(&self) -> Result<Returned, Error> {
        Ok(Returned::default())
    }

    fn published(&self, service: ServiceId) -> Result<Option<Image>, Error> {
        self.0.borrow_mut().verify(service)
    }

    fn described(&self, service: ServiceId) -> Result<Option<Described>, Error> {
        Ok(self.0.borrow().record.described(service)?)
    }

    fn table_bytes(&self, service: ServiceId) -> usize {
        Plane::table_bytes(&self.0.borrow().record, service)
    }

    fn pool_bytes(&self) -> (usize, usize) {
        let used: u32 = self.0.borrow().ranges.iter().map(|ranges| ranges.in_use()).sum();
        (used as usize * 2, (SLOTS + 2 * CELLS) as usize * 2)
    }

    fn set_backend(&mut self, id: BackendId, backend: Option<&Backend>) -> Result<(), Error> {
        if id.index() >= BACKENDS as usize {
            return Err(full("backends", id.index() + 1, BACKENDS, "BACKENDS"));
        }
        let core = self.core();
        // If it was away and is filled now, ports have other numbers.
        core.is_there();
        let writes = backend_writes(id, backend, &core.ports)?;
        core.write(&writes)?;
        Ok(core.record.set_backend(id, backend)?)
    }

    fn backend(&self, id: BackendId) -> Option<Backend> {
        self.0.borrow().record.backend(id)
    }

    fn load(&self, id: BackendId) -> BackendLoad {
        self.0.borrow().record.load(id)
    }

    fn set_load(&mut self, id: BackendId, weight: u32, value: Option<i64>) {
        self.core().record.set_load(id, weight, value);
    }

    fn add_load(&mut self, id: BackendId, by: i64) {
        self.core().record.add_load(id, by);
    }

    fn open_connections(&self, _: ServiceId) -> Result<BTreeMap<BackendId, i64>, Error> {
        Ok(BTreeMap::new())
    }

    fn turn(&self, service: ServiceId) -> u64 {
        let read = self.0.borrow_mut().read(&[(Register::Turns, service.0)]);
        read.map_or(0, |read| read[0])
    }

    fn set_clock(&mut self, seconds: u32) {
        let core = self.core();
        core.record.set_clock(seconds);
        let (register, value) = (Register::Clock, u64::from(seconds));
        if let Err(error) = core.write_if_there(&[Write::Set { register, index: 0, value }]) {
            tracing::warn!(%error, "the switch's clock stands until it is filled");
        }
    }

    fn clock(&self) -> u32 {
        self.0.borrow().record.clock()
    }

    fn slot_counts(&self, service: ServiceId) -> Option<SlotCounts> {
        self.0.borrow_mut().count_slots(service).ok().flatten()
    }

    fn reset_lane(&mut self, id: BackendId) -> Result<(), Error> {
        self.core().clear_lane(id)
    }

    fn lanes(&self) -> Result<Vec<LaneCounters>, Error> {
        let mut core = self.0.borrow_mut();
        core.count()?;
        Ok(core.lanes_now())
    }

    fn outcomes(&self) -> Result<Outcomes, Error> {
        let mut core = self.0.borrow_mut();
        core.count()?;
        Ok(core.outcomes_now())
    }

    /// As of the last reading of the counters.
    fn unrecorded(&self) -> u64 {
        self.0.borrow().lost_now()
    }

    fn pending_backend(&self, state: &ServiceState) -> Result<Option<BackendId>, Error> {
        self.0.borrow_mut().find_pending(state)
    }

    fn forget_connections(&mut self, service: ServiceId) -> Result<(), Error> {
        self.core().forget_tracked(service)
    }

    fn connection(&self, flow: &FlowKey) -> Result<Option<TrackedFlow>, Error> {
        let mut core = self.0.borrow_mut();
        let of = |port| VipKey { address: flow.dst, protocol: flow.protocol, port };
        let vips = &core.record.vips;
        let service = vips.get(&of(Some(flow.dst_port))).or(vips.get(&of(None))).copied();
        let Some(service) = service else { return Ok(None) };
        let state = ServiceState { service, key: StateKey::of_flow(flow) };
        let Some((number, noted)) = core.find_tracked(&state)? else { return Ok(None) };
        let table = core.record.tables.get(&service);
        let servers = table.and_then(|table| cheetah::servers(table));
        let backend = servers.and_then(|servers| BackendId::new(servers.backend(number)?));
        let former = noted.place.checked_sub(1).map(Former::new);
        Ok(backend.map(|backend| TrackedFlow {
            former,
            ..TrackedFlow::new(backend, noted.incarnation.into())
        }))
    }

    fn flip_marks(
        &mut self,
        known: &mut dyn Iterator<Item = u64>,
        flows: usize,
    ) -> Result<Side, Error> {
        self.core().turn_marks(known, flows)
    }

    /// All flows mark: the filter in front of the marks saves memory reads, which cost a switch nothing.
    fn watch(&mut self, _: &mut dyn Iterator<Item = u64>) -> Result<(), Error> {
        Ok(())
    }

    fn take_marks(&mut self, side: Side) -> Result<Marks, Error> {
        let core = self.core();
        let marks = core.marks_of(side)?;
        core.clear_marks(side)?;
        Ok(marks)
    }

    fn are_marked(&self, hashes: &[u64]) -> Result<Vec<bool>, Error> {
        let mut core = self.0.borrow_mut();
        let side = core.side();
        let marks = core.marks_of(side)?;
        let (words, strangers) = (marks.words(), marks.strangers());
        let marked = |hash: &u64| {
            let word = |at: usize| words[at];
            is_marked(word, words.len(), |at| strangers[at], strangers.len(), *hash)
        };
        Ok(hashes.iter().map(marked).collect())
    }

    fn is_armed(&self, hash: u64) -> Result<bool, Error> {
        let core = self.0.borrow();
        let side = Side { first: 0, mask: core.armed.len() as u32 - 1 };
        Ok(is_armed(|at| core.armed[at], side, hash))
    }

    fn armed(&self) -> Result<ArmedFlows, Error> {
        let words = self.0.borrow().armed.clone();
        let side = Side { first: 0, mask: words.len() as u32 - 1 };
        let room = words.len();
        Ok(ArmedFlows { room, has: Box::new(move |hash| is_armed(|at| words[at], side, hash)) })
    }

    fn seen_flows(&self, before: bool) -> Result<SeenFlows, Error> {
        Ok(SeenFlows::new(self.0.borrow_mut().seen_tags(before)?.into_iter()))
    }

    fn next_seen_generation(&mut self) {
        let core = self.core();
        core.generation = if core.generation >= 3 { 1 } else { core.generation + 1 };
        let (register, value) = (Register::SeenGeneration, core.generation);
        let cleared = core.clear_seen_of(value);
        let begin = [Write::Set { register, index: 0, value }];
        if let Err(error) = cleared.and_then(|()| core.write_if_there(&begin)) {
            tracing::warn!(%error, "the filter of datagrams keeps its generation until it is filled");
        }
    }

    fn trouble(&self) -> Option<String> {
        self.0.borrow().trouble()
    }

    fn limit_of(error: &Error) -> Option<&'static str> {
        match error {
            Error::Full { name: "SERVICES", .. } => Some("services"),
            Error::Full { name: "BACKENDS", .. } => Some("backends"),
            Error::Full { name: "SLOTS" | "CELLS", .. } => Some("table_bytes"),
            Error::Full { name: "PARTITIONS", .. } => Some("slot_partitions"),
            _ => None,
        }
    }

    /// The MAC addresses of the switch's ports as the system has them.
    fn accept_own_macs(&mut self, interfaces: &[String]) -> Result<Option<TooManyMacs>, Error> {
        self.set_own_macs(interfaces.iter().filter_map(|name| mac_of(name)).collect())?;
        Ok(None)
    }

    /// Ports of the switch: it opens the interfaces itself.
    fn attach(&mut self, interfaces: &[String], _: Attachment) -> Result<Vec<Attached>, Error> {
        self.core().take_ports(interfaces, true)
    }

    fn reattach(&mut self, interfaces: &[String], _: Attachment) -> Result<Vec<Attached>, Error> {
        self.core().take_ports(interfaces, false)
    }
}

impl<T: Target> Core<T> {
    /// Takes packets by these interfaces, and by no others. Unless all have to be there, those that are not are left
    /// out, and one that cannot be opened keeps no other from it.
    fn take_ports(&mut self, interfaces: &[String], all: bool) -> Result<Vec<Attached>, Error> {
        // If it was away and is filled now, ports have other numbers.
        let lost = !self.is_there();
        let same = |port: &Port| {
            let now = if_nametoindex(&port.name[..]).unwrap_or(0);
            let open = port.number.is_some() || lost;
            interfaces.contains(&port.name) && port.ifindex == now && now != 0 && open
        };
        let (stay, gone): (Vec<Port>, Vec<Port>) = self.ports.drain(..).partition(same);
        self.ports = stay;
        let closed = gone.iter().filter_map(|port| port.number).map(|port| link_write(port, 0));
        self.write(&closed.collect::<Vec<_>>())?;
        let mut trouble = None;
        for name in interfaces {
            if self.ports.iter().any(|port| port.name == *name) {
                continue;
            }
            let opened = match index_of(name) {
                Ok(ifindex) => self.open(name, ifindex).map(|number| (ifindex, number)),
                Err(_) if !all => continue,
                Err(error) => Err(error),
            };
            match opened {
                Ok((ifindex, number)) => {
                    self.ports.push(Port { name: name.clone(), ifindex, number });
                }
                Err(error) if all => return Err(error),
                Err(error) => trouble = trouble.or(Some(error)),
            }
        }
        let mut writes = Vec::new();
        for (id, backend) in &self.record.backends {
            writes.extend(backend_writes(*id, Some(backend), &self.ports)?);
        }
        self.write(&writes)?;
        self.begin()?;
        // What was opened as the switch was filled: why one is no port is in the log.
        let closed = |port: &&Port| port.number.is_none() && !self.lost;
        let closed = self.ports.iter().find(closed).map(|port| port.name.clone());
        if let Some(name) = closed {
            self.ports.retain(|port| port.number.is_some());
            let why = "it is not there, or it cannot be opened".to_owned();
            trouble = trouble.or(Some(Error::Port { name, why }));
        }
        let attached = |port: &Port| Attached { interface: port.name.clone(), generic: false };
        trouble.map_or_else(|| Ok(self.ports.iter().map(attached).collect()), Err)
    }
}

/// The MAC address of an interface of this network namespace, if it is there: `/sys` may be another's.
fn mac_of(name: &str) -> Option<[u8; 6]> {
    let own = getifaddrs().ok()?.filter(|one| one.interface_name == name);
    own.filter_map(|one| one.address).find_map(|address| address.as_link_addr()?.addr())
}
