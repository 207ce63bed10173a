//! Versioned optimistic reads: what one writer changes, readers see whole or read again.
//!
//! `super::atomic` names the atomics, so that `tests/reader_protocol.rs` can compile this same file
//! over those of a model checker.

use super::atomic::Ordering::{Acquire, Relaxed, Release};
use super::atomic::{AtomicU32, fence};

/// The version of something that one thread writes and others read (a sequence lock without the
/// lock): odd while it is being written. What is guarded must be made of atomics.
#[derive(Debug)]
pub(crate) struct Version(AtomicU32);

/// Writes under some versions, which may be the same ones twice. One writer at a time.
#[inline(always)]
pub(crate) fn write<'a, I: Iterator<Item = &'a Version>>(
    versions: impl Fn() -> I,
    write: impl FnOnce(),
) {
    versions().for_each(Version::mark);
    order_marks();
    write();
    versions().for_each(Version::publish);
}

/// Reads under some versions; `None` if that must be tried again.
#[inline(always)]
pub(crate) fn try_read<const N: usize, R>(
    versions: [&Version; N],
    read: impl FnOnce() -> R,
) -> Option<R> {
    let before = versions.map(Version::load);
    if before.into_iter().any(is_marked) {
        return None;
    }
    let value = read();
    order_reads();
    versions.iter().zip(before).all(|(version, before)| version.is(before)).then_some(value)
}

/// Whether a version was loaded while a write was under way.
#[inline(always)]
pub(crate) fn is_marked(version: u32) -> bool {
    version & 1 != 0
}

/// Stands between the marks and the writes: who sees one of the writes sees the marks.
#[inline(always)]
pub(crate) fn order_marks() {
    fence(Release);
}

/// Stands between the reads and the second look at the versions.
#[inline(always)]
pub(crate) fn order_reads() {
    fence(Acquire);
}

impl Version {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Before the first write, and then [`order_marks`]. Leaves what is marked already.
    #[inline(always)]
    pub(crate) fn mark(&self) {
        self.0.store(self.0.load(Relaxed) | 1, Relaxed);
    }

    /// After the last write. Leaves what is published already.
    #[inline(always)]
    pub(crate) fn publish(&self) {
        let marked = self.0.load(Relaxed);
        self.0.store(marked.wrapping_add(marked & 1), Release);
    }

    /// Before the first read.
    #[inline(always)]
    pub(crate) fn load(&self) -> u32 {
        self.0.load(Acquire)
    }

    /// After the last read and [`order_reads`]: whether nothing was written in between.
    #[inline(always)]
    pub(crate) fn is(&self, before: u32) -> bool {
        self.0.load(Relaxed) == before
    }
}
