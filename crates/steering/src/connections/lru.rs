//! A connection table of fixed size.

use super::bucket::{Bucket, EMPTY};
use super::{ConnectionTable, SLOTS, spread};
use weir_hash::{HashKey, Key, scale};
use weir_lookup::prefetch;

/// A table of fixed capacity: where a bucket is full, a new flow takes the place of the one of
/// that bucket that was used least recently.
///
/// The order is kept per bucket, in the same cache line as the flows: a use writes four bytes at
/// most, where a list through the whole table would write three lines. The price: a bucket can be
/// full while others have room. With as many live flows as capacity, about 16 % of them are out;
/// with 0.75 times as many 7 %, with half 1.7 % (Poisson arrivals at buckets of six). Up to six
/// flows of capacity it is true LRU.
#[derive(Clone, Debug)]
pub struct Lru<K, const S: usize = SLOTS> {
    key: HashKey,
    buckets: Vec<Bucket<K, S>>,
    capacity: usize,
    /// Slots of a bucket in use, one more in the first `wider` buckets.
    ways: usize,
    wider: usize,
    len: usize,
    evictions: u64,
}

/// Slot i was used before slot i - 1: four bits per slot, the most recent lowest.
const FIRST_ORDER: u32 = 0x7654_3210;

/// The order after a use of `slot`.
#[inline(always)]
fn used(order: u32, slot: usize) -> u32 {
    let slot = slot as u32;
    // Where the nibble stands: the lowest zero nibble of the difference. Bits above a zero
    // nibble may be wrong, the lowest is right.
    let difference = order ^ (slot * 0x1111_1111);
    let zero = difference.wrapping_sub(0x1111_1111) & !difference & 0x8888_8888;
    let shift = zero.trailing_zeros() & !3;
    let below = (1 << shift) - 1;
    let above = !(below << 4 | 0xf);
    order & above | (order & below) << 4 | slot
}

/// The slot that was used least recently of the first `ways`. Slots from `ways` on are never used,
/// so they stand last.
#[inline(always)]
fn oldest(order: u32, ways: usize) -> usize {
    (order >> (4 * (ways - 1)) & 0xf) as usize
}

impl<K: Key + Default, const S: usize> Lru<K, S> {
    /// An empty table for at most `capacity` flows; none are permitted.
    pub fn new(key: HashKey, capacity: usize) -> Self {
        const { assert!(S >= 1 && S <= 8, "the order has eight places") };
        let count = capacity.div_ceil(S);
        let buckets = vec![Bucket::new(FIRST_ORDER); count];
        let ways = capacity.checked_div(count).unwrap_or(0);
        Self { key, buckets, capacity, ways, wider: capacity - ways * count, len: 0, evictions: 0 }
    }

    /// The flows, with their backends, that share a bucket with flows of this hash.
    pub fn peers(&self, hash: u64) -> impl Iterator<Item = (&K, u16)> {
        let bucket = self.buckets.get(self.home(hash)).into_iter();
        bucket.flat_map(Bucket::entries).map(|(_, flow, backend)| (flow, backend))
    }

    /// The flow that would have to go if one with this hash, which is not there, were inserted
    /// now; `None` if there is room, or no table.
    pub fn victim(&self, hash: u64) -> Option<&K> {
        let home = self.home(hash);
        let ways = self.ways + usize::from(home < self.wider);
        let bucket = self.buckets.get(home)?;
        match bucket.free_slot(ways) {
            Some(_) => None,
            None => Some(bucket.key(oldest(bucket.extra, ways))),
        }
    }

    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        scale(spread(hash), self.buckets.len() as u32) as usize
    }
}

impl<K: Key + Default, const S: usize> ConnectionTable for Lru<K, S> {
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
        let home = self.home(hash);
        let bucket = self.buckets.get_mut(home)?;
        let slot = bucket.slot_of(flow)?;
        // A line that does not change need not be written back.
        if bucket.extra & 0xf != slot as u32 {
            bucket.extra = used(bucket.extra, slot);
        }
        Some(bucket.backend(slot))
    }

    #[inline(always)]
    fn peek(&self, hash: u64, flow: &K) -> Option<u16> {
        let found = self.buckets.get(self.home(hash))?.find(flow);
        (found != EMPTY).then_some(found)
    }

    fn insert(&mut self, hash: u64, flow: K, backend: u16) {
        let home = self.home(hash);
        let ways = self.ways + usize::from(home < self.wider);
        let Some(bucket) = self.buckets.get_mut(home) else {
            self.evictions += 1;
            return;
        };
        let slot = match bucket.slot_of(&flow) {
            Some(slot) => slot,
            None => match bucket.free_slot(ways) {
                Some(slot) => {
                    self.len += 1;
                    slot
                }
                None => {
                    self.evictions += 1;
                    oldest(bucket.extra, ways)
                }
            },
        };
        bucket.set(slot, flow, backend);
        bucket.extra = used(bucket.extra, slot);
    }

    fn remove(&mut self, hash: u64, flow: &K) -> Option<u16> {
        let home = self.home(hash);
        let bucket = self.buckets.get_mut(home)?;
        let slot = bucket.slot_of(flow)?;
        let backend = bucket.backend(slot);
        bucket.clear(slot);
        self.len -= 1;
        Some(backend)
    }

    fn retain(&mut self, mut keep: impl FnMut(&K, u16) -> bool) -> usize {
        let before = self.len;
        for bucket in &mut self.buckets {
            let copy = *bucket;
            for (slot, flow, backend) in copy.entries() {
                if !keep(flow, backend) {
                    bucket.clear(slot);
                    self.len -= 1;
                }
            }
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
        Some(self.capacity)
    }

    fn evictions(&self) -> u64 {
        self.evictions
    }

    fn bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<Bucket<K, S>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a list.
    #[test]
    fn the_order_is_a_list_with_moves_to_the_front() {
        let mut list: Vec<u32> = (0..8).collect();
        let mut order = FIRST_ORDER;
        let mut random = 1u64;
        for _ in 0..10_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let slot = (random >> 61) as u32;
            list.retain(|&other| other != slot);
            list.insert(0, slot);
            order = used(order, slot as usize);
            let want = list.iter().rev().fold(0, |word, &slot| word << 4 | slot);
            assert_eq!(order, want, "{order:08x}");
        }
    }

    /// The victim that is named is the flow that an insertion puts out, and nobody else goes.
    #[test]
    fn the_victim_is_who_goes() {
        let key = HashKey::from_seed(5);
        let mut table: Lru<u64> = Lru::new(key, 100);
        let mut random = 3u64;
        let mut evicted = 0;
        for _ in 0..5_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let flow = random >> 56;
            let hash = flow.hash(&key);
            if table.get(hash, &flow).is_some() {
                continue;
            }
            let victim = table.victim(hash).copied();
            let mut left: Vec<u64> = table.peers(hash).map(|(&flow, _)| flow).collect();
            left.retain(|&peer| Some(peer) != victim);
            table.insert(hash, flow, 1);
            left.push(flow);
            let mut now: Vec<u64> = table.peers(hash).map(|(&flow, _)| flow).collect();
            left.sort_unstable();
            now.sort_unstable();
            assert_eq!(now, left);
            evicted += u64::from(victim.is_some());
        }
        assert_eq!(evicted, table.evictions());
        assert!(evicted > 1_000);
        let none: Lru<u64> = Lru::new(key, 0);
        assert_eq!((none.victim(7), none.peers(7).count()), (None, 0));
    }
}
