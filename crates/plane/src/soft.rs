//! A whole data plane in plain memory: frames in, verdicts and counters out. The oracle of the
//! BPF program, and the data plane of tests that need none.

use crate::allowance::Allowance;
use crate::by_id::IdRoutes;
use crate::counters::{Counters, LaneCounters, Returned};
use crate::forward::mapping::{MAPPING_TICK_SHIFT, Mapping, Mappings, Signs, Target};
use crate::forward::nat::{End, translate, translate_both};
use crate::forward::{MappingRules, Translation, Tunnel};
use crate::limits::Limits;
use crate::listen::Listen;
use crate::paths::Paths;
use crate::pipeline::{self, Directory, Outcome, Verdict, VipKey};
use crate::plane::{
    ArmedFlows, Attached, Attachment, Backend, Described, Outcomes, Plane, SeenFlows, Translations,
};
use crate::sources::SourceTable;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use weir_steering::{
    BackendId, BackendLoad, ELEMENT_BYTES, Echoes, Event, Flags, Image, ImageError, Marks,
    Question, ServiceId, ServiceState, Side, SoftMemory, StateKey, TrackedFlow,
    cheetah::{Answered, ConnTable, SlotCounts},
    is_armed, update,
};
use weir_wire::{
    FlowKey, Fragment, FragmentKey, Reason, TcpFlags, echo, fragment, icmp, map_address, parse,
};

/// What a [`Soft`] plane can be asked, and can be told to refuse.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Operation {
    /// Change the flags of a table.
    SetFlags,
    /// Wait for packets.
    Grace,
    /// Take the reports.
    Drain,
    /// Read the pending table.
    ReadPending,
    /// Remove from the pending table.
    ForgetPending,
    /// Read the pins.
    ReadPins,
    /// Pin a state.
    Pin,
    /// Remove pins.
    Unpin,
    /// Put a connection into the connection table.
    Track,
    /// Publish a table.
    Show,
    /// Take memory of another size.
    Resize,
    /// Let packets find a service.
    SetService,
    /// Remove a service.
    RemoveService,
    /// Change the sources that a service takes packets from.
    SetSources,
    /// Read a published table back.
    ReadTable,
    /// Set what is known of a backend.
    SetBackend,
    /// Clear a backend's counters.
    ResetLane,
    /// Read counters.
    ReadCounters,
    /// Look a flow up in the pending or the connection table.
    LookUp,
    /// Take the addresses of interfaces.
    OwnMacs,
    /// Attach to interfaces.
    Attach,
}

/// Why a [`Soft`] plane refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SoftError {
    /// It was told to.
    #[error("refused on demand: {0:?}")]
    OnDemand(Operation),
    /// There is no room: its bound is reached.
    #[error("no room: {0:?}")]
    Full(Operation),
}

/// Bounds of a [`Soft`] plane; none of them bounds it at first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Bytes of all tables, those that are superseded and not retired included.
    pub table_bytes: usize,
    /// The most pins, of all services together.
    pub pins: usize,
    /// The most services that packets can find.
    pub services: usize,
    /// Numbers of backends are below this.
    pub backends: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            table_bytes: usize::MAX,
            pins: usize::MAX,
            services: usize::MAX,
            backends: usize::MAX,
        }
    }
}

/// A refusal that is asked for.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    /// Times that it is still granted.
    granted: u32,
    /// Times that it is then refused.
    refused: u32,
}

