//! Which flows sent something lately.

use super::KernelPlane;
use crate::abi::types;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering};
use weir_plane::{Marks, SeenFlows};
use weir_steering::{SEEN_WAYS, seen_tag};

impl KernelPlane {
    /// Switches to the other activity bitmap; a grace period later the one that was written until
    /// now is complete, and [`take_marks`](Self::take_marks) reads it.
    pub fn flip_marks(&self) {
        self.mark_side().fetch_xor(1, Ordering::SeqCst);
    }

    /// Reads the activity bitmap that is not being written, and clears it.
    pub fn take_marks(&self) -> Marks {
        let half = self.sizes.mark_words as usize;
        let side = 1 - (self.mark_side().load(Ordering::SeqCst) & 1) as usize;
        let words = (0..half)
            .map(|i| {
                self.marks.word64((side * half + i) * size_of::<u64>()).swap(0, Ordering::Relaxed)
            })
            .collect();
        Marks::new(words)
    }

    /// Begins a new generation of the "seen recently" filter. A flow is known while it was seen in
    /// this generation or the one before.
    pub fn next_seen_generation(&self) {
        let word = self.seen_generation();
        let now = word.load(Ordering::Relaxed);
        word.store(if now >= 3 { 1 } else { now + 1 }, Ordering::SeqCst);
    }

    /// Takes UDP flows, by their hashes under the published table's key, out of the "seen recently"
    /// filter, so that their next packets count as first ones.
    pub fn forget_seen(&self, service: u32, hashes: impl Iterator<Item = u64>) {
        for hash in hashes {
            let tag = seen_tag(hash, service);
            let line = weir_hash::scale((tag >> 32) as u32, self.sizes.seen_lines) as usize;
            for way in 0..SEEN_WAYS {
                let word = self.seen.word64((line * SEEN_WAYS + way) * size_of::<u64>());
                if word.load(Ordering::Relaxed) & !3 == tag & !3 {
                    word.store(0, Ordering::Relaxed);
                }
            }
        }
    }

    /// The UDP flows seen in this generation or the one before.
    pub fn seen_flows(&self) -> SeenFlows {
        let now = u64::from(self.seen_generation().load(Ordering::SeqCst));
        let before = if now == 1 { 3 } else { now - 1 };
        let tags = (0..self.sizes.seen_lines as usize * SEEN_WAYS)
            .map(|i| self.seen.word64(i * size_of::<u64>()).load(Ordering::Relaxed))
            .filter(|tag| tag & 3 == now || tag & 3 == before);
        SeenFlows::new(tags)
    }

    fn mark_side(&self) -> &AtomicU32 {
        self.control.word32(offset_of!(types::control, mark_side))
    }

    fn seen_generation(&self) -> &AtomicU32 {
        self.control.word32(offset_of!(types::control, seen_generation))
    }
}
