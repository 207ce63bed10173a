//! The way of a packet: `parse -> service -> decide`, and what is then to be done with the frame
//! ([`forward`](crate::forward)). Pure: frames, tables and memory come in as arguments.

use crate::IdRoutes;
use crate::forward::Translation;
use crate::forward::mapping::{Mapping, Signs};
use crate::listen::Listen;
use crate::plane::Translated;
use std::net::IpAddr;
use weir_steering::{
    BackendId, First, Flags, Image, Memory, Question, ServiceId, Signals, StateKey, TrackedFlow,
    ask, decide_by,
};
use weir_wire::icmp::{self, Quoted};
use weir_wire::quic::{self, Id};
use weir_wire::tcp_options::{Timestamps, TimestampsMut};
use weir_wire::{
    FlowKey, Fragment, FragmentKey, Packet, Protocol, Reason, TcpFlags, echo, fragment, parse,
    tcp_options, unmap_address,
};

/// Bytes of a UDP header.
const UDP_HEADER: usize = 8;
/// Where its length stands in it.
const UDP_LENGTH_AT: usize = 4;

/// One address, and one port or any, that a service listens on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct VipKey {
    /// Address, IPv4 mapped.
    pub address: [u8; 16],
    /// Whose ports they are.
    pub protocol: Protocol,
    /// Port; `None` for any.
    pub port: Option<u16>,
}

/// Where packets find services and their tables. A packet asks for the table once and keeps it.
pub trait Directory {
    /// The service that listens there, at an address without a salt.
    fn service(&self, key: &VipKey) -> Option<ServiceId>;
    /// The most exact of all other places where packets of a flow are listened for, and the service that
    /// does.
    fn beyond(&self, flow: &FlowKey) -> Option<(Listen, ServiceId)> {
        let _ = flow;
        None
    }
    /// Whether any service has this address.
    fn has_address(&self, address: &[u8; 16]) -> bool;
    /// Whether frames to this MAC address are ours.
    fn is_own_mac(&self, mac: [u8; 6]) -> bool;
    /// The published table of a service.
    ///
    /// # Errors
    /// Why its packets are dropped if there is none that can decide: [`Reason::NoTable`], or
    /// [`Reason::UnknownMethod`].
    fn table(&self, service: ServiceId) -> Result<&Image, Reason>;
    /// Whether any backend is behind a tunnel.
    fn tunnels(&self) -> bool {
        false
    }
    /// Whether answers of any backend are translated.
    fn translates(&self) -> bool {
        false
    }
    /// What becomes of answers from there, if they are translated.
    fn translated(&self, key: &VipKey) -> Option<Translated> {
        let _ = key;
        None
    }
    /// What an answer to an address of the balancer's is of: none, if it comes to none that connections have;
    /// none inside, if no connection has its port. It is noted, too.
    fn mapped(&self, flow: &FlowKey, signs: &Signs) -> Option<Option<Mapping>> {
        let _ = (flow, signs);
        None
    }
    /// Whether connections come from this address and port of the balancer's.
    fn is_origin(&self, address: &[u8; 16], port: u16) -> bool {
        let _ = (address, port);
        false
    }
    /// What leads packets of a service by their QUIC ids, if anything does.
    fn id_routes(&self, service: ServiceId) -> Option<&IdRoutes> {
        let _ = service;
        None
    }
    /// The port of the service that alone listens at an address on a protocol, if later fragments are led by their
    /// source there ([`Listen::fragments`](crate::Listen::fragments)).
    fn fragments_port(&self, address: &[u8; 16], protocol: Protocol) -> Option<u16> {
        let _ = (address, protocol);
        None
    }
    /// Whether a service takes packets from a source.
    fn allows(&self, service: ServiceId, source: &[u8; 16]) -> bool {
        let _ = (service, source);
        true
    }
    /// Whether a service takes this new flow now, which is told by its source and ports; it counts as taken.
    ///
    /// # Errors
    /// Why its packet is dropped: [`Reason::SourceConnectionCap`], [`Reason::SourceFlowCap`],
    /// [`Reason::NewFlowCap`].
    fn take_flow(&self, service: ServiceId, flow: &StateKey) -> Result<(), Reason> {
        let _ = (service, flow);
        Ok(())
    }
}

