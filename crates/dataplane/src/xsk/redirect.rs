//! The program that redirects frames into sockets, with its maps.

use crate::error::{Context, Error};
use crate::link;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

#[allow(missing_docs, clippy::all, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/xsk.skel.rs"));
}

const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// The program of `bpf/xsk.bpf.c`, loaded; one serves all ports of a forwarder. Attached nowhere,
/// or by links that end with their descriptors, so nothing outlives the process.
pub struct Redirect {
    program: OwnedFd,
    slots: MapHandle,
    sockets: MapHandle,
    counters: MapHandle,
}

/// The program's attachment to an interface.
pub(super) struct Link(OwnedFd);

impl Drop for Link {
    /// Detaches at once. To close the descriptor is not enough: a process that is just being
    /// started by another thread has it too, for a moment.
    fn drop(&mut self) {
        // SAFETY: a descriptor and nothing else. It fails if the interface is gone, and the link
        // with it.
        unsafe { libbpf_rs::libbpf_sys::bpf_link_detach(self.0.as_raw_fd()) };
    }
}

impl Redirect {
    /// Loads the program for so many ports.
    ///
    /// # Errors
    /// Whatever the kernel refuses; this needs root.
    pub fn load(ports: usize) -> Result<Self, Error> {
        let mut storage = MaybeUninit::uninit();
        let mut open = skeleton::XskSkelBuilder::default()
            .open(&mut storage)
            .context(|| "open the program for AF_XDP".into())?;
        let ports = ports.max(1) as u32;
        open.maps.slots.set_max_entries(ports).context(|| "size the map slots".into())?;
        open.maps.sockets.set_max_entries(ports).context(|| "size the map sockets".into())?;
        let skel = open.load().context(|| "load the program for AF_XDP".into())?;
        let handle = |map: &libbpf_rs::Map<'_>| {
            MapHandle::try_from(map).context(|| format!("map {:?}", map.name()))
        };
        let program = skel.progs.xsk_redirect.as_fd().try_clone_to_owned();
        Ok(Self {
            program: program.context(|| "duplicate a program's descriptor".into())?,
            slots: handle(&skel.maps.slots)?,
            sockets: handle(&skel.maps.sockets)?,
            counters: handle(&skel.maps.bss)?,
        })
    }

    /// The program, to run it on frames.
    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// Frames to group addresses that went to the kernel.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn group_frames(&self) -> Result<u64, Error> {
        let value = self.counters.lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
        let value = value.context(|| "read the count of group frames".into())?;
        let word = value.as_deref().and_then(|value| value.first_chunk());
        Ok(word.map_or(0, |word| u64::from_ne_bytes(*word)))
    }

    /// Sends frames of an interface of this thread's namespace to a socket from now on, in the
    /// driver if it can, else in the network stack. It ends when the link is dropped.
    pub(super) fn attach(
        &self,
        interface: u32,
        slot: u32,
        socket: BorrowedFd<'_>,
    ) -> Result<Link, Error> {
        self.slots
            .update(&interface.to_ne_bytes(), &slot.to_ne_bytes(), MapFlags::ANY)
            .context(|| format!("enter interface {interface} into the map slots"))?;
        self.sockets
            .update(&slot.to_ne_bytes(), &socket.as_raw_fd().to_ne_bytes(), MapFlags::ANY)
            .context(|| format!("enter the socket of interface {interface} into the XSKMAP"))?;
        let native = link::create(self.program(), interface, XDP_FLAGS_DRV_MODE);
        let link = native
            .or_else(|error| match error.raw_os_error() {
                Some(libc::EBUSY | libc::EEXIST) => Err(error),
                _ => link::create(self.program(), interface, XDP_FLAGS_SKB_MODE),
            })
            .map_err(|error| match error.raw_os_error() {
                Some(libc::EBUSY | libc::EEXIST) => {
                    Error::Occupied { interface: super::device::name_of(interface) }
                }
                _ => Error::System {
                    what: format!("attach the program for AF_XDP to interface {interface}"),
                    source: error,
                },
            })?;
        Ok(Link(link))
    }

    /// Forgets an interface. What is not there is no matter.
    pub(super) fn forget(&self, interface: u32, slot: u32) {
        let _ = self.slots.delete(&interface.to_ne_bytes());
        let _ = self.sockets.delete(&slot.to_ne_bytes());
    }
}
