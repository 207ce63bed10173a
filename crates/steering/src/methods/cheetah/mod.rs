//! Cheetah: the connection itself says where it lives (docs/cheetah.md).
//!
//! A cookie stands in the upper half of every TCP timestamp that a backend sends. The client sends
//! it back with every packet, so the balancer needs no memory of the connection (*stateless*), or
//! finds its memory by index instead of by hash (*stateful*).
//!
//! [`Layout`] cuts the 16 bits into version, front and back part; [`Codec`] hides a number in one
//! part; [`ServiceServers`] says which numbers mean a backend of this service. With them
//! [`Stateless`] or [`Stateful`] is a [`Table`], which decides; [`Repair`] is the answer face: it
//! gives the backend its own timestamps back. [`Body`] is such a table as planes publish it, and
//! [`CheetahBuilder`] makes it.

mod answers;
mod body;
mod build;
mod config;
mod decide;
mod keys;
mod layout;
mod repair;
mod servers;
mod stateful;
mod stateless;
mod table;

pub use answers::{Answered, SAME_CLOCK};
pub use body::{Body, Form, KEYED, LINGER_SECONDS, OPENING_SECONDS, Partitioned, SECOND, Slots};
pub use build::{CheetahBuilder, servers};
pub use config::{
    ANSWERS, FORGED, MOST_PARTITIONS, MOST_TIER_BITS, NUMBERS, PARTITIONS, StatefulMethod,
    StatelessMethod, TIER_BITS, answered_by_backends, numbers,
};
pub use decide::{Forged, Table};
pub use keys::{COOKIE_KEYS, CookieKeys};
pub use layout::{Codec, Layout, LayoutError, Parts, TOLD, TOLD_MARK, told};
pub use repair::{PATIENCE, Repair};
pub use servers::{AllServers, ServersError, ServiceServers};
pub use stateful::{Stateful, Tier, WithSlots};
pub use stateless::Stateless;
pub use table::{
    ConnTable, ConnTableConfig, ConnTableError, PAD_SHIFT, PARTITION_SHIFT, PARTITION_SLOTS, SWEEP,
    SWEEP_FULL, SlotCounts, SlotEntry, SlotState, TableFull,
};
