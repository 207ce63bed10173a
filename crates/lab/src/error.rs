//! What can go wrong while a lab is built or used.

use std::path::PathBuf;

/// Everything that the lab can fail with.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process is not root.
    #[error("a lab makes network namespaces and loads BPF programs: run it as root")]
    NotRoot,
    /// The caller asked for something that the address plan cannot hold.
    #[error("{0}")]
    BadSpec(String),
    /// What it needs is not on this machine.
    #[error("{0}")]
    Missing(String),
    /// A system call or a file operation failed; a namespace, a link, a program or a process could
    /// not be had.
    #[error(transparent)]
    Testbed(#[from] weir_testbed::Error),
    /// Something did not become ready in time.
    #[error("{what} was not ready after {seconds:.1} s{detail}")]
    NotReady {
        /// What was waited for.
        what: String,
        /// How long, in seconds.
        seconds: f64,
        /// What its log says, or nothing.
        detail: String,
    },
    /// A file of a lab does not have the form that the lab gave it.
    #[error("{}: {what}", path.display())]
    BadFile {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The balancer's API refused a request.
    #[error("{request} was refused: {answer}")]
    Refused {
        /// Method and path.
        request: String,
        /// What it answered.
        answer: String,
    },
    /// SIGINT or SIGTERM arrived; see [`crate::interrupted`].
    #[error("interrupted")]
    Interrupted,
}

/// What functions of this crate return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

pub(crate) use weir_testbed::Doing;