/// A data plane in plain memory.
#[derive(Debug, Default)]
pub struct Soft {
    /// Services by the addresses and ports that they listen on.
    pub vips: HashMap<VipKey, ServiceId>,
    /// By what else they listen on: prefixes, blocks of ports, and addresses with a salt.
    pub wide: BTreeMap<Listen, ServiceId>,
    /// What leads packets by their QUIC ids, by service.
    pub id_routes: HashMap<ServiceId, IdRoutes>,
    /// The sources that are taken, by service; all, of a service that is not there.
    pub sources: HashMap<ServiceId, SourceTable>,
    /// Whose answers are translated, and to what.
    pub translations: Translations,
    /// Connections under full NAT; and the sources that first fragments got.
    pub mappings: RefCell<Mappings>,
    sources_of: HashMap<FragmentKey, u16>,
    /// Published tables by service.
    pub tables: HashMap<ServiceId, Arc<Image>>,
    /// Services without a table here whose published one is of a method that is not known.
    pub unknown: HashSet<ServiceId>,
    /// Tables before those that are not retired yet, by service.
    pub former: HashMap<ServiceId, Arc<Image>>,
    /// What decisions ask and leave behind: pending flows, pins, connections, reports, marks.
    pub memory: SoftMemory,
    /// MAC addresses it answers to; empty: any.
    pub own_macs: Vec<[u8; 6]>,
    /// What became of the packets so far.
    pub counters: Counters,
    /// How much it has room for.
    pub bounds: Bounds,
    /// What it was sized for last.
    pub limits: Limits,
    /// Backends by number.
    pub backends: BTreeMap<BackendId, Backend>,
    /// The errors that it may send.
    pub messages: Allowance,
    /// The replies to echo requests that it may send.
    pub echoes: Allowance,
    /// What routers on the ways to backends have said.
    pub paths: Paths,
    /// The time by which these are old, and messages are allowed.
    pub nanoseconds: u64,
    /// The interfaces that it is attached to.
    pub attached: Vec<String>,
    /// Frames that come just before the next table is seen: the flows that have started were collected
    /// by then.
    pub meanwhile: Vec<Vec<u8>>,
    /// What became of them.
    pub came: Vec<Outcome>,
    asked: RefCell<BTreeMap<Operation, u64>>,
    refusals: RefCell<BTreeMap<Operation, Refusal>>,
}

/// The part of a plane that packets only read.
struct View<'a> {
    vips: &'a HashMap<VipKey, ServiceId>,
    wide: &'a BTreeMap<Listen, ServiceId>,
    id_routes: &'a HashMap<ServiceId, IdRoutes>,
    sources: &'a HashMap<ServiceId, SourceTable>,
    translations: &'a Translations,
    mappings: &'a RefCell<Mappings>,
    backends: &'a BTreeMap<BackendId, Backend>,
    tick: u32,
    tables: &'a HashMap<ServiceId, Arc<Image>>,
    unknown: &'a HashSet<ServiceId>,
    own_macs: &'a [[u8; 6]],
}

impl Directory for View<'_> {
    fn service(&self, key: &VipKey) -> Option<ServiceId> {
        self.vips.get(key).copied()
    }

    fn has_address(&self, address: &[u8; 16]) -> bool {
        self.vips.keys().any(|vip| vip.address == *address)
            || self.wide.keys().any(|at| at.has_address(address))
    }

    fn beyond(&self, flow: &FlowKey) -> Option<(Listen, ServiceId)> {
        let takes = self.wide.iter().filter(|(at, _)| at.takes(flow));
        let found = takes.max_by_key(|(at, _)| at.exactness());
        found.map(|(at, service)| (*at, *service))
    }

    fn is_own_mac(&self, mac: [u8; 6]) -> bool {
        self.own_macs.is_empty() || self.own_macs.contains(&mac)
    }

    fn table(&self, service: ServiceId) -> Result<&Image, Reason> {
        match self.tables.get(&service) {
            Some(table) => Ok(table),
            None if self.unknown.contains(&service) => Err(Reason::UnknownMethod),
            None => Err(Reason::NoTable),
        }
    }

    fn translates(&self) -> bool {
        !self.translations.is_empty() || !self.mappings.borrow().rules.origins.is_empty()
    }

    fn is_origin(&self, address: &[u8; 16], port: u16) -> bool {
        self.mappings.borrow().rules.origins.iter().flatten().any(|origin| {
            map_address(origin.address) == *address
                && (origin.first_port..=origin.last_port).contains(&port)
        })
    }

    fn mapped(&self, flow: &FlowKey, signs: &Signs) -> Option<Option<Mapping>> {
        self.mappings.borrow_mut().back(flow, signs, self.tick, |mapping| {
            let backend = self.backends.get(&mapping.backend)?;
            let same = backend.incarnation == mapping.incarnation;
            let port = backend.translation.and_then(|to| to.port);
            same.then_some((backend.address, port.unwrap_or(mapping.flow.dst_port)))
        })
    }

    fn translated(&self, key: &VipKey) -> Option<VipKey> {
        self.translations.get(key).copied()
    }

    fn id_routes(&self, service: ServiceId) -> Option<&IdRoutes> {
        self.id_routes.get(&service)
    }

    fn allows(&self, service: ServiceId, source: &[u8; 16]) -> bool {
        self.sources.get(&service).is_none_or(|table| table.allows(source))
    }
}

