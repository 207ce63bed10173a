//! Name-based forwarders on compact maps: one control plane, many data planes (dissertation ch. 3).
//!
//! A network of nodes forwards by names that do not aggregate: MAC addresses, flow ids, names of
//! contents. Every node needs every key, with a value of its own: the port towards the key's host.
//! One control plane holds keys and hosts once. It builds each node's data plane by giving its
//! *skeleton* (a graph, a table of slots) the node's ports, and sends it each change as a message.
//!
//! * [`Ofw`]: OthelloSet; the smallest for valid keys.
//! * [`Cfw`]: a two-level Cuckoo Filtable, in which no valid key shadows another.
//! * [`Bfw`]: a Bloom filter for each port; what the others are compared with.
//! * [`LudoFib`]: Ludo from keys to hosts, one table for all nodes, and a list of ports by host.
//! * [`Gateway`]: whole keys, for the border, where alien keys have to be dropped.
//!
//! [`Network`] knows the ports: [`Topology`] by seed, shortest paths by Dijkstra. Messages are
//! encoded as in the dissertation's Fig. 3.1, in the format of all maps (`weir_lookup::message`), so a
//! lost, repeated or damaged one is refused. `docs/fib.md` explains all of it.
#![forbid(unsafe_code)]

mod bfw;
mod cfw;
mod directory;
mod gateway;
mod keys;
mod ludo;
mod network;
mod ofw;
mod plane;
mod topology;

pub use bfw::{Bfw, BfwView};
pub use cfw::{Cfw, CfwView};
pub use gateway::{Gateway, GatewayView};
pub use keys::{ContentName, FibKey, Flow, Ipv4, Ipv6, Mac, Url};
pub use ludo::{LudoFib, LudoFibView};
pub use network::{Host, Network};
pub use ofw::{Ofw, OfwView};
pub use plane::{Control, FibError, Plane};
pub use topology::Topology;
pub use weir_lookup::message::{ENVELOPE, MessageError};
