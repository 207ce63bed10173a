//! Planes: what takes a packet from an interface to a backend.
//!
//! - [`pipeline`]: the way of a packet, `parse -> service -> decide -> forward`, as pure code. A
//!   plane brings the frames, one at a time or in bursts, and what is remembered between them.
//! - [`Soft`]: a plane that is only memory. It is the oracle of the BPF program and the data plane
//!   of unit tests.
//! - [`Wanted`], [`Sample`]: which packets somebody looks at, and what is told of each.
#![forbid(unsafe_code)]

mod allowance;
mod by_id;
mod caps;
pub mod counters;
pub mod forward;
mod held;
mod limits;
mod listen;
mod paths;
pub mod pipeline;
mod plane;
mod soft;
mod sources;
mod trace;
mod user;

pub use allowance::{Allowance, MESSAGE_BURST};
pub use by_id::{IdOutcome, IdOutcomes, IdRoutes, NotLed};
pub use caps::{Bucket, Buckets, CAP_ROW, CappedFlows, FlowCaps, FlowRoom, Rate, SourceRate};
pub use counters::{Counters, InterfaceCounters, LaneCounters, Returned};
pub use held::{
    HELD_COUNTERS, HELD_CROWD, HELD_FLOWS, HELD_MOST, HELD_ROW, HELD_TICK_SHIFT, HeldCounts,
    SourceLimit, correction, counters, held_tick, held_until, is_believed, is_counted, is_old,
    next_count, room,
};
pub use limits::{Limits, mapping_places};
pub use listen::{Block, KINDS, Listen, blocks};
pub use paths::{PATH_NANOSECONDS, Paths};
pub use pipeline::{Directory, Outcome, Verdict, VipKey};
pub use plane::{
    ArmedFlows, Attached, Attachment, Backend, Described, Device, Hop, Outcomes, Plane,
    PrepareResize, ReadConnections, SeenFlows, TablesMoved, TakenAway, TooManyMacs, TrackedFlows,
    Translated, Translations, Way,
};
pub use soft::{Between, Bounds, Operation, Soft, SoftError};
pub use sources::{
    BYTES_PER_PREFIX, Prefix, PrefixError, SOURCE_OTHERS_ALLOWED, SOURCE_STEPS, SOURCE_STRIDE,
    SourceTable, Sources,
};
pub use trace::{Fate, Frame, PrepareTrace, Sample, SampledFlow, Samples, TraceCounts, Wanted};
pub use user::{UserCounts, UserStatus};
