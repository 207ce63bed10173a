//! A published table, byte for byte as the kernel plane holds it.
//!
//! ```text
//! header         128 bytes; the first 64, one cache line, are all that a packet reads
//! elements ..    slots: 16 bits each, 2,048 per element (DIP array, or Maglev table)
//! elements ..    concury: chunks of array A, then chunks of array B; or the cells of a fuse
//! ```
//! The header stands in one map, the elements in a range of another.

use crate::concury::{Codec, Codes};
use weir_lookup::{CHUNK_BYTES, Fuse, FuseShape, Geometry, HashKey, View, cells_per_chunk};
use xxhash_rust::xxh3::Xxh3;

/// Bytes of an element.
pub const ELEMENT_BYTES: usize = CHUNK_BYTES;
/// Slots in an element.
pub const SLOTS_PER_ELEMENT: usize = ELEMENT_BYTES / 2;
/// Bit of a slot: a Dcode kept for a backend that gets no new flows.
pub const SLOT_RESERVED: u16 = 0x8000;
/// Bits of a slot that hold the backend.
pub const SLOT_BACKEND: u16 = 0x7fff;
/// No backend.
pub const NO_BACKEND: u16 = 0x7fff;

/// How a service's packets are steered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Method {
    /// Concury.
    Concury = 1,
    /// Full connection tracking over Maglev.
    Tracked = 2,
}

/// Flags of a table; the one field that changes while the table is published.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(pub u32);

impl Flags {
    /// An update is being built: note where new flows go.
    pub const RECORD: u32 = 1;
    /// The pending table may hold flows of this service.
    pub const PENDING: u32 = 2;
    /// Mark active flows.
    pub const MARK: u32 = 4;
    /// Affinity by client.
    pub const CLIENT: u32 = 8;

    /// Whether a flag is set.
    pub fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }

    /// With a flag set or cleared.
    pub fn with(self, flag: u32, on: bool) -> Self {
        Self(if on { self.0 | flag } else { self.0 & !flag })
    }
}

/// What a packet needs to know of a table, and what a person wants to know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// Key of the flow hash.
    pub key: HashKey,
    /// Chunks of array A, or elements of a fuse.
    pub chunks_a: u32,
    /// Chunks of array B; 0 with a fuse.
    pub chunks_b: u32,
    /// Number of slots.
    pub slots: u32,
    /// Flags.
    pub flags: Flags,
    /// Backend of a new flow when all Dcodes that it tries are reserved.
    pub fallback: u16,
    /// Width of a cell.
    pub bits: u8,
    /// Method.
    pub method: Method,
    /// Counts the tables of a service.
    pub generation: u64,
    /// Digest over everything but flags and generation: equal digests, equal tables.
    pub digest: u64,
    /// States that the table holds.
    pub states: u64,
}

/// Bytes of the header.
pub const HEADER_BYTES: usize = 128;
/// Offset of the flags in the header, for changing them in place.
pub const FLAGS_OFFSET: usize = 56;
/// Offset of the generation; the digest follows.
const GENERATION_OFFSET: usize = 64;
const DIGEST_OFFSET: usize = 72;
/// Offset of the codec in the header; behind it, for a fuse, its shape and hash key.
const CODEC_OFFSET: usize = 88;
/// Offset of the hash key of a fuse.
const FUSE_KEY_OFFSET: usize = 96;
/// Offset of the first element's number in the header.
pub const BASE_OFFSET: usize = 32;

/// A table that cannot be what it claims to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// Too short for a header or for what the header says.
    #[error("a table of {have} bytes where its header asks for {need}")]
    Length {
        /// Bytes there are.
        have: usize,
        /// Bytes there should be.
        need: usize,
    },
    /// Unknown method number.
    #[error("unknown method {0}")]
    Method(u8),
    /// Unknown codec number.
    #[error("unknown codec {0}")]
    Codec(u8),
    /// Numbers of slots, cells or bits that no table has.
    #[error("a header with impossible sizes")]
    Shape,
    /// A table without Dcodes where one with them is needed.
    #[error("a table of the method {0:?} has no Dcodes")]
    NoDcodes(Method),
    /// The digest does not match.
    #[error("digest {found:016x} where the header says {wanted:016x}")]
    Digest {
        /// Computed.
        found: u64,
        /// Stored.
        wanted: u64,
    },
}

/// A table: header, slots, and for concury the Dcodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Image {
    header: Header,
    slots: Vec<u16>,
    codes: Option<Codes>,
}