/// What is to be done with a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It goes to a backend.
    Forward {
        /// The backend's number.
        backend: BackendId,
        /// Whether its flow starts there.
        new: bool,
        /// Its bytes from the IP header on.
        bytes: u32,
        /// What the timestamps of everything that the backend sends must carry; see
        /// [`Decision::cookie`](weir_steering::Decision::cookie).
        cookie: Option<u16>,
        /// The TSecr that it is to have instead of its own; see
        /// [`Decision::echo`](weir_steering::Decision::echo).
        echo: Option<u32>,
    },
    /// It is a backend's answer, which the kernel forwards; with this TSval, if it has one.
    Answer(Option<u32>),
    /// It is a backend's answer, which goes back to the client as the service's.
    Return {
        /// The service's address.
        address: IpAddr,
        /// Its port; none: the one that it has.
        port: Option<u16>,
        /// The client, to whom it is not addressed: it came to an address of the balancer's.
        client: Option<(IpAddr, u16)>,
        /// Its bytes from the IP header on.
        bytes: u32,
        /// Its backend, by whose service segments may be limited.
        limits: Option<BackendId>,
    },
    /// It is the kernel's.
    Pass(Reason),
    /// It goes nowhere.
    Drop(Reason),
    /// It is an echo request to a service's address, and its frame goes back as the reply.
    Echo,
    /// Its backend is down, and its frame goes back as the reset of its connection.
    Reset,
    /// It goes nowhere, and its frame goes back as the message that tells its sender why.
    Tell {
        /// The backend that it would have gone to.
        backend: BackendId,
        /// Why it goes nowhere.
        reason: Reason,
        /// As in [`Verdict::Forward`].
        echo: Option<u32>,
    },
}

/// What happened to a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It went to the backend with this number.
    Forwarded(BackendId),
    /// It went back to the client.
    Returned,
    /// It was left to the kernel.
    Passed(Reason),
    /// It was dropped.
    Dropped(Reason),
}

impl From<Verdict> for Outcome {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Forward { backend, .. } => Self::Forwarded(backend),
            Verdict::Answer(_) => Self::Passed(Reason::Answer),
            Verdict::Return { .. } => Self::Returned,
            Verdict::Pass(reason) => Self::Passed(reason),
            Verdict::Echo => Self::Dropped(Reason::EchoAnswered),
            Verdict::Reset => Self::Dropped(Reason::ResetSent),
            Verdict::Drop(reason) | Verdict::Tell { reason, .. } => Self::Dropped(reason),
        }
    }
}

/// A packet on its way: what it is, and whose.
#[derive(Clone, Copy, Debug)]
pub struct Classified<'a> {
    /// What its headers say.
    pub packet: Packet,
    /// What else it says that the service's method wants to know.
    pub signals: Signals,
    /// The number of its service.
    pub service: ServiceId,
    /// The service's table, which decides it whatever is published meanwhile.
    pub table: &'a Image,
    /// The backend that its QUIC id leads to, if the service is led by ids; the table decides where
    /// it leads to none.
    pub by_id: Option<BackendId>,
    /// The packet that it is the first fragment of.
    pub fragment: Option<FragmentKey>,
}

/// The service that takes a flow: of all that could, the one that says most exactly what it takes
/// ([`listen`](crate::Listen)).
pub fn service_of(flow: &FlowKey, to: &impl Directory) -> Option<ServiceId> {
    found(flow, to).map(|(service, _)| service)
}

/// The same, and what its state's destination port is XORed with ([`Listen::salt_of`]).
pub fn found(flow: &FlowKey, to: &impl Directory) -> Option<(ServiceId, u16)> {
    let exact = VipKey { address: flow.dst, protocol: flow.protocol, port: Some(flow.dst_port) };
    if let Some(service) = to.service(&exact) {
        return Some((service, 0));
    }
    let any = || to.service(&VipKey { port: None, ..exact }).map(|service| (service, 0));
    match to.beyond(flow) {
        Some((at, service)) if at.is_one_address() => Some((service, at.salt_of(&flow.dst))),
        Some((at, service)) => any().or(Some((service, at.salt_of(&flow.dst)))),
        None => any(),
    }
}

