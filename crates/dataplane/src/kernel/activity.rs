//! Which flows sent something lately.

use super::KernelPlane;
use crate::abi::types;
use crate::error::Error;
use crate::mapped::{Part, Parted};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use weir_plane::{ArmedFlows, SeenFlows};
use weir_steering::{
    MOST_WATCHED_WORDS, Marks, SEEN_WAYS, ServiceId, Side, arm, is_armed, is_marked, seen_tag,
    watch_bits, watched_words_for, words_for,
};

/// Bytes of the "seen recently" filter that are mapped at a time.
const PART: usize = 1 << 20;

/// Words of the filters of watched flows: two halves, and one that has every flow.
pub(super) const WATCHED_WORDS: usize = MOST_WATCHED_WORDS * 2 + 1;
/// Where packets look while all flows are watched.
const ALL: Side = Side { first: MOST_WATCHED_WORDS as u32 * 2, mask: 0 };

impl KernelPlane {
    /// Arms flows, by their hashes, in the activity marks that are not written, and has packets
    /// write these. Returns which they wrote until now: a grace period later these are complete,
    /// and [`take_marks`](Self::take_marks) reads them.
    ///
    /// # Errors
    /// [`Error::System`] if they cannot be mapped.
    pub fn flip_marks(
        &self,
        known: &mut dyn Iterator<Item = u64>,
        flows: usize,
    ) -> Result<Side, Error> {
        let written = self.mark_side();
        let former = Side::from_word(written.load(Ordering::SeqCst));
        let half = self.sizes.mark_words;
        let words = arm(words_for(flows, half as usize), known);
        let first = if former.first == 0 { half } else { 0 };
        let marks = words_of(&self.marks, first as usize, words.len())?;
        for (at, word) in words.iter().enumerate() {
            marks.word64(at * size_of::<u64>()).store(*word, Ordering::Relaxed);
        }
        self.prepare_watch(flows)?;
        let side = Side { first, mask: words.len() as u32 - 1 };
        written.store(side.to_word(), Ordering::SeqCst);
        Ok(former)
    }

    /// Has packets that are reported put their flows into the filter that is not in use, too.
    fn prepare_watch(&self, flows: usize) -> Result<(), Error> {
        let first = match Side::from_word(self.watched_in().load(Ordering::SeqCst)).first {
            0 => MOST_WATCHED_WORDS as u32,
            _ => 0,
        };
        let side = Side { first, mask: watched_words_for(flows) as u32 - 1 };
        let filter = words_of(&self.watched, first as usize, side.words())?;
        for at in 0..side.words() {
            filter.word64(at * size_of::<u64>()).store(0, Ordering::Relaxed);
        }
        self.watched_next().store(side.to_word(), Ordering::SeqCst);
        Ok(())
    }

    /// Has packets notice only these flows, by their hashes, and those that were reported since the last
    /// [`flip_marks`](Self::flip_marks).
    ///
    /// # Errors
    /// [`Error::System`] if the filter cannot be mapped.
    pub fn watch(&self, due: &mut dyn Iterator<Item = u64>) -> Result<(), Error> {
        let side = Side::from_word(self.watched_next().load(Ordering::SeqCst));
        let filter = words_of(&self.watched, side.first as usize, side.words())?;
        for hash in due {
            let (at, bits) = watch_bits(hash, side.mask);
            filter.word64(at * size_of::<u64>()).fetch_or(bits, Ordering::Relaxed);
        }
        self.watched_in().store(side.to_word(), Ordering::SeqCst);
        Ok(())
    }

    /// Has packets notice all flows, until the next [`watch`](Self::watch).
    pub(super) fn watch_all(&self) {
        self.watched_in().store(ALL.to_word(), Ordering::SeqCst);
    }

    /// A control plane begins: all flows are watched until its first look. What the one before has seen alive and did not
    /// watch any more, it may not have written down.
    pub(super) fn begin_to_watch(&self) -> Result<(), Error> {
        let all = words_of(&self.watched, ALL.first as usize, 1)?;
        // Nobody has used it yet.
        if all.word64(0).swap(u64::MAX, Ordering::SeqCst) == 0 {
            self.watched_next().store(ALL.to_word(), Ordering::SeqCst);
        }
        self.watch_all();
        Ok(())
    }

    /// Where packets mark their flows, and where they look whether to.
    pub(crate) fn marked_in(&self) -> [Side; 2] {
        [self.mark_side(), self.watched_in()]
            .map(|word| Side::from_word(word.load(Ordering::SeqCst)))
    }

    /// Has packets mark their flows there, where flows were armed before.
    pub(crate) fn mark_in(&self, [marks, watched]: [Side; 2]) {
        self.mark_side().store(marks.to_word(), Ordering::SeqCst);
        self.watched_in().store(watched.to_word(), Ordering::SeqCst);
    }

