//! Which interfaces the program takes frames from, and which of these are for it.

use super::KernelPlane;
use super::pinned::look_at;
use crate::abi::types;
use crate::error::{Context, Error};
use crate::link::{self, Interface, XdpMode};
use crate::numbers::OWN_MACS;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::{fs, io};
use weir_plane::TooManyMacs;

/// The pin of the link that is on an interface, by whatever name.
fn link_on(directory: &Path, interface: &Interface) -> Option<PathBuf> {
    let is_on = |pin: &PathBuf| look_at(pin).is_ok_and(|(index, _)| index == interface.index);
    link::pins_of_links(directory).ok()?.into_iter().find(is_on)
}

/// An interface that frames are taken from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attached {
    /// The interface, with its name and addresses.
    pub interface: Interface,
    /// Whether the program runs in generic mode, which is slower.
    pub generic: bool,
}

impl KernelPlane {
    /// Attaches to interfaces; those that are attached already get this program in place of the
    /// one they have, without missing a packet. Frames to other hosts are dropped.
    ///
    /// # Errors
    /// [`Error::Occupied`], [`Error::NoInterface`], or what the kernel says.
    pub fn attach(&self, names: &[String], mode: XdpMode) -> Result<Vec<Attached>, Error> {
        let found: Vec<Interface> =
            names.iter().map(|name| Interface::find(name)).collect::<Result<_, _>>()?;
        self.accept_own_macs(names);
        let (attached, failure) = self.attach_each(&found, names, mode)?;
        self.note_widest(names);
        failure.map_or(Ok(attached), Err)
    }

    /// As [`attach`](Self::attach), of those that are there. One that has another name now keeps its program: its link
    /// goes by its number, and packets come by it.
    ///
    /// # Errors
    /// [`Error::Occupied`], or what the kernel says, of the first that cannot be attached.
    pub fn reattach(&self, names: &[String], mode: XdpMode) -> Result<Vec<Attached>, Error> {
        self.accept_own_macs(names);
        let found: Vec<Interface> =
            names.iter().filter_map(|name| Interface::find(name).ok()).collect();
        let (attached, failure) = self.attach_each(&found, names, mode)?;
        self.note_widest(names);
        failure.map_or(Ok(attached), Err)
    }

    /// Tries all, and detaches from others than those of these names if none fails: what forwards does, until all is there
    /// that takes its place. With the first failure.
    fn attach_each(
        &self,
        found: &[Interface],
        names: &[String],
        mode: XdpMode,
    ) -> Result<(Vec<Attached>, Option<Error>), Error> {
        let Some(directory) = &self.directory else {
            return Err(io::Error::other("a data plane without pins")).context(|| "attach".into());
        };
        self.program.keep(directory)?;
        let mut attached = Vec::new();
        // What stays is pinned again, and its program replaced: no packet comes between.
        let mut failure = self.links.pin_again(directory).err();
        for interface in found {
            let pin = directory.join(link::pin_name(&interface.name));
            // It was attached to by another name.
            if !pin.exists()
                && let Some(other) = link_on(directory, interface)
            {
                fs::rename(&other, &pin).context(|| format!("rename {}", other.display()))?;
            }
            // What could not be pinned again goes on all the same.
            let held = !pin.exists() && self.links.is_on(interface.index);
            let on = if held {
                let replaced = self.links.replace_all(directory, self.link_entry());
                replaced.and_then(|()| link::is_generic(interface))
            } else {
                link::attach(self.link_entry(), interface, mode, &pin)
            };
            match on {
                Ok(generic) => attached.push(Attached { interface: interface.clone(), generic }),
                Err(error) => {
                    failure.get_or_insert(error);
                }
            }
        }
        self.went_past_front();
        if failure.is_none() {
            link::detach_others(directory, names)?;
            self.program.forget_others(directory)?;
            self.forget_other_fronts()?;
        }
        self.links.hold(directory);
        if let Some(lost) = &self.lost {
            let on: Vec<u32> = attached.iter().map(|one| one.interface.index).collect();
            lost.take_from(&on)?;
        }
        Ok((attached, failure))
    }

    /// Whether an interface has an XDP program that is not of the data plane pinned in a directory.
    pub fn is_occupied(directory: &Path, name: &str) -> bool {
        let ours = |interface: &Interface| link_on(directory, interface).is_some();
        !Self::was_attached(directory, name)
            && Interface::find(name)
                .is_ok_and(|interface| link::has_program(&interface) && !ours(&interface))
    }

    /// Whether the data plane pinned in a directory is attached to an interface of this name, or was until that went.
    pub fn was_attached(directory: &Path, name: &str) -> bool {
        directory.join(link::pin_name(name)).exists()
    }

    /// Makes the data plane take frames that are addressed to these interfaces, as their addresses
    /// are now. Those that are not there are left out; if none is, the list stays: an empty one
    /// accepts all. So it is where they have more addresses than the program compares, which reads them one by
    /// one; then it says so.
    pub fn accept_own_macs(&self, names: &[String]) -> Option<TooManyMacs> {
        let mut macs: Vec<[u8; 6]> = names
            .iter()
            .filter_map(|name| Interface::find(name).ok())
            .map(|interface| interface.mac)
            // Nobody's: it would end the list.
            .filter(|mac| *mac != [0; 6])
            .collect();
        macs.sort_unstable();
        macs.dedup();
        if macs.is_empty() {
            return None;
        }
        self.note_widest(names);
        let (found, most) = (macs.len(), OWN_MACS);
        let first = offset_of!(types::control, own_macs);
        for slot in 0..OWN_MACS {
            let mac = macs
                .get(slot)
                .map_or(0, |&[a, b, c, d, e, f]| u64::from_le_bytes([a, b, c, d, e, f, 0, 0]));
            let mac = if found > most { 0 } else { mac };
            self.control.word64(first + slot * size_of::<u64>()).store(mac, Ordering::Relaxed);
        }
        (found > most).then_some(TooManyMacs { found, most })
    }

    /// Notes how long a packet may be that comes in: by any of these interfaces that have the program, to go to any
    /// backend. What stands above them is not asked, as a VRF takes any length.
    fn note_widest(&self, names: &[String]) {
        let Some(directory) = &self.directory else { return };
        let attached = names.iter().filter(|name| directory.join(link::pin_name(name)).exists());
        let widest = attached.filter_map(|name| link::read_mtu(name)).max().unwrap_or(0);
        let word = self.control.word32(offset_of!(types::control, widest));
        word.store(widest, Ordering::Relaxed);
    }
}
