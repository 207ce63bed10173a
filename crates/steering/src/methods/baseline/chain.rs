//! Daisy chaining: buckets that know their former owner.

use super::by_hash;
use crate::decide::{Decide, Decision, Question, Why};
use crate::forwarder::table_alone;
use crate::memory::Memory;
use crate::table::NO_BACKEND;
use weir_hash::{HashKey, Key, scale};

/// A bucket: what the balancer writes into each packet. 8 bytes, so that one read gets all of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(8))]
pub struct Bucket {
    /// Whose it is, or [`NO_BACKEND`].
    pub current: u16,
    /// Whose it was before, or [`NO_BACKEND`].
    pub previous: u16,
    /// When it changed, in the clock of [`Chain::assign`]. A server stops passing packets on when
    /// the flows from before must have ended.
    pub since: u32,
}

/// Beamer (Olteanu and others, NSDI 2018) and Faild: a flow's bucket names its current and *one*
/// previous owner, and both go into the packet. The current owner passes a packet that belongs to
/// none of its connections on to the previous one.
///
/// So the balancer's answer is the current owner, and a packet arrives if either holds its
/// connection: see [`second_chance`](Self::second_chance). What breaks are the flows whose bucket
/// moved twice while they lived.
#[derive(Clone, Debug)]
pub struct Chain {
    key: HashKey,
    buckets: Vec<Bucket>,
}

impl Chain {
    /// Buckets without owners. `seed` makes every run with it the same.
    ///
    /// # Panics
    ///
    /// If there are 2^32 buckets or more.
    pub fn new(buckets: usize, seed: u64) -> Self {
        assert!(u32::try_from(buckets).is_ok(), "too many buckets");
        let empty = Bucket { current: NO_BACKEND, previous: NO_BACKEND, since: 0 };
        Self { key: HashKey::from_seed(seed), buckets: vec![empty; buckets] }
    }

    /// Gives each bucket its owner from `now` on, such as the rows of a
    /// [`HrwTable`](weir_placement::HrwTable), which moves the fewest. Returns how many moved.
    ///
    /// # Panics
    ///
    /// If `owners` has another length than there are buckets.
    pub fn assign(&mut self, owners: &[u16], now: u32) -> usize {
        assert_eq!(owners.len(), self.buckets.len(), "one owner per bucket");
        let mut moved = 0;
        for (bucket, &owner) in self.buckets.iter_mut().zip(owners) {
            let owner = owner.min(NO_BACKEND);
            if bucket.current != owner {
                *bucket = Bucket { current: owner, previous: bucket.current, since: now };
                moved += 1;
            }
        }
        moved
    }

    /// The bucket of a flow.
    #[inline(always)]
    pub fn bucket<K: Key>(&self, flow: &K) -> Bucket {
        self.at(flow.hash(&self.key))
    }

    /// Where the current owner passes a packet on to if it does not hold the flow.
    pub fn second_chance<K: Key>(&self, flow: &K) -> Option<u16> {
        Some(self.bucket(flow).previous).filter(|&backend| backend != NO_BACKEND)
    }

    #[inline(always)]
    fn row(&self, hash: u64) -> u32 {
        scale(hash as u32, self.buckets.len() as u32)
    }

    #[inline(always)]
    fn at(&self, hash: u64) -> Bucket {
        self.buckets[self.row(hash) as usize]
    }
}

table_alone!([K: Key] Chain, K);

impl<K: Key> Decide<K> for Chain {
    #[inline(always)]
    fn hash_key(&self) -> &HashKey {
        &self.key
    }

    #[inline(always)]
    fn decide<M: Memory<K>>(&self, question: &Question<K>, _: &mut M) -> Decision {
        let row = self.row(question.hash);
        let owner = self.buckets[row as usize].current;
        Decision::to(owner, Why::Row).new_if(question.signals.starts).by_row(row)
    }

    fn decide_burst<M: Memory<K>>(&self, keys: &[K], out: &mut [u16], _: &mut M) {
        by_hash(&self.key, keys, out, |hashes, out| {
            out.iter_mut().zip(hashes).for_each(|(out, &hash)| *out = self.at(hash).current);
        });
    }

    fn bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<Bucket>()
    }
}
