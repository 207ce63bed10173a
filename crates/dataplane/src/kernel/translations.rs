//! Whose answers are translated, and to what.

use super::KernelPlane;
use super::by_id::follow;
use super::mappings::is_origin;
use crate::abi::{Plain, address_words, types};
use crate::error::Error;
use crate::numbers::{UNUSUAL_FULL_NAT, UNUSUAL_NAT, UNUSUAL_NAT_ANY};
use crate::reports;
use std::mem::offset_of;
use std::sync::atomic::Ordering;
use weir_plane::{Translated, Translations, VipKey};

impl KernelPlane {
    /// Translates the answers of these backends, from now on, and of no others.
    ///
    /// # Errors
    /// [`Error::Bpf`] if there is no room for so many.
    pub fn set_translations(&mut self, wanted: &Translations) -> Result<(), Error> {
        let entries: Vec<_> = wanted
            .iter()
            .map(|(from, to)| (from_entry(from).bytes().to_vec(), to_entry(to).bytes().to_vec()))
            .collect();
        let any = wanted.keys().any(|from| from.port.is_none());
        let flags = if wanted.is_empty() { 0 } else { UNUSUAL_NAT };
        let flags = flags | if any { UNUSUAL_NAT_ANY } else { 0 };
        let word = self.control.word32(offset_of!(types::control, unusual));
        let before = word.load(Ordering::Relaxed);
        // Nothing is to be read, nor was there before.
        if wanted.is_empty() && before & (UNUSUAL_NAT | UNUSUAL_NAT_ANY) == 0 {
            return Ok(());
        }
        let stale = follow(&self.maps.translations, &entries, |key| !is_origin(key))?;
        stale.iter().try_for_each(|key| reports::delete(&self.maps.translations, key))?;
        let others = if before & UNUSUAL_FULL_NAT == 0 { UNUSUAL_NAT } else { 0 };
        word.store(before & !(others | UNUSUAL_NAT_ANY) | flags, Ordering::Release);
        Ok(())
    }
}

fn from_entry(from: &VipKey) -> types::translated {
    let port = u32::from(from.port.unwrap_or(0).to_be());
    types::translated {
        address: address_words(&from.address),
        port_protocol: port | u32::from(from.protocol.number()) << 16,
        reserved: 0,
    }
}

fn to_entry(to: &Translated) -> types::translation {
    let Translated { service, limits } = to;
    let port = service.port.unwrap_or(0).to_be().into();
    let limits = limits.map_or(0, |backend| u32::from(backend.get()) + 1);
    types::translation { address: address_words(&service.address), port, limits }
}
