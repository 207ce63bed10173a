//! What a node receives and sends by: AF_XDP sockets or a packet socket, behind one face.

use crate::Result;
use serde::Serialize;
use std::time::Duration;

/// Frames in a burst.
pub const BURST: usize = 64;

/// Which sockets a node uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Xdp,
    Packet,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Xdp => "AF_XDP sockets",
            Self::Packet => "packet sockets",
        }
    }
}

/// Why a frame went nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Shorter than its headers say.
    BadFrame,
    /// It has no key of the kind that the FIB is for.
    NoKey,
    /// The FIB does not know its key.
    NoRoute,
    /// Its host is between two nodes, and as many frames are held as may be.
    HoldFull,
    /// It was still held when the node ended.
    StillHeld,
    /// The tx ring had no room.
    TxRingFull,
    /// The interface had no room.
    DeviceFull,
    /// The kernel refused it for another reason.
    Refused,
    /// The kernel had no memory of the socket's to put it into; the node never saw it.
    NoMemory,
    /// The rx ring, or the socket's queue, was full; the node never saw it.
    RxFull,
    /// The kernel named memory that was not the port's.
    BadDescriptor,
}

impl Reason {
    pub const ALL: [Self; 11] = [
        Self::BadFrame,
        Self::NoKey,
        Self::NoRoute,
        Self::HoldFull,
        Self::StillHeld,
        Self::TxRingFull,
        Self::DeviceFull,
        Self::Refused,
        Self::NoMemory,
        Self::RxFull,
        Self::BadDescriptor,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::BadFrame => "bad_frame",
            Self::NoKey => "no_key",
            Self::NoRoute => "no_route",
            Self::HoldFull => "hold_full",
            Self::StillHeld => "still_held",
            Self::TxRingFull => "tx_ring_full",
            Self::DeviceFull => "device_full",
            Self::Refused => "refused",
            Self::NoMemory => "no_memory",
            Self::RxFull => "rx_full",
            Self::BadDescriptor => "bad_descriptor",
        }
    }

    /// Whether the node had received the frame.
    pub fn was_received(self) -> bool {
        !matches!(self, Self::NoMemory | Self::RxFull | Self::BadDescriptor)
    }
}

/// Frames dropped, by reason.
#[derive(Clone, Copy, Default, Debug)]
pub struct Drops([u64; Reason::ALL.len()]);

impl Drops {
    pub fn count(&mut self, reason: Reason, frames: u64) {
        self.0[reason as usize] += frames;
    }

    pub fn get(&self, reason: Reason) -> u64 {
        self.0[reason as usize]
    }

    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum += more);
    }

    /// Those of frames that nodes had received.
    pub fn received(&self) -> u64 {
        Reason::ALL.iter().filter(|reason| reason.was_received()).map(|&it| self.get(it)).sum()
    }
}

/// A port did not take a frame, and gives it back.
pub enum NotSent<F> {
    /// No interface is plugged into it.
    Unplugged(F),
    /// Its ring is full.
    Full(F),
}

/// What a port leaves when it is unplugged.
pub struct Left<F> {
    /// Frames that came by the port and were not yet received.
    pub unread: Vec<F>,
    /// Frames that were to leave by it.
    pub unsent: Vec<F>,
}

/// Ports of a node, made and used by one thread in the node's namespace.
pub trait Ports: Sized {
    /// A frame that was received, and has to be sent or freed.
    type Frame;

    /// Makes as many ports, with nothing plugged in.
    fn open(ports: usize) -> Result<Self>;

    /// Plugs an interface in.
    fn plug(&mut self, port: u16, interface: u32) -> Result<()>;

    /// Lets no further frame out by a port, and those that are queued go: its interface is about to
    /// be switched off, which takes time, and what is sent meanwhile would be dropped.
    fn pause(&mut self, port: u16) -> Result<()>;

    /// Takes an interface out, which is off already.
    fn unplug(&mut self, port: u16) -> Left<Self::Frame>;

    /// Takes frames that have come, at most [`BURST`]; waits for the first one as long as given.
    fn receive(&mut self, patience: Duration, out: &mut Vec<Self::Frame>) -> Result<()>;

    /// The bytes of a frame.
    fn bytes<'a>(&'a self, frame: &'a Self::Frame) -> &'a [u8];

    /// Queues a frame at a port.
    fn send(&mut self, frame: Self::Frame, port: u16) -> Result<(), NotSent<Self::Frame>>;

    /// Sends what is queued; gives frames back whose interface is down.
    fn flush(&mut self) -> Result<Vec<Self::Frame>>;

    fn free(&mut self, frame: Self::Frame);

    /// Drops that the kernel or the ports counted so far.
    fn drops(&self) -> Drops;

    /// Frames to group addresses that went to the kernel and not to the node.
    fn group_frames(&self) -> u64;

    /// Bytes of memory for frames.
    fn memory(&self) -> usize;
}
