//! The guard: a program where the kernel delivers packets to the host itself, which drops those of
//! services. They come there by interfaces that the XDP program is not on, or not yet again.

use super::pinned::info_of;
use super::{KernelPlane, load::missing};
use crate::abi::types;
use crate::error::{Context, Error};
use crate::link::c_path;
use libbpf_rs::libbpf_sys::{BPF_NETFILTER, bpf_link_create, bpf_link_create_opts, bpf_obj_pin};
use libbpf_rs::{MapCore, Object, ObjectBuilder};
use std::fs;
use std::io;
use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The guard as it was compiled with this crate.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guard.bpf.o"));
/// The object's name, and that of its constants, which libbpf makes of it.
const OBJECT: &str = "guard";
const CONSTANTS: &str = "guard.rodata";

/// Name of a pin of the guard's, before the family.
pub(super) const GUARD_PREFIX: &str = "guard-";
pub(super) const FAMILIES: [(&str, u32); 2] =
    [("ipv4", libc::NFPROTO_IPV4 as u32), ("ipv6", libc::NFPROTO_IPV6 as u32)];
const NF_INET_LOCAL_IN: u32 = 1;
/// The first priority that is tried. No two BPF programs at a hook may have the same one; before
/// connection tracking (-200), which would keep an entry for each packet.
const PRIORITY: i32 = -400;
const PRIORITIES: i32 = 100;

impl KernelPlane {
    /// Puts the guard in place, in this network namespace, or in the place of an earlier program's:
    /// there is one at any moment. It is pinned with the rest, so it outlives the control plane.
    ///
    /// # Errors
    /// [`Error::Bpf`] or [`Error::System`] on kernels that have no such hook (before Linux 6.4, or
    /// without `CONFIG_NETFILTER_BPF_LINK`).
    pub fn guard(&self) -> Result<(), Error> {
        let Some(directory) = &self.directory else {
            return Err(io::Error::other("a data plane without pins")).context(|| "guard".into());
        };
        let object = self.load_guard()?;
        let program = object
            .progs()
            .find(|program| program.name() == "weir_guard")
            .ok_or_else(|| missing("program", "weir_guard"))?;
        let held = program.as_fd().try_clone_to_owned().context(|| "hold the guard".into())?;
        let all = FAMILIES.iter().map(|(family, number)| {
            create(held.as_raw_fd(), *number, PRIORITY..PRIORITY + PRIORITIES)
                .context(|| format!("attach the guard for {family}"))
        });
        let links = all.collect::<Result<Vec<OwnedFd>, Error>>()?;
        for ((family, _), link) in FAMILIES.iter().zip(&links) {
            pin(link, &guard_pin(directory, family))?;
        }
        // Those before end here, or with their pins.
        self.links.hold_guard(held, links);
        Ok(())
    }

    /// Pins the guard again where its pins are gone.
    ///
    /// # Errors
    /// As [`guard`](Self::guard).
    pub fn guard_again(&self) -> Result<(), Error> {
        let Some(directory) = &self.directory else { return Ok(()) };
        if self.links.pin_guard_again(directory)? { Ok(()) } else { self.guard() }
    }

    /// Whether somebody has detached it. The kernel does not tell: of a link of netfilter's it says where it was put, also
    /// when it is not there any more, and its list of hooks (nfnetlink_hook) is left out of many kernels. But one that is
    /// attached keeps its priority from others. Where somebody else has taken the priority since, this does not find it.
    pub fn is_guard_detached(&self) -> bool {
        let is_free = |program: &OwnedFd, link: &OwnedFd| {
            let Ok(info) = info_of(link) else { return false };
            // SAFETY: plain numbers, which the kernel has written for a link of netfilter.
            let about = unsafe { info.__bindgen_anon_1.netfilter };
            let only = about.priority..about.priority + 1;
            create(program.as_raw_fd(), about.pf, only).is_ok()
        };
        let any = self.links.of_guard(|program, all| all.iter().any(|one| is_free(program, one)));
        any.unwrap_or(false)
    }

