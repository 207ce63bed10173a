//! One cache line of a connection table.

use weir_hash::Key;

/// In a slot's backend: nobody. All ones, so that it is neutral under `and`.
pub(super) const EMPTY: u16 = 0xffff;

/// `S` flows with their backends, and four bytes for the table's own use. With `u64` flows and
/// S = 6 that is 48 + 12 + 4 bytes: a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Bucket<K, const S: usize> {
    keys: [K; S],
    backends: [u16; S],
    /// [`super::Unbounded`]: how many entries went past. [`super::Lru`]: the order of use.
    pub extra: u32,
}

impl<K: Key + Default, const S: usize> Bucket<K, S> {
    pub fn new(extra: u32) -> Self {
        Self { keys: [K::default(); S], backends: [EMPTY; S], extra }
    }

    /// The backend of a flow, or [`EMPTY`]. Without branches: which slot it is cannot be
    /// predicted. An empty slot may hold an equal key; it answers nobody, as all others do.
    #[inline(always)]
    pub fn find(&self, flow: &K) -> u16 {
        let slots = self.keys.iter().zip(&self.backends);
        slots
            .fold(EMPTY, |found, (key, &backend)| found & if key == flow { backend } else { EMPTY })
    }

    /// The slot of a flow.
    #[inline(always)]
    pub fn slot_of(&self, flow: &K) -> Option<usize> {
        (0..S).find(|&slot| self.keys[slot] == *flow && self.backends[slot] != EMPTY)
    }

    /// An empty slot among the first `ways`.
    #[inline(always)]
    pub fn free_slot(&self, ways: usize) -> Option<usize> {
        self.backends.iter().take(ways).position(|&backend| backend == EMPTY)
    }

    /// The flow in a slot, whatever is there if it is empty.
    pub fn key(&self, slot: usize) -> &K {
        &self.keys[slot]
    }

    #[inline(always)]
    pub fn backend(&self, slot: usize) -> u16 {
        self.backends[slot]
    }

    #[inline(always)]
    pub fn set(&mut self, slot: usize, flow: K, backend: u16) {
        self.keys[slot] = flow;
        self.backends[slot] = backend;
    }

    pub fn clear(&mut self, slot: usize) {
        self.set(slot, K::default(), EMPTY);
    }

    /// Slot, flow and backend of each entry.
    pub fn entries(&self) -> impl Iterator<Item = (usize, &K, u16)> {
        let slots = self.keys.iter().zip(&self.backends).enumerate();
        slots.filter(|(_, (_, backend))| **backend != EMPTY).map(|(i, (key, b))| (i, key, *b))
    }
}
