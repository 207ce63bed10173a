//! The kinds of prefixes and blocks of ports that services listen on, which packets ask for one after the
//! other where no service has their very address and port: most exact first.
//!
//! Two lists stand in the memory that packets read, of which one word names the one that counts. The other
//! one is written, and then named, so that a packet sees one list, whole.

use crate::abi::types;
use crate::error::Error;
use crate::mapped::Mapped;
use crate::numbers::{KINDS, VIP_KIND_SHIFT};
use std::mem::offset_of;
use std::sync::atomic::Ordering;
use weir_plane::Listen;

const _: () = assert!(KINDS as usize == weir_plane::KINDS);

/// The number of one address, and of one port or any.
const PLAIN: u32 = 0;
/// All bits of an address and of a port.
const WHOLE: (u8, u8) = (128, 16);
const ADDRESS: (u8, u8) = (128, 0);

/// Bits of the address, and of the port.
type Exactness = (u8, u8);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Known {
    exactness: Exactness,
    number: u32,
}

/// The kinds that are in use.
pub(crate) struct Kinds {
    control: Mapped,
    known: Vec<Known>,
    /// Packets under way may read the list that does not count.
    read: bool,
    grace: fn() -> Result<(), Error>,
}

impl Kinds {
    /// As an earlier run has left them.
    pub fn new(control: Mapped, grace: fn() -> Result<(), Error>) -> Self {
        let mut kinds = Self { control, known: Vec::new(), read: true, grace };
        let first = if kinds.side().load(Ordering::Relaxed) == 0 { 0 } else { KINDS };
        for at in first..first + KINDS {
            let entry: types::kind = kinds.control.copy_at(kinds.place(at));
            if entry.bits == 0 {
                break;
            }
            let exactness = ((entry.bits >> 8) as u8, entry.bits as u8);
            kinds.known.push(Known { exactness, number: entry.number >> VIP_KIND_SHIFT });
        }
        kinds
    }

    #[cfg(test)]
    pub fn set_grace(&mut self, grace: fn() -> Result<(), Error>) {
        self.grace = grace;
    }

    /// Whether packets have anything to ask for but any port of an address.
    pub fn is_wide(&self) -> bool {
        self.known.iter().any(|known| known.exactness != ADDRESS)
    }

    /// The number of what is listened on, and of its addresses with any port; none if packets do not ask
    /// for such.
    pub fn numbers(&self, at: &Listen) -> Option<(u32, u32)> {
        let (bits, _) = at.exactness();
        Some((self.number(at.exactness())?, self.number((bits, 0))?))
    }

    /// What entries of a number are.
    pub fn exactness(&self, number: u32, any_port: bool) -> Option<Exactness> {
        if number == PLAIN {
            return Some(if any_port { ADDRESS } else { WHOLE });
        }
        self.known.iter().find(|known| known.number == number).map(|known| known.exactness)
    }

    fn number(&self, exactness: Exactness) -> Option<u32> {
        if exactness == WHOLE || exactness == ADDRESS {
            return Some(PLAIN);
        }
        self.known.iter().find(|known| known.exactness == exactness).map(|known| known.number)
    }

    /// Lets packets ask for what is listened on.
    ///
    /// # Errors
    /// [`Error::KindsFull`]; nothing has changed then. [`Error::System`] if there is no waiting for a grace
    /// period.
    pub fn ask_for(&mut self, at: &Listen) -> Result<(), Error> {
        let (bits, port_bits) = at.exactness();
        let mut known = self.known.clone();
        for exactness in [(bits, port_bits), (bits, 0)] {
            // That any port of an address is taken is asked for in its turn.
            let asked = exactness != WHOLE && (exactness != ADDRESS || port_bits == 0);
            if asked && !known.iter().any(|one| one.exactness == exactness) {
                let free = |number: &u32| known.iter().all(|one| one.number != *number);
                let number = match exactness {
                    ADDRESS => PLAIN,
                    _ => (1..=KINDS).find(free).ok_or(Error::KindsFull { kinds: KINDS })?,
                };
                known.push(Known { exactness, number });
            }
        }
        self.show(known)
    }

    /// Lets packets ask for what is listened on, and for nothing else.
    ///
    /// # Errors
    /// [`Error::System`] if there is no waiting for a grace period.
    pub fn keep(&mut self, all: &[Listen]) -> Result<(), Error> {
        let used = |known: &Known| {
            let (bits, port_bits) = known.exactness;
            all.iter().any(|at| {
                at.address_bits == bits
                    && (at.port_bits == port_bits || port_bits == 0 && bits < 128)
            })
        };
        let known = self.known.iter().copied().filter(used).collect();
        self.show(known)
    }

    fn show(&mut self, mut known: Vec<Known>) -> Result<(), Error> {
        known.sort_by_key(|known| std::cmp::Reverse(known.exactness));
        if known == self.known {
            return Ok(());
        }
        if known.len() > KINDS as usize {
            return Err(Error::KindsFull { kinds: KINDS });
        }
        if self.read {
            (self.grace)()?;
        }
        let side = self.side().load(Ordering::Relaxed) ^ 1;
        let first = if side == 0 { 0 } else { KINDS };
        for at in 0..KINDS {
            let entry = known.get(at as usize).map_or_else(none, entry_of);
            self.control.store_at(self.place(first + at), &entry);
        }
        self.side().store(side, Ordering::Release);
        (self.known, self.read) = (known, true);
        Ok(())
    }

    fn side(&self) -> &std::sync::atomic::AtomicU32 {
        self.control.word32(offset_of!(types::control, kind_side))
    }

    fn place(&self, at: u32) -> usize {
        offset_of!(types::control, kinds) + at as usize * size_of::<types::kind>()
    }
}

fn none() -> types::kind {
    types::kind { high: 0, low: 0, mask: 0, number: 0, bits: 0, reserved: 0 }
}

fn entry_of(known: &Known) -> types::kind {
    let (bits, port_bits) = known.exactness;
    let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0).to_be_bytes();
    let (high, low) = mask.split_at(8);
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
    let port = u16::MAX.checked_shl(16 - u32::from(port_bits)).unwrap_or(0);
    types::kind {
        high: word(high),
        low: word(low),
        mask: u32::from(port.to_be()) | 0x00ff_0000,
        number: known.number << VIP_KIND_SHIFT,
        bits: u32::from(bits) << 8 | u32::from(port_bits),
        reserved: 0,
    }
}
