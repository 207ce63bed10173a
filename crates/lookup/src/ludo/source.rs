//! The source table: a (2,4)-cuckoo table of whole keys, each at the slot that its seed names.

use super::tables::IDENTITY;
use super::update::Node;
use super::{SEED_WORDS, Shape, find_seed, slot_of};
use crate::cuckoo::path::{MAX_PATH, Path, SLOTS, Search};
use crate::memory::pages::Pages;
use crate::prefetch;

/// The hashes and keys of a bucket: one cache line for keys of 8 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Bucket<K> {
    hashes: [u64; SLOTS],
    keys: [K; SLOTS],
}

/// Apart from the bucket, because searches ask many buckets whether they have room.
#[derive(Clone, Copy, Default, Debug)]
struct Meta {
    /// Bit for each slot in use.
    occupied: u8,
    seed: u8,
}

const FULL: u8 = (1 << SLOTS) - 1;

#[derive(Clone, Debug)]
pub(crate) struct Source<K> {
    /// Empty until the first key comes, which fills the unused slots.
    buckets: Pages<Bucket<K>>,
    meta: Pages<Meta>,
    shape: Shape,
    search: Search,
}

/// Where a new key goes: a path and the seed of each of its buckets.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) path: Path,
    seeds: [u8; MAX_PATH],
}

/// What stands where a key would stand.
pub(crate) enum Found {
    Key(u32, u8),
    /// Another key with the same 64-bit hash.
    Twin,
    Nothing,
}

impl<K: Copy + Eq> Source<K> {
    pub(crate) fn new(shape: Shape) -> Self {
        Self {
            buckets: Pages::default(),
            meta: Pages::filled(Meta::default(), shape.buckets as usize),
            shape,
            search: Search::default(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.buckets.allocated() + self.meta.allocated()
    }

    /// Asks for what tells whether the buckets of a hash have room.
    #[inline(always)]
    pub(crate) fn fetch_meta(&self, hash: u64) {
        for bucket in self.shape.buckets_of(hash) {
            prefetch(&self.meta, bucket as usize);
        }
    }

    /// Asks for a bucket.
    #[inline(always)]
    pub(crate) fn fetch_bucket(&self, bucket: u32) {
        prefetch(&self.buckets, bucket as usize);
    }

    #[inline(always)]
    pub(crate) fn is_full(&self, bucket: u32) -> bool {
        self.meta[bucket as usize].occupied == FULL
    }

    /// The first key in two full buckets whose other bucket has room: its hash, and that bucket.
    pub(crate) fn first_move(&self, roots: [u32; 2]) -> Option<(u64, u32)> {
        if roots.iter().any(|&root| !self.is_full(root)) {
            return None;
        }
        roots.into_iter().find_map(|root| {
            (0..SLOTS).find_map(|slot| {
                let to = self.other(root, slot);
                (!self.is_full(to)).then(|| (self.buckets[root as usize].hashes[slot], to))
            })
        })
    }

    /// Looks for a key in the bucket that the locator names.
    #[inline]
    pub(crate) fn find(&self, key: &K, hash: u64, bucket: u32) -> Found {
        let meta = self.meta[bucket as usize];
        let slot = slot_of(hash, u32::from(meta.seed)) as usize;
        if meta.occupied >> slot & 1 == 0 {
            return Found::Nothing;
        }
        let entry = &self.buckets[bucket as usize];
        match entry.hashes[slot] == hash {
            false => Found::Nothing,
            true if entry.keys[slot] == *key => Found::Key(bucket, slot as u8),
            true => Found::Twin,
        }
    }

    pub(crate) fn remove(&mut self, bucket: u32, slot: u8) {
        self.meta[bucket as usize].occupied &= !(1 << slot);
    }

    /// All entries: bucket, slot, hash, key.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u32, u32, u64, K)> + '_ {
        self.meta.iter().zip(self.buckets.iter()).enumerate().flat_map(|(at, (meta, bucket))| {
            (0..SLOTS)
                .filter(|slot| meta.occupied >> slot & 1 != 0)
                .map(move |slot| (at as u32, slot as u32, bucket.hashes[slot], bucket.keys[slot]))
        })
    }

    fn other(&self, bucket: u32, slot: usize) -> u32 {
        let [first, second] = self.shape.buckets_of(self.buckets[bucket as usize].hashes[slot]);
        if first == bucket { second } else { first }
    }

    /// The shortest path on which every bucket finds a seed of five bits; if there is none among
    /// the first few, the shortest path. `None` if there is no path.
    ///
    /// `preferred` is the bucket that the locator names already: a key that goes there changes
    /// nothing in the locator. Keys with hashes in `pinned` are not moved.
    pub(crate) fn plan(
        &mut self,
        (hash, key): (u64, K),
        preferred: u32,
        pinned: &[u64],
    ) -> Option<Plan> {
        if self.buckets.is_empty() {
            let bucket = Bucket { hashes: [0; SLOTS], keys: [key; SLOTS] };
            self.buckets = Pages::filled(bucket, self.meta.len());
        }
        let mut roots = self.shape.buckets_of(hash);
        if roots[0] != preferred {
            roots.swap(0, 1);
        }
        let mut search = std::mem::take(&mut self.search);
        let mut chosen = Plan { path: Path::default(), seeds: [0; MAX_PATH] };
        let mut first = None;
        let found = search.find(
            roots,
            |bucket| !self.is_full(bucket),
            |bucket, slot| self.other(bucket, slot),
            |path| {
                chosen.path = *path;
                if !pinned.is_empty() && self.moved(&chosen).any(|hash| pinned.contains(&hash)) {
                    return false;
                }
                first.get_or_insert(*path);
                self.find_seeds(hash, &mut chosen, 1)
            },
        );
        self.search = search;
        if !found {
            chosen.path = first?;
            return self.find_seeds(hash, &mut chosen, SEED_WORDS).then_some(chosen);
        }
        Some(chosen)
    }

    fn find_seeds(&self, hash: u64, plan: &mut Plan, words: u32) -> bool {
        let Path { len, buckets, slots } = plan.path;
        for at in 0..len {
            let incoming = match at.checked_sub(1) {
                Some(before) => {
                    self.buckets[buckets[before] as usize].hashes[usize::from(slots[before])]
                }
                None => hash,
            };
            let leaving = (at + 1 < len).then_some(slots[at]);
            let (hashes, count) = self.hashes_after(buckets[at], leaving, incoming);
            let current = self.meta[buckets[at] as usize].seed;
            match find_seed(&hashes[..count], current.into(), words) {
                Some(seed) => plan.seeds[at] = seed,
                None => return false,
            }
        }
        true
    }

    /// The hashes of a bucket when one has left and one has come.
    fn hashes_after(&self, at: u32, leaving: Option<u8>, incoming: u64) -> ([u64; SLOTS], usize) {
        let (bucket, mut left) = (&self.buckets[at as usize], self.meta[at as usize].occupied);
        if let Some(slot) = leaving {
            left &= !(1 << slot);
        }
        let mut hashes = [incoming; SLOTS];
        let mut count = 1;
        for slot in 0..SLOTS {
            if left >> slot & 1 != 0 {
                hashes[count & (SLOTS - 1)] = bucket.hashes[slot];
                count += 1;
            }
        }
        (hashes, count)
    }

    /// The hashes of the keys that a plan moves.
    pub(crate) fn moved(&self, plan: &Plan) -> impl Iterator<Item = u64> + '_ {
        let Path { len, buckets, slots } = plan.path;
        (0..len - 1)
            .map(move |at| self.buckets[buckets[at] as usize].hashes[usize::from(slots[at])])
    }

