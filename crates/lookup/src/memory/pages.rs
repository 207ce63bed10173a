//! Large tables on large pages, because random reads in more memory than the processor keeps
//! translations for wait for them too. At 8M keys, batched, with and without (examples/rates.rs):
//! Othello +10 to 17 %, cuckoo tables +13 to 20 %, multi-level table +3 to 7 %, a fuse as fast.
//! Maintainers gain more: their memory is many times as large as the views'.
#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};

/// From this size on it is worth asking.
const LARGE: usize = 4 << 20;

/// A table that asks for large pages. They are a wish: all works without.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Pages<T>(Vec<T>);

/// A vector with room for so many items, on large pages if it is large. (When it outgrows its room
/// it moves to memory that nobody asked for.)
pub(crate) fn vec_on_pages<T>(capacity: usize) -> Vec<T> {
    let mut items = Vec::with_capacity(capacity);
    ask_for_large(items.spare_capacity_mut());
    items
}

impl<T> Pages<T> {
    /// Items, of which there are `len`.
    pub(crate) fn collected(len: usize, from: impl Iterator<Item = T>) -> Self {
        let mut items = vec_on_pages(len);
        items.extend(from);
        Self(items)
    }

    /// Bytes that are allocated.
    pub(crate) fn allocated(&self) -> usize {
        self.0.capacity() * size_of::<T>()
    }
}

impl<T: Clone> Pages<T> {
    /// `len` times `item`.
    pub(crate) fn filled(item: T, len: usize) -> Self {
        let mut items = vec_on_pages(len);
        items.resize(len, item);
        Self(items)
    }

    /// Takes over a vector; a large one is copied, because its memory is in use already.
    pub(crate) fn of(items: Vec<T>) -> Self {
        if size_of_val(&items[..]) < LARGE { Self(items) } else { Self::copied(&items) }
    }

    fn copied(from: &[T]) -> Self {
        let mut items = vec_on_pages(from.len());
        items.extend_from_slice(from);
        Self(items)
    }
}

impl<T> Default for Pages<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Clone> Clone for Pages<T> {
    fn clone(&self) -> Self {
        Self::copied(&self.0)
    }
}

impl<T> Deref for Pages<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for Pages<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

/// Asks the kernel to back memory that nobody has written to yet with pages of 2 MB.
fn ask_for_large<T>(memory: &mut [std::mem::MaybeUninit<T>]) {
    #[cfg(target_os = "linux")]
    {
        const PAGE: usize = 2 << 20;
        let bytes = size_of_val(memory);
        if bytes < LARGE {
            return;
        }
        let start = memory.as_mut_ptr().cast::<u8>();
        let skip = start.align_offset(PAGE);
        let len = bytes.saturating_sub(skip) / PAGE * PAGE;
        // SAFETY: MADV_HUGEPAGE changes neither contents nor validity of memory, only what backs
        // it; the range lies inside of an allocation that is borrowed exclusively. A refusal (a
        // kernel without large pages) is of no consequence.
        unsafe { libc::madvise(start.wrapping_add(skip).cast(), len, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}
