//! What can go wrong while a network is made.

use std::io;

/// Everything that a testbed can fail with.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call or a file operation failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// The error of the system.
        source: io::Error,
    },
    /// A program ended with an error.
    #[error("`{command}` failed ({status}): {stderr}")]
    Command {
        /// The command with its arguments, as it was run.
        command: String,
        /// Its exit status in words.
        status: String,
        /// What it wrote to its standard error, trimmed.
        stderr: String,
    },
}

/// Result of the testbed.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Adds what was being done to an I/O error.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Io { what: what(), source: source.into() })
    }
}