/// The first half: what the frame is, and which table decides it; or that none does.
///
/// # Errors
/// The verdict for a frame that is for no service or that cannot be read.
pub fn classify<'a>(frame: &[u8], to: &'a impl Directory) -> Result<Classified<'a>, Verdict> {
    let packet = match parse(frame) {
        Ok(packet) => packet,
        Err(rejected) => {
            let known = |dst: [u8; 16]| to.has_address(&dst);
            if rejected.reason == Reason::OtherProtocol
                && rejected.dst.is_some_and(known)
                && let Some(error) = icmp::quoted(frame)
            {
                return classify_error(frame, &error, to);
            }
            if rejected.reason == Reason::OtherProtocol
                && frame.first_chunk().is_some_and(|mac| to.is_own_mac(*mac))
            {
                if rejected.dst.is_some_and(known) {
                    if echo::is_request(frame) {
                        return Err(Verdict::Echo);
                    }
                } else if icmp::too_big(frame).is_some()
                    && to.tunnels()
                    && !is_about_translated(frame, to)
                {
                    return Err(Verdict::Pass(Reason::PathMtu));
                }
            }
            // About a packet that was sent to a backend with other addresses.
            if rejected.reason == Reason::OtherProtocol
                && to.translates()
                && !rejected.dst.is_some_and(known)
                && let Some(error) = icmp::quoted(frame)
            {
                return classify_error(frame, &error, to);
            }
            if (rejected.dst.is_some_and(known) || to.translates())
                && let Some(fragment) = fragment(frame)
            {
                if rejected.dst.is_some_and(known) {
                    return classify_fragment(frame, &fragment, to);
                }
                // Of what backends send, the first one tells whose it is.
                let reason = fragment.packet.err().unwrap_or(Reason::NoService);
                return Err(Verdict::Pass(reason));
            }
            let ours = rejected.reason != Reason::OtherProtocol && rejected.dst.is_some_and(known);
            let verdict = if ours { Verdict::Drop } else { Verdict::Pass };
            return Err(verdict(rejected.reason));
        }
    };
    let (service, table, salt) = whose(frame, &packet.flow, to)?;
    let by_id = to.id_routes(service).and_then(|routes| {
        let datagram = segment(frame, &packet);
        let length = u16::from_be_bytes(*datagram.get(UDP_LENGTH_AT..)?.first_chunk()?);
        let payload = datagram.get(UDP_HEADER..length.into())?;
        routes.route_datagram(payload).ok()
    });
    let signals = Signals { salt, ..signals(frame, &packet, table) };
    Ok(Classified { packet, signals, service, table, by_id, fragment: None })
}

/// The first fragment goes the way of a whole packet, but by no QUIC id: QUIC is not fragmented
/// (RFC 9000 section 14). The others go where it went, which [`finish`] knows.
fn classify_fragment<'a>(
    frame: &[u8],
    fragment: &Fragment,
    to: &'a impl Directory,
) -> Result<Classified<'a>, Verdict> {
    let packet = fragment.packet.map_err(Verdict::Drop)?;
    let (service, table, salt) = whose(frame, &packet.flow, to)?;
    let signals = Signals { salt, ..signals(frame, &packet, table) };
    Ok(Classified { packet, signals, service, table, by_id: None, fragment: Some(fragment.key) })
}

/// An ICMP error goes the way of the connection whose packet it quotes, but by no QUIC id: what
/// backends send has the clients' ids.
fn classify_error<'a>(
    frame: &[u8],
    error: &Quoted,
    to: &'a impl Directory,
) -> Result<Classified<'a>, Verdict> {
    let (service, table, salt) = whose(frame, &error.flow, to)?;
    let packet = Packet {
        flow: error.flow,
        tcp_flags: TcpFlags::ACK,
        l3_offset: error.l3_offset,
        l4_offset: error.l3_offset,
        vlan_tags: 0,
        ip_length: error.ip_length,
    };
    let echo = error.value.filter(|_| table.method().info().needs.timestamps);
    let signals = Signals { quoted: true, salt, ..Signals::LATER.with_echo(echo) };
    Ok(Classified { packet, signals, service, table, by_id: None, fragment: None })
}

