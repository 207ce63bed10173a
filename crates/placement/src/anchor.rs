//! AnchorHash.
//!
//! Mendelson, Vargaftik, Barabash, Lorenz, Keslassy, Orda, "AnchorHash: A Scalable Consistent
//! Hash", IEEE/ACM ToN 2021 (arXiv 1812.09674), section IV: the arrays A, K, W, L and the
//! stack R. JET on it: section 3.5 and Algorithm 5.

use crate::anchor_log::{LogError, Operation, decode, encode, first_digest, next_digest};
use crate::pool::{Candidate, NONE, PoolError, Pools};
use crate::score::{STEP, mix};
use crate::traits::{Horizon, Incremental, Placement, Verdict};
use weir_hash::scale;

/// Walks that are begun together.
const BLOCK: usize = 64;

/// A backend and the buckets it owns, in the order in which it got them.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Owned {
    backend: u16,
    buckets: Vec<u32>,
}

/// What a lookup reads, for a copy of it in another plane.
#[derive(Clone, Copy, Debug)]
pub struct AnchorTables<'a> {
    /// A: how many buckets worked just after this one was removed; 0 for a working bucket.
    pub anchor: &'a [u32],
    /// K: who took the place of this bucket when it was removed.
    pub successor: &'a [u32],
    /// The backend of each bucket, [`NONE`] for a removed one.
    pub owner: &'a [u16],
    /// N: how many buckets work.
    pub working: u32,
    /// How many of the buckets that were removed last belong to the horizon.
    pub horizon: u32,
}

/// Flows are hashed to a fixed set of buckets; a removed bucket passes its flows on to the
/// buckets that worked when it was removed.
///
/// A bucket has no weight. A backend of weight w owns w buckets, so **the sum of all weights is
/// bounded by the capacity**: choose small weights (1 to 10, not 100 to 1,000).
///
/// Buckets come back in the reverse order of their removal, whoever asks: the mapping from
/// buckets to backends is what lets any backend be added at any time. So the state depends on
/// the history, and balancers that should agree must apply the same changes in the same order;
/// [`Anchor::digest`] tells whether they did.
///
/// The horizon of JET is the top of the removal stack: as many buckets as the horizon's backends
/// weigh. Whoever is admitted first takes the topmost, so a flow's `may_differ` holds for
/// every order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Anchor {
    /// A of the paper: for a removed bucket, how many worked just after; 0 for a working one.
    anchor: Vec<u32>,
    /// K of the paper: who took the place of the bucket when it was removed.
    successor: Vec<u32>,
    /// W of the paper: its first N places hold the working buckets.
    place: Vec<u32>,
    /// L of the paper: where a bucket last stood in W.
    location: Vec<u32>,
    /// R of the paper: the removed buckets, the last one on top.
    removed: Vec<u32>,
    owner: Vec<u16>,
    owned: Vec<Owned>,
    pools: Pools,
    /// The horizon's backends in the order in which they are expected: who was retired last
    /// comes first, and so gets its own buckets back.
    expected: Vec<u16>,
    horizon: u32,
    log: Vec<Operation>,
    digest: u64,
}

impl Anchor {
    /// The largest capacity, in buckets: 2^22.
    pub const MAX_CAPACITY: u32 = 1 << 22;

    /// An anchor of `capacity` buckets, none of them working.
    ///
    /// A lookup takes about 1 + ln(capacity / working) steps, so twice the weight that is ever
    /// expected is plenty: 1.7 steps.
    ///
    /// # Errors
    ///
    /// [`PoolError::Size`] if the capacity is 0 or more than [`Self::MAX_CAPACITY`].
    pub fn new(capacity: u32) -> Result<Self, PoolError> {
        if capacity == 0 || capacity > Self::MAX_CAPACITY {
            return Err(PoolError::Size { size: capacity, max: Self::MAX_CAPACITY });
        }
        let identity: Vec<u32> = (0..capacity).collect();
        Ok(Self {
            // As if all had worked and then been removed from the last to the first.
            anchor: identity.clone(),
            successor: identity.clone(),
            place: identity.clone(),
            location: identity,
            removed: (0..capacity).rev().collect(),
            owner: vec![NONE; capacity as usize],
            owned: Vec::new(),
            pools: Pools::default(),
            expected: Vec::new(),
            horizon: 0,
            log: Vec::new(),
            digest: first_digest(capacity),
        })
    }

