//! Packet sockets: whole frames out and in as they are, past the network stack, from the destination
//! MAC on and without FCS (packet(7)).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::net::if_::if_nametoindex;

use crate::error::{Doing, Result};

/// Bytes of received frames that may wait for their reader.
const BUFFER: libc::c_int = 64 << 20;
/// Frames that one call sends at most.
const BURST: usize = 64;
/// Where a frame's outermost tag stands.
const TAG_AT: usize = 12;
/// How long a full interface is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Of [`open`]: receives nothing.
pub const NOTHING: u16 = 0;
/// Of [`open`]: receives frames of any type, and what the machine sends itself.
pub const EVERYTHING: u16 = libc::ETH_P_ALL as u16;

/// Opens a packet socket in the calling thread's namespace, for frames of one Ethernet type: at one
/// interface, by name, or at all. To send by a socket of all, an address must name the interface.
///
/// # Errors
/// If there is no such interface, or the process may not (it needs CAP_NET_RAW).
pub fn open(ethertype: u16, interface: Option<&str>) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: a system call without pointers. Of no protocol it receives nothing until it is
    // bound to its interface.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: a structure of integers, for which zeros are valid: any interface.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as libc::c_ushort;
    address.sll_protocol = ethertype.to_be();
    if let Some(name) = interface {
        address.sll_ifindex = if_nametoindex(name)? as libc::c_int;
    }
    let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is alive and has the size that is given.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) };
    if bound == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}

