//! Othello hashing: the value of a key is the xor of two cells.
//!
//! Dissertation chapters 2 and 3.4.3, Concury section 3; `docs/othello.md` explains the method.

pub(crate) mod graph;
mod map;
mod set;
mod shared;
mod table;
pub(crate) mod view;

pub use map::OthelloMap;
pub use set::{OthelloSet, SetExporter, SetKind, SetReader, SetShared, SetUpdate, SetView};
pub use shared::{OthelloReader, OthelloShared};
pub use table::{CELLS_PER_KEY, Othello};
pub use view::{CHUNK_BYTES, Geometry, View, cells_per_chunk};
