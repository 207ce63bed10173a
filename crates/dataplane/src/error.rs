//! What can go wrong in the kernel plane.

use std::path::PathBuf;

/// An error of the kernel plane.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused a BPF operation.
    #[error("{what}: {source}")]
    Bpf {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: libbpf_rs::Error,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A pinned map has another layout than this program's: made by another version.
    #[error(
        "{path} was made by another version of weir ({detail}); stop traffic to it and run \
         `weir unload` to remove the old data plane, then start again"
    )]
    Incompatible {
        /// The pin.
        path: PathBuf,
        /// What differs.
        detail: String,
    },
    /// Another XDP program is attached.
    #[error(
        "interface {interface}: another XDP program is attached; detach it \
         (`ip link set dev {interface} xdp off`) or choose another interface"
    )]
    Occupied {
        /// The interface.
        interface: String,
    },
    /// No such interface.
    #[error("interface {0}: not found in this network namespace")]
    NoInterface(String),
    /// A number beyond what the data plane was loaded for.
    #[error("{what} {number} is beyond the limit of {limit} set when the data plane was loaded")]
    Beyond {
        /// What is too many.
        what: &'static str,
        /// The number.
        number: u32,
        /// The limit.
        limit: u32,
    },
    /// The service table is too full to place a key.
    #[error("the service table has no room for another service; raise limits.services")]
    ServicesFull,
    /// The pool has no room for a table.
    #[error(
        "no room for a table of {needed} bytes: {used} of the {pool} bytes of limits.table_bytes \
         are in use; raise limits.table_bytes (a table is made beside the one that it replaces)"
    )]
    PoolFull {
        /// Bytes of the table.
        needed: usize,
        /// Bytes in use.
        used: usize,
        /// Bytes there are.
        pool: usize,
    },
    /// A table whose Dcodes the program in the kernel cannot look up.
    #[error(
        "service {service}: the kernel plane looks up Dcodes of the codec Othello only; the table's \
         codec is {codec:?}, which forwarders in user space use"
    )]
    Codec {
        /// The service.
        service: u32,
        /// The table's codec.
        codec: weir_steering::Codec,
    },
    /// A published table does not check out.
    #[error("published table of service {service}: {source}")]
    Table {
        /// The service.
        service: u32,
        /// What is wrong with it.
        source: weir_steering::ImageError,
    },
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