/// Sends frames by a socket that is bound to an interface, in one system call. Returns how many went
/// out.
///
/// # Errors
/// What the system says to the first frame.
pub fn send_burst(socket: &OwnedFd, frames: &[Vec<u8>]) -> io::Result<usize> {
    let mut parts: Vec<libc::iovec> = frames
        .iter()
        .map(|frame| libc::iovec {
            iov_base: frame.as_ptr().cast_mut().cast(),
            iov_len: frame.len(),
        })
        .collect();
    let mut messages: Vec<libc::mmsghdr> = parts
        .iter_mut()
        .map(|part| {
            // SAFETY: a structure of integers and pointers, for which zeros are valid.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            message
        })
        .collect();
    // SAFETY: messages, their parts and the frames are alive, and the number is right; the kernel
    // only reads the frames.
    let sent = unsafe {
        let count = messages.len() as libc::c_uint;
        libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), count, 0)
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// A socket for the frames of an interface. What other sockets send there is not received.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
    /// A socket on an interface of the calling thread's namespace, whatever addresses its frames
    /// have. Frames that carry IPv4 from 11.0.0.0/8 are not received: that is where traffic comes
    /// from that nobody wants to see again.
    ///
    /// # Errors
    /// If there is no such interface, or the process may not (it needs root).
    pub fn open(interface: &str) -> Result<Self> {
        let socket = Self::bound(interface, EVERYTHING);
        let socket = socket.doing(|| format!("opening a packet socket on {interface}"))?;
        socket.filter().doing(|| format!("setting the packet socket on {interface} up"))?;
        Ok(socket)
    }

    /// A socket that only sends, past the interface's queueing discipline.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn sender(interface: &str) -> Result<Self> {
        let open = || -> io::Result<Self> {
            let socket = Self::bound(interface, NOTHING)?;
            socket.option(libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1)?;
            Ok(socket)
        };
        open().doing(|| format!("opening a packet socket on {interface}"))
    }

    fn bound(interface: &str, ethertype: u16) -> io::Result<Self> {
        Ok(Self { fd: open(ethertype, Some(interface))? })
    }

    fn filter(&self) -> io::Result<()> {
        let line = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        // Ethertype IPv4 and a source of 11.*: no byte of it; else all.
        let mut lines = [
            line(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 0, 0, 12),
            line(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 3, libc::ETH_P_IP as u32),
            line(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, 26),
            line(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, 11),
            line(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
            line(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        ];
        let program =
            libc::sock_fprog { len: lines.len() as libc::c_ushort, filter: lines.as_mut_ptr() };
        self.option(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
        self.option(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1)?;
        self.option(libc::SOL_PACKET, libc::PACKET_AUXDATA, &1)?;
        self.option(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &BUFFER)
    }

    fn option<T>(&self, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
        let size = size_of::<T>() as libc::socklen_t;
        // SAFETY: the value is alive, and what its pointers point at, and has the size given.
        let set = unsafe {
            let value = std::ptr::from_ref(value).cast();
            libc::setsockopt(self.fd.as_raw_fd(), level, name, value, size)
        };
        if set != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Sends a frame, and waits for room where there is none.
    ///
    /// # Errors
    /// What the system says.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        let late = Instant::now() + PATIENCE;
        loop {
            // SAFETY: the frame is alive and has the length given.
            let sent =
                unsafe { libc::send(self.fd.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
            if sent >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            // The interface's queue is full.
            if error.raw_os_error() != Some(libc::ENOBUFS) || Instant::now() > late {
                return Err(error);
            }
            std::thread::yield_now();
        }
    }

    /// Sends frames in as few system calls as it takes. Returns how many went out: fewer than there
    /// are if there was no room for one.
    ///
    /// # Errors
    /// What the system says to the first frame of a call.
    pub fn send_all(&self, frames: &[Vec<u8>]) -> io::Result<usize> {
        let mut sent = 0;
        for burst in frames.chunks(BURST) {
            let went = send_burst(&self.fd, burst)?;
            sent += went;
            if went < burst.len() {
                break;
            }
        }
        Ok(sent)
    }

    /// The next frame, cut off where the buffer ends; `None` if none comes in that time. The kernel has taken a
    /// frame's outermost tag out of it: see [`receive_whole`](Self::receive_whole).
    ///
    /// # Errors
    /// What the system says; the interface is gone, for example.
    pub fn receive<'a>(
        &self,
        buffer: &'a mut [u8],
        wait: Duration,
    ) -> io::Result<Option<&'a [u8]>> {
        Ok(self.next(buffer, wait)?.map(|(length, _)| &buffer[..length]))
    }

    /// The same, as the frame came over the wire: with its outermost tag.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_whole(&self, buffer: &mut [u8], wait: Duration) -> io::Result<Option<Vec<u8>>> {
        Ok(self.next(buffer, wait)?.map(|(length, tag)| {
            let mut frame = buffer[..length].to_vec();
            if let Some(tag) = tag {
                frame.splice(TAG_AT..TAG_AT, tag);
            }
            frame
        }))
    }

    /// The length of the next frame, and the tag that was taken out of it.
    fn next(
        &self,
        buffer: &mut [u8],
        wait: Duration,
    ) -> io::Result<Option<(usize, Option<[u8; 4]>)>> {
        let fd = self.fd.as_raw_fd();
        for last in [false, true] {
            let mut part =
                libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            let mut beside = [0_u64; 16];
            // SAFETY: a structure of integers and pointers, for which zeros are valid.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
            message.msg_control = beside.as_mut_ptr().cast();
            message.msg_controllen = size_of_val(&beside) as _;
            // SAFETY: the buffers are alive and have the lengths given.
            let got = unsafe { libc::recvmsg(fd, &raw mut message, libc::MSG_DONTWAIT) };
            if got >= 0 {
                return Ok(Some((got as usize, tag_of(&message))));
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::WouldBlock {
                return Err(error);
            }
            if last {
                break;
            }
            let mut waiting = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let time = libc::timespec {
                tv_sec: wait.as_secs() as libc::time_t,
                tv_nsec: wait.subsec_nanos().into(),
            };
            // SAFETY: one structure of its kind, and a time, both alive; no signals.
            unsafe { libc::ppoll(&raw mut waiting, 1, &raw const time, std::ptr::null()) };
        }
        Ok(None)
    }
}

/// The tag that the kernel has taken out of a frame, which it tells beside it.
fn tag_of(message: &libc::msghdr) -> Option<[u8; 4]> {
    // SAFETY: a message that the kernel has filled in, whose buffers are alive.
    let first = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: null, or a header in the message's buffer, which is aligned for one.
    let head = unsafe { first.as_ref() }?;
    if (head.cmsg_level, head.cmsg_type) != (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
        return None;
    }
    // SAFETY: behind a header of this type the kernel has put such a structure; it may stand anywhere.
    let told: libc::tpacket_auxdata =
        unsafe { std::ptr::read_unaligned(libc::CMSG_DATA(first).cast()) };
    if told.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let [kind, tag] = [told.tp_vlan_tpid, told.tp_vlan_tci].map(u16::to_be_bytes);
    Some([kind[0], kind[1], tag[0], tag[1]])
}
