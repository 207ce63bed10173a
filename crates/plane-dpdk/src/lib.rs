//! DPDK's ports for the planes in user space: devices that DPDK has drivers for, by its own device arguments.
//!
//! All of it needs the feature `dpdk`, and DPDK 22.11. Without the feature the same names are here, so that
//! nobody else needs it, and [`Eal::start`] says that they are not built.

#[cfg(not(feature = "dpdk"))]
mod absent;
pub mod beside;
mod card;
mod error;
mod fed;
#[cfg(feature = "dpdk")]
mod ffi;
#[cfg(feature = "dpdk")]
mod flows;
#[cfg(feature = "dpdk")]
mod ports;
#[cfg(feature = "dpdk")]
mod tap;

#[cfg(not(feature = "dpdk"))]
pub use absent::{Dpdk, Eal, Flows, Share};
pub use error::Error;
pub use fed::Fed;
#[cfg(feature = "dpdk")]
pub use flows::Flows;
#[cfg(feature = "dpdk")]
pub use ports::{Dpdk, Eal, Share};

/// Where DPDK has its memory. A process has one answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// In huge pages; without them it is slower, and no card can write into it.
    pub huge: bool,
    /// Megabytes in all.
    pub megabytes: u32,
}

/// Buffers of a set of ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffers {
    /// How many there are.
    pub count: u32,
    /// Bytes of each, with [`HEADROOM`](weir_plane_burst::HEADROOM).
    pub room: u16,
    /// Entries of a queue, if the driver takes so many.
    pub ring: u16,
}

impl Default for Buffers {
    /// For frames of an Ethernet link, and a few ports.
    fn default() -> Self {
        Self { count: 8191, room: 2048 + 192, ring: 1024 }
    }
}

/// A device, and what stands for it in the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair<'a> {
    /// DPDK's device arguments, or an address of PCI.
    pub device: &'a str,
    /// Name of an interface that is a tap with several queues.
    pub tap: &'a str,
}

/// What can be said of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// Frames come and go.
    Up,
    /// It is there, and no frame comes.
    Down,
    /// Its device is not there any more.
    Gone,
}

/// What became of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Came in and went to the plane.
    pub received: u64,
    /// Went out, where the plane said.
    pub sent: u64,
    /// Went to the port of the kernel.
    pub to_kernel: u64,
    /// Came from the port of the kernel, and went out.
    pub from_kernel: u64,
    /// The plane's drops, which it has counted by their reasons.
    pub dropped: u64,
    /// Were the kernel's, and there is no port of the kernel.
    pub no_kernel: u64,
    /// Were to leave by an interface that none of the ports is.
    pub no_port: u64,
    /// Were one too many for the queue that they were to leave by.
    pub full: u64,
    /// Came in pieces, or in memory that is not these ports'.
    pub foreign: u64,
}
