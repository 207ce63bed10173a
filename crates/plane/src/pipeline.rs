//! The way of a packet: `parse -> service -> decide`, and what is then to be done with the frame
//! ([`forward`](crate::forward)). Pure: frames, tables and memory come in as arguments.

use weir_steering::{Image, Memory, decide};
use weir_wire::{FlowKey, Packet, Protocol, Reason, parse};

/// What a service listens on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct VipKey {
    /// Address, IPv4 mapped.
    pub address: [u8; 16],
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Port; `None` for any.
    pub port: Option<u16>,
}

/// Where packets find services and their tables. A packet asks for the table once and keeps it.
pub trait Directory {
    /// The service that listens there.
    fn service(&self, key: &VipKey) -> Option<u32>;
    /// Whether any service has this address.
    fn has_address(&self, address: &[u8; 16]) -> bool;
    /// Whether frames to this MAC address are ours.
    fn is_own_mac(&self, mac: [u8; 6]) -> bool;
    /// The published table of a service.
    ///
    /// # Errors
    /// Why its packets are dropped if there is none that can decide: [`Reason::NoTable`], or
    /// [`Reason::UnknownMethod`].
    fn table(&self, service: u32) -> Result<&Image, Reason>;
}

/// What is to be done with a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It goes to a backend.
    Forward {
        /// The backend's number.
        backend: u16,
        /// Whether its flow starts there.
        new: bool,
        /// Its bytes from the IP header on.
        bytes: u32,
    },
    /// It is the kernel's.
    Pass(Reason),
    /// It goes nowhere.
    Drop(Reason),
}

/// What happened to a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It went to the backend with this number.
    Forwarded(u16),
    /// It was left to the kernel.
    Passed(Reason),
    /// It was dropped.
    Dropped(Reason),
}

impl From<Verdict> for Outcome {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Forward { backend, .. } => Self::Forwarded(backend),
            Verdict::Pass(reason) => Self::Passed(reason),
            Verdict::Drop(reason) => Self::Dropped(reason),
        }
    }
}

/// A packet on its way: what it is, and whose.
#[derive(Clone, Copy, Debug)]
pub struct Classified<'a> {
    /// What its headers say.
    pub packet: Packet,
    /// The number of its service.
    pub service: u32,
    /// The service's table, which decides it whatever is published meanwhile.
    pub table: &'a Image,
}

/// The service that takes a flow: the one on its port, or else the one on any.
pub fn service_of(flow: &FlowKey, to: &impl Directory) -> Option<u32> {
    let exact = VipKey { address: flow.dst, protocol: flow.protocol, port: Some(flow.dst_port) };
    to.service(&exact).or_else(|| to.service(&VipKey { port: None, ..exact }))
}

/// The first half: what the frame is, and which table decides it; or that none does.
///
/// # Errors
/// The verdict for a frame that is for no service or that cannot be read.
pub fn classify<'a>(frame: &[u8], to: &'a impl Directory) -> Result<Classified<'a>, Verdict> {
    let packet = match parse(frame) {
        Ok(packet) => packet,
        Err(rejected) => {
            let ours = rejected.reason != Reason::OtherProtocol
                && rejected.dst.is_some_and(|dst| to.has_address(&dst));
            let verdict = if ours { Verdict::Drop } else { Verdict::Pass };
            return Err(verdict(rejected.reason));
        }
    };
    let flow = &packet.flow;
    let service = service_of(flow, to).ok_or(Verdict::Pass(Reason::NoService))?;
    // After the service, because other traffic is passed either way. The kernel would answer for a
    // service if the address is one that the interface has had for a moment only.
    if !frame.first_chunk().is_some_and(|mac| to.is_own_mac(*mac)) {
        return Err(Verdict::Drop(Reason::OtherHost));
    }
    let table = to.table(service).map_err(Verdict::Drop)?;
    Ok(Classified { packet, service, table })
}

/// The second half: where the packet goes. Notes, marks and reports go to `memory`.
pub fn steer(packet: &Classified<'_>, memory: &mut impl Memory) -> Verdict {
    let Classified { packet, service, table } = packet;
    let decision = decide(table, *service, &packet.flow, packet.tcp_flags, memory);
    match decision.backend {
        Err(reason) => Verdict::Drop(reason),
        Ok(backend) => {
            Verdict::Forward { backend: backend.get(), new: decision.new, bytes: packet.ip_length }
        }
    }
}

/// Both halves for one frame.
pub fn process(frame: &[u8], to: &impl Directory, memory: &mut impl Memory) -> Verdict {
    match classify(frame, to) {
        Ok(packet) => steer(&packet, memory),
        Err(verdict) => verdict,
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
    let classified: Vec<_> = frames.into_iter().map(|frame| classify(frame, to)).collect();
    verdicts.clear();
    verdicts.extend(classified.iter().map(|packet| match packet {
        Ok(packet) => steer(packet, memory),
        Err(verdict) => *verdict,
    }));
}
