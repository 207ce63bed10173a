//! What can go wrong in the kernel plane.

use crate::memory::Needed;
use std::path::PathBuf;
use weir_steering::{HEADER_BYTES, ServiceId};

/// An error of the kernel plane.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused a BPF operation.
    #[error("{what}: {source}")]
    Bpf {
        /// What was being done, for example `load the program`.
        what: String,
        /// The error of libbpf, with the verifier's words if there are any.
        source: libbpf_rs::Error,
    },
    /// The kernel has no memory for the maps.
    #[error(
        "the kernel has no memory for the data plane ({source}): it takes {} bytes at once, {} of them \
         limits.table_bytes; {}",
        .needed.bytes, .needed.table_bytes, .needed.advice(*.available)
    )]
    NoMemory {
        /// What it takes.
        needed: Needed,
        /// Bytes that there are, if that is known.
        available: Option<u64>,
        /// The error of libbpf.
        source: libbpf_rs::Error,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The data plane that is pinned has another layout than this program's: another version of
    /// weir made it. Nothing of it was changed.
    #[error(
        "the data plane in {} was made by another version of weir: its layout is {}, this program's \
         is {expected}, and it cannot be taken over: {why}. It was left as it is{}. Go back \
         to that version; or stop traffic to this balancer, remove the data plane with `weir unload`, and start again",
        .directory.display(),
        .found.as_ref().map_or("not recorded".to_owned(), ToString::to_string),
        and_goes_on(*.forwards)
    )]
    Layout {
        /// Where it is pinned.
        directory: PathBuf,
        /// Its layout; `None` for versions that recorded none.
        found: Option<crate::Layout>,
        /// The layout that this program makes.
        expected: crate::Layout,
        /// Why it cannot become memory of this layout.
        why: Box<str>,
        /// Whether packets go by it: the program is on an interface.
        forwards: bool,
    },
    /// A pinned map is of a size that no limits explain.
    #[error(
        "{path} was made by another version of weir ({detail}); stop traffic to it and run \
         `weir unload` to remove the old data plane, then start again"
    )]
    Incompatible {
        /// The map's path in the BPF file system.
        path: PathBuf,
        /// What differs from what it should be.
        detail: String,
    },
    /// Another XDP program is attached.
    #[error(
        "interface {interface}: another XDP program is attached; detach it \
         (`ip link set dev {interface} xdp off`, or where it is there by an active BPF XDP link, which that cannot \
         replace, end the process that `bpftool link` names, or remove the link's pin) or choose another interface"
    )]
    Occupied {
        /// Name of the interface.
        interface: String,
    },
    /// There is no interface of this name in the network namespace.
    #[error("interface {0}: not found in this network namespace")]
    NoInterface(String),
    /// A number beyond what the data plane was loaded for.
    #[error("{what} {number} is beyond the limit of {limit} set when the data plane was loaded")]
    Beyond {
        /// What is too many.
        what: &'static str,
        /// The number that was asked for.
        number: u32,
        /// The number that there is room for.
        limit: u32,
    },
    /// Memory cannot be made so small: what is there does not fit.
    #[error("limits.{limit} cannot be lowered to {wanted}: {used}")]
    TooSmall {
        /// Name of the limit.
        limit: &'static str,
        /// What there would be room for.
        wanted: u32,
        /// What does not fit.
        used: String,
    },
    /// Memory of other sizes has just been made, and that from before is not cleared away yet.
    #[error(
        "another change of limits is under way: what is left in the memory from before it is still being taken \
         over; nothing has changed, try again in a few seconds"
    )]
    Resizing,
    /// The service table is too full to place a key.
    #[error("the service table has no room for another service; raise limits.services")]
    ServicesFull,
    /// Packets would have to ask for too many kinds of prefixes and blocks of ports.
    #[error(
        "services listen on more than {kinds} kinds of prefixes and blocks of ports: let prefixes have \
         fewer lengths, or ranges of ports begin and end at multiples of a larger power of two"
    )]
    KindsFull {
        /// How many there may be.
        kinds: u32,
    },
    /// The pool has no room for a table.
    #[error(
        "no room for a table of {needed} bytes: {used} of the {pool} bytes of limits.table_bytes \
         are in use; {}",
        pool_advice(*.needed, *.used, *.pool)
    )]
    PoolFull {
        /// Bytes of the table.
        needed: usize,
        /// Bytes of the pool that are in use.
        used: usize,
        /// Bytes of the pool in all.
        pool: usize,
    },
    /// There is no room for a list of sources.
    #[error(
        "no room for a list of sources of {needed} bytes: {used} of {room} bytes are in use; raise \
         limits.list_prefixes (a list is made beside the one that it replaces)"
    )]
    ListsFull {
        /// Bytes of the list.
        needed: usize,
        /// Bytes in use.
        used: usize,
        /// Bytes in all.
        room: usize,
    },
    /// There are not as many free partitions for connections by index.
    #[error(
        "no room for {needed} partitions of connections by index: {free} of the {partitions} of \
         limits.slot_partitions are free; raise it (it changes when no service of the method \
         cheetah-stateful is there), or give the service fewer `partitions`"
    )]
    SlotsFull {
        /// Partitions that the service wants.
        needed: u32,
        /// Partitions that are free.
        free: u32,
        /// Partitions in all.
        partitions: u32,
    },
    /// There is no room to pin a state.
    #[error(
        "no room to pin another connection: all {limit} of limits.unreported_flows are taken by \
         connections of draining backends that began lately; raise limits.unreported_flows, or \
         drain fewer backends at a time"
    )]
    PinsFull {
        /// Pins that there is room for.
        limit: u32,
    },
    /// A table whose Dcodes the program in the kernel cannot look up.
    #[error(
        "service {service}: the kernel plane looks up Dcodes of the codec Othello only; the table's \
         codec is {codec:?}, which forwarders in user space use"
    )]
    Codec {
        /// Number of the service.
        service: ServiceId,
        /// What holds the table's Dcodes.
        codec: weir_steering::Codec,
    },
    /// A published table does not check out.
    #[error("published table of service {service}: {source}")]
    Table {
        /// Number of the service.
        service: ServiceId,
        /// What is wrong with it.
        source: weir_steering::ImageError,
    },
}

/// What is said of a data plane that is left as it is.
fn and_goes_on(forwards: bool) -> &'static str {
    if forwards { " and goes on forwarding" } else { ", on no interface" }
}

/// What is to be done where a table of so many bytes found no room.
fn pool_advice(needed: usize, used: usize, pool: usize) -> &'static str {
    if needed.saturating_sub(HEADER_BYTES) <= pool.saturating_sub(used) {
        return "what is free is in pieces: tables are put side by side, and this is tried again";
    }
    "raise limits.table_bytes (a table is made beside the one that it replaces)"
}

/// Wraps errors of libbpf with what was tried.
pub(crate) trait Context<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> Context<T> for Result<T, libbpf_rs::Error> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| Error::Bpf { what: what(), source })
    }
}

impl<T> Context<T> for std::io::Result<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| Error::System { what: what(), source })
    }
}
