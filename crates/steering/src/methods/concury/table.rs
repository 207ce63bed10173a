//! Concury's table: the DIP array and the Dcodes.
//!
//! ```text
//! elements ..    slots of 16 bits, one for each Dcode: a backend, or a reserved one
//! elements ..    chunks of array A, then chunks of array B; or the cells of a fuse
//! header         all fields of a RawHeader
//! ```

use super::codec::{Codec, Codes};
use crate::ids::{BackendId, Dcode};
use crate::registry::{Image, MethodId};
use crate::shared::RawHeader;
use crate::table::{
    self, ELEMENT_BYTES, HEADER_BYTES, ImageError, NO_BACKEND, Table, slot_elements,
};
use weir_hash::HashKey;
use weir_lookup::{Fuse, FuseShape, Geometry, View, cells_per_chunk};

/// The DIP array and the Dcodes of a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Body {
    slots: Vec<u16>,
    codes: Codes,
    fallback: Option<BackendId>,
}

impl Body {
    /// A body of as many slots as there are Dcodes. `fallback` is the backend of a new flow when
    /// all Dcodes that it tries are reserved.
    pub(super) fn new(slots: Vec<u16>, codes: Codes, fallback: Option<BackendId>) -> Self {
        debug_assert_eq!(slots.len(), 1 << codes.bits());
        Self { slots, codes, fallback }
    }

    /// The DIP array: the backend of each Dcode, with its reserved bit.
    #[inline(always)]
    pub fn slots(&self) -> &[u16] {
        &self.slots
    }

    /// What leads from a flow's hash to its Dcode.
    #[inline(always)]
    pub fn codes(&self) -> &Codes {
        &self.codes
    }

    /// Backend of a new flow when all Dcodes that it tries are reserved.
    #[inline(always)]
    pub fn fallback(&self) -> Option<BackendId> {
        self.fallback
    }

    /// The Dcode of a flow by its hash under the table's key.
    #[inline(always)]
    pub fn code(&self, hash: u64) -> Dcode {
        Dcode::of_cell(self.codes.lookup_hash(hash))
    }

    /// The slot of a Dcode, with its reserved bit. Dcodes beyond the array wrap around.
    #[inline(always)]
    pub fn slot(&self, code: Dcode) -> u16 {
        self.slots[code.index() & (self.slots.len() - 1)]
    }

    /// The slot of the Dcode in the lower bits of a number, with its reserved bit.
    #[inline(always)]
    pub(super) fn slot_by(&self, number: u64) -> u16 {
        self.slots[number as usize & (self.slots.len() - 1)]
    }

    /// The slot to which the Dcode of a flow leads, with its reserved bit.
    #[inline(always)]
    pub fn entry(&self, hash: u64) -> u16 {
        self.slot(self.code(hash))
    }

    fn cell_elements(&self) -> (u32, u32) {
        match &self.codes {
            Codes::Othello(view) => (view.geometry().chunks_a, view.geometry().chunks_b),
            Codes::Fuse(fuse) => (fuse.bytes().div_ceil(ELEMENT_BYTES) as u32, 0),
        }
    }
}

impl table::Body for Body {
    const METHOD: MethodId = MethodId::Concury;

    fn elements(&self) -> usize {
        let (a, b) = self.cell_elements();
        slot_elements(self.slots.len()) + (a + b) as usize
    }

    fn fill(&self, raw: &mut RawHeader) {
        let bits = self.codes.bits();
        raw.first_a = raw.first_slot + slot_elements(self.slots.len()) as u32;
        (raw.chunks_a, raw.chunks_b) = self.cell_elements();
        raw.slots = self.slots.len() as u32;
        raw.per_chunk = cells_per_chunk(bits);
        raw.fallback = BackendId::to_slot(self.fallback);
        raw.bits = bits as u8;
        raw.codec = self.codes.codec() as u8;
        if let Codes::Fuse(fuse) = &self.codes {
            let FuseShape { segment_bits, segments, .. } = fuse.shape();
            raw.segment_bits = segment_bits as u8;
            raw.segments = segments;
            raw.fuse_key = *fuse.hash_key();
        }
    }

    fn write(&self, elements: &mut [u8]) {
        let (slots, cells) = elements.split_at_mut(slot_elements(self.slots.len()) * ELEMENT_BYTES);
        table::write_slots(&self.slots, slots);
        cells[..self.codes.bytes().len()].copy_from_slice(self.codes.bytes());
    }

    fn each_part(&self, digest: &mut dyn FnMut(&[u8])) {
        table::digest_slots(&self.slots, digest);
        digest(self.codes.bytes());
    }

