//! Update messages: what one change of the maintainer does to a view.

use crate::message::{BitReader, Kind, Message, MessageError, out_of_range, seal_into};

/// What an update is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum LudoKind {
    /// A key and its value came.
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
/// repeated or out of order; bytes carry a digest.
///
/// ```
/// use weir_lookup::{Ludo, LudoUpdate};
///
/// let mut table = Ludo::build(20, &[(1u64, 100)], 1)?;
/// let mut view = table.view().clone();
/// table.insert(2, 200)?;
/// view.apply(&LudoUpdate::from_bytes(&table.update().to_bytes())?)?;
/// assert_eq!(view.get(&2u64), 200);
/// # Ok::<(), weir_lookup::Error>(())
/// ```
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

    /// Appends the message's bytes in the common format ([`crate::message`]); `to_bytes` describes
    /// the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let names = (self.table, self.number);
        seal_into(out, Kind::LUDO_UPDATE, names, |out| {
            out.push(self.kind as u8);
            match self.kind {
                LudoKind::Rebuild => out.extend(self.whole.iter().flatten()),
                _ => self.encode_body(out),
            }
        });
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

    /// The message's bytes in the common format ([`crate::message`]).
    ///
    /// Body, in whole bytes: kind (1); in a rebuild a snapshot; else which of slot and fallback hash
    /// follow (1), the value (8; none if a key went), slot (5), fallback hash (8), and for a key
    /// that came how many buckets (1) and cells (4) follow, and these (8 and 4 each). An insertion
    /// takes 47 bytes and those of its buckets and cells.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }

    /// Reads a message that fills `bytes`.
    ///
    /// # Errors
    /// [`MessageError`] says what is wrong with the bytes. Whether a message fits a view is checked
    /// when it is applied.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MessageError> {
        let message = Message::read(bytes)?.expect(Kind::LUDO_UPDATE)?;
        let mut input = BitReader::new(message.body);
        let mut update = Self::new(message.table);
        update.number = message.number;
        update.kind = match input.get(8)? {
            0 => LudoKind::Insert,
            1 => LudoKind::Change,
            2 => LudoKind::Remove,
            3 => LudoKind::Rebuild,
            _ => return out_of_range("a message's kind"),
        };
        if update.kind == LudoKind::Rebuild {
            update.whole = Some(input.rest().to_vec());
            return Ok(update);
        }
        update.decode_body(&mut input)?;
        input.end()?;
        Ok(update)
    }

    fn decode_body(&mut self, input: &mut BitReader<'_>) -> Result<(), MessageError> {
        let has = input.get(8)?;
        if self.kind != LudoKind::Remove {
            self.value = input.get(64)?;
        }
        if has & 1 != 0 {
            self.slot = Some((input.get(32)? as u32, input.get(8)? as u8));
        }
        if has & 2 != 0 {
            self.fallback = Some(input.get(64)?);
        }
        if self.kind == LudoKind::Insert {
            let nodes = input.get(8)?;
            let cells = input.get(32)?;
            for _ in 0..nodes {
                let bucket = input.get(32)? as u32;
                let [seed, order, takes, leaves] = (input.get(32)? as u32).to_le_bytes();
                if takes > 3 || leaves > 3 {
                    return out_of_range("a message's slot");
                }
                self.nodes.push(Node { bucket, seed, order, takes, leaves });
            }
            // The number is not trusted with memory: cells are read one by one.
            for _ in 0..cells {
                self.cells.push(input.get(32)? as u32);
            }
        }
        Ok(())
    }
}