impl Image {
    /// Puts a table together and computes its digest.
    pub(crate) fn new(mut header: Header, slots: Vec<u16>, codes: Option<Codes>) -> Self {
        header.slots = slots.len() as u32;
        if let Some(codes) = &codes {
            (header.chunks_a, header.chunks_b) = match codes {
                Codes::Othello(view) => (view.geometry().chunks_a, view.geometry().chunks_b),
                Codes::Fuse(fuse) => (fuse.bytes().len().div_ceil(ELEMENT_BYTES) as u32, 0),
            };
            header.bits = codes.bits() as u8;
        }
        let mut image = Self { header, slots, codes };
        image.header.digest = image.compute_digest();
        image
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The header's flags, to be changed as they are in a published table.
    pub fn set_flags(&mut self, flags: Flags) {
        self.header.flags = flags;
    }

    /// The DIP array or Maglev table.
    pub fn slots(&self) -> &[u16] {
        &self.slots
    }

    /// The Dcodes of concury.
    pub fn codes(&self) -> Option<&Codes> {
        self.codes.as_ref()
    }

    /// What holds the Dcodes, if there are any.
    pub fn codec(&self) -> Option<Codec> {
        self.codes.as_ref().map(Codes::codec)
    }

    /// The two arrays of concury, if Othello holds its Dcodes.
    pub fn view(&self) -> Option<&View> {
        match &self.codes {
            Some(Codes::Othello(view)) => Some(view),
            _ => None,
        }
    }

    /// The Dcode of a flow by its hash under the header's key; 0 in a table without Dcodes.
    #[inline]
    pub fn code(&self, hash: u64) -> u32 {
        self.codes.as_ref().map_or(0, |codes| codes.lookup_hash(hash))
    }

    /// The slot to which the Dcode of a flow leads, with its [`SLOT_RESERVED`] bit.
    #[inline]
    pub fn entry(&self, hash: u64) -> u16 {
        self.slots[self.code(hash) as usize & (self.slots.len() - 1)]
    }

    /// Elements that hold slots.
    fn slot_elements(&self) -> usize {
        self.slots.len().div_ceil(SLOTS_PER_ELEMENT)
    }

    /// Elements of the body.
    pub fn elements(&self) -> usize {
        self.slot_elements() + (self.header.chunks_a + self.header.chunks_b) as usize
    }

    /// Bytes of the table, header and body.
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + self.elements() * ELEMENT_BYTES
    }

    /// The header for a body that begins at element `base`.
    pub fn header_bytes(&self, base: u32) -> [u8; HEADER_BYTES] {
        let mut out = self.header.to_bytes(base, self.slot_elements());
        if let Some(Codes::Fuse(fuse)) = &self.codes {
            let FuseShape { segment_bits, segments, .. } = fuse.shape();
            out[CODEC_OFFSET] = Codec::Fuse as u8;
            out[CODEC_OFFSET + 1] = segment_bits as u8;
            out[CODEC_OFFSET + 4..][..4].copy_from_slice(&segments.to_le_bytes());
            let HashKey { xor, xor_wide, mul1, mul2 } = *fuse.key();
            let words = [xor, xor_wide, mul1, mul2].into_iter().flat_map(u64::to_le_bytes);
            out[FUSE_KEY_OFFSET..].iter_mut().zip(words).for_each(|(out, byte)| *out = byte);
        }
        out
    }

    /// Writes the body into its [`elements`](Self::elements).
    pub fn write_body(&self, target: &mut [u8]) {
        let (slots, cells) = target.split_at_mut(self.slot_elements() * ELEMENT_BYTES);
        for (bytes, slot) in slots.chunks_exact_mut(2).zip(&self.slots) {
            bytes.copy_from_slice(&slot.to_le_bytes());
        }
        if let Some(codes) = &self.codes {
            cells[..codes.bytes().len()].copy_from_slice(codes.bytes());
        }
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
        if header.len() < HEADER_BYTES {
            return Err(ImageError::Length { have: header.len(), need: HEADER_BYTES });
        }
        let bytes = header;
        let (header, base) = Header::from_bytes(bytes)?;
        let layout = Layout::of(&header, bytes)?;
        let slot_elements = (header.slots as usize).div_ceil(SLOTS_PER_ELEMENT);
        let elements = slot_elements + (header.chunks_a + header.chunks_b) as usize;
        let need = elements * ELEMENT_BYTES;
        let mut body = body(base, elements)
            .filter(|body| body.len() == need)
            .ok_or(ImageError::Length { have: 0, need })?;
        let cells = body.split_off(slot_elements * ELEMENT_BYTES);
        let slots = body[..header.slots as usize * 2]
            .chunks_exact(2)
            .map(|b| u16::from_le_bytes([b[0], b[1]]))
            .collect();
        let codes = layout.codes(header.key, cells);
        let wanted = header.digest;
        let image = Self { header, slots, codes };
        let found = image.compute_digest();
        if found == wanted { Ok(image) } else { Err(ImageError::Digest { found, wanted }) }
    }

    /// First element and number of elements of a published body, by its header.
    pub fn range_of(header: &[u8]) -> Option<(u32, u32)> {
        let (header, base) = Header::from_bytes(header.get(..HEADER_BYTES)?).ok()?;
        let slots = header.slots.div_ceil(SLOTS_PER_ELEMENT as u32);
        Some((base, slots.checked_add(header.chunks_a)?.checked_add(header.chunks_b)?))
    }