    /// The number of buckets, working or not.
    pub fn capacity(&self) -> u32 {
        self.anchor.len() as u32
    }

    /// The number of working buckets: N, the sum of the working weights.
    pub fn working(&self) -> u32 {
        self.capacity() - self.removed.len() as u32
    }

    /// What a lookup reads.
    pub fn tables(&self) -> AnchorTables<'_> {
        AnchorTables {
            anchor: &self.anchor,
            successor: &self.successor,
            owner: &self.owner,
            working: self.working(),
            horizon: self.horizon,
        }
    }

    /// All changes since the anchor was made, the first one first. The log grows by 16 bytes per
    /// change and never shrinks.
    pub fn log(&self) -> &[Operation] {
        &self.log
    }

    /// A number that two anchors share if they have the same capacity and history, and else
    /// (but for one chance in 2^64) do not.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Capacity and history as bytes, 16 for each change; [`Self::replay`] makes the same anchor of
    /// them.
    pub fn encode(&self) -> Vec<u8> {
        encode(self.capacity(), &self.log, self.digest)
    }

    /// An anchor with the history of another, from the bytes of [`Self::encode`].
    ///
    /// # Errors
    ///
    /// [`LogError`] if the bytes are no history of this version, were damaged, or hold a change
    /// that cannot be applied; it says which.
    pub fn replay(bytes: &[u8]) -> Result<Self, LogError> {
        let (capacity, log) = decode(bytes)?;
        let mut anchor = Self::new(capacity).map_err(LogError::Capacity)?;
        for (index, operation) in log.into_iter().enumerate() {
            anchor.apply(operation).map_err(|error| LogError::Refused { index, error })?;
        }
        Ok(anchor)
    }

    /// Applies one change, of another balancer's log or of one's own, and logs it.
    ///
    /// # Errors
    ///
    /// As the method of the same name; nothing is logged then.
    pub fn apply(&mut self, operation: Operation) -> Result<(), PoolError> {
        match operation {
            Operation::Add { backend, weight, name } => {
                let member = self.pools.check_identity(name, backend, weight)?;
                self.check_room(weight)?;
                self.pools.add(member);
                self.grow(backend, weight);
            }
            Operation::Remove { backend } => {
                let member = self.pools.remove(backend)?;
                self.shrink(backend, member.weight);
                self.clip_horizon();
            }
            Operation::Reweight { backend, weight } => self.change_weight(backend, weight)?,
            Operation::AddHorizon { backend, weight, name } => {
                let member = self.pools.check_identity(name, backend, weight)?;
                self.check_room(weight)?;
                self.pools.add_horizon(member);
                self.expected.push(backend);
                self.clip_horizon();
            }
            Operation::RemoveHorizon { backend } => {
                self.pools.remove_horizon(backend)?;
                self.expected.retain(|&other| other != backend);
                self.clip_horizon();
            }
            Operation::Admit { backend } => {
                let member = self.pools.admit(backend)?;
                self.expected.retain(|&other| other != backend);
                self.grow(backend, member.weight);
                self.clip_horizon();
            }
            Operation::Retire { backend } => {
                let member = self.pools.retire(backend)?;
                self.shrink(backend, member.weight);
                self.expected.insert(0, backend);
                self.clip_horizon();
            }
        }
        self.log.push(operation);
        self.digest = next_digest(self.digest, operation);
        Ok(())
    }

    fn change_weight(&mut self, backend: u16, weight: u32) -> Result<(), PoolError> {
        let old = self.pools.find_working(backend)?.weight;
        self.check_room(weight.saturating_sub(old))?;
        self.pools.reweight(backend, weight)?;
        if weight > old {
            self.grow(backend, weight - old);
        } else {
            self.shrink(backend, old - weight);
        }
        Ok(())
    }

    /// The horizon has its buckets reserved: nobody else may take what it needs.
    fn check_room(&self, wanted: u32) -> Result<(), PoolError> {
        let room = self.removed.len() as u64 - u64::from(self.horizon);
        let wanted = u64::from(wanted);
        if wanted > room { Err(PoolError::NoRoom { room, wanted }) } else { Ok(()) }
    }

    fn clip_horizon(&mut self) {
        self.horizon = self.pools.horizon.iter().map(|member| member.weight).sum();
    }

    /// Gives `count` buckets to the backend. The caller has seen to it that there are so many.
    fn grow(&mut self, backend: u16, count: u32) {
        for _ in 0..count {
            let Some(bucket) = self.add_bucket() else {
                return;
            };
            self.owner[bucket as usize] = backend;
            match self.owned.iter_mut().find(|owned| owned.backend == backend) {
                Some(owned) => owned.buckets.push(bucket),
                None => self.owned.push(Owned { backend, buckets: vec![bucket] }),
            }
        }
    }

    /// Takes `count` buckets from the backend, the last one first, so that adding it again
    /// restores everything.
    fn shrink(&mut self, backend: u16, count: u32) {
        let Some(index) = self.owned.iter().position(|owned| owned.backend == backend) else {
            return;
        };
        for _ in 0..count {
            if let Some(bucket) = self.owned[index].buckets.pop() {
                self.owner[bucket as usize] = NONE;
                self.remove_bucket(bucket);
            }
        }
        if self.owned[index].buckets.is_empty() {
            self.owned.swap_remove(index);
        }
    }

    /// ADDBUCKET of the paper: the bucket that was removed last.
    fn add_bucket(&mut self) -> Option<u32> {
        let working = self.working() as usize;
        let bucket = self.removed.pop()?;
        let b = bucket as usize;
        self.anchor[b] = 0;
        let mover = self.place[working];
        self.location[mover as usize] = working as u32;
        let location = self.location[b] as usize;
        self.place[location] = bucket;
        self.successor[b] = bucket;
        Some(bucket)
    }

    /// REMOVEBUCKET of the paper: the last of W moves to its place.
    fn remove_bucket(&mut self, bucket: u32) {
        self.removed.push(bucket);
        let working = self.working() as usize;
        let b = bucket as usize;
        self.anchor[b] = working as u32;
        let mover = self.place[working];
        let location = self.location[b] as usize;
        self.place[location] = mover;
        self.successor[b] = mover;
        self.location[mover as usize] = location as u32;
    }

    /// GETBUCKET of the paper, but that it stops at the first bucket that is among the `set`
    /// that would work if the buckets removed last came back, so that there are `set` of them.
    /// With `set` = N it is the paper's.
    ///
    /// A removed bucket has A >= N and a working one A = 0, so `A < set` asks both.
    /// Also returns the bucket that the flow was at before: `None` if it was at none.
    #[inline]
    fn walk(&self, hash: u64, set: u32) -> (u32, Option<u32>) {
        let mut bucket = scale(hash as u32, self.capacity());
        let mut before = None;
        loop {
            let size = self.anchor[bucket as usize];
            if size < set {
                return (bucket, before);
            }
            before = Some(bucket);
            // The paper's h_b(k): one hash function per bucket, onto the A[b] buckets that
            // worked when it was removed.
            let draw = mix(hash ^ u64::from(bucket + 1).wrapping_mul(STEP));
            let mut next = scale((draw >> 32) as u32, size);
            // Who was removed before `bucket` left its place in W to a successor.
            while self.anchor[next as usize] >= size {
                next = self.successor[next as usize];
            }
            bucket = next;
        }
    }

    /// [`Self::walk`] for many flows; `answer` is told position, bucket and bucket before, and
    /// is told again where the first answer was not the last. There must be a working bucket.
    ///
    /// Most walks end at once. Those that do not are set aside without a branch, because which
    /// they are cannot be predicted, and a wrong guess costs more than the first step.
    #[inline(always)]
    fn walk_batch(&self, hashes: &[u64], mut answer: impl FnMut(usize, u32, Option<u32>)) {
        let set = self.working();
        for (block, hashes) in hashes.chunks(BLOCK).enumerate() {
            let start = block * BLOCK;
            let mut longer = [0u8; BLOCK];
            let mut count = 0;
            for (i, &hash) in hashes.iter().enumerate() {
                let bucket = scale(hash as u32, self.capacity());
                answer(start + i, bucket, None);
                longer[count & (BLOCK - 1)] = i as u8;
                count += usize::from(self.anchor[bucket as usize] >= set);
            }
            for &i in &longer[..count] {
                let (bucket, before) = self.walk(hashes[usize::from(i)], set);
                answer(start + usize::from(i), bucket, before);
            }
        }
    }

    /// Whose bucket this will be when the horizon is admitted as expected.
    fn expected_owner(&self, bucket: u32) -> u16 {
        // The top of the stack has A = N, the one below it N + 1, and so on.
        let mut depth = self.anchor[bucket as usize] - self.working();
        for &backend in &self.expected {
            let weight = self.pools.horizon.find(backend).map_or(0, |member| member.weight);
            if depth < weight {
                return backend;
            }
            depth -= weight;
        }
        NONE
    }
}

