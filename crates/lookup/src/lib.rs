//! Compact maps: a control structure that knows the keys, and a view that only answers.
//!
//! * [`Othello`]: two arrays of l-bit cells, `value = A[ha(k)] xor B[hb(k)]`; the keys live in the
//!   control structure only (Othello Hashing; Concury section 3).
//! * [`OthelloMap`]: an exact map that can *export* other values over the same graph
//!   (Concury section 5.4).
//! * [`OthelloShared`]: an exact map whose Othello other threads read while it changes.
//! * [`OthelloSet`] and [`SetView`]: one graph for many data planes that tell alien keys, kept up to
//!   date by messages (dissertation 3.4.3; docs/fib.md); [`SetShared`] is a view that threads read
//!   while one applies messages.
//! * [`View`]: the bit-packed arrays, in the chunked layout that the BPF program reads.
//! * [`Fuse`]: three cells per key, 1.13 l bits per key; built whole, then only read (docs/fuse.md).
//! * [`DigestCuckoo`] and [`MultiDigest`]: tables of digests, as in Maglev and SilkRoad, to compare
//!   with (docs/digest.md). They can answer wrongly, and count it.
//! * [`Ludo`] and [`LudoView`]: 3.8 + 1.06 l bits per key, updates in constant time, sent to views as
//!   messages; [`LudoShared`] is a view that threads read while one writes (docs/ludo.md).
//! * [`Cuckoo`], [`PartialCuckoo`], [`Filtable`], [`SetSep`], [`Bloom`], [`CountingBloom`]: what these
//!   are compared with, and what forwarders are made of (docs/cuckoo.md).
//! * [`Guarded`]: a filter ([`Bloom`], [`FuseFilter`]) in front of a map, for alien keys.
//!
//! Every structure answers one key (`lookup`) or a slice of keys (`lookup_batch`), which hides the
//! memory's latency behind [`pipeline`].
#![deny(unsafe_code)]

mod adjacency;
mod batch;
mod bits;
mod bloom;
mod cells;
mod cuckoo;
mod digest;
mod fuse;
pub mod gather;
mod graph;
mod guarded;
mod hub;
mod keys;
mod ludo;
mod othello;
mod othello_map;
mod othello_set;
mod othello_shared;
mod pages;
mod partial;
mod prefetch;
mod setsep;
mod shared_cells;
mod value;
mod vector;
mod version;
mod wire_key;

/// What versions are made of; a model of them is made of other atomics.
mod atomic {
    pub(crate) use std::sync::atomic::{AtomicU32, Ordering, fence};
}

pub use batch::{BATCH, pipeline, pipeline_vectored};
pub use bloom::{
    Bloom, BloomFeed, BloomKind, BloomReader, BloomShared, BloomUpdate, BloomView, CountingBloom,
};
pub use cells::{CHUNK_BYTES, Geometry, View, cells_per_chunk};
pub use cuckoo::Cuckoo;
pub use digest::{DigestCuckoo, HitCount, MISS, MultiDigest, Placed};
pub use fuse::{Fuse, FuseShape};
pub use guarded::{
    Filter, FuseFilter, Guarded, GuardedReader, GuardedShared, Lookup, LudoWriter, MapReader,
    SharedMap,
};
pub use keys::{Bytes, Octets};
pub use ludo::{
    LUDO_LOAD, Ludo, LudoChange, LudoError, LudoKind, LudoReader, LudoShared, LudoStats,
    LudoUpdate, LudoView, ludo_seed,
};
pub use othello::{CELLS_PER_KEY, Othello};
pub use othello_map::OthelloMap;
pub use othello_set::{
    OthelloSet, SetExporter, SetKind, SetReader, SetShared, SetUpdate, SetView, wire,
};
pub use othello_shared::{OthelloReader, OthelloShared};
pub use partial::{Filtable, FiltableKind, FiltableUpdate, FiltableView, PartialCuckoo};
pub use prefetch::prefetch;
pub use setsep::{SetSep, SetSepMap};
pub use value::Value;
pub use vector::{Vectors, Work, vectorised};
pub use weir_wire::hash::HashKey;
pub use wire_key::WireKey;

/// A key that can be hashed under a seed.
///
/// Two different keys must not collide under every seed: a table that meets a collision it cannot
/// place draws another seed and starts again.
pub trait Key: Copy + Eq {
    /// 64 uniform bits; the low half chooses the cell in A, the high half the one in B.
    fn hash(&self, key: &HashKey) -> u64;
}

impl Key for u64 {
    #[inline(always)]
    fn hash(&self, key: &HashKey) -> u64 {
        key.hash_word(*self)
    }
}

/// What can go wrong in a compact map.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Many seeds in a row left a cycle; only a broken [`Key::hash`] or equal keys do that.
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
    /// A table of digests has no room for another entry.
    #[error("no room for another entry beside {entries} in {slots} slots")]
    Full {
        /// Entries in the table.
        entries: usize,
        /// Slots of the table.
        slots: usize,
    },
    /// Different keys share 64-bit hashes under many hash keys: [`Key::hash`] is broken.
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
}
