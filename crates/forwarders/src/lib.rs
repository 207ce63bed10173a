//! Two forwarders by name that run and are watched (docs/fib.md): a network of switches, and an index
//! of contents.
//!
//! [`switch::run`] makes a network in namespaces, with hosts that talk and move; [`content::run`]
//! an index that answers over UDP. Each gives a [`Report`] that knows whether what was promised
//! held. They stand beside `weir-fib`, which is pure: these have sockets, threads and namespaces.

pub mod content;
mod error;
pub mod switch;

pub use content::ContentReport;
pub use error::{Error, Result};
pub use switch::{CompareReport, SwitchReport};

use serde::Serialize;
use std::time::Duration;

/// What the network of switches is like, and what happens in it.
#[derive(Clone, Debug)]
pub struct SwitchOptions {
    /// Forwarder of each node.
    pub fib: SwitchFib,
    /// What frames are forwarded by.
    pub key: SwitchKeys,
    /// What nodes receive and send by.
    pub sockets: SocketKind,
    /// Rounds of a comparison.
    pub rounds: u16,
    /// Number of forwarding nodes.
    pub nodes: u16,
    /// Number of hosts with traffic.
    pub hosts: u16,
    /// Number of further addresses in every FIB, of hosts that are silent.
    pub keys: usize,
    /// How long hosts move, or a comparison takes.
    pub duration: Duration,
    /// Hosts that move to another node, per second on average.
    pub moves_per_second: f64,
    /// Seed of everything that is drawn; drawn itself if there is none.
    pub seed: Option<u64>,
}

/// What the index of contents is like, and what happens to it.
#[derive(Clone, Debug)]
pub struct ContentOptions {
    /// What the index is made of.
    pub fib: ContentFib,
    /// Number of contents at the start.
    pub contents: usize,
    /// Number of nodes that hold contents.
    pub locations: u16,
    /// How long clients ask, in seconds.
    pub seconds: f64,
    /// Contents that come, move or go, per second.
    pub updates_per_second: f64,
    /// Clients, each a thread with a socket.
    pub clients: u16,
    /// Number of threads that answer.
    pub servers: u16,
    /// Names in a query, up to 32.
    pub batch: u8,
    /// Seed of everything that is drawn; drawn itself if there is none.
    pub seed: Option<u64>,
}

/// Forwarder of a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SwitchFib {
    /// OthelloSet with fingerprints (dissertation 3.4.3).
    Ofw,
    /// A two-level Cuckoo Filtable (dissertation 3.4.2).
    Cfw,
    /// Ludo from keys to hosts, and a list of ports by host.
    Ludo,
}

impl SwitchFib {
    /// Each forwarder with its name and a sentence that says what it is.
    pub const CHOICES: [(Self, &'static str, &'static str); 3] = [
        (Self::Ofw, "ofw", "OthelloSet with fingerprints of 8 bits"),
        (Self::Cfw, "cfw", "A two-level Cuckoo Filtable with digests of 13 bits"),
        (Self::Ludo, "ludo", "Ludo from keys to hosts, and a list of ports by host"),
    ];
}

/// What a switch forwards by: a destination, or a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SwitchKeys {
    /// By the destination MAC address.
    Mac,
    /// By the destination IPv4 address.
    Ipv4,
    /// By the destination IPv6 address.
    Ipv6,
    /// By the flow: IPv4 source, destination, ports and protocol.
    #[serde(rename = "5tuple")]
    FiveTuple,
}

impl SwitchKeys {
    /// Each kind of key with its name and a sentence that says what it is.
    pub const CHOICES: [(Self, &'static str, &'static str); 4] = [
        (Self::Mac, "mac", "Destination MAC address"),
        (Self::Ipv4, "ipv4", "Destination IPv4 address"),
        (Self::Ipv6, "ipv6", "Destination IPv6 address"),
        (Self::FiveTuple, "5tuple", "IPv4 source, destination, ports and protocol"),
    ];

    /// As reports call it.
    fn name(self) -> &'static str {
        match self {
            Self::Mac => "MAC address",
            Self::Ipv4 => "IPv4 address",
            Self::Ipv6 => "IPv6 address",
            Self::FiveTuple => "5-tuple",
        }
    }
}

/// What nodes receive and send by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocketKind {
    /// AF_XDP, or packet sockets where the kernel or a device refuses it; says why.
    Auto,
    /// AF_XDP; the run ends where it is refused.
    Xdp,
    /// Packet sockets (AF_PACKET).
    Packet,
}

impl SocketKind {
    /// Each kind with its name and a sentence that says what it is.
    pub const CHOICES: [(Self, &'static str, &'static str); 3] = [
        (
            Self::Auto,
            "auto",
            "AF_XDP, or packet sockets where the kernel or a device refuses it; says why",
        ),
        (Self::Xdp, "xdp", "AF_XDP or nothing"),
        (Self::Packet, "packet", "Packet sockets (AF_PACKET)"),
    ];
}

/// What an index is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ContentFib {
    /// Ludo, read by many threads without locks, but for the rare key whose seed overflowed.
    Ludo,
    /// OthelloSet with fingerprints, read by many threads without locks; knows most alien names.
    Ofw,
}

impl ContentFib {
    /// Each structure with its name and a sentence that says what it is.
    pub const CHOICES: [(Self, &'static str, &'static str); 2] = [
        (Self::Ludo, "ludo", "Ludo, read by many threads without locks, but for rare keys"),
        (
            Self::Ofw,
            "ofw",
            "OthelloSet with fingerprints of 8 bits, read by many threads without locks; knows \
             most alien names",
        ),
    ];
}

/// A report in lines, and whether what it tells is what was promised.
pub trait Report: Serialize {
    /// Whether what was promised held; the exit status says the same.
    fn held(&self) -> bool;
    /// The report as lines for a person.
    fn text(&self) -> String;
}