/// The service that a frame is for, its table, and what its state's destination port is XORed with.
fn whose<'a>(
    frame: &[u8],
    flow: &FlowKey,
    to: &'a impl Directory,
) -> Result<(ServiceId, &'a Image, u16), Verdict> {
    let (service, salt) = found(flow, to).ok_or(Verdict::Pass(Reason::NoService))?;
    // After the service, because other traffic is passed either way. The kernel would answer for a
    // service if the address is one that the interface has had for a moment only.
    if !frame.first_chunk().is_some_and(|mac| to.is_own_mac(*mac)) {
        return Err(Verdict::Drop(Reason::OtherHost));
    }
    let table = to.table(service).map_err(Verdict::Drop)?;
    if !to.allows(service, &flow.src) {
        return Err(Verdict::Drop(Reason::DeniedSource));
    }
    Ok((service, table, salt))
}

/// From the transport header on, without what pads the frame.
fn segment<'a>(frame: &'a [u8], packet: &Packet) -> &'a [u8] {
    let end = usize::from(packet.l3_offset) + packet.ip_length as usize;
    frame.get(packet.l4_offset.into()..end).unwrap_or(&[])
}

/// What a packet says beside its flow. TCP options are only looked at for a method that needs
/// them; malformed ones count as none.
fn signals(frame: &[u8], packet: &Packet, table: &Image) -> Signals {
    let signals = Signals::of_tcp(packet.tcp_flags);
    let segment = segment(frame, packet);
    match packet.flow.protocol {
        Protocol::Tcp if table.method().info().needs.timestamps => {
            signals.with_echo(timestamps(segment).map(|timestamps| timestamps.echo))
        }
        Protocol::Tcp | Protocol::Sctp => signals,
        Protocol::Udp => Signals { connection_id: connection_id(segment), ..signals },
    }
}

/// Malformed ones count as none.
fn timestamps(segment: &[u8]) -> Option<Timestamps> {
    tcp_options::find(segment).ok().flatten()
}

/// What stands where a QUIC packet has its destination id, whether or not the datagram is one: that
/// the service says. Of a short header, the id and what follows it, 20 bytes in all.
fn connection_id(datagram: &[u8]) -> Option<Id> {
    let payload = datagram.get(UDP_HEADER..)?;
    let (quic::Header::Long { destination, .. } | quic::Header::Short { destination }) =
        quic::parse_header(payload).ok()?;
    Id::new(destination)
}

/// The second half: where the packet goes. Notes, marks and reports go to `memory`.
pub fn steer(packet: &Classified<'_>, memory: &mut impl Memory) -> Verdict {
    let Classified { packet, signals, service, table, by_id, fragment } = packet;
    // Nothing is asked or left behind: the id says it all. One that has just gone takes nothing.
    if let Some(backend) = by_id.filter(|backend| memory.incarnation(*backend).is_some()) {
        return Verdict::Forward {
            backend,
            new: false,
            bytes: packet.ip_length,
            cookie: None,
            echo: None,
        };
    }
    let decision = decide_by(table, *service, &packet.flow, *signals, memory);
    match decision.backend {
        Err(reason) => Verdict::Drop(reason),
        Ok(backend) => {
            if let Some(key) = fragment {
                memory.note_fragment(key, First::To(backend));
            }
            Verdict::Forward {
                backend,
                new: decision.new,
                bytes: packet.ip_length,
                cookie: decision.cookie,
                echo: decision.echo,
            }
        }
    }
}

/// Both halves for one frame.
pub fn process(frame: &[u8], to: &impl Directory, memory: &mut impl Memory) -> Verdict {
    finish(frame, &classify(frame, to), to, memory)
}

fn finish(
    frame: &[u8],
    classified: &Result<Classified<'_>, Verdict>,
    to: &impl Directory,
    memory: &mut impl Memory,
) -> Verdict {
    match classified {
        Ok(packet) => match cap(packet, to) {
            Ok(()) => steer(packet, memory),
            Err(reason) => Verdict::Drop(reason),
        },
        Err(other @ Verdict::Pass(Reason::NoService)) => {
            let answer = answer(frame, to, memory).or_else(|| translated(frame, to));
            note_first(frame, answer.as_ref(), to, memory);
            answer.unwrap_or(*other)
        }
        Err(Verdict::Drop(Reason::LaterFragment)) => translated_later(frame, to, memory)
            .or_else(|| if is_noted(frame, memory) { None } else { by_source(frame, to, memory) })
            .unwrap_or_else(|| follow(frame, to, memory)),
        Err(other @ Verdict::Pass(Reason::LaterFragment)) => {
            translated_later(frame, to, memory).unwrap_or(*other)
        }
        Err(verdict) => *verdict,
    }
}

