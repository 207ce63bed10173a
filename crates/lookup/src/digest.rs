//! Tables that store digests instead of keys: the two designs that Concury compares itself with.
//!
//! A digest may be shared by two keys, so these tables can answer for a key that is not theirs
//! (a *false hit*). Who knows the truth counts them with [`HitCount`].

mod cuckoo;
mod multi;

pub use cuckoo::DigestCuckoo;
pub use multi::{MultiDigest, Placed};

use crate::{BATCH, Error, pipeline};

/// What `lookup_batch` of a table of digests writes for a key that is not found.
pub const MISS: u32 = u32::MAX;

/// What a caller that knows the truth found out about the answers of a table of digests.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct HitCount {
    /// Known keys with their own value, and unknown keys that were not found.
    pub right: u64,
    /// Unknown keys that got a value all the same.
    pub false_hits: u64,
    /// Known keys that got another key's value.
    pub wrong: u64,
    /// Known keys that were not found.
    pub lost: u64,
}

impl HitCount {
    /// Counts one answer. (Two keys with equal values look right to each other, as they are.)
    pub fn note(&mut self, found: Option<u16>, truth: Option<u16>) {
        *match (found, truth) {
            _ if found == truth => &mut self.right,
            (Some(_), None) => &mut self.false_hits,
            (Some(_), Some(_)) => &mut self.wrong,
            (None, _) => &mut self.lost,
        } += 1;
    }
}

/// A value as it stands in a slot: 0 is an empty one, so `or` over a bucket gives the answer.
fn stored(value: u16) -> Result<u16, Error> {
    if value == u16::MAX { Err(Error::ReservedValue) } else { Ok(!value) }
}

/// The answer that a stored value stands for.
#[inline(always)]
fn value(stored: u16) -> Option<u16> {
    (stored != 0).then_some(!stored)
}

/// The same for a batch: [`MISS`] instead of `None`.
#[inline(always)]
fn batch_value(stored: u16) -> u32 {
    if stored == 0 { MISS } else { u32::from(!stored) }
}

/// Keys that go through a second pass together: long enough to fill the pipeline with the misses
/// of the first one, short enough to stay in the first-level cache.
const BLOCK: usize = 8 * BATCH;

/// The keys of a block that are not found yet, by position.
struct Misses {
    positions: [u32; BLOCK],
    count: usize,
}

impl Misses {
    /// Those of `out` (at most [`BLOCK`]) that are [`MISS`]. Branch-free, as each is a coin toss.
    #[inline(always)]
    fn of(out: &[u32]) -> Self {
        let mut misses = Self { positions: [0; BLOCK], count: 0 };
        for (at, result) in out.iter().enumerate() {
            misses.positions[misses.count & (BLOCK - 1)] = at as u32;
            misses.count += usize::from(*result == MISS);
        }
        misses
    }

    /// Looks them up in another place; keeps those that are not there either.
    #[inline(always)]
    fn retry<K: Copy, P: Copy + Default>(
        &mut self,
        keys: &[K],
        out: &mut [u32],
        locate: impl Fn(&K) -> P,
        fetch: impl Fn(P),
        read: impl Fn(P) -> u32,
    ) {
        let mut found = [MISS; BLOCK];
        let found = &mut found[..self.count];
        let locate = |&at: &u32| locate(&keys[at as usize]);
        pipeline(&self.positions[..self.count], found, locate, fetch, read);
        let mut left = 0;
        for (i, &result) in found.iter().enumerate() {
            let at = self.positions[i];
            out[at as usize] = result;
            self.positions[left] = at;
            left += usize::from(result == MISS);
        }
        self.count = left;
    }
}
