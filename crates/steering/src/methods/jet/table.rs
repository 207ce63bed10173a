//! JET's published table: two columns of rows.
//!
//! ```text
//! elements ..    the owner of each row, and the bit "ask": all that a packet of a clean row reads
//! elements ..    where flows of the row start, and the bit "track": read where the connection
//!                table was asked and did not know the flow
//! ```

use super::config::Method;
use crate::method::Method as _;
use crate::registry::MethodId;
use crate::shared::RawHeader;
use crate::table::{
    self, ELEMENT_BYTES, ImageError, NO_BACKEND, SLOT_BACKEND, digest_slots, read_slots,
    slot_elements, write_slots,
};
use weir_hash::scale;

/// Bit of an owner: a flow of this row may be in the connection table.
pub(super) const ASK: u16 = !SLOT_BACKEND;
/// Bit of a start: a flow of this row that the connection table does not know gets there.
pub(super) const TRACK: u16 = !SLOT_BACKEND;

/// The rows of a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Body {
    owners: Vec<u16>,
    starts: Vec<u16>,
}

impl Body {
    /// Of two columns of one length.
    pub(super) fn new(owners: Vec<u16>, starts: Vec<u16>) -> Self {
        debug_assert_eq!(owners.len(), starts.len());
        Self { owners, starts }
    }

    /// For each row the backend of its flows, and in the highest bit whether the connection table
    /// may know better.
    pub fn owners(&self) -> &[u16] {
        &self.owners
    }

    /// For each row the backend of flows that start, and in the highest bit whether they are
    /// tracked.
    pub fn starts(&self) -> &[u16] {
        &self.starts
    }

    /// The row of a flow with this hash under the table's key.
    #[inline(always)]
    pub fn row(&self, hash: u64) -> u32 {
        scale(hash as u32, self.owners.len() as u32)
    }

    /// The part of the rows whose packets ask the connection table, from 0 to 1.
    pub fn asking(&self) -> f64 {
        share(&self.owners, ASK)
    }

    /// The part of the rows whose flows are tracked, from 0 to 1.
    pub fn tracking(&self) -> f64 {
        share(&self.starts, TRACK)
    }
}

fn share(slots: &[u16], bit: u16) -> f64 {
    slots.iter().filter(|&&slot| slot & bit != 0).count() as f64 / slots.len() as f64
}

impl table::Body for Body {
    const METHOD: MethodId = Method::ID;

    fn elements(&self) -> usize {
        2 * slot_elements(self.owners.len())
    }

    fn fill(&self, raw: &mut RawHeader) {
        let column = slot_elements(self.owners.len()) as u32;
        raw.first_a = raw.first_slot + column;
        raw.chunks_a = column;
        raw.slots = self.owners.len() as u32;
        raw.fallback = NO_BACKEND;
    }

    fn write(&self, elements: &mut [u8]) {
        let (owners, starts) =
            elements.split_at_mut(slot_elements(self.owners.len()) * ELEMENT_BYTES);
        write_slots(&self.owners, owners);
        write_slots(&self.starts, starts);
    }

    fn each_part(&self, digest: &mut dyn FnMut(&[u8])) {
        digest_slots(&self.owners, digest);
        digest_slots(&self.starts, digest);
    }

    fn elements_of(raw: &RawHeader) -> Result<usize, ImageError> {
        let column = slot_elements(raw.slots as usize);
        let right = raw.slots > 0 && raw.chunks_a as usize == column && raw.chunks_b == 0;
        if right { Ok(2 * column) } else { Err(ImageError::Shape) }
    }

    fn read(raw: &RawHeader, elements: Vec<u8>) -> Result<Self, ImageError> {
        let rows = raw.slots as usize;
        let (owners, starts) = elements.split_at(slot_elements(rows) * ELEMENT_BYTES);
        Ok(Self { owners: read_slots(rows, owners), starts: read_slots(rows, starts) })
    }

    fn bytes(&self) -> usize {
        size_of_val(&self.owners[..]) + size_of_val(&self.starts[..])
    }
}
