//! What became of frames, by the interface that they came in by: a program behind the one in the links
//! (`bpf/interfaces.bpf.c`), while several interfaces have that.
//!
//! It is bound to one program. So whoever puts another one into the links has it counted first, and lets go of the
//! former one when no packet follows that any more. What is pinned says whether it is counted: a link for each
//! program, and the counters, which stay.

use super::KernelPlane;
use super::counters::lookup_percpu;
use super::grace;
use super::lost;
use crate::error::{Context, Error};
use crate::link;
use libbpf_rs::libbpf_sys::{bpf_prog_get_info_by_fd, bpf_prog_info};
use libbpf_rs::{MapCore, MapHandle, ObjectBuilder};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use weir_plane::InterfaceCounts;

/// The program as it was compiled with this crate.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/interfaces.bpf.o"));
const OBJECT: &str = "interfaces";
/// What the links have.
const BALANCER: &str = "weir_balance";
/// The counters, and their pin.
const COUNTS: &str = "interfaces";
/// Name of a link's pin, before the number of the program that is counted.
const PREFIX: &str = "counts-";
/// Bytes of a processor's counters: sent, passed, dropped.
const WORDS: usize = 3;

/// Whether frames are counted by interface.
pub(super) fn are_counted(directory: &Path) -> Result<bool, Error> {
    Ok(!pins(directory)?.is_empty())
}

/// Counts what the program does that is about to be put into the links.
pub(super) fn count(directory: &Path, entry: BorrowedFd<'_>) -> Result<(), Error> {
    let pin = pin_of(directory, entry)?;
    if pin.exists() {
        return Ok(());
    }
    let counts = directory.join(COUNTS);
    let mut open = ObjectBuilder::default()
        .name(OBJECT)
        .and_then(|builder| builder.open_memory(PROGRAM))
        .context(|| "open the program that counts by interface".into())?;
    for mut map in open.maps_mut().filter(|map| map.name() == COUNTS) {
        if let Ok(there) = MapHandle::from_pinned_path(&counts) {
            if there.value_size() == map.value_size() && there.key_size() == map.key_size() {
                map.reuse_pinned_map(&counts).context(|| format!("open {}", counts.display()))?;
            } else {
                // Another version's.
                let what = || format!("remove {}", counts.display());
                fs::remove_file(&counts).context(what)?;
            }
        }
    }
    for mut program in open.progs_mut() {
        program
            .set_attach_target(entry.as_raw_fd(), Some(BALANCER.into()))
            .context(|| "find the program to count".into())?;
    }
    let loaded = open.load().context(|| "load the program that counts by interface".into())?;
    if !counts.exists() {
        let map = loaded.maps().find(|map| map.name() == COUNTS);
        let map = map.ok_or_else(|| super::load::missing("map", COUNTS))?;
        MapHandle::try_from(&map)
            .and_then(|mut map| map.pin(&counts))
            .context(|| format!("pin {}", counts.display()))?;
    }
    for program in loaded.progs() {
        let link = lost::open(program.as_fd().as_raw_fd());
        let link = link.context(|| "stand behind the program in the links".into())?;
        link::pin_fd(&link, &pin)?;
    }
    Ok(())
}

/// The same if others are counted. Packets are led to another program whether that can be or not: returns why it
/// cannot.
pub(super) fn follow(directory: &Path, entry: BorrowedFd<'_>) -> Option<String> {
    let followed = are_counted(directory)
        .and_then(|counted| if counted { count(directory, entry) } else { Ok(()) });
    followed.err().map(|error| error.to_string())
}

/// No packet follows another program than this one any more. What is left behind costs memory, and is let go of
/// the next time.
pub(super) fn has_followed(directory: &Path, entry: Option<BorrowedFd<'_>>) {
    if are_counted(directory).unwrap_or(false) {
        let _ = leave_others(directory, entry);
    }
}

/// The links have this program, and no other: nothing else is counted. None: nothing is.
pub(super) fn leave_others(directory: &Path, entry: Option<BorrowedFd<'_>>) -> Result<(), Error> {
    let kept = entry.map(|entry| pin_of(directory, entry)).transpose()?;
    let others: Vec<PathBuf> =
        pins(directory)?.into_iter().filter(|pin| Some(pin) != kept.as_ref()).collect();
    if others.is_empty() {
        return Ok(());
    }
    // A packet under way may be another one's.
    grace()?;
    others
        .iter()
        .try_for_each(|pin| fs::remove_file(pin).context(|| format!("remove {}", pin.display())))
}

fn pins(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = fs::read_dir(directory).context(|| format!("read {}", directory.display()))?;
    let ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(PREFIX))
    };
    Ok(entries.flatten().map(|entry| entry.path()).filter(ours).collect())
}

/// The pin of the link behind a program, whose number no other has while that link is there.
fn pin_of(directory: &Path, entry: BorrowedFd<'_>) -> Result<PathBuf, Error> {
    let mut info = bpf_prog_info::default();
    let mut size = size_of::<bpf_prog_info>() as u32;
    // SAFETY: a descriptor, and room of the size that is told.
    let done = unsafe { bpf_prog_get_info_by_fd(entry.as_raw_fd(), &raw mut info, &raw mut size) };
    if done < 0 {
        return Err(io::Error::from_raw_os_error(-done)).context(|| "ask for a program".into());
    }
    Ok(directory.join(format!("{PREFIX}{}", info.id)))
}

impl KernelPlane {
    /// Counts by interface, if several have the program from now on: before links are given it. What keeps it from
    /// that is told by [`uncounted_interfaces`](Self::uncounted_interfaces).
    pub(super) fn count_interfaces(&self, directory: &Path, several: bool) {
        // A plane in user space would say of what it is given only that it was.
        let counted = match several && self.front.is_none() {
            true => count(directory, self.link_entry()),
            false => Ok(()),
        };
        let mut why = self.uncounted.lock().unwrap_or_else(PoisonError::into_inner);
        *why = counted.err().map(|error| error.to_string());
    }

    /// The links have what they are to have.
    pub(super) fn have_counted(&self, directory: &Path, several: bool) -> Result<(), Error> {
        let counted = several && self.front.is_none();
        leave_others(directory, counted.then(|| self.link_entry()))
    }

    /// Why frames are not counted by interface, if they should be.
    pub fn uncounted_interfaces(&self) -> Option<String> {
        self.uncounted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What became of frames, by the number of the interface that they came in by; 0 stands for those beyond a
    /// thousand. `None` if that is not counted, as with one interface.
    ///
    /// # Errors
    /// [`Error::Bpf`] or [`Error::System`].
    pub fn by_interface(&self) -> Result<Option<BTreeMap<u32, InterfaceCounts>>, Error> {
        let Some(directory) = &self.directory else { return Ok(None) };
        if !are_counted(directory)? {
            return Ok(None);
        }
        let pin = directory.join(COUNTS);
        let map =
            MapHandle::from_pinned_path(&pin).context(|| format!("open {}", pin.display()))?;
        let mut all = BTreeMap::new();
        for key in map.keys() {
            let Ok(ifindex) = <[u8; 4]>::try_from(&key[..]) else { continue };
            let mut words = [0; WORDS];
            for counts in lookup_percpu(&map, &key)? {
                for (sum, word) in words.iter_mut().zip(counts.chunks_exact(size_of::<u64>())) {
                    *sum += word.try_into().map_or(0, u64::from_ne_bytes);
                }
            }
            let [sent, passed, dropped] = words;
            all.insert(u32::from_ne_bytes(ifindex), InterfaceCounts { sent, passed, dropped });
        }
        Ok(Some(all))
    }
}
