//! A published table, byte for byte as the kernel plane holds it.
//!
//! ```text
//! header         128 bytes; the first 64, one cache line, are all that a packet reads
//! elements ..    slots: 16 bits each, 2,048 per element (DIP array, or Maglev table)
//! elements ..    chunks of array A, then chunks of array B (concury)
//! ```
//! The header stands in one map, the elements in a range of another.

use weir_lookup::{CHUNK_BYTES, HashKey, View, cells_per_chunk};
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
    /// Chunks of array A.
    pub chunks_a: u32,
    /// Chunks of array B.
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
    /// The digest does not match.
    #[error("digest {found:016x} where the header says {wanted:016x}")]
    Digest {
        /// Computed.
        found: u64,
        /// Stored.
        wanted: u64,
    },
}

/// A table: header, slots, and for concury the two arrays.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Image {
    header: Header,
    slots: Vec<u16>,
    view: Option<View>,
}

impl Image {
    /// Puts a table together and computes its digest.
    pub(crate) fn new(mut header: Header, slots: Vec<u16>, view: Option<View>) -> Self {
        header.slots = slots.len() as u32;
        if let Some(view) = &view {
            let shape = view.geometry();
            header.key = *view.key();
            header.chunks_a = shape.chunks_a;
            header.chunks_b = shape.chunks_b;
            header.bits = shape.bits as u8;
        }
        let mut image = Self { header, slots, view };
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

    /// The two arrays of concury.
    pub fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }

    /// Elements that hold slots.
    fn slot_elements(&self) -> usize {
        self.slots.len().div_ceil(SLOTS_PER_ELEMENT)
    }

    /// Elements of the body.
    pub fn elements(&self) -> usize {
        let cells = self.view.as_ref().map_or(0, |view| view.bytes().len() / ELEMENT_BYTES);
        self.slot_elements() + cells
    }

    /// Bytes of the table, header and body.
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + self.elements() * ELEMENT_BYTES
    }

    /// The header for a body that begins at element `base`.
    pub fn header_bytes(&self, base: u32) -> [u8; HEADER_BYTES] {
        self.header.to_bytes(base, self.slot_elements())
    }

    /// Writes the body into its [`elements`](Self::elements).
    pub fn write_body(&self, target: &mut [u8]) {
        let (slots, cells) = target.split_at_mut(self.slot_elements() * ELEMENT_BYTES);
        for (bytes, slot) in slots.chunks_exact_mut(2).zip(&self.slots) {
            bytes.copy_from_slice(&slot.to_le_bytes());
        }
        if let Some(view) = &self.view {
            cells[..view.bytes().len()].copy_from_slice(view.bytes());
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
        let (header, base) = Header::from_bytes(header)?;
        let slot_elements = (header.slots as usize).div_ceil(SLOTS_PER_ELEMENT);
        let cells = (header.chunks_a + header.chunks_b) as usize;
        let need = (slot_elements + cells) * ELEMENT_BYTES;
        let bytes = body(base, slot_elements + cells)
            .filter(|bytes| bytes.len() == need)
            .ok_or(ImageError::Length { have: 0, need })?;
        let slots = bytes[..header.slots as usize * 2]
            .chunks_exact(2)
            .map(|b| u16::from_le_bytes([b[0], b[1]]))
            .collect();
        let view = (cells > 0).then(|| {
            let geometry = weir_lookup::Geometry {
                bits: u32::from(header.bits),
                chunks_a: header.chunks_a,
                chunks_b: header.chunks_b,
            };
            let cells = bytes[slot_elements * ELEMENT_BYTES..].to_vec();
            View::from_bytes(header.key, geometry, cells)
        });
        let wanted = header.digest;
        let image = Self { header, slots, view };
        let found = image.compute_digest();
        if found == wanted { Ok(image) } else { Err(ImageError::Digest { found, wanted }) }
    }

    /// First element and number of elements of a published body, by its header.
    pub fn range_of(header: &[u8]) -> Option<(u32, u32)> {
        let (header, base) = Header::from_bytes(header.get(..HEADER_BYTES)?).ok()?;
        let slots = header.slots.div_ceil(SLOTS_PER_ELEMENT as u32);
        Some((base, slots + header.chunks_a + header.chunks_b))
    }

    fn compute_digest(&self) -> u64 {
        let mut plain = self.header.clone();
        (plain.flags, plain.generation, plain.digest) = (Flags(0), 0, 0);
        let mut hasher = Xxh3::new();
        hasher.update(&plain.to_bytes(0, self.slot_elements()));
        self.slots.iter().for_each(|slot| hasher.update(&slot.to_le_bytes()));
        if let Some(view) = &self.view {
            hasher.update(view.bytes());
        }
        hasher.digest()
    }
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
        let u64_at = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let u32_at = |at: usize| u64_at(at) as u32;
        let method = match bytes[63] {
            1 => Method::Concury,
            2 => Method::Tracked,
            other => return Err(ImageError::Method(other)),
        };
        let header = Self {
            key: HashKey {
                xor: u64_at(0),
                xor_wide: u64_at(8),
                mul1: u64_at(16),
                mul2: u64_at(24),
            },
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