impl Placement for Anchor {
    fn lookup(&self, hash: u64) -> Option<u16> {
        let working = self.working();
        (working > 0).then(|| self.owner[self.walk(hash, working).0 as usize])
    }

    fn lookup_batch(&self, hashes: &[u64], out: &mut [u16]) {
        assert_eq!(hashes.len(), out.len(), "one answer per hash");
        if self.working() == 0 {
            return out.fill(NONE);
        }
        self.walk_batch(hashes, |i, bucket, _| out[i] = self.owner[bucket as usize]);
    }
}

impl Incremental for Anchor {
    fn add(&mut self, candidate: Candidate<'_>) -> Result<(), PoolError> {
        let Candidate { backend, weight, .. } = candidate;
        let name = self.pools.check(&candidate)?.seed;
        self.apply(Operation::Add { backend, weight, name })
    }

    fn remove(&mut self, backend: u16) -> Result<(), PoolError> {
        self.apply(Operation::Remove { backend })
    }

    fn reweight(&mut self, backend: u16, weight: u32) -> Result<(), PoolError> {
        self.apply(Operation::Reweight { backend, weight })
    }
}

impl Horizon for Anchor {
    /// Algorithm 5: the flow is unsafe if the last removed bucket that it passed belongs to the
    /// horizon. (It passes them in the order of their removal, so if the last one is not on top
    /// of the stack, none is.)
    fn verdict(&self, hash: u64) -> Option<Verdict> {
        let working = self.working();
        if working == 0 {
            return None;
        }
        let (bucket, before) = self.walk(hash, working);
        let top = working + self.horizon;
        let may_differ = before.is_some_and(|before| self.anchor[before as usize] < top);
        Some(Verdict { backend: self.owner[bucket as usize], may_differ })
    }

