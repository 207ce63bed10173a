//! Frames that no well-behaved system sends: written to an interface byte for byte.

use std::io;
use std::os::fd::OwnedFd;

use crate::error::{Doing, Result};
use weir_testbed::{NetNs, packet};

/// Frames handed to the kernel in one system call.
const BATCH: usize = 64;

/// A raw socket at an interface of a namespace.
#[derive(Debug)]
pub struct FrameSender {
    socket: OwnedFd,
}

impl FrameSender {
    /// Opens the interface; frames sent are complete from the destination MAC on, without FCS.
    ///
    /// # Errors
    /// If the interface does not exist or the process lacks CAP_NET_RAW.
    pub fn open(netns: &NetNs, interface: &str) -> Result<Self> {
        let socket = netns.enter(|| packet::open(packet::NOTHING, Some(interface)))?;
        Ok(Self { socket: socket.doing(|| format!("opening {interface} for frames"))? })
    }

    /// Sends all frames, waiting for room where there is none.
    ///
    /// # Errors
    /// What the kernel said to the first frame that it refused.
    pub fn send(&self, frames: &[Vec<u8>]) -> Result<()> {
        for batch in frames.chunks(BATCH) {
            let mut rest = batch;
            while !rest.is_empty() {
                match packet::send_burst(&self.socket, rest) {
                    Ok(sent) => rest = &rest[sent..],
                    // The interface's queue is full.
                    Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                        std::thread::yield_now();
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => Err(error).doing(|| "sending frames".into())?,
                }
            }
        }
        Ok(())
    }
}
