//! Networks on one machine, for laboratories, benches and tests: namespaces, veth pairs, addresses,
//! and the helper programs that they need. Needs root, `ip` of iproute2 and `ethtool`.
//!
//! * [`NetNs`]: a named namespace, to run a closure, a thread or a program in. [`Namespaces`] makes
//!   a group of them that goes with the value, and sweeps up those of processes that were killed.
//!   [`in_own_namespace`] runs a closure in one without a name.
//! * [`link`]: the `ip` lines for veth pairs, addresses and neighbours, and [`link::ip`], which runs
//!   them.
//! * [`xdp`]: the two-instruction XDP program that a veth's peer needs before XDP_TX works.
//! * [`decapsulate`]: the far end of tunnels, as an XDP program.
//! * [`bypass`]: an AF_XDP socket, and the program that hands it frames, for others to call.
//! * [`packet`]: sockets for whole frames.
//! * [`programs`]: what BPF programs take of processors.
//! * [`process`]: child processes that cannot outlive this one.
//! * [`draw_seed`]: a seed for a run that nobody gave one.
//! * [`interrupt`]: Ctrl-C as a flag that everything that waits looks at.
//!
//! ```no_run
//! use weir_testbed::{Namespaces, link};
//!
//! # fn main() -> weir_testbed::Result<()> {
//! let mut namespaces = Namespaces::new("demo");
//! let (a, b) = (namespaces.add("a")?, namespaces.add("b")?);
//! let ends = [link::End::new("eth0").inside(&a), link::End::new("eth0").inside(&b)];
//! link::ip(&link::veth(&ends))?;
//! for (end, address) in [(&a, "10.0.0.1/24"), (&b, "10.0.0.2/24")] {
//!     end.ip(&format!("{}{}", link::address(address, "eth0"), link::up("eth0")))?;
//!     end.no_checksum_offload("eth0")?;
//! }
//! let socket = a.enter(|| std::net::UdpSocket::bind("10.0.0.1:0"))?;
//! # drop(socket);
//! # Ok(())
//! # }
//! ```

pub mod bypass;
pub mod cgroup;
pub mod decapsulate;
mod error;
pub mod interrupt;
pub mod link;
mod netns;
mod owned;
pub mod packet;
pub mod process;
pub mod programs;
mod seed;
pub mod xdp;

pub use error::{Below, Context, Doing, Error, Result};
pub use netns::{NetNs, enter_own_namespace, in_own_namespace, sysctl};
pub use owned::Namespaces;
pub use seed::draw_seed;
