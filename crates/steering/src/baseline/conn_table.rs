//! Connection tables of digests, over Maglev hashing.

use crate::{BuildError, NO_BACKEND, Steer};
use weir_lookup::{DigestCuckoo, Error, HashKey, Key, MISS, MultiDigest};
use weir_placement::{Candidate, Maglev};

/// Flows that are looked up in one go. As many as the tables of digests take at a time.
const BLOCK: usize = 256;

/// What a table's answer for an unknown flow becomes as a backend. No entry can hold it.
const UNKNOWN: u16 = MISS as u16;

/// A table from digests of flows to backends.
pub trait Digests {
    /// Whether an insertion can change what the table answers for other flows that it answered
    /// before.
    const SHADOWS: bool;

    /// The backend of a flow, or of another one with its digest.
    fn find<K: Key>(&self, flow: &K) -> Option<u16>;
    /// The same for many; [`MISS`] where there is none.
    fn find_batch<K: Key>(&self, flows: &[K], out: &mut [u32]);
    /// Adds a flow that is not found.
    ///
    /// # Errors
    ///
    /// [`Error::Full`].
    fn put<K: Key>(&mut self, flow: &K, backend: u16) -> Result<(), Error>;
    /// Removes what is found for a flow.
    fn take<K: Key>(&mut self, flow: &K);
    /// Bytes of the table.
    fn bytes(&self) -> usize;
}

macro_rules! digests {
    ($table:ident $(<$slots:ident>)?, shadows: $shadows:literal) => {
        impl $(<const $slots: usize>)? Digests for $table $(<$slots>)? {
            const SHADOWS: bool = $shadows;

            #[inline(always)]
            fn find<K: Key>(&self, flow: &K) -> Option<u16> {
                self.lookup(flow)
            }

            #[inline(always)]
            fn find_batch<K: Key>(&self, flows: &[K], out: &mut [u32]) {
                self.lookup_batch(flows, out);
            }

            fn put<K: Key>(&mut self, flow: &K, backend: u16) -> Result<(), Error> {
                self.insert(flow, backend).map(|_| ())
            }

            fn take<K: Key>(&mut self, flow: &K) {
                self.remove(flow);
            }

            fn bytes(&self) -> usize {
                $table::bytes(self)
            }
        }
    };
}

// Two flows with one digest share both buckets or none, so the second one is found.
digests!(DigestCuckoo<SLOTS>, shadows: false);
// Two flows may share digest and bucket in one level and not in another.
digests!(MultiDigest, shadows: true);

/// Every flow by its digest; a flow that is not found goes where Maglev hashing says, and is
/// remembered.
///
/// A flow that shares its digest with a known one follows that one (a *false hit*), is not
/// remembered, and may break when the other one ends.
#[derive(Clone, Debug)]
pub struct ConnTable<T> {
    key: HashKey,
    table: T,
    placement: Maglev,
    /// By backend: it is in the pool.
    present: Vec<bool>,
    /// By backend: it was in the pool and is not any more, so entries for it count for nothing.
    gone: Vec<bool>,
    any_gone: bool,
    refused: u64,
    found: Box<[u32; BLOCK]>,
}

/// Maglev's connection table (Eisenbud and others, NSDI 2016, section 3.3): one (2,4)-cuckoo table
/// with digests of 64 bits. `Digest<6>` has six slots in a bucket.
pub type Digest<const SLOTS: usize = 4> = ConnTable<DigestCuckoo<SLOTS>>;

/// SilkRoad's (Miao and others, SIGCOMM 2017, section 4): several hash tables with digests of
/// 16 bits, one behind the other.
pub type MultiLevel = ConnTable<MultiDigest>;

impl<T: Digests> ConnTable<T> {
    /// Over an empty table, and a Maglev table of `size` slots (a prime) without backends. `seed`
    /// makes every run with it the same.
    ///
    /// # Errors
    ///
    /// [`BuildError::Maglev`] for a size that is not prime.
    pub fn new(table: T, size: u32, seed: u64) -> Result<Self, BuildError> {
        Ok(Self {
            key: HashKey::from_seed(seed),
            table,
            placement: Maglev::build(size, &[])?,
            present: Vec::new(),
            gone: Vec::new(),
            any_gone: false,
            refused: 0,
            found: Box::new([0; BLOCK]),
        })
    }

