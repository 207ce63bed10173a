//! The published table: what packets read.

use super::exceptions::{Exceptions, Flags, Flow};
use super::message::Routes;
use crate::decide::{Decide, Decision, Question, Why};
use crate::forwarder::table_alone;
use crate::memory::Memory;
use crate::table::NO_BACKEND;
use std::hint::black_box;
use std::sync::Arc;
use weir_hash::{HashKey, scale};
use weir_lookup::{BATCH, Error, Work, vectorised};
use xxhash_rust::xxh3::Xxh3;

/// Bit of a row as packets read it: the row has exceptions.
const MARK: u16 = 0x8000;

/// Rows, exceptions and flags. A packet of a row without exceptions is decided by one read; one of
/// a row that has some asks the flags, and one whose flags are set asks the exceptions.
#[derive(Clone)]
pub struct Table<K> {
    key: HashKey,
    rows: Arc<[u16]>,
    /// The rows as packets read them, with their marks.
    marked: Box<[u16]>,
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
        let mut marked: Box<[u16]> = (&rows[..]).into();
        for hash in entries.iter().map(|(flow, _)| flow.hash(&key)) {
            flags.set(hash);
            marked[scale(hash as u32, rows.len() as u32) as usize] |= MARK;
        }
        let digest = digest(&key, &rows, entries);
        Ok(Self { key, rows, marked, flags, exceptions, count: entries.len(), generation, digest })
    }

    /// Key of the flow hash.
    pub fn key(&self) -> &HashKey {
        &self.key
    }

    /// The backend of each row.
    pub fn rows(&self) -> &[u16] {
        &self.rows
    }

    /// Number of exceptions in the table.
    pub fn exceptions(&self) -> usize {
        self.count
    }

    /// Digest of key, rows and exceptions: equal digests, equal tables.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Bytes of the rows, two for each.
    pub fn row_bytes(&self) -> usize {
        size_of_val(&self.marked[..])
    }

    /// Bytes of exceptions and flags: what a change leaves behind.
    pub fn exception_bytes(&self) -> usize {
        self.exceptions.bytes() + self.flags.bytes()
    }

    /// Whether packets of the flow are decided by one read of the rows.
    pub fn is_clean(&self, flow: &K) -> bool {
        self.marked[self.row_of(flow.hash(&self.key)) as usize] & MARK == 0
    }

    /// Whether packets of the flow do without the exceptions.
    pub fn is_unflagged(&self, flow: &K) -> bool {
        self.is_clean(flow) || !self.flags.may_have(flow.hash(&self.key))
    }

    /// The row of a flow.
    pub fn row(&self, flow: &K) -> u32 {
        self.row_of(flow.hash(&self.key))
    }

    #[inline(always)]
    fn row_of(&self, hash: u64) -> u32 {
        scale(hash as u32, self.rows.len() as u32)
    }

    /// Where packets of a flow go.
    #[inline]
    pub fn lookup(&self, flow: &K) -> u16 {
        self.decide(&Question::later(*flow, flow.hash(&self.key)), &mut ()).slot()
    }

    /// Where packets of many flows go: rows and flags of a burst without a branch, then its
    /// exceptions, while the next burst is under way.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn lookup_batch(&self, flows: &[K], out: &mut [u16]) {
        assert_eq!(flows.len(), out.len(), "one result per flow");
        vectorised(Bursts { table: self, flows, out });
    }
}

