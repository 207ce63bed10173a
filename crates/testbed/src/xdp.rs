//! The two-instruction XDP program that makes XDP_TX work over veth.
//!
//! A frame that a program sends back out of a veth arrives at the peer only if the peer has an
//! XDP program too: without one the peer has no receive ring for it. So every peer of an interface
//! that a balancer sends from gets a program that passes everything. It is written as instructions,
//! so that it needs neither a compiler nor an object file.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

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

/// The program takes frames in several buffers (linux/bpf.h, BPF_F_XDP_HAS_FRAGS).
pub(crate) const HAS_FRAGS: u32 = 1 << 5;

/// Loads an XDP program.
pub(crate) fn load(program: &[libbpf_sys::bpf_insn], name: &CStr) -> io::Result<OwnedFd> {
    load_with(program, name, 0)
}

pub(crate) fn load_with(
    program: &[libbpf_sys::bpf_insn],
    name: &CStr,
    prog_flags: u32,
) -> io::Result<OwnedFd> {
    let mut options = libbpf_sys::bpf_prog_load_opts {
        sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as _,
        prog_flags,
        expected_attach_type: libbpf_sys::BPF_XDP,
        ..Default::default()
    };
    // SAFETY: name and licence are NUL-terminated, instructions and options outlive the call, and the
    // number of instructions is right.
    let fd = unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_XDP,
            name.as_ptr(),
            c"Dual MIT/GPL".as_ptr(),
            program.as_ptr(),
            program.len() as libbpf_sys::size_t,
            &raw mut options,
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

/// One instruction.
pub(crate) fn put(code: u32, dst: u8, src: u8, off: i16, imm: u32) -> libbpf_sys::bpf_insn {
    let (code, imm) = (code as u8, imm as i32);
    let mut one = libbpf_sys::bpf_insn { code, off, imm, ..Default::default() };
    one.set_dst_reg(dst);
    one.set_src_reg(src);
    one
}

/// `if (pings by IPv4) drop; pass`.
fn no_pings() -> Vec<libbpf_sys::bpf_insn> {
    use libbpf_sys::{
        BPF_ADD, BPF_ALU64, BPF_B, BPF_H, BPF_JGT, BPF_JMP, BPF_JNE, BPF_K, BPF_LDX, BPF_MEM,
        BPF_MOV, BPF_W, BPF_X,
    };
    let [drop, pass] = [libbpf_sys::XDP_DROP, libbpf_sys::XDP_PASS].map(always);
    let mut code = vec![
        // Its Ethernet header, and IPv4 as far as the protocol.
        put(BPF_LDX | BPF_W | BPF_MEM, 2, 1, 0, 0),
        put(BPF_LDX | BPF_W | BPF_MEM, 3, 1, 4, 0),
        put(BPF_ALU64 | BPF_MOV | BPF_X, 4, 2, 0, 0),
        put(BPF_ALU64 | BPF_ADD | BPF_K, 4, 0, 0, 24),
        put(BPF_JMP | BPF_JGT | BPF_X, 4, 3, 6, 0),
        put(BPF_LDX | BPF_H | BPF_MEM, 5, 2, 12, 0),
        put(BPF_JMP | BPF_JNE | BPF_K, 5, 0, 4, u16::to_be(0x0800).into()),
        put(BPF_LDX | BPF_B | BPF_MEM, 5, 2, 23, 0),
        put(BPF_JMP | BPF_JNE | BPF_K, 5, 0, 2, 1),
    ];
    code.extend(drop);
    code.extend(pass);
    code
}

/// An XDP program that is pinned for as long as this lives.
pub struct Pinned {
    path: PathBuf,
}

impl Pinned {
    /// Pins one in a BPF file system that drops pings by IPv4 and leaves everything else to the kernel, and that
    /// takes frames in several buffers, or not.
    ///
    /// # Errors
    /// If the kernel refuses it, or there is something.
    pub fn without_pings(path: &Path, frags: bool) -> Result<Self> {
        let pin = || {
            let flags = if frags { HAS_FRAGS } else { 0 };
            Self::at(path, &load_with(&no_pings(), c"no_pings", flags)?)
        };
        pin().doing(|| format!("pinning a program at {}", path.display()))
    }

    /// Pins this one.
    pub(crate) fn at(path: &Path, program: &OwnedFd) -> io::Result<Self> {
        let name = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: the name is NUL-terminated, and the descriptor is open.
        let done = unsafe { libbpf_sys::bpf_obj_pin(program.as_raw_fd(), name.as_ptr()) };
        if done < 0 {
            return Err(io::Error::from_raw_os_error(-done));
        }
        Ok(Self { path: path.to_owned() })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
