//! A connection table that grows.

use super::bucket::{Bucket, EMPTY};
use super::{ConnectionTable, SLOTS, spread};
use weir_hash::{HashKey, Key, scale};
use weir_lookup::prefetch;

/// A table that grows and forgets nothing by itself.
///
/// A flow stands in its home bucket or, if that is full, in the next one with room. Each bucket
/// counts the entries that went past it, so a search ends at the first bucket that nobody went
/// past: with half of the slots in use, for 29 searches of 30 at the first. Removing an entry
/// takes its counts back, and leaves nothing behind.
///
/// At three quarters full the table doubles, all at once. Buckets are chosen by the high bits of
/// a number, so the entries of old bucket b go to new buckets 2b and 2b + 1, and doubling is one
/// stream through old and new memory: about 20 ns per flow, most of it for fresh pages, in one
/// packet's time. [`with_capacity`](Self::with_capacity) avoids it.
#[derive(Clone, Debug)]
pub struct Unbounded<K, const S: usize = SLOTS> {
    key: HashKey,
    buckets: Vec<Bucket<K, S>>,
    len: usize,
}

impl<K: Key + Default, const S: usize> Unbounded<K, S> {
    /// The smallest table, in buckets.
    const LEAST: usize = 8;

    /// A table without flows, which are hashed under `key`.
    pub fn new(key: HashKey) -> Self {
        Self::with_capacity(key, 0)
    }

    /// An empty table with room for so many flows before it grows.
    pub fn with_capacity(key: HashKey, flows: usize) -> Self {
        let buckets = (flows * 4 / 3 / S + 1).max(Self::LEAST);
        Self { key, buckets: vec![Bucket::new(0); buckets], len: 0 }
    }

    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        scale(spread(hash), self.buckets.len() as u32) as usize
    }

    #[inline(always)]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.buckets.len() { 0 } else { at + 1 }
    }

    /// Bucket and slot of a flow.
    fn position(&self, hash: u64, flow: &K) -> Option<(usize, usize)> {
        let mut at = self.home(hash);
        for _ in 0..self.buckets.len() {
            if let Some(slot) = self.buckets[at].slot_of(flow) {
                return Some((at, slot));
            }
            if self.buckets[at].extra == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    /// Puts a flow that is not there into the first free slot. There is one.
    #[inline(always)]
    fn place(&mut self, hash: u64, flow: K, backend: u16) {
        let mut at = self.home(hash);
        loop {
            let bucket = &mut self.buckets[at];
            if let Some(slot) = bucket.free_slot(S) {
                bucket.set(slot, flow, backend);
                return;
            }
            bucket.extra += 1;
            at = self.after(at);
        }
    }

    /// Clears a slot and takes back the counts of those that its flow went past.
    fn clear(&mut self, hash: u64, at: usize, slot: usize) {
        self.buckets[at].clear(slot);
        self.len -= 1;
        let mut passed = self.home(hash);
        while passed != at {
            self.buckets[passed].extra -= 1;
            passed = self.after(passed);
        }
    }

    #[cold]
    #[inline(never)]
    fn resize(&mut self, buckets: usize) {
        let old = std::mem::replace(&mut self.buckets, vec![Bucket::new(0); buckets]);
        for (_, flow, backend) in old.iter().flat_map(Bucket::entries) {
            self.place(flow.hash(&self.key), *flow, backend);
        }
    }

    #[cold]
    #[inline(never)]
    fn get_further(&self, hash: u64, flow: &K) -> Option<u16> {
        self.position(hash, flow).map(|(at, slot)| self.buckets[at].backend(slot))
    }
}

impl<K: Key + Default, const S: usize> ConnectionTable for Unbounded<K, S> {
    type Flow = K;

    fn hash_key(&self) -> &HashKey {
        &self.key
    }

    #[inline(always)]
    fn prefetch(&self, hash: u64) {
        prefetch(&self.buckets, self.home(hash));
    }

    #[inline(always)]
    fn get(&mut self, hash: u64, flow: &K) -> Option<u16> {
        self.peek(hash, flow)
    }

    #[inline(always)]
    fn peek(&self, hash: u64, flow: &K) -> Option<u16> {
        let bucket = &self.buckets[self.home(hash)];
        let found = bucket.find(flow);
        if found != EMPTY {
            Some(found)
        } else if bucket.extra == 0 {
            None
        } else {
            self.get_further(hash, flow)
        }
    }

    fn insert(&mut self, hash: u64, flow: K, backend: u16) {
        if let Some((at, slot)) = self.position(hash, &flow) {
            self.buckets[at].set(slot, flow, backend);
            return;
        }
        if (self.len + 1) * 4 > self.buckets.len() * S * 3 {
            self.resize(2 * self.buckets.len());
        }
        self.place(hash, flow, backend);
        self.len += 1;
    }

    fn remove(&mut self, hash: u64, flow: &K) -> Option<u16> {
        let (at, slot) = self.position(hash, flow)?;
        let backend = self.buckets[at].backend(slot);
        self.clear(hash, at, slot);
        Some(backend)
    }

    /// A table that is left with one slot in sixteen in use shrinks to twice its need.
    fn retain(&mut self, mut keep: impl FnMut(&K, u16) -> bool) -> usize {
        let before = self.len;
        for at in 0..self.buckets.len() {
            let bucket = self.buckets[at];
            for (slot, flow, backend) in bucket.entries() {
                if !keep(flow, backend) {
                    self.clear(flow.hash(&self.key), at, slot);
                }
            }
        }
        if self.len * 16 < self.buckets.len() * S && self.buckets.len() > Self::LEAST {
            self.resize((2 * self.len / S + 1).max(Self::LEAST));
        }
        before - self.len
    }

    fn for_each(&self, mut visit: impl FnMut(&K, u16)) {
        self.buckets.iter().flat_map(Bucket::entries).for_each(|(_, flow, b)| visit(flow, b));
    }

    fn len(&self) -> usize {
        self.len
    }

    fn capacity(&self) -> Option<usize> {
        None
    }

    fn evictions(&self) -> u64 {
        0
    }

    fn bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<Bucket<K, S>>()
    }
}