/// Calls `visit` with the number of each bit that is set.
#[inline(always)]
fn each_bit(mut bits: u32, mut visit: impl FnMut(usize)) {
    while bits != 0 {
        visit(bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}

/// The work of [`Table::lookup_batch`].
struct Bursts<'a, K> {
    table: &'a Table<K>,
    flows: &'a [K],
    out: &'a mut [u16],
}

impl<K: Flow> Work for Bursts<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { table, flows, out } = self;
        let (bursts, last_flows) = flows.as_chunks::<BATCH>();
        let (out, last_out) = out.as_chunks_mut::<BATCH>();
        let mut hashes = [[0; BATCH]; 2];
        let mut before = 0;
        for burst in 0..=bursts.len() {
            let mut flagged = 0;
            if let (Some(flows), Some(out)) = (bursts.get(burst), out.get_mut(burst)) {
                flagged = table.burst(flows, &mut hashes[burst % 2], out);
            }
            // The exceptions of the burst before have arrived by now.
            if before != 0 {
                let (at, hashes) = (burst - 1, &hashes[(burst - 1) % 2]);
                table.correct(&bursts[at], hashes, before, &mut out[at]);
            }
            before = flagged;
        }
        for (out, flow) in last_out.iter_mut().zip(last_flows) {
            *out = table.lookup(flow);
        }
    }
}

impl<K: Flow> Table<K> {
    /// The hashes and backends of a burst by its rows. Returns the flows (bit i: flow i) that may
    /// be exceptions, having asked for what tells.
    #[inline(always)]
    fn burst(&self, flows: &[K; BATCH], hashes: &mut [u64; BATCH], out: &mut [u16; BATCH]) -> u32 {
        let (key, rows) = (self.key, &self.marked[..]);
        let mut row = [0u32; BATCH];
        for i in 0..BATCH {
            hashes[i] = flows[i].hash(&key);
            row[i] = scale(hashes[i] as u32, rows.len() as u32);
        }
        // Through memory: taking numbers out of vector registers one by one costs more.
        let row = black_box(&row);
        let mut marked = 0;
        for i in 0..BATCH {
            let row = rows[row[i] as usize];
            out[i] = row & !MARK;
            marked |= u32::from(row >> 15) << i;
        }
        let mut flagged = 0;
        each_bit(marked, |i| flagged |= u32::from(self.flags.may_have(hashes[i])) << i);
        each_bit(flagged, |i| self.exceptions.prefetch(&flows[i], hashes[i]));
        flagged
    }

    /// Gives the flagged flows that are exceptions their backends.
    #[inline(always)]
    fn correct(
        &self,
        flows: &[K; BATCH],
        hashes: &[u64; BATCH],
        flagged: u32,
        out: &mut [u16; BATCH],
    ) {
        each_bit(flagged, |i| {
            if let Some(backend) = self.exceptions.get(&flows[i], hashes[i]) {
                out[i] = backend;
            }
        });
    }
}

fn digest<K: Flow>(key: &HashKey, rows: &[u16], entries: &[(K, u16)]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(&key.to_bytes());
    rows.iter().for_each(|row| hasher.update(&row.to_le_bytes()));
    let mut hashes: Vec<_> = entries.iter().map(|(flow, to)| (flow.hash(key), *to)).collect();
    hashes.sort_unstable();
    for (hash, backend) in hashes {
        hasher.update(&hash.to_le_bytes());
        hasher.update(&backend.to_le_bytes());
    }
    hasher.digest()
}

table_alone!([K: Flow] Table<K>, K);

/// Between changes, the table is all. While one is under way a [`Gate`](super::Gate) decides.
impl<K: Flow> Decide<K> for Table<K> {
    #[inline(always)]
    fn hash_key(&self) -> &HashKey {
        &self.key
    }

    #[inline(always)]
    fn decide<M: Memory<K>>(&self, question: &Question<K>, _: &mut M) -> Decision {
        let row = self.row_of(question.hash);
        let entry = self.marked[row as usize];
        // A copy, so that not the whole question has to stand in memory.
        let flow = question.key;
        let exception = (entry & MARK != 0 && self.flags.may_have(question.hash))
            .then(|| self.exceptions.get(&flow, question.hash))
            .flatten();
        let decision = match exception {
            Some(backend) => Decision::to(backend, Why::Exception),
            None => Decision::to(entry & !MARK, Why::Row),
        };
        decision.new_if(question.signals.starts).by_row(row)
    }

    fn decide_burst<M: Memory<K>>(&self, keys: &[K], out: &mut [u16], _: &mut M) {
        self.lookup_batch(keys, out);
    }

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
