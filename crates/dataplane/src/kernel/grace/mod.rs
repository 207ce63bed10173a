//! Waiting for the packets under way.
//!
//! There are two ways to know that every program that had begun is over. A thread of ours that has been
//! on every processor (`visits.rs`) takes some tenths of a millisecond. The kernel's own wait, which is
//! tried when that cannot be, takes two or three of its ticks, 5 to 30 ms.

mod visits;

use crate::error::{Context, Error};
use libbpf_rs::libbpf_sys::bpf_map_create_opts;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;
use visits::Visitor;

/// A map in a map, which nobody reads. Since Linux 4.20 a change of what an outer map holds returns
/// when every BPF program that may have seen what it held before is over (`maybe_wait_bpf_programs`
/// in kernel/bpf/syscall.c): the documented way to wait for programs. It waits on one CPU as on many,
/// and where ticks are off.
struct Wait {
    outer: MapHandle,
    inner: MapHandle,
}

impl Wait {
    fn new() -> Result<Self, Error> {
        let word = size_of::<u32>() as u32;
        let size = size_of::<bpf_map_create_opts>() as _;
        let array = |kind, name: &str, options: &bpf_map_create_opts| {
            MapHandle::create(kind, Some(name), word, word, 1, options)
                .context(|| "make a map to wait for BPF programs with".into())
        };
        let plain = bpf_map_create_opts { sz: size, ..Default::default() };
        let inner = array(MapType::Array, "weir_inner", &plain)?;
        let holds = bpf_map_create_opts {
            sz: size,
            inner_map_fd: inner.as_fd().as_raw_fd() as u32,
            ..Default::default()
        };
        let outer = array(MapType::ArrayOfMaps, "weir_grace", &holds)?;
        Ok(Self { outer, inner })
    }

    fn wait(&self) -> Result<(), Error> {
        let inner = self.inner.as_fd().as_raw_fd();
        self.outer
            .update(&0u32.to_ne_bytes(), &inner.to_ne_bytes(), MapFlags::ANY)
            .context(|| "wait for packets under way".into())
    }
}

/// Waits until every packet whose processing had begun is decided.
///
/// # Errors
/// [`Error::Bpf`] if the kernel refuses.
pub fn grace() -> Result<(), Error> {
    static VISITOR: OnceLock<Visitor> = OnceLock::new();
    if VISITOR.get_or_init(Visitor::new).visit() {
        return Ok(());
    }
    wait_for_programs()
}

/// [`grace`] by the kernel's own wait alone.
///
/// # Errors
/// [`Error::Bpf`] if the kernel refuses.
pub fn wait_for_programs() -> Result<(), Error> {
    static WAIT: OnceLock<Wait> = OnceLock::new();
    if let Some(wait) = WAIT.get() {
        return wait.wait();
    }
    let wait = Wait::new()?;
    WAIT.get_or_init(|| wait).wait()
}
