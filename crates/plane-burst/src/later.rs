//! What methods that decide whole bursts are asked, and what they ask.

use crate::parse::key_of_word;
use weir_hash::Key;
use weir_steering::{BackendId, EventKind, Memory, Question, ServiceId, SoftMemory, StateKey};

/// What tells flows of one family apart in a burst, hashed as [`StateKey`] is.
pub trait BurstKey: Key {
    /// The key as all others know it.
    fn whole(self) -> StateKey;
}

/// Over IPv4, the word that is hashed; of a client, without ports.
impl BurstKey for u64 {
    #[inline(always)]
    fn whole(self) -> StateKey {
        key_of_word(self)
    }
}

impl BurstKey for StateKey {
    #[inline(always)]
    fn whole(self) -> StateKey {
        self
    }
}

/// The memory of a plane, asked about packets of one service in the middle of their connections.
pub struct Later<'a> {
    pub memory: &'a mut SoftMemory,
    pub service: ServiceId,
    pub now: u32,
}

impl Later<'_> {
    /// The question with all that the short way has left out.
    #[inline(always)]
    pub fn whole<K: BurstKey>(&self, question: &Question<K>) -> Question {
        Question {
            service: self.service,
            key: question.key.whole(),
            hash: question.hash,
            signals: question.signals,
            now: self.now,
        }
    }
}

/// What [`Decide::decide_burst`](weir_steering::Decide::decide_burst) of concury and residue asks and leaves
/// behind. `bursts_are_decided_as_single_packets` in `tests/differential.rs` would find what is missing.
impl<K: BurstKey> Memory<K> for Later<'_> {
    #[inline]
    fn pending(&mut self, question: &Question<K>) -> Option<BackendId> {
        let whole = self.whole(question);
        self.memory.pending(&whole)
    }

    fn note_pending(&mut self, question: &Question<K>, backend: BackendId) -> bool {
        let whole = self.whole(question);
        self.memory.note_pending(&whole, backend)
    }

    fn pinned(&mut self, question: &Question<K>) -> Option<BackendId> {
        let whole = self.whole(question);
        self.memory.pinned(&whole)
    }

    fn report(&mut self, question: &Question<K>, backend: BackendId, kind: EventKind) {
        let whole = self.whole(question);
        self.memory.report(&whole, backend, kind);
    }

    #[inline(always)]
    fn mark(&mut self, question: &Question<K>) {
        self.memory.mark_hash(question.hash);
    }

    #[inline(always)]
    fn fetch_marks(&self, hashes: &[u64]) {
        self.memory.fetch_watched(hashes);
    }

    #[inline(always)]
    fn mark_burst(&mut self, _: &[K], hashes: &[u64]) {
        self.memory.mark_hashes(hashes);
    }

    fn is_armed(&mut self, question: &Question<K>) -> bool {
        let whole = self.whole(question);
        self.memory.is_armed(&whole)
    }

    fn incarnation(&mut self, backend: BackendId) -> Option<u32> {
        Memory::<StateKey>::incarnation(self.memory, backend)
    }

    fn is_down(&mut self, backend: BackendId) -> bool {
        Memory::<StateKey>::is_down(self.memory, backend)
    }

    fn now(&self) -> u32 {
        self.now
    }
}
