//! A BPF array map as memory: what the packets read can be filled without a system call each.

use crate::abi::Plain;
use crate::error::{Context, Error};
use memmap2::{MmapMut, MmapOptions};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The memory of an array map made with BPF_F_MMAPABLE.
pub(crate) struct Mapped {
    memory: MmapMut,
}

/// The same of a large map, a part at a time: what is mapped counts as this process's memory, whether
/// it is read or not.
pub(crate) struct Parted {
    map: OwnedFd,
    bytes: usize,
}

/// A part of a map's memory, mapped while this lives.
pub(crate) struct Part {
    memory: Mapped,
    /// Where it begins in the mapping, which begins at a page.
    from: usize,
    length: usize,
}

impl Mapped {
    /// Maps `bytes` bytes of a map.
    pub fn new(map: &impl AsFd, bytes: usize) -> Result<Self, Error> {
        Self::at(map, 0, bytes)
    }

    /// Maps `bytes` bytes from `offset` on, which is at a page.
    fn at(map: &impl AsFd, offset: u64, bytes: usize) -> Result<Self, Error> {
        // SAFETY: the kernel owns the pages and keeps them while they are mapped; they never
        // shrink. BPF programs and other processes write to them concurrently, which is why all
        // reads of changing words go through atomics, and bulk access is only done on bytes that
        // no program reads or writes at that time (tables that are not published, or that are
        // and so do not change).
        let memory = unsafe {
            MmapOptions::new().offset(offset).len(bytes).map_mut(map.as_fd().as_raw_fd())
        }
        .context(|| "map the memory of a BPF array".into())?;
        Ok(Self { memory })
    }

    /// All bytes, for filling those that no packet reads.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// A record that no packet reads or writes at this time.
    pub fn copy_at<T: Plain>(&self, at: usize) -> T {
        T::from_slice(&self.memory[at..])
    }

    /// Stores a record that no packet reads or writes at this time.
    pub fn store_at<T: Plain>(&mut self, at: usize, record: &T) {
        self.memory[at..at + size_of::<T>()].copy_from_slice(record.bytes());
    }

    /// A copy of some bytes.
    pub fn copy(&self, at: usize, length: usize) -> Vec<u8> {
        self.memory[at..at + length].to_vec()
    }

    /// Some bytes that nobody writes to meanwhile; `None` if not all are there.
    pub fn get(&self, at: usize, length: usize) -> Option<&[u8]> {
        self.memory.get(at..at.checked_add(length)?)
    }

    /// Asks for a place ahead of time.
    pub fn prefetch(&self, at: usize) {
        weir_lookup::prefetch(&self.memory, at);
    }

    /// An aligned 32-bit word.
    pub fn word32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.memory.len());
        // SAFETY: in bounds and aligned (the mapping begins at a page); the kernel side uses
        // plain or atomic loads and stores of the same width.
        unsafe { AtomicU32::from_ptr(self.memory.as_ptr().add(offset).cast_mut().cast()) }
    }

    /// An aligned 64-bit word.
    pub fn word64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.memory.len());
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.memory.as_ptr().add(offset).cast_mut().cast()) }
    }

    /// Stores a record word by word, the word at the offset `last` after all others, so that a
    /// reader that sees the new value of that word sees the rest.
    pub fn store_record<T: Plain>(&self, index: usize, record: &T, last: usize) {
        let last_word = last / size_of::<u32>();
        let base = index * size_of::<T>();
        let words =
            record.bytes().chunks_exact(4).map(|w| u32::from_ne_bytes([w[0], w[1], w[2], w[3]]));
        let mut last = 0;
        for (at, word) in words.enumerate() {
            if at == last_word {
                last = word;
            } else {
                self.word32(base + at * 4).store(word, Ordering::Relaxed);
            }
        }
        self.word32(base + last_word * 4).store(last, Ordering::Release);
    }

    /// Reads a record.
    pub fn load_record<T: Plain>(&self, index: usize) -> T {
        let base = index * size_of::<T>();
        let mut bytes = Vec::with_capacity(size_of::<T>());
        for at in 0..size_of::<T>() / 4 {
            let word = self.word32(base + at * 4).load(Ordering::Acquire);
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        T::from_slice(&bytes)
    }
}

/// Parts begin at a multiple of this, which all sizes of a page divide.
const PAGE: usize = 1 << 16;

impl Parted {
    /// Of a map with `bytes` bytes.
    pub fn new(map: &impl AsFd, bytes: usize) -> Result<Self, Error> {
        let map = map.as_fd().try_clone_to_owned();
        Ok(Self { map: map.context(|| "duplicate a map's descriptor".into())?, bytes })
    }

    /// The same map once more.
    pub fn again(&self) -> Result<Self, Error> {
        Self::new(&self.map, self.bytes)
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Maps `length` bytes from `at` on.
    pub fn part(&self, at: usize, length: usize) -> Result<Part, Error> {
        let whole = at.checked_add(length).is_some_and(|end| end <= self.bytes);
        assert!(whole, "{at} and {length} bytes of {}", self.bytes);
        let from = at % PAGE;
        // There is no mapping of nothing.
        let memory = Mapped::at(&self.map, (at - from) as u64, (from + length).max(1))?;
        Ok(Part { memory, from, length })
    }
}

impl Part {
    /// Its bytes, for filling those that no packet reads.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory.bytes_mut()[self.from..self.from + self.length]
    }

    /// A copy of its bytes.
    pub fn copy(&self) -> Vec<u8> {
        self.memory.copy(self.from, self.length)
    }

    /// An aligned 64-bit word of it.
    pub fn word64(&self, offset: usize) -> &AtomicU64 {
        self.memory.word64(self.from + offset)
    }
}
