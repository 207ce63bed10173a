//! Where every packet goes: steering methods, as pure code.
//!
//! A method has two faces (docs/): the *lookup face*, a pure function from (flow, flags) over a
//! published [`Image`] to a backend and what to remember; and the *build face*, which consumes
//! pool changes and states and produces images. The same lookup face exists in C for the kernel
//! (`crates/dataplane/bpf/steer_*.h`), and a differential test holds the two together.
//!
//! Nothing here knows sockets, BPF or clocks: time, randomness and memory come in as arguments.
#![forbid(unsafe_code)]

pub mod baseline;
pub mod cheetah;
mod concury;
mod connection_table;
mod image;
pub mod jet;
mod lookup;
mod memory;
mod plane;
mod pool;
pub mod residue;
mod state;
mod steer;
mod tracked;
mod update;

pub use concury::{
    BuildReport, Codec, Codes, Concury, ConcuryConfig, Forwarder, Phase, State, place_again,
};
pub use connection_table::{AnyTable, ConnectionTable, Lru, SLOTS, Unbounded};
pub use image::{
    ELEMENT_BYTES, FLAGS_OFFSET, Flags, HEADER_BYTES, Header, Image, ImageError, Method,
    NO_BACKEND, SLOT_BACKEND, SLOT_RESERVED, SLOTS_PER_ELEMENT,
};
pub use lookup::{Decision, Question, decide};
pub use memory::{Event, EventKind, Memory, SoftMemory, seen_tag};
pub use plane::{Counters, LaneCounters, Outcome, Plane, VipKey};
pub use pool::{Member, Role};
pub use state::{ServiceState, StateKey};
pub use steer::Steer;
pub use tracked::{TrackedBuilder, TrackedFlow};
pub use update::{Action, Update};

/// What can go wrong when tables are built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// A compact map could not place its keys.
    #[error(transparent)]
    Lookup(#[from] weir_lookup::Error),
    /// The Maglev table could not be filled.
    #[error(transparent)]
    Maglev(#[from] weir_placement::Error),
    /// The pool cannot be placed.
    #[error(transparent)]
    Pool(#[from] weir_placement::PoolError),
    /// More backends than Dcodes.
    #[error(
        "{members} backends need more than the {slots} Dcodes of this service; raise dcode_bits"
    )]
    TooFewDcodes {
        /// Backends that need at least one Dcode.
        members: usize,
        /// Dcodes there are.
        slots: usize,
    },
}
