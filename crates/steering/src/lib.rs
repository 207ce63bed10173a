//! Where every packet goes: steering methods, as pure code.
//!
//! A method has two faces. The *lookup face* ([`Decide`]) answers a [`Question`] about a packet
//! with a [`Decision`], by a table and a [`Memory`] of what is not in the table. The *build face*
//! ([`Build`]) consumes pool changes and states and makes tables. The lookup face of the methods
//! that a kernel plane runs exists in C, too (`crates/dataplane/bpf/methods`), and a
//! differential test holds the two together.
//!
//! | module | what is there |
//! |---|---|
//! | `decide` | [`Question`], [`Decision`], [`Why`], the trait [`Decide`] |
//! | `memory` | the trait [`Memory`], and [`SoftMemory`], which mirrors the kernel's maps |
//! | `rehearsal` | [`Rehearsal`]: a decision that changes nothing and is written down |
//! | `table` | [`Header`], [`Table`], and how a table becomes bytes ([`Body`]) |
//! | `schedule` | who gets a first packet: [`Scheduler`], [`Load`] |
//! | `method` | what a method is: [`Method`], [`Settings`], [`Build`], [`Answer`] |
//! | `registry` | all methods: [`MethodId`], and [`Image`], a published table of any of them |
//! | [`methods`] | each method in a folder of its own |
//!
//! Nothing here knows sockets, BPF or clocks: time, randomness and memory come in as arguments.
#![forbid(unsafe_code)]

mod activity;
mod connections;
mod decide;
mod dense;
mod forwarder;
mod ids;
mod memory;
mod method;
pub mod methods;
mod pool;
mod registry;
mod rehearsal;
mod rows;
mod schedule;
mod shared;
mod state;
mod states;
mod table;
pub mod update;

pub use activity::{
    LANE_ACTIVE, LANE_ONES, LANE_TAGS, MOST_WATCHED_WORDS, Marks, Side, TAG_BITS, arm, is_armed,
    is_marked, watch_bits, watched_words_for, words_for,
};
pub use connections::{
    AnyTable, ConnectionTable, Connections, Lru, SLOTS, TrackedFlows, Unbounded,
};
pub use decide::{Decide, Decision, NoCookie, Question, Signals, Why, ask, decide, decide_by};
pub use forwarder::{Forwarder, Parts, Steer};
pub use ids::{BackendId, ByBackend, Dcode, ServiceId};
pub use memory::{
    Echoes, Event, EventKind, First, Former, Memory, NO_CONNECTION, SEEN_STRIDE, SEEN_WAYS,
    SoftMemory, TrackedFlow, seen_tag,
};
pub use method::{
    Answer, Armed, Build, Built, Drafts, Elsewhere, InFleet, Known, Method, Misfit, Needs, Phase,
    Publish, ServiceConfig, Setting, SettingError, Settings, is_prime, next_prime,
};
pub use methods::concury::{
    BuildReport, Codec, Codes, Concury, ConcuryConfig, DCODE_BITS, NEXT_TRY, NoParcel, Parcel,
    Pending, SECOND_TRIES, SYN_SECONDS, State, dcode_bits_for, digest_of,
};
pub use methods::tracked::{TABLE_SIZE, TrackedBuilder};
pub use methods::{baseline, cheetah, jet, residue};
pub use pool::{Member, Role};
pub use registry::{Image, MakeBuilder, MethodId, MethodInfo, MostElements};
pub use rehearsal::{Note, Recall, Rehearsal};
pub use rows::{ROWS, Rows};
pub use schedule::{
    BackendLoad, LEAST_MOST, LOAD, Load, MOST_LOAD, SCHEDULER, Scheduler, buckets, why_none,
};
pub use shared::{Field, RawHeader, Shared};
pub use state::{ServiceState, StateKey};
pub use states::rest_for;
pub use table::{
    Body, ELEMENT_BYTES, Flags, HEADER_BYTES, Header, ImageError, NO_BACKEND, SLOT_BACKEND,
    SLOT_RESERVED, SLOTS_PER_ELEMENT, Table, digest_slots, read_slots, slot_elements, write_slots,
};
pub use update::{Action, Driver, Update};

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
    /// More servers than cookies can name.
    #[error(transparent)]
    Servers(#[from] cheetah::ServersError),
    /// More backends than Dcodes.
    #[error(
        "{members} backends need more than the {slots} Dcodes of this service; raise dcode_bits"
    )]
    TooFewDcodes {
        /// Backends that need at least one Dcode.
        members: usize,
        /// Dcodes that the table has.
        slots: usize,
    },
    /// A table of another balancer that is not for this service.
    #[error("the table of the fleet has Dcodes of {found} bits, and this service {wanted}")]
    Parcel {
        /// Bits of its Dcodes.
        found: u32,
        /// Bits of those of the service; 0: its method has none.
        wanted: u32,
    },
}

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
