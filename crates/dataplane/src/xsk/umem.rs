//! The memory of frames, in chunks that are lent to sockets.

use super::Frame;
use memmap2::{MmapMut, MmapRaw};
use std::io;

/// Bytes of a chunk. The kernel keeps 256 of them free in front of a frame that it receives, so
/// frames of up to 1,792 bytes fit.
pub const CHUNK: usize = 2048;

/// Whose a chunk is: the port of this number's, or one of these.
const FREE: u16 = u16::MAX;
const HELD: u16 = u16::MAX - 1;

/// The most ports.
pub(super) const MOST_PORTS: usize = HELD as usize;

pub(super) struct Umem {
    memory: MmapRaw,
    /// Numbers of free chunks.
    free: Vec<u32>,
    /// Whose each chunk is. What a ring gives back is checked against it, so that no chunk has two
    /// owners, whatever the rings say.
    owners: Vec<u16>,
}

impl Umem {
    pub(super) fn new(chunks: u32) -> io::Result<Self> {
        let memory = MmapRaw::from(MmapMut::map_anon(chunks as usize * CHUNK)?);
        Ok(Self { memory, free: (0..chunks).rev().collect(), owners: vec![FREE; chunks as usize] })
    }

    /// How the kernel is told of it.
    pub(super) fn registration(&self) -> libc::xdp_umem_reg {
        libc::xdp_umem_reg {
            addr: self.memory.as_ptr() as u64,
            len: self.memory.len() as u64,
            chunk_size: CHUNK as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        }
    }

    /// Takes a free chunk for a port's fill ring: its address.
    pub(super) fn lend(&mut self, port: usize) -> Option<u64> {
        let chunk = self.free.pop()?;
        self.owners[chunk as usize] = port as u16;
        Some(u64::from(chunk) * CHUNK as u64)
    }

    /// A frame that a port's rx ring gave to us, or that its tx ring gave back. `None` if the
    /// descriptor is not within one chunk of the port.
    pub(super) fn take(&mut self, port: usize, descriptor: &libc::xdp_desc) -> Option<Frame> {
        let offset = descriptor.addr as usize % CHUNK;
        if offset + descriptor.len as usize > CHUNK || !self.pass(port, descriptor.addr, HELD) {
            return None;
        }
        let port = port as u16;
        Some(Frame { address: descriptor.addr, length: descriptor.len, port })
    }

    /// Gives a frame to a port's tx ring.
    pub(super) fn give(&mut self, port: usize, frame: Frame) -> libc::xdp_desc {
        self.check(&frame);
        self.owners[frame.chunk()] = port as u16;
        libc::xdp_desc { addr: frame.address, len: frame.length, options: 0 }
    }

    /// A chunk that a port's ring is done with. False if it was not the port's.
    pub(super) fn done(&mut self, port: usize, address: u64) -> bool {
        let port_had_it = self.pass(port, address, FREE);
        if port_had_it {
            self.free.push((address / CHUNK as u64) as u32);
        }
        port_had_it
    }

    fn pass(&mut self, port: usize, address: u64, to: u16) -> bool {
        let owner = self.owners.get_mut((address / CHUNK as u64) as usize);
        let Some(owner) = owner.filter(|owner| usize::from(**owner) == port) else { return false };
        *owner = to;
        true
    }

    /// Frees a frame's chunk.
    pub(super) fn free(&mut self, frame: Frame) {
        self.check(&frame);
        self.owners[frame.chunk()] = FREE;
        self.free.push(frame.chunk() as u32);
    }

    /// Frees all chunks that a port still has, when its socket is closed.
    pub(super) fn free_all_of(&mut self, port: usize) {
        let owners = self.owners.iter_mut().enumerate();
        for (chunk, owner) in owners.filter(|(_, owner)| usize::from(**owner) == port) {
            *owner = FREE;
            self.free.push(chunk as u32);
        }
    }

    /// The bytes of a frame.
    pub(super) fn bytes(&self, frame: &Frame) -> &[u8] {
        self.check(frame);
        // SAFETY: the frame lies within one chunk (`take`), and the chunk is in no ring (`check`),
        // so the kernel does not touch it. Giving it to a ring needs `&mut self`.
        unsafe {
            let start = self.memory.as_ptr().add(frame.address as usize);
            std::slice::from_raw_parts(start, frame.length as usize)
        }
    }

    /// All of the memory. Of chunks that are in rings nothing can be relied on: the kernel writes to
    /// them.
    pub(super) fn all_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is ours for as long as `self`, and nothing else in this process has a
        // reference into it while this one lives. The kernel writes to chunks that are in rings as a
        // device does; their bytes are plain numbers, of which any are valid.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_mut_ptr(), self.memory.len()) }
    }

    /// Moves a frame within its chunk. False if it would not fit there.
    pub(super) fn reshape(&self, frame: &mut Frame, at: usize, length: usize) -> bool {
        let fits = at / CHUNK == frame.chunk() && at % CHUNK + length <= CHUNK && length > 0;
        if fits {
            (frame.address, frame.length) = (at as u64, length as u32);
        }
        fits
    }

    /// A frame of another memory would stand for a chunk that is in a ring.
    fn check(&self, frame: &Frame) {
        assert_eq!(self.owners.get(frame.chunk()), Some(&HELD), "a frame of another memory");
    }

    /// Chunks that are free, and that are held as frames.
    pub(super) fn counts(&self) -> (usize, usize) {
        let held = self.owners.iter().filter(|&&owner| owner == HELD).count();
        (self.free.len(), held)
    }

    /// Bytes of memory.
    pub(super) fn memory_bytes(&self) -> usize {
        self.memory.len()
    }
}
