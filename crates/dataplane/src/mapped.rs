//! A BPF array map as memory: what the packets read can be filled without a system call each.

use crate::abi::Plain;
use crate::error::{Context, Error};
use memmap2::{MmapMut, MmapOptions};
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The memory of an array map made with BPF_F_MMAPABLE.
pub(crate) struct Mapped {
    memory: MmapMut,
}

impl Mapped {
    /// Maps `bytes` bytes of a map.
    pub fn new(map: &impl AsFd, bytes: usize) -> Result<Self, Error> {
        // SAFETY: the kernel owns the pages and keeps them while they are mapped; they never
        // shrink. BPF programs and other processes write to them concurrently, which is why all
        // reads of changing words go through atomics, and bulk access is only done on bytes that
        // no program reads or writes at that time (tables that are not published, or that are
        // and so do not change).
        let memory = unsafe { MmapOptions::new().len(bytes).map_mut(map.as_fd().as_raw_fd()) }
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

    /// A copy of some bytes.
    pub fn copy(&self, at: usize, length: usize) -> Vec<u8> {
        self.memory[at..at + length].to_vec()
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
        let bytes: Vec<u8> = (0..size_of::<T>() / 4)
            .flat_map(|at| self.word32(base + at * 4).load(Ordering::Acquire).to_ne_bytes())
            .collect();
        T::from_slice(&bytes)
    }
}
