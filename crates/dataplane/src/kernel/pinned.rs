//! What an instance has left in the kernel, looked at without touching it.

use super::KernelPlane;
use super::convert::{self, Plan};
use super::resize::pin_of;
use super::stamp::{Found, Stamp};
use crate::abi::types;
use crate::error::{Context, Error};
use crate::link::{self, LINK_PREFIX};
use crate::numbers::OWN_MACS;
use libbpf_rs::libbpf_sys::{bpf_link_get_info_by_fd, bpf_link_info};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::fs;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// A link that is pinned.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PinnedLink {
    /// The name that its interface had.
    pub interface: String,
    /// The number of that interface in its network namespace; 0 if it is gone.
    pub number: u32,
    /// The number of its program, which no other one of this kernel has.
    pub program: u32,
}

/// What packets meet, whether a control plane runs or not.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pinned {
    /// The interfaces that the program was attached to, by name.
    pub links: Vec<PinnedLink>,
    /// The Ethernet addresses that frames are taken to; none if all are.
    pub own_macs: Vec<[u8; 6]>,
}

impl KernelPlane {
    /// What is pinned in a directory; `None` if nothing is.
    ///
    /// # Errors
    /// [`Error::Layout`] if another version has made it, and it cannot be taken over; [`Error::Bpf`] or
    /// [`Error::System`] if it cannot
    /// be read.
    pub fn left_in(directory: &Path) -> Result<Option<Pinned>, Error> {
        let plan = match Stamp::look(directory)? {
            Found::Nothing => return Ok(None),
            Found::Own(_) => None,
            Found::Other(other) => Some(convert::plan(directory, &other)?),
        };
        let own_macs = own_macs(directory, plan.as_ref())?;
        let mut found = Pinned { own_macs, links: Vec::new() };
        let what = || format!("read {}", directory.display());
        for entry in fs::read_dir(directory).context(what)? {
            let entry = entry.context(what)?;
            let pin = entry.file_name();
            let Some(name) = pin.to_str().and_then(|name| name.strip_prefix(LINK_PREFIX)) else {
                continue;
            };
            let (number, program) = look_at(&entry.path())
                .context(|| format!("look at link {}", entry.path().display()))?;
            // As `pin_name` has it.
            found.links.push(PinnedLink { interface: name.replace(' ', "."), number, program });
        }
        found.links.sort();
        Ok(Some(found))
    }
}

impl KernelPlane {
    /// Whether packets go by what is pinned in a directory: a link there is on an interface.
    pub fn forwards(directory: &Path) -> bool {
        let Ok(entries) = fs::read_dir(directory) else { return false };
        let is_link = |name: &str| name.starts_with(LINK_PREFIX);
        let mut links =
            entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_link));
        // One that cannot be looked at may be.
        links.any(|entry| !look_at(&entry.path()).is_ok_and(|(number, _)| number == 0))
    }
}

fn own_macs(directory: &Path, plan: Option<&Plan>) -> Result<Vec<[u8; 6]>, Error> {
    let pin = pin_of(directory, "control");
    let what = || format!("read {}", pin.display());
    let map = MapHandle::from_pinned_path(&pin).context(what)?;
    let value = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).context(what)?.unwrap_or_default();
    let value = plan.and_then(|plan| plan.element("control", &value)).unwrap_or(value);
    let first = offset_of!(types::control, own_macs);
    let words = value.get(first..).unwrap_or_default().chunks_exact(size_of::<u64>());
    let macs =
        words.take(OWN_MACS).map(|word| [word[0], word[1], word[2], word[3], word[4], word[5]]);
    Ok(macs.take_while(|mac| *mac != [0; 6]).collect())
}

/// The numbers of the interface that a pinned link is on, 0 if that is gone, and of its program.
pub(super) fn look_at(pin: &Path) -> io::Result<(u32, u32)> {
    let info = info_of(&link::open(pin)?)?;
    // SAFETY: plain numbers, which the kernel has written for a link of XDP.
    Ok((unsafe { info.__bindgen_anon_1.xdp.ifindex }, info.prog_id))
}

/// What the kernel says of a link.
pub(super) fn info_of(link: &OwnedFd) -> io::Result<bpf_link_info> {
    let mut info = bpf_link_info::default();
    let mut size = size_of::<bpf_link_info>() as u32;
    // SAFETY: a descriptor, and room of the size that is told.
    let done = unsafe { bpf_link_get_info_by_fd(link.as_raw_fd(), &raw mut info, &raw mut size) };
    if done < 0 { Err(io::Error::from_raw_os_error(-done)) } else { Ok(info) }
}
