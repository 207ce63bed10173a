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
use crate::link;
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle, Object, libbpf_sys};
use std::collections::BTreeMap;
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
pub(super) const PREFIX: &str = "parts-";
/// Name of the pin of what links have, before the same number: for the next version, which may have to go on in it.
pub(super) const ENTRY_PREFIX: &str = "entry-";

/// What follows that number in the name of the pin of the program that sees what this one passes on: whoever may not
/// open a program by its number opens it by this. A version that does not know it takes it for what it is to it, a
/// program's pin.
const NEXT_SUFFIX: &str = "-next";

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

    /// The names of its pins, once it is kept.
    pub fn pins(&self) -> Result<[String; 2], Error> {
        Ok([self.pin_name()?, format!("{ENTRY_PREFIX}{}", self.number()?)])
    }

    fn pin_name(&self) -> Result<String, Error> {
        Ok(format!("{PREFIX}{}", self.number()?))
    }

    /// Makes the program whole for as long as a link has it, whatever becomes of this process.
    ///
    /// # Errors
    /// [`Error::System`] or [`Error::Bpf`] if it cannot be pinned.
    pub fn keep(&self, directory: &Path) -> Result<(), Error> {
        let (pin, number) = (directory.join(self.pin_name()?), self.number()?);
        let what = || format!("pin {}", pin.display());
        let kept = self.is_kept(directory)?;
        if !kept {
            if pin.exists() {
                // The number was another map's, which is gone.
                fs::remove_file(&pin).context(what)?;
            }
            // First, since the others are of use only with it.
            MapHandle::try_from(&self.parts).and_then(|mut parts| parts.pin(&pin)).context(what)?;
        }
        if !kept || !directory.join(format!("{ENTRY_PREFIX}{number}")).exists() {
            pin_entry(self.entry(), number, directory)?;
        }
        self.keep_next(directory)
    }

    /// Whether it is pinned in a directory, as far as its parts go.
    fn is_kept(&self, directory: &Path) -> Result<bool, Error> {
        let pin = directory.join(self.pin_name()?);
        if !pin.exists() {
            return Ok(false);
        }
        let there = MapHandle::from_pinned_path(&pin)
            .and_then(|there| there.info())
            .context(|| format!("open {}", pin.display()))?;
        Ok(there.info.id == self.number()?)
    }

    /// Pins the program that sees what this one passes on, or takes the pin of an earlier one away.
    fn keep_next(&self, directory: &Path) -> Result<(), Error> {
        let pin = directory.join(format!("{ENTRY_PREFIX}{}{NEXT_SUFFIX}", self.number()?));
        if pin.exists() {
            fs::remove_file(&pin).context(|| format!("remove {}", pin.display()))?;
        }
        self.next.as_ref().map_or(Ok(()), |next| link::pin_fd(next, &pin))
    }

    /// Lets go of all other programs that were kept: every link has this one.
    ///
    /// # Errors
    /// [`Error::System`] if a pin cannot be removed.
    pub fn forget_others(&self, directory: &Path) -> Result<(), Error> {
        let entry = format!("{ENTRY_PREFIX}{}", self.number()?);
        let own = [self.pin_name()?, format!("{entry}{NEXT_SUFFIX}"), entry];
        let entries =
            fs::read_dir(directory).context(|| format!("read {}", directory.display()))?;
        for entry in entries.flatten() {
            let name = entry.file_name();
            let other = |name: &str| {
                let is_kept = [PREFIX, ENTRY_PREFIX].iter().any(|prefix| name.starts_with(prefix));
                is_kept && !own.iter().any(|own| own == name)
            };
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
        self.hand_to(next)
    }

    /// The same by what an earlier run has handed packets on to, whatever is pinned there by now. Returns whether it
    /// has.
    ///
    /// # Errors
    /// As there.
    pub fn hand_on_as_before(&mut self) -> Result<bool, Error> {
        let next = self.directory.as_deref().map(next_in).transpose()?.flatten();
        let found = next.is_some();
        if found {
            self.hand_to(next)?;
        }
        Ok(found)
    }

    fn hand_to(&mut self, next: Option<OwnedFd>) -> Result<(), Error> {
        let copy = next.as_ref().map(OwnedFd::try_clone).transpose();
        let copy = copy.context(|| "duplicate a program's descriptor".into())?;
        self.program.hand_on(next)?;
        let directory = self.directory.clone();
        let keep = |program: &Program| match &directory {
            // Whoever is not kept yet is kept with it.
            Some(directory) if program.is_kept(directory)? => program.keep_next(directory),
            _ => Ok(()),
        };
        keep(&self.program)?;
        match self.beside_trace() {
            Some(plain) => {
                plain.hand_on(copy)?;
                keep(plain)
            }
            None => Ok(()),
        }
    }
}

