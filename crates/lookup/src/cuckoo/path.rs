//! The shortest way to a free slot in a (2,4)-cuckoo table.

/// Slots of a bucket.
pub(crate) const SLOTS: usize = 4;

/// Buckets that one search looks at: all chains of up to three moves, most of four.
const VISITED: usize = 512;

/// Moves of the longest path: 2 roots and 4-fold branching reach depth 5 within [`VISITED`].
pub(crate) const MAX_PATH: usize = 8;

/// How many paths a search proposes before it gives up.
const PROPOSED: usize = 12;

#[derive(Clone, Copy, Debug)]
struct Step {
    bucket: u32,
    parent: u16,
    slot: u8,
}

/// Buckets from the root, which takes the new entry, to the one with a free slot. The entry in
/// `slots[i]` of `buckets[i]` moves to `buckets[i + 1]`.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Path {
    pub(crate) len: usize,
    pub(crate) buckets: [u32; MAX_PATH],
    pub(crate) slots: [u8; MAX_PATH],
}

/// Breadth-first search, with memory that is used again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Search {
    queue: Vec<Step>,
}

impl Search {
    /// Proposes paths in the order of their lengths until `accept` takes one. `free` tells whether
    /// a bucket has a free slot, `other` where the entry in a slot could stand as well.
    pub(crate) fn find(
        &mut self,
        roots: [u32; 2],
        free: impl Fn(u32) -> bool,
        other: impl Fn(u32, usize) -> u32,
        mut accept: impl FnMut(&Path) -> bool,
    ) -> bool {
        self.queue.clear();
        let mut proposed = 0;
        let roots = &roots[..1 + usize::from(roots[0] != roots[1])];
        for &bucket in roots {
            self.queue.push(Step { bucket, parent: u16::MAX, slot: 0 });
            if free(bucket) {
                proposed += 1;
                if accept(&self.path(self.queue.len() - 1)) {
                    return true;
                }
            }
        }
        // A bucket is asked for room when it is found, not when its turn comes: that saves the
        // expansion of all others of its level.
        let mut at = 0;
        while at < self.queue.len() && self.queue.len() + SLOTS <= VISITED {
            let bucket = self.queue[at].bucket;
            if !free(bucket) {
                for slot in 0..SLOTS {
                    let next = other(bucket, slot);
                    // A path that returns to a bucket would move an entry that is gone by then.
                    if self.on_path(at, next) {
                        continue;
                    }
                    self.queue.push(Step { bucket: next, parent: at as u16, slot: slot as u8 });
                    if free(next) {
                        if accept(&self.path(self.queue.len() - 1)) {
                            return true;
                        }
                        proposed += 1;
                        if proposed >= PROPOSED {
                            return false;
                        }
                    }
                }
            }
            at += 1;
        }
        false
    }

    fn on_path(&self, mut at: usize, bucket: u32) -> bool {
        loop {
            let step = self.queue[at];
            if step.bucket == bucket {
                return true;
            }
            if step.parent == u16::MAX {
                return false;
            }
            at = usize::from(step.parent);
        }
    }

    fn path(&self, mut at: usize) -> Path {
        let mut path = Path::default();
        let mut reversed = [(0, 0); MAX_PATH];
        loop {
            let step = self.queue[at];
            reversed[path.len] = (step.bucket, step.slot);
            path.len += 1;
            if step.parent == u16::MAX {
                break;
            }
            at = usize::from(step.parent);
        }
        for i in 0..path.len {
            path.buckets[i] = reversed[path.len - 1 - i].0;
            // A step names the slot of its parent from which it is reached.
            path.slots[i] = if i + 1 < path.len { reversed[path.len - 2 - i].1 } else { 0 };
        }
        path
    }
}