    fn verdict_batch(&self, hashes: &[u64], out: &mut [Option<Verdict>]) {
        assert_eq!(hashes.len(), out.len(), "one answer per hash");
        if self.working() == 0 {
            return out.fill(None);
        }
        let top = self.working() + self.horizon;
        self.walk_batch(hashes, |i, bucket, before| {
            let may_differ = before.is_some_and(|before| self.anchor[before as usize] < top);
            out[i] = Some(Verdict { backend: self.owner[bucket as usize], may_differ });
        });
    }

    fn lookup_all(&self, hash: u64) -> Option<u16> {
        let set = self.working() + self.horizon;
        if set == 0 {
            return None;
        }
        let (bucket, _) = self.walk(hash, set);
        let owner = self.owner[bucket as usize];
        Some(if owner == NONE { self.expected_owner(bucket) } else { owner })
    }

    fn add_horizon(&mut self, candidate: Candidate<'_>) -> Result<(), PoolError> {
        let Candidate { backend, weight, .. } = candidate;
        let name = self.pools.check(&candidate)?.seed;
        self.apply(Operation::AddHorizon { backend, weight, name })
    }

    fn remove_horizon(&mut self, backend: u16) -> Result<(), PoolError> {
        self.apply(Operation::RemoveHorizon { backend })
    }

    fn admit(&mut self, backend: u16) -> Result<(), PoolError> {
        self.apply(Operation::Admit { backend })
    }

    fn retire(&mut self, backend: u16) -> Result<(), PoolError> {
        self.apply(Operation::Retire { backend })
    }
}
