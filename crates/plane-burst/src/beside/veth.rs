//! An emulated card at the far end of a veth device: a program there leads frames, and the card of memory says which
//! rules are in force.

use super::Wanted;
use weir_dataplane::Error;
use weir_dataplane::card::{FarEnd, VethCard};
use weir_offload::Queue;
use weir_offload::emulated::{Leads, Mirrored};
use weir_wire::FlowKey;

/// Frames on their way from the program to the socket's ring, at most: the receive ring of a veth device holds 256 and
/// its poll takes 64. Several times as many, since a processor may stand still with one between program and ring.
const RING: u32 = 1024;

/// The program as what leads packets.
pub(super) struct Played(VethCard);

impl Leads for Played {
    type Error = Error;

    fn lead(&mut self, flow: &FlowKey, queues: [Queue; 2]) -> Result<(), Error> {
        match queues {
            [Queue::SOFTWARE, Queue::SOFTWARE] => self.0.forget(flow),
            queues => self.0.lead(flow, queues.map(|queue| queue.0)),
        }
    }
}

/// A card at the far end of an interface, and where that is.
///
/// # Errors
/// Why there is none, and what would be right.
pub(super) fn card(wanted: &Wanted, interface: &str) -> Result<(Mirrored<Played>, FarEnd), String> {
    // A place that changes has two flows: the one whose rule goes, and the one whose rule comes.
    let card = VethCard::open(interface, wanted.rules.saturating_mul(2));
    let card = card.map_err(|error| error.to_string())?;
    let queues = card.queues();
    if queues < 2 {
        return Err(format!(
            "rules lead to other queues than the first, and {interface} has no other: make both ends with more, as \
             in `ip link add {interface} numrxqueues 16 numtxqueues 16 type veth peer name PEER numrxqueues 16 \
             numtxqueues 16`"
        ));
    }
    let far = card.far_end().clone();
    let profile = wanted.profile(queues.min(wanted.queues), RING);
    Ok((Mirrored::new(profile, rand::random(), Played(card)), far))
}
