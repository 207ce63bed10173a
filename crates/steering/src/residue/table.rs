//! The published table: what packets read.

use super::exceptions::{Exceptions, Flags, Flow};
use super::message::Routes;
use crate::image::NO_BACKEND;
use crate::steer::Steer;
use std::sync::Arc;
use weir_lookup::{Error, HashKey, MISS};
use weir_wire::hash::scale;
use xxhash_rust::xxh3::Xxh3;

/// Packets of a burst that are decided together; those that may be exceptions go on together.
const BLOCK: usize = 1024;

/// Rows, exceptions and flags. A packet whose flag is clear is decided by one read of a row (and
/// one word of flags, which stay in the cache).
#[derive(Clone)]
pub struct Table<K> {
    key: HashKey,
    rows: Arc<[u16]>,
    flags: Flags,
    exceptions: Exceptions<K>,
    count: usize,
    generation: u64,
    digest: u64,
}

impl<K: Flow> Table<K> {
    /// A table. `rows`: the backend of each row, or [`NO_BACKEND`]; `entries`: the exceptions,
    /// each flow once.
    ///
    /// # Errors
    /// The exceptions cannot be placed: only equal hashes do that.
    pub fn new(
        key: HashKey,
        rows: Arc<[u16]>,
        entries: &[(K, u16)],
        generation: u64,
    ) -> Result<Self, Error> {
        let exceptions = Exceptions::build(entries, &key)?;
        let mut flags = Flags::new(entries.len());
        entries.iter().for_each(|(flow, _)| flags.set(flow.hash(&key)));
        let digest = digest(&key, &rows, entries);
        Ok(Self { key, rows, flags, exceptions, count: entries.len(), generation, digest })
    }

    /// Key of the flow hash.
    pub fn key(&self) -> &HashKey {
        &self.key
    }

    /// The backend of each row.
    pub fn rows(&self) -> &[u16] {
        &self.rows
    }

    /// Number of exceptions.
    pub fn exceptions(&self) -> usize {
        self.count
    }

    /// Digest of key, rows and exceptions: equal digests, equal tables.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Bytes of the rows.
    pub fn row_bytes(&self) -> usize {
        self.rows.len() * 2
    }

    /// Bytes of exceptions and flags: what a change leaves behind.
    pub fn exception_bytes(&self) -> usize {
        self.exceptions.bytes() + self.flags.bytes()
    }

    /// Whether packets of the flow are decided by one read of the rows.
    pub fn is_clean(&self, flow: &K) -> bool {
        !self.flags.may_have(flow.hash(&self.key))
    }

    #[inline(always)]
    fn row_of(&self, hash: u64) -> u32 {
        scale(hash as u32, self.rows.len() as u32)
    }

    /// Where packets of a flow go.
    #[inline]
    pub fn lookup(&self, flow: &K) -> u16 {
        let hash = flow.hash(&self.key);
        let backend = self.rows[self.row_of(hash) as usize];
        if self.flags.may_have(hash) {
            return self.exceptions.get(flow, hash).unwrap_or(backend);
        }
        backend
    }

    /// Where packets of many flows go: rows and flags of a block without a branch, then the
    /// exceptions of the block, with their reads under way at once.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn lookup_batch(&self, flows: &[K], out: &mut [u16]) {
        assert_eq!(flows.len(), out.len(), "one result per flow");
        for (flows, out) in flows.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
            self.lookup_block(flows, out);
        }
    }

    #[inline(always)]
    fn lookup_block(&self, flows: &[K], out: &mut [u16]) {
        let mut at = [0u16; BLOCK];
        let mut count = 0;
        for (position, (flow, out)) in flows.iter().zip(out.iter_mut()).enumerate() {
            let hash = flow.hash(&self.key);
            *out = self.rows[self.row_of(hash) as usize];
            at[count & (BLOCK - 1)] = position as u16;
            count += usize::from(self.flags.may_have(hash));
        }
        if count > 0 {
            let mut hashes = [0u64; BLOCK];
            for (hash, &at) in hashes.iter_mut().zip(&at[..count]) {
                *hash = flows[usize::from(at)].hash(&self.key);
            }
            let mut found = [MISS; BLOCK];
            let found = &mut found[..count];
            self.exceptions.get_batch(flows, &at[..count], &hashes[..count], found);
            for (&at, &found) in at[..count].iter().zip(found.iter()) {
                let out = &mut out[usize::from(at)];
                *out = if found == MISS { *out } else { found as u16 };
            }
        }
    }
}

fn digest<K: Flow>(key: &HashKey, rows: &[u16], entries: &[(K, u16)]) -> u64 {
    let mut hasher = Xxh3::new();
    for word in [key.xor, key.xor_wide, key.mul1, key.mul2] {
        hasher.update(&word.to_le_bytes());
    }
    rows.iter().for_each(|row| hasher.update(&row.to_le_bytes()));
    let mut hashes: Vec<_> = entries.iter().map(|(flow, to)| (flow.hash(key), *to)).collect();
    hashes.sort_unstable();
    for (hash, backend) in hashes {
        hasher.update(&hash.to_le_bytes());
        hasher.update(&backend.to_le_bytes());
    }
    hasher.digest()
}

impl<K: Flow> Steer<K> for Table<K> {
    fn steer(&mut self, flow: &K) -> u16 {
        self.lookup(flow)
    }

    fn steer_batch(&mut self, flows: &[K], out: &mut [u16]) {
        self.lookup_batch(flows, out);
    }

    /// Nothing: an exception leaves with the next table.
    fn end(&mut self, _: &K) {}

    fn bytes(&self) -> usize {
        self.row_bytes() + self.exception_bytes()
    }
}

/// A table with the list of its exceptions, which no packet reads: a control plane that restarts
/// finds there what it has forgotten.
#[derive(Clone)]
pub struct Published<K> {
    /// What packets read.
    pub table: Table<K>,
    /// The exceptions, in the order of the flows.
    pub entries: Vec<(K, u16)>,
}

impl<K: Flow> Routes<K> for Arc<Published<K>> {
    #[inline]
    fn row(&self, flow: &K) -> u32 {
        self.table.row_of(flow.hash(&self.table.key))
    }

    fn points_at(&self, flow: &K) -> u16 {
        self.table.rows.get(self.row(flow) as usize).copied().unwrap_or(NO_BACKEND)
    }

    fn exception(&self, flow: &K) -> Option<u16> {
        let hash = flow.hash(&self.table.key);
        self.table.flags.may_have(hash).then(|| self.table.exceptions.get(flow, hash)).flatten()
    }

    fn generation(&self) -> u64 {
        self.table.generation
    }
}
