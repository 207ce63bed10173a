//! The index node: a maintainer, and a view that threads read while messages change it.

use crate::ContentFib;
use crate::Result;
use crate::error::Context;
use weir_fib::{ContentName, ENVELOPE};
use weir_lookup::{Ludo, LudoReader, LudoShared, LudoUpdate, OthelloSet, SetReader, SetShared};

/// Fingerprints of the OthelloSet, in bits.
const FINGERPRINT: u32 = 8;

/// No location.
const NOWHERE: u16 = super::truth::NOWHERE;

/// Keys and locations, and the view of the index node.
pub enum Index {
    Ludo { table: Box<Ludo<ContentName>>, view: LudoShared },
    Ofw { set: Box<OthelloSet<ContentName, u16>>, view: SetShared },
}

/// The view as one thread reads it.
pub enum Reader {
    Ludo(LudoReader, Vec<u64>),
    Ofw(SetReader, Vec<Option<u32>>),
}

/// Bits that hold the locations below `count`.
fn bits(count: u16) -> u32 {
    (16 - (count - 1).leading_zeros()).max(1)
}

impl Index {
    /// An index of these contents, with room for `spare` more.
    pub fn build(
        fib: ContentFib,
        locations: u16,
        items: &[(ContentName, u64)],
        spare: usize,
        seed: u64,
    ) -> Result<Self> {
        let room = items.len() + spare;
        Ok(match fib {
            ContentFib::Ludo => {
                let mut table = Ludo::new(bits(locations), room, seed)?;
                table.insert_batch(items, |_| ())?;
                let view = LudoShared::new(table.view().clone());
                Self::Ludo { table: Box::new(table), view }
            }
            ContentFib::Ofw => {
                let mut set = OthelloSet::new(bits(locations), FINGERPRINT, room, seed);
                for &(name, location) in items {
                    set.insert(name, location as u16)?;
                }
                let view = SetShared::new(&set.export(0, 0, |&location| location.into()));
                Self::Ofw { set: Box::new(set), view }
            }
        })
    }

    pub fn reader(&self) -> Reader {
        match self {
            Self::Ludo { view, .. } => Reader::Ludo(view.reader(), Vec::new()),
            Self::Ofw { view, .. } => Reader::Ofw(view.reader(), Vec::new()),
        }
    }

    /// Adds or moves a content, or takes it out, and sends the view the message. Returns the
    /// message's length without envelope.
    pub fn change(&mut self, name: ContentName, location: u16) -> Result<usize> {
        match self {
            Self::Ludo { table, view } => {
                if location == NOWHERE {
                    table.remove(&name);
                } else {
                    table.insert(name, location.into())?;
                }
                let message = table.update().to_bytes();
                view.apply(&LudoUpdate::from_bytes(&message)?).context("a message")?;
                Ok(message.len() - ENVELOPE)
            }
            Self::Ofw { set, view } => {
                if location == NOWHERE {
                    set.remove(&name);
                } else {
                    set.insert(name, location)?;
                }
                let message = set.message(0, view.number() + 1, |&location| location.into());
                let message = message.to_bytes();
                view.apply_bytes(&message).context("a message")?;
                Ok(message.len() - ENVELOPE)
            }
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::Ludo { table, .. } => table.len(),
            Self::Ofw { set, .. } => set.len(),
        }
    }

    /// Bytes of the view.
    pub fn view_bytes(&self) -> usize {
        match self {
            Self::Ludo { table, .. } => table.view().bytes(),
            Self::Ofw { view, .. } => view.bytes(),
        }
    }

    /// Bytes of the maintainer.
    pub fn control_bytes(&self) -> usize {
        match self {
            Self::Ludo { table, .. } => table.control_bytes(),
            Self::Ofw { set, .. } => set.control_bytes(),
        }
    }
}

impl Reader {
    /// Locations of names; [`NOWHERE`] for a name that is found to be alien.
    pub fn locate(&mut self, names: &[ContentName], out: &mut [u16]) {
        match self {
            Self::Ludo(reader, found) => {
                found.resize(names.len(), 0);
                reader.get_batch(names, found);
                for (out, &found) in out.iter_mut().zip(&*found) {
                    *out = found as u16;
                }
            }
            Self::Ofw(reader, found) => {
                found.resize(names.len(), None);
                reader.get_batch(names, found);
                for (out, found) in out.iter_mut().zip(&*found) {
                    *out = found.map_or(NOWHERE, |location| location as u16);
                }
            }
        }
    }
}
