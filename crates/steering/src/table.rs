//! A table: a small header that is the same for every method, and a body of the method's own.
//!
//! A table that a kernel plane can hold is published byte for byte:
//! ```text
//! header         128 bytes, a RawHeader; the first 64, one cache line, are all that a packet reads
//! elements ..    of 4,096 bytes: whatever the method reads
//! ```
//! The header stands in one map, the elements in a range of another. Whatever is left of the last
//! element of a part is zero.

use crate::registry::{Image, MethodId};
use crate::shared::RawHeader;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use weir_hash::HashKey;
use weir_lookup::CHUNK_BYTES;
use xxhash_rust::xxh3::Xxh3;

/// Bytes of an element of the array that holds all tables.
pub const ELEMENT_BYTES: usize = CHUNK_BYTES;
/// Slots of two bytes in an element.
pub const SLOTS_PER_ELEMENT: usize = ELEMENT_BYTES / 2;
/// Bit of a slot: a row kept for a backend that gets no new flows.
pub const SLOT_RESERVED: u16 = 0x8000;
/// Bits of a slot that hold the backend.
pub const SLOT_BACKEND: u16 = 0x7fff;
/// What a slot holds that names no backend; no backend has this number.
pub const NO_BACKEND: u16 = 0x7fff;

/// Flags of a table; the one field that changes while the table is published.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(pub u32);

impl Flags {
    /// An update is being built: note where new flows go.
    pub const RECORD: u32 = 1;
    /// The pending table may hold flows of this service.
    pub const PENDING: u32 = 2;
    /// Packets mark their flows as active, so that idle ones can be told.
    pub const MARK: u32 = 4;
    /// Keys are clients: source addresses without ports.
    pub const CLIENT: u32 = 8;
    /// Answers pass the balancer, which writes their timestamps and restores what they displace.
    pub const ANSWERS: u32 = 16;
    /// Backends write their timestamps themselves: a first packet tells them its cookie, in TSecr.
    pub const TELLS: u32 = 32;
    /// A change of several balancers is between its steps: no flow may start, not even one that the table
    /// leads as it led a former one of the same key.
    pub const FROZEN: u32 = 64;
    /// Every flow that lives on a reserved row is pinned: whoever is not is placed again, with each of its packets.
    pub const EXACT: u32 = 128;
    /// New flows go to the backends of the table's list by turns.
    pub const TURNS: u32 = 1 << 16;
    /// New flows go to the less loaded of two.
    pub const TWO_CHOICES: u32 = 1 << 17;
    /// New flows go to the least loaded.
    pub const LEAST: u32 = Self::TURNS | Self::TWO_CHOICES;
    /// The bits that say how new flows are given a backend; without one, their hash says.
    pub const SCHEDULER: u32 = Self::LEAST;
    /// Open connections are counted.
    pub const COUNTS: u32 = 1 << 18;

    /// Whether a flag is set.
    #[inline(always)]
    pub fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }

    /// These flags, with one of them set or cleared.
    pub fn with(self, flag: u32, on: bool) -> Self {
        Self(if on { self.0 | flag } else { self.0 & !flag })
    }
}

/// What all tables have in common: what a packet needs to know first, and what a person wants to
/// know.
pub struct Header {
    /// Key of the flow hash.
    pub key: HashKey,
    /// Counts the tables of a service.
    pub generation: u64,
    /// Digest over everything but flags and generation: equal digests, equal tables.
    pub digest: u64,
    /// States that the table holds.
    pub states: u64,
    flags: AtomicU32,
}

impl Header {
    /// A header whose digest is not known yet.
    pub fn new(key: HashKey, flags: Flags, generation: u64, states: u64) -> Self {
        Self { key, generation, digest: 0, states, flags: AtomicU32::new(flags.0) }
    }

    /// The flags as they are now; they may change at any time.
    #[inline(always)]
    pub fn flags(&self) -> Flags {
        Flags(self.flags.load(Ordering::Relaxed))
    }

    /// Sets the flags, for everybody who holds the table. Whoever must know that all packets see
    /// them waits for a grace period.
    pub fn set_flags(&self, flags: Flags) {
        self.flags.store(flags.0, Ordering::Relaxed);
    }
}

impl Clone for Header {
    fn clone(&self) -> Self {
        Self { flags: AtomicU32::new(self.flags().0), ..*self }
    }
}

