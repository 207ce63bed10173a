//! The data plane of an OthelloSet.

use super::{Layout, MessageError, SetKind, SetUpdate};
use crate::memory::bits::{Cells, fetch, load_bytes, read};
use crate::message::{BitReader, Kind, Message, check_next, out_of_range, seal};
use crate::othello::view::CHUNK_BYTES;
use crate::{Geometry, HashKey, Key, View, pipeline_vectored};

/// Bytes of a snapshot before its cells: two widths, two numbers of chunks, a hash key.
const HEADER: usize = 44;

/// Cells of value, fingerprint and emptiness bit: lookups that tell alien keys, and no keys.
///
/// ```
/// use weir_lookup::{OthelloSet, SetView};
///
/// let mut set: OthelloSet<u64, u32> = OthelloSet::new(8, 4, 1000, 1);
/// set.insert(7, 5)?;
/// let view = set.export(0, 0, |value| *value);
/// assert_eq!(view.get(&7u64), Some(5));
/// assert!(SetView::from_bytes(&view.to_bytes())? == view);
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SetView {
    table: u64,
    number: u64,
    layout: Layout,
    cells: View,
}

impl SetView {
    /// Layout, hash key and shape.
    pub(super) fn shape(&self) -> (Layout, HashKey, Geometry) {
        (self.layout, *self.cells.hash_key(), self.cells.geometry())
    }

    /// All cells, A's first.
    pub(super) fn cells(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.cells.geometry().cells() as u32).map(|node| self.cells.cell(node).into())
    }

    pub(super) fn empty(
        table: u64,
        number: u64,
        layout: Layout,
        key: HashKey,
        geometry: Geometry,
    ) -> Self {
        Self { table, number, layout, cells: View::zeroed(key, geometry) }
    }

    /// Writes all cells of an empty view.
    pub(super) fn fill(&mut self, cells: &[u32]) {
        for (node, &cell) in cells.iter().enumerate().filter(|(_, cell)| **cell != 0) {
            self.cells.flip(node as u32, cell);
        }
    }

    /// Number of the last message that it has seen.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The data plane of its set that it is: what a message for it names as its table. Other sets,
    /// and other data planes of the same one, have other numbers.
    pub fn table(&self) -> u64 {
        self.table
    }

    /// Bytes of the cells.
    pub fn bytes(&self) -> usize {
        self.cells.bytes()
    }

    /// The value of a key; `None` for an alien key, but with the probability of
    /// [`OthelloSet::false_positive_rate`](super::OthelloSet::false_positive_rate).
    #[inline]
    pub fn get<K: Key>(&self, key: &K) -> Option<u32> {
        let hash = key.hash(self.cells.hash_key());
        let places = self.cells.bits_of(hash);
        match load_bytes(self.layout.cell_bits()) {
            4 => self.answer::<4>(hash, places),
            _ => self.answer::<8>(hash, places),
        }
    }

    #[inline(always)]
    fn answer<const LOAD: usize>(&self, hash: u64, [a, b]: [u64; 2]) -> Option<u32> {
        let bytes = self.cells.as_bytes();
        self.layout.answer(hash, [read::<LOAD, u32>(bytes, a), read::<LOAD, u32>(bytes, b)])
    }

    /// The values of many keys, with the cache misses of 32 lookups under way at a time.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn get_batch<K: Key>(&self, keys: &[K], out: &mut [Option<u32>]) {
        match load_bytes(self.layout.cell_bits()) {
            4 => self.batch::<K, 4>(keys, out),
            _ => self.batch::<K, 8>(keys, out),
        }
    }

    fn batch<K: Key, const LOAD: usize>(&self, keys: &[K], out: &mut [Option<u32>]) {
        let locate = |key: &K| {
            let hash = key.hash(self.cells.hash_key());
            let [a, b] = self.cells.bits_of(hash);
            (hash, a, b)
        };
        let bytes = self.cells.as_bytes();
        let ask = |(_, a, b): (u64, u64, u64)| {
            fetch::<LOAD>(bytes, a);
            fetch::<LOAD>(bytes, b);
        };
        pipeline_vectored(keys, out, locate, ask, |(hash, a, b)| self.answer::<LOAD>(hash, [a, b]));
    }

    /// Applies the next message.
    ///
    /// # Errors
    /// [`MessageError`] says why the message is not the next one for this view, or cannot be;
    /// nothing is changed then.
    pub fn apply(&mut self, update: &SetUpdate) -> Result<(), MessageError> {
        check_next((update.table, update.number), (self.table, self.number))?;
        if let Some(whole) = &update.whole {
            *self = next(whole, update, self.layout)?;
            return Ok(());
        }
        check(update, self.layout, self.cells.geometry(), |end| self.cells.cell(end))?;
        self.number = update.number;
        if update.kind != SetKind::Delete {
            let [a, b] = update.ends.map(|end| self.cells.cell(end) >> 1);
            let delta = (a ^ b ^ update.payload) << 1;
            update.cells.iter().for_each(|&cell| self.cells.flip(cell, delta));
        }
        for (end, turned) in update.ends.into_iter().zip(update.turned) {
            self.cells.flip(end, turned.into());
        }
        Ok(())
    }

    /// Reads a message from bytes and applies it.
    ///
    /// # Errors
    /// As [`SetUpdate::from_bytes`] and [`apply`](Self::apply).
    pub fn apply_bytes(&mut self, bytes: &[u8]) -> Result<(), MessageError> {
        self.apply(&SetUpdate::from_bytes(bytes)?)
    }

    /// The whole view in the common format ([`crate::message`]). Body: widths of a value and of a
    /// fingerprint (2 bytes each), chunks of both arrays (4 each), hash key (32), the cells.
    pub fn to_bytes(&self) -> Vec<u8> {
        let Geometry { chunks_a, chunks_b, .. } = self.cells.geometry();
        let mut body = Vec::with_capacity(HEADER + self.bytes());
        body.extend((self.layout.value_bits as u16).to_le_bytes());
        body.extend((self.layout.fingerprint_bits as u16).to_le_bytes());
        body.extend(chunks_a.to_le_bytes());
        body.extend(chunks_b.to_le_bytes());
        body.extend(self.cells.hash_key().to_bytes());
        body.extend(self.cells.as_bytes());
        seal(Kind::SET_VIEW, self.table, self.number, &body)
    }

    /// Reads a view that fills `bytes`.
    ///
    /// # Errors
    /// [`MessageError`] says what is wrong with the bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MessageError> {
        let short = || MessageError::Length { bytes: bytes.len() };
        let Message { table, number, body, .. } = Message::read(bytes)?.expect(Kind::SET_VIEW)?;
        let (head, cells) = body.split_at_checked(HEADER).ok_or_else(short)?;
        let mut head = BitReader::new(head);
        let (value_bits, fingerprint_bits) = (head.get(16)? as u32, head.get(16)? as u32);
        let layout = Layout { value_bits, fingerprint_bits };
        if layout.value_bits == 0 || layout.cell_bits() > 32 {
            return out_of_range("the width of a cell");
        }
        let (chunks_a, chunks_b) = (head.get(32)? as u32, head.get(32)? as u32);
        let chunks = u64::from(chunks_a) + u64::from(chunks_b);
        if chunks_a == 0 || chunks_b == 0 || chunks * CHUNK_BYTES as u64 != cells.len() as u64 {
            return Err(short());
        }
        let geometry = Geometry { bits: layout.cell_bits(), chunks_a, chunks_b };
        // Cells are numbered with 32 bits.
        let most = u64::from(u32::MAX) / u64::from(crate::cells_per_chunk(geometry.bits));
        if chunks > most {
            return out_of_range("the number of cells");
        }
        let cells = View::from_bytes(head.hash_key()?, geometry, cells.to_vec());
        Ok(Self { table, number, layout, cells })
    }

    /// Whether two views give these keys, all of their set, the same, and mark the same cells as
    /// empty. That is all there is to agree on: the cells of a tree may differ by one constant, as
    /// they may between two exports, which shows only in what passes an alien key's fingerprint.
    pub fn agrees_with<K: Key>(&self, other: &Self, keys: impl IntoIterator<Item = K>) -> bool {
        if (self.table, self.number, self.layout) != (other.table, other.number, other.layout)
            || self.cells.hash_key() != other.cells.hash_key()
            || self.cells.geometry() != other.cells.geometry()
        {
            return false;
        }
        let geometry = self.cells.geometry();
        let marks = (0..geometry.cells() as u32)
            .all(|node| (self.cells.cell(node) ^ other.cells.cell(node)) & 1 == 0);
        marks
            && keys.into_iter().all(|key| {
                let (a, b) = geometry.nodes(key.hash(self.cells.hash_key()));
                let payload = |view: &Self| view.cells.cell(a) ^ view.cells.cell(b);
                payload(self) == payload(other)
            })
    }
}