    /// Replaces the pool. A backend of weight 0 keeps its flows; one that is missing loses them.
    ///
    /// # Errors
    ///
    /// [`BuildError::Maglev`], as [`Maglev::build`]. Nothing has changed then.
    pub fn set_pool(&mut self, pool: &[Candidate<'_>]) -> Result<(), BuildError> {
        let placement = Maglev::build(self.placement.slots().len() as u32, pool)?;
        self.adopt(placement, &pool.iter().map(|c| c.backend).collect::<Vec<_>>());
        Ok(())
    }

    /// As [`set_pool`](Self::set_pool), with a placement that was built elsewhere, so that packets
    /// need not wait. `members` are all backends of the pool, those of weight 0 too.
    pub fn adopt(&mut self, placement: Maglev, members: &[u16]) {
        self.placement = placement;
        let numbers = members.iter().map(|&backend| usize::from(backend) + 1).max().unwrap_or(0);
        self.gone.resize(self.gone.len().max(numbers), false);
        let mut present = vec![false; self.gone.len()];
        members.iter().for_each(|&backend| present[usize::from(backend)] = true);
        let before = std::mem::replace(&mut self.present, present);
        let before = before.into_iter().chain(std::iter::repeat(false));
        for ((gone, before), &now) in self.gone.iter_mut().zip(before).zip(&self.present) {
            *gone = !now && (*gone || before);
        }
        self.any_gone = self.gone.contains(&true);
    }

    /// The table of digests.
    pub fn table(&self) -> &T {
        &self.table
    }

    /// New flows that were not remembered because the table was full.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// The backend that the table has for a flow: its own, or by a false hit another's.
    pub fn known<K: Key>(&self, flow: &K) -> Option<u16> {
        self.table.find(flow).filter(|&backend| self.holds(backend))
    }

    #[inline(always)]
    fn holds(&self, backend: u16) -> bool {
        !self.any_gone || !self.gone.get(usize::from(backend)).is_some_and(|&gone| gone)
    }

    /// A flow that is not found, or at a backend that is gone.
    #[cold]
    fn place<K: Key>(&mut self, flow: &K) -> u16 {
        while let Some(backend) = self.table.find(flow) {
            if self.holds(backend) {
                return backend;
            }
            self.table.take(flow);
        }
        let Some(backend) = self.placement.lookup(flow.hash(&self.key)) else {
            return NO_BACKEND;
        };
        self.refused += u64::from(self.table.put(flow, backend).is_err());
        backend
    }

    /// The flows of a block that were not found, in their order.
    #[cold]
    fn place_block<K: Key>(&mut self, flows: &[K], out: &mut [u16]) {
        let mut placed = false;
        for (flow, out) in flows.iter().zip(out) {
            if *out == UNKNOWN || !self.holds(*out) {
                *out = self.place(flow);
                placed = true;
            } else if T::SHADOWS && placed {
                // Its line is in the cache; what was placed before it may hide its entry.
                *out = self.steer(flow);
            }
        }
    }
}

impl<T: Digests, K: Key> Steer<K> for ConnTable<T> {
    #[inline]
    fn steer(&mut self, flow: &K) -> u16 {
        match self.table.find(flow) {
            Some(backend) if self.holds(backend) => backend,
            _ => self.place(flow),
        }
    }

    fn steer_batch(&mut self, flows: &[K], out: &mut [u16]) {
        assert_eq!(flows.len(), out.len(), "one answer per flow");
        for (flows, out) in flows.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
            let found = &mut self.found[..flows.len()];
            self.table.find_batch(flows, found);
            let mut unknown = false;
            for (out, &found) in out.iter_mut().zip(&*found) {
                *out = found as u16;
                unknown |= *out == UNKNOWN;
            }
            if unknown || self.any_gone {
                self.place_block(flows, out);
            }
        }
    }

    fn end(&mut self, flow: &K) {
        self.table.take(flow);
    }

    fn bytes(&self) -> usize {
        self.table.bytes() + size_of_val(self.placement.slots()) + self.gone.capacity()
    }
}
