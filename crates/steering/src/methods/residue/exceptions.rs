//! The exceptions: an exact map from flows to backends, and the flags that spare most packets the
//! look into it.

use super::build::Collected;
use super::message::Routes;
use crate::StateKey;
use std::collections::BTreeMap;
use weir_hash::{HashKey, Key, scale};
use weir_lookup::{DigestCuckoo, Error, prefetch};

/// A flow as residue tells flows apart.
pub trait Flow: Key + Ord {
    /// Whether no other flow of the service with this property has the same hash, under any key.
    /// Then the hash is all that needs to be stored.
    fn told_by_hash(&self) -> bool;
}

impl Flow for u64 {
    #[inline(always)]
    fn told_by_hash(&self) -> bool {
        true
    }
}

impl Flow for StateKey {
    /// IPv4: the hash is a bijection of address and ports.
    #[inline(always)]
    fn told_by_hash(&self) -> bool {
        self.address[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]
    }
}

/// Bits of flags for each exception, at least. Two bits of one 64-bit word are set for each, so
/// about 3 % of the other flows in rows with exceptions look like one.
pub const FLAG_BITS: usize = 10;

/// Words of flags that a table has at least.
const FLAG_WORDS: usize = 16;

/// Which flows may be exceptions: two bits in one word for each (a Bloom filter whose answer
/// costs one read; the words stay in the cache). A flag for each *row* would not do: with many
/// connections in a row nearly every row has an exception.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Flags {
    words: Vec<u64>,
}

impl Flags {
    /// Flags for this many exceptions, none of them set.
    pub fn new(exceptions: usize) -> Self {
        Self { words: vec![0; (exceptions * FLAG_BITS).div_ceil(64).max(FLAG_WORDS)] }
    }

    /// The word, from the upper half of the hash, and the bits, from parts of it that neither the
    /// word nor the row depend on much.
    #[inline(always)]
    fn place(&self, hash: u64) -> (usize, u64) {
        let word = scale((hash >> 32) as u32, self.words.len() as u32) as usize;
        (word, 1 << (hash & 63) | 1 << (hash >> 6 & 63))
    }

    /// Flags of these words, of which there is at least one.
    pub(super) fn of_words(words: Vec<u64>) -> Self {
        Self { words }
    }

    /// The words.
    pub(super) fn words(&self) -> &[u64] {
        &self.words
    }

    /// Sets the flags of an exception.
    pub fn set(&mut self, hash: u64) {
        let (word, bits) = self.place(hash);
        self.words[word] |= bits;
    }

    /// Whether a flow with this hash may be an exception.
    #[inline(always)]
    pub fn may_have(&self, hash: u64) -> bool {
        let word = self.words[scale((hash >> 32) as u32, self.words.len() as u32) as usize];
        word >> (hash & 63) & word >> (hash >> 6 & 63) & 1 != 0
    }

    /// Asks for what [`may_have`](Self::may_have) reads.
    #[inline(always)]
    pub fn fetch(&self, hash: u64) {
        prefetch(&self.words, scale((hash >> 32) as u32, self.words.len() as u32) as usize);
    }

    /// Bytes of the flags.
    pub fn bytes(&self) -> usize {
        self.words.capacity() * 8
    }
}

/// An exact map, built whole: flows that their hash tells apart in a table of hashes (one cache
/// line holds six), others with their whole keys.
#[derive(Clone)]
pub(super) struct Exceptions<K> {
    narrow: DigestCuckoo<6>,
    wide: Wide<K>,
}

impl<K: Flow> Exceptions<K> {
    /// A map of these flows, each given once.
    pub fn build(entries: &[(K, u16)], key: &HashKey) -> Result<Self, Error> {
        let hashes: Vec<(u64, u16)> = entries
            .iter()
            .filter(|(flow, _)| flow.told_by_hash())
            .map(|(flow, backend)| (flow.hash(key), *backend))
            .collect();
        let wide = entries.iter().filter(|(flow, _)| !flow.told_by_hash()).copied();
        Ok(Self { narrow: narrow(&hashes)?, wide: Wide::build(wide.collect(), key) })
    }

