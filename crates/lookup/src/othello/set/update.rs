//! Messages of an OthelloSet, in the three kinds of the dissertation's Fig. 3.1 (c).

use crate::message::{
    BitReader, BitWriter, ENVELOPE, Kind, Message, MessageError, out_of_range, seal,
};

/// Width of the number of cells in a message.
const COUNT_BITS: u32 = 5;

/// What an update is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum SetKind {
    /// A key came, with its value.
    Add = 0,
    /// A key went; its cells may belong to no key now.
    Delete = 1,
    /// A key's value changed.
    Change = 2,
    /// The graph was built anew; the message holds the whole view.
    Rebuild = 3,
}

/// One change of an [`OthelloSet`](super::OthelloSet), for one of its data planes.
///
/// An addition or a change names the two cells of the key, what they have to give, and the cells of
/// one side of the key's edge; the plane finds the xor itself, from the two cells, and applies it
/// to that side. So the control plane need not hold any plane's cells. A deletion names the cells
/// that no key uses any more. Messages of a plane are numbered without gaps and carry a digest.
///
/// ```
/// use weir_lookup::{OthelloSet, SetUpdate};
///
/// let mut set: OthelloSet<u64, u32> = OthelloSet::new(8, 4, 1000, 1);
/// let mut view = set.export(0, 0, |value| *value);
/// set.insert(7, 5)?;
/// let update = set.message(0, 1, |value| *value);
/// view.apply(&SetUpdate::from_bytes(&update.to_bytes())?)?;
/// assert_eq!(view.get(&7u64), Some(5));
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SetUpdate {
    pub(super) table: u64,
    pub(super) number: u64,
    pub(super) kind: SetKind,
    pub(super) payload_bits: u32,
    pub(super) payload: u32,
    pub(super) ends: [u32; 2],
    pub(super) turned: [bool; 2],
    pub(super) cells: Vec<u32>,
    pub(super) whole: Option<Vec<u8>>,
}

impl SetUpdate {
    pub(super) fn new(table: u64, number: u64, kind: SetKind, payload_bits: u32) -> Self {
        Self {
            table,
            number,
            kind,
            payload_bits,
            payload: 0,
            ends: [0; 2],
            turned: [false; 2],
            cells: Vec::new(),
            whole: None,
        }
    }

    /// What the update is about.
    pub fn kind(&self) -> SetKind {
        self.kind
    }

    /// The number of the message among those of its plane.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The data plane that it is for: the [`SetView::table`](super::SetView::table) of its view.
    pub fn table(&self) -> u64 {
        self.table
    }

    /// How many cells are changed.
    pub fn cells(&self) -> usize {
        self.cells.len()
    }

    /// The message's bytes in the common format ([`crate::message`]), with a bit-packed body.
    ///
    /// Body, from the lowest bit on: kind (2 bits), width w of a cell's number (6), width of a
    /// payload (5), which ends turn (2), the ends (w each), then but for deletions the payload, the
    /// side (1), the number of further cells (5, or 31 and 32), and these (w each).
    pub fn to_bytes(&self) -> Vec<u8> {
        seal(Kind::SET_UPDATE, self.table, self.number, &self.body())
    }

    /// Bytes of the message without its envelope.
    pub fn body_bytes(&self) -> usize {
        self.to_bytes().len() - ENVELOPE
    }

    fn body(&self) -> Vec<u8> {
        let mut out = BitWriter::default();
        out.put(self.kind as u64, 2);
        if let Some(whole) = &self.whole {
            out.put(0, 6);
            let mut body = out.finish();
            body.extend(whole);
            return body;
        }
        // The ends of the message are the largest numbers in it or nearly so.
        let largest = self.ends.iter().chain(&self.cells).copied().max().unwrap_or(0);
        let width = (32 - largest.leading_zeros()).max(1);
        out.put(width.into(), 6);
        out.put(self.payload_bits.into(), 5);
        self.turned.into_iter().for_each(|turned| out.put(turned.into(), 1));
        self.ends.into_iter().for_each(|end| out.put(end.into(), width));
        if self.kind != SetKind::Delete {
            self.put_side(&mut out, width);
        }
        out.finish()
    }

    fn put_side(&self, out: &mut BitWriter, width: u32) {
        out.put(self.payload.into(), self.payload_bits);
        let (first, rest) = self.cells.split_first().map_or((0, &[][..]), |(f, rest)| (*f, rest));
        out.put(u64::from(first == self.ends[1]), 1);
        let short = (rest.len() as u64).min((1 << COUNT_BITS) - 1);
        out.put(short, COUNT_BITS);
        if short == (1 << COUNT_BITS) - 1 {
            out.put(rest.len() as u64, 32);
        }
        rest.iter().for_each(|&cell| out.put(cell.into(), width));
    }

    /// Reads a message that fills `bytes`.
    ///
    /// # Errors
    /// [`MessageError`] says what is wrong with the bytes. Whether a message fits a view is checked
    /// when it is applied.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MessageError> {
        let Message { table, number, body, .. } = Message::read(bytes)?.expect(Kind::SET_UPDATE)?;
        let mut input = BitReader::new(body);
        let kind = match input.get(2)? {
            0 => SetKind::Add,
            1 => SetKind::Delete,
            2 => SetKind::Change,
            _ => SetKind::Rebuild,
        };
        let mut update = Self::new(table, number, kind, 0);
        let width = input.get(6)? as u32;
        if kind == SetKind::Rebuild {
            if width != 0 {
                return out_of_range("the head of a rebuild");
            }
            update.whole = Some(input.rest().to_vec());
            return Ok(update);
        }
        if !(1..=32).contains(&width) {
            return out_of_range("the width of a cell's number");
        }
        update.payload_bits = input.get(5)? as u32;
        for turned in &mut update.turned {
            *turned = input.get(1)? != 0;
        }
        for end in &mut update.ends {
            *end = input.get(width)? as u32;
        }
        if kind != SetKind::Delete {
            update.get_side(&mut input, width)?;
        }
        input.end()?;
        Ok(update)
    }

    fn get_side(&mut self, input: &mut BitReader<'_>, width: u32) -> Result<(), MessageError> {
        self.payload = input.get(self.payload_bits)? as u32;
        let first = self.ends[usize::from(input.get(1)? != 0)];
        let mut count = input.get(COUNT_BITS)?;
        if count == (1 << COUNT_BITS) - 1 {
            count = input.get(32)?;
        }
        self.cells.push(first);
        // The number is not trusted with memory: cells are read one by one.
        for _ in 0..count {
            self.cells.push(input.get(width)? as u32);
        }
        Ok(())
    }
}
