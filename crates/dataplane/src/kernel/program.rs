//! The program that frames are sent through, in its parts.
//!
//! `weir_balance` is what links have. What few packets need stands in a program of its own, which it
//! goes on in by a map of programs: so each has the verifier's patience and the stack for itself. The
//! kernel empties such a map when neither a process nor a pin holds it, whatever program still goes
//! by it. So it is pinned before a link gets the program, under a name that no other has, and the pins
//! of earlier programs go when no link has them any more.

use super::load::missing;
use crate::error::{Context, Error};
use libbpf_rs::{MapCore, MapHandle, Object};
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// The part that links have.
const BALANCER: &str = "weir_balance";
/// The map of the others.
const PARTS: &str = "parts";
/// Name of that map's pin, before the map's number.
const PREFIX: &str = "parts-";

/// A loaded program.
pub(super) struct Program {
    entry: OwnedFd,
    parts: MapHandle,
}

impl Program {
    /// The program of an object.
    pub fn of(object: &Object) -> Result<Self, Error> {
        let entry = object.progs().find(|program| program.name() == BALANCER);
        let entry = entry.ok_or_else(|| missing("program", BALANCER))?;
        let parts = object.maps().find(|map| map.name() == PARTS);
        let parts = parts.ok_or_else(|| missing("map", PARTS))?;
        Ok(Self {
            entry: entry
                .as_fd()
                .try_clone_to_owned()
                .context(|| "duplicate a program's descriptor".into())?,
            parts: MapHandle::try_from(&parts).context(|| format!("duplicate map {PARTS}"))?,
        })
    }

    /// What links are given, after [`keep`](Self::keep).
    pub fn entry(&self) -> BorrowedFd<'_> {
        self.entry.as_fd()
    }

    /// What tells it apart from all others that are loaded.
    pub fn number(&self) -> Result<u32, Error> {
        let info = self.parts.info().context(|| format!("ask for map {PARTS}"))?;
        Ok(info.info.id)
    }

    fn pin_name(&self) -> Result<String, Error> {
        Ok(format!("{PREFIX}{}", self.number()?))
    }

    /// Makes the program whole for as long as a link has it, whatever becomes of this process.
    ///
    /// # Errors
    /// [`Error::System`] or [`Error::Bpf`] if it cannot be pinned.
    pub fn keep(&self, directory: &Path) -> Result<(), Error> {
        let pin = directory.join(self.pin_name()?);
        let what = || format!("pin {}", pin.display());
        if pin.exists() {
            let there = MapHandle::from_pinned_path(&pin).context(what)?;
            if there.info().context(what)?.info.id == self.parts.info().context(what)?.info.id {
                return Ok(());
            }
            // The number was another map's, which is gone.
            fs::remove_file(&pin).context(what)?;
        }
        MapHandle::try_from(&self.parts).and_then(|mut parts| parts.pin(&pin)).context(what)
    }

    /// Lets go of all other programs that were kept: every link has this one.
    ///
    /// # Errors
    /// [`Error::System`] if a pin cannot be removed.
    pub fn forget_others(&self, directory: &Path) -> Result<(), Error> {
        let own = self.pin_name()?;
        let entries =
            fs::read_dir(directory).context(|| format!("read {}", directory.display()))?;
        for entry in entries.flatten() {
            let name = entry.file_name();
            let other = |name: &str| name.starts_with(PREFIX) && name != own;
            if name.to_str().is_some_and(other) {
                let pin = entry.path();
                fs::remove_file(&pin).context(|| format!("remove {}", pin.display()))?;
            }
        }
        Ok(())
    }
}
