//! How a frame gets to its backend: as it is to one on the same link ([`l2`]), in another packet to any
//! ([`tunnel`]).

mod l2;
mod segments;
pub mod tunnel;

pub use l2::{NextHop, l2};
pub use segments::Segments;
pub use tunnel::{Encapsulation, Tunnel};