    /// Whether there is one, of this program or of an earlier one.
    pub fn is_guarded(&self) -> bool {
        let Some(directory) = &self.directory else { return false };
        FAMILIES.iter().any(|(family, _)| guard_pin(directory, family).exists())
    }

    /// Whether all of it is pinned.
    pub fn is_wholly_guarded(&self) -> bool {
        let Some(directory) = &self.directory else { return false };
        FAMILIES.iter().all(|(family, _)| guard_pin(directory, family).exists())
    }

    /// The program over this plane's table of services.
    fn load_guard(&self) -> Result<Object, Error> {
        let mut open = ObjectBuilder::default()
            .name(OBJECT)
            .and_then(|builder| builder.open_memory(PROGRAM))
            .context(|| "open the guard".into())?;
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            let shared = match name.as_str() {
                CONSTANTS => {
                    let bytes = map.initial_value_mut().unwrap_or_default();
                    let slots = self.sizes.vip_slots;
                    for (at, value) in [
                        (offset_of!(types::rodata, vip_slots), slots),
                        (offset_of!(types::rodata, vip_shift), 64 - slots.trailing_zeros()),
                    ] {
                        let room = bytes.get_mut(at..at + size_of::<u32>());
                        room.ok_or_else(|| missing("room for the sizes in", CONSTANTS))?
                            .copy_from_slice(&value.to_ne_bytes());
                    }
                    continue;
                }
                ".data.vips" => &self.maps.vips,
                ".data.control" => &self.maps.control,
                "outcomes" => &self.maps.outcomes,
                // The headers declare more than this program looks at.
                _ => {
                    map.set_autocreate(false).context(|| format!("leave out {name}"))?;
                    continue;
                }
            };
            if name.starts_with(".data.") {
                // libbpf has mapped the section as large as the object file has it, and unmaps as
                // much as the shared map has: without this, what lies behind, which is ours.
                map.set_value_size(shared.value_size()).context(|| format!("size array {name}"))?;
            }
            map.reuse_fd(shared.as_fd()).context(|| format!("share map {name}"))?;
        }
        open.load().context(|| "load the guard".into())
    }
}

/// Where the guard of a family is pinned.
pub(super) fn guard_pin(directory: &Path, family: &str) -> PathBuf {
    directory.join(format!("{GUARD_PREFIX}{family}"))
}

/// With the first of these priorities that nobody has.
fn create(program: i32, family: u32, priorities: Range<i32>) -> io::Result<OwnedFd> {
    let mut error = io::Error::from_raw_os_error(libc::EBUSY);
    for priority in priorities {
        let mut options = bpf_link_create_opts {
            sz: size_of::<bpf_link_create_opts>() as _,
            ..Default::default()
        };
        options.__bindgen_anon_1.netfilter.pf = family;
        options.__bindgen_anon_1.netfilter.hooknum = NF_INET_LOCAL_IN;
        options.__bindgen_anon_1.netfilter.priority = priority;
        // SAFETY: a descriptor and options that outlive the call.
        let fd = unsafe { bpf_link_create(program, 0, BPF_NETFILTER, &options) };
        if fd >= 0 {
            // SAFETY: a fresh descriptor that nobody else owns.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        error = io::Error::from_raw_os_error(-fd);
        if error.raw_os_error() != Some(libc::EBUSY) {
            break;
        }
    }
    Err(error)
}

/// Pins the link in the place of the one before, which ends when nobody holds it either.
fn pin(link: &OwnedFd, path: &Path) -> Result<(), Error> {
    // No dot: the BPF file system keeps names with one for itself.
    let fresh = PathBuf::from(format!("{}-new", path.display()));
    // Left by a process that died here.
    let _ = fs::remove_file(&fresh);
    let what = || format!("pin {}", path.display());
    let name = c_path(&fresh).context(what)?;
    // SAFETY: a descriptor and a C string.
    let done = unsafe { bpf_obj_pin(link.as_raw_fd(), name.as_ptr()) };
    if done < 0 { Err(io::Error::from_raw_os_error(-done)) } else { Ok(()) }.context(what)?;
    fs::rename(&fresh, path).context(what)
}
