//! The data plane in the kernel: loading, pinning, publishing, counting.

mod activity;
mod attach;
mod connections;
mod counters;
mod devices;
mod grace;
mod guard;
mod load;
mod publish;
mod resize;
mod size;
mod stamp;

pub use attach::Attached;
pub use grace::grace;
pub use load::OpenReport;
pub use resize::ResizeStep;
pub use stamp::Layout;

use crate::mapped::Mapped;
use crate::tables::Tables;
use crate::vips::VipTable;
use libbpf_rs::MapHandle;
use resize::Former;
use size::Sizes;
use stamp::Stamp;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use weir_plane::VipKey;

/// The data plane of one instance.
pub struct KernelPlane {
    maps: Maps,
    program: OwnedFd,
    vips: VipTable,
    keys: HashMap<u32, VipKey>,
    tables: Tables,
    control: Mapped,
    backends: Mapped,
    marks: Mapped,
    strangers: Mapped,
    seen: Mapped,
    directory: Option<PathBuf>,
    sizes: Sizes,
    /// What the pinned memory is made of; nothing is pinned without a directory.
    stamp: Option<Stamp>,
    /// The build of the program, if it is not this crate's.
    object: Option<Vec<u8>>,
    /// What this memory has taken the place of, until nothing is left in it.
    former: Option<Former>,
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
    devices: MapHandle,
}

impl KernelPlane {
    /// The program, for test runs.
    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}
