//! The kernel plane: loads and pins the XDP program and its maps, publishes tables, reads counters
//! and reports.
//!
//! Everything outlives the process that made it: programs, maps and links are pinned in the BPF
//! file system, so a control plane may stop, be killed, be replaced, and resume.

mod abi;
pub mod bench;
pub mod card;
mod entries;
mod error;
pub mod instructions;
mod kernel;
mod kinds;
mod link;
mod mapped;
pub mod memory;
mod numbers;
#[doc(hidden)]
pub mod other;
mod plane;
mod reports;
mod ring;
mod room;
mod run;
mod slots;
mod sources;
mod tables;
pub mod user;
mod vips;
pub mod xsk;

use weir_steering::MethodId;

pub use abi::{BackendEntry, BackendFlags, tunnel_number};
pub use error::Error;
pub use kernel::BY_INTERFACE;
#[doc(hidden)]
pub use kernel::TRACED;
pub use kernel::{
    Attached, Converted, KernelPlane, Layout, OpenReport, Pinned, PinnedLink, grace,
    wait_for_programs,
};
#[doc(hidden)]
pub use kernel::{ConvertStep, ResizeStep};
pub use link::{Interface, XdpMode};
pub use plane::LivePlane;
pub use reports::{Reports, Unreported};
pub use run::{FrameRun, Verdict, run_frame};
pub use weir_plane::Limits;

/// The numbers of the methods that the program has, as the build found their headers.
const PROGRAMS: &[u8] = &include!(concat!(env!("OUT_DIR"), "/methods.rs"));

/// The methods that the program can steer by. Tables of others decide nothing here: their packets
/// are dropped as [`Reason::UnknownMethod`](weir_wire::Reason::UnknownMethod).
pub fn methods() -> impl Iterator<Item = MethodId> {
    MethodId::published().filter(|method| PROGRAMS.contains(&method.number()))
}