    /// Moves the entries of a plan and adds the new key; writes the nodes of the update sequence.
    pub(crate) fn commit(&mut self, plan: &Plan, (hash, key): (u64, K), nodes: &mut Vec<Node>) {
        let Path { len, buckets, slots } = plan.path;
        nodes.resize(len, Node::default());
        for at in (0..len).rev() {
            let incoming = match at.checked_sub(1) {
                Some(before) => {
                    let from = &self.buckets[buckets[before] as usize];
                    let slot = usize::from(slots[before]);
                    (from.hashes[slot], from.keys[slot])
                }
                None => (hash, key),
            };
            let leaving = (at + 1 < len).then_some(slots[at]);
            nodes[at] = self.rewrite(buckets[at], plan.seeds[at], leaving, incoming);
        }
    }

    fn rewrite(&mut self, at: u32, seed: u8, leaving: Option<u8>, incoming: (u64, K)) -> Node {
        let (bucket, meta) = (&mut self.buckets[at as usize], &mut self.meta[at as usize]);
        if let Some(slot) = leaving {
            meta.occupied &= !(1 << slot);
        }
        let takes = slot_of(incoming.0, u32::from(seed)) as u8;
        let mut order = IDENTITY;
        if seed != meta.seed {
            let (old, was) = (*bucket, meta.occupied);
            meta.occupied = 0;
            for from in 0..SLOTS {
                if was >> from & 1 != 0 {
                    let to = slot_of(old.hashes[from], u32::from(seed)) as usize;
                    bucket.hashes[to] = old.hashes[from];
                    bucket.keys[to] = old.keys[from];
                    order = order & !(3 << (2 * to)) | (from as u8) << (2 * to);
                    meta.occupied |= 1 << to;
                }
            }
        }
        bucket.hashes[usize::from(takes)] = incoming.0;
        bucket.keys[usize::from(takes)] = incoming.1;
        meta.occupied |= 1 << takes;
        meta.seed = seed;
        Node { bucket: at, seed, order, takes, leaves: leaving.unwrap_or(0) }
    }

    /// Which of its two buckets a plan gives to the new key, as the locator's bit.
    pub(crate) fn bit(&self, hash: u64, plan: &Plan) -> u64 {
        u64::from(self.shape.buckets_of(hash)[0] != plan.path.buckets[0])
    }

    /// How many buckets hold 0, 1, ... 4 keys.
    pub(crate) fn fill(&self) -> [usize; SLOTS + 1] {
        let mut fill = [0; SLOTS + 1];
        for meta in self.meta.iter() {
            fill[meta.occupied.count_ones() as usize] += 1;
        }
        fill
    }
}
