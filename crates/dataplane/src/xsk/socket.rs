//! System calls of AF_XDP sockets.

use super::ring::Ring;
use super::umem::Area;
use crate::error::{Context, Error};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

/// An option of Linux 6.17: how many frames one call sends; 32 if it is not set.
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;

/// Bytes of frames on their way that a socket may have.
const SEND_BUFFER: libc::c_int = 16 << 20;

/// How long a queue that is in use is asked for again.
const LET_GO: Duration = Duration::from_secs(2);

/// A socket with its rings, bound to a queue of an interface.
pub(super) struct Socket {
    // The rings go before the socket that they map.
    pub rx: Ring<libc::xdp_desc>,
    pub tx: Ring<libc::xdp_desc>,
    pub fill: Ring<u64>,
    pub completion: Ring<u64>,
    fd: OwnedFd,
}

/// What a socket's memory is.
pub(super) enum Memory<'a> {
    /// This, which the kernel does not know yet.
    Own(&'a Area),
    /// That of another socket that is bound.
    Of(&'a Socket),
}

impl Socket {
    /// Opens a socket in this thread's namespace with rings of so many entries. It copies frames:
    /// sockets that share memory have to agree, and only drivers of real devices can do without.
    pub(super) fn open(
        interface: u32,
        queue: u32,
        entries: u32,
        memory: Memory<'_>,
    ) -> Result<Self, Error> {
        let fd = new_socket().context(|| "open an AF_XDP socket".into())?;
        if let Memory::Own(area) = memory {
            let memory = area.registration();
            set(fd.as_fd(), libc::SOL_XDP, libc::XDP_UMEM_REG, &memory).context(|| {
                format!(
                    "register {} KB of memory with an AF_XDP socket (locked memory: `ulimit -l`)",
                    memory.len / 1024
                )
            })?;
        }
        for ring in [
            libc::XDP_UMEM_FILL_RING,
            libc::XDP_UMEM_COMPLETION_RING,
            libc::XDP_RX_RING,
            libc::XDP_TX_RING,
        ] {
            set(fd.as_fd(), libc::SOL_XDP, ring, &entries)
                .context(|| format!("make ring {ring} of an AF_XDP socket"))?;
        }
        // Both are a matter of speed; older kernels do not know the first.
        let _ = set(fd.as_fd(), libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &entries);
        let _ = set(fd.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER);
        let socket = Self::map(fd, entries).context(|| "map rings of an AF_XDP socket".into())?;
        let address = match memory {
            // The sockets that share its memory are woken as this one says.
            Memory::Own(_) => {
                address(interface, queue, libc::XDP_COPY | libc::XDP_USE_NEED_WAKEUP, None)
            }
            Memory::Of(other) => address(interface, queue, libc::XDP_SHARED_UMEM, Some(other)),
        };
        bind_patiently(socket.fd(), &address).context(|| {
            let name = super::device::name_of(interface);
            let what = match memory {
                Memory::Own(_) => {
                    "there is one memory for AF_XDP in a network namespace, which a \
                                   plane or a forwarder has while it runs"
                }
                Memory::Of(_) => "one socket can have it; `ss --xdp` shows whose it is",
            };
            format!("bind an AF_XDP socket to queue {queue} of {name} ({what})")
        })?;
        Ok(socket)
    }

    fn map(fd: OwnedFd, entries: u32) -> io::Result<Self> {
        let offsets: libc::xdp_mmap_offsets = get(fd.as_fd(), libc::XDP_MMAP_OFFSETS)?;
        let socket = fd.as_fd();
        Ok(Self {
            rx: Ring::map(socket, &offsets.rx, libc::XDP_PGOFF_RX_RING as u64, entries)?,
            tx: Ring::map(socket, &offsets.tx, libc::XDP_PGOFF_TX_RING as u64, entries)?,
            fill: Ring::map(socket, &offsets.fr, libc::XDP_UMEM_PGOFF_FILL_RING, entries)?,
            completion: Ring::map(
                socket,
                &offsets.cr,
                libc::XDP_UMEM_PGOFF_COMPLETION_RING,
                entries,
            )?,
            fd,
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Tells the kernel that the tx ring has entries. It sends them within the call.
    pub(super) fn kick(&self) -> io::Result<()> {
        // SAFETY: no data and no address are passed.
        let sent = unsafe {
            libc::sendto(
                self.fd.as_raw_fd(),
                std::ptr::null(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null(),
                0,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// What the kernel counted.
    pub(super) fn statistics(&self) -> io::Result<libc::xdp_statistics> {
        get(self.fd(), libc::XDP_STATISTICS)
    }
}

fn new_socket() -> io::Result<OwnedFd> {
    // SAFETY: a plain system call.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn address(interface: u32, queue: u32, flags: u16, shared: Option<&Socket>) -> libc::sockaddr_xdp {
    libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: interface,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: shared.map_or(0, |socket| socket.fd.as_raw_fd() as u32),
    }
}

fn bind(socket: BorrowedFd<'_>, address: &libc::sockaddr_xdp) -> io::Result<()> {
    // SAFETY: the address outlives the call, and its size is right.
    let done = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            std::ptr::from_ref(address).cast(),
            size_of::<libc::sockaddr_xdp>() as libc::socklen_t,
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The kernel lets go of a queue a little after its last socket was closed, when a worker has run.
fn bind_patiently(socket: BorrowedFd<'_>, address: &libc::sockaddr_xdp) -> io::Result<()> {
    let end = Instant::now() + LET_GO;
    loop {
        match bind(socket, address) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < end => {
                thread::sleep(Duration::from_millis(1));
            }
            done => return done,
        }
    }
}

/// `T` must be what the option takes.
fn set<T>(socket: BorrowedFd<'_>, level: i32, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: the value outlives the call, and its size is given.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Structures of plain numbers that the kernel fills.
trait Filled {}
impl Filled for libc::xdp_mmap_offsets {}
impl Filled for libc::xdp_statistics {}

fn get<T: Filled>(socket: BorrowedFd<'_>, option: i32) -> io::Result<T> {
    // SAFETY: these structures are plain numbers, for which zeros are valid.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut size = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `size` bytes into the value.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            option,
            (&raw mut value).cast(),
            &raw mut size,
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    if size as usize != size_of::<T>() {
        return Err(io::Error::other("this kernel's AF_XDP is older than Linux 5.9"));
    }
    Ok(value)
}
