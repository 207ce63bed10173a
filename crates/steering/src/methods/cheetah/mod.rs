//! Cheetah: the connection itself says where it lives (docs/cheetah.md).
//!
//! A cookie stands in the upper half of every TCP timestamp that a backend sends. The client sends
//! it back with every packet, so the balancer needs no memory of the connection (*stateless*), or
//! finds its memory by index instead of by hash (*stateful*).
//!
//! [`Layout`] cuts the 16 bits into version, front and back part; [`Codec`] hides a number in one
//! part; [`ServiceServers`] says which numbers mean a backend of this service. With them
//! [`Stateless`] or [`Stateful`] is a [`Table`], which decides; [`Repair`] is the answer face: it
//! gives the backend its own timestamps back.

mod decide;
mod layout;
mod repair;
mod servers;
mod stateful;
mod stateless;
mod table;

pub use decide::{Forged, Table};
pub use layout::{Codec, Layout, LayoutError, Parts};
pub use repair::Repair;
pub use servers::{AllServers, ServersError, ServiceServers};
pub use stateful::{Stateful, Tier, WithSlots};
pub use stateless::Stateless;
pub use table::{ConnTable, ConnTableConfig, ConnTableError, TableFull};

use crate::method::Needs;
use crate::registry::MethodId;

/// Stateless Cheetah, as the registry lists it.
#[derive(Debug)]
pub struct StatelessMethod;

impl crate::method::Method for StatelessMethod {
    const ID: MethodId = MethodId::Cheetah;
    const NAME: &'static str = "cheetah";
    const SUMMARY: &'static str = "a cookie in the timestamps names the server";
    const NEEDS: Needs = Needs { connections: true, timestamps: true, ..Needs::NOTHING };
}

/// Stateful Cheetah, as the registry lists it.
#[derive(Debug)]
pub struct StatefulMethod;

impl crate::method::Method for StatefulMethod {
    const ID: MethodId = MethodId::CheetahStateful;
    const NAME: &'static str = "cheetah-stateful";
    const SUMMARY: &'static str = "a cookie in the timestamps names a slot of a connection table";
    const NEEDS: Needs = Needs { connections: true, timestamps: true, ..Needs::NOTHING };
}
