//! Keys of cookies that change under connections.
//!
//! ```text
//! cookie   | number, hidden under one of two keys   | k |      k: which
//! ```
//! The bit is in the clear, so that a cookie is read under the key that it was made by, and under no other.

use super::layout::Codec;
use weir_hash::HashKey;

/// Keys that a cookie tells apart.
pub const COOKIE_KEYS: usize = 2;

/// The keys that numbers are hidden under, where a cookie says under which: all are read, one issues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CookieKeys {
    keys: [Option<HashKey>; COOKIE_KEYS],
    issue: u8,
}

impl CookieKeys {
    /// Keys by the bit that names them, and the one by which cookies are made; none if that is not there.
    pub fn new(keys: [Option<HashKey>; COOKIE_KEYS], issue: usize) -> Option<Self> {
        (*keys.get(issue)?)?;
        Some(Self { keys, issue: issue as u8 })
    }

    /// The number of the key by which cookies are made.
    pub fn issue(&self) -> u8 {
        self.issue
    }

    /// This tier's part of a cookie that hides a number, for a flow with this hash under the table's key.
    #[inline]
    pub(super) fn hide(&self, codec: &Codec, hash: u64, number: u16) -> Option<u16> {
        let key = self.keys[usize::from(self.issue)]?;
        Some(codec.hide_for(key.mix(hash), number) << 1 | u16::from(self.issue))
    }

    /// The number that a part hides; none if its key is not there.
    #[inline]
    pub(super) fn reveal(&self, codec: &Codec, hash: u64, part: u16) -> Option<u16> {
        let key = self.keys[usize::from(part & 1)]?;
        Some(codec.reveal_for(key.mix(hash), part >> 1))
    }

    /// The keys as they stand in a table; zeros where there is none, as the multipliers of keys are odd.
    pub fn to_bytes(&self) -> [u8; COOKIE_KEYS * size_of::<HashKey>()] {
        let mut bytes = [0; COOKIE_KEYS * size_of::<HashKey>()];
        for (key, bytes) in self.keys.iter().zip(bytes.chunks_exact_mut(size_of::<HashKey>())) {
            if let Some(key) = key {
                bytes.copy_from_slice(&key.to_bytes());
            }
        }
        bytes
    }

    /// The keys of such bytes; none if the one that issues is not among them.
    pub(super) fn from_bytes(bytes: &[u8], issue: usize) -> Option<Self> {
        let mut keys = [None; COOKIE_KEYS];
        for (key, bytes) in keys.iter_mut().zip(bytes.chunks_exact(size_of::<HashKey>())) {
            if bytes.iter().any(|byte| *byte != 0) {
                *key = Some(HashKey::from_bytes(bytes.try_into().ok()?));
            }
        }
        Self::new(keys, issue)
    }
}
