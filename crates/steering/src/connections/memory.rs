//! A connection table as the memory of a decision.

use super::ConnectionTable;
use crate::decide::Question;
use crate::ids::BackendId;
use crate::memory::{Memory, TrackedFlow};

/// A connection table, and nothing else. Its entries count for any incarnation of their backend:
/// whoever removes a backend calls [`ConnectionTable::forget_backend`]. The question's hash must be
/// under the table's [`hash_key`](ConnectionTable::hash_key).
#[derive(Clone, Debug)]
pub struct Connections<C>(pub C);

impl<C: ConnectionTable> Memory<C::Flow> for Connections<C> {
    #[inline(always)]
    fn connection(&mut self, question: &Question<C::Flow>) -> Option<TrackedFlow> {
        // A copy, so that not the whole question has to stand in memory.
        let flow = question.key;
        let backend = BackendId::new(self.0.get(question.hash, &flow)?)?;
        Some(TrackedFlow::new(backend, 0))
    }

    #[inline(always)]
    fn track(&mut self, question: &Question<C::Flow>, entry: TrackedFlow) {
        self.0.insert(question.hash, question.key, entry.backend.get());
    }

    #[inline(always)]
    fn prefetch_connection(&self, hash: u64) {
        self.0.prefetch(hash);
    }

    fn end(&mut self, question: &Question<C::Flow>) {
        self.0.remove(question.hash, &question.key);
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }
}
