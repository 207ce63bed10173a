//! The two-instruction XDP program that makes XDP_TX work over veth.
//!
//! A frame that a program sends back out of a veth arrives at the peer only if the peer has an
//! XDP program too: without one the peer has no receive ring for it. So every peer of an interface
//! that a balancer sends from gets a program that passes everything. It is written as instructions,
//! so that it needs neither a compiler nor an object file.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys;
use libbpf_rs::{Xdp, XdpFlags};
use nix::net::if_::if_nametoindex;

use crate::error::{Doing, Result};
use crate::netns::NetNs;

/// `r0 = verdict; exit`.
fn always(verdict: u32) -> [libbpf_sys::bpf_insn; 2] {
    let mut set = libbpf_sys::bpf_insn {
        code: (libbpf_sys::BPF_ALU64 | libbpf_sys::BPF_MOV | libbpf_sys::BPF_K) as u8,
        imm: verdict as i32,
        ..Default::default()
    };
    set.set_dst_reg(0);
    let exit = libbpf_sys::bpf_insn {
        code: (libbpf_sys::BPF_JMP | libbpf_sys::BPF_EXIT) as u8,
        ..Default::default()
    };
    [set, exit]
}

/// Loads an XDP program.
pub(crate) fn load(program: &[libbpf_sys::bpf_insn], name: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: name and licence are NUL-terminated, the instructions outlive the call and their
    // number is right, and no options is allowed.
    let fd = unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_XDP,
            name.as_ptr(),
            c"Dual MIT/GPL".as_ptr(),
            program.as_ptr(),
            program.len() as libbpf_sys::size_t,
            std::ptr::null_mut(),
        )
    };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the call returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Attaches the program that passes everything to an interface of a namespace. It stays until the
/// interface goes.
///
/// # Errors
/// If the kernel refuses the program, or there is no such interface.
pub fn attach_pass(netns: &NetNs, interface: &str) -> Result<()> {
    attach(netns, interface, Verdict::Pass)
}

/// What the program does with every frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Leaves it to the kernel.
    Pass,
    /// Sends it back out of the interface that it came in by.
    Transmit,
}

/// Attaches the program, in native mode, to an interface of a namespace. It stays until the
/// interface goes.
///
/// # Errors
/// If the kernel refuses the program, or there is no such interface.
pub fn attach(netns: &NetNs, interface: &str, verdict: Verdict) -> Result<()> {
    let verdict = match verdict {
        Verdict::Pass => libbpf_sys::XDP_PASS,
        Verdict::Transmit => libbpf_sys::XDP_TX,
    };
    let program = load(&always(verdict), c"always")
        .doing(|| "loading a two-instruction XDP program".into())?;
    netns
        .enter(|| put_on(&program, interface))?
        .doing(|| format!("attaching XDP to {interface} in {}", netns.name()))
}

/// As [`attach_pass`], in the namespace of the calling thread.
///
/// # Errors
/// As [`attach_pass`].
pub fn attach_pass_here(interface: &str) -> Result<()> {
    let put = || put_on(&load(&always(libbpf_sys::XDP_PASS), c"always")?, interface);
    put().doing(|| format!("attaching XDP to {interface}"))
}

pub(crate) fn put_on(program: &OwnedFd, interface: &str) -> io::Result<()> {
    let index = if_nametoindex(interface)?;
    Xdp::new(program.as_fd())
        .attach(index as i32, XdpFlags::DRV_MODE)
        .map_err(|error| io::Error::other(error.to_string()))
}
