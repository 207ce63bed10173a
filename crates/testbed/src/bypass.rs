//! Somebody else's AF_XDP socket: datagrams to a port come to it past the network stack, by an XDP program that is
//! attached nowhere and pinned, for whoever has the interface to call.
//!
//! The program is written as instructions, so that it needs neither a compiler nor an object file.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use libbpf_rs::libbpf_sys;
use nix::net::if_::if_nametoindex;

use crate::error::{Doing, Result};
use crate::netns::NetNs;
use crate::xdp::{HAS_FRAGS, Pinned, load_with, put};

/// Chunks of memory, each for a frame, and entries of each ring.
const CHUNKS: u32 = 64;
const CHUNK: usize = 2048;
/// Where a datagram of IPv4 without options begins in its frame.
const PAYLOAD: usize = 14 + 20 + 8;

/// The socket, at the first queue of an interface, and its program.
pub struct Bypass {
    rx: Ring,
    fill: Ring,
    _socket: OwnedFd,
    // What the kernel writes into: it goes when the socket has.
    memory: Mapping,
    _sockets: OwnedFd,
    _program: Pinned,
}

impl Bypass {
    /// Opens it for datagrams of IPv4 to a port, and pins the program at `path` in a BPF file system.
    ///
    /// # Errors
    /// If the kernel refuses any of it: another socket has the queue, or there is something at the path.
    pub fn open(netns: &NetNs, interface: &str, port: u16, path: &Path) -> Result<Self> {
        let what = || format!("opening an AF_XDP socket at {interface} in {}", netns.name());
        let socket = netns.enter(|| open(interface))?.doing(what)?;
        let (socket, [rx, fill], memory) = socket.map_rings().doing(what)?;
        let sockets = sockets_with(&socket).doing(|| "putting a socket into an XSKMAP".into())?;
        let pin = || Pinned::at(path, &load_with(&to_port(port, &sockets), c"bypass", HAS_FRAGS)?);
        let program = pin().doing(|| format!("pinning a program at {}", path.display()))?;
        Ok(Self { rx, fill, _socket: socket, memory, _sockets: sockets, _program: program })
    }

    /// What the datagrams carry that have come since the last time.
    pub fn take(&mut self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while let Some(frame) = self.rx.pop() {
            let (at, length) = (frame.addr as usize, frame.len as usize);
            all.push(self.memory.bytes(at + PAYLOAD, length.saturating_sub(PAYLOAD)).to_vec());
            self.fill.push((at / CHUNK * CHUNK) as u64);
        }
        all
    }
}

/// A socket that is bound, and not mapped yet.
struct Bound {
    socket: OwnedFd,
    memory: Mapping,
}

/// Opens a socket in the namespace of the calling thread.
fn open(interface: &str) -> io::Result<Bound> {
    // SAFETY: a plain system call.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let memory = Mapping::new(CHUNKS as usize * CHUNK, None, 0)?;
    let registration = libc::xdp_umem_reg {
        addr: memory.at as u64,
        len: memory.length as u64,
        chunk_size: CHUNK as u32,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    set(&socket, libc::XDP_UMEM_REG, &registration)?;
    // Without one for what was sent the kernel binds none.
    for ring in [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING] {
        set(&socket, ring, &CHUNKS)?;
    }
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: libc::XDP_COPY,
        sxdp_ifindex: if_nametoindex(interface)?,
        sxdp_queue_id: 0,
        sxdp_shared_umem_fd: 0,
    };
    // SAFETY: the address outlives the call, and its size is right.
    let done = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_xdp>() as libc::socklen_t,
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(Bound { socket, memory }) }
}