/// Whether the service takes the packet's flow, if it begins one: a SYN without ACK, or what stands for one in
/// SCTP. No other packet says by itself that it does, and none of a connection that there is may be refused. The
/// twin of `is_capped` in `bpf/caps.h`.
fn cap(packet: &Classified<'_>, to: &impl Directory) -> Result<(), Reason> {
    let Classified { packet, signals, service, .. } = packet;
    if packet.tcp_flags.starts() && !signals.quoted {
        to.take_flow(*service, &StateKey::of_flow_to(&packet.flow, signals.salt))
    } else {
        Ok(())
    }
}

/// A later fragment of a packet for a service's address goes where the first one went. The twin of
/// `follow_fragment` in `bpf/fragment.h`.
fn follow(frame: &[u8], to: &impl Directory, memory: &mut impl Memory) -> Verdict {
    let unknown = Verdict::Drop(Reason::LaterFragment);
    let Some(fragment) = fragment(frame) else { return unknown };
    if !frame.first_chunk().is_some_and(|mac| to.is_own_mac(*mac)) {
        return Verdict::Drop(Reason::OtherHost);
    }
    match memory.fragment(&fragment.key) {
        None => unknown,
        // It was translated, and nothing is any more.
        Some(First::Back(_)) => unknown,
        Some(First::Kernel) => Verdict::Pass(Reason::NoService),
        Some(First::To(backend)) => Verdict::Forward {
            backend,
            new: false,
            bytes: fragment.ip_length,
            cookie: None,
            echo: None,
        },
    }
}

/// Whether it is known where the first fragment went: another service may have a port of its own at this address.
fn is_noted(frame: &[u8], memory: &mut impl Memory) -> bool {
    let first = fragment(frame).and_then(|fragment| memory.fragment(&fragment.key));
    matches!(first, Some(First::To(_) | First::Kernel))
}

/// A later fragment needs no first one where its service takes any port, or is the only one there and says so, and
/// leads clients by their address: it says all that is asked for. Not where QUIC ids are asked for first. The twin of `leads_by_source` in
/// `bpf/weir.bpf.c`.
fn by_source(frame: &[u8], to: &impl Directory, memory: &mut impl Memory) -> Option<Verdict> {
    let Fragment { key, l3_offset, ip_length, protocol, .. } = fragment(frame)?;
    let protocol = Protocol::from_number(protocol)?;
    let dst_port = to.fragments_port(&key.dst, protocol).unwrap_or(0);
    let flow = FlowKey { src: key.src, dst: key.dst, src_port: 0, dst_port, protocol };
    let service = service_of(&flow, to)?;
    let by_client = to.table(service).is_ok_and(|table| table.header().flags().has(Flags::CLIENT));
    if !by_client || to.id_routes(service).is_some() {
        return None;
    }
    let (service, table, salt) = match whose(frame, &flow, to) {
        Ok(found) => found,
        Err(verdict) => return Some(verdict),
    };
    let packet = Packet {
        flow,
        tcp_flags: TcpFlags::ACK,
        l3_offset,
        l4_offset: l3_offset,
        vlan_tags: 0,
        ip_length,
    };
    let signals = Signals { salt, ..Signals::LATER };
    let later = Classified { packet, signals, service, table, by_id: None, fragment: None };
    Some(steer(&later, memory))
}

