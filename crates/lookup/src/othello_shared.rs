//! An Othello that many threads read while one changes it.

use crate::hub::{Publisher, Subscriber};
use crate::ludo::packed::{Packed, ones};
use crate::othello::Othello;
use crate::version::{Version, try_read, write};
use crate::{BATCH, Error, Geometry, HashKey, Key, Work, vectorised};
use std::hint::spin_loop;

/// Versions of cells; a cell has version `cell % STRIPES`. 4 KB stay in the first-level cache.
const STRIPES: usize = 1024;

/// The cells as readers see them.
#[derive(Debug)]
struct Published {
    key: HashKey,
    geometry: Geometry,
    value_bits: u32,
    /// Cell `i` begins at bit `i * value_bits`; A's first, then B's.
    cells: Packed,
    /// Odd while any cell is being written.
    all: Version,
    /// Odd while a cell of the stripe is being written.
    stripes: Box<[Version]>,
}

/// The maintainer of an Othello that [`OthelloReader`]s read meanwhile: an exact map (keys, values,
/// and an [`Othello`] from keys to their positions) over whose graph the shared cells are filled.
///
/// A change flips one side of the key's tree. The versions of all cells there are marked until the
/// last is written, so a reader, who checks the versions of its two cells before and after, never
/// sees half of it: a key that is in the table all the time always has its value. Readers take no
/// lock. A rebuild (growth, or a cycle) is published as a new array; readers that are in the old
/// one finish there.
///
/// ```
/// let mut table = weir_lookup::OthelloShared::new(12, 1000, 1);
/// let mut reader = table.reader();
/// table.insert(7u64, 300).unwrap();
/// assert_eq!(reader.lookup(&7u64), 300);
/// ```
#[derive(Debug)]
pub struct OthelloShared<K> {
    index: Othello<K>,
    values: Vec<u64>,
    value_bits: u32,
    published: Publisher<Published>,
    /// The cells of the side that is changed.
    side: Vec<u32>,
}

/// A reader of an [`OthelloShared`]; each thread has its own.
#[derive(Clone, Debug)]
pub struct OthelloReader(Subscriber<Published>);

impl<K: Key> OthelloShared<K> {
    /// A table for values of `value_bits` (1..=64) bits and at first `capacity` keys; it grows by a
    /// third when it is full. `seed` makes every run with it the same.
    ///
    /// # Panics
    /// If the width is not 1..=64.
    pub fn new(value_bits: u32, capacity: usize, seed: u64) -> Self {
        assert!((1..=64).contains(&value_bits), "a value has 1..=64 bits");
        let index = Othello::with_geometry_bits(32, value_bits.min(32), capacity, seed);
        let published = Publisher::new(Published::filled(value_bits, &index, &[]));
        Self { index, values: Vec::new(), value_bits, published, side: Vec::new() }
    }

    /// A reader for another thread.
    pub fn reader(&self) -> OthelloReader {
        OthelloReader(self.published.subscribe())
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// How many keys fit before the arrays grow.
    pub fn capacity(&self) -> usize {
        self.index.capacity()
    }

    /// How often the table was rebuilt under a new seed.
    pub fn rebuilds(&self) -> u64 {
        self.index.rebuilds()
    }

    /// The value of a key; exact.
    pub fn get(&self, key: &K) -> Option<u64> {
        self.position(key).map(|at| self.values[at])
    }

    /// All keys with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&K, u64)> {
        self.index.keys().iter().zip(self.values.iter().copied())
    }

    #[inline]
    fn position(&self, key: &K) -> Option<usize> {
        let position = self.index.lookup(key) as usize;
        (self.index.keys().get(position) == Some(key)).then_some(position)
    }

    /// Adds a key or changes its value, of which the low bits count; returns the former value.
    /// Lookups that begin after this has returned see it.
    ///
    /// # Errors
    /// [`Error::NoAcyclicGraph`] if the key type's hash is broken; nothing is changed then.
    pub fn insert(&mut self, key: K, value: u64) -> Result<Option<u64>, Error> {
        let value = value & ones(self.value_bits);
        self.side.clear();
        if let Some(at) = self.position(&key) {
            let former = std::mem::replace(&mut self.values[at], value);
            if former != value {
                self.index.side_of(at, &mut self.side);
                self.published.current().flip(&self.side, former ^ value);
            }
            return Ok(Some(former));
        }
        let position = self.values.len();
        let joined = self.index.insert_joining(key, position as u32, &mut self.side)?;
        self.values.push(value);
        if joined {
            let published = self.published.current();
            let [a, b] = self.index.edge_ends(position).map(|cell| published.cell(cell));
            published.flip(&self.side, a ^ b ^ value);
        } else {
            self.publish();
        }
        Ok(None)
    }

    /// Takes a key out; returns its value. The cells keep what they hold, so readers go on to find
    /// that value until another change meets them.
    pub fn remove(&mut self, key: &K) -> Option<u64> {
        let at = self.position(key)?;
        self.index.swap_remove(at);
        let value = self.values.swap_remove(at);
        if at < self.values.len() {
            self.index.change(at, at as u32);
        }
        Some(value)
    }

