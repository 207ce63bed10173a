//! The simplest body of a table: rows, which a flow's hash chooses from evenly.

use crate::ids::BackendId;
use crate::memory::Memory;
use crate::method::{Method, Misfit, Setting, Settings};
use crate::methods::concury::{NEXT_TRY, SECOND_TRIES};
use crate::registry::MethodId;
use crate::schedule::stride;
use crate::shared::RawHeader;
use crate::table::{
    Body, ELEMENT_BYTES, HEADER_BYTES, ImageError, SLOT_BACKEND, Table, digest_slots, read_slots,
    slot_elements, write_slots,
};
use std::marker::PhantomData;
use weir_hash::{HashKey, scale};

/// The configuration's name for the rows of a table.
pub const ROWS: &str = "rows";
/// Rows that each backend should have at least.
const ROWS_PER_BACKEND: usize = 10;

/// The setting for as many rows as 8 MiB hold, with 65,536 for a default: a hundred for each of 655
/// backends.
pub(crate) const ROWS_SETTING: Setting = Setting::number(ROWS, (16, 1 << 22), 1 << 16);

/// Whether there are enough rows for so many backends.
pub(crate) fn rows_fit(settings: &Settings, backends: usize) -> Result<(), Misfit> {
    let rows = settings.get(ROWS);
    if backends * ROWS_PER_BACKEND <= rows as usize {
        return Ok(());
    }
    let wrong = format!("{rows} rows for {backends} backends are uneven shares");
    let right = match (backends * 100).next_power_of_two() {
        wanted if wanted <= ROWS_SETTING.range.1 as usize => format!("set rows = {wanted}"),
        _ => "split the service".to_owned(),
    };
    Err(Misfit { setting: ROWS, wrong, right })
}

/// For a new flow whose row leads to a backend that is down, as the table may be older than that:
/// further rows come from its hash. `row`: the backend of the row of such a hash, and its number.
pub(crate) fn another_row<K, M: Memory<K>>(
    key: &HashKey,
    hash: u64,
    row: impl Fn(u64) -> (Option<BackendId>, u32),
    memory: &mut M,
) -> Option<(BackendId, u32)> {
    let mut hash = hash;
    for _ in 0..SECOND_TRIES {
        hash = key.mix(hash.wrapping_add(NEXT_TRY));
        if let (Some(backend), row) = row(hash)
            && !memory.is_down(backend)
        {
            return Some((backend, row));
        }
    }
    None
}

/// A backend for each row, of a table of the method `M`. The rows fill its elements; in C a row is
/// `read_slot(table, scale(q->hash, table->slots))`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rows<M> {
    rows: Vec<u16>,
    method: PhantomData<fn() -> M>,
}

impl<M> Rows<M> {
    /// These rows, each a backend's number; what is no backend's number stands for none.
    pub fn new(rows: impl IntoIterator<Item = u16>) -> Self {
        let rows = rows.into_iter().map(|row| row & SLOT_BACKEND).collect();
        Self { rows, method: PhantomData }
    }

    /// The backend of each row, or [`NO_BACKEND`](crate::NO_BACKEND).
    #[inline(always)]
    pub fn rows(&self) -> &[u16] {
        &self.rows
    }

    /// The row of a flow with this hash under the table's key.
    #[inline(always)]
    pub fn row(&self, hash: u64) -> u32 {
        scale(hash as u32, self.rows.len() as u32)
    }

    /// The backend of a row, or [`NO_BACKEND`](crate::NO_BACKEND).
    #[inline(always)]
    pub fn at(&self, row: u32) -> u16 {
        self.rows[row as usize]
    }
}

impl<M> Table<Rows<M>> {
    /// Bytes of the table that packets may read.
    pub fn row_bytes(&self) -> usize {
        HEADER_BYTES + size_of_val(self.body().rows())
    }
}

impl<M: Method + Clone + PartialEq + Eq + std::fmt::Debug> Body for Rows<M> {
    const METHOD: MethodId = M::ID;

    fn elements(&self) -> usize {
        slot_elements(self.rows.len())
    }

    fn fill(&self, raw: &mut RawHeader) {
        raw.first_a = raw.first_slot + self.elements() as u32;
        raw.slots = self.rows.len() as u32;
        raw.fallback = stride(self.rows.len());
    }

    fn write(&self, elements: &mut [u8]) {
        write_slots(&self.rows, elements);
    }

    fn each_part(&self, digest: &mut dyn FnMut(&[u8])) {
        digest_slots(&self.rows, digest);
    }

    fn elements_of(raw: &RawHeader) -> Result<usize, ImageError> {
        let right = raw.chunks_a == 0 && raw.chunks_b == 0 && raw.slots > 0;
        if right { Ok(slot_elements(raw.slots as usize)) } else { Err(ImageError::Shape) }
    }

    fn read(raw: &RawHeader, elements: Vec<u8>) -> Result<Self, ImageError> {
        debug_assert!(elements.len().is_multiple_of(ELEMENT_BYTES));
        Ok(Self { rows: read_slots(raw.slots as usize, &elements), method: PhantomData })
    }

    fn bytes(&self) -> usize {
        size_of_val(&self.rows[..])
    }
}