impl PartialEq for Header {
    fn eq(&self, other: &Self) -> bool {
        (self.key, self.generation, self.digest, self.states, self.flags())
            == (other.key, other.generation, other.digest, other.states, other.flags())
    }
}

impl Eq for Header {}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Header")
            .field("flags", &self.flags())
            .field("generation", &self.generation)
            .field("digest", &format_args!("{:016x}", self.digest))
            .field("states", &self.states)
            .finish_non_exhaustive()
    }
}

/// Bytes of a table's header, of which packets read the first 64.
pub const HEADER_BYTES: usize = RawHeader::BYTES;

/// A table that cannot be what it claims to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// Too short for a header or for what the header says.
    #[error("a table of {have} bytes where its header asks for {need}")]
    Length {
        /// Bytes that there are.
        have: usize,
        /// Bytes that a table of this header has.
        need: usize,
    },
    /// Unknown method number, or one of a method that has no published tables.
    #[error("unknown method {0}")]
    Method(u8),
    /// A layout of the method's that another version of weir made.
    #[error("layout {found} of the method {method}, where this program knows layout {known}")]
    Layout {
        /// The table's method.
        method: MethodId,
        /// The table's version of the method's layout.
        found: u16,
        /// The version that this program knows.
        known: u16,
    },
    /// The number of its codec is none that this program knows.
    #[error("unknown codec {0}")]
    Codec(u8),
    /// Numbers of slots, cells or bits that no table has.
    #[error("a header with impossible sizes")]
    Shape,
    /// A table without Dcodes where one with them is needed.
    #[error("a table of the method {0} has no Dcodes")]
    NoDcodes(MethodId),
    /// The digest does not match.
    #[error("digest {found:016x} where the header says {wanted:016x}")]
    Digest {
        /// The digest of the bytes.
        found: u64,
        /// The digest that the header carries.
        wanted: u64,
    },
}

/// What a method's tables hold behind the header.
///
/// A body that can be published writes itself as elements, and is read back from them. The fields
/// of the [`RawHeader`] that are not the same for every method are the body's: it may use each of
/// them for whatever it wants, as its C twin does.
pub trait Body: Clone + PartialEq + Eq + fmt::Debug + Sized {
    /// The method whose tables have this body.
    const METHOD: MethodId;
    /// Version of the layout: raised when fields or elements change their meaning. Another one is
    /// not read.
    const LAYOUT: u16 = 1;

    /// Elements that it fills.
    fn elements(&self) -> usize;
    /// Fills in its own fields of a header, for elements from `raw.first_slot` on.
    fn fill(&self, raw: &mut RawHeader);
    /// Writes its elements, which are zero.
    fn write(&self, elements: &mut [u8]);
    /// Calls with all its bytes, in an order of its own, for the digest.
    fn each_part(&self, digest: &mut dyn FnMut(&[u8]));
    /// Elements that a body with this header fills, whose numbers may be anything.
    ///
    /// # Errors
    /// [`ImageError::Shape`] and [`ImageError::Codec`].
    fn elements_of(raw: &RawHeader) -> Result<usize, ImageError>;
    /// Reads a body: as many elements as [`elements_of`](Self::elements_of) said.
    ///
    /// # Errors
    /// As there.
    fn read(raw: &RawHeader, elements: Vec<u8>) -> Result<Self, ImageError>;
    /// A header without what the plane has put into it besides, which is no part of the table.
    fn unplaced(raw: &RawHeader) -> RawHeader {
        *raw
    }
    /// Bytes that packets may read.
    fn bytes(&self) -> usize;
}

/// A table of one method: the common header, and a body of the method's own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table<B> {
    header: Header,
    body: B,
}

impl<B> Table<B> {
    /// What all tables have in common: key, generation, digest, flags.
    #[inline(always)]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What only this method's tables have.
    #[inline(always)]
    pub fn body(&self) -> &B {
        &self.body
    }
}

impl<B: Body> Table<B> {
    /// Puts a table together and computes its digest.
    pub fn new(mut header: Header, body: B) -> Self {
        header.digest = digest(&header, &body);
        Self { header, body }
    }

    /// The header for a body that begins at element `base`.
    pub fn raw_header(&self, base: u32) -> RawHeader {
        raw_header(&self.header, &self.body, base)
    }

