//! Level 1 and the collision-avoidance sets: what all nodes have in common.

use super::Shape;
use crate::{FibKey, Host};
use std::collections::VecDeque;
use weir_hash::HashKey;

/// Slots of a bucket.
pub(super) const SLOTS: usize = 4;

/// No key in a slot.
const FREE: u32 = u32::MAX;

/// A key's place if it is in level 2.
const LEVEL2: u32 = u32::MAX;

/// Buckets that a search for a free slot looks at before the table is made larger.
const SEARCHED: usize = 2000;

/// What a change does to the data planes, before ports take the places of hosts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Step<K> {
    /// A digest goes into the first slot of a path; what is in a slot of the path goes to the next.
    Put { path: Vec<(u32, u8)>, digest: u32, host: Host },
    /// A slot gets a new host.
    Set { bucket: u32, slot: u8, host: Host },
    /// A slot becomes free.
    Clear { bucket: u32, slot: u8 },
    /// A key enters level 2, or its host changes there.
    PutKey { key: K, host: Host },
    /// A key leaves level 2.
    ClearKey { key: K },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<K> {
    pub(super) key: K,
    hash: u64,
    pub(super) host: Host,
    /// Number of its slot, or [`LEVEL2`].
    place: u32,
}

/// A member of a bucket's collision-avoidance set: a key that could stand in the bucket.
#[derive(Clone, Copy, Debug)]
struct Member {
    digest: u32,
    entry: u32,
}

/// All keys, by slot and by bucket.
#[derive(Clone, Debug)]
pub(super) struct Skeleton<K> {
    pub(super) key: HashKey,
    pub(super) shape: Shape,
    entries: Vec<Entry<K>>,
    slots: Vec<u32>,
    sets: Vec<Vec<Member>>,
    level1: usize,
    pub(super) steps: Vec<Step<K>>,
    /// Whether the last change built the table anew.
    pub(super) rebuilt: bool,
}

