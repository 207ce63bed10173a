//! The data plane of the Cuckoo forwarder.

use super::Shape;
use super::skeleton::SLOTS;
use crate::plane::{self, kind, open_next};
use crate::{FibKey, MessageError, Plane};
use weir_hash::HashKey;
use weir_lookup::message::{BitReader, BitWriter};
use weir_lookup::{Cuckoo, pipeline, prefetch};

/// Digests and ports in buckets of four without gaps; digest 0 is a free slot.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Slots {
    shape: Shape,
    words: Vec<u64>,
}

impl Slots {
    pub(super) fn new(shape: Shape) -> Self {
        let bits = u64::from(shape.buckets) * SLOTS as u64 * u64::from(shape.slot_bits());
        // One more word, so that a slot can always be read from two.
        Self { shape, words: vec![0; (bits / 64) as usize + 2] }
    }

    #[inline(always)]
    fn bit(&self, bucket: u32, slot: usize) -> u64 {
        (u64::from(bucket) * SLOTS as u64 + slot as u64) * u64::from(self.shape.slot_bits())
    }

    /// Digest and port of a slot, the digest in the low bits.
    #[inline(always)]
    fn read(&self, bucket: u32, slot: usize) -> u64 {
        let bit = self.bit(bucket, slot);
        let at = (bit / 64) as usize;
        let both = u128::from(self.words[at]) | u128::from(self.words[at + 1]) << 64;
        (both >> (bit % 64)) as u64 & self.shape.slot_mask()
    }

    fn write(&mut self, bucket: u32, slot: usize, content: u64) {
        let bit = self.bit(bucket, slot);
        let at = (bit / 64) as usize;
        let change = u128::from(self.read(bucket, slot) ^ content) << (bit % 64);
        self.words[at] ^= change as u64;
        self.words[at + 1] ^= (change >> 64) as u64;
    }

    pub(super) fn fill(&mut self, bucket: u32, slot: u8, digest: u32, port: u16) {
        self.write(bucket, slot.into(), self.shape.content(digest, port));
    }

    #[inline(always)]
    fn fetch(&self, pair: [u32; 2]) {
        for bucket in pair {
            let first = (self.bit(bucket, 0) / 64) as usize;
            let last = (self.bit(bucket, SLOTS) / 64) as usize;
            prefetch(&self.words, first);
            prefetch(&self.words, last);
        }
    }

    #[inline(always)]
    fn find(&self, digest: u32, pair: [u32; 2]) -> Option<u16> {
        let digest_mask = (1u64 << self.shape.digest_bits) - 1;
        for bucket in pair {
            for slot in 0..SLOTS {
                let content = self.read(bucket, slot);
                if content & digest_mask == u64::from(digest) {
                    return Some((content >> self.shape.digest_bits) as u16);
                }
            }
        }
        None
    }
}

/// Data plane: digests and ports in level 1, whole keys with ports in level 2.
#[derive(Clone, Debug)]
pub struct CfwView<K> {
    pub(super) plane: u64,
    pub(super) number: u64,
    pub(super) key: HashKey,
    pub(super) ports: usize,
    pub(super) slots: Slots,
    pub(super) level2: Cuckoo<K>,
}

/// A step of a message, read and checked.
enum Op<K> {
    Put(Vec<(u32, u8)>, u64),
    Set(u32, u8, u16),
    Clear(u32, u8),
    PutKey(K, u16),
    ClearKey(K),
}

impl<K: FibKey> CfwView<K> {
    /// Number of keys in level 2, which holds them whole.
    pub fn level2_len(&self) -> usize {
        self.level2.len()
    }

    /// Whether both have the same slots and the same keys in level 2. (Views of one node that got
    /// the same changes do.)
    pub fn same_as(&self, other: &Self) -> bool {
        let same = |(key, port): (K, u64)| other.level2.get(&key) == Some(port);
        self.slots == other.slots
            && self.level2.len() == other.level2.len()
            && self.level2.iter().all(same)
    }

    #[inline(always)]
    fn answer(&self, key: &K, hash: u64) -> Option<u16> {
        let shape = &self.slots.shape;
        match self.slots.find(shape.digest(hash), shape.pair(hash)) {
            None if !self.level2.is_empty() => self.level2.get(key).map(|port| port as u16),
            found => found,
        }
    }

