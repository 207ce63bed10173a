//! Flows that the data plane knows: reported, pending, pinned and tracked ones.

use super::KernelPlane;
use crate::abi::{BackendFlags, Plain, types};
use crate::entries;
use crate::error::{Context, Error};
use crate::numbers::{
    ANSWER_ENDED, ANSWER_STARTED, ECHOES_BARE, ECHOES_OWN, TRACKED_ENDED, TRACKED_OPEN,
};
use crate::reports::Reports;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::mem::offset_of;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_plane::{Listen, ReadConnections, TrackedFlows};
use weir_steering::cheetah::{SlotCounts, SlotEntry};
use weir_steering::{BackendId, Echoes, Former, ServiceId, ServiceState, StateKey, TrackedFlow};
use weir_wire::{FlowKey, Protocol};

/// So many entries are read to find an answer, some milliseconds' worth; and so many of a service's own say what its
/// others are like.
const ANSWERS_LOOKED_AT: u32 = 1 << 14;
const ENOUGH_ANSWERS: u32 = 32;

/// Reads the connections of a service, one by one.
type ReadTracked =
    Box<dyn FnOnce(&mut dyn FnMut(ServiceState, TrackedFlow)) -> Result<(), Error> + Send>;

impl KernelPlane {
    /// The consumer of the reports.
    ///
    /// # Errors
    /// [`Error::Bpf`], [`Error::System`].
    pub fn reports(&self) -> Result<Reports, Error> {
        let copy = |map: &MapHandle| MapHandle::try_from(map).context(|| "duplicate a map".into());
        Reports::new(copy(&self.maps.events)?, copy(&self.maps.unreported)?)
    }

