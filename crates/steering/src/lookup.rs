//! The lookup face: from a packet's flow to a backend, over a published table.

use crate::concury;
use crate::image::{Flags, Image, Method};
use crate::memory::Memory;
use crate::state::{ServiceState, StateKey};
use crate::tracked;
use weir_lookup::Key;
use weir_wire::{FlowKey, Protocol, Reason, TcpFlags};

/// What a method is asked.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// The packet's flow.
    pub flow: FlowKey,
    /// Its state key, after the service's affinity.
    pub state: ServiceState,
    /// The state key's hash under the table's key.
    pub hash: u64,
    /// Whether the packet may start a flow.
    pub starts: bool,
    /// Whether it ends one (FIN, RST).
    pub ends: bool,
}

/// What it answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// Where the packet goes, or why it is dropped.
    pub backend: Result<u16, Reason>,
    /// Whether the flow counts as new at that backend.
    pub new: bool,
}

/// Decides a packet of a service: the whole lookup face, as the BPF program does it.
pub fn decide(
    image: &Image,
    service: u32,
    flow: &FlowKey,
    flags: TcpFlags,
    memory: &mut impl Memory,
) -> Decision {
    let header = image.header();
    let key = if header.flags.has(Flags::CLIENT) {
        StateKey::of_client(flow)
    } else {
        StateKey::of_flow(flow)
    };
    let hash = key.hash(&header.key);
    let (starts, ends) = match flow.protocol {
        Protocol::Tcp => (flags.starts(), flags.ends()),
        Protocol::Udp => {
            (header.method == Method::Concury && !memory.seen_before(hash, service), false)
        }
    };
    let question =
        Question { flow: *flow, state: ServiceState { service, key }, hash, starts, ends };
    match header.method {
        Method::Concury => concury::steer(image, &question, memory),
        Method::Tracked => tracked::steer(image, &question, memory),
    }
}
