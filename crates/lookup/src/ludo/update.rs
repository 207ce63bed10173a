//! Update messages: what one change of the maintainer does to a view.

use super::LudoError;
use super::snapshot::{Reader, checksum};

const MAGIC: u32 = u32::from_le_bytes(*b"LUu1");
const WHAT: &str = "Ludo update message";

/// What an update is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum LudoKind {
    /// A key came.
    Insert = 0,
    /// A key's value changed.
    Change = 1,
    /// A key went. A view changes only if the key was in the fallback table.
    Remove = 2,
    /// The table was built anew; the message holds the whole view.
    Rebuild = 3,
}

/// One bucket of an update sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Node {
    pub(crate) bucket: u32,
    /// The new seed; from 31 on it stands in the overflow table.
    pub(crate) seed: u8,
    /// The old slot of each new slot's value, two bits each.
    pub(crate) order: u8,
    /// The new slot that takes the value carried here: the message's, for later nodes the value
    /// that left the bucket before.
    pub(crate) takes: u8,
    /// The old slot whose value goes to the next node.
    pub(crate) leaves: u8,
}

/// One change of a [`Ludo`](super::Ludo), for its views (dissertation 4.4.8).
///
/// Messages of a table are numbered without gaps, so a view notices a message that is lost,
/// repeated or out of order; bytes carry a checksum.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LudoUpdate {
    pub(crate) table: u64,
    pub(crate) number: u64,
    pub(crate) kind: LudoKind,
    /// The new value (insert and change).
    pub(crate) value: u64,
    /// Where a changed value stands.
    pub(crate) slot: Option<(u32, u8)>,
    /// The buckets of an insertion, the new key's first.
    pub(crate) nodes: Vec<Node>,
    /// Locator cells to be inverted.
    pub(crate) cells: Vec<u32>,
    /// Hash of a key of the fallback table: it gets `value`, or goes.
    pub(crate) fallback: Option<u64>,
    /// A whole view.
    pub(crate) whole: Option<Vec<u8>>,
}

impl LudoUpdate {
    pub(crate) fn new(table: u64) -> Self {
        Self {
            table,
            number: 0,
            kind: LudoKind::Insert,
            value: 0,
            slot: None,
            nodes: Vec::new(),
            cells: Vec::new(),
            fallback: None,
            whole: None,
        }
    }

    /// Starts the next message in the memory of the last one.
    pub(crate) fn begin(&mut self, kind: LudoKind, number: u64, value: u64) {
        self.kind = kind;
        self.number = number;
        self.value = value;
        self.slot = None;
        self.nodes.clear();
        self.cells.clear();
        self.fallback = None;
        self.whole = None;
    }

    /// What the update is about.
    pub fn kind(&self) -> LudoKind {
        self.kind
    }

    /// The number of the message; the first change of a table has number 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The table that it belongs to.
    pub fn table(&self) -> u64 {
        self.table
    }

    /// How many buckets the cuckoo path has (0 unless a key came).
    pub fn path_len(&self) -> usize {
        self.nodes.len()
    }

    /// How many cells of the bucket locator are inverted.
    pub fn flipped_cells(&self) -> usize {
        self.cells.len()
    }

    /// Appends the message's bytes: magic, length, table, number, kind, value, parts, checksum.
    /// An insertion takes 47 bytes, 8 for each bucket and 4 for each cell, little-endian.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend(MAGIC.to_le_bytes());
        out.extend([0; 4]);
        out.extend(self.table.to_le_bytes());
        out.extend(self.number.to_le_bytes());
        out.push(self.kind as u8);
        match self.kind {
            LudoKind::Rebuild => out.extend(self.whole.iter().flatten()),
            _ => self.encode_body(out),
        }
        let length = (out.len() + 8 - start) as u32;
        out[start + 4..start + 8].copy_from_slice(&length.to_le_bytes());
        let sum = checksum(&out[start..]);
        out.extend(sum.to_le_bytes());
    }

    fn encode_body(&self, out: &mut Vec<u8>) {
        let has = u8::from(self.slot.is_some()) | u8::from(self.fallback.is_some()) << 1;
        out.push(has);
        if self.kind != LudoKind::Remove {
            out.extend(self.value.to_le_bytes());
        }
        if let Some((bucket, slot)) = self.slot {
            out.extend(bucket.to_le_bytes());
            out.push(slot);
        }
        if let Some(hash) = self.fallback {
            out.extend(hash.to_le_bytes());
        }
        if self.kind == LudoKind::Insert {
            out.push(self.nodes.len() as u8);
            out.extend((self.cells.len() as u32).to_le_bytes());
            for node in &self.nodes {
                out.extend(node.bucket.to_le_bytes());
                out.extend([node.seed, node.order, node.takes, node.leaves]);
            }
            for cell in &self.cells {
                out.extend(cell.to_le_bytes());
            }
        }
    }

    /// The message's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }

    /// Reads a message that fills `bytes`.
    ///
    /// # Errors
    /// [`LudoError`] says what is wrong with the bytes. Whether a message fits a view is checked
    /// when it is applied.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, LudoError> {
        let mut input = Reader::checked(bytes, MAGIC, WHAT)?;
        if input.u32()? as usize != bytes.len() {
            return Err(LudoError::Length { what: WHAT, bytes: bytes.len() });
        }
        let mut update = Self::new(input.u64()?);
        update.number = input.u64()?;
        update.kind = match input.u8()? {
            0 => LudoKind::Insert,
            1 => LudoKind::Change,
            2 => LudoKind::Remove,
            3 => LudoKind::Rebuild,
            _ => return Err(LudoError::OutOfRange { what: "a message's kind" }),
        };
        if update.kind == LudoKind::Rebuild {
            update.whole = Some(input.rest().to_vec());
            return Ok(update);
        }
        update.decode_body(&mut input)?;
        input.end()?;
        Ok(update)
    }

    fn decode_body(&mut self, input: &mut Reader<'_>) -> Result<(), LudoError> {
        let has = input.u8()?;
        if self.kind != LudoKind::Remove {
            self.value = input.u64()?;
        }
        if has & 1 != 0 {
            self.slot = Some((input.u32()?, input.u8()?));
        }
        if has & 2 != 0 {
            self.fallback = Some(input.u64()?);
        }
        if self.kind == LudoKind::Insert {
            let nodes = input.u8()?;
            let cells = input.u32()? as usize;
            for _ in 0..nodes {
                let bucket = input.u32()?;
                let [seed, order, takes, leaves] = input.array()?;
                if takes > 3 || leaves > 3 {
                    return Err(LudoError::OutOfRange { what: "a message's slot" });
                }
                self.nodes.push(Node { bucket, seed, order, takes, leaves });
            }
            // The number is not trusted with memory: cells are read one by one.
            for _ in 0..cells {
                self.cells.push(input.u32()?);
            }
        }
        Ok(())
    }
}
