//! A packet socket over all interfaces of a namespace: bursts in and out (AF_PACKET, recvmmsg and
//! sendmmsg).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Frames in a burst.
pub const BURST: usize = 64;

/// Bytes kept of a frame; an Ethernet frame has 1,514.
const FRAME: usize = 2048;

/// Bytes that the kernel keeps for a node that is late.
const BUFFER: libc::c_int = 8 << 20;

pub struct PacketSocket {
    fd: OwnedFd,
    buffers: Vec<[u8; FRAME]>,
    /// Bytes of each frame of the last burst.
    lengths: Vec<usize>,
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

impl PacketSocket {
    /// Opens a socket in the namespace of this thread. It waits for frames as long as `patience`.
    pub fn open(patience: Duration) -> io::Result<Self> {
        let protocol = libc::c_int::from((libc::ETH_P_ALL as u16).to_be());
        // SAFETY: a plain system call.
        let fd = checked(unsafe {
            libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol)
        })?;
        // SAFETY: the call returned a new descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let socket = Self { fd, buffers: vec![[0; FRAME]; BURST], lengths: vec![0; BURST] };
        // Frames that this socket sends are not to come back by it.
        socket.set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1i32)?;
        socket.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &BUFFER)?;
        let wait = libc::timeval {
            tv_sec: patience.as_secs() as libc::time_t,
            tv_usec: libc::suseconds_t::from(patience.subsec_micros()),
        };
        socket.set(libc::SOL_SOCKET, libc::SO_RCVTIMEO, &wait)?;
        Ok(socket)
    }

    fn set<T>(&self, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
        let size = size_of::<T>() as libc::socklen_t;
        // SAFETY: the option's value outlives the call, and its size is right.
        checked(unsafe {
            let value = std::ptr::from_ref(value).cast();
            libc::setsockopt(self.fd.as_raw_fd(), level, name, value, size)
        })
        .map(drop)
    }

    /// Waits for a frame, and takes those that are there with it, at most [`BURST`].
    pub fn receive(&mut self) -> io::Result<usize> {
        let mut vectors: [libc::iovec; BURST] = std::array::from_fn(|at| libc::iovec {
            iov_base: self.buffers[at].as_mut_ptr().cast(),
            iov_len: FRAME,
        });
        let mut messages: [libc::mmsghdr; BURST] = std::array::from_fn(|at| {
            // SAFETY: a message header of zeros is one without address, data and control.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iov = &raw mut vectors[at];
            message.msg_hdr.msg_iovlen = 1;
            message
        });
        // SAFETY: headers, vectors and buffers all outlive the call, their lengths are
        // right, and nothing else refers to them meanwhile.
        let count = checked(unsafe {
            libc::recvmmsg(
                self.fd.as_raw_fd(),
                messages.as_mut_ptr(),
                BURST as libc::c_uint,
                libc::MSG_WAITFORONE,
                std::ptr::null_mut(),
            )
        })? as usize;
        for (length, message) in self.lengths.iter_mut().zip(&messages[..count]) {
            *length = (message.msg_len as usize).min(FRAME);
        }
        Ok(count)
    }

    /// Frame number `at` of the last burst.
    pub fn frame(&self, at: usize) -> &[u8] {
        &self.buffers[at][..self.lengths[at]]
    }

    /// Sends frames of the last burst through interfaces; returns how many the kernel took.
    pub fn send(&mut self, frames: &[(usize, i32)]) -> usize {
        let frames = &frames[..frames.len().min(BURST)];
        // SAFETY: an address of zeros is a valid one.
        let mut to: [libc::sockaddr_ll; BURST] = unsafe { std::mem::zeroed() };
        let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BURST];
        // SAFETY: a message header of zeros is one without address, data and control.
        let mut messages: [libc::mmsghdr; BURST] = unsafe { std::mem::zeroed() };
        for (slot, &(at, interface)) in frames.iter().enumerate() {
            to[slot].sll_family = libc::AF_PACKET as libc::c_ushort;
            to[slot].sll_ifindex = interface;
            vectors[slot] = libc::iovec {
                iov_base: self.buffers[at].as_mut_ptr().cast(),
                iov_len: self.lengths[at],
            };
            let header = &mut messages[slot].msg_hdr;
            header.msg_name = (&raw mut to[slot]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            header.msg_iov = &raw mut vectors[slot];
            header.msg_iovlen = 1;
        }
        let (mut done, mut taken) = (0, 0);
        while done < frames.len() {
            let rest = &mut messages[done..frames.len()];
            // SAFETY: as above; the kernel only reads what the headers point to.
            let sent = checked(unsafe {
                libc::sendmmsg(
                    self.fd.as_raw_fd(),
                    rest.as_mut_ptr(),
                    rest.len() as libc::c_uint,
                    0,
                )
            });
            match sent {
                Ok(sent) => {
                    done += sent as usize;
                    taken += sent as usize;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The first frame of the rest was refused: its interface has just gone, or is full.
                Err(_) => done += 1,
            }
        }
        taken
    }
}
