//! What can go wrong while a forwarder runs.

/// Why a forwarder did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Options that make no sense together.
    #[error("{0}")]
    Options(String),
    /// A part of the network or of the index did what it must not do.
    #[error("{0}")]
    Failed(String),
    /// Something that it stands on failed.
    #[error(transparent)]
    Below(#[from] weir_testbed::Below),
    /// AF_XDP.
    #[error(transparent)]
    Dataplane(#[from] weir_dataplane::Error),
    /// The namespaces and their links.
    #[error(transparent)]
    Testbed(#[from] weir_testbed::Error),
    /// A forwarding table.
    #[error(transparent)]
    Fib(#[from] weir_fib::FibError),
    /// A compact map.
    #[error(transparent)]
    Lookup(#[from] weir_lookup::Error),
    /// A message to a data plane.
    #[error(transparent)]
    Message(#[from] weir_lookup::message::MessageError),
    /// A system call.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Result of the forwarders.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Ends with [`Error::Failed`] if something does not hold.
macro_rules! ensure {
    ($holds:expr, $($words:tt)+) => {{
        let holds: bool = $holds;
        if !holds {
            return Err($crate::Error::Failed(format!($($words)+)));
        }
    }};
}

/// Ends with [`Error::Options`] if they make no sense.
macro_rules! demand {
    ($holds:expr, $($words:tt)+) => {{
        let holds: bool = $holds;
        if !holds {
            return Err($crate::Error::Options(format!($($words)+)));
        }
    }};
}

pub(crate) use weir_testbed::Context;
pub(crate) use {demand, ensure};
