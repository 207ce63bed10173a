//! What a published table has in common with the C programs, declared once.
//!
//! The build of the kernel plane writes a C header from these declarations, so neither side has an
//! offset, a number or a field of its own.

use std::mem::offset_of;
use weir_hash::HashKey;

/// A type that the C programs know too.
pub trait Shared: Copy {
    /// Its name in C; for an array, the element's.
    const C_TYPE: &'static str;
    /// Elements, if it is an array.
    const COUNT: Option<usize> = None;

    /// Writes the value, little-endian, into as many bytes as it has.
    fn put(&self, out: &mut [u8]);

    /// The value of as many bytes as it has.
    fn get(bytes: &[u8]) -> Self;
}

macro_rules! integers {
    ($($type:ty = $c_type:literal),*) => {$(
        impl Shared for $type {
            const C_TYPE: &'static str = $c_type;

            fn put(&self, out: &mut [u8]) {
                out.copy_from_slice(&self.to_le_bytes());
            }

            fn get(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<Self>()];
                own.copy_from_slice(bytes);
                Self::from_le_bytes(own)
            }
        }
    )*};
}

integers!(u8 = "__u8", u16 = "__u16", u32 = "__u32", u64 = "__u64");

impl Shared for HashKey {
    const C_TYPE: &'static str = "struct hash_key";

    fn put(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.to_bytes());
    }

    fn get(bytes: &[u8]) -> Self {
        let mut own = [0; size_of::<Self>()];
        own.copy_from_slice(bytes);
        Self::from_bytes(&own)
    }
}

/// A field of a structure that Rust and C share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// Its name, the same in both languages.
    pub name: &'static str,
    /// Its type in C; for an array, the element's.
    pub c_type: &'static str,
    /// Elements, if it is an array.
    pub count: Option<usize>,
    /// Bytes of the header before it.
    pub offset: usize,
    /// Bytes that it takes.
    pub bytes: usize,
    /// What it says, as a comment for the C header.
    pub doc: &'static str,
}

/// Declares a structure, its bytes, and the list of its fields.
macro_rules! shared_struct {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident { $(#[doc = $doc:literal] pub $field:ident: $type:ty,)* }
    ) => {
        $(#[$attribute])*
        #[repr(C)]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name { $(#[doc = $doc] pub $field: $type,)* }

        impl $name {
            /// Its size in bytes.
            pub const BYTES: usize = size_of::<Self>();

            /// Its fields, in the order of their offsets, without gaps.
            pub const FIELDS: &[Field] = &[$(Field {
                name: stringify!($field),
                c_type: <$type as Shared>::C_TYPE,
                count: <$type as Shared>::COUNT,
                offset: offset_of!($name, $field),
                bytes: size_of::<$type>(),
                doc: $doc,
            },)*];

            /// The structure as it stands in memory that C reads.
            pub fn to_bytes(&self) -> [u8; Self::BYTES] {
                let mut out = [0; Self::BYTES];
                $(self.$field.put(&mut out[offset_of!($name, $field)..][..size_of::<$type>()]);)*
                out
            }

            /// The structure of such bytes, whose values may be anything.
            pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
                Self {
                    $($field: Shared::get(
                        &bytes[offset_of!($name, $field)..][..size_of::<$type>()],
                    ),)*
                }
            }
        }

        const _: () = {
            let (mut sum, mut at) = (0, 0);
            while at < $name::FIELDS.len() {
                assert!($name::FIELDS[at].offset == sum, "a gap between the fields");
                sum += $name::FIELDS[at].bytes;
                at += 1;
            }
            assert!(sum == $name::BYTES, "a gap behind the fields");
        };
    };
}

shared_struct! {
    /// The header of a published table, field by field. The first 64 bytes, one cache line, are all
    /// that a packet needs; the rest is for people and for the control plane.
    pub struct RawHeader {
        /// key of the flow hash
        pub key: HashKey,
        /// element of the pool where the body begins, with its slots
        pub first_slot: u32,
        /// element where array A begins; B follows it
        pub first_a: u32,
        /// elements of array A, or of a fuse
        pub chunks_a: u32,
        /// elements of array B
        pub chunks_b: u32,
        /// slots: entries of the DIP array (a power of two) or of the Maglev table
        pub slots: u32,
        /// cells in an element
        pub per_chunk: u32,
        /// `enum table_flags`; the one field that changes in a published table
        pub flags: u32,
        /// backend of a new flow when every Dcode that it tries is reserved
        pub fallback: u16,
        /// width of a cell
        pub bits: u8,
        /// `enum method`
        pub method: u8,
        /// counts the tables of a service
        pub generation: u64,
        /// digest of everything but flags and generation
        pub digest: u64,
        /// states that the table holds
        pub states: u64,
        /// what holds the Dcodes: 0 Othello, 1 a fuse
        pub codec: u8,
        /// of a fuse: binary logarithm of the cells of a segment
        pub segment_bits: u8,
        /// version of the method's layout
        pub layout: u16,
        /// of a fuse: segments
        pub segments: u32,
        /// of a fuse: key of the hash that picks cells, from the flow hash
        pub fuse_key: HashKey,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_its_bytes_and_packets_need_one_line_of_it() {
        let bytes: [u8; RawHeader::BYTES] = std::array::from_fn(|i| i as u8 ^ 0x5a);
        let header = RawHeader::from_bytes(&bytes);
        assert_eq!(header.to_bytes(), bytes);
        let line = RawHeader::FIELDS.iter().find(|field| field.offset == 64);
        assert_eq!(line.map(|field| field.name), Some("generation"));
        assert_eq!(RawHeader::BYTES, 128);
    }
}
