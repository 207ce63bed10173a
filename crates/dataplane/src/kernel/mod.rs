//! The data plane in the kernel: loading, pinning, publishing, counting.

mod activity;
mod attach;
mod by_id;
mod caps;
mod connections;
mod convert;
mod counters;
mod devices;
mod front;
mod grace;
mod guard;
mod held;
mod hops;
mod interfaces;
mod links;
mod load;
mod loads;
mod lost;
mod mappings;
mod messages;
mod pinned;
mod program;
mod publish;
mod resize;
mod size;
mod stamp;
mod taken;
mod trace;
mod translations;

pub use attach::Attached;
pub use convert::{ConvertStep, Converted};
pub use front::PLANE_THREADS;
pub(crate) use front::{FrontMaps, Page, is_open, open_map, start_of};
pub use grace::{grace, wait_for_programs};
pub use interfaces::BY_INTERFACE;
pub use load::OpenReport;
pub(crate) use messages::monotonic;
pub use pinned::{Pinned, PinnedLink};
pub use resize::ResizeStep;
pub(crate) use stamp::DESCRIBED;
pub use stamp::Layout;
pub use trace::TRACED;

use crate::mapped::{Mapped, Parted};
use crate::sources::Lists;
use crate::tables::Tables;
use crate::vips::VipTable;
use by_id::ByIds;
use front::Front;
use hops::Hops;
use libbpf_rs::MapHandle;
use lost::Lost;
use resize::Former;
use size::Sizes;
use stamp::Stamp;
use std::collections::{BTreeSet, HashMap};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::OnceLock;
use weir_plane::Listen;
use weir_steering::ServiceId;

/// The data plane of one instance.
pub struct KernelPlane {
    maps: Maps,
    program: program::Program,
    vips: VipTable,
    /// What each service listens on.
    keys: HashMap<ServiceId, Vec<Listen>>,
    /// Services whose packets are led by QUIC ids.
    ids: ByIds,
    /// Services that do not take all new flows.
    capped: BTreeSet<ServiceId>,
    /// The number of the latest count of connections by prefix.
    held_count: u8,
    tables: Tables,
    /// The sources that are taken, of services that do not take all.
    lists: Lists,
    control: Mapped,
    backends: Mapped,
    loads: Mapped,
    turns: Mapped,
    entered: Mapped,
    caps: Mapped,
    untold: Mapped,
    marks: Parted,
    strangers: Parted,
    watched: Parted,
    seen: Parted,
    mappings: Mapped,
    origins: Mapped,
    directory: Option<PathBuf>,
    sizes: Sizes,
    /// What the pinned memory is made of; nothing is pinned without a directory.
    stamp: Option<Stamp>,
    /// The build of the program, if it is not this crate's.
    object: Option<Vec<u8>>,
    /// Its maps that are not pinned and that another program over this memory is to have, too.
    shared: Vec<(&'static str, MapHandle)>,
    /// Its maps that are pinned: some are only mapped otherwise, and could not be pinned again.
    kept: Vec<taken::Kept>,
    /// Its links, whatever becomes of their pins.
    links: links::Links,
    /// Somebody looks at packets.
    tracing: Option<trace::Tracing>,
    /// Who counts frames that are lost on their way out, if the kernel tells.
    lost: Option<Lost>,
    /// Who forgets next hops, once that was asked for.
    hops: OnceLock<Hops>,
    /// What this memory has taken the place of, until nothing is left in it.
    former: Option<Former>,
    /// Stands in front of the program, if a plane in user space is to take part.
    front: Option<Front>,
}

struct Maps {
    lanes: MapHandle,
    outcomes: MapHandle,
    /// The service table, which is mapped as well.
    vips: MapHandle,
    /// What is set while it runs, mapped as well.
    control: MapHandle,
    pending: MapHandle,
    pinned: MapHandle,
    events: MapHandle,
    unreported: MapHandle,
    connections: MapHandle,
    answers: MapHandle,
    devices: MapHandle,
    paths: MapHandle,
    quic_configs: MapHandle,
    quic_servers: MapHandle,
    quic_outcomes: MapHandle,
    translations: MapHandle,
    returned: MapHandle,
    /// What became of frames by interface, if the program counts that.
    interfaces: Option<MapHandle>,
}

impl KernelPlane {
    /// The program, for test runs.
    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.entry()
    }
}
