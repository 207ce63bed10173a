//! Flow rules in network cards: HNLB's division of work.
//!
//! ```text
//!                 ┌ rule: five-tuple -> queue ┐
//! frame ── card ──┤ hit                       ├──> queue 1, 2, …  the queue *is* the backend: rewrite
//!                 └ miss                      ┴──> queue 0        steer by the service's method
//!                                                     │
//!          rules <── Ledger <── Policy <── which flow, ┘ how many packets
//! ```
//! - [`Rules`]: a card's table of rules. [`emulated::Nic`] is one of memory that does what hardware does, and
//!   [`emulated::Mirrored`] the same over a program in the kernel that leads packets; [`ntuple::Device`] is the
//!   kernel's interface to a real one.
//! - [`Ledger`]: what the card may hold, and which queues can be taken at their word. It decides nothing about
//!   speed, and everything about safety: a packet is led by its queue only while no rule that may still be in
//!   the card says something else than the software.
//! - [`Policy`]: which connections are worth a rule.
//! - [`Offload`]: both, with time: what a plane calls.
//!
//! The software remains the truth. A rule may be missing, late, lost, refused or evicted at any time, and the
//! packets that it would have led come to queue 0 and are steered there.

pub mod emulated;
mod ledger;
pub mod ntuple;
mod offload;
mod policy;
mod rule;
mod sketch;

pub use ledger::{Entry, Ledger, Phase, Refused};
pub use offload::{Counts, Offload, Setup};
pub use policy::{Choice, Policy, Wish};
pub use rule::{Answer, Answered, Limits, Location, Queue, Refusal, Rule, Rules, Serial, Target};
pub use sketch::Sketch;
