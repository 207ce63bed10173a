//! The links that this process holds. A link ends with its last descriptor or pin: while the control plane runs, what
//! somebody does to pins takes no program off, and the pins can be made again.

use super::guard::{FAMILIES, guard_pin};
use super::pinned::info_of;
use crate::error::Error;
use crate::link;
use std::ffi::CStr;
use std::fs;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use weir_host::files::is_gone;

#[derive(Default)]
struct Held {
    /// On interfaces.
    xdp: Vec<OwnedFd>,
    /// The guard's, of each family in turn.
    guards: Vec<OwnedFd>,
    /// Its program.
    guard: Option<OwnedFd>,
}

/// What is held.
#[derive(Default)]
pub(super) struct Links(Mutex<Held>);

impl Links {
    /// Whether a link that is held is on an interface.
    pub fn is_on(&self, index: u32) -> bool {
        self.with(|held| held.xdp.iter().any(|link| interface_of(link) == index))
    }

    /// Holds the pinned links that are on an interface, and goes on with those whose pins are gone.
    pub fn hold(&self, directory: &Path) {
        let mut links = pinned_in(directory);
        links.retain(|link| interface_of(link) != 0);
        let pinned: Vec<u32> = links.iter().map(interface_of).collect();
        self.with(|held| {
            let former = std::mem::take(&mut held.xdp).into_iter();
            // What was detached is on none.
            links.extend(former.filter(|link| {
                let index = interface_of(link);
                index != 0 && !pinned.contains(&index)
            }));
            held.xdp = links;
        });
    }

    /// Puts a program into all that are pinned, and into all that are held, whatever became of their pins.
    ///
    /// # Errors
    /// [`Error::System`] if one cannot have it.
    pub fn replace_all(&self, directory: &Path, program: BorrowedFd<'_>) -> Result<(), Error> {
        let pinned = link::replace_all(directory, program);
        let held =
            self.with(|held| held.xdp.iter().try_for_each(|link| link::replace_in(link, program)));
        pinned.and(held)
    }

    /// Pins those again whose pins are gone and which are on an interface.
    ///
    /// # Errors
    /// [`Error::Bpf`] or [`Error::System`] if one cannot be pinned; the others are.
    pub fn pin_again(&self, directory: &Path) -> Result<(), Error> {
        let pinned: Vec<u32> = pinned_in(directory).iter().map(interface_of).collect();
        self.with(|held| {
            let mut failure = None;
            for link in &held.xdp {
                let index = interface_of(link);
                if index == 0 || pinned.contains(&index) {
                    continue;
                }
                let Some(name) = name_of(index) else { continue };
                let pin = directory.join(link::pin_name(&name));
                make_way(directory, &pin, pinned.len());
                if let Err(error) = link::pin_fd(link, &pin) {
                    failure.get_or_insert(error);
                }
            }
            failure.map_or(Ok(()), Err)
        })
    }

    /// Holds the guard in the place of what was held.
    pub fn hold_guard(&self, program: OwnedFd, guards: Vec<OwnedFd>) {
        self.with(|held| (held.guard, held.guards) = (Some(program), guards));
    }

    /// As [`pin_again`](Self::pin_again), of the guard. Whether one is held for each family.
    ///
    /// # Errors
    /// As that.
    pub fn pin_guard_again(&self, directory: &Path) -> Result<bool, Error> {
        self.with(|held| {
            for ((family, _), link) in FAMILIES.iter().zip(&held.guards) {
                let pin = guard_pin(directory, family);
                if !pin.exists() {
                    link::pin_fd(link, &pin)?;
                }
            }
            Ok(held.guards.len() == FAMILIES.len())
        })
    }

    /// What `look` says of the guard's program and links, if they are held.
    pub fn of_guard<T>(&self, look: impl FnOnce(&OwnedFd, &[OwnedFd]) -> T) -> Option<T> {
        self.with(|held| held.guard.as_ref().map(|program| look(program, &held.guards)))
    }

    fn with<T>(&self, what: impl FnOnce(&mut Held) -> T) -> T {
        what(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The links that are pinned in a directory, as far as they can be opened.
fn pinned_in(directory: &Path) -> Vec<OwnedFd> {
    let pins = link::pins_of_links(directory).unwrap_or_default();
    pins.iter().filter_map(|pin| link::open(pin).ok()).collect()
}

/// Clears a pin's place: one that leads nowhere is removed, and one that leads to another interface, since the two have
/// swapped names, gets that one's name, which may have to be cleared in turn. What stays in the way is said by whoever
/// pins. `most`: pins that may be moved.
fn make_way(directory: &Path, pin: &Path, most: usize) {
    let Ok(there) = link::open(pin) else { return };
    let index = interface_of(&there);
    if index == 0 {
        let _ = fs::remove_file(pin);
        return;
    }
    let own = name_of(index).map(|name| directory.join(link::pin_name(&name)));
    let Some(own) = own.filter(|own| own != pin && most > 0) else { return };
    make_way(directory, &own, most - 1);
    if is_gone(&own) {
        let _ = fs::rename(pin, own);
    }
}

/// The number of the interface that a link is on; 0: none.
fn interface_of(link: &OwnedFd) -> u32 {
    // SAFETY: a plain number, which the kernel has written for a link of XDP.
    info_of(link).map_or(0, |info| unsafe { info.__bindgen_anon_1.xdp.ifindex })
}

/// The name of an interface of this network namespace.
fn name_of(index: u32) -> Option<String> {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: room for the longest name; the call ends what it writes with a zero.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr()) };
    if found.is_null() {
        return None;
    }
    // SAFETY: as above.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    name.to_str().ok().map(str::to_owned)
}
