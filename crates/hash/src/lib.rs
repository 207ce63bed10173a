//! Keyed 64-bit hashing: one function for maps, placements and packets, here and in the BPF
//! program (`crates/dataplane/bpf/hash.h`).
//!
//! * [`HashKey`] chooses the function: 256 secret bits. Who does not know them cannot aim at a
//!   backend or at a row of a table.
//! * [`Key`] is what can be hashed under one: integers, byte strings ([`Bytes`], [`Octets`]), and
//!   flows (`weir_wire::FlowKey`). A [`FixedKey`] can be written into messages as well.
//! * [`scale`] maps a hash onto a range without a division.
//!
//! ```
//! use weir_hash::{HashKey, Key, scale};
//!
//! let key = HashKey::from_seed(7);
//! let hash = 0x0a00_0001u64.hash(&key);
//! assert_eq!(hash, key.hash_word(0x0a00_0001));
//! assert!(scale((hash >> 32) as u32, 10) < 10);
//! assert_ne!(hash, 0x0a00_0001u64.hash(&HashKey::from_seed(8)));
//! ```
//!
//! Nothing here is a cryptographic hash: who can choose what is hashed *and* watch where it lands
//! learns about the key.
#![forbid(unsafe_code)]

mod hash_key;
mod key;

pub use hash_key::HashKey;
pub use key::{Bytes, FixedKey, Key, Octets};

/// Maps 32 uniform bits onto `0..n` without a division (Lemire 2019).
#[inline(always)]
pub fn scale(hash32: u32, n: u32) -> u32 {
    ((u64::from(hash32) * u64::from(n)) >> 32) as u32
}
