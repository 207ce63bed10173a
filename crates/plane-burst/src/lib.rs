//! Planes in user space: bursts of frames from ports, through one pipeline, to ports.
//!
//! ```text
//! receive ─> parse ─> service ─> decide in bursts ─> rewrite or encapsulate ─> send
//!              │          │              │                      │
//!              └──────────┴── not plain ─┴──────────────────────┴─> Soft, one frame at a time
//! ```
//! - [`Ports`]: where bursts come from and go to. [`Memory`](ports::Memory) is one that is only memory.
//! - [`Burst`]: the plane. It has a [`Soft`](weir_plane::Soft) within, which owns all that is
//!   configured and remembered; what it does to frames is what that would have done to them one after the
//!   other, bit for bit.
//! - [`Hybrid`]: the same beside a card whose rules lead connections to queues of their backends (HNLB).
//! - [`macswap`]: the least that a forwarder does, to measure against.
//!
//! What is *plain* takes the short way: TCP segments in the middle of a connection, over IPv4 without
//! options or IPv6 without extension headers, untagged, of a method that asks for no TCP options, to
//! backends on a link or behind a tunnel. All others go through `Soft`.
#![forbid(unsafe_code)]

pub mod beside;
mod hybrid;
mod later;
mod parse;
mod plane;
pub mod ports;
mod services;
mod utilisation;
mod ways;

pub use hybrid::{Hybrid, Shares};
pub use plane::{Burst, Watch, macswap};
pub use ports::{BURST, Fate, Frame, HEADROOM, Ports};
pub use utilisation::Utilisation;
