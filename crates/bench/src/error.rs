//! What can go wrong while something is measured.

/// Why nothing came of a measurement.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was asked for cannot be measured: an unknown name, or a number out of its range.
    #[error("{0}")]
    Request(String),
    /// What was to be measured does not do what it promises: a wrong answer, or a table that takes no
    /// more. Its times would mean nothing.
    #[error("{0}")]
    Fault(String),
    /// Something that the measurement stands on failed.
    #[error(transparent)]
    Below(#[from] weir_testbed::Below),
    /// The programs of backends.
    #[error(transparent)]
    Agent(#[from] weir_agent::Error),
    /// The kernel plane.
    #[error(transparent)]
    Dataplane(#[from] weir_dataplane::Error),
    /// The network of the bench.
    #[error(transparent)]
    Testbed(#[from] weir_testbed::Error),
    /// A table of a steering method that cannot be shown to packets.
    #[error(transparent)]
    Image(#[from] weir_steering::ImageError),
    /// JET over a placement.
    #[error(transparent)]
    Jet(#[from] weir_steering::jet::JetError),
    /// An update of a shared map.
    #[error(transparent)]
    Message(#[from] weir_lookup::message::MessageError),
    /// A compact map.
    #[error(transparent)]
    Lookup(#[from] weir_lookup::Error),
    /// A table of a steering method.
    #[error(transparent)]
    Build(#[from] weir_steering::BuildError),
    /// DPDK's ports.
    #[error(transparent)]
    Dpdk(#[from] weir_plane_dpdk::Error),
    /// A placement.
    #[error(transparent)]
    Placement(#[from] weir_placement::Error),
    /// A pool of a placement.
    #[error(transparent)]
    Pool(#[from] weir_placement::PoolError),
    /// How keys are drawn.
    #[error(transparent)]
    Zipf(#[from] weir_sim::ZipfError),
}

/// Result of the benches.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Ends a measurement of what does not do what it promises.
macro_rules! ensure {
    ($holds:expr, $($words:tt)+) => {{
        let holds: bool = $holds;
        if !holds {
            return Err($crate::Error::Fault(format!($($words)+)));
        }
    }};
}

/// Refuses what cannot be measured.
macro_rules! demand {
    ($holds:expr, $($words:tt)+) => {{
        let holds: bool = $holds;
        if !holds {
            return Err($crate::Error::Request(format!($($words)+)));
        }
    }};
}

pub(crate) use weir_testbed::Context;
pub(crate) use {demand, ensure};
