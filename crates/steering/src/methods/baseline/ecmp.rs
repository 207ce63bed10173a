//! A hash modulo the size of the pool.

use super::by_hash;
use crate::decide::{Decide, Decision, Question, Why};
use crate::forwarder::table_alone;
use crate::memory::Memory;
use crate::table::NO_BACKEND;
use weir_hash::{HashKey, Key};
use weir_placement::Candidate;

/// What a router does with equal-cost paths: modulo-N hashing (RFC 2992, section 2).
///
/// From n to n + 1 backends a flow stays where it was only if its hash has the same remainder by
/// both: 1 flow in n + 1.
#[derive(Clone, Debug)]
pub struct Ecmp {
    key: HashKey,
    /// Each backend as often as its weight says.
    backends: Vec<u16>,
    /// 2^64 / n, rounded up: makes a remainder of two products (Lemire and others, "Faster
    /// Remainder by Direct Computation", 2019; exact for 32 bits).
    inverse: u64,
}

impl Ecmp {
    /// An empty pool. `seed` makes every run with it the same.
    pub fn new(seed: u64) -> Self {
        Self { key: HashKey::from_seed(seed), backends: Vec::new(), inverse: 0 }
    }

    /// Replaces the pool. The order of the candidates counts.
    pub fn set_pool(&mut self, pool: &[Candidate<'_>]) {
        let copies = |c: &Candidate<'_>| std::iter::repeat_n(c.backend, c.weight as usize);
        self.backends = pool.iter().flat_map(copies).collect();
        self.backends.shrink_to_fit();
        self.inverse = match self.backends.len() as u64 {
            0 => 0,
            n => (u64::MAX / n).wrapping_add(1),
        };
    }

    #[inline(always)]
    fn pick(&self, hash: u64) -> u16 {
        let fraction = self.inverse.wrapping_mul(hash & 0xffff_ffff);
        let slot = (u128::from(fraction) * self.backends.len() as u128) >> 64;
        self.backends.get(slot as usize).copied().unwrap_or(NO_BACKEND)
    }
}

table_alone!([K: Key] Ecmp, K);

impl<K: Key> Decide<K> for Ecmp {
    #[inline(always)]
    fn hash_key(&self) -> &HashKey {
        &self.key
    }

    #[inline(always)]
    fn decide<M: Memory<K>>(&self, question: &Question<K>, _: &mut M) -> Decision {
        Decision::to(self.pick(question.hash), Why::Row).new_if(question.signals.starts)
    }

    fn decide_burst<M: Memory<K>>(&self, keys: &[K], out: &mut [u16], _: &mut M) {
        by_hash(&self.key, keys, out, |hashes, out| {
            out.iter_mut().zip(hashes).for_each(|(out, &hash)| *out = self.pick(hash));
        });
    }

    fn bytes(&self) -> usize {
        self.backends.capacity() * size_of::<u16>()
    }
}
