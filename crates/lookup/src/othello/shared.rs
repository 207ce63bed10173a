//! An Othello that many threads read while one changes it.

use crate::memory::packed::ones;
use crate::othello::Othello;
use crate::shared::cells::SharedCells;
use crate::shared::hub::{Publisher, Subscriber};
use crate::{Error, HashKey, Key};

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
/// assert_eq!(reader.get(&7u64), 300);
/// ```
#[derive(Debug)]
pub struct OthelloShared<K> {
    index: Othello<K>,
    values: Vec<u64>,
    value_bits: u32,
    published: Publisher<SharedCells>,
    /// The cells of the side that is changed.
    side: Vec<u32>,
}

/// A reader of an [`OthelloShared`]; each thread has its own.
///
/// ```
/// use weir_lookup::OthelloShared;
///
/// let mut table = OthelloShared::new(12, 1000, 1);
/// table.insert(7u64, 300)?;
/// table.insert(8, 301)?;
/// let mut reader = table.reader();
/// let mut values = [0; 2];
/// reader.get_batch(&[7u64, 8], &mut values);
/// assert_eq!(values, [300, 301]);
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct OthelloReader(Subscriber<SharedCells>);

impl<K: Key> OthelloShared<K> {
    /// A table for values of `value_bits` (1..=64) bits and at first `capacity` keys; it grows by a
    /// third when it is full. `seed` makes every run with it the same.
    ///
    /// # Panics
    /// If the width is not 1..=64.
    pub fn new(value_bits: u32, capacity: usize, seed: u64) -> Self {
        assert!((1..=64).contains(&value_bits), "a value has 1..=64 bits");
        let index = Othello::with_geometry_bits(32, value_bits.min(32), capacity, seed);
        let published = Publisher::new(filled(value_bits, &index, &[]));
        Self { index, values: Vec::new(), value_bits, published, side: Vec::new() }
    }

    /// A reader for another thread.
    pub fn reader(&self) -> OthelloReader {
        OthelloReader(self.published.subscribe())
    }

    /// Number of keys in the table.
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
        self.index.number_of(key).map(|at| self.values[at])
    }

    /// All keys with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&K, u64)> {
        self.index.keys().iter().zip(self.values.iter().copied())
    }

    /// Adds a key or changes its value, of which the low bits count; returns the former value.
    /// Lookups that begin after this has returned see it.
    ///
    /// # Errors
    /// [`Error::NoAcyclicGraph`] if the key type's hash is broken; nothing is changed then.
    pub fn insert(&mut self, key: K, value: u64) -> Result<Option<u64>, Error> {
        let value = value & ones(self.value_bits);
        self.side.clear();
        if let Some(at) = self.index.number_of(&key) {
            let former = std::mem::replace(&mut self.values[at], value);
            if former != value {
                self.index.side_of(at, &mut self.side);
                self.flip(former ^ value);
            }
            return Ok(Some(former));
        }
        let position = self.values.len();
        let joined = self.index.insert_joining(key, position as u32, &mut self.side)?;
        self.values.push(value);
        if joined {
            let cells = self.published.current();
            let [a, b] = self.index.edge_ends(position).map(|cell| cells.cell(cell));
            self.flip(a ^ b ^ value);
        } else {
            self.publish();
        }
        Ok(None)
    }

    /// Takes a key out; returns its value. The cells keep what they hold, so readers go on to find
    /// that value until another change meets them.
    pub fn remove(&mut self, key: &K) -> Option<u64> {
        let at = self.index.number_of(key)?;
        self.index.remove_number(at);
        Some(self.values.swap_remove(at))
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

    /// Xors `delta` into the cells of the side that is changed.
    fn flip(&self, delta: u64) {
        if delta != 0 {
            self.published.current().flip(self.side.iter().map(|&cell| (cell, delta)));
        }
    }

    /// Gives readers a new array after a rebuild.
    fn publish(&mut self) {
        self.published.publish(filled(self.value_bits, &self.index, &self.values));
    }

    /// Bytes of what readers read.
    pub fn bytes(&self) -> usize {
        self.published.current().bytes()
    }

    /// Bytes of the maintainer's own allocations.
    pub fn control_bytes(&self) -> usize {
        self.index.control_bytes() + self.values.capacity() * size_of::<u64>()
    }
}

/// One pass over every tree, from a root with a random value; cells of no key are random.
fn filled<K: Key>(value_bits: u32, index: &Othello<K>, values: &[u64]) -> SharedCells {
    let (key, geometry) = (*index.hash_key(), index.geometry());
    let random = HashKey::from_seed(key.hash_word(0));
    let mut cells: Vec<u64> =
        (0..geometry.cells() as u64).map(|cell| random.hash_word(cell)).collect();
    for step in index.order() {
        cells[step.node as usize] = cells[step.up as usize] ^ values[step.edge as usize];
    }
    SharedCells::new(key, geometry, value_bits, cells.into_iter())
}

impl OthelloReader {
    /// Value of a key; an arbitrary value for a key that is not in the table.
    #[inline]
    pub fn get<K: Key>(&mut self, key: &K) -> u64 {
        self.0.current().get(key, |_, [a, b]| a ^ b)
    }

    /// Values of many keys, with the cache misses of a batch under way at a time. All come from one
    /// generation of the table; each is the value that its key had at some time during the call.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn get_batch<K: Key>(&mut self, keys: &[K], out: &mut [u64]) {
        self.0.current().get_batch(keys, out, |_, [a, b]| a ^ b);
    }
}