impl Soft {
    /// A plane with this memory.
    pub fn new(memory: SoftMemory) -> Self {
        Self { memory, ..Self::default() }
    }

    fn view(&self) -> View<'_> {
        View {
            vips: &self.vips,
            wide: &self.wide,
            id_routes: &self.id_routes,
            sources: &self.sources,
            translations: &self.translations,
            mappings: &self.mappings,
            backends: &self.backends,
            tick: self.tick(),
            tables: &self.tables,
            unknown: &self.unknown,
            own_macs: &self.own_macs,
        }
    }

    /// How many places services listen on.
    fn places(&self) -> usize {
        self.vips.len() + self.wide.len()
    }

    /// Among which ones it stands: without a salt, by its key, if it has one.
    fn plain(&self, at: &Listen) -> Option<VipKey> {
        at.key().filter(|_| !at.is_salted())
    }

    /// Takes one frame through the data plane.
    pub fn process(&mut self, frame: &[u8]) -> Outcome {
        self.judge(frame).into()
    }

    /// The same, with all that is to be done with the frame.
    pub fn judge(&mut self, frame: &[u8]) -> Verdict {
        let verdict = self.decide(frame);
        self.settle(frame, verdict)
    }

    /// What the pipeline says.
    fn decide(&mut self, frame: &[u8]) -> Verdict {
        let to = View {
            vips: &self.vips,
            wide: &self.wide,
            id_routes: &self.id_routes,
            sources: &self.sources,
            translations: &self.translations,
            mappings: &self.mappings,
            backends: &self.backends,
            tick: self.tick(),
            tables: &self.tables,
            unknown: &self.unknown,
            own_macs: &self.own_macs,
        };
        pipeline::process(frame, &to, &mut self.memory)
    }

    /// What becomes of that on the way to the backend, which is counted.
    fn settle(&mut self, frame: &[u8], verdict: Verdict) -> Verdict {
        let verdict = self.refused(frame, verdict);
        self.learn(frame, &verdict);
        self.counters.count(&verdict);
        verdict
    }

    /// The same, with what the plane writes into the frame but for the MAC addresses, and for tags of
    /// frames that go as they are. `tag`: with which all others leave.
    pub fn take(&mut self, frame: &mut Vec<u8>, tag: Option<[u8; 4]>) -> Verdict {
        let verdict = self.decide(frame);
        self.carry_out(frame, verdict, tag)
    }

    /// As [`take`](Self::take), of a frame about which somebody has decided by these tables and this
    /// memory.
    pub fn carry_out(
        &mut self,
        frame: &mut Vec<u8>,
        verdict: Verdict,
        tag: Option<[u8; 4]>,
    ) -> Verdict {
        let verdict = self.settle(frame, verdict);
        pipeline::restamp(frame, &verdict);
        if verdict == Verdict::Echo {
            echo::reply(frame);
        }
        if let Verdict::Forward { backend, .. } | Verdict::Tell { backend, .. } = verdict {
            self.limit_segments(frame, backend);
        }
        let written = match verdict {
            Verdict::Forward { backend, .. } => match self.backends.get(&backend) {
                Some(Backend { address, tunnel: Some(tunnel), .. }) => {
                    tunnel.encapsulate(frame, *address, tag)
                }
                Some(Backend { translation: Some(_), .. }) => {
                    self.translate_to(frame, backend, tag)
                }
                _ => Ok(()),
            },
            Verdict::Return { address, port, client: Some(client), .. } => {
                translate_both(frame, (address, port), (client.0, Some(client.1)), tag)
            }
            Verdict::Return { address, port, client: None, .. } => {
                translate(frame, End::Source, (address, port), tag)
            }
            _ => Ok(()),
        };
        if let Err(reason) = written {
            // What is refused was found out before.
            unreachable!("{reason}")
        }
        if let Verdict::Tell { backend, .. } = verdict
            && let Some((tunnel, address)) = self.way(backend)
        {
            tunnel.tell(frame, address);
        }
        verdict
    }

    /// Takes a burst of frames through the data plane, with the outcomes that they have one after
    /// the other.
    pub fn process_burst(&mut self, frames: &[&[u8]]) -> Vec<Outcome> {
        // A mapping that one makes is the next one's.
        if !self.mappings.get_mut().rules.origins.is_empty() {
            return frames.iter().map(|frame| self.process(frame)).collect();
        }
        let to = View {
            vips: &self.vips,
            wide: &self.wide,
            id_routes: &self.id_routes,
            sources: &self.sources,
            translations: &self.translations,
            mappings: &self.mappings,
            backends: &self.backends,
            tick: self.tick(),
            tables: &self.tables,
            unknown: &self.unknown,
            own_macs: &self.own_macs,
        };
        let mut verdicts = Vec::new();
        let frames = frames.iter().copied();
        pipeline::process_burst(frames.clone(), &to, &mut self.memory, &mut verdicts);
        for (frame, verdict) in frames.zip(&mut verdicts) {
            *verdict = self.refused(frame, *verdict);
            self.learn(frame, verdict);
        }
        verdicts.iter().for_each(|verdict| self.counters.count(verdict));
        verdicts.into_iter().map(Outcome::from).collect()
    }

    /// Publishes a table by its bytes, as they stand in a kernel plane, where another version of
    /// weir may have written them. One of a method that this version does not know decides nothing:
    /// its service's packets are dropped as [`Reason::UnknownMethod`].
    ///
    /// # Errors
    /// [`ImageError`] if the bytes are a damaged table of a known method; the former one stays.
    pub fn show_bytes(
        &mut self,
        service: ServiceId,
        header: &[u8],
        body: &[u8],
    ) -> Result<(), ImageError> {
        match Image::read_from(header, |_, elements| {
            body.get(..elements.checked_mul(ELEMENT_BYTES)?).map(<[u8]>::to_vec)
        }) {
            Ok(table) => {
                self.tables.insert(service, Arc::new(table));
            }
            Err(ImageError::Method(_)) => {
                self.tables.remove(&service);
                self.unknown.insert(service);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Grants an operation `granted` times more, and then refuses it `refused` times.
    pub fn refuse_after(&mut self, operation: Operation, granted: u32, refused: u32) {
        self.refusals.borrow_mut().insert(operation, Refusal { granted, refused });
    }

    /// Refuses an operation from now on.
    pub fn refuse(&mut self, operation: Operation) {
        self.refuse_after(operation, 0, u32::MAX);
    }

    /// Refuses nothing any more.
    pub fn refuse_nothing(&mut self) {
        self.refusals.borrow_mut().clear();
    }

    /// How often an operation was asked for.
    pub fn asked(&self, operation: Operation) -> u64 {
        self.asked.borrow().get(&operation).copied().unwrap_or(0)
    }

    /// Bytes of all tables, the superseded ones included.
    pub fn table_bytes(&self) -> usize {
        self.tables.values().chain(self.former.values()).map(|image| image.bytes()).sum()
    }

    /// Lowers what a SYN to a backend asks for.
    pub fn limit_segments(&self, frame: &mut [u8], backend: BackendId) {
        let way = self.way(backend);
        let segments = self.backends.get(&backend).and_then(|backend| backend.segments);
        if let Some(segments) = segments {
            let translation = self.backends.get(&backend).and_then(|backend| backend.translation);
            let mtu = translation.map_or(0, |to| to.mtu);
            let mtu = way.map_or(mtu, |(tunnel, _)| tunnel.mtu);
            segments.limit(frame, way.as_ref().map(|(tunnel, to)| (tunnel, *to)), mtu);
        }
    }

    /// Takes what a router says of the way to a backend.
    fn learn(&mut self, frame: &[u8], verdict: &Verdict) {
        if *verdict == Verdict::Pass(Reason::PathMtu)
            && let Some(said) = icmp::too_big(frame)
        {
            self.paths.learn(&said, self.nanoseconds);
        }
    }

    /// The tunnel to a backend, with what its way takes now, and where it leads.
    pub fn way(&self, backend: BackendId) -> Option<(Tunnel, IpAddr)> {
        let backend = self.backends.get(&backend)?;
        let tunnel = backend.tunnel?;
        let mtu = self.paths.lower(&map_address(backend.address), tunnel.mtu, self.nanoseconds);
        Some((Tunnel { mtu, ..tunnel }, backend.address))
    }

    /// The verdict, or that the tunnel of the packet's backend refuses it.
    fn refused(&mut self, frame: &[u8], verdict: Verdict) -> Verdict {
        if verdict == Verdict::Echo {
            return match self.echoes.is_none() {
                true => Verdict::Pass(Reason::OtherProtocol),
                false if self.echoes.take(self.nanoseconds) => verdict,
                false => Verdict::Drop(Reason::EchoLimited),
            };
        }
        let Verdict::Forward { backend, echo, .. } = verdict else { return verdict };
        if let Some(to) = self.backends.get(&backend).and_then(|backend| backend.translation) {
            if let Some(refused) = to.refuses(frame) {
                return Verdict::Drop(refused);
            }
            return match self.source(frame, backend, true) {
                Some(Err(reason)) => Verdict::Drop(reason),
                _ => verdict,
            };
        }
        let Some((tunnel, address)) = self.way(backend) else { return verdict };
        let Some(refused) = tunnel.refuses(frame, address) else { return verdict };
        let Some((_, told)) = tunnel.message(frame, address, refused) else {
            return Verdict::Drop(refused);
        };
        if !self.messages.take(self.nanoseconds) {
            return Verdict::Drop(Reason::Untold);
        }
        Verdict::Tell { backend, reason: told, echo }
    }

    fn tick(&self) -> u32 {
        (self.nanoseconds >> MAPPING_TICK_SHIFT) as u32
    }

    /// Makes a packet its backend's, if that has a translation.
    ///
    /// # Errors
    /// Why it cannot, which [`take`](Self::take) finds out before.
    pub fn translate_to(
        &mut self,
        frame: &mut Vec<u8>,
        id: BackendId,
        tag: Option<[u8; 4]>,
    ) -> Result<(), Reason> {
        let known = self.backends.get(&id).map(|backend| (backend.address, backend.translation));
        let Some((address, Some(to))) = known else { return Ok(()) };
        match self.source(frame, id, false) {
            Some(source) => translate_both(frame, source?, (address, to.port), tag),
            None => translate(frame, End::Destination, (address, to.port), tag),
        }
    }

    /// The source that a packet gets on its way to a backend under full NAT, or why it can have none; none at
    /// all under another way to forward. The twin of `find_source` in `bpf/forward/full_nat.h`. `first`: nobody
    /// has asked yet for this packet, so that a mapping is made, or notes it.
    fn source(
        &mut self,
        frame: &[u8],
        id: BackendId,
        first: bool,
    ) -> Option<Result<(IpAddr, Option<u16>), Reason>> {
        let &Backend { address, incarnation, translation, .. } = self.backends.get(&id)?;
        let Translation { port, ports, .. } = translation?;
        let to = Target { backend: id, incarnation, address, port, ports: ports? };
        let (tick, backend) = (self.tick(), false);
        let mappings = self.mappings.get_mut();
        let fragment = fragment(frame);
        let (flow, signs) = match (parse(frame), &fragment) {
            (Ok(packet), _) => {
                (packet.flow, Signs { flags: packet.tcp_flags, backend, quoted: false })
            }
            (Err(_), Some(Fragment { key, packet, .. })) => match packet {
                Ok(packet) => {
                    self.sources_of.remove(key);
                    (packet.flow, Signs { flags: packet.tcp_flags, backend, quoted: false })
                }
                Err(_) => {
                    let origin = self.sources_of.get(key).copied();
                    let known = |origin: u16| mappings.rules.origins.get(usize::from(origin));
                    let found = origin.and_then(known).copied().flatten();
                    let found = found.map(|origin| (origin.address, None));
                    return Some(found.ok_or(Reason::NoMapping));
                }
            },
            (Err(rejected), None) => match icmp::quoted(frame) {
                Some(error) => {
                    (error.flow, Signs { flags: TcpFlags::default(), backend, quoted: true })
                }
                None => return Some(Err(rejected.reason)),
            },
        };
        let noted = Signs { quoted: signs.quoted || !first, ..signs };
        let Some((origin, port)) = mappings.there(&flow, &to, &noted, tick) else {
            let reason = if signs.quoted { Reason::NoMapping } else { Reason::NoPort };
            return Some(Err(reason));
        };
        if let Some(Fragment { key, .. }) = fragment {
            self.sources_of.insert(key, origin);
        }
        let known = mappings.rules.origins.get(usize::from(origin)).copied().flatten();
        let known = known.map(|origin| (origin.address, Some(port)));
        Some(known.ok_or(Reason::NoMapping))
    }

    fn ask(&self, operation: Operation) -> Result<(), SoftError> {
        *self.asked.borrow_mut().entry(operation).or_default() += 1;
        let mut refusals = self.refusals.borrow_mut();
        let Some(refusal) = refusals.get_mut(&operation) else { return Ok(()) };
        if refusal.granted > 0 {
            refusal.granted -= 1;
            return Ok(());
        }
        if refusal.refused > 0 {
            refusal.refused -= u32::from(refusal.refused < u32::MAX);
            return Err(SoftError::OnDemand(operation));
        }
        Ok(())
    }

    fn change_flags(&mut self, service: ServiceId, flag: u32, on: bool) {
        if let Some(table) = self.tables.get(&service) {
            table.set_flags(table.header().flags().with(flag, on));
        }
    }
}

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
        self.ask(Operation::SetFlags)?;
        self.change_flags(service, Flags::RECORD, record);
        self.change_flags(service, Flags::PENDING, pending);
        Ok(())
    }

    /// A packet is processed whole here: none is ever under way.
    fn grace(&mut self) -> Result<(), SoftError> {
        self.ask(Operation::Grace)
    }

    fn drain(&mut self, take: &mut dyn FnMut(&Event)) -> Result<(), SoftError> {
        self.ask(Operation::Drain)?;
        std::mem::take(&mut self.memory.events).iter().for_each(take);
        Ok(())
    }

    fn pending(&self) -> Result<Vec<(ServiceState, BackendId)>, SoftError> {
        self.ask(Operation::ReadPending)?;
        Ok(self.memory.pending.iter().map(|(state, backend)| (*state, *backend)).collect())
    }

    fn forget_pending(&mut self, states: &[ServiceState]) -> Result<(), SoftError> {
        self.ask(Operation::ForgetPending)?;
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

    fn connections(&self, service: ServiceId) -> Result<Vec<(ServiceState, BackendId)>, SoftError> {
        self.ask(Operation::LookUp)?;
        let memory = &self.memory;
        let lives = |flow: &TrackedFlow| {
            memory.incarnations.get(&flow.backend).is_some_and(|now| flow.is_of(*now))
        };
        let of = memory.connections.iter().filter(|(state, _)| state.service == service);
        Ok(of.filter(|(_, flow)| lives(flow)).map(|(state, flow)| (*state, flow.backend)).collect())
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
        self.ask(Operation::Show)?;
        self.former.remove(&service);
        if self.table_bytes() + image.bytes() > self.bounds.table_bytes {
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
        self.ask(Operation::Drain)?;
        let events = &mut self.memory.events;
        events.drain(..most.min(events.len())).for_each(|event| take(&event));
        Ok(())
    }

    fn put_aside(&mut self, _: usize, _: &mut dyn FnMut(&Event)) -> Result<bool, SoftError> {
        Ok(false)
    }

    fn pin_limit(&self) -> usize {
        self.bounds.pins
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    /// Bounds that are set are those of the limits from now on.
    fn resize(&mut self, limits: &Limits) -> Result<(), SoftError> {
        self.ask(Operation::Resize)?;
        let bounds = Bounds {
            table_bytes: limits.table_bytes as usize,
            pins: limits.unreported_flows as usize,
            services: limits.services as usize,
            backends: limits.backends as usize,
        };
        let last = self.backends.keys().last().map_or(0, |id| id.index() + 1);
        let fits = Self::table_bytes(self) <= bounds.table_bytes
            && self.memory.pinned.len() <= bounds.pins
            && self.places() <= bounds.services
            && last <= bounds.backends;
        if !fits {
            return Err(SoftError::Full(Operation::Resize));
        }
        (self.bounds, self.limits) = (bounds, *limits);
        Ok(())
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
        0
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
        let side = self.memory.arm(known, flows);
        Ok(std::mem::replace(&mut self.memory.mark_side, side))
    }

    fn watch(&mut self, due: &mut dyn Iterator<Item = u64>) -> Result<(), SoftError> {
        self.memory.watch(due);
        Ok(())
    }

    fn take_marks(&mut self, side: Side) -> Result<Marks, SoftError> {
        Ok(self.memory.take_marks(side))
    }

    fn are_marked(&self, hashes: &[u64]) -> Result<Vec<bool>, SoftError> {
        Ok(hashes.iter().map(|hash| self.memory.is_marked(*hash)).collect())
    }

    fn is_armed(&self, hash: u64) -> Result<bool, SoftError> {
        Ok(is_armed(|at| self.memory.marks[at], self.memory.mark_side, hash))
    }

    fn armed(&self) -> Result<ArmedFlows, SoftError> {
        let (words, side) = (self.memory.marks.clone(), self.memory.mark_side);
        let room = words.len();
        Ok(ArmedFlows { room, has: Box::new(move |hash| is_armed(|at| words[at], side, hash)) })
    }

    fn seen_flows(&self) -> Result<SeenFlows, SoftError> {
        let now = self.memory.seen_generation;
        let before = if now == 1 { 3 } else { now - 1 };
        let tags = self.memory.seen.iter().flatten().copied();
        Ok(SeenFlows::new(tags.filter(|tag| tag & 3 == now || tag & 3 == before)))
    }

    fn next_seen_generation(&mut self) {
        let now = self.memory.seen_generation;
        self.memory.seen_generation = if now >= 3 { 1 } else { now + 1 };
    }

    fn limit_of(error: &SoftError) -> Option<&'static str> {
        match error {
            SoftError::Full(Operation::Show) => Some("table_bytes"),
            SoftError::Full(Operation::Pin) => Some("unreported_flows"),
            SoftError::Full(Operation::Resize) => Some("backends"),
            _ => None,
        }
    }

    fn accept_own_macs(&mut self, _: &[String]) -> Result<(), SoftError> {
        self.ask(Operation::OwnMacs)
    }

    fn attach(
        &mut self,
        interfaces: &[String],
        how: Attachment,
    ) -> Result<Vec<Attached>, SoftError> {
        self.ask(Operation::Attach)?;
        self.attached = interfaces.to_vec();
        let generic = how == Attachment::Generic;
        let attached = |name: &String| Attached { interface: name.clone(), generic };
        Ok(interfaces.iter().map(attached).collect())
    }
}
