//! Why a message is refused.

use super::Kind;

/// Why a message was refused. Whoever refuses one has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The bytes end too early, or go on after the end.
    #[error("a message of {bytes} bytes does not hold what it says")]
    Length {
        /// Bytes that are there.
        bytes: usize,
    },
    /// The digest does not agree with the bytes.
    #[error("digest {found:#018x} instead of {expected:#018x}")]
    Digest {
        /// The digest that came with the bytes.
        found: u64,
        /// The digest of the bytes.
        expected: u64,
    },
    /// The message is of another structure, or its layout has another version.
    #[error("a message of kind {found}, expected {expected}")]
    OtherKind {
        /// What the message is.
        found: Kind,
        /// What its reader takes.
        expected: Kind,
    },
    /// The message belongs to another table, or to another data plane.
    #[error("message of table {found:#x}, this is {expected:#x}")]
    OtherTable {
        /// Identity of the table that the message belongs to.
        found: u64,
        /// Identity of the table that reads it.
        expected: u64,
    },
    /// A message is missing, or came twice.
    #[error("message number {found}, expected {expected}")]
    OutOfSequence {
        /// Number of the message.
        found: u64,
        /// The number of the next message.
        expected: u64,
    },
    /// A field has a value that it cannot have here.
    #[error("{what} is out of range")]
    OutOfRange {
        /// Name of the field.
        what: &'static str,
    },
}
