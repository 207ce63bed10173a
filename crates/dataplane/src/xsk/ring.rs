//! One of the four rings that a socket shares with the kernel: a single producer, a single consumer.

use memmap2::{MmapOptions, MmapRaw};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// A ring of `T`: descriptors of frames, or addresses of chunks. We are its producer (fill, tx) or
/// its consumer (completion, rx); the kernel is the other. Indices run on and wrap; entry `i` stands
/// at `i & mask`.
pub(super) struct Ring<T> {
    memory: MmapRaw,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    size: u32,
    /// Our own index: entries written, or entries read.
    own: u32,
    /// The kernel's index, as last read.
    theirs: u32,
    of: PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    /// Maps a ring of `size` entries (a power of two), whose parts lie as the kernel says.
    ///
    /// `T` must be what this ring holds: `xdp_desc` (rx, tx) or `u64` (fill, completion).
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        offsets: &libc::xdp_ring_offset,
        page: u64,
        size: u32,
    ) -> io::Result<Self> {
        assert!(size.is_power_of_two());
        let length = offsets.desc as usize + size as usize * size_of::<T>();
        let memory =
            MmapOptions::new().offset(page).len(length).populate().map_raw(socket.as_raw_fd())?;
        let (producer, consumer) = (offsets.producer as usize, offsets.consumer as usize);
        let (flags, entries) = (offsets.flags as usize, offsets.desc as usize);
        let fits = |at: usize| at.is_multiple_of(4) && at + 4 <= length;
        if !fits(producer)
            || !fits(consumer)
            || !fits(flags)
            || !entries.is_multiple_of(align_of::<T>())
        {
            return Err(io::Error::other("the kernel's offsets of a ring make no sense"));
        }
        let of = PhantomData;
        Ok(Self { memory, producer, consumer, flags, entries, size, own: 0, theirs: 0, of })
    }

    /// As producer: whether the kernel looks at the ring only when it is called.
    pub(super) fn wants_wakeup(&self) -> bool {
        // What is published has to be seen by a kernel that is about to fall asleep.
        fence(Ordering::SeqCst);
        self.index(self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    fn index(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `map` checked that the word lies within the mapping, which begins at a page, and
        // is aligned; both sides access it atomically.
        unsafe { AtomicU32::from_ptr(self.memory.as_mut_ptr().add(at).cast()) }
    }

    fn entry(&self, index: u32) -> *mut T {
        let place = (index & (self.size - 1)) as usize;
        // SAFETY: `place` is below `size`, and the mapping has room for so many entries.
        unsafe { self.memory.as_mut_ptr().add(self.entries).cast::<T>().add(place) }
    }

    /// As producer: entries that may be written.
    pub(super) fn room(&mut self) -> u32 {
        let used = self.own.wrapping_sub(self.theirs);
        if used < self.size {
            return self.size - used;
        }
        self.theirs = self.index(self.consumer).load(Ordering::Acquire);
        self.size - self.own.wrapping_sub(self.theirs)
    }

    /// As producer: writes an entry, which the kernel sees after [`publish`](Self::publish). False
    /// if there is no room.
    pub(super) fn push(&mut self, entry: T) -> bool {
        if self.room() == 0 {
            return false;
        }
        // SAFETY: the entry lies in the mapping (`entry`), and is ours until it is published: there
        // is room.
        unsafe { self.entry(self.own).write(entry) };
        self.own = self.own.wrapping_add(1);
        true
    }

    /// As producer: shows the kernel what was pushed.
    pub(super) fn publish(&self) {
        self.index(self.producer).store(self.own, Ordering::Release);
    }

    /// As producer: entries that the kernel has not taken.
    pub(super) fn waiting(&self) -> u32 {
        self.own.wrapping_sub(self.index(self.consumer).load(Ordering::Acquire))
    }

    /// As producer, when the kernel takes no more from this ring: what it left, oldest first.
    pub(super) fn reclaim(&mut self) -> Vec<T> {
        let taken = self.index(self.consumer).load(Ordering::Acquire);
        let left = self.own.wrapping_sub(taken).min(self.size);
        // SAFETY: these entries were written by `push` and lie in the mapping.
        let entries =
            (0..left).map(|n| unsafe { self.entry(taken.wrapping_add(n)).read() }).collect();
        self.own = taken;
        self.theirs = taken;
        entries
    }

    /// As consumer: the next entry, whose place is given back by [`release`](Self::release).
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.own == self.theirs {
            self.theirs = self.index(self.producer).load(Ordering::Acquire);
            if self.own == self.theirs {
                return None;
            }
        }
        // SAFETY: the entry lies in the mapping, and the kernel published it.
        let entry = unsafe { self.entry(self.own).read() };
        self.own = self.own.wrapping_add(1);
        Some(entry)
    }

    /// As consumer: gives places of popped entries back.
    pub(super) fn release(&self) {
        self.index(self.consumer).store(self.own, Ordering::Release);
    }
}