/// Pins what links have, under the number of its parts.
pub(super) fn pin_entry(entry: BorrowedFd<'_>, number: u32, directory: &Path) -> Result<(), Error> {
    let pin = directory.join(format!("{ENTRY_PREFIX}{number}"));
    if pin.exists() {
        // Of a program that is gone, as its parts are.
        fs::remove_file(&pin).context(|| format!("remove {}", pin.display()))?;
    }
    link::pin_fd(&entry, &pin)
}

/// Programs that are pinned in a directory with their parts, by the numbers of these, each with its own number.
pub(super) fn entries_in(directory: &Path) -> Result<BTreeMap<u32, (u32, OwnedFd)>, Error> {
    let entries = fs::read_dir(directory).context(|| format!("read {}", directory.display()))?;
    let mut found = BTreeMap::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let number =
            name.to_str().and_then(|name| name.strip_prefix(ENTRY_PREFIX)?.parse::<u32>().ok());
        let Some(number) = number else { continue };
        // The kernel has emptied what it would go on in.
        if !directory.join(format!("{PREFIX}{number}")).exists() {
            continue;
        }
        let program = pinned_program(&entry.path())?;
        let own = number_of(&program).context(|| format!("ask for {}", entry.path().display()))?;
        found.insert(number, (own, program));
    }
    Ok(found)
}

/// The number of a program.
fn number_of(program: &OwnedFd) -> io::Result<u32> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut size = size_of::<libbpf_sys::bpf_prog_info>() as u32;
    // SAFETY: a descriptor, and room of the size that is told.
    let done = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut size)
    };
    if done < 0 { Err(io::Error::from_raw_os_error(-done)) } else { Ok(info.id) }
}

/// A program by its number.
pub(super) fn of_number(number: u32) -> io::Result<OwnedFd> {
    // SAFETY: a plain number.
    let fd = unsafe { libbpf_sys::bpf_prog_get_fd_by_id(number) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What sees the packets that a program passes on whose parts are pinned in a directory, if there is such a
/// program: that of the newest one which has one.
pub(super) fn next_in(directory: &Path) -> Result<Option<OwnedFd>, Error> {
    let entries = fs::read_dir(directory).context(|| format!("read {}", directory.display()))?;
    let mut all = BTreeMap::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        all.extend(number.map(|number| (number, entry.path())));
    }
    for (parts_number, pin) in all.into_iter().rev() {
        let what = || format!("read {}", pin.display());
        let parts = MapHandle::from_pinned_path(&pin).context(what)?;
        let found = parts.lookup(&NEXT.to_ne_bytes(), MapFlags::ANY).context(what)?;
        let number =
            found.as_deref().and_then(<[u8]>::first_chunk).copied().map(u32::from_ne_bytes);
        if let Some(number) = number {
            let pin = directory.join(format!("{ENTRY_PREFIX}{parts_number}{NEXT_SUFFIX}"));
            if pin.exists() {
                let next = pinned_program(&pin)?;
                if number_of(&next).context(|| format!("ask for {}", pin.display()))? == number {
                    return Ok(Some(next));
                }
            }
            // Of a version that pinned none: not all may do this.
            let next = of_number(number).map(Some);
            return next.context(|| "open the program that sees what is passed on".into());
        }
    }
    Ok(None)
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
