//! A whole data plane in plain memory: frames in, verdicts and counters out. The oracle of the
//! BPF program, and the data plane of tests that need none.

mod demand;
mod face;

pub use demand::{Between, Bounds, Operation, SoftError};

use crate::allowance::Allowance;
use crate::by_id::IdRoutes;
use crate::caps::{Buckets, FlowCaps};
use crate::counters::{Counters, InterfaceCounters};
use crate::forward::mapping::{MAPPING_TICK_SHIFT, Mapping, Mappings, Signs, Target, has_client};
use crate::forward::nat::{End, translate, translate_both};
use crate::forward::{Translation, Tunnel};
use crate::limits::Limits;
use crate::listen::Listen;
use crate::paths::Paths;
use crate::pipeline::{self, Directory, Outcome, Verdict, VipKey};
use crate::plane::{Backend, TakenAway, TooManyMacs, Translated, Translations};
use crate::sources::SourceTable;
use demand::Demand;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use weir_steering::{
    BackendId, ELEMENT_BYTES, Event, EventKind, Flags, Image, ImageError, ServiceId, ServiceState,
    SoftMemory, StateKey,
};
use weir_wire::reset::Reset;
use weir_wire::{
    FlowKey, Fragment, FragmentKey, Protocol, Reason, TcpFlags, echo, fragment, icmp, map_address,
    parse,
};

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
    /// How many new flows are taken, by service; any number, of a service that is not there.
    pub caps: HashMap<ServiceId, FlowCaps>,
    /// What of that is left.
    pub buckets: RefCell<Buckets>,
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
    /// The interfaces have too many of them, as somebody says.
    pub too_many_macs: Option<TooManyMacs>,
    /// What became of the packets so far.
    pub counters: Counters,
    /// What became of frames by the interface that they came by, as somebody says; nobody counts that.
    pub by_interface: Option<BTreeMap<u32, InterfaceCounters>>,
    /// Frames that were lost by the interface that they were to leave by, as somebody says; nobody tells.
    pub lost: Option<BTreeMap<u32, u64>>,
    /// Flows whose reports found no room; there always is, unless somebody says otherwise.
    pub unrecorded: u64,
    /// Why its guard goes by former services, as somebody says.
    pub stale_guard: Option<String>,
    /// How much it has room for.
    pub bounds: Bounds,
    /// What it was sized for last.
    pub limits: Limits,
    /// Its marks keep the size that they have, as those of the kernel do.
    pub marks_stay: bool,
    /// Backends by number.
    pub backends: BTreeMap<BackendId, Backend>,
    /// The errors that it may send.
    pub messages: Allowance,
    /// The replies to echo requests that it may send.
    pub echoes: Allowance,
    /// The resets that it may send.
    pub resets: Allowance,
    /// What routers on the ways to backends have said.
    pub paths: Paths,
    /// The time by which these are old, and messages and new flows are allowed.
    pub nanoseconds: u64,
    /// The interfaces that it is attached to.
    pub attached: Vec<String>,
    /// What was taken away from it, as somebody says, until it is attached and put back.
    pub taken: TakenAway,
    /// Frames that come just before the next table is seen: the flows that have started were collected
    /// by then.
    pub meanwhile: Vec<Vec<u8>>,
    /// What became of them.
    pub came: Vec<Outcome>,
    /// Memory of another size, and looking at packets, are prepared on another thread, as the kernel's are.
    pub takes_time: bool,
    /// What goes on between the steps of whoever changes it.
    pub between: Between,
    demand: Demand,
}

/// The part of a plane that packets only read.
struct View<'a> {
    vips: &'a HashMap<VipKey, ServiceId>,
    wide: &'a BTreeMap<Listen, ServiceId>,
    id_routes: &'a HashMap<ServiceId, IdRoutes>,
    sources: &'a HashMap<ServiceId, SourceTable>,
    caps: &'a HashMap<ServiceId, FlowCaps>,
    buckets: &'a RefCell<Buckets>,
    nanoseconds: u64,
    translations: &'a Translations,
    mappings: &'a RefCell<Mappings>,
    backends: &'a BTreeMap<BackendId, Backend>,
    tick: u32,
    tables: &'a HashMap<ServiceId, Arc<Image>>,
    unknown: &'a HashSet<ServiceId>,
    own_macs: &'a [[u8; 6]],
}