    /// Reads the steps of a message. Nothing is changed before all of them are known to be good.
    fn read_steps(&self, input: &mut BitReader<'_>) -> Result<Vec<Op<K>>, MessageError> {
        let shape = self.slots.shape;
        let count = input.get(8)?;
        let mut steps = Vec::new();
        for _ in 0..count {
            let (kind, level2) = (input.get(2)?, input.get(1)? != 0);
            steps.push(match (kind, level2) {
                (kind::ADD, false) => {
                    let digest = input.get(shape.digest_bits)? as u32;
                    let port = self.port_in(input)?;
                    let mut path = Vec::new();
                    for _ in 0..=input.get(4)? {
                        path.push(place_in(&shape, input)?);
                    }
                    let buckets = |at: usize| path[at].0;
                    let crossing = (1..path.len())
                        .any(|at| (0..at).any(|before| buckets(before) == buckets(at)));
                    if digest == 0 || crossing {
                        return Err(MessageError::OutOfRange { what: "a cuckoo path" });
                    }
                    Op::Put(path, shape.content(digest, port))
                }
                (kind::ADD | kind::CHANGE, true) => {
                    let key = K::get(input)?;
                    Op::PutKey(key, self.port_in(input)?)
                }
                (kind::DELETE, true) => Op::ClearKey(K::get(input)?),
                (kind::DELETE, false) => {
                    let (bucket, slot) = place_in(&shape, input)?;
                    Op::Clear(bucket, slot)
                }
                (kind::CHANGE, false) => {
                    let (bucket, slot) = place_in(&shape, input)?;
                    Op::Set(bucket, slot, self.port_in(input)?)
                }
                _ => return Err(MessageError::OutOfRange { what: "the kind of a step" }),
            });
        }
        Ok(steps)
    }

    fn port_in(&self, input: &mut BitReader<'_>) -> Result<u16, MessageError> {
        let port = input.get(self.slots.shape.port_bits)?;
        if (port as usize) < self.ports {
            return Ok(port as u16);
        }
        Err(MessageError::OutOfRange { what: "a port" })
    }

    fn perform(&mut self, step: Op<K>) {
        match step {
            Op::Put(path, mut content) => {
                for (bucket, slot) in path {
                    let former = self.slots.read(bucket, slot.into());
                    self.slots.write(bucket, slot.into(), content);
                    content = former;
                }
            }
            Op::Set(bucket, slot, port) => {
                let digest_mask = (1 << self.slots.shape.digest_bits) - 1;
                let digest = self.slots.read(bucket, slot.into()) & digest_mask;
                self.slots.fill(bucket, slot, digest as u32, port);
            }
            Op::Clear(bucket, slot) => self.slots.write(bucket, slot.into(), 0),
            Op::PutKey(key, port) => drop(self.level2.insert(key, port.into())),
            Op::ClearKey(key) => drop(self.level2.remove(&key)),
        }
    }

    /// The view that a message holds whole.
    fn rebuilt(&self, input: &mut BitReader<'_>) -> Result<Self, MessageError> {
        let shape = Shape { buckets: input.get(32)? as u32, ..self.slots.shape };
        let needed = u128::from(shape.buckets) * SLOTS as u128 * u128::from(shape.slot_bits());
        if shape.buckets == 0 || needed > input.left() as u128 {
            return Err(MessageError::OutOfRange { what: "the number of buckets" });
        }
        let mut slots = Slots::new(shape);
        for bucket in 0..shape.buckets {
            for slot in 0..SLOTS {
                slots.write(bucket, slot, input.get(shape.slot_bits())?);
            }
        }
        let mut level2 = Cuckoo::new(shape.port_bits, 16, self.plane);
        for _ in 0..input.get(32)? {
            let key = K::get(input)?;
            level2.insert(key, self.port_in(input)?.into());
        }
        Ok(Self { number: self.number + 1, slots, level2, ..*self })
    }

    pub(super) fn put_whole(&self, out: &mut BitWriter) {
        let shape = self.slots.shape;
        out.put(shape.buckets.into(), 32);
        for bucket in 0..shape.buckets {
            (0..SLOTS).for_each(|s| out.put(self.slots.read(bucket, s), shape.slot_bits()));
        }
        out.put(self.level2.len() as u64, 32);
        for (key, port) in self.level2.iter() {
            key.put(out);
            out.put(port, shape.port_bits);
        }
    }
}

/// Reads a bucket and a slot, both checked against the table.
fn place_in(shape: &Shape, input: &mut BitReader<'_>) -> Result<(u32, u8), MessageError> {
    let bucket = input.get(shape.bucket_bits())? as u32;
    let slot = input.get(2)? as u8;
    if bucket < shape.buckets {
        return Ok((bucket, slot));
    }
    Err(MessageError::OutOfRange { what: "a bucket" })
}

impl<K: FibKey> Plane<K> for CfwView<K> {
    #[inline]
    fn port(&self, key: &K) -> Option<u16> {
        self.answer(key, key.hash(&self.key))
    }

    fn ports(&self, keys: &[K], out: &mut [Option<u16>]) {
        let locate = |key: &K| (key.hash(&self.key), Some(*key));
        pipeline(
            keys,
            out,
            locate,
            |(hash, _)| self.slots.fetch(self.slots.shape.pair(hash)),
            |(hash, key)| key.and_then(|key| self.answer(&key, hash)),
        );
    }

    fn apply(&mut self, message: &[u8]) -> Result<(), MessageError> {
        let mut input = BitReader::new(open_next(message, plane::CFW, self.plane, self.number)?);
        if input.get(1)? != 0 {
            let next = self.rebuilt(&mut input)?;
            input.end()?;
            *self = next;
            return Ok(());
        }
        let steps = self.read_steps(&mut input)?;
        input.end()?;
        steps.into_iter().for_each(|step| self.perform(step));
        self.number += 1;
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.slots.words.len() * 8 + self.level2.bytes()
    }
}
