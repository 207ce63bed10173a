//! Looking at packets: which ones, and what is told of each.

use crate::sources::Prefix;
use std::any::Any;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};
use weir_steering::{BackendId, ServiceId};
use weir_wire::{Protocol, Reason};

/// Which packets are looked at: those of which all of this is true.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    /// Either end of the flow is in this network. What has no flow is not.
    pub network: Option<Prefix>,
    /// Either end of the flow has this port.
    pub port: Option<u16>,
    /// The flow's protocol.
    pub protocol: Option<Protocol>,
    /// The service that the packet is for.
    pub service: Option<ServiceId>,
    /// The backend that it goes to.
    pub backend: Option<BackendId>,
    /// Why it was not forwarded.
    pub reason: Option<Reason>,
    /// What became of it; none: anything.
    pub fate: Option<Fate>,
    /// Of those, one in so many; 0 and 1: all.
    pub every: u32,
    /// None of them, whatever else is said: packets are looked at for what follows.
    pub untold: bool,
    /// Connections are followed, one in so many, a power of two; 0: none.
    pub follow: u32,
}

/// What becomes of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It leaves: for a backend, for a client, or as an answer of the balancer's own.
    Sent,
    /// It is the kernel's.
    Passed,
    /// It ends here.
    Dropped,
}

/// A packet that was looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sample {
    /// When it came.
    pub time: SystemTime,
    /// Number of the interface that it came in by, and of its queue there.
    pub ifindex: u32,
    /// Number of the receive queue of that interface, from 0.
    pub queue: u32,
    /// Its flow, as far as it has one: source and destination with their ports, and the protocol's
    /// number. Of an ICMP error, the flow that it quotes.
    pub flow: Option<SampledFlow>,
    /// The service that it is for.
    pub service: Option<ServiceId>,
    /// The backend that it goes to.
    pub backend: Option<BackendId>,
    /// What became of it.
    pub fate: Fate,
    /// Why, if it goes to no backend.
    pub reason: Option<Reason>,
    /// Number of the interface that it leaves by, if that is another one.
    pub way: Option<u32>,
    /// The rules of the program's source that it went through, in their order.
    pub rules: Vec<&'static str>,
    /// Whether it went through more of them.
    pub more_rules: bool,
    /// The frame as it came.
    pub before: Frame,
    /// The frame as it leaves, if it does.
    pub after: Option<Frame>,
}

/// The flow of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SampledFlow {
    /// Source address and port.
    pub source: (IpAddr, u16),
    /// Destination address and port.
    pub destination: (IpAddr, u16),
    /// TCP, UDP or SCTP.
    pub protocol: Protocol,
    /// Flags of a TCP segment, as they stand in its header.
    pub tcp_flags: u8,
}

/// A frame, or the beginning of one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Bytes that the whole frame has.
    pub length: u32,
    /// The first of them.
    pub head: Vec<u8>,
}

/// What became of packets while somebody looked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TraceCounts {
    /// All that came.
    pub seen: u64,
    /// Those that were wanted.
    pub matched: u64,
    /// Of these, those that there was no room for.
    pub lost: u64,
    /// Connections that are or were followed.
    pub followed: u64,
    /// Packets of those.
    pub checked: u64,
    /// Packets that went to another backend than the one before of their connection.
    pub moved: u64,
    /// The same, where the backend before is gone.
    pub orphaned: u64,
}

/// What is done before packets are looked at, and takes its time.
pub type PrepareTrace = Box<
    dyn FnOnce() -> Result<Box<dyn Any + Send>, Box<dyn std::error::Error + Send + Sync>> + Send,
>;

/// Where samples come out.
pub trait Samples: Send {
    /// Takes samples as they come, and `None` when none came for `patience`, until `take` says that it
    /// wants no more.
    ///
    /// # Errors
    /// What the system says.
    fn follow(
        self: Box<Self>,
        patience: Duration,
        take: &mut dyn FnMut(Option<Sample>) -> bool,
    ) -> std::io::Result<()>;
}
