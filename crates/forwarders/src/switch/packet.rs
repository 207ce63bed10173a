//! Ports by one packet socket over all interfaces of a namespace: bursts in and out (AF_PACKET,
//! recvmmsg and sendmmsg).

use super::ports::{BURST, Drops, Left, NotSent, Ports, Reason};
use crate::Result;
use crate::error::Context;
use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;
use weir_testbed::packet;

/// Bytes kept of a frame; an Ethernet frame has 1,514.
const FRAME: usize = 2048;

/// Bytes that the kernel keeps for a node that is late.
const BUFFER: libc::c_int = 8 << 20;

/// Buffers that are kept for the next frames.
const SPARE: usize = 1024;

type Buffer = Box<[u8; FRAME]>;

/// A frame that was received.
pub struct PacketFrame {
    buffer: Buffer,
    length: usize,
}

pub struct PacketPorts {
    fd: OwnedFd,
    /// Where the next burst goes.
    next: Vec<Buffer>,
    spare: Vec<Buffer>,
    /// Interfaces by port.
    wires: Vec<Option<u32>>,
    queue: Vec<(PacketFrame, u32)>,
    drops: Drops,
    /// What the kernel dropped; it forgets the number when asked.
    overflow: Cell<u64>,
    patience: Duration,
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Whether an error of a packet socket is a matter of time: nothing came, or an interface went
/// down, which is said once and then forgotten.
fn passes(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        || matches!(error.raw_os_error(), Some(libc::ENETDOWN | libc::ENOBUFS))
}

/// Opens a packet socket for all frames that come in this thread's namespace.
fn packet_socket() -> io::Result<OwnedFd> {
    let fd = packet::open(packet::EVERYTHING, None)?;
    // Frames that this socket sends are not to come back by it.
    set(&fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1i32)?;
    set(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &BUFFER)?;
    Ok(fd)
}

/// `T` is what the option takes.
fn set<T>(fd: &OwnedFd, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    let size = size_of::<T>() as libc::socklen_t;
    // SAFETY: the option's value outlives the call, and its size is right.
    checked(unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), size)
    })
    .map(drop)
}

/// How long `recv` waits for a frame.
fn set_patience(fd: &OwnedFd, patience: Duration) -> io::Result<()> {
    let wait = libc::timeval {
        tv_sec: patience.as_secs() as libc::time_t,
        tv_usec: libc::suseconds_t::from(patience.subsec_micros()),
    };
    set(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &wait)
}

impl Ports for PacketPorts {
    type Frame = PacketFrame;

    fn open(ports: usize) -> Result<Self> {
        let fd = packet_socket().context("opening a packet socket")?;
        Ok(Self {
            fd,
            next: Vec::with_capacity(BURST),
            spare: Vec::new(),
            wires: vec![None; ports],
            queue: Vec::with_capacity(BURST),
            drops: Drops::default(),
            overflow: Cell::new(0),
            patience: Duration::ZERO,
        })
    }

    fn plug(&mut self, port: u16, interface: u32) -> Result<()> {
        self.wires[usize::from(port)] = Some(interface);
        Ok(())
    }

    fn pause(&mut self, port: u16) -> Result<()> {
        self.wires[usize::from(port)] = None;
        Ok(())
    }

    fn unplug(&mut self, port: u16) -> Left<PacketFrame> {
        self.wires[usize::from(port)] = None;
        // What came is in the socket's queue still, and what was to go has been given back.
        Left { unread: Vec::new(), unsent: Vec::new() }
    }

    fn receive(&mut self, patience: Duration, out: &mut Vec<PacketFrame>) -> Result<()> {
        while self.next.len() < BURST {
            self.next.push(self.spare.pop().unwrap_or_else(|| Box::new([0; FRAME])));
        }
        if patience != self.patience {
            set_patience(&self.fd, patience).context("setting a packet socket's patience")?;
            self.patience = patience;
        }
        let mut lengths = [0; BURST];
        let count = match self.receive_burst(&mut lengths) {
            Ok(count) => count,
            Err(error) if passes(&error) => 0,
            Err(error) => Err(error).context("receiving by a packet socket")?,
        };
        let filled = self.next.drain(..count).zip(lengths);
        out.extend(filled.map(|(buffer, length)| PacketFrame { buffer, length }));
        Ok(())
    }

    fn bytes<'a>(&'a self, frame: &'a PacketFrame) -> &'a [u8] {
        &frame.buffer[..frame.length]
    }

    fn send(&mut self, frame: PacketFrame, port: u16) -> Result<(), NotSent<PacketFrame>> {
        match self.wires.get(usize::from(port)) {
            Some(&Some(interface)) => {
                self.queue.push((frame, interface));
                Ok(())
            }
            _ => Err(NotSent::Unplugged(frame)),
        }
    }