    /// Whether a flow with this hash is armed.
    ///
    /// # Errors
    /// [`Error::System`] if that cannot be read.
    pub fn is_armed(&self, hash: u64) -> Result<bool, Error> {
        let side = Side::from_word(self.mark_side().load(Ordering::SeqCst));
        let first = side.first as usize;
        let marks = words_of(&self.marks, first, side.words())?;
        let word = |at| marks.word64((at - first) * size_of::<u64>()).load(Ordering::Relaxed);
        Ok(is_armed(word, side, hash))
    }

    /// The flows that are armed, until the next [`flip_marks`](Self::flip_marks).
    ///
    /// # Errors
    /// [`Error::System`] if the marks cannot be mapped.
    pub fn armed(&self) -> Result<ArmedFlows, Error> {
        let side = Side::from_word(self.mark_side().load(Ordering::SeqCst));
        let first = side.first as usize;
        let marks = words_of(&self.marks, first, side.words())?;
        let word =
            move |at: usize| marks.word64((at - first) * size_of::<u64>()).load(Ordering::Relaxed);
        let has = Box::new(move |hash| is_armed(&word, side, hash));
        // Two of three lanes: beyond that it is not certain that each finds one.
        Ok(ArmedFlows { room: self.sizes.mark_words as usize * 2, has })
    }

    /// Which of the flows with these hashes have sent something since the marks that packets write were
    /// begun, first packets apart.
    ///
    /// # Errors
    /// [`Error::System`] if they cannot be mapped.
    pub fn are_marked(&self, hashes: &[u64]) -> Result<Vec<bool>, Error> {
        let side = Side::from_word(self.mark_side().load(Ordering::SeqCst));
        let half = self.sizes.stranger_words as usize;
        let before = if side.first == 0 { 0 } else { half };
        let marks = words_of(&self.marks, side.first as usize, side.words())?;
        let strangers = words_of(&self.strangers, before, half)?;
        let read = |part: &Part, at| part.word64(at * size_of::<u64>()).load(Ordering::Relaxed);
        let marked = |hash: &u64| {
            is_marked(|at| read(&marks, at), side.words(), |at| read(&strangers, at), half, *hash)
        };
        Ok(hashes.iter().map(marked).collect())
    }

    /// Reads activity marks that are not being written, and clears them.
    ///
    /// # Errors
    /// [`Error::System`] if they cannot be mapped; none is cleared then.
    pub fn take_marks(&self, side: Side) -> Result<Marks, Error> {
        let half = self.sizes.stranger_words as usize;
        let before = if side.first == 0 { 0 } else { half };
        let marks = words_of(&self.marks, side.first as usize, side.words())?;
        let strangers = words_of(&self.strangers, before, half)?;
        let take = |part: &Part, words: usize| {
            let take = |at| part.word64(at * size_of::<u64>()).swap(0, Ordering::Relaxed);
            (0..words).map(take).collect()
        };
        Ok(Marks::new(take(&marks, side.words()), take(&strangers, half)))
    }

    /// Takes up the marks of memory from which this one has more. No packet writes to that any more, and none was
    /// armed anew since. Where packets mark in its second half, that becomes this memory's second half: the
    /// first one is what is armed next, and may reach beyond where the former second half began. It may be done
    /// again, should a control plane have died over it.
    ///
    /// # Errors
    /// [`Error::System`] if the marks cannot be mapped; then it has to be done again before any are armed.
    pub(super) fn follow_marks(&self, former: &Parted) -> Result<(), Error> {
        let words = former.len() / size_of::<u64>();
        merge_marks(former, &self.marks, [0, 0], words)?;
        let (before, half) = (words / 2, self.sizes.mark_words as usize);
        if before == half {
            return Ok(());
        }
        let second = || merge_marks(&self.marks, &self.marks, [before, half], before);
        let side = Side::from_word(self.mark_side().load(Ordering::SeqCst));
        if side.first as usize == before {
            second()?;
            let side = Side { first: half as u32, ..side };
            self.mark_side().store(side.to_word(), Ordering::SeqCst);
            self.grace()?;
        }
        // What packets marked until they saw that.
        let side = Side::from_word(self.mark_side().load(Ordering::SeqCst));
        if side.first as usize == half { second() } else { Ok(()) }
    }

    /// Begins a new generation of the "seen recently" filter. A flow is known while it was seen in
    /// this generation or the one before.
    ///
    /// # Errors
    /// [`Error::System`] if the filter cannot be mapped: the generation goes on.
    pub fn next_seen_generation(&self) -> Result<(), Error> {
        let word = self.seen_generation();
        let now = word.load(Ordering::Relaxed);
        let next = if now >= 3 { 1 } else { now + 1 };
        // Who was seen last when a generation had this number before is not to be known again by it.
        let bytes = self.sizes.seen_lines as usize * SEEN_WAYS * size_of::<u64>();
        for at in (0..bytes).step_by(PART) {
            let length = PART.min(bytes - at);
            let part = self.seen.part(at, length)?;
            for at in (0..length).step_by(size_of::<u64>()) {
                let entry = part.word64(at);
                let tag = entry.load(Ordering::Relaxed);
                if tag & 3 == u64::from(next) {
                    // Packets that put another flow there meanwhile have the last word.
                    let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
                    let _ = entry.compare_exchange(tag, 0, success, failure);
                }
            }
        }
        word.store(next, Ordering::SeqCst);
        Ok(())
    }

