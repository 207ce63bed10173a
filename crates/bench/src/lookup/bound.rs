//! The bound of a method: the memory reads that it cannot do without, and nothing else.

use super::subject::{Shared, Subject, share};
use std::sync::Arc;
use weir_lookup::simd::gather::Gather;
use weir_steering::Steer;

/// What a lookup must at least read.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Reads {
    /// Reads at random places whose addresses follow from the key alone: 1, 2 or 3.
    pub first: usize,
    /// Bytes in which these are.
    pub bytes: usize,
    /// Bytes of a table that is read at a place that the first reads tell.
    pub then: Option<usize>,
}

impl Reads {
    /// One read of a table.
    pub fn one(bytes: usize) -> Self {
        Self { first: 1, bytes, then: None }
    }

    /// The bare loop. `parts` > 1: each thread reads an array of its own, that share of the bytes.
    pub fn subjects(self, threads: usize, parts: usize) -> Vec<Box<dyn Subject>> {
        match (self.first, self.then.is_some()) {
            (1, false) => self.made::<1, false>(threads, parts),
            (1, true) => self.made::<1, true>(threads, parts),
            (2, false) => self.made::<2, false>(threads, parts),
            (2, true) => self.made::<2, true>(threads, parts),
            (_, false) => self.made::<3, false>(threads, parts),
            (_, true) => self.made::<3, true>(threads, parts),
        }
    }

    fn made<const READS: usize, const THEN: bool>(
        self,
        threads: usize,
        parts: usize,
    ) -> Vec<Box<dyn Subject>> {
        let array = || Arc::new(Gather::<READS>::new(self.bytes / parts));
        let slots = |bytes: usize| (0..(bytes / 2).next_power_of_two() as u64).map(spread);
        let then: Arc<[u16]> = self.then.map_or_else(Arc::default, |bytes| slots(bytes).collect());
        let one = array();
        let each = |_| Loop::<READS, THEN> {
            first: if parts > 1 { array() } else { one.clone() },
            then: then.clone(),
            found: Vec::new(),
        };
        share((0..threads).map(each).map(Shared::alone).collect())
    }
}

fn spread(n: u64) -> u16 {
    (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16
}

/// The bare loop of `weir_lookup`, then, if asked, one read at a place that depends on it.
struct Loop<const READS: usize, const THEN: bool> {
    first: Arc<Gather<READS>>,
    then: Arc<[u16]>,
    found: Vec<u32>,
}

impl<const READS: usize, const THEN: bool> Loop<READS, THEN> {
    /// The length of `then` is a power of two, so that a place in it costs no product.
    #[inline(always)]
    fn last(then: &[u16], key: u64, found: u32) -> u16 {
        if THEN { then[(found ^ key as u32) as usize & (then.len() - 1)] } else { found as u16 }
    }
}

impl<const READS: usize, const THEN: bool> Steer<u64> for Loop<READS, THEN> {
    #[inline(always)]
    fn steer(&mut self, key: &u64) -> u16 {
        Self::last(&self.then, *key, self.first.get(*key))
    }

    #[inline(always)]
    fn steer_batch(&mut self, keys: &[u64], out: &mut [u16]) {
        self.found.resize(keys.len(), 0);
        self.first.get_batch(keys, &mut self.found);
        for ((out, &key), &found) in out.iter_mut().zip(keys).zip(&self.found) {
            *out = Self::last(&self.then, key, found);
        }
    }

    fn end(&mut self, _: &u64) {}

    fn bytes(&self) -> usize {
        0
    }
}