/// Notes what becomes of a first fragment that is for no service: of a backend's that was translated, whose it
/// is; of one to a service's address, that it is the kernel's; of another nothing, and then what was known of an
/// earlier packet with the same identification is none of this one's. The twin of `note_answer` and
/// `note_fragment` in `bpf/fragment.h`.
fn note_first(
    frame: &[u8],
    answer: Option<&Verdict>,
    to: &impl Directory,
    memory: &mut impl Memory,
) {
    let Some(Fragment { key, packet: Ok(packet), .. }) = fragment(frame) else { return };
    match answer {
        Some(Verdict::Drop(_)) => memory.forget_fragment(&key),
        Some(_) => memory.note_fragment(&key, First::Back(packet.flow)),
        None if to.has_address(&key.dst) => memory.note_fragment(&key, First::Kernel),
        None if to.translates() => memory.forget_fragment(&key),
        None => {}
    }
}

/// A later fragment of a backend's packet whose first one was translated. The twin of `recall_answer` in
/// `bpf/fragment.h`.
fn translated_later(
    frame: &[u8],
    to: &impl Directory,
    memory: &mut impl Memory,
) -> Option<Verdict> {
    if !to.translates() {
        return None;
    }
    let fragment = fragment(frame)?;
    let First::Back(flow) = memory.fragment(&fragment.key)? else { return None };
    // The first one has said what is to be noted of its connection.
    let signs = Signs { flags: TcpFlags::default(), backend: true, quoted: true };
    translated_flow(frame, &flow, fragment.ip_length, &signs, to)
}

/// A packet from a service, if its answers pass here and the connection is known. The twin of
/// `answer` in `bpf/answers.h`.
fn answer(frame: &[u8], to: &impl Directory, memory: &mut impl Memory) -> Option<Verdict> {
    let packet = parse(frame).ok().filter(|packet| packet.flow.protocol == Protocol::Tcp)?;
    let FlowKey { src, dst, src_port, dst_port, protocol } = packet.flow;
    let flow = FlowKey { src: dst, dst: src, src_port: dst_port, dst_port: src_port, protocol };
    let service = service_of(&flow, to)?;
    let table = to.table(service).ok()?;
    let codec = match table {
        Image::Cheetah(table) => *table.body().0.method.codec(),
        Image::CheetahStateful(table) => table.body().0.method.method.codec(),
        _ => return None,
    };
    if !table.header().flags().has(Flags::ANSWERS) {
        return None;
    }
    let question = ask(table, service, &flow, Signals::LATER, memory.now(), memory);
    let known = memory.answered(&question)?;
    let flags = packet.tcp_flags;
    let starts = flags.intersects(TcpFlags::SYN);
    let number = known.number();
    let left = flags.ends() && known.end();
    let cookie = codec.hide_for(question.hash, number);
    // Whom only a table of servers by number has.
    let numbered = match table {
        Image::Cheetah(table) => table.body().0.servers.backend(number).and_then(BackendId::new),
        _ => None,
    };
    if flags.ends() {
        // Only a method with slots has one.
        let signals = Signals { ends: true, ..question.signals };
        memory.slot(&Question { signals, ..question }, cookie);
    }
    let end = usize::from(packet.l3_offset) + packet.ip_length as usize;
    let Some(found) = timestamps(&frame[packet.l4_offset.into()..end]) else {
        let mut counted = left;
        if starts && flags.intersects(TcpFlags::ACK) {
            let backend = match table {
                Image::CheetahStateful(table) => {
                    let servers = &table.body().0.servers;
                    let lived = memory.close_slot(&question, cookie);
                    lived.filter(|backend| servers.uses(backend.get()))
                }
                _ => numbered,
            };
            counted |= memory.answered(&question)?.end();
            track_instead(&question, backend, memory);
        }
        uncount(counted, numbered, memory);
        return Some(Verdict::Answer(None));
    };
    let value = memory.answered(&question)?.outgoing(found.value, cookie, starts);
    uncount(left, numbered, memory);
    Some(Verdict::Answer(Some(value)))
}

/// The connection counted among the open ones of its backend, and does no more.
fn uncount(counted: bool, backend: Option<BackendId>, memory: &mut impl Memory) {
    if let Some(backend) = backend.filter(|_| counted) {
        memory.count(backend, false);
    }
}

