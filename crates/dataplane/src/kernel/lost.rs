//! Frames that the program has sent and that were lost before they left: the kernel tells that in
//! tracepoints only.

use super::counters::lookup_percpu;
use super::load::missing;
use crate::error::{Context, Error};
use libbpf_rs::libbpf_sys::bpf_raw_tracepoint_open;
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::ptr;
use std::sync::{Mutex, PoisonError};

/// The programs as they were compiled with this crate.
const PROGRAMS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/lost.bpf.o"));
/// The object's name, and that of its constants, which libbpf makes of it.
const OBJECT: &str = "lost";
const CONSTANTS: &str = "lost.rodata";

/// Counts as long as it lives.
pub(super) struct Lost {
    _links: Vec<OwnedFd>,
    ours: MapHandle,
    frames: MapHandle,
    /// What `ours` is made of.
    from: Mutex<ComeBy>,
}

/// The interfaces, by their numbers, that frames come in by.
#[derive(Default)]
struct ComeBy {
    /// Those that the program was attached to.
    attached: Vec<u32>,
    /// Members of bonds among them.
    members: Vec<u32>,
}

impl Lost {
    /// Begins to count, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`Error::Bpf`] or [`Error::System`] on kernels without such tracepoints, or without BTF.
    pub fn count() -> Result<Self, Error> {
        let netns = fs::metadata("/proc/thread-self/ns/net").context(|| "find out where".into())?;
        let object = load(netns.ino() as u32)?;
        let handle = |name: &str| {
            let map = object.maps().find(|map| map.name() == name);
            let map = map.ok_or_else(|| missing("map", name))?;
            MapHandle::try_from(&map).context(|| format!("duplicate map {name}"))
        };
        let (ours, frames) = (handle("ours")?, handle("frames")?);
        let links = object.progs().map(|program| open(program.as_fd().as_raw_fd()));
        let links = links.collect::<io::Result<Vec<_>>>();
        let links = links.context(|| "attach to the tracepoints of lost frames".into())?;
        Ok(Self { _links: links, ours, frames, from: Mutex::default() })
    }

    /// The program is on these interfaces, by their numbers, and on no others.
    ///
    /// # Errors
    /// [`Error::Bpf`] if there are too many.
    pub fn take_from(&self, interfaces: &[u32]) -> Result<(), Error> {
        self.set_from(|from| from.attached = interfaces.to_vec())
    }

    /// These are members of bonds that the program is on.
    ///
    /// # Errors
    /// [`Error::Bpf`] if there are too many.
    pub fn take_from_members(&self, interfaces: &[u32]) -> Result<(), Error> {
        self.set_from(|from| from.members = interfaces.to_vec())
    }

    fn set_from(&self, change: impl FnOnce(&mut ComeBy)) -> Result<(), Error> {
        let mut from = self.from.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut from);
        let all = || from.attached.iter().chain(&from.members).map(|ifindex| ifindex.to_ne_bytes());
        let what = || "note where the program is".into();
        for key in all() {
            self.ours.update(&key, &key, MapFlags::ANY).context(what)?;
        }
        let known = |key: &Vec<u8>| all().any(|one| one[..] == key[..]);
        let gone: Vec<Vec<u8>> = self.ours.keys().filter(|key| !known(key)).collect();
        gone.iter().try_for_each(|key| crate::reports::delete(&self.ours, key))
    }

    /// Frames by the number of the interface that they were to leave by; 0 for those of which that is
    /// not known.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn frames(&self) -> Result<BTreeMap<u32, u64>, Error> {
        let mut found = BTreeMap::new();
        for key in self.frames.keys() {
            let Ok(ifindex) = <[u8; 4]>::try_from(&key[..]) else { continue };
            let each = lookup_percpu(&self.frames, &key)?;
            let each = each.iter().filter_map(|value| <[u8; 8]>::try_from(&value[..]).ok());
            found.insert(u32::from_ne_bytes(ifindex), each.map(u64::from_ne_bytes).sum());
        }
        Ok(found)
    }
}

fn load(netns: u32) -> Result<Object, Error> {
    let mut open = ObjectBuilder::default()
        .name(OBJECT)
        .and_then(|builder| builder.open_memory(PROGRAMS))
        .context(|| "open the programs that count lost frames".into())?;
    for mut map in open.maps_mut() {
        if map.name() == CONSTANTS {
            let bytes = map.initial_value_mut().unwrap_or_default();
            let room = bytes.get_mut(..size_of::<u32>());
            room.ok_or_else(|| missing("room for the namespace in", CONSTANTS))?
                .copy_from_slice(&netns.to_ne_bytes());
        }
    }
    open.load().context(|| "load the programs that count lost frames".into())
}

/// A program that names its tracepoint itself.
fn open(program: i32) -> io::Result<OwnedFd> {
    // SAFETY: a descriptor, and no name.
    let fd = unsafe { bpf_raw_tracepoint_open(ptr::null(), program) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