    fn compute_digest(&self) -> u64 {
        let mut header = self.header_bytes(0);
        header[FLAGS_OFFSET..FLAGS_OFFSET + 4].fill(0);
        header[GENERATION_OFFSET..DIGEST_OFFSET + 8].fill(0);
        let mut hasher = Xxh3::new();
        hasher.update(&header);
        self.slots.iter().for_each(|slot| hasher.update(&slot.to_le_bytes()));
        if let Some(codes) = &self.codes {
            hasher.update(codes.bytes());
        }
        hasher.digest()
    }
}

/// What the cells of a body are.
enum Layout {
    /// None, or bytes that belong to no codec's cells.
    Slots,
    Othello(Geometry),
    Fuse(HashKey, FuseShape),
}

impl Layout {
    /// By a header, whose numbers may be anything.
    fn of(header: &Header, bytes: &[u8]) -> Result<Self, ImageError> {
        let bits = u32::from(header.bits);
        let total = header.chunks_a.checked_add(header.chunks_b).ok_or(ImageError::Shape)?;
        if header.method == Method::Tracked {
            return if total == 0 { Ok(Self::Slots) } else { Err(ImageError::Shape) };
        }
        if !(1..=15).contains(&bits) || header.slots != 1 << bits {
            return Err(ImageError::Shape);
        }
        let fuse = match bytes[CODEC_OFFSET] {
            0 => false,
            1 => true,
            other => return Err(ImageError::Codec(other)),
        };
        if !fuse {
            let Header { chunks_a, chunks_b, .. } = *header;
            let right = chunks_a > 0 && chunks_b > 0;
            let geometry = Geometry { bits, chunks_a, chunks_b };
            return if right { Ok(Self::Othello(geometry)) } else { Err(ImageError::Shape) };
        }
        let segment_bits = u32::from(bytes[CODEC_OFFSET + 1]);
        let segments = u64_at(bytes, CODEC_OFFSET) >> 32;
        let cells = segments.checked_shl(segment_bits).filter(|_| segment_bits <= 18);
        let right = cells.is_some_and(|cells| cells <= u64::from(u32::MAX));
        let shape = FuseShape { bits, segment_bits, segments: segments as u32 };
        let right = right
            && segments >= 3
            && header.chunks_b == 0
            && shape.bytes().div_ceil(ELEMENT_BYTES) == header.chunks_a as usize;
        let key = key_at(bytes, FUSE_KEY_OFFSET);
        if right { Ok(Self::Fuse(key, shape)) } else { Err(ImageError::Shape) }
    }

    fn codes(self, key: HashKey, mut cells: Vec<u8>) -> Option<Codes> {
        match self {
            Self::Slots => None,
            Self::Othello(geometry) => Some(Codes::Othello(View::from_bytes(key, geometry, cells))),
            Self::Fuse(key, shape) => {
                cells.truncate(shape.bytes());
                cells.shrink_to_fit();
                Some(Codes::Fuse(Fuse::from_bytes(key, shape, cells)))
            }
        }
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn key_at(bytes: &[u8], at: usize) -> HashKey {
    let [xor, xor_wide, mul1, mul2] = [0, 8, 16, 24].map(|word| u64_at(bytes, at + word));
    HashKey { xor, xor_wide, mul1, mul2 }
}

impl Header {
    fn to_bytes(&self, base: u32, slot_elements: usize) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        for word in [self.key.xor, self.key.xor_wide, self.key.mul1, self.key.mul2] {
            put(&word.to_le_bytes());
        }
        let first_a = base + slot_elements as u32;
        let per_chunk = if self.bits == 0 { 0 } else { cells_per_chunk(u32::from(self.bits)) };
        let words =
            [base, first_a, self.chunks_a, self.chunks_b, self.slots, per_chunk, self.flags.0];
        words.iter().for_each(|word| put(&word.to_le_bytes()));
        put(&self.fallback.to_le_bytes());
        put(&[self.bits, self.method as u8]);
        for word in [self.generation, self.digest, self.states] {
            put(&word.to_le_bytes());
        }
        out
    }

    /// The header, and the body's first element.
    fn from_bytes(bytes: &[u8]) -> Result<(Self, u32), ImageError> {
        let u64_at = |at: usize| u64_at(bytes, at);
        let u32_at = |at: usize| u64_at(at) as u32;
        let method = match bytes[63] {
            1 => Method::Concury,
            2 => Method::Tracked,
            other => return Err(ImageError::Method(other)),
        };
        let header = Self {
            key: key_at(bytes, 0),
            chunks_a: u32_at(40),
            chunks_b: u32_at(44),
            slots: u32_at(48),
            flags: Flags(u32_at(FLAGS_OFFSET)),
            fallback: u32_at(60) as u16,
            bits: bytes[62],
            method,
            generation: u64_at(64),
            digest: u64_at(72),
            states: u64_at(80),
        };
        Ok((header, u32_at(BASE_OFFSET)))
    }
}