    /// The flows in the pending table.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn pending(&self) -> Result<Vec<(ServiceState, BackendId)>, Error> {
        read_states(&self.maps.pending)
    }

    /// A flow's backend in the pending table.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn pending_backend(&self, state: &ServiceState) -> Result<Option<BackendId>, Error> {
        let found = self
            .maps
            .pending
            .lookup(types::service_state::from(state).bytes(), MapFlags::ANY)
            .context(|| "look up a pending flow".into())?;
        Ok(found.and_then(|value| backend_of(&value)))
    }

    /// Removes flows from the pending table.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn forget_pending<'a>(
        &self,
        states: impl IntoIterator<Item = &'a ServiceState>,
    ) -> Result<(), Error> {
        entries::remove(&self.maps.pending, states.into_iter().map(types::service_state::from))
    }

    /// The pinned states.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn pinned(&self) -> Result<Vec<(ServiceState, BackendId)>, Error> {
        read_states(&self.maps.pinned)
    }

    /// Pins states.
    ///
    /// # Errors
    /// [`Error::PinsFull`] when there is no room.
    pub fn pin(&self, states: &[(ServiceState, BackendId)]) -> Result<(), Error> {
        let entry = |(state, backend): &(ServiceState, BackendId)| {
            (types::service_state::from(state), u32::from(backend.get()))
        };
        match entries::write(&self.maps.pinned, states.iter().map(entry)) {
            // What a hash map without room says.
            Err(error) if error.kind() == libbpf_rs::ErrorKind::TooBig => {
                Err(Error::PinsFull { limit: self.pin_limit() as u32 })
            }
            pinned => pinned.context(|| "pin states".into()),
        }
    }

    /// States of all services that there is room to pin.
    pub fn pin_limit(&self) -> usize {
        self.maps.pinned.max_entries() as usize
    }

    /// Unpins states.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn unpin<'a>(
        &self,
        states: impl IntoIterator<Item = &'a ServiceState>,
    ) -> Result<(), Error> {
        entries::remove(&self.maps.pinned, states.into_iter().map(types::service_state::from))
    }

    /// A tracked connection.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn connection(&self, flow: &FlowKey) -> Result<Option<TrackedFlow>, Error> {
        let found = self
            .maps
            .connections
            .lookup(types::flow_key::from(flow).bytes(), MapFlags::ANY)
            .context(|| "look up a tracked connection".into())?;
        Ok(found.and_then(|value| flow_of(&types::tracked::from_slice(&value))))
    }

    /// The connections of a service in the connection table, and what it says of them. Those of backends that
    /// are gone are left out.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn connections(
        &self,
        service: ServiceId,
    ) -> Result<Vec<(ServiceState, TrackedFlow)>, Error> {
        let mut found = Vec::new();
        let read = self.read_tracked(service)?;
        read(&mut |state, flow| found.push((state, flow)))?;
        Ok(found)
    }

    /// What reads them, on any thread, by the places and the backends that there are now.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn read_connections(&self, service: ServiceId) -> Result<ReadConnections<Error>, Error> {
        let read = self.read_tracked(service)?;
        Ok(Box::new(move |visit| read(&mut |state, flow: TrackedFlow| visit(state, flow.backend))))
    }

    fn read_tracked(&self, service: ServiceId) -> Result<ReadTracked, Error> {
        let map = MapHandle::try_from(&self.maps.connections)
            .context(|| "duplicate the connection table".into())?;
        let ours = self.ours(service);
        let numbers = 0..self.sizes.backends.min(1 << 15) as u16;
        let present: Vec<Option<u16>> = numbers
            .map(|number| {
                let entry = self.backend(BackendId::new(number)?);
                let there = entry.flags & BackendFlags::PRESENT != 0;
                there.then_some(entry.incarnation as u16)
            })
            .collect();
        Ok(Box::new(move |visit| {
            ours.each::<types::tracked>(&map, &mut |flow, entry| {
                let there = present.get(usize::from(entry.backend)).copied().flatten();
                let there = there.filter(|incarnation| *incarnation == entry.incarnation);
                let Some(known) = there.and_then(|_| flow_of(&entry)) else {
                    return;
                };
                let mut bytes = [0; 20];
                bytes[..8].copy_from_slice(&flow.src[0].to_ne_bytes());
                bytes[8..16].copy_from_slice(&flow.src[1].to_ne_bytes());
                bytes[16..].copy_from_slice(&flow.ports.to_ne_bytes());
                let mut key = StateKey::from_bytes(&bytes);
                // With client affinity it has no ports, and no address.
                if flow.ports != 0 {
                    key.dst_port ^= salt_of(&ours.places, &to_flow(&flow));
                }
                visit(ServiceState { service, key }, known);
            })
        }))
    }

    /// Flows of a service with JET that packets have put into the connection table.
    pub fn entered(&self, service: ServiceId) -> u64 {
        self.entered_word(service).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Counts them from there on.
    pub(super) fn set_entered(&self, service: ServiceId, flows: u64) {
        if let Some(word) = self.entered_word(service) {
            word.store(flows, Ordering::Relaxed);
        }
    }

    fn entered_word(&self, service: ServiceId) -> Option<&AtomicU64> {
        let there = service.0 < self.sizes.services;
        there.then(|| self.entered.word64(service.index() * size_of::<u64>()))
    }

    /// How many of them are there, and how many were evicted. Reads the whole table.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn tracked_flows(&self, service: ServiceId) -> Result<TrackedFlows, Error> {
        // Before those that are there are counted: what enters meanwhile was not evicted.
        let entered = self.entered(service);
        if entered == 0 {
            return Ok(TrackedFlows::default());
        }
        let there =
            self.entries_of::<types::tracked>(service, &self.maps.connections)?.len() as u64;
        Ok(TrackedFlows { there, evicted: entered.saturating_sub(there) })
    }

    /// Removes the entries of a service from the connection table.
    ///
    /// # Errors
    /// [`Error::Bpf`]; some may be removed then.
    pub fn forget_connections(&self, service: ServiceId) -> Result<(), Error> {
        self.set_entered(service, 0);
        let entries = self.entries_of::<types::tracked>(service, &self.maps.connections)?;
        entries::remove(&self.maps.connections, entries.into_iter().map(|(flow, _)| flow))
    }

    /// The entries of a service in a map of flows.
    pub(super) fn entries_of<T: Plain>(
        &self,
        service: ServiceId,
        map: &MapHandle,
    ) -> Result<Vec<(types::flow_key, T)>, Error> {
        let mut found = Vec::new();
        self.ours(service).each(map, &mut |flow, entry| found.push((flow, entry)))?;
        Ok(found)
    }

    fn ours(&self, service: ServiceId) -> Ours {
        let places = self.keys.get(&service).cloned().unwrap_or_default();
        let nearer = self
            .keys
            .iter()
            .filter(|(other, _)| **other != service)
            .flat_map(|(_, places)| places)
            .filter(|at| places.iter().any(|own| own.exactness() < at.exactness() && own.meets(at)))
            .copied()
            .collect();
        Ours { places, nearer }
    }

    /// The flows that a state may be of: one, but where neither the address nor the port is known.
    fn flows_of(&self, state: &ServiceState) -> Vec<FlowKey> {
        let places = self.keys.get(&state.service).map_or(&[][..], Vec::as_slice);
        let key = &state.key;
        let flow = |at: &Listen, dst: [u8; 16], dst_port: u16| FlowKey {
            src: key.address,
            dst,
            src_port: key.src_port,
            dst_port,
            protocol: at.protocol,
        };
        // With client affinity an entry has no ports.
        let by_client = (key.src_port, key.dst_port) == (0, 0);
        let mut all = Vec::new();
        for at in places {
            let one = at.is_one_address();
            if one && by_client {
                all.push(flow(at, at.address, 0));
            } else if one {
                all.push(flow(at, at.address, key.dst_port ^ at.salt));
            } else if at.port_bits == 16 && at.host_bits() <= 16 && !by_client {
                let host = key.dst_port ^ at.salt ^ at.port;
                let mut dst = at.address;
                let last = u16::from_be_bytes([dst[14], dst[15]]) | host;
                dst[14..].copy_from_slice(&last.to_be_bytes());
                all.push(flow(at, dst, at.port));
            }
        }
        all.retain(|flow| by_client || places.iter().any(|at| at.takes(flow)));
        all.sort_unstable_by_key(|flow| (flow.dst, flow.dst_port));
        all.dedup();
        all
    }

    /// Puts connections into the connection table, in place of what it says of them.
    ///
    /// # Errors
    /// [`Error::Bpf`]; some may be there then.
    pub fn take_over(&self, connections: &[(ServiceState, BackendId)]) -> Result<(), Error> {
        for (state, backend) in connections {
            let incarnation = self.backend(*backend).incarnation;
            for flow in self.flows_of(state) {
                self.track(&flow, TrackedFlow::new(*backend, incarnation))?;
            }
        }
        Ok(())
    }

    /// The backend of a number, if that still stands for the one that it stood for.
    pub(super) fn present(&self, number: u16, incarnation: u16) -> Option<BackendId> {
        let there = u32::from(number) < self.sizes.backends;
        let backend = BackendId::new(number).filter(|_| there)?;
        let entry = self.backend(backend);
        let same = entry.incarnation as u16 == incarnation;
        (entry.flags & BackendFlags::PRESENT != 0 && same).then_some(backend)
    }

    /// Tracks a connection, for tests and benches.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn track(&self, flow: &FlowKey, entry: TrackedFlow) -> Result<(), Error> {
        let TrackedFlow { backend, incarnation, former, open, ended } = entry;
        let number = match (open, ended) {
            (true, _) => TRACKED_OPEN,
            (false, true) => TRACKED_ENDED,
            (false, false) => 0,
        };
        let former = Former::word(former);
        let value = types::tracked { incarnation, former, backend: backend.get(), number };
        self.maps
            .connections
            .update(types::flow_key::from(flow).bytes(), value.bytes(), MapFlags::ANY)
            .context(|| "track a connection".into())
    }

    /// Packets of known flows that did not echo the cookie that their backend was told.
    pub fn bare(&self) -> u32 {
        self.control.word32(offset_of!(types::control, bare)).load(Ordering::Relaxed)
    }

    /// What connections at a backend that is told cookies echo.
    pub fn echoes(&self, backend: BackendId) -> Echoes {
        let bits = self.echoes_word(backend).map_or(0, |word| word.load(Ordering::Relaxed));
        Echoes { bare: bits & ECHOES_BARE != 0, own: bits & ECHOES_OWN != 0 }
    }

    /// Sets the clock by which connections by index grow old.
    pub fn set_clock(&self, seconds: u32) {
        self.control.word32(offset_of!(types::control, clock)).store(seconds, Ordering::Relaxed);
    }

    /// What that clock shows, in seconds; it comes round after 2^32 of them.
    pub fn clock(&self) -> u32 {
        self.control.word32(offset_of!(types::control, clock)).load(Ordering::Relaxed)
    }

    /// How full a service's table of connections by index is; none if it has none.
    pub fn slot_counts(&self, service: ServiceId) -> Option<SlotCounts> {
        self.tables.slots.counts(service)
    }

    /// Where the connection lives whose place a part of a cookie hides, for a flow of this hash.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn slot(
        &self,
        service: ServiceId,
        hash: u64,
        part: u16,
    ) -> Result<Option<BackendId>, Error> {
        Ok(self.tables.slots.get(service, hash, part)?.and_then(BackendId::new))
    }

    /// Takes slots of a service for connections, for benches: a hash, a backend and its server's number for
    /// each. Returns the parts of cookies that hide their places.
    ///
    /// # Errors
    /// [`Error::SlotsFull`].
    pub fn fill_slots(
        &mut self,
        service: ServiceId,
        connections: &mut dyn Iterator<Item = (u64, u16, u16)>,
    ) -> Result<Vec<u16>, Error> {
        self.tables.slots.fill(service, connections)
    }

    /// What the slots of a service hold, for comparisons.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn slot_entries(&self, service: ServiceId) -> Result<Vec<SlotEntry>, Error> {
        self.tables.slots.entries(service)
    }

    /// Looks over the next slots of a service, and gives back those whose time is up and those whose
    /// backend `keep` does not want. Returns how many.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn sweep_slots(
        &mut self,
        service: ServiceId,
        steps: u32,
        keep: &dyn Fn(BackendId) -> bool,
    ) -> Result<u32, Error> {
        let clock = self.clock();
        let table = self.tables.current(service).and_then(|number| self.tables.header(number));
        let Some(idle) = table.map(|header| header.segments) else { return Ok(0) };
        let keep = |number| BackendId::new(number).is_some_and(keep);
        self.tables.slots.sweep(service, steps, clock, idle, &keep)
    }

    /// The number of the server of a connection whose answers pass here.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn answered(&self, flow: &FlowKey) -> Result<Option<u16>, Error> {
        let key = types::flow_key::from(flow);
        let found = self
            .maps
            .answers
            .lookup(key.bytes(), MapFlags::ANY)
            .context(|| "look up the timestamps of a connection".into())?;
        Ok(found.map(|value| types::answer::from_slice(&value).number))
    }

    /// Whether a timestamp of a backend was seen of any connection of a service whose answers are to pass here; none
    /// if there is no such connection. Reads until it has found one, and no more than a part of a large map.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn has_answered(&self, service: ServiceId) -> Result<Option<bool>, Error> {
        let ours = self.ours(service);
        let (mut found, mut own, mut left) = (None, 0, ANSWERS_LOOKED_AT);
        entries::each(&self.maps.answers, |flow, entry| {
            left -= 1;
            if left == 0 {
                return ControlFlow::Break(());
            }
            let flow = types::flow_key::from_slice(flow);
            if Protocol::from_number(flow.protocol as u8).is_none()
                || !ours.are(&to_flow(&flow), flow.ports)
            {
                return ControlFlow::Continue(());
            }
            let flags = types::answer::from_slice(entry).flags;
            let started = flags & ANSWER_STARTED != 0;
            // What was refused, or has ended before, waits for none.
            if !started && flags & ANSWER_ENDED != 0 {
                return ControlFlow::Continue(());
            }
            own += 1;
            found = Some(started);
            if started { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(found.filter(|started| *started || left > 0 || own >= ENOUGH_ANSWERS))
    }
}

/// What tells a service's entries in a map of flows from those of others.
struct Ours {
    places: Vec<Listen>,
    /// Those that take a part of what these could.
    nearer: Vec<Listen>,
}

impl Ours {
    fn are(&self, flow: &FlowKey, ports: u32) -> bool {
        // With client affinity an entry has no ports.
        let takes = |at: &Listen| match ports {
            0 => at.protocol == flow.protocol && at.has_address(&flow.dst),
            _ => at.takes(flow),
        };
        let own = self.places.iter().filter(|at| takes(at)).map(Listen::exactness).max();
        own.is_some_and(|own| {
            ports == 0 || !self.nearer.iter().any(|at| at.exactness() > own && at.takes(flow))
        })
    }

    fn each<T: Plain>(
        &self,
        map: &MapHandle,
        visit: &mut dyn FnMut(types::flow_key, T),
    ) -> Result<(), Error> {
        if self.places.is_empty() {
            return Ok(());
        }
        entries::all(map, |flow, entry| {
            let flow = types::flow_key::from_slice(flow);
            if Protocol::from_number(flow.protocol as u8).is_some()
                && self.are(&to_flow(&flow), flow.ports)
            {
                visit(flow, T::from_slice(entry));
            }
        })
    }
}

/// What an entry says; none if it names no backend.
fn flow_of(entry: &types::tracked) -> Option<TrackedFlow> {
    Some(TrackedFlow {
        backend: BackendId::new(entry.backend)?,
        incarnation: entry.incarnation,
        former: Former::from_word(entry.former),
        open: entry.number == TRACKED_OPEN,
        ended: entry.number == TRACKED_ENDED,
    })
}

/// What the destination port of a flow's state is XORed with.
fn salt_of(places: &[Listen], flow: &FlowKey) -> u16 {
    let takes = places.iter().filter(|at| at.takes(flow));
    takes.max_by_key(|at| at.exactness()).map_or(0, |at| at.salt_of(&flow.dst))
}

fn read_states(map: &MapHandle) -> Result<Vec<(ServiceState, BackendId)>, Error> {
    let mut found = Vec::new();
    entries::all(map, |key, value| {
        let state = types::service_state::from_slice(key).into();
        found.extend(backend_of(value).map(|backend| (state, backend)));
    })?;
    Ok(found)
}

/// The backend that an entry of a map of states leads to.
fn backend_of(value: &[u8]) -> Option<BackendId> {
    let number = u32::from_ne_bytes([value[0], value[1], value[2], value[3]]);
    BackendId::new(number as u16)
}

/// What a key of a map is of; a protocol that is none passes for TCP.
fn to_flow(key: &types::flow_key) -> FlowKey {
    let address = |words: &[u64; 2]| {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&words[0].to_ne_bytes());
        bytes[8..].copy_from_slice(&words[1].to_ne_bytes());
        bytes
    };
    let ports = key.ports.to_ne_bytes();
    FlowKey {
        src: address(&key.src),
        dst: address(&key.dst),
        src_port: u16::from_be_bytes([ports[0], ports[1]]),
        dst_port: u16::from_be_bytes([ports[2], ports[3]]),
        protocol: Protocol::from_number(key.protocol as u8).unwrap_or(Protocol::Tcp),
    }
}
