//! What a steering method is to the simulator.

use crate::flow::Traffic;
use weir_steering::StateKey;
use weir_wire::{FlowKey, Protocol};

/// The number that stands for "no server".
pub const NOBODY: u16 = 0xffff;

/// What an entry of a connection table is taken to cost: key, server and links, in bytes.
pub const ENTRY_BYTES: f64 = 20.0;

/// A flow, as a method sees it: what its packets carry, and which balancer they reach. Who holds
/// the connection is not among it: a method learns that only from what servers report
/// ([`Traffic::listed`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowRef {
    /// Where the simulator keeps it: unique among live flows, used again afterwards. A handle to
    /// ask [`Traffic`] with, and no part of any packet.
    pub slot: u32,
    /// What tells it from all others of the service: the 64 bits of an IPv4 client's address and
    /// of both ports.
    pub id: u64,
    /// The timestamp that its packets echo (TSecr), as it was in the answer to the first packet:
    /// the server's clock, or what the method has made of it. `None` in a first packet.
    pub echo: Option<u32>,
    /// The balancer that the flow's packets reach now.
    pub balancer: u16,
}

impl FlowRef {
    /// The five-tuple. Its address and ports are those of the [id](Self::id), so that it has the
    /// same hash under every key, as `u64` and as
    /// [`StateKey`].
    pub fn key(&self) -> FlowKey {
        let StateKey { address, src_port, dst_port } = state_key(self.id);
        let mut dst = MAPPED;
        dst[12..].copy_from_slice(&[192, 0, 2, 1]);
        FlowKey { src: address, dst, src_port, dst_port, protocol: Protocol::Tcp }
    }
}

/// What control planes call the flow with this [id](FlowRef::id).
pub(crate) fn state_key(id: u64) -> StateKey {
    let mut address = MAPPED;
    address[12..].copy_from_slice(&((id >> 32) as u32).to_le_bytes());
    let ports = id as u32;
    StateKey {
        address,
        src_port: u16::from_be(ports as u16),
        dst_port: u16::from_be((ports >> 16) as u16),
    }
}

/// The inverse of [`state_key`].
pub(crate) fn id_of(key: &StateKey) -> u64 {
    let address = [key.address[12], key.address[13], key.address[14], key.address[15]];
    let ports = u32::from(key.src_port.to_be()) | u32::from(key.dst_port.to_be()) << 16;
    u64::from(u32::from_le_bytes(address)) << 32 | u64::from(ports)
}

/// `::ffff:0.0.0.0`, the beginning of an IPv4 address in 16 bytes.
const MAPPED: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0];

/// What a method has done with a first packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// The server that it reaches, which holds the connection from now on.
    pub server: u16,
    /// The timestamp in the server's answer, as the balancer lets it pass: the client echoes it.
    pub echo: Option<u32>,
}

impl Placed {
    /// At a server, by a method that does not touch answers.
    pub fn at(server: u16) -> Self {
        Self { server, echo: None }
    }

    /// At a server, or nowhere if that is [`NOBODY`].
    pub fn at_some(server: u16) -> Option<Self> {
        (server != NOBODY).then_some(Self::at(server))
    }
}

/// Where a packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// The server that it reaches, or [`NOBODY`].
    pub server: u16,
    /// The server that this one passes it on to if it does not hold the connection, or
    /// [`NOBODY`]: Beamer's second hop, which the servers take by themselves.
    pub second: u16,
}

impl Route {
    /// To a server that passes nothing on.
    pub fn to(server: u16) -> Self {
        Self { server, second: NOBODY }
    }

    /// Where the packet ends up, if `holder` holds the connection: there, if one of the two
    /// servers is it.
    pub(crate) fn end(self, holder: u16) -> u16 {
        if self.second == holder && holder != NOBODY { holder } else { self.server }
    }
}

/// What a packet sent now would meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probe {
    /// Where it would go.
    pub route: Route,
    /// It would change what the method remembers (beyond how recently an entry was used), so it
    /// must be played.
    pub effect: bool,
}

impl Probe {
    /// A packet that leaves no trace.
    pub fn quiet(server: u16) -> Self {
        Self { route: Route::to(server), effect: false }
    }
}

/// A change of the pool. Several may come at one instant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// A server joins the working set, new or back again.
    Add(u16),
    /// A server fails: its connections are lost.
    Remove(u16),
    /// A server leaves the working set but keeps its connections.
    Drain(u16),
    /// A server gets another weight, whether it serves or not.
    Reweight(u16, u32),
    /// A server is expected to join next.
    Expect(u16),
    /// A server is not expected any more. (One that has joined is not announced here.)
    Unexpect(u16),
}

