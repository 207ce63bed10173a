//! Rules in a real card, by the kernel's *ntuple* interface: what `ethtool -N` sends.
//!
//! The requests are compared byte for byte with those of Debian's `ethtool` (`tests/ethtool.rs`). **No card has
//! been tried**: none of ours takes rules. Cards differ in what they match, and say so by an error, which is a
//! [`Refusal`](crate::Refusal) here.

mod device;
mod request;

pub use device::Device;
pub use request::{REQUEST_BYTES, Request, delete, insert};
