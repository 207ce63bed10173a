//! What a steering method is to the simulator.

use crate::flow::Traffic;

/// The number that stands for "no server".
pub const NOBODY: u16 = 0xffff;

/// What an entry of a connection table is taken to cost: key, server and links, in bytes.
pub const ENTRY_BYTES: f64 = 20.0;

/// A flow, as a method sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowRef {
    /// Where the simulator keeps it: unique among live flows, used again afterwards.
    pub slot: u32,
    /// The hash of its five-tuple: uniform, 64 bits.
    pub hash: u64,
    /// The server that holds the connection, [`NOBODY`] before the first packet. A method may use
    /// it only for what its packets carry (Cheetah's cookie), what servers report (concury,
    /// residue) or what a server does with a packet that it gets (Beamer's second hop).
    pub owner: u16,
    /// The balancer that the flow's packets reach now.
    pub balancer: u16,
}

/// What a packet sent now would meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probe {
    /// The server it would reach.
    pub server: u16,
    /// It would change what the method remembers (beyond how recently an entry was used), so it
    /// must be played.
    pub effect: bool,
}

impl Probe {
    /// A packet that leaves no trace.
    pub fn quiet(server: u16) -> Self {
        Self { server, effect: false }
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

    /// The row of a flow; less than [`Method::rows`].
    fn row_of(&self, _hash: u64) -> u32 {
        0
    }

    /// The first packet of a flow; `None` if there is no server for it.
    fn first(&mut self, flow: FlowRef, traffic: &mut Traffic, effects: &mut Effects)
    -> Option<u16>;

    /// What a later packet would meet now.
    fn probe(&self, flow: FlowRef) -> Probe;

    /// A later packet.
    fn packet(&mut self, flow: FlowRef, _traffic: &mut Traffic, _effects: &mut Effects) -> u16 {
        self.probe(flow).server
    }

    /// The flow has ended. (Not called for one that has found no server.)
    fn end(&mut self, _flow: FlowRef, _traffic: &mut Traffic) {}

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
