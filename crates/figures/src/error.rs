//! What can go wrong while a figure is made.

/// Why a figure was not made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A figure that there is not.
    #[error("{0}")]
    Unknown(String),
    /// What is measured does not do what it promises: its figures would mean nothing.
    #[error("{0}")]
    Fault(String),
    /// A figure's run failed.
    #[error("{figure} failed: {source}")]
    Run {
        /// Its id.
        figure: &'static str,
        /// What happened.
        source: Box<Error>,
    },
    /// A measurement.
    #[error(transparent)]
    Bench(#[from] weir_bench::Error),
    /// A compact map.
    #[error(transparent)]
    Lookup(#[from] weir_lookup::Error),
    /// A message to a compact map.
    #[error(transparent)]
    Message(#[from] weir_lookup::message::MessageError),
    /// A forwarding table.
    #[error(transparent)]
    Fib(#[from] weir_fib::FibError),
    /// A table of a steering method.
    #[error(transparent)]
    Build(#[from] weir_steering::BuildError),
    /// Servers behind cookies.
    #[error(transparent)]
    Servers(#[from] weir_steering::cheetah::ServersError),
    /// A connection table's settings.
    #[error(transparent)]
    ConnTable(#[from] weir_steering::cheetah::ConnTableError),
    /// A connection table without room.
    #[error(transparent)]
    Full(#[from] weir_steering::cheetah::TableFull),
    /// JET over a placement.
    #[error(transparent)]
    Jet(#[from] weir_steering::jet::JetError),
    /// A placement.
    #[error(transparent)]
    Placement(#[from] weir_placement::Error),
    /// A pool of a placement.
    #[error(transparent)]
    Pool(#[from] weir_placement::PoolError),
    /// A simulated scenario.
    #[error(transparent)]
    Scenario(#[from] weir_sim::ScenarioError),
    /// A laboratory.
    #[error(transparent)]
    Lab(#[from] weir_lab::Error),
    /// How keys are drawn.
    #[error(transparent)]
    Zipf(#[from] weir_sim::ZipfError),
}

/// Result of the figures.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Ends the figure of what does not do what it promises.
macro_rules! ensure {
    ($holds:expr, $($words:tt)+) => {{
        let holds: bool = $holds;
        if !holds {
            return Err($crate::Error::Fault(format!($($words)+)));
        }
    }};
}

pub(crate) use ensure;
