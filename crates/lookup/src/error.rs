//! What can go wrong.

use crate::message::MessageError;

/// What can go wrong in a compact map. Whatever returns one has changed nothing, unless it says so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Many seeds in a row left a cycle; only a broken [`Key::hash`](crate::Key::hash) or equal
    /// keys do that.
    #[error("no acyclic graph for {keys} keys after {tries} seeds; are all keys different?")]
    NoAcyclicGraph {
        /// How many keys were to be placed.
        keys: usize,
        /// How many seeds were tried.
        tries: u32,
    },
    /// Two keys of a set that is built whole are equal.
    #[error("keys number {first} and {second} are equal")]
    DuplicateKey {
        /// Position of one of them.
        first: usize,
        /// Position of the other, `first < second`.
        second: usize,
    },
    /// A table of fixed size has no room for another entry.
    #[error("no room for another entry beside {entries} in {slots} slots")]
    Full {
        /// Entries in the table.
        entries: usize,
        /// Slots of the table.
        slots: usize,
    },
    /// Different keys share 64-bit hashes under many hash keys:
    /// [`Key::hash`](crate::Key::hash) is broken.
    #[error("different keys among {keys} share 64-bit hashes under {tries} hash keys")]
    KeysCollide {
        /// How many keys were to be placed.
        keys: usize,
        /// How many hash keys were tried.
        tries: u32,
    },
    /// The value 65,535 marks an empty slot of a table of digests.
    #[error("the value 65535 is reserved in tables of digests")]
    ReservedValue,
    /// The value has more bits than the table's values have.
    #[error("value {value} does not fit into {bits} bits")]
    ValueTooWide {
        /// The value that was given.
        value: u64,
        /// Bits of a value.
        bits: u32,
    },
    /// More keys than one table can number.
    #[error("a table of {keys} keys is too large")]
    TooLarge {
        /// The number of keys.
        keys: usize,
    },
    /// A message or a snapshot was refused.
    #[error(transparent)]
    Message(#[from] MessageError),
}
