//! The memory of frames, in chunks that are lent to sockets.

use super::Frame;
use memmap2::{MmapMut, MmapRaw};
use std::io;
use std::sync::Arc;

/// Bytes of a chunk. The kernel keeps 256 of them free in front of a frame that it receives, so
/// frames of up to 1,792 bytes fit.
pub const CHUNK: usize = 2048;

/// Whose a chunk is: the port of this number's, or one of these.
const FREE: u16 = u16::MAX;
const HELD: u16 = u16::MAX - 1;

/// The most ports.
pub(super) const MOST_PORTS: usize = HELD as usize;

/// The memory of all frames, which the kernel knows as one.
pub(super) struct Area(MmapRaw);

impl Area {
    pub(super) fn new(chunks: usize) -> io::Result<Self> {
        Ok(Self(MmapRaw::from(MmapMut::map_anon(chunks * CHUNK)?)))
    }

    /// How the kernel is told of it.
    pub(super) fn registration(&self) -> libc::xdp_umem_reg {
        libc::xdp_umem_reg {
            addr: self.0.as_ptr() as u64,
            len: self.0.len() as u64,
            chunk_size: CHUNK as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        }
    }
}

/// A part of it, which nobody else in this process touches. Addresses of frames are counted from its begin.
pub(super) struct Umem {
    area: Arc<Area>,
    /// Where it begins in the area.
    first: u64,
    /// Numbers of free chunks.
    free: Vec<u32>,
    /// Whose each chunk is. What a ring gives back is checked against it, so that no chunk has two
    /// owners, whatever the rings say.
    owners: Vec<u16>,
}

impl Umem {
    /// Divides an area into parts of so many chunks.
    ///
    /// # Panics
    /// If the area is smaller.
    pub(super) fn divide(area: &Arc<Area>, parts: usize, chunks: u32) -> Vec<Self> {
        let bytes = chunks as usize * CHUNK;
        assert!(area.0.len() >= parts * bytes, "{parts} parts of {bytes} bytes");
        let part = |number: usize| Self {
            area: Arc::clone(area),
            first: (number * bytes) as u64,
            free: (0..chunks).rev().collect(),
            owners: vec![FREE; chunks as usize],
        };
        (0..parts).map(part).collect()
    }

    /// Takes a free chunk for a port's fill ring: its address.
    pub(super) fn lend(&mut self, port: usize) -> Option<u64> {
        let chunk = self.free.pop()?;
        self.owners[chunk as usize] = port as u16;
        Some(self.first + u64::from(chunk) * CHUNK as u64)
    }

    /// A frame that a port's rx ring gave to us, or that its tx ring gave back. `None` if the
    /// descriptor is not within one chunk of the port.
    pub(super) fn take(&mut self, port: usize, descriptor: &libc::xdp_desc) -> Option<Frame> {
        let offset = descriptor.addr as usize % CHUNK;
        let address = descriptor.addr.checked_sub(self.first)?;
        if offset + descriptor.len as usize > CHUNK || !self.pass(port, address, HELD) {
            return None;
        }
        let port = port as u16;
        Some(Frame { address, length: descriptor.len, port })
    }

    /// Gives a frame to a port's tx ring.
    pub(super) fn give(&mut self, port: usize, frame: Frame) -> libc::xdp_desc {
        self.check(&frame);
        self.owners[frame.chunk()] = port as u16;
        libc::xdp_desc { addr: self.first + frame.address, len: frame.length, options: 0 }
    }

    /// A chunk that a port's ring is done with. False if it was not the port's.
    pub(super) fn done(&mut self, port: usize, address: u64) -> bool {
        let Some(address) = address.checked_sub(self.first) else { return false };
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
            let start = self.area.0.as_ptr().add((self.first + frame.address) as usize);
            std::slice::from_raw_parts(start, frame.length as usize)
        }
    }

    /// All of this part. Of chunks that are in rings nothing can be relied on: the kernel writes to
    /// them.
    pub(super) fn all_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is there for as long as `self`, and `divide` has seen that the part is within
        // it. No other part has any of it, and nothing else in this process has a reference into it while
        // this one lives. The kernel writes to chunks that are in rings as a device does; their bytes are
        // plain numbers, of which any are valid.
        unsafe {
            let start = self.area.0.as_mut_ptr().add(self.first as usize);
            std::slice::from_raw_parts_mut(start, self.memory_bytes())
        }
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

    /// Bytes of this part.
    pub(super) fn memory_bytes(&self) -> usize {
        self.owners.len() * CHUNK
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn parts_have_nothing_in_common() {
        let area = Arc::new(Area::new(3 * 8).unwrap());
        let mut parts = Umem::divide(&area, 3, 8);
        let mut all = HashSet::new();
        for part in &mut parts {
            while let Some(address) = part.lend(0) {
                assert!(all.insert(address) && address < 24 * CHUNK as u64, "{address} again");
            }
        }
        assert_eq!(all.len(), 24);
        // What a frame of each has in its first byte is its own.
        let frame =
            |part: &mut Umem, addr| part.take(0, &libc::xdp_desc { addr, len: 64, options: 0 });
        let mut frames = Vec::new();
        for (number, part) in parts.iter_mut().enumerate() {
            let addr = ((number * 8 + 3) * CHUNK + 256) as u64;
            let found = frame(part, addr).expect("it was lent");
            assert_eq!(found.at(), 3 * CHUNK + 256, "counted from the part's begin");
            part.all_mut()[found.at()] = number as u8 + 1;
            assert_eq!(part.memory_bytes(), 8 * CHUNK);
            frames.push((addr, found));
        }
        for ((number, part), (addr, found)) in parts.iter_mut().enumerate().zip(frames) {
            assert_eq!(part.bytes(&found)[0], number as u8 + 1);
            assert_eq!(part.give(0, found).addr, addr, "the kernel counts from the area's begin");
            assert!(part.done(0, addr) && !part.done(0, addr), "once");
        }
        // Chunks of the others are none of it, whatever a ring says.
        for (part, others) in [(0, [8, 16, 24]), (1, [0, 16, 23]), (2, [0, 8, 24])] {
            for other in others {
                let addr = other * CHUNK as u64;
                assert!(frame(&mut parts[part], addr).is_none(), "{other} of {part}");
                assert!(!parts[part].done(0, addr), "{other} of {part}");
            }
        }
    }
}