/// The view in a message of a rebuild.
pub(super) fn next(
    whole: &[u8],
    update: &SetUpdate,
    layout: Layout,
) -> Result<SetView, MessageError> {
    let next = SetView::from_bytes(whole)?;
    if (next.table, next.number, next.layout) != (update.table, update.number, layout) {
        return out_of_range("the view of a rebuild");
    }
    Ok(next)
}

/// Whether a message that is not of a rebuild fits a table with these cells.
pub(super) fn check(
    update: &SetUpdate,
    layout: Layout,
    geometry: Geometry,
    cell: impl Fn(u32) -> u32,
) -> Result<(), MessageError> {
    let [a, b] = update.ends;
    if a >= geometry.cells_a() || b < geometry.cells_a() || b as usize >= geometry.cells() {
        return out_of_range("a cell of the key");
    }
    if update.payload_bits != layout.payload_bits() {
        return out_of_range("the width of a cell");
    }
    // A cell becomes used by an addition and unused by a deletion.
    let used_before = update.kind == SetKind::Delete;
    for (end, turned) in update.ends.into_iter().zip(update.turned) {
        if turned && (cell(end) & 1 != 0) != used_before {
            return out_of_range("an emptiness bit");
        }
    }
    if update.kind == SetKind::Delete {
        return if update.cells.is_empty() { Ok(()) } else { out_of_range("a cell of a deletion") };
    }
    if update.cells.iter().any(|&cell| cell as usize >= geometry.cells()) {
        return out_of_range("a cell of the component");
    }
    match update.cells.iter().filter(|cell| update.ends.contains(cell)).count() {
        1 => Ok(()),
        _ => out_of_range("the side of the component"),
    }
}