    /// Makes room for `keys` keys in all, in one rebuild.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn reserve(&mut self, keys: usize) -> Result<(), Error> {
        if keys > self.capacity() {
            self.index.reserve(keys)?;
            self.publish();
        }
        Ok(())
    }

    /// Gives readers a new array after a rebuild.
    fn publish(&mut self) {
        self.published.publish(Published::filled(self.value_bits, &self.index, &self.values));
    }

    /// Bytes of what readers read.
    pub fn bytes(&self) -> usize {
        let published = self.published.current();
        published.cells.bytes() + size_of_val(&published.stripes[..])
    }

    /// Bytes of the maintainer's own allocations.
    pub fn control_bytes(&self) -> usize {
        self.index.control_bytes() + self.values.capacity() * size_of::<u64>()
    }
}

impl Published {
    /// One pass over every tree, from a root with a random value; cells of no key are random.
    fn filled<K: Key>(value_bits: u32, index: &Othello<K>, values: &[u64]) -> Self {
        let (key, geometry) = (*index.hash_key(), index.geometry());
        let random = HashKey::from_seed(key.hash_word(0));
        let mut cells: Vec<u64> =
            (0..geometry.cells() as u64).map(|cell| random.hash_word(cell)).collect();
        for step in index.order() {
            cells[step.node as usize] = cells[step.up as usize] ^ values[step.edge as usize];
        }
        let packed = Packed::new(cells.len() as u64 * u64::from(value_bits));
        for (at, &cell) in (0u64..).zip(&cells) {
            packed.write(at * u64::from(value_bits), value_bits, cell);
        }
        Self {
            key,
            geometry,
            value_bits,
            cells: packed,
            all: Version::new(),
            stripes: (0..STRIPES).map(|_| Version::new()).collect(),
        }
    }

    #[inline(always)]
    fn bit(&self, cell: u32) -> u64 {
        u64::from(cell) * u64::from(self.value_bits)
    }

    #[inline(always)]
    fn cell(&self, cell: u32) -> u64 {
        self.cells.read(self.bit(cell), self.value_bits)
    }

    #[inline(always)]
    fn stripe(&self, cell: u32) -> &Version {
        &self.stripes[cell as usize & (STRIPES - 1)]
    }

    /// The writer's side: xors `delta` into some cells, all at once for those who look.
    fn flip(&self, side: &[u32], delta: u64) {
        if delta == 0 {
            return;
        }
        let versions = || side.iter().map(|&cell| self.stripe(cell)).chain([&self.all]);
        write(versions, || {
            for &cell in side {
                self.cells.write(self.bit(cell), self.value_bits, self.cell(cell) ^ delta);
            }
        });
    }

    #[inline(always)]
    fn nodes(&self, hash: u64) -> [u32; 2] {
        let (a, b) = self.geometry.nodes(hash);
        [a, b]
    }

    #[inline(always)]
    fn value(&self, [a, b]: [u32; 2]) -> u64 {
        self.cell(a) ^ self.cell(b)
    }

    fn lookup(&self, cells: [u32; 2]) -> u64 {
        let versions = cells.map(|cell| self.stripe(cell));
        loop {
            if let Some(value) = try_read(versions, || self.value(cells)) {
                return value;
            }
            spin_loop();
        }
    }

    /// Values of cells that were asked for: all under the one version of all cells; if a write came
    /// between, each under its own two.
    #[inline(always)]
    fn answer(&self, places: &[[u32; 2]; BATCH], out: &mut [u64]) {
        let read_all = || {
            out.iter_mut().zip(places).for_each(|(out, &cells)| *out = self.value(cells));
        };
        if try_read([&self.all], read_all).is_none() {
            out.iter_mut().zip(places).for_each(|(out, &cells)| *out = self.lookup(cells));
        }
    }

    #[inline(always)]
    fn ask<K: Key>(&self, keys: &[K], places: &mut [[u32; 2]; BATCH]) {
        for (place, key) in places.iter_mut().zip(keys) {
            *place = self.nodes(key.hash(&self.key));
        }
        // A cell reaches into a second line too seldom to ask for that one as well.
        for cell in places[..keys.len()].as_flattened() {
            self.cells.fetch_bit(self.bit(*cell));
        }
    }
}

impl OthelloReader {
    /// Value of a key; an arbitrary value for a key that is not in the table.
    #[inline]
    pub fn lookup<K: Key>(&mut self, key: &K) -> u64 {
        let table = self.0.current();
        table.lookup(table.nodes(key.hash(&table.key)))
    }

    /// Values of many keys, with the cache misses of a batch under way at a time. All come from one
    /// generation of the table; each is the value that its key had at some time during the call.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn lookup_batch<K: Key>(&mut self, keys: &[K], out: &mut [u64]) {
        assert_eq!(keys.len(), out.len(), "one result per key");
        vectorised(Batch { table: self.0.current(), keys, out });
    }
}

/// The work of [`OthelloReader::lookup_batch`]: the cells of a batch are read after those of the
/// next one were asked for.
struct Batch<'a, K> {
    table: &'a Published,
    keys: &'a [K],
    out: &'a mut [u64],
}

impl<K: Key> Work for Batch<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { table, keys, out } = self;
        let mut places = [[[0; 2]; BATCH]; 2];
        let batches = keys.len().div_ceil(BATCH);
        let range = |batch: usize| batch * BATCH..keys.len().min((batch + 1) * BATCH);
        for step in 0..=batches {
            if step < batches {
                table.ask(&keys[range(step)], &mut places[step % 2]);
            }
            if step > 0 {
                table.answer(&places[(step - 1) % 2], &mut out[range(step - 1)]);
            }
        }
    }
}
