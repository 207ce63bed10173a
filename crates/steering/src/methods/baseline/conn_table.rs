//! Connection tables of digests, over Maglev hashing.

use crate::BuildError;
use crate::decide::Question;
use crate::forwarder::{Parts, steers};
use crate::ids::BackendId;
use crate::memory::{Memory, NO_CONNECTION, TrackedFlow};
use crate::methods::tracked::Tracking;
use weir_hash::{HashKey, Key};
use weir_lookup::{DigestCuckoo, Error, MISS, MultiDigest};
use weir_placement::{Candidate, Maglev};

/// Flows that are looked up in one go. As many as the tables of digests take at a time.
const BLOCK: usize = 256;

/// What a table's answer for an unknown flow becomes as a backend. No entry can hold it.
const _: () = assert!(MISS as u16 == NO_CONNECTION);

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
                self.get(flow)
            }

            #[inline(always)]
            fn find_batch<K: Key>(&self, flows: &[K], out: &mut [u32]) {
                self.get_batch(flows, out);
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
/// remembered: [`Tracking`] with a memory of digests.
///
/// A flow that shares its digest with a known one follows that one (a *false hit*), is not
/// remembered, and may break when the other one ends.
#[derive(Clone, Debug)]
pub struct ConnTable<T> {
    placed: Tracking<Maglev>,
    flows: Flows<T>,
}

/// The memory: digests of the flows, and which backends count.
#[derive(Clone, Debug)]
pub struct Flows<T> {
    table: T,
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
        let flows = Flows {
            table,
            present: Vec::new(),
            gone: Vec::new(),
            any_gone: false,
            refused: 0,
            found: Box::new([0; BLOCK]),
        };
        let placed = Tracking::new(HashKey::from_seed(seed), Maglev::build(size, &[])?);
        Ok(Self { placed, flows })
    }

    /// Replaces the pool. A backend of weight 0 keeps its flows; one that is missing loses them.
    ///
    /// # Errors
    ///
    /// [`BuildError::Maglev`], as [`Maglev::build`]. Nothing has changed then.
    pub fn set_pool(&mut self, pool: &[Candidate<'_>]) -> Result<(), BuildError> {
        let placement = Maglev::build(self.placed.placement.slots().len() as u32, pool)?;
        self.adopt(placement, &pool.iter().map(|c| c.backend).collect::<Vec<_>>());
        Ok(())
    }

    /// As [`set_pool`](Self::set_pool), with a placement that was built elsewhere, so that packets
    /// need not wait. `members` are all backends of the pool, those of weight 0 too.
    pub fn adopt(&mut self, placement: Maglev, members: &[u16]) {
        self.placed.placement = placement;
        self.flows.set_members(members);
    }

    /// The table of digests.
    pub fn table(&self) -> &T {
        &self.flows.table
    }

    /// New flows that were not remembered because the table was full.
    pub fn refused(&self) -> u64 {
        self.flows.refused
    }

    /// The backend that the table has for a flow: its own, or by a false hit another's.
    pub fn known<K: Key>(&self, flow: &K) -> Option<u16> {
        self.flows.table.find(flow).filter(|&backend| self.flows.holds(backend))
    }
}

impl<T: Digests> Flows<T> {
    fn set_members(&mut self, members: &[u16]) {
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

    #[inline(always)]
    fn holds(&self, backend: u16) -> bool {
        !self.any_gone || !self.gone.get(usize::from(backend)).is_some_and(|&gone| gone)
    }

    /// What is found for a flow behind entries for backends that are gone, which go.
    #[cold]
    fn behind<K: Key>(&mut self, flow: &K) -> Option<u16> {
        while let Some(backend) = self.table.find(flow) {
            if self.holds(backend) {
                return Some(backend);
            }
            self.table.take(flow);
        }
        None
    }
}

impl<K: Key, T: Digests> Memory<K> for Flows<T> {
    const SHADOWS: bool = T::SHADOWS;

    #[inline(always)]
    fn connection(&mut self, question: &Question<K>) -> Option<TrackedFlow> {
        // A copy, so that not the whole question has to stand in memory.
        let flow = question.key;
        let found = self.table.find(&flow)?;
        let backend = if self.holds(found) { found } else { self.behind(&flow)? };
        Some(TrackedFlow::new(BackendId::new(backend)?, 0))
    }

    #[inline(always)]
    fn connections(&mut self, keys: &[K], out: &mut [u16]) -> Option<bool> {
        let found = &mut self.found[..keys.len()];
        self.table.find_batch(keys, found);
        let mut unknown = false;
        for (out, &found) in out.iter_mut().zip(&*found) {
            *out = found as u16;
            unknown |= *out == NO_CONNECTION;
        }
        if self.any_gone {
            for out in out.iter_mut().filter(|out| !self.holds(**out)) {
                *out = NO_CONNECTION;
                unknown = true;
            }
        }
        Some(!unknown)
    }

    fn track(&mut self, question: &Question<K>, entry: TrackedFlow) {
        self.refused += u64::from(self.table.put(&question.key, entry.backend.get()).is_err());
    }

    fn end(&mut self, question: &Question<K>) {
        self.table.take(&question.key);
    }

    fn bytes(&self) -> usize {
        self.table.bytes() + self.gone.capacity()
    }
}

steers!([K: Key, T: Digests] ConnTable<T>, K);

impl<T: Digests, K: Key> Parts<K> for ConnTable<T> {
    type Table = Tracking<Maglev>;
    type Memory = Flows<T>;

    #[inline(always)]
    fn with_parts<R>(&mut self, run: impl FnOnce(&Tracking<Maglev>, &mut Flows<T>) -> R) -> R {
        run(&self.placed, &mut self.flows)
    }

    fn bytes(&self) -> usize {
        Memory::<K>::bytes(&self.flows) + size_of_val(self.placed.placement.slots())
    }
}
