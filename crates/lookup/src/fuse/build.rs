//! Peeling: finds the order in which each key still has a cell of its own.

use super::{Fuse, FuseShape};
use crate::{Error, HashKey, Key, Value};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// A seed seldom fails, and equal keys are found after the first failure; so many failures in a row
/// mean a broken hash.
const MAX_TRIES: u32 = 100;

/// A key that waits for its place.
#[derive(Clone, Copy, Default)]
struct Entry<V> {
    hash: u64,
    value: V,
    /// The cell that the key determines, once it is peeled.
    cell: u32,
}

/// The keys at a cell: how many they are, and the xor of all of them, which is the key itself when
/// there is one.
#[derive(Clone, Copy, Default)]
struct Cell<V> {
    hash: u64,
    value: V,
    keys: u32,
}

impl<V: Value> Cell<V> {
    #[inline(always)]
    fn toggle(&mut self, hash: u64, value: V) {
        self.hash ^= hash;
        self.value ^= value;
    }
}

pub(super) fn build<K: Key, V: Value>(
    shape: FuseShape,
    keys: &[K],
    value: impl Fn(usize) -> V,
    seed: u64,
) -> Result<Fuse<V>, Error> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for _ in 0..MAX_TRIES {
        let key = HashKey::from_rng(&mut rng);
        let entries = by_segment(shape, keys, &value, &key);
        if let Some(order) = peel(shape, &entries) {
            let bytes = pack(shape, &assign(shape, &order, &mut rng));
            return Ok(Fuse::from_bytes(key, shape, bytes));
        }
        drop(entries);
        reject_equal(keys, &key)?;
    }
    Err(Error::NoAcyclicGraph { keys: keys.len(), tries: MAX_TRIES })
}

/// Hashes the keys and sorts them by the segment of their first cell (one pass that counts, one
/// that places), so that all that follows works on three neighbouring segments at a time.
fn by_segment<K: Key, V: Value>(
    shape: FuseShape,
    keys: &[K],
    value: impl Fn(usize) -> V,
    key: &HashKey,
) -> Vec<Entry<V>> {
    let segment = |hash: u64| (shape.cells_of(hash)[0] >> shape.segment_bits) as usize;
    let mut next = vec![0usize; shape.segments as usize];
    keys.iter().for_each(|k| next[segment(k.hash(key))] += 1);
    let mut before = 0;
    for at in &mut next {
        before += std::mem::replace(at, before);
    }
    let mut entries = vec![Entry::default(); keys.len()];
    for (number, k) in keys.iter().enumerate() {
        let hash = k.hash(key);
        let at = &mut next[segment(hash)];
        entries[*at] = Entry { hash, value: value(number), cell: 0 };
        *at += 1;
    }
    entries
}

/// Takes away, again and again, a key that is alone in one of its cells. `None` if some keys are
/// left that all share all their cells. In the order that is returned the cell of a key is touched
/// by no later key.
fn peel<V: Value>(shape: FuseShape, entries: &[Entry<V>]) -> Option<Vec<Entry<V>>> {
    let mut cells = vec![Cell::default(); shape.cells()];
    for entry in entries {
        for at in shape.cells_of(entry.hash) {
            let cell = &mut cells[at as usize];
            cell.keys += 1;
            cell.toggle(entry.hash, entry.value);
        }
    }
    let mut order = Vec::with_capacity(entries.len());
    let mut alone = Vec::new();
    for start in 0..cells.len() as u32 {
        // Following each key at once keeps the work where the cache is warm.
        alone.push(start);
        while let Some(at) = alone.pop() {
            let Cell { hash, value, keys } = cells[at as usize];
            if keys != 1 {
                continue;
            }
            order.push(Entry { hash, value, cell: at });
            for other in shape.cells_of(hash) {
                let cell = &mut cells[other as usize];
                cell.keys -= 1;
                cell.toggle(hash, value);
                if cell.keys == 1 {
                    alone.push(other);
                }
            }
        }
    }
    (order.len() == entries.len()).then_some(order)
}

/// Gives every cell its value: random ones first, then the determined ones, last peeled first.
/// When a key's turn comes, its two other cells are final, because the keys that determine them
/// were peeled later.
fn assign<V: Value>(shape: FuseShape, order: &[Entry<V>], rng: &mut ChaCha8Rng) -> Vec<V> {
    let mut cells = vec![V::default(); shape.cells()];
    V::fill(&mut cells, rng);
    for entry in order.iter().rev() {
        let delta =
            shape.cells_of(entry.hash).iter().fold(entry.value, |x, &at| x ^ cells[at as usize]);
        cells[entry.cell as usize] ^= delta;
    }
    cells
}

/// Packs the low bits of the cells one after the other.
fn pack<V: Value>(shape: FuseShape, cells: &[V]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(shape.bytes());
    let (mut waiting, mut filled) = (0u64, 0u32);
    for &cell in cells {
        let cell: u64 = (cell & V::mask(shape.bits)).into();
        waiting |= cell << filled;
        filled += shape.bits;
        if filled >= 64 {
            bytes.extend_from_slice(&waiting.to_le_bytes());
            filled -= 64;
            // What did not fit; nothing, if all of the cell did.
            waiting = cell.checked_shr(shape.bits - filled).unwrap_or(0);
        }
    }
    bytes.extend_from_slice(&waiting.to_le_bytes()[..filled.div_ceil(8) as usize]);
    bytes.resize(shape.bytes(), 0);
    bytes
}

/// After a failure: equal keys have equal hashes, so looking at neighbours in the order of hashes
/// finds them.
fn reject_equal<K: Key>(keys: &[K], key: &HashKey) -> Result<(), Error> {
    let mut hashes: Vec<(u64, usize)> =
        keys.iter().enumerate().map(|(number, k)| (k.hash(key), number)).collect();
    hashes.sort_unstable();
    for same in hashes.chunk_by(|a, b| a.0 == b.0) {
        for (i, &(_, first)) in same.iter().enumerate() {
            let twin = same[i + 1..].iter().find(|(_, second)| keys[*second] == keys[first]);
            if let Some(&(_, second)) = twin {
                return Err(Error::DuplicateKey { first, second });
            }
        }
    }
    Ok(())
}
