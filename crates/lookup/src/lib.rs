//! Compact maps: a maintainer that knows the keys, and a view of it that only answers.
//!
#![doc = include_str!("../README.md")]
//! # One vocabulary
//!
//! | verb | on | what it does |
//! |---|---|---|
//! | `get(key)` | every map, view and reader | the value of a key. `V` where a key that is not in the map gets an arbitrary one, `Option` where it gets none, always or nearly always; the structure says which |
//! | `get_batch(keys, out)` | the same | the values of many keys, in order, faster: the memory of the next ones is on its way ([`simd`]). Tables of digests write [`MISS`] for none |
//! | `get_hash`, `get_batch_with` | [`View`], [`Fuse`] | the same for a caller who hashes keys in a way of its own |
//! | `contains`, `contains_batch` | filters | whether a key may be in the set; never `false` for one that is |
//! | `build(.., items, seed)` | most | the structure whole, from all its keys |
//! | `insert(key, value)` | maintainers | adds a key or changes its value; returns the former one. In an [`Othello`] the key must be new |
//! | `insert_batch`, `change_batch` | [`Othello`], [`Ludo`] | many changes, with the memory of the next ones on its way |
//! | `change` | [`Othello`], [`Ludo`] | gives a key that is there another value |
//! | `remove(key)` | maintainers | takes a key out; returns its value. An [`Othello`] cannot find keys: there `change` and `remove` take the key's number |
//! | `view()`, `export(..)` | maintainers | what lookups need, without the maintainer |
//! | `update()`, `message(..)` | maintainers with messages | the last change, for views elsewhere ([`message`]) |
//! | `apply`, `apply_bytes` | views with messages | makes a change, or refuses it with a reason and changes nothing |
//! | `to_bytes`, `from_bytes` | views and updates | the one format of all messages and snapshots ([`mod@message`]) |
//! | `reader()` | what is shared between threads | a handle for another thread; it takes no lock and sees every change whole or not at all |
//! | `bytes()`, `control_bytes()` | all; maintainers | bytes of what lookups may read; of the maintainer's own allocations |
//!
//! Keys implement [`Key`]; values are unsigned integers of a width that is chosen at run time
//! ([`Value`]). Everything random follows from the `seed`. [`Error`] is what can go wrong, with
//! [`MessageError`](message::MessageError) inside it for what is wrong with a message.
#![deny(unsafe_code)]

mod cuckoo;
mod digest;
mod error;
mod filter;
mod fuse;
mod ludo;
mod memory;
pub mod message;
mod othello;
mod partial;
mod setsep;
mod shared;
pub mod simd;
mod value;

pub use cuckoo::Cuckoo;
pub use digest::{DigestCuckoo, HitCount, MISS, MultiDigest, Placed};
pub use error::Error;
pub use filter::{
    Bloom, BloomFeed, BloomKind, BloomReader, BloomShared, BloomUpdate, BloomView, CountingBloom,
    Filter, FuseFilter, Guarded, GuardedReader, GuardedShared, Lookup, LudoWriter, MapReader,
    SharedMap,
};
pub use fuse::{Fuse, FuseShape};
pub use ludo::{
    LUDO_LOAD, Ludo, LudoChange, LudoKind, LudoReader, LudoShared, LudoStats, LudoUpdate, LudoView,
    ludo_seed,
};
pub use othello::{
    CELLS_PER_KEY, CHUNK_BYTES, Geometry, Othello, OthelloMap, OthelloReader, OthelloSet,
    OthelloShared, SetExporter, SetKind, SetReader, SetShared, SetUpdate, SetView, View,
    cells_per_chunk,
};
pub use partial::{Filtable, FiltableKind, FiltableUpdate, FiltableView, PartialCuckoo};
pub use setsep::{SetSep, SetSepMap};
pub use simd::{BATCH, Vectors, Work, pipeline, pipeline_vectored, prefetch, vectorised};
pub use value::Value;
pub use weir_hash::{Bytes, FixedKey, HashKey, Key, Octets};