    /// Reads a table back and checks its digest; see [`Image::read_from`].
    ///
    /// # Errors
    /// [`ImageError`].
    pub(crate) fn read(raw: &RawHeader, elements: Vec<u8>) -> Result<Self, ImageError> {
        let header = Header {
            digest: raw.digest,
            ..Header::new(raw.key, Flags(raw.flags), raw.generation, raw.states)
        };
        let body = B::read(raw, elements)?;
        let (wanted, found) = (header.digest, digest(&header, &body));
        if found != wanted {
            return Err(ImageError::Digest { found, wanted });
        }
        // What the digest does not see: fields that the method does not use, or in other words.
        let whole = raw_header(&header, &body, raw.first_slot) == B::unplaced(raw);
        if whole { Ok(Self { header, body }) } else { Err(ImageError::Shape) }
    }

    /// Elements of the body that a header tells of, if its layout is this program's.
    pub(crate) fn elements_of(raw: &RawHeader) -> Result<usize, ImageError> {
        if raw.layout != B::LAYOUT {
            let (found, known) = (raw.layout, B::LAYOUT);
            return Err(ImageError::Layout { method: B::METHOD, found, known });
        }
        B::elements_of(raw)
    }
}

fn raw_header<B: Body>(header: &Header, body: &B, base: u32) -> RawHeader {
    let mut raw = RawHeader {
        key: header.key,
        first_slot: base,
        flags: header.flags().0,
        method: B::METHOD.number(),
        generation: header.generation,
        digest: header.digest,
        states: header.states,
        layout: B::LAYOUT,
        ..RawHeader::from_bytes(&[0; HEADER_BYTES])
    };
    body.fill(&mut raw);
    raw
}

fn digest<B: Body>(header: &Header, body: &B) -> u64 {
    let raw = RawHeader { flags: 0, generation: 0, digest: 0, ..raw_header(header, body, 0) };
    let mut hasher = Xxh3::new();
    hasher.update(&raw.to_bytes());
    body.each_part(&mut |part| hasher.update(part));
    hasher.digest()
}

/// Elements that this many slots fill.
pub fn slot_elements(slots: usize) -> usize {
    slots.div_ceil(SLOTS_PER_ELEMENT)
}

/// Writes slots as they stand in elements.
pub fn write_slots(slots: &[u16], target: &mut [u8]) {
    for (bytes, slot) in target.chunks_exact_mut(2).zip(slots) {
        bytes.copy_from_slice(&slot.to_le_bytes());
    }
}

/// Reads slots as they stand in elements.
pub fn read_slots(slots: usize, bytes: &[u8]) -> Vec<u16> {
    bytes.chunks_exact(2).take(slots).map(|b| u16::from_le_bytes([b[0], b[1]])).collect()
}

/// Hands slots over for a digest.
pub fn digest_slots(slots: &[u16], digest: &mut dyn FnMut(&[u8])) {
    let mut bytes = [0; ELEMENT_BYTES];
    for slots in slots.chunks(SLOTS_PER_ELEMENT) {
        let bytes = &mut bytes[..slots.len() * 2];
        write_slots(slots, bytes);
        digest(bytes);
    }
}

impl Image {
    /// Sets the flags of a published table, for everybody who holds it.
    pub fn set_flags(&self, flags: Flags) {
        self.header().set_flags(flags);
    }

    /// Bytes of the table, header and body.
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + self.elements() * ELEMENT_BYTES
    }

    /// Reads a published table back and checks its digest. `body` returns the elements that begin
    /// at a number, if the pool has them.
    ///
    /// # Errors
    /// [`ImageError`] if the bytes are no table or a damaged one.
    pub fn read_from(
        header: &[u8],
        body: impl FnOnce(u32, usize) -> Option<Vec<u8>>,
    ) -> Result<Self, ImageError> {
        let Some(bytes) = header.first_chunk() else {
            return Err(ImageError::Length { have: header.len(), need: HEADER_BYTES });
        };
        let raw = RawHeader::from_bytes(bytes);
        let elements = Self::elements_of(&raw)?;
        let need = elements.checked_mul(ELEMENT_BYTES).ok_or(ImageError::Shape)?;
        let body = body(raw.first_slot, elements)
            .filter(|body| body.len() == need)
            .ok_or(ImageError::Length { have: 0, need })?;
        Self::read(&raw, body)
    }

    /// First element and number of elements of a published body, by its header.
    pub fn range_of(header: &[u8]) -> Option<(u32, u32)> {
        let raw = RawHeader::from_bytes(header.first_chunk()?);
        Some((raw.first_slot, Self::elements_of(&raw).ok()?.try_into().ok()?))
    }
}
