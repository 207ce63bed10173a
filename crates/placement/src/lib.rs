//! Placement: which backend a *new* flow goes to.
//!
//! A placement is a pure function of a flow's hash and a table that was built from
//! the pool. It remembers nothing: what keeps the packets of a flow together when
//! the pool changes is the steering method above it.

#![forbid(unsafe_code)]

mod maglev;
mod prime;

pub use maglev::{Candidate, Error, Maglev, NONE};
pub use prime::{is_prime, next_prime};