    fn elements_of(raw: &RawHeader) -> Result<usize, ImageError> {
        Layout::of(raw)?;
        Ok(slot_elements(raw.slots as usize) + raw.chunks_a as usize + raw.chunks_b as usize)
    }

    fn read(raw: &RawHeader, mut elements: Vec<u8>) -> Result<Self, ImageError> {
        let layout = Layout::of(raw)?;
        let cells = elements.split_off(slot_elements(raw.slots as usize) * ELEMENT_BYTES);
        let slots = table::read_slots(raw.slots as usize, &elements);
        let fallback = BackendId::new(raw.fallback);
        Ok(Self { slots, codes: layout.codes(raw.key, cells), fallback })
    }

    fn bytes(&self) -> usize {
        size_of_val(&self.slots[..]) + self.codes.bytes().len()
    }
}

/// What the cells of a body are.
enum Layout {
    Othello(Geometry),
    Fuse(HashKey, FuseShape),
}

impl Layout {
    /// By a header, whose numbers may be anything.
    fn of(raw: &RawHeader) -> Result<Self, ImageError> {
        let RawHeader { chunks_a, chunks_b, slots, .. } = *raw;
        let bits = u32::from(raw.bits);
        let sized = chunks_a.checked_add(chunks_b).is_some();
        if !sized || !(1..=15).contains(&bits) || slots != 1 << bits {
            return Err(ImageError::Shape);
        }
        match raw.codec {
            0 if chunks_a > 0 && chunks_b > 0 => {
                Ok(Self::Othello(Geometry { bits, chunks_a, chunks_b }))
            }
            0 => Err(ImageError::Shape),
            1 => Self::fuse(raw, bits),
            other => Err(ImageError::Codec(other)),
        }
    }

    fn fuse(raw: &RawHeader, bits: u32) -> Result<Self, ImageError> {
        let RawHeader { chunks_a, chunks_b, segments, .. } = *raw;
        let segment_bits = u32::from(raw.segment_bits);
        let cells = u64::from(segments).checked_shl(segment_bits).filter(|_| segment_bits <= 18);
        let shape = FuseShape { bits, segment_bits, segments };
        let right = cells.is_some_and(|cells| cells <= u64::from(u32::MAX))
            && segments >= 3
            && chunks_b == 0
            && shape.bytes().div_ceil(ELEMENT_BYTES) == chunks_a as usize;
        if right { Ok(Self::Fuse(raw.fuse_key, shape)) } else { Err(ImageError::Shape) }
    }

    fn codes(self, key: HashKey, mut cells: Vec<u8>) -> Codes {
        match self {
            Self::Othello(geometry) => Codes::Othello(View::from_bytes(key, geometry, cells)),
            Self::Fuse(key, shape) => {
                cells.truncate(shape.bytes());
                cells.shrink_to_fit();
                Codes::Fuse(Fuse::from_bytes(key, shape, cells))
            }
        }
    }
}

/// What a table is if it is one of Concury's.
impl Image {
    /// The table, if it is one of Concury's; `None` if it is another method's.
    #[inline(always)]
    pub fn concury(&self) -> Option<&Table<Body>> {
        match self {
            Self::Concury(table) => Some(table),
            _ => None,
        }
    }

    /// The DIP array; empty in a table without Dcodes.
    pub fn slots(&self) -> &[u16] {
        self.concury().map_or(&[], |table| table.body().slots())
    }

    /// What leads from a flow's hash to its Dcode; `None` in a table without Dcodes.
    pub fn codes(&self) -> Option<&Codes> {
        self.concury().map(|table| table.body().codes())
    }

    /// Which structure holds the Dcodes; `None` in a table without.
    pub fn codec(&self) -> Option<Codec> {
        self.codes().map(Codes::codec)
    }

    /// The two arrays, if Othello holds the Dcodes.
    pub fn view(&self) -> Option<&View> {
        match self.codes() {
            Some(Codes::Othello(view)) => Some(view),
            _ => None,
        }
    }

    /// The Dcode of a flow by its hash under the header's key; `None` in a table without Dcodes.
    #[inline]
    pub fn code(&self, hash: u64) -> Option<Dcode> {
        self.concury().map(|table| table.body().code(hash))
    }

    /// The slot to which the Dcode of a flow leads, with its reserved bit; [`NO_BACKEND`] in a
    /// table without Dcodes.
    #[inline]
    pub fn entry(&self, hash: u64) -> u16 {
        self.concury().map_or(NO_BACKEND, |table| table.body().entry(hash))
    }
}

/// Bytes of the header, and of what packets read behind it.
pub(super) fn table_bytes(body: &Body) -> usize {
    HEADER_BYTES + table::Body::bytes(body)
}