    fn flush(&mut self) -> Result<Vec<PacketFrame>> {
        let mut back = Vec::new();
        let mut queue = std::mem::take(&mut self.queue);
        while !queue.is_empty() {
            let burst = queue.len().min(BURST);
            let (sent, error) = self.send_burst(&mut queue[..burst]);
            for (frame, _) in queue.drain(..sent) {
                self.free(frame);
            }
            // The first frame of the rest was refused.
            let Some(error) = error else { continue };
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            let (frame, _) = queue.remove(0);
            match error.raw_os_error() {
                Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => back.push(frame),
                Some(libc::ENOBUFS | libc::EAGAIN) => {
                    self.drops.count(Reason::DeviceFull, 1);
                    self.free(frame);
                }
                _ => {
                    self.drops.count(Reason::Refused, 1);
                    self.free(frame);
                }
            }
        }
        // Keeps the allocation.
        self.queue = queue;
        Ok(back)
    }

    fn free(&mut self, frame: PacketFrame) {
        if self.spare.len() < SPARE {
            self.spare.push(frame.buffer);
        }
    }

    fn drops(&self) -> Drops {
        self.overflow.set(self.overflow.get() + self.new_overflow().unwrap_or(0));
        let mut drops = self.drops;
        drops.count(Reason::RxFull, self.overflow.get());
        drops
    }

    fn group_frames(&self) -> u64 {
        0
    }

    fn memory(&self) -> usize {
        BUFFER as usize + (self.next.len() + self.spare.len()) * FRAME
    }
}

impl PacketPorts {
    /// A frame of these bytes, at most 2,048.
    pub fn copy(&mut self, bytes: &[u8]) -> PacketFrame {
        let mut buffer = self.spare.pop().unwrap_or_else(|| Box::new([0; FRAME]));
        buffer[..bytes.len()].copy_from_slice(bytes);
        PacketFrame { buffer, length: bytes.len() }
    }

    /// Waits for a frame, and takes those that are there with it, into `next`.
    fn receive_burst(&mut self, lengths: &mut [usize; BURST]) -> io::Result<usize> {
        let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BURST];
        // SAFETY: a message header of zeros is one without address, data and control.
        let mut messages: [libc::mmsghdr; BURST] = unsafe { std::mem::zeroed() };
        for ((vector, message), buffer) in vectors.iter_mut().zip(&mut messages).zip(&mut self.next)
        {
            *vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: FRAME };
            message.msg_hdr.msg_iov = vector;
            message.msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: headers, vectors and buffers outlive the call, which writes no more bytes to a
        // buffer than its vector says.
        let count = checked(unsafe {
            libc::recvmmsg(
                self.fd.as_raw_fd(),
                messages.as_mut_ptr(),
                self.next.len() as libc::c_uint,
                libc::MSG_WAITFORONE,
                std::ptr::null_mut(),
            )
        })? as usize;
        for (length, message) in lengths.iter_mut().zip(&messages[..count]) {
            *length = (message.msg_len as usize).min(FRAME);
        }
        Ok(count)
    }

    /// Sends frames through their interfaces; how many the kernel took, and why not all.
    fn send_burst(&self, frames: &mut [(PacketFrame, u32)]) -> (usize, Option<io::Error>) {
        // SAFETY: an address of zeros is a valid one.
        let mut to: [libc::sockaddr_ll; BURST] = unsafe { std::mem::zeroed() };
        let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BURST];
        // SAFETY: a message header of zeros is one without address, data and control.
        let mut messages: [libc::mmsghdr; BURST] = unsafe { std::mem::zeroed() };
        for (slot, (frame, interface)) in frames.iter_mut().enumerate() {
            to[slot].sll_family = libc::AF_PACKET as libc::c_ushort;
            to[slot].sll_ifindex = *interface as libc::c_int;
            vectors[slot] =
                libc::iovec { iov_base: frame.buffer.as_mut_ptr().cast(), iov_len: frame.length };
            let header = &mut messages[slot].msg_hdr;
            header.msg_name = (&raw mut to[slot]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            header.msg_iov = &raw mut vectors[slot];
            header.msg_iovlen = 1;
        }
        let mut sent = 0;
        while sent < frames.len() {
            let rest = &mut messages[sent..frames.len()];
            // SAFETY: as above; the kernel only reads what the headers point to.
            let done = checked(unsafe {
                libc::sendmmsg(
                    self.fd.as_raw_fd(),
                    rest.as_mut_ptr(),
                    rest.len() as libc::c_uint,
                    0,
                )
            });
            match done {
                Ok(done) => sent += done as usize,
                Err(error) => return (sent, Some(error)),
            }
        }
        (sent, None)
    }

    /// Frames that the kernel dropped since it was last asked.
    fn new_overflow(&self) -> io::Result<u64> {
        let mut counted = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut size = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `size` bytes into the structure.
        checked(unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut counted).cast(),
                &raw mut size,
            )
        })?;
        Ok(counted.tp_drops.into())
    }
}