impl Change {
    /// The number of the server that changes.
    pub fn server(self) -> u16 {
        match self {
            Self::Add(server)
            | Self::Remove(server)
            | Self::Drain(server)
            | Self::Reweight(server, _)
            | Self::Expect(server)
            | Self::Unexpect(server) => server,
        }
    }
}

/// The flows whose next packet may meet something else than before.
#[derive(Default, Debug)]
pub struct Effects {
    /// All flows of these rows; a row may stand here twice.
    pub rows: Vec<u32>,
    /// These flows, by slot. Flows that have ended may be among them.
    pub flows: Vec<u32>,
}

/// Figures that are read off a method from time to time.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Gauges {
    /// Flows that the method holds an entry for.
    pub tracked: usize,
    /// Share of the rows in which a packet must look for an entry, 0 to 1.
    pub marked_rows: f64,
    /// Bytes of state that grow with the number of flows; fixed tables are not counted.
    pub state_bytes: f64,
    /// Entries that were thrown out to make room, since the start.
    pub evictions: u64,
    /// Packets since the warm-up that a rule of a card has led past the method (HNLB).
    pub led: u64,
    /// Packets since the warm-up, where `led` is counted: those that are not first ones.
    pub packets: u64,
    /// Rules that the card may hold.
    pub rules: usize,
}

/// A steering method under simulation.
///
/// The engine asks [`Method::probe`] about the flows that a change concerns, and calls
/// [`Method::packet`] only for packets that have an effect. That is the same as playing every
/// packet if the method keeps three promises: `probe` says what `packet` would do; the answer for
/// a flow changes only at a call that names the flow, or its row, in its [`Effects`]; and
/// how recently an entry was used is asked of [`Traffic::last_packet`], not written down.
pub trait Method {
    /// The number of rows that flows are grouped in, so that a change can name those it concerns.
    fn rows(&self) -> usize {
        1
    }

    /// The row of a flow by its [id](FlowRef::id); less than [`Method::rows`].
    fn row_of(&self, _id: u64) -> u32 {
        0
    }

    /// The first packet of a flow; `None` if there is no server for it.
    fn first(
        &mut self,
        flow: FlowRef,
        traffic: &mut Traffic,
        effects: &mut Effects,
    ) -> Option<Placed>;

    /// What a later packet would meet now.
    fn probe(&self, flow: FlowRef) -> Probe;

    /// A later packet.
    fn packet(&mut self, flow: FlowRef, _traffic: &mut Traffic, _effects: &mut Effects) -> Route {
        self.probe(flow).route
    }

    /// The flow has ended: its last packet has passed the balancer. (Not called for one that has
    /// found no server.)
    fn end(&mut self, _flow: FlowRef, _traffic: &mut Traffic) {}

    /// The flow's server has failed, and its next packet will begin a new connection with the same
    /// ports: nobody tells the balancer.
    fn lost(&mut self, flow: FlowRef, traffic: &mut Traffic) {
        self.end(flow, traffic);
    }

    /// The flow's packets will reach the balancer `to` from now on, and no longer
    /// `flow.balancer`: what a balancer remembers of its own is not there. The engine asks about
    /// the flow again, whatever is done here.
    fn moves(&mut self, _flow: FlowRef, _to: u16, _traffic: &mut Traffic) {}

    /// Servers have reported their loads: (server, load), any unit, the same for all.
    fn reports(&mut self, _loads: &[(u16, u64)]) {}

    /// The pool changes. Flows of servers that fail have been ended before.
    fn change(&mut self, changes: &[Change], traffic: &mut Traffic, effects: &mut Effects);

    /// Figures of this moment.
    fn gauges(&self, traffic: &Traffic) -> Gauges;
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_hash::{HashKey, Key};

    #[test]
    fn a_flow_has_the_same_hash_in_every_form() {
        for seed in 0..50u64 {
            let key = HashKey::from_seed(seed);
            let id = key.hash_word(seed);
            let flow = FlowRef { slot: 0, id, echo: None, balancer: 0 };
            let state = StateKey::of_flow(&flow.key());
            assert_eq!(id.hash(&key), state.hash(&key));
            assert_eq!((state, id_of(&state)), (state_key(id), id));
        }
    }
}