    /// The backend of a flow with this hash; `None` if it is no exception.
    #[inline]
    pub fn get(&self, flow: &K, hash: u64) -> Option<u16> {
        if flow.told_by_hash() { self.narrow.get(&hash) } else { self.wide.get(flow, hash) }
    }

    /// Asks for what [`get`](Self::get) will read first.
    #[inline(always)]
    pub fn prefetch(&self, flow: &K, hash: u64) {
        if flow.told_by_hash() {
            self.narrow.prefetch(&hash);
        }
    }

    pub fn bytes(&self) -> usize {
        let narrow = if self.narrow.is_empty() { 0 } else { self.narrow.bytes() };
        narrow + self.wide.bytes()
    }
}

/// A set of keys that one seed cannot place meets another one.
fn narrow(hashes: &[(u64, u16)]) -> Result<DigestCuckoo<6>, Error> {
    let mut refused = None;
    for seed in 1..=16 {
        let mut map = DigestCuckoo::with_digest_bits(hashes.len(), 64, seed);
        let placed = hashes.iter().try_for_each(|(hash, backend)| {
            map.insert(hash, *backend)?;
            Ok(())
        });
        match placed {
            Ok(()) => return Ok(map),
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.unwrap_or(Error::Full { entries: 0, slots: 0 }))
}

/// Whole keys in the order of their hashes, behind a directory with a place for each two of them.
#[derive(Clone)]
struct Wide<K> {
    first: Vec<u32>,
    entries: Vec<(K, u16)>,
}

impl<K: Flow> Wide<K> {
    fn build(mut entries: Vec<(K, u16)>, key: &HashKey) -> Self {
        let places = entries.len().div_ceil(2) as u32;
        let place = |flow: &K| scale((flow.hash(key) >> 32) as u32, places) as usize;
        entries.sort_unstable_by_key(|(flow, _)| place(flow));
        let mut first = vec![0u32; if places == 0 { 0 } else { places as usize + 1 }];
        for (flow, _) in &entries {
            first[place(flow) + 1] += 1;
        }
        for at in 1..first.len() {
            first[at] += first[at - 1];
        }
        entries.shrink_to_fit();
        Self { first, entries }
    }

    fn get(&self, flow: &K, hash: u64) -> Option<u16> {
        let places = self.first.len().checked_sub(1)?;
        let place = scale((hash >> 32) as u32, places as u32) as usize;
        let range = self.first[place] as usize..self.first[place + 1] as usize;
        self.entries[range].iter().find(|(other, _)| other == flow).map(|entry| entry.1)
    }

    fn bytes(&self) -> usize {
        self.first.capacity() * 4 + self.entries.capacity() * size_of::<(K, u16)>()
    }
}

/// The exceptions that remain after a change: of the flows that are known to live, those that the
/// next rows do not lead to their backend.
///
/// * `base`, `kept`: the table in force and its exceptions;
/// * `collected`: what is known of the flows. A doubtful exception stays only if it is listed, or
///   pending, or its backend's agent did not answer;
/// * `next`: where the next rows point, `lives`: whether a backend does.
///
/// A listed connection counts only if packets reach it now: the remains of one that has moved on
/// must not take its successor along.
pub fn remaining<K: Copy + Ord>(
    base: &impl Routes<K>,
    kept: &BTreeMap<K, u16>,
    collected: &Collected<K>,
    next: impl Fn(&K) -> u16,
    lives: impl Fn(u16) -> bool,
) -> BTreeMap<K, u16> {
    let silent = |backend: u16| collected.silent.contains(&backend);
    let certain = kept
        .iter()
        .filter(|(flow, backend)| !collected.doubtful.contains(flow) || silent(**backend))
        .map(|(flow, backend)| (*flow, *backend));
    let listed = collected.listed.iter().copied();
    let listed = listed.filter(|(flow, backend)| base.route(flow) == *backend);
    let mut result: BTreeMap<K, u16> = certain.chain(listed).collect();
    result.extend(collected.pending.iter().copied());
    result.retain(|flow, backend| lives(*backend) && next(flow) != *backend);
    result
}
