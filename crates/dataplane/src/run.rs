//! BPF_PROG_RUN: a program applied to a frame without a network.

use crate::error::{Context, Error};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// What an XDP program wants done with a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The program made an error; the frame is dropped.
    Aborted,
    /// The frame is dropped.
    Drop,
    /// The frame goes on to the kernel's network stack.
    Pass,
    /// The frame goes back out of the interface that it came by (XDP_TX).
    Transmit,
    /// The frame goes out of another interface.
    Redirect,
}

impl Verdict {
    /// By the program's return value.
    pub(crate) fn of(value: u32) -> Self {
        match value {
            1 => Self::Drop,
            2 => Self::Pass,
            3 => Self::Transmit,
            4 => Self::Redirect,
            _ => Self::Aborted,
        }
    }
}

/// What a program did with a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FrameRun {
    /// What the program wants done with the frame.
    pub verdict: Verdict,
    /// The frame as the program left it.
    pub frame: Vec<u8>,
}

/// Runs a program on one frame.
///
/// # Errors
/// [`Error::System`] if the kernel refuses: frames under 14 bytes, for one.
pub fn run_frame(program: BorrowedFd<'_>, frame: &[u8]) -> Result<FrameRun, Error> {
    let mut out = vec![0u8; frame.len() + 64];
    let mut options = libbpf_rs::libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_test_run_opts>() as _,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        data_out: out.as_mut_ptr().cast(),
        data_size_out: out.len() as u32,
        repeat: 1,
        ..Default::default()
    };
    // SAFETY: the pointers and lengths describe live buffers; the kernel writes at most
    // data_size_out bytes.
    let done =
        unsafe { libbpf_rs::libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) };
    if done < 0 {
        return Err(io::Error::from_raw_os_error(-done)).context(|| "BPF_PROG_RUN".into());
    }
    out.truncate(options.data_size_out as usize);
    Ok(FrameRun { verdict: Verdict::of(options.retval), frame: out })
}