/// Whether an ICMP error is about a packet that was sent to a backend with other addresses: so about none of a
/// tunnel's, which may be a datagram, too. The twin of `is_about_translated` in `bpf/back.h`.
fn is_about_translated(frame: &[u8], to: &impl Directory) -> bool {
    let Some(error) = icmp::quoted(frame).filter(|_| to.translates()) else { return false };
    let FlowKey { src: address, src_port, dst, dst_port, protocol } = error.flow;
    let from = VipKey { address, protocol, port: Some(src_port) };
    let known = to.translated(&from).or_else(|| to.translated(&VipKey { port: None, ..from }));
    known.is_some() || to.is_origin(&dst, dst_port)
}

/// A packet of a backend whose answers are translated, or an ICMP error about one that was sent there. One
/// whose TTL is used up is the kernel's, which tells the sender. The twin of `bpf/back.h`.
fn translated(frame: &[u8], to: &impl Directory) -> Option<Verdict> {
    if !to.translates() {
        return None;
    }
    let backend = true;
    let first = || fragment(frame)?.packet.ok();
    if let Some(Packet { flow, tcp_flags: flags, ip_length, .. }) = parse(frame).ok().or_else(first)
    {
        let signs = Signs { flags, backend, quoted: false };
        return translated_flow(frame, &flow, ip_length, &signs, to);
    }
    let error = icmp::quoted(frame)?;
    let signs = Signs { flags: TcpFlags::default(), backend, quoted: true };
    translated_flow(frame, &error.flow, error.ip_length, &signs, to)
}

/// The same, of which flow and what it says are known.
fn translated_flow(
    frame: &[u8],
    flow: &FlowKey,
    bytes: u32,
    signs: &Signs,
    to: &impl Directory,
) -> Option<Verdict> {
    if !frame.first_chunk().is_some_and(|mac| to.is_own_mac(*mac)) {
        return None;
    }
    // No service of SCTP is translated.
    if flow.protocol == Protocol::Sctp {
        return None;
    }
    // To an address and port of the balancer's first: its backend may be another service's under plain NAT, too.
    if let Some(mapping) = to.mapped(flow, signs) {
        return returned(frame, bytes, mapping);
    }
    let from = VipKey { address: flow.src, protocol: flow.protocol, port: Some(flow.src_port) };
    let exact = to.translated(&from);
    let Translated { service, limits } =
        exact.or_else(|| to.translated(&VipKey { port: None, ..from }))?;
    if used_up(frame) {
        return Some(Verdict::Pass(Reason::TtlExceeded));
    }
    let (address, port) = (unmap_address(&service.address), service.port);
    Some(Verdict::Return { address, port, client: None, bytes, limits })
}

/// What came to an address of the balancer's, as its mapping says.
fn returned(frame: &[u8], bytes: u32, mapping: Option<Mapping>) -> Option<Verdict> {
    let Some(Mapping { flow, backend, .. }) = mapping else {
        return Some(Verdict::Drop(Reason::NoMapping));
    };
    if used_up(frame) {
        return Some(Verdict::Drop(Reason::TtlExceeded));
    }
    let client = Some((unmap_address(&flow.src), flow.src_port));
    let (address, port) = (unmap_address(&flow.dst), Some(flow.dst_port));
    Some(Verdict::Return { address, port, client, bytes, limits: Some(backend) })
}

/// Whether a router would not pass the packet on.
fn used_up(frame: &[u8]) -> bool {
    Translation { port: None, mtu: 0, ports: None }.refuses(frame) == Some(Reason::TtlExceeded)
}

/// The backend has no timestamps, so the connection's packets will carry no cookies.
fn track_instead(question: &Question, backend: Option<BackendId>, memory: &mut impl Memory) {
    memory.watch(question, None);
    let Some(backend) = backend else { return };
    if let Some(incarnation) = memory.incarnation(backend) {
        memory.track(question, TrackedFlow::new(backend, incarnation));
    }
}

/// Writes into a frame what its verdict says about its timestamps.
pub fn restamp(frame: &mut [u8], verdict: &Verdict) {
    let (value, echo) = match *verdict {
        Verdict::Answer(value) => (value, None),
        Verdict::Forward { echo, .. } | Verdict::Tell { echo, .. } => (None, echo),
        _ => return,
    };
    if value.or(echo).is_none() {
        return;
    }
    let first = || fragment(frame)?.packet.ok();
    let Some(packet) = parse(frame).ok().or_else(first) else { return };
    let end = usize::from(packet.l3_offset) + packet.ip_length as usize;
    let Some(segment) = frame.get_mut(packet.l4_offset.into()..end) else { return };
    if let Ok(Some(mut stamps)) = TimestampsMut::find(segment) {
        value.into_iter().for_each(|value| stamps.set_value(value));
        echo.into_iter().for_each(|echo| stamps.set_echo(echo));
    }
}