    /// Takes UDP flows, by their hashes under the published table's key, out of the "seen recently"
    /// filter, so that their next packets count as first ones.
    ///
    /// # Errors
    /// [`Error::System`] if the filter cannot be mapped.
    pub fn forget_seen(&self, service: ServiceId, hashes: &[u64]) -> Result<(), Error> {
        if hashes.is_empty() {
            return Ok(());
        }
        let seen = self.seen.part(0, self.seen.len())?;
        for &hash in hashes {
            let tag = seen_tag(hash, service);
            let line = weir_hash::scale((tag >> 32) as u32, self.sizes.seen_lines) as usize;
            for way in 0..SEEN_WAYS {
                let word = seen.word64((line * SEEN_WAYS + way) * size_of::<u64>());
                if word.load(Ordering::Relaxed) & !3 == tag & !3 {
                    word.store(0, Ordering::Relaxed);
                }
            }
        }
        Ok(())
    }

    /// The UDP flows seen in this generation, and, where `before` says so, in the one before.
    ///
    /// # Errors
    /// [`Error::System`] if the filter cannot be mapped.
    pub fn seen_flows(&self, before: bool) -> Result<SeenFlows, Error> {
        let [now, last] = self.seen_lately();
        let before = if before { last } else { now };
        let mut tags = Vec::new();
        let bytes = self.sizes.seen_lines as usize * SEEN_WAYS * size_of::<u64>();
        for at in (0..bytes).step_by(PART) {
            let length = PART.min(bytes - at);
            let part = self.seen.part(at, length)?;
            let words = (0..length).step_by(size_of::<u64>());
            let words = words.map(|at| part.word64(at).load(Ordering::Relaxed));
            tags.extend(words.filter(|tag| tag & 3 == now || tag & 3 == before));
        }
        Ok(SeenFlows::new(tags.into_iter()))
    }

    /// Whether one UDP flow, by its hash, is among them.
    ///
    /// # Errors
    /// [`Error::System`] if the filter cannot be mapped.
    pub fn is_seen(&self, hash: u64, service: ServiceId) -> Result<bool, Error> {
        let [now, before] = self.seen_lately();
        let tag = seen_tag(hash, service);
        let line = weir_hash::scale((tag >> 32) as u32, self.sizes.seen_lines) as usize;
        let ways = words_of(&self.seen, line * SEEN_WAYS, SEEN_WAYS)?;
        let mut words =
            (0..SEEN_WAYS).map(|way| ways.word64(way * size_of::<u64>()).load(Ordering::Relaxed));
        Ok(words.any(|word| word & !3 == tag & !3 && (word & 3 == now || word & 3 == before)))
    }

    /// The generation of the "seen recently" filter, and the one before.
    fn seen_lately(&self) -> [u64; 2] {
        let now = u64::from(self.seen_generation().load(Ordering::SeqCst));
        [now, if now == 1 { 3 } else { now - 1 }]
    }

    fn mark_side(&self) -> &AtomicU64 {
        self.control.word64(offset_of!(types::control, mark_side))
    }

    fn watched_in(&self) -> &AtomicU64 {
        self.control.word64(offset_of!(types::control, watched_side))
    }

    fn watched_next(&self) -> &AtomicU64 {
        self.control.word64(offset_of!(types::control, watched_next))
    }

    fn seen_generation(&self) -> &AtomicU32 {
        self.control.word32(offset_of!(types::control, seen_generation))
    }
}

/// Puts so many words of marks from one place to another one, beside what packets mark there.
pub(super) fn merge_marks(
    from: &Parted,
    to: &Parted,
    [first, target]: [usize; 2],
    words: usize,
) -> Result<(), Error> {
    const WORDS: usize = PART / size_of::<u64>();
    for at in (0..words).step_by(WORDS) {
        let length = WORDS.min(words - at);
        let (from, to) = (words_of(from, first + at, length)?, words_of(to, target + at, length)?);
        for at in (0..length * size_of::<u64>()).step_by(size_of::<u64>()) {
            let word = from.word64(at).load(Ordering::Relaxed);
            if word != 0 {
                to.word64(at).fetch_or(word, Ordering::Relaxed);
            }
        }
    }
    Ok(())
}

/// So many words of an array from `first` on.
fn words_of(array: &Parted, first: usize, words: usize) -> Result<Part, Error> {
    array.part(first * size_of::<u64>(), words * size_of::<u64>())
}
