//! A table as it goes from one balancer to another, which calls backends by other numbers.
//!
//! Where flows fall of which nobody knows is different in each table that is built, so balancers that serve the same
//! addresses need the same one: one of them builds it, of the states of all, and the others follow it
//! (docs/fleet.md). Which Dcodes are reserved is no part of it: that follows from the pool.
//!
//! ```text
//! "weircncy"      8 bytes
//! bits            1 byte: of a Dcode
//! chunks of A, B  4 bytes each, little-endian
//! hash key        32 bytes
//! names           2 bytes: how many; each with its length in 2 bytes, in their order
//! slots           2 bytes for each Dcode: the number of a name, or 0xffff
//! cells           those of A, then those of B
//! ```

use super::codec::Codes;
use super::table::Body;
use crate::ids::BackendId;
use crate::registry::Image;
use crate::table::{ELEMENT_BYTES, NO_BACKEND, SLOT_RESERVED};
use std::collections::BTreeSet;
use std::fmt;
use weir_hash::HashKey;
use weir_lookup::{Geometry, View};
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 8] = b"weircncy";
const NOBODY: u16 = u16::MAX;
/// Elements of cells that a parcel may have: tables of more than a hundred million states.
const MOST_CHUNKS: u32 = 1 << 17;

/// A table, with backends by their names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parcel {
    codes: View,
    /// In their order.
    names: Vec<String>,
    /// For each Dcode the number of a name.
    slots: Vec<u16>,
}

/// Bytes that are no parcel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no table that another balancer could have built: {0}")]
pub struct NoParcel(&'static str);

/// What is left to be read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], NoParcel> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(NoParcel("it is too short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], NoParcel> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| NoParcel("it is too short"))
    }

    fn short(&mut self) -> Result<u16, NoParcel> {
        self.array().map(u16::from_le_bytes)
    }
}

impl Parcel {
    /// What others need of a table; `None` if it is none of Othello's Dcodes, or leads to a backend without a name.
    pub fn of(image: &Image, name_of: impl Fn(BackendId) -> Option<String>) -> Option<Self> {
        let body = image.concury()?.body();
        let codes = image.view()?.clone();
        let backends: BTreeSet<BackendId> =
            body.slots().iter().filter_map(|slot| BackendId::of_slot(*slot)).collect();
        let named: Option<Vec<(String, BackendId)>> =
            backends.into_iter().map(|id| Some((name_of(id)?, id))).collect();
        let mut named = named?;
        named.sort_unstable();
        let mut numbers = vec![NOBODY; usize::from(NO_BACKEND) + 1];
        for (at, (_, id)) in named.iter().enumerate() {
            numbers[id.index()] = at as u16;
        }
        let number =
            |slot: &u16| BackendId::of_slot(*slot).map_or(NOBODY, |id| numbers[id.index()]);
        let slots = body.slots().iter().map(number).collect();
        Some(Self { codes, names: named.into_iter().map(|(name, _)| name).collect(), slots })
    }

    /// Bits of its Dcodes.
    pub fn bits(&self) -> u32 {
        self.codes.geometry().bits
    }

    /// The backends that it leads to.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// The same for all balancers that have this table, and for no other one.
    pub fn digest(&self) -> String {
        digest_of(&self.to_bytes())
    }

    /// As it is sent.
    pub fn to_bytes(&self) -> Vec<u8> {
        let Geometry { bits, chunks_a, chunks_b } = self.codes.geometry();
        let mut out = Vec::with_capacity(self.codes.bytes() + self.slots.len() * 2 + 1024);
        out.extend(MAGIC);
        out.push(bits as u8);
        out.extend(chunks_a.to_le_bytes());
        out.extend(chunks_b.to_le_bytes());
        out.extend(self.codes.hash_key().to_bytes());
        out.extend((self.names.len() as u16).to_le_bytes());
        for name in &self.names {
            out.extend((name.len() as u16).to_le_bytes());
            out.extend(name.as_bytes());
        }
        for slot in &self.slots {
            out.extend(slot.to_le_bytes());
        }
        out.extend(self.codes.as_bytes());
        out
    }

    /// Reads one that was sent, whatever it is.
    ///
    /// # Errors
    /// [`NoParcel`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, NoParcel> {
        let mut rest = Rest(bytes);
        if rest.array()? != *MAGIC {
            return Err(NoParcel("it begins with something else"));
        }
        let [bits] = rest.array()?;
        let bits = u32::from(bits);
        let [chunks_a, chunks_b] = [rest.array()?, rest.array()?].map(u32::from_le_bytes);
        let chunks = [chunks_a, chunks_b].map(|chunks| (1..=MOST_CHUNKS).contains(&chunks));
        if !(1..=15).contains(&bits) || chunks != [true; 2] {
            return Err(NoParcel("its sizes are impossible"));
        }
        let key = HashKey::from_bytes(&rest.array()?);
        let mut names = Vec::new();
        for _ in 0..rest.short()? {
            let length = rest.short()?.into();
            let name = str::from_utf8(rest.take(length)?);
            names.push(name.map_err(|_| NoParcel("a name is no text"))?.to_owned());
        }
        if !names.is_sorted_by(|one, other| one < other) {
            return Err(NoParcel("its names are not in order"));
        }
        let slots = rest.take(2 << bits)?.chunks_exact(2);
        let slots: Vec<u16> = slots.map(|two| u16::from_le_bytes([two[0], two[1]])).collect();
        if slots.iter().any(|slot| *slot != NOBODY && usize::from(*slot) >= names.len()) {
            return Err(NoParcel("a Dcode leads to a name that is not there"));
        }
        let length = (chunks_a as usize + chunks_b as usize) * ELEMENT_BYTES;
        let cells = rest.take(length)?.to_vec();
        if !rest.0.is_empty() {
            return Err(NoParcel("something follows it"));
        }
        let codes = View::from_bytes(key, Geometry { bits, chunks_a, chunks_b }, cells);
        Ok(Self { codes, names, slots })
    }

    /// The key of its flow hash.
    pub(super) fn key(&self) -> &HashKey {
        self.codes.hash_key()
    }

    /// Its body for a pool: `place` says which backend has a name, and whether that takes new flows. Dcodes of names
    /// without one lead nowhere, and are reserved.
    pub(super) fn body(
        &self,
        place: impl Fn(&str) -> Option<(BackendId, bool)>,
        fallback: Option<BackendId>,
    ) -> Body {
        let slot = |name: &String| match place(name) {
            Some((backend, true)) => backend.get(),
            Some((backend, false)) => backend.get() | SLOT_RESERVED,
            None => NO_BACKEND | SLOT_RESERVED,
        };
        let entries: Vec<u16> = self.names.iter().map(slot).collect();
        let entry = |at: &u16| entries.get(usize::from(*at)).copied();
        let slots = self.slots.iter().map(|at| entry(at).unwrap_or(NO_BACKEND)).collect();
        Body::new(slots, Codes::Othello(self.codes.clone()), fallback)
    }
}

/// The [digest](Parcel::digest) of a parcel that was sent.
pub fn digest_of(parcel: &[u8]) -> String {
    format!("{:016x}", xxh3_64(parcel))
}

impl fmt::Display for Parcel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {}", self.digest())
    }
}
