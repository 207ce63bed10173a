//! Cheetah: the connection itself says where it lives (docs/cheetah.md).
//!
//! A cookie stands in the upper half of every TCP timestamp that a backend sends. The client sends
//! it back with every packet, so the balancer needs no memory of the connection (*stateless*), or
//! finds its memory by index instead of by hash (*stateful*).
//!
//! [`Layout`] cuts the 16 bits into version, front and back part; [`Codec`] hides a number in one
//! part; [`ServiceServers`] says which numbers mean a backend of this service; [`Stateless`] and
//! [`Stateful`] decide; [`Repair`] gives the backend its own timestamps back.

mod layout;
mod repair;
mod servers;
mod stateful;
mod stateless;
mod table;
mod verdict;

pub use layout::{Codec, Layout, LayoutError, Parts};
pub use repair::Repair;
pub use servers::{AllServers, ServersError, ServiceServers};
pub use stateful::{Stateful, Tier};
pub use stateless::Stateless;
pub use table::{ConnTable, ConnTableConfig, ConnTableError, TableFull};
pub use verdict::{Forged, NoCookie, Question, Verdict};
