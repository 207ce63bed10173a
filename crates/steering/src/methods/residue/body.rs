//! residue's published table.
//!
//! ```text
//! elements ..    rows of 16 bits: a backend, and in the highest bit whether the row has exceptions
//! elements ..    flags of the exceptions, words of 64 bits; none if there are no exceptions
//! elements ..    lines of exceptions (lines.rs)
//! ```

use super::config::Method;
use super::exceptions::{FLAG_BITS, Flags};
use super::lines::{LINE_BYTES, Lines, most_lines};
use crate::method::Method as _;
use crate::registry::MethodId;
use crate::shared::RawHeader;
use crate::table::{
    self, ELEMENT_BYTES, ImageError, NO_BACKEND, SLOT_BACKEND, digest_slots, read_slots,
    slot_elements, write_slots,
};
use weir_hash::scale;
use weir_lookup::Error;

/// Bit of a row: it has exceptions.
pub(super) const MARK: u16 = !SLOT_BACKEND;
/// Words of flags in an element.
const WORDS: usize = ELEMENT_BYTES / 8;

/// Elements of flags for so many exceptions.
fn flag_elements(exceptions: usize) -> usize {
    (exceptions * FLAG_BITS).div_ceil(8 * ELEMENT_BYTES)
}

/// Elements that so many exceptions fill at most, flags and lines.
pub(super) fn most_elements_of(exceptions: usize) -> usize {
    flag_elements(exceptions) + most_lines(exceptions, UNIT) * LINE_BYTES / ELEMENT_BYTES
}

/// Lines of an element.
const UNIT: usize = ELEMENT_BYTES / LINE_BYTES;

/// Rows, and the exceptions with their flags.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Body {
    rows: Vec<u16>,
    flags: Flags,
    lines: Lines,
}

impl Body {
    /// Of rows, each a backend's number or [`NO_BACKEND`], and the exceptions by their hashes.
    ///
    /// # Errors
    /// Two exceptions of one hash.
    pub(super) fn new(mut rows: Vec<u16>, exceptions: &[(u64, u16)]) -> Result<Self, Error> {
        let mut flags = Flags::of_words(vec![0; flag_elements(exceptions.len()) * WORDS]);
        for &(hash, _) in exceptions {
            flags.set(hash);
            let row = scale(hash as u32, rows.len() as u32);
            rows[row as usize] |= MARK;
        }
        let lines = Lines::build(exceptions, UNIT)?;
        Ok(Self { rows, flags, lines })
    }

    /// The backend of each row, and its mark.
    pub fn rows(&self) -> &[u16] {
        &self.rows
    }

    /// The row of a flow with this hash under the table's key.
    #[inline(always)]
    pub fn row(&self, hash: u64) -> u32 {
        scale(hash as u32, self.rows.len() as u32)
    }

    /// The backend of a flow with this hash if it is an exception; `row` is what its row says.
    #[inline(always)]
    pub(super) fn exception(&self, row: u16, hash: u64) -> Option<u16> {
        (row & MARK != 0 && self.flags.may_have(hash)).then(|| self.lines.get(hash)).flatten()
    }

    /// Asks for the flag of a flow with this hash.
    #[inline(always)]
    pub(super) fn fetch_flags(&self, hash: u64) {
        self.flags.fetch(hash);
    }

    /// Whether a flow with this hash, on a marked row, may be an exception; if so, asks for the line that
    /// says it.
    #[inline(always)]
    pub(super) fn fetch_line(&self, hash: u64) -> bool {
        let may = self.flags.may_have(hash);
        if may {
            self.lines.fetch(hash);
        }
        may
    }

    /// The exceptions: the hashes of their flows, and their backends.
    pub fn exceptions(&self) -> impl Iterator<Item = (u64, u16)> {
        self.lines.entries()
    }

    /// Where the packets of a flow with this hash go, or [`NO_BACKEND`]; and whether it is an
    /// exception.
    pub fn route(&self, hash: u64) -> (u16, bool) {
        let row = self.rows[self.row(hash) as usize];
        match self.exception(row, hash) {
            Some(backend) => (backend, true),
            None => (row & SLOT_BACKEND, false),
        }
    }
}

impl table::Body for Body {
    const METHOD: MethodId = Method::ID;

    fn elements(&self) -> usize {
        let exceptions = self.flags.words().len() / WORDS + self.lines.bytes() / ELEMENT_BYTES;
        slot_elements(self.rows.len()) + exceptions
    }

    fn fill(&self, raw: &mut RawHeader) {
        raw.first_a = raw.first_slot + slot_elements(self.rows.len()) as u32;
        raw.chunks_a = (self.flags.words().len() / WORDS) as u32;
        raw.chunks_b = (self.lines.bytes() / ELEMENT_BYTES) as u32;
        raw.slots = self.rows.len() as u32;
        raw.fallback = NO_BACKEND;
    }

    fn write(&self, elements: &mut [u8]) {
        let (rows, rest) = elements.split_at_mut(slot_elements(self.rows.len()) * ELEMENT_BYTES);
        write_slots(&self.rows, rows);
        let (words, lines) = rest.split_at_mut(self.flags.words().len() * 8);
        for (bytes, word) in words.chunks_exact_mut(8).zip(self.flags.words()) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let mut lines = lines.chunks_exact_mut(LINE_BYTES);
        self.lines.each(|line| {
            if let Some(bytes) = lines.next() {
                bytes.copy_from_slice(line);
            }
        });
    }

    fn each_part(&self, digest: &mut dyn FnMut(&[u8])) {
        digest_slots(&self.rows, digest);
        self.flags.words().iter().for_each(|word| digest(&word.to_le_bytes()));
        self.lines.each(digest);
    }

    fn elements_of(raw: &RawHeader) -> Result<usize, ImageError> {
        let RawHeader { slots, chunks_a, chunks_b, .. } = *raw;
        if slots == 0 || (chunks_a == 0) != (chunks_b == 0) {
            return Err(ImageError::Shape);
        }
        Ok(slot_elements(slots as usize) + chunks_a as usize + chunks_b as usize)
    }

    fn read(raw: &RawHeader, elements: Vec<u8>) -> Result<Self, ImageError> {
        let rows = raw.slots as usize;
        let (first, rest) = elements.split_at(slot_elements(rows) * ELEMENT_BYTES);
        let (words, lines) = rest.split_at(raw.chunks_a as usize * ELEMENT_BYTES);
        let words = words.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        Ok(Self {
            rows: read_slots(rows, first),
            flags: Flags::of_words(words.collect()),
            lines: Lines::from_bytes(lines),
        })
    }

    fn bytes(&self) -> usize {
        size_of_val(&self.rows[..]) + self.flags.bytes() + self.lines.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Body as _;
    use weir_hash::HashKey;

    const ROWS: usize = 5_000;

    /// However many exceptions there are, their flags and lines fill no more elements than was said.
    #[test]
    fn exceptions_never_fill_more_than_was_said() {
        for (seed, count) in [0, 1, 63, 192, 193, 1_000, 20_000, 300_000].into_iter().enumerate() {
            let key = HashKey::from_seed(seed as u64);
            let exceptions: Vec<_> = (0..count).map(|n| (key.hash_word(n), 1)).collect();
            let body = Body::new(vec![0; ROWS], &exceptions).expect("hashes differ");
            let (filled, most) = (body.elements(), most_elements_of(count as usize));
            assert!(filled <= slot_elements(ROWS) + most, "{count} exceptions: {filled}, {most}");
        }
    }
}
