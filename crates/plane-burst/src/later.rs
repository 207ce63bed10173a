//! What methods that decide whole bursts are asked: flows by their hashes.

use crate::parse::key_of_word;
use weir_hash::{HashKey, Key};
use weir_steering::{BackendId, EventKind, Memory, Question, ServiceId, SoftMemory, StateKey};

/// A flow whose hash under its table's key is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hashed {
    pub hash: u64,
    /// Its packet's number in the burst.
    pub packet: u64,
}

impl Key for Hashed {
    #[inline(always)]
    fn hash(&self, _: &HashKey) -> u64 {
        self.hash
    }
}

/// The keys of a burst's packets, by their numbers.
pub enum Keys<'a> {
    /// As words; whether they are clients'.
    Ipv4(&'a [u64], bool),
    Ipv6(&'a [StateKey], bool),
}

impl Keys<'_> {
    /// The key of a packet.
    #[inline(always)]
    pub fn get(&self, packet: usize) -> StateKey {
        let (key, client) = match *self {
            Self::Ipv4(words, client) => (key_of_word(words[packet]), client),
            Self::Ipv6(keys, client) => (keys[packet], client),
        };
        if client { StateKey { src_port: 0, dst_port: 0, ..key } } else { key }
    }
}

/// The memory of a plane, asked about packets of one service in the middle of their connections.
pub struct Later<'a> {
    pub memory: &'a mut SoftMemory,
    pub service: ServiceId,
    pub now: u32,
    pub keys: Keys<'a>,
}

impl Later<'_> {
    /// The question with all that the short way has left out.
    #[inline(always)]
    fn whole(&self, question: &Question<Hashed>) -> Question {
        Question {
            service: self.service,
            key: self.keys.get(question.key.packet as usize),
            hash: question.hash,
            signals: question.signals,
            now: self.now,
        }
    }
}

/// What [`Decide::decide_burst`](weir_steering::Decide::decide_burst) of concury and residue asks and leaves
/// behind. `bursts_are_decided_as_single_packets` in `tests/differential.rs` would find what is missing.
impl Memory<Hashed> for Later<'_> {
    #[inline]
    fn pending(&mut self, question: &Question<Hashed>) -> Option<BackendId> {
        let whole = self.whole(question);
        self.memory.pending(&whole)
    }

    fn note_pending(&mut self, question: &Question<Hashed>, backend: BackendId) -> bool {
        let whole = self.whole(question);
        self.memory.note_pending(&whole, backend)
    }

    fn pinned(&mut self, question: &Question<Hashed>) -> Option<BackendId> {
        let whole = self.whole(question);
        self.memory.pinned(&whole)
    }

    fn report(&mut self, question: &Question<Hashed>, backend: BackendId, kind: EventKind) {
        let whole = self.whole(question);
        self.memory.report(&whole, backend, kind);
    }

    #[inline(always)]
    fn mark(&mut self, question: &Question<Hashed>) {
        self.memory.mark_hash(question.hash);
    }

    fn is_armed(&mut self, question: &Question<Hashed>) -> bool {
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
