//! How a frame gets to its backend: as it is to one on the same link ([`l2`]), in another packet to any
//! ([`tunnel`]), with other addresses in the packet itself ([`nat`]).

mod l2;
pub mod mapping;
pub mod nat;
mod segments;
pub mod tunnel;

pub use l2::{NextHop, l2};
pub use mapping::{Mapping, MappingRules, MappingState, MappingTicks, Origin, Ports};
pub use nat::Translation;
pub use segments::Segments;
pub use tunnel::{Encapsulation, Ipip4, Outer, Tunnel};
