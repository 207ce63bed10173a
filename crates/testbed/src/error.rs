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
    /// The kernel has no devices of a type.
    #[error(
        "this kernel has no devices of the type {kind} (`ip {line}`): load the module that has them, or run under a \
         kernel that has them, as `make kernel-test` does"
    )]
    NoDevices {
        /// The type, as `ip` names it.
        kind: String,
        /// The line of `ip` that asked for one.
        line: String,
    },
}

/// Result of the testbed.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Adds what was being done to an error of the system.
pub trait Doing<T> {
    /// The value, or [`Error::Io`] with what was being done ("reading FILE").
    ///
    /// # Errors
    /// The one that there was.
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Io { what: what(), source: source.into() })
    }
}

/// Something that a measurement or a forwarder stands on failed.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct Below {
    /// What was being done, or with what.
    pub what: String,
    /// The error that came from below.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// Adds what was being done to any error, where nobody would tell one from another.
pub trait Context<T> {
    /// The value, or the error with these words before it.
    ///
    /// # Errors
    /// The one that there was.
    fn context(self, what: impl Into<String>) -> Result<T, Below>;

    /// As [`context`](Self::context), with words that are put together only if they are needed.
    ///
    /// # Errors
    /// The one that there was.
    fn with_context(self, what: impl FnOnce() -> String) -> Result<T, Below>;
}

impl<T, E: std::error::Error + Send + Sync + 'static> Context<T> for Result<T, E> {
    fn context(self, what: impl Into<String>) -> Result<T, Below> {
        self.with_context(|| what.into())
    }

    fn with_context(self, what: impl FnOnce() -> String) -> Result<T, Below> {
        self.map_err(|source| Below { what: what(), source: source.into() })
    }
}