impl Bound {
    /// Gives the kernel all chunks, in the ring for that, and maps the one in which it says what has come.
    fn map_rings(self) -> io::Result<(OwnedFd, [Ring; 2], Mapping)> {
        let Self { socket, memory } = self;
        // SAFETY: the structure is plain numbers, for which zeros are valid.
        let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
        let mut size = size_of::<libc::xdp_mmap_offsets>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `size` bytes into the structure.
        let done = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_XDP,
                libc::XDP_MMAP_OFFSETS,
                (&raw mut offsets).cast(),
                &raw mut size,
            )
        };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        let entry = size_of::<libc::xdp_desc>();
        let rx = Ring::map(&socket, &offsets.rx, libc::XDP_PGOFF_RX_RING as u64, entry)?;
        let page = libc::XDP_UMEM_PGOFF_FILL_RING;
        let fill = Ring::map(&socket, &offsets.fr, page, size_of::<u64>())?;
        for chunk in 0..u64::from(CHUNKS) {
            fill.push(chunk * CHUNK as u64);
        }
        Ok((socket, [rx, fill], memory))
    }
}

/// `T` must be what the option takes.
fn set<T>(socket: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the value outlives the call, and its size is given.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            option,
            ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A map of the kernel's with the socket in its first place.
fn sockets_with(socket: &OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: the name is NUL-terminated, and no options are given.
    let fd = unsafe {
        libbpf_sys::bpf_map_create(
            libbpf_sys::BPF_MAP_TYPE_XSKMAP,
            c"sockets".as_ptr(),
            4,
            4,
            1,
            ptr::null(),
        )
    };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the call returned a new descriptor that nobody else owns.
    let map = unsafe { OwnedFd::from_raw_fd(fd) };
    let (key, value) = (0u32, socket.as_raw_fd());
    // SAFETY: key and value have the map's sizes and outlive the call.
    let done = unsafe {
        libbpf_sys::bpf_map_update_elem(
            map.as_raw_fd(),
            (&raw const key).cast(),
            (&raw const value).cast(),
            0,
        )
    };
    if done < 0 { Err(io::Error::from_raw_os_error(-done)) } else { Ok(map) }
}

/// `if (a datagram of IPv4 to this port) redirect to the socket of its queue, or pass; pass`.
fn to_port(port: u16, sockets: &OwnedFd) -> Vec<libbpf_sys::bpf_insn> {
    use libbpf_sys::{
        BPF_ADD, BPF_ALU64, BPF_B, BPF_CALL, BPF_DW, BPF_EXIT, BPF_FUNC_redirect_map, BPF_H,
        BPF_IMM, BPF_JGT, BPF_JMP, BPF_JNE, BPF_K, BPF_LD, BPF_LDX, BPF_MEM, BPF_MOV,
        BPF_PSEUDO_MAP_FD, BPF_W, BPF_X, XDP_PASS,
    };
    /// Offset of the queue's number in `struct xdp_md`.
    const QUEUE: i16 = 16;
    /// The instruction that passes.
    const PASS: i16 = 20;
    let load =
        |size: u32, to: u8, from: u8, at: i16| put(BPF_LDX | size | BPF_MEM, to, from, at, 0);
    let number = |to: u8, value: u32| put(BPF_ALU64 | BPF_MOV | BPF_K, to, 0, 0, value);
    let copy = |to: u8, from: u8| put(BPF_ALU64 | BPF_MOV | BPF_X, to, from, 0, 0);
    // `here` is the place of the jump itself.
    let unless =
        |here: i16, value: u32| put(BPF_JMP | BPF_JNE | BPF_K, 5, 0, PASS - here - 1, value);
    let exit = || put(BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
    vec![
        copy(6, 1),
        load(BPF_W, 2, 1, 0),
        load(BPF_W, 3, 1, 4),
        copy(4, 2),
        put(BPF_ALU64 | BPF_ADD | BPF_K, 4, 0, 0, PAYLOAD as u32),
        put(BPF_JMP | BPF_JGT | BPF_X, 4, 3, PASS - 6, 0),
        load(BPF_H, 5, 2, 12),
        unless(7, u16::to_be(0x0800).into()),
        load(BPF_B, 5, 2, 14),
        unless(9, 0x45),
        load(BPF_B, 5, 2, 23),
        unless(11, libc::IPPROTO_UDP as u32),
        load(BPF_H, 5, 2, 36),
        unless(13, u16::to_be(port).into()),
        load(BPF_W, 2, 6, QUEUE),
        put(BPF_LD | BPF_IMM | BPF_DW, 1, BPF_PSEUDO_MAP_FD as u8, 0, sockets.as_raw_fd() as u32),
        put(0, 0, 0, 0, 0),
        number(3, XDP_PASS),
        put(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_redirect_map),
        exit(),
        number(0, XDP_PASS),
        exit(),
    ]
}

/// Memory that was mapped.
struct Mapping {
    at: *mut u8,
    length: usize,
}

// SAFETY: whoever has it has it alone, and goes by it from one thread at a time.
unsafe impl Send for Mapping {}

impl Mapping {
    /// A page of a socket's, or memory of its own.
    fn new(length: usize, socket: Option<&OwnedFd>, page: u64) -> io::Result<Self> {
        let (fd, flags) = match socket {
            Some(socket) => (socket.as_raw_fd(), libc::MAP_SHARED | libc::MAP_POPULATE),
            None => (-1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS),
        };
        // SAFETY: the kernel chooses a place where nothing is.
        let at = unsafe {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(ptr::null_mut(), length, rights, flags, fd, page as libc::off_t)
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { at: at.cast(), length })
    }

    /// These bytes of it.
    fn bytes(&self, at: usize, length: usize) -> &[u8] {
        assert!(at.checked_add(length).is_some_and(|end| end <= self.length), "{length} at {at}");
        // SAFETY: they are within the mapping, and the kernel writes nothing into a chunk that it has handed over,
        // until it is given back.
        unsafe { std::slice::from_raw_parts(self.at.add(at), length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `new`, and whoever has borrowed from it is gone.
        unsafe { libc::munmap(self.at.cast(), self.length) };
    }
}

/// A ring of so many entries as there are chunks.
struct Ring {
    memory: Mapping,
    producer: usize,
    consumer: usize,
    entries: usize,
}

impl Ring {
    fn map(
        socket: &OwnedFd,
        offsets: &libc::xdp_ring_offset,
        page: u64,
        entry: usize,
    ) -> io::Result<Self> {
        let [producer, consumer, entries] =
            [offsets.producer, offsets.consumer, offsets.desc].map(|at| at as usize);
        let memory = Mapping::new(entries + CHUNKS as usize * entry, Some(socket), page)?;
        assert!(producer.max(consumer) + 4 <= memory.length, "the kernel's offsets of a ring");
        Ok(Self { memory, producer, consumer, entries })
    }

    fn index(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `map` has seen that it is within the mapping; the kernel aligns it, and goes by it atomically.
        unsafe { AtomicU32::from_ptr(self.memory.at.add(at).cast()) }
    }

    /// Where an entry stands.
    fn place<T>(&self, index: u32) -> *mut T {
        // SAFETY: the mapping has room for so many entries behind the offset.
        unsafe { self.memory.at.add(self.entries).cast::<T>().add((index % CHUNKS) as usize) }
    }

    /// In the ring of chunks for the kernel: gives it one. There is room for all that there are.
    fn push(&self, chunk: u64) {
        let index = self.index(self.producer).load(Ordering::Relaxed);
        // SAFETY: the place is within the mapping, and the kernel reads it when the index has gone on.
        unsafe { self.place::<u64>(index).write(chunk) };
        self.index(self.producer).store(index.wrapping_add(1), Ordering::Release);
    }

    /// In the ring of frames from the kernel: takes one that has come.
    fn pop(&self) -> Option<libc::xdp_desc> {
        let index = self.index(self.consumer).load(Ordering::Relaxed);
        if self.index(self.producer).load(Ordering::Acquire) == index {
            return None;
        }
        // SAFETY: the place is within the mapping, and the kernel has written it before the index went on.
        let entry = unsafe { self.place::<libc::xdp_desc>(index).read() };
        self.index(self.consumer).store(index.wrapping_add(1), Ordering::Release);
        Some(entry)
    }
}
