//! Which flows sent something lately.

use super::KernelPlane;
use crate::abi::types;
use crate::mapped::Mapped;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use weir_plane::SeenFlows;
use weir_steering::{Marks, SEEN_WAYS, Side, arm, is_armed, seen_tag, words_for};

impl KernelPlane {
    /// Arms flows, by their hashes, in the activity marks that are not written, and has packets
    /// write these. Returns which they wrote until now: a grace period later these are complete,
    /// and [`take_marks`](Self::take_marks) reads them.
    pub fn flip_marks(&self, known: &mut dyn Iterator<Item = u64>, flows: usize) -> Side {
        let written = self.mark_side();
        let former = Side::from_word(written.load(Ordering::SeqCst));
        let half = self.sizes.mark_words;
        let words = arm(words_for(flows, half as usize), known);
        let first = if former.first == 0 { half } else { 0 };
        for (at, word) in words.iter().enumerate() {
            let offset = (first as usize + at) * size_of::<u64>();
            self.marks.word64(offset).store(*word, Ordering::Relaxed);
        }
        let side = Side { first, mask: words.len() as u32 - 1 };
        written.store(side.to_word(), Ordering::SeqCst);
        former
    }

    /// Whether a flow with this hash is armed.
    pub fn is_armed(&self, hash: u64) -> bool {
        let side = Side::from_word(self.mark_side().load(Ordering::SeqCst));
        let word = |at| self.marks.word64(at * size_of::<u64>()).load(Ordering::Relaxed);
        is_armed(word, side, hash)
    }

    /// Reads activity marks that are not being written, and clears them.
    pub fn take_marks(&self, side: Side) -> Marks {
        let take = |array: &Mapped, first: usize, words: usize| {
            let take = |at| array.word64(at * size_of::<u64>()).swap(0, Ordering::Relaxed);
            (first..first + words).map(take).collect()
        };
        let half = self.sizes.stranger_words as usize;
        let strangers = if side.first == 0 { 0 } else { half };
        Marks::new(
            take(&self.marks, side.first as usize, side.words()),
            take(&self.strangers, strangers, half),
        )
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

    fn mark_side(&self) -> &AtomicU64 {
        self.control.word64(offset_of!(types::control, mark_side))
    }

    fn seen_generation(&self) -> &AtomicU32 {
        self.control.word32(offset_of!(types::control, seen_generation))
    }
}