/// The frames of a burst, first all through one half and then all through the other, so that the
/// reads of many packets are under way at once. The verdicts are those of [`process`] one after
/// the other.
pub fn process_burst<'f>(
    frames: impl IntoIterator<Item = &'f [u8]>,
    to: &impl Directory,
    memory: &mut impl Memory,
    verdicts: &mut Vec<Verdict>,
) {
    let classified: Vec<_> = frames.into_iter().map(|frame| (frame, classify(frame, to))).collect();
    verdicts.clear();
    verdicts.extend(classified.iter().map(|(frame, packet)| finish(frame, packet, to, memory)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_steering::{
        BackendId, EventKind, Member, MethodId, Question, Role, ServiceConfig, Settings,
    };
    use weir_wire::craft::Frame;

    struct One(std::sync::Arc<Image>);

    impl Directory for One {
        fn service(&self, _: &VipKey) -> Option<ServiceId> {
            Some(ServiceId(0))
        }

        fn has_address(&self, _: &[u8; 16]) -> bool {
            true
        }

        fn is_own_mac(&self, _: [u8; 6]) -> bool {
            true
        }

        fn table(&self, _: ServiceId) -> Result<&Image, Reason> {
            Ok(&self.0)
        }
    }

    /// Keeps the ids of the flows that start.
    #[derive(Default)]
    struct Ids(Vec<Option<Id>>);

    impl Memory for Ids {
        fn seen_before(&mut self, _: &Question) -> bool {
            false
        }

        fn report(&mut self, question: &Question, _: BackendId, _: EventKind) {
            self.0.push(question.signals.connection_id);
        }
    }

    fn service() -> One {
        let config = ServiceConfig {
            settings: Settings::of(MethodId::Concury),
            client_affinity: false,
            udp: true,
            seed: 1,
            nonce: 1,
            capacity: 0,
            max_states: 10,
            idle_seconds: 10,
        };
        let make = MethodId::Concury.info().builder.expect("it has tables");
        let member =
            Member { backend: BackendId::of(0), name: "b".into(), weight: 1, role: Role::Serving };
        One(make(&config, None).build(1, &[member], 0).expect("it fits").table)
    }

    /// Long and short headers, over IPv4 and IPv6, behind VLAN tags; too short ones; padding is no
    /// part of an id.
    #[test]
    fn questions_have_the_connection_id_of_a_datagram() {
        let to = service();
        for (client, vip) in
            [("10.1.0.1:4000", "10.0.0.1:443"), ("[fd00::1]:4000", "[fd00::2]:443")]
        {
            let flow = FlowKey::new(
                client.parse().expect("an address"),
                vip.parse().expect("an address"),
                Protocol::Udp,
            );
            let asked = |payload: &[u8], padding: usize| {
                let mut frame = Frame::new(flow).vlan(9).payload(payload.len() as u16).build();
                let at = frame.len() - payload.len();
                frame[at..].copy_from_slice(payload);
                frame.resize(frame.len() + padding, 0xee);
                let mut ids = Ids::default();
                assert!(matches!(process(&frame, &to, &mut ids), Verdict::Forward { .. }));
                assert_eq!(ids.0.len(), 1);
                ids.0[0].map(|id| id.as_bytes().to_vec())
            };
            let long = [0xc3, 0, 0, 0, 1, 4, 21, 22, 23, 24, 2, 31, 32, 99];
            assert_eq!(asked(&long, 0), Some(vec![21, 22, 23, 24]));
            let short: Vec<u8> = (0x40..0x40 + 40).collect();
            assert_eq!(asked(&short, 0), Some(short[1..21].to_vec()));
            assert_eq!(asked(&short[..6], 30), Some(short[1..6].to_vec()));
            assert_eq!(asked(&long[..8], 30), None, "it ends inside of the id");
            assert_eq!(asked(&[], 40), None);
        }
    }
}
