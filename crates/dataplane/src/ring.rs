//! The consumer's side of a BPF ring buffer, a part at a time.
//!
//! ```text
//! page     of the map, as a process maps it (kernel/bpf/ringbuf.c)
//! 0        up to where records were taken: ours
//! 1        up to where they were reserved: the program's
//! 2 ..     the records, and behind them the same pages once more, so that each lies in a row
//! ```
//!
//! Positions run on; a record stands at its position modulo the size. It begins with its length and two flags, four
//! bytes, and four of the kernel's own.
//!
//! libbpf maps all records, twice. What is mapped counts as this process's memory, whether it is read or not: 32 MiB
//! for a ring of 16, most of which is read in floods alone. So no more of it is mapped here than a part, with the
//! next record in it.

use crate::error::{Context, Error};
use libbpf_rs::{MapCore, MapHandle};
use memmap2::{MmapOptions, MmapRaw};
use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

/// Bytes of records that are mapped at a time. A power of two.
const PART: usize = 256 << 10;
/// Bytes before a record.
const HEADER: usize = 8;
/// Records begin at multiples of this.
const ALIGNED: usize = 8;
/// Beside a record's length: it is still being written.
const BUSY: u32 = 1 << 31;
/// It was given up.
const DISCARDED: u32 = 1 << 30;

/// A ring whose records are no longer than a page. It has one consumer.
pub(crate) struct Ring {
    map: MapHandle,
    /// Bytes of a page.
    page: usize,
    /// Bytes of all records: a power of two, and a multiple of a page.
    size: usize,
    taken: MmapRaw,
    reserved: MmapRaw,
    /// Where the last record was.
    part: RefCell<Option<Part>>,
}

/// Records that stand in a row, and a page more, in which the last of them may end.
struct Part {
    memory: MmapRaw,
    /// Where it begins among all records.
    from: usize,
}

impl Ring {
    /// Of a map of this type.
    pub fn new(map: MapHandle) -> Result<Self, Error> {
        let page = page_bytes();
        let size = map.max_entries() as usize;
        assert!(size.is_power_of_two() && size >= page, "{size} bytes are no ring's");
        let file = map.as_fd().as_raw_fd();
        let taken = MmapOptions::new().len(page).map_raw(file).context(opening)?;
        let reserved = MmapOptions::new().offset(page as u64).len(page).map_raw_read_only(file);
        let reserved = reserved.context(opening)?;
        Ok(Self { map, page, size, taken, reserved, part: RefCell::new(None) })
    }

    /// Bytes of its records, with what stands before each.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Can be read while there are records that were not taken.
    pub fn readable(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }

    /// Takes at most `most` records that are there, and returns how many. Each counts as taken when `sink` returns.
    pub fn take(&self, most: usize, mut sink: impl FnMut(&[u8])) -> Result<usize, Error> {
        let mut last = self.part.borrow_mut();
        let (taken, reserved) = (position(&self.taken), position(&self.reserved));
        // Nobody else writes it.
        let mut at = taken.load(Ordering::Relaxed);
        let mut count = 0;
        loop {
            let end = reserved.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if at >= end {
                return Ok(count);
            }
            while at < end {
                if count == most {
                    return Ok(count);
                }
                let place = at & (self.size - 1);
                let part = self.part_of(&mut last, place)?;
                let start = place - part.from;
                let header = part.header(start);
                if header & BUSY != 0 {
                    return Ok(count);
                }
                let length = (header & !DISCARDED) as usize;
                if header & DISCARDED == 0 {
                    // One that does not end in the part is none of ours.
                    if let Some(record) = part.record(start, length) {
                        sink(record);
                    }
                    count += 1;
                }
                at += (HEADER + length).next_multiple_of(ALIGNED);
                // What was read of it was read before its place is the program's again.
                taken.store(at, Ordering::Release);
            }
        }
    }

    /// The part with a place: that of before, or another one in its stead.
    fn part_of<'a>(&self, last: &'a mut Option<Part>, place: usize) -> Result<&'a Part, Error> {
        let bytes = PART.min(self.size).max(self.page);
        let from = place / bytes * bytes;
        let part = match last.take().filter(|part| part.from == from) {
            Some(part) => part,
            None => {
                let offset = (2 * self.page + from) as u64;
                let memory = MmapOptions::new()
                    .offset(offset)
                    .len(bytes + self.page)
                    .map_raw_read_only(self.map.as_fd().as_raw_fd());
                Part { memory: memory.context(opening)?, from }
            }
        };
        Ok(last.insert(part))
    }
}

impl Part {
    /// The length of the record at `start`, and its flags.
    fn header(&self, start: usize) -> u32 {
        assert!(start.is_multiple_of(ALIGNED) && start + HEADER <= self.memory.len());
        // SAFETY: in bounds and aligned (a mapping begins at a page). The kernel changes the word in one piece; a
        // relaxed load is one that may be made of memory that can only be read.
        let header = unsafe { AtomicU32::from_ptr(self.memory.as_mut_ptr().add(start).cast()) };
        let header = header.load(Ordering::Relaxed);
        // The record was written before BUSY went.
        fence(Ordering::Acquire);
        header
    }

    /// The record at `start`, which is not being written and was not taken; none if not all of it is here.
    fn record(&self, start: usize, length: usize) -> Option<&[u8]> {
        let start = start + HEADER;
        if start + length > self.memory.len() {
            return None;
        }
        // SAFETY: in bounds. Programs write to what they reserve, and the kernel gives them no place whose record
        // was not taken, which the caller does after the slice is gone.
        Some(unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(start), length) })
    }
}

/// A page that begins with a position.
fn position(page: &MmapRaw) -> &AtomicUsize {
    // SAFETY: a page has room for a word, and begins at one. Both sides access it in one piece; that of the program
    // can only be read here, and is by relaxed loads alone, which may be made of such memory.
    unsafe { AtomicUsize::from_ptr(page.as_mut_ptr().cast()) }
}

fn opening() -> String {
    "open the event ring".to_owned()
}

fn page_bytes() -> usize {
    // SAFETY: it takes a number and returns one.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}