impl<K: FibKey> Skeleton<K> {
    pub(super) fn new(digest_bits: u32, port_bits: u32, capacity: usize, key: HashKey) -> Self {
        let buckets = (capacity as f64 / 0.95 / SLOTS as f64).ceil() as u32 + 8;
        Self {
            key,
            shape: Shape { buckets, digest_bits, port_bits },
            entries: Vec::new(),
            slots: vec![FREE; buckets as usize * SLOTS],
            sets: vec![Vec::new(); buckets as usize],
            level1: 0,
            steps: Vec::new(),
            rebuilt: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Keys of level 1.
    pub(super) fn level1(&self) -> usize {
        self.level1
    }

    /// The entries of level 1 with bucket and slot, then those of level 2.
    pub(super) fn placed(&self) -> impl Iterator<Item = (&Entry<K>, Option<(u32, u8)>, u32)> {
        self.entries.iter().map(|entry| {
            let place = (entry.place != LEVEL2).then(|| locate(entry.place));
            (entry, place, self.shape.digest(entry.hash))
        })
    }

    fn find(&self, key: &K) -> Option<usize> {
        let hash = key.hash(&self.key);
        let digest = self.shape.digest(hash);
        let members = self.sets[self.shape.pair(hash)[0] as usize].iter();
        members
            .filter(|member| member.digest == digest)
            .map(|member| member.entry as usize)
            .find(|&entry| self.entries[entry].key == *key)
    }

    pub(super) fn host(&self, key: &K) -> Option<Host> {
        self.find(key).map(|entry| self.entries[entry].host)
    }

    fn begin(&mut self) {
        self.steps.clear();
        self.rebuilt = false;
    }

    pub(super) fn insert(&mut self, key: K, host: Host) -> Option<Host> {
        self.begin();
        if let Some(at) = self.find(&key) {
            let former = std::mem::replace(&mut self.entries[at].host, host);
            self.steps.push(match self.entries[at].place {
                LEVEL2 => Step::PutKey { key, host },
                place => {
                    let (bucket, slot) = locate(place);
                    Step::Set { bucket, slot, host }
                }
            });
            return Some(former);
        }
        let hash = key.hash(&self.key);
        self.entries.push(Entry { key, hash, host, place: LEVEL2 });
        if !self.settle(self.entries.len() - 1) {
            self.rebuild();
        }
        None
    }

    /// Gives the last entry its level and its place; `false` if there is none.
    fn settle(&mut self, at: usize) -> bool {
        let Entry { key, hash, host, .. } = self.entries[at];
        if !self.join_sets(at) {
            self.steps.push(Step::PutKey { key, host });
            return true;
        }
        let Some(path) = self.search(self.shape.pair(hash)) else { return false };
        let digest = self.shape.digest(hash);
        let numbers: Vec<u32> = path.iter().map(|&(b, s)| number(b, s)).collect();
        for pair in numbers.windows(2).rev() {
            let moved = self.slots[pair[0] as usize];
            self.slots[pair[1] as usize] = moved;
            self.entries[moved as usize].place = pair[1];
        }
        self.slots[numbers[0] as usize] = at as u32;
        self.entries[at].place = numbers[0];
        self.level1 += 1;
        self.steps.push(Step::Put { path, digest, host });
        true
    }

    /// Enters a key into the sets of its buckets. Keys of level 1 with its digest go to level 2.
    /// Tells whether there was no key with its digest.
    fn join_sets(&mut self, at: usize) -> bool {
        let hash = self.entries[at].hash;
        let digest = self.shape.digest(hash);
        let mut alone = true;
        for bucket in distinct(self.shape.pair(hash)) {
            for member in 0..self.sets[bucket as usize].len() {
                let other = self.sets[bucket as usize][member];
                if other.digest == digest {
                    alone = false;
                    self.demote(other.entry as usize);
                }
            }
            self.sets[bucket as usize].push(Member { digest, entry: at as u32 });
        }
        alone
    }

    /// Moves a key from level 1 to level 2, if it is not there.
    fn demote(&mut self, at: usize) {
        let Entry { key, host, place, .. } = self.entries[at];
        if place != LEVEL2 {
            self.free(place);
            self.entries[at].place = LEVEL2;
            self.steps.push(Step::PutKey { key, host });
        }
    }

    fn free(&mut self, place: u32) {
        let (bucket, slot) = locate(place);
        self.slots[place as usize] = FREE;
        self.level1 -= 1;
        self.steps.push(Step::Clear { bucket, slot });
    }

    /// Breadth-first search for a path of moves that ends in a free slot.
    fn search(&self, roots: [u32; 2]) -> Option<Vec<(u32, u8)>> {
        // Bucket, and from where it was reached: place in the queue, and slot there.
        let mut seen: Vec<(u32, usize, u8)> = distinct(roots).map(|b| (b, usize::MAX, 0)).collect();
        let mut queue: VecDeque<usize> = (0..seen.len()).collect();
        while let Some(at) = queue.pop_front() {
            let (bucket, ..) = seen[at];
            let here = &self.slots[bucket as usize * SLOTS..][..SLOTS];
            if let Some(free) = here.iter().position(|&entry| entry == FREE) {
                return Some(unwind(&seen, at, free as u8));
            }
            if seen.len() >= SEARCHED {
                continue;
            }
            for (slot, &entry) in here.iter().enumerate() {
                let [first, second] = self.shape.pair(self.entries[entry as usize].hash);
                let other = if first == bucket { second } else { first };
                if !on_way(&seen, at, other) {
                    queue.push_back(seen.len());
                    seen.push((other, at, slot as u8));
                }
            }
        }
        None
    }

    /// Builds the table anew, half as large again, until every key has a place.
    fn rebuild(&mut self) {
        loop {
            let Shape { digest_bits, port_bits, .. } = self.shape;
            let room = self.entries.len().max(self.slots.len()) * 3 / 2;
            let mut larger = Self::new(digest_bits, port_bits, room, self.key);
            larger.entries.reserve(self.entries.len());
            let placed = self.entries.iter().all(|&entry| {
                larger.entries.push(Entry { place: LEVEL2, ..entry });
                larger.steps.clear();
                larger.settle(larger.entries.len() - 1)
            });
            // A table that is still too small is the one to be enlarged; its entries are all here.
            larger.steps.clear();
            if placed {
                larger.rebuilt = true;
                *self = larger;
                return;
            }
            self.slots = larger.slots;
        }
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<Host> {
        let at = self.find(key)?;
        self.begin();
        let Entry { hash, host, place, .. } = self.entries[at];
        match place {
            LEVEL2 => self.steps.push(Step::ClearKey { key: *key }),
            place => self.free(place),
        }
        for bucket in distinct(self.shape.pair(hash)) {
            self.sets[bucket as usize].retain(|member| member.entry != at as u32);
        }
        // The last entry takes the number.
        let last = self.entries.len() - 1;
        self.entries.swap_remove(at);
        if at != last {
            let Entry { hash, place, .. } = self.entries[at];
            if place != LEVEL2 {
                self.slots[place as usize] = at as u32;
            }
            for bucket in distinct(self.shape.pair(hash)) {
                let members = self.sets[bucket as usize].iter_mut();
                members.filter(|member| member.entry == last as u32).for_each(|member| {
                    member.entry = at as u32;
                });
            }
        }
        Some(host)
    }

    pub(super) fn bytes(&self) -> usize {
        let members: usize = self.sets.iter().map(|set| set.capacity()).sum();
        self.entries.capacity() * size_of::<Entry<K>>()
            + self.slots.len() * 4
            + self.sets.len() * size_of::<Vec<Member>>()
            + members * size_of::<Member>()
    }
}

fn locate(place: u32) -> (u32, u8) {
    (place / SLOTS as u32, (place % SLOTS as u32) as u8)
}

fn number(bucket: u32, slot: u8) -> u32 {
    bucket * SLOTS as u32 + u32::from(slot)
}

/// A key's two buckets may be one.
fn distinct([first, second]: [u32; 2]) -> impl Iterator<Item = u32> {
    std::iter::once(first).chain((second != first).then_some(second))
}

/// Whether a bucket is on the way to a place of the queue: a path must not cross itself.
fn on_way(seen: &[(u32, usize, u8)], mut at: usize, bucket: u32) -> bool {
    loop {
        let (here, from, _) = seen[at];
        if here == bucket {
            return true;
        }
        if from == usize::MAX {
            return false;
        }
        at = from;
    }
}

/// The slots of a path, from its root to the free one.
fn unwind(seen: &[(u32, usize, u8)], mut at: usize, free: u8) -> Vec<(u32, u8)> {
    let mut path = vec![(seen[at].0, free)];
    while seen[at].1 != usize::MAX {
        let (_, from, slot) = seen[at];
        path.push((seen[from].0, slot));
        at = from;
    }
    path.reverse();
    path
}