/// Of a plane whose memory is lent out meanwhile.
macro_rules! view {
    ($plane:expr) => {
        View {
            vips: &$plane.vips,
            wide: &$plane.wide,
            id_routes: &$plane.id_routes,
            sources: &$plane.sources,
            caps: &$plane.caps,
            buckets: &$plane.buckets,
            nanoseconds: $plane.nanoseconds,
            translations: &$plane.translations,
            mappings: &$plane.mappings,
            backends: &$plane.backends,
            tick: $plane.tick(),
            tables: &$plane.tables,
            unknown: &$plane.unknown,
            own_macs: &$plane.own_macs,
        }
    };
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

    fn fragments_port(&self, address: &[u8; 16], protocol: Protocol) -> Option<u16> {
        let there =
            |at: &&Listen| at.fragments && at.address == *address && at.protocol == protocol;
        self.wide.keys().find(there).map(|at| at.port)
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

    fn tunnels(&self) -> bool {
        self.backends.values().any(|backend| backend.tunnel.is_some())
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

    fn translated(&self, key: &VipKey) -> Option<Translated> {
        self.translations.get(key).copied()
    }

    fn id_routes(&self, service: ServiceId) -> Option<&IdRoutes> {
        self.id_routes.get(&service)
    }

    fn allows(&self, service: ServiceId, source: &[u8; 16]) -> bool {
        self.sources.get(&service).is_none_or(|table| table.allows(source))
    }

    fn take_flow(&self, service: ServiceId, flow: &StateKey) -> Result<(), Reason> {
        let Some(caps) = self.caps.get(&service) else { return Ok(()) };
        self.buckets.borrow_mut().take(service, caps, flow, self.nanoseconds)
    }
}

impl Soft {
    /// A plane with this memory.
    pub fn new(memory: SoftMemory) -> Self {
        Self { memory, ..Self::default() }
    }

    fn view(&self) -> View<'_> {
        view!(self)
    }

    /// How many places services listen on.
    fn places(&self) -> usize {
        self.vips.len() + self.wide.len()
    }

    /// Among which ones it stands: if there is nothing more to say of it, by its key, if it has one.
    fn plain(&self, at: &Listen) -> Option<VipKey> {
        at.key().filter(|_| !at.is_salted() && !at.fragments)
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
        let to = view!(self);
        pipeline::process(frame, &to, &mut self.memory)
    }

    /// What becomes of that on the way to the backend, which is counted.
    fn settle(&mut self, frame: &[u8], verdict: Verdict) -> Verdict {
        let verdict = self.refused(frame, verdict);
        self.learn(frame, &verdict);
        self.counters.count(&verdict);
        let most = self.bounds.reports;
        self.unrecorded += self.memory.events.len().saturating_sub(most) as u64;
        self.memory.events.truncate(most);
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
        if verdict == Verdict::Reset
            && let Some(reset) = Reset::about(frame)
        {
            reset.put(frame);
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
        if let Verdict::Return { limits: Some(backend), .. } = verdict {
            self.limit_segments(frame, backend);
        }
        if let Verdict::Tell { backend, .. } = verdict {
            let known = self.backends.get(&backend);
            if let Some(to) = known.and_then(|known| known.translation) {
                to.tell(frame);
            } else if let Some((tunnel, address)) = self.way(backend) {
                tunnel.tell(frame, address);
            }
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
        let to = view!(self);
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

    /// Bytes of all tables, the superseded ones included.
    pub fn table_bytes(&self) -> usize {
        self.tables.values().chain(self.former.values()).map(|image| image.bytes()).sum()
    }

    /// Lowers what a SYN to a backend, or a translated SYN+ACK of its, asks for.
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
        // A first fragment is noted anew, also one that gets no source, or is refused.
        if !self.sources_of.is_empty()
            && let Some(Fragment { key, packet: Ok(_), .. }) = fragment(frame)
        {
            self.sources_of.remove(&key);
        }
        if self.backends.get(&backend).is_some_and(|backend| backend.resets) {
            return match Reset::about(frame) {
                None => Verdict::Drop(Reason::DeadBackend),
                Some(_) if self.resets.take(self.nanoseconds) => {
                    self.report_reset(frame, backend);
                    Verdict::Reset
                }
                Some(_) => Verdict::Drop(Reason::ResetLimited),
            };
        }
        if let Some(to) = self.backends.get(&backend).and_then(|backend| backend.translation) {
            if let Some(refused) = to.refuses(frame) {
                let told = to.message(frame, refused).map(|(_, told)| told);
                return self.told(backend, echo, refused, told);
            }
            return match self.source(frame, backend, true) {
                Some(Err(reason)) => Verdict::Drop(reason),
                _ => verdict,
            };
        }
        let Some((tunnel, address)) = self.way(backend) else { return verdict };
        let Some(refused) = tunnel.refuses(frame, address) else { return verdict };
        let told = tunnel.message(frame, address, refused).map(|(_, told)| told);
        self.told(backend, echo, refused, told)
    }

    /// The connection of a packet that is answered by a reset is over, as its client's RST would have it. The twin
    /// of `report_reset` in `bpf/forward/reset.h`.
    fn report_reset(&mut self, frame: &[u8], backend: BackendId) {
        let Ok(packet) = parse(frame) else { return };
        let Some((service, salt)) = pipeline::found(&packet.flow, &self.view()) else { return };
        let Some(flags) = self.tables.get(&service).map(|table| table.header().flags()) else {
            return;
        };
        // The tables of methods whose states the control plane keeps have their flows marked. Clients outlive their
        // connections.
        if flags.has(Flags::MARK) && !flags.has(Flags::CLIENT) {
            let key = StateKey::of_flow_to(&packet.flow, salt);
            let (state, kind) = (ServiceState { service, key }, EventKind::End);
            self.memory.events.push(Event { state, backend, kind });
        }
    }

    /// What becomes of a packet that was refused: its sender is told, if there is a message for it and one more may
    /// be sent.
    fn told(
        &mut self,
        backend: BackendId,
        echo: Option<u32>,
        refused: Reason,
        told: Option<Reason>,
    ) -> Verdict {
        match told {
            None => Verdict::Drop(refused),
            Some(_) if !self.messages.take(self.nanoseconds) => Verdict::Drop(Reason::Untold),
            Some(reason) => Verdict::Tell { backend, reason, echo },
        }
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
        let backends = &self.backends;
        let mappings = self.mappings.get_mut();
        let fragment = fragment(frame);
        let (flow, signs) = match (parse(frame), &fragment) {
            (Ok(packet), _) => {
                (packet.flow, Signs { flags: packet.tcp_flags, backend, quoted: false })
            }
            (Err(_), Some(Fragment { key, packet, .. })) => match packet {
                Ok(packet) => {
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
        // Of an error the client is the one that it is for.
        if !signs.quoted && !has_client(&flow, address, port) {
            return Some(Err(Reason::NoClient));
        }
        let noted = Signs { quoted: signs.quoted || !first, ..signs };
        let is_there = |one: &Mapping| {
            backends.get(&one.backend).is_some_and(|now| now.incarnation == one.incarnation)
        };
        let Some((origin, port)) = mappings.there(&flow, &to, &noted, tick, is_there) else {
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

    fn change_flags(&mut self, service: ServiceId, flag: u32, on: bool) {
        if let Some(table) = self.tables.get(&service) {
            table.set_flags(table.header().flags().with(flag, on));
        }
    }
}
