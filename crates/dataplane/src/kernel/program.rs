//! The program that frames are sent through, in its parts.
//!
//! `weir_balance` is what links have. What few packets need stands in a program of its own, which it
//! goes on in by a map of programs: so each has the verifier's patience and the stack for itself. The
//! kernel empties such a map when neither a process nor a pin holds it, whatever program still goes
//! by it. So it is pinned before a link gets the program, under a name that no other has, and the pins
//! of earlier programs go when no link has them any more.

use super::KernelPlane;
use super::load::missing;
use crate::error::{Context, Error};
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle, Object, libbpf_sys};
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The part that links have.
const BALANCER: &str = "weir_balance";
/// The map of the others.
const PARTS: &str = "parts";
/// Where in it the program stands that sees what weir passes on (`PART_NEXT` in `bpf/weir.bpf.c`).
const NEXT: u32 = 1;
/// Name of that map's pin, before the map's number.
const PREFIX: &str = "parts-";

/// A loaded program.
pub(super) struct Program {
    entry: OwnedFd,
    parts: MapHandle,
    /// Another's, which sees what this one passes on.
    next: Option<OwnedFd>,
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
            next: None,
        })
    }

    /// Has another program see what this one passes to the kernel, or none.
    ///
    /// # Errors
    /// What the kernel says, if the other one cannot follow this one; all stays as it was then.
    pub fn hand_on(&mut self, next: Option<OwnedFd>) -> Result<(), Error> {
        let key = NEXT.to_ne_bytes();
        let done = match &next {
            Some(next) => {
                let number = next.as_raw_fd().to_ne_bytes();
                self.parts.update(&key, &number, MapFlags::ANY)
            }
            None => match self.parts.delete(&key) {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                done => done,
            },
        };
        done.context(|| {
            "hand packets on to the next program (it must be of type XDP, and with frags if the kernel has them: \
             SEC(\"xdp.frags\"))"
                .into()
        })?;
        self.next = next;
        Ok(())
    }

    /// The program that sees what this one passes on.
    pub fn next(&self) -> Result<Option<OwnedFd>, Error> {
        let copy = |next: &OwnedFd| next.try_clone();
        let copied = self.next.as_ref().map(copy).transpose();
        copied.context(|| "duplicate a program's descriptor".into())
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

impl KernelPlane {
    /// Has the program that is pinned there see what this one passes to the kernel as none of its own, or nobody.
    /// What it decides of a packet counts. It is held: what is pinned there later is another one.
    ///
    /// # Errors
    /// [`Error::System`] if there is no such program, or it cannot follow this one; all stays as it was then.
    pub fn hand_on(&mut self, pin: Option<&Path>) -> Result<(), Error> {
        let next = pin.map(pinned_program).transpose()?;
        let copy = next.as_ref().map(OwnedFd::try_clone).transpose();
        let copy = copy.context(|| "duplicate a program's descriptor".into())?;
        self.program.hand_on(next)?;
        match self.beside_trace() {
            Some(plain) => plain.hand_on(copy),
            None => Ok(()),
        }
    }
}

fn pinned_program(pin: &Path) -> Result<OwnedFd, Error> {
    let what = || format!("open {}", pin.display());
    let path = CString::new(pin.as_os_str().as_bytes()).map_err(io::Error::other).context(what)?;
    // SAFETY: the path is NUL-terminated, and outlives the call.
    let fd = unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd)).context(what);
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
