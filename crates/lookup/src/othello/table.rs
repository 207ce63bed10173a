//! Othello: the control structure that knows the keys.

use crate::othello::graph::{Graph, OrderStep, Side, is_forest};
use crate::othello::view::{Geometry, View, cells_per_chunk};
use crate::{Error, HashKey, Key, Value};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// Cells of A and B together per key at full load. Two equal arrays of 1.165 n leave a random
/// graph acyclic with probability sqrt(1 - 1/1.165^2) = 0.51; the paper's 1.33 n + n with 0.50.
pub const CELLS_PER_KEY: f64 = 2.33;

/// A seed fails with probability about 1/2 at full load; 200 failures in a row mean equal keys.
const MAX_TRIES: u32 = 200;

/// How many changes of a batch ahead the memory that a change touches is asked for, by stages:
/// (the edge,) the nodes, their neighbours.
const AHEAD: [usize; 3] = [24, 16, 8];

/// A map from keys to l-bit values that can be looked up without the keys.
///
/// Keys are numbered densely in the order of insertion; deleting moves the last into the gap.
/// Insert, change and delete take O(1) amortised; an insertion that closes a cycle (probability
/// O(1/n)) or exceeds the capacity rebuilds the table under a new seed.
///
/// Values are of type `V`: `u32` for 1..=32 bits, `u64` for 1..=64.
///
/// ```
/// use weir_lookup::Othello;
///
/// let items: Vec<(u64, u32)> = (0..100_000).map(|key| (key, key as u32 % 4096)).collect();
/// let mut table = Othello::build(12, &items, 1)?;
/// assert_eq!(table.get(&7), 7);
/// table.insert(1 << 40, 300)?; // a new key; its number is 100,000
/// table.change(100_000, 301);
/// assert_eq!(table.get(&(1 << 40)), 301);
///
/// let view = table.view(); // what lookups need: no keys, 2.33 bits for each bit of a value
/// assert_eq!(view.get(&(1u64 << 40)), 301);
/// assert!((view.bytes() * 8) as f64 / 100_000.0 < 12.0 * 2.4);
/// let _any_of_4096 = view.get(&12345678u64); // a key that is not in the table
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Othello<K, V = u32> {
    seed: HashKey,
    geometry: Geometry,
    capacity: usize,
    mask: V,
    graph: Graph<V>,
    keys: Vec<K>,
    rng: ChaCha8Rng,
    rebuilds: u64,
}

/// Tables whose values are the numbers of their keys, as exact maps have them.
impl<K: Key> Othello<K> {
    /// The number of a key, or `None` if it is not in the table. A key with a cell that belongs to
    /// no key is not, which two thirds of all unknown keys have at full load.
    #[inline]
    pub(crate) fn number_of(&self, key: &K) -> Option<usize> {
        let (a, b) = self.nodes(key);
        if self.graph.is_isolated(a) || self.graph.is_isolated(b) {
            return None;
        }
        let number = (self.graph.value(a) ^ self.graph.value(b)) as usize;
        (self.keys.get(number) == Some(key)).then_some(number)
    }

    /// Takes a key out as [`remove`](Self::remove) does; the last key's value becomes its
    /// new number.
    pub(crate) fn remove_number(&mut self, number: usize) {
        self.remove(number);
        if number < self.len() {
            self.change(number, number as u32);
        }
    }
}

impl<K: Key, V: Value> Othello<K, V> {
    /// A table for `value_bits`-wide values and at first `capacity` keys; it grows by a third when
    /// it is full. `seed` makes every run with it the same.
    ///
    /// # Panics
    /// If a `V` does not hold so many bits, or there are none.
    pub fn new(value_bits: u32, capacity: usize, seed: u64) -> Self {
        Self::with_geometry_bits(value_bits, value_bits, capacity, seed)
    }

    /// As [`new`](Self::new), with the shape of a view whose cells have `view_bits`, which may
    /// differ from the width of the values kept here (see `OthelloMap`).
    pub(crate) fn with_geometry_bits(
        value_bits: u32,
        view_bits: u32,
        capacity: usize,
        seed: u64,
    ) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let key = HashKey::from_rng(&mut rng);
        Self::empty(value_bits, geometry(view_bits, capacity), key, rng)
    }

    /// An empty table with the hash key and the shape of a view.
    pub(crate) fn in_shape_of<C: Value>(value_bits: u32, view: &View<C>, seed: u64) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(seed);
        Self::empty(value_bits, view.geometry(), *view.hash_key(), rng)
    }

    fn empty(value_bits: u32, geometry: Geometry, key: HashKey, mut rng: ChaCha8Rng) -> Self {
        V::assert_width(value_bits);
        let mask = V::mask(value_bits);
        let cells = random_cells(&mut rng, geometry, mask);
        let capacity = capacity_of(geometry);
        Self {
            seed: key,
            geometry,
            capacity,
            mask,
            graph: Graph::new(cells, capacity),
            keys: Vec::new(),
            rng,
            rebuilds: 0,
        }
    }

    /// A table of all these items, whose keys get their positions as numbers, built whole: whether
    /// the graph of a seed has a cycle is told by disjoint sets, without walks.
    ///
    /// # Errors
    /// [`Error::NoAcyclicGraph`] if no seed works, which means that two keys are equal.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn build(value_bits: u32, items: &[(K, V)], seed: u64) -> Result<Self, Error> {
        let mut table = Self::new(value_bits, items.len(), seed);
        table.keys = items.iter().map(|item| item.0).collect();
        let values: Vec<V> = items.iter().map(|item| item.1 & table.mask).collect();
        table.place(items.len(), &values)?;
        table.rebuilds = 0;
        Ok(table)
    }

    /// Number of keys in the table.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// How many keys fit before the arrays grow.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The keys by number.
    pub fn keys(&self) -> &[K] {
        &self.keys
    }

    /// How often the table was rebuilt under a new seed since it was made.
    pub fn rebuilds(&self) -> u64 {
        self.rebuilds
    }

    /// The shape of the views of this table.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The hash key now in use.
    pub fn hash_key(&self) -> &HashKey {
        &self.seed
    }

    /// Value of a key; an arbitrary value for a key that is not in the table.
    #[inline]
    pub fn get(&self, key: &K) -> V {
        let (a, b) = self.geometry.nodes(key.hash(&self.seed));
        self.graph.value(a) ^ self.graph.value(b)
    }

    /// Adds a key that is **not** in the table; its number is the former [`len`](Self::len).
    ///
    /// # Errors
    /// [`Error::NoAcyclicGraph`] if no seed works, which means that the key was there already.
    pub fn insert(&mut self, key: K, value: V) -> Result<(), Error> {
        self.insert_seeing(key, value, |_, _| ()).map(drop)
    }

    /// Adds many keys that are **not** in the table, in order, with the memory that the next ones
    /// touch on its way.
    ///
    /// # Errors
    /// As [`insert`](Self::insert), for the first item that fails; those before it are in.
    pub fn insert_batch(&mut self, items: &[(K, V)]) -> Result<(), Error> {
        const RING: usize = AHEAD[1];
        let mut ring = [(0, 0); RING];
        let mut seed = self.seed;
        for step in 0..items.len() + RING {
            if let Some(&(key, value)) = step.checked_sub(RING).and_then(|at| items.get(at)) {
                self.insert_between(key, ring[step % RING], value, |_, _| ())?;
            }
            if seed != self.seed {
                // The table was rebuilt: what was hashed ahead is hashed again.
                seed = self.seed;
                for at in (step + 1).saturating_sub(RING)..step.min(items.len()) {
                    ring[at % RING] = self.nodes(&items[at].0);
                }
            }
            if let Some((key, _)) = items.get(step) {
                ring[step % RING] = self.nodes(key);
                self.graph.fetch(ring[step % RING]);
            }
            if let Some(at) = step.checked_sub(RING - AHEAD[2]).filter(|&at| at < items.len()) {
                self.graph.fetch_neighbours(ring[at % RING]);
            }
        }
        Ok(())
    }

    /// The two cells of a key.
    #[inline(always)]
    fn nodes(&self, key: &K) -> (u32, u32) {
        self.geometry.nodes(key.hash(&self.seed))
    }

    /// As [`insert`](Self::insert); `joined` sees the side of the graph that changed. Tells whether
    /// there was one: a table that was rebuilt has none.
    fn insert_seeing(
        &mut self,
        key: K,
        value: V,
        joined: impl FnOnce(&Graph<V>, Side),
    ) -> Result<bool, Error> {
        self.insert_between(key, self.nodes(&key), value, joined)
    }

    /// The same with the key's cells at hand.
    #[inline]
    fn insert_between(
        &mut self,
        key: K,
        (a, b): (u32, u32),
        value: V,
        joined: impl FnOnce(&Graph<V>, Side),
    ) -> Result<bool, Error> {
        if self.keys.len() == self.capacity {
            self.keys.push(key);
            return self.rebuild(self.keys.len() * 4 / 3, value).map(|()| false);
        }
        match self.graph.join(a, b) {
            Some(side) => {
                joined(&self.graph, side);
                self.set((a, b), side, value);
                self.graph.push(a, b);
                self.keys.push(key);
                Ok(true)
            }
            None => {
                self.keys.push(key);
                self.rebuild(self.capacity, value).map(|()| false)
            }
        }
    }

    /// As [`insert`](Self::insert); adds the cells of the side that was changed to `cells`, the
    /// key's own first. `false` if the table was rebuilt.
    pub(crate) fn insert_joining(
        &mut self,
        key: K,
        value: V,
        cells: &mut Vec<u32>,
    ) -> Result<bool, Error> {
        self.insert_seeing(key, value, |graph, side| cells.extend(graph.nodes_of(side)))
    }

    /// Adds the cells of the smaller side of a key's edge to `cells`, the key's own first.
    pub(crate) fn side_of(&mut self, index: usize, cells: &mut Vec<u32>) {
        let side = self.graph.smaller_side(index);
        cells.extend(self.graph.nodes_of(side));
    }

    /// The two cells of the key with this number.
    pub(crate) fn edge_ends(&self, index: usize) -> [u32; 2] {
        let (a, b) = self.graph.ends(index);
        [a, b]
    }

    /// Which of a key's two cells belong to no key.
    pub(crate) fn isolated(&self, key: &K) -> [bool; 2] {
        let (a, b) = self.geometry.nodes(key.hash(&self.seed));
        [a, b].map(|node| self.graph.is_isolated(node))
    }

    /// The keys in an order in which cells can be filled one after the other.
    pub(crate) fn order(&self) -> impl Iterator<Item = OrderStep> + use<K, V> {
        self.graph.order()
    }

    /// Changes the value of the key with this number.
    pub fn change(&mut self, index: usize, value: V) {
        let ends = self.graph.ends(index);
        let side = self.graph.smaller_side(index);
        self.set(ends, side, value);
    }

    /// Changes the values of many keys, given by their numbers, in order, with the memory that the
    /// next changes touch on its way.
    ///
    /// # Panics
    /// If there is no key with such a number; the changes before it are made.
    pub fn change_batch(&mut self, changes: &[(usize, V)]) {
        for step in 0..changes.len() + AHEAD[0] {
            let ahead = |by: usize| {
                let at = step.checked_sub(AHEAD[0] - by)?;
                changes.get(at).map(|change| change.0).filter(|&index| index < self.len())
            };
            if let Some(index) = ahead(AHEAD[0]) {
                self.graph.fetch_edge(index);
            }
            if let Some(index) = ahead(AHEAD[1]) {
                self.graph.fetch(self.graph.ends(index));
            }
            if let Some(index) = ahead(AHEAD[2]) {
                self.graph.fetch_neighbours(self.graph.ends(index));
            }
            if let Some(&(index, value)) = step.checked_sub(AHEAD[0]).and_then(|at| changes.get(at))
            {
                self.change(index, value);
            }
        }
    }

    /// Makes two cells give a value, by what the cells on one side of their edge are changed by.
    fn set(&mut self, (a, b): (u32, u32), side: Side, value: V) {
        let delta = self.graph.value(a) ^ self.graph.value(b) ^ (value & self.mask);
        self.graph.flip(side, delta);
    }

    /// Removes the key with this number; the last key takes its number. Its former cells keep
    /// their values: they become free, and free cells are random.
    pub fn remove(&mut self, index: usize) -> K {
        self.graph.swap_remove(index);
        self.keys.swap_remove(index)
    }

    /// Makes room for `keys` keys in all, in one rebuild.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn reserve(&mut self, keys: usize) -> Result<(), Error> {
        if keys <= self.capacity {
            return Ok(());
        }
        let values = self.values();
        self.place(keys, &values)
    }

    /// Adds a key that is **not** in the table if there is room for it as the cells are: not if they are full, and
    /// not if it would close a cycle. Tells whether it did.
    pub(crate) fn insert_as_it_is(&mut self, key: K, value: V) -> bool {
        let (a, b) = self.nodes(&key);
        if self.keys.len() == self.capacity {
            return false;
        }
        let Some(side) = self.graph.join(a, b) else { return false };
        self.set((a, b), side, value);
        self.graph.push(a, b);
        self.keys.push(key);
        true
    }

    /// Twice the cells under the same hash key. Each cell becomes two neighbours that have its value,
    /// and the two cells of a key are among those that its two became. So a forest stays one, and
    /// every key keeps its value, also one that is not in the table.
    pub(crate) fn double(&mut self) {
        let geometry = self.geometry.doubled();
        let cells = (0..geometry.cells() as u32).map(|node| self.graph.value(node / 2)).collect();
        let mut graph = Graph::new(cells, capacity_of(geometry));
        for key in &self.keys {
            let (a, b) = geometry.nodes(key.hash(&self.seed));
            graph.push(a, b);
        }
        self.geometry = geometry;
        self.capacity = capacity_of(geometry);
        self.graph = graph;
    }

    /// The lookup face: the same values in bit-packed cells.
    pub fn view(&self) -> View<V> {
        let mut view = View::zeroed(self.seed, self.geometry);
        for node in 0..self.geometry.cells() as u32 {
            view.flip(node, self.graph.value(node));
        }
        view
    }

    /// Exports other values over the same graph: key number `i` gets `value(i)`.
    ///
    /// With the view that was exported before (`base`), cells change only where a key's value
    /// did, so that nearly all *unknown* keys keep their value too, also if the cells were doubled
    /// since; without one, or after a rebuild, free cells are drawn anew.
    pub fn export<C: Value>(
        &mut self,
        base: Option<&View<C>>,
        value: impl Fn(usize) -> C,
    ) -> View<C> {
        self.export_changes(base, |_| true, value)
    }

    /// As [`export`](Self::export), by a caller who knows which values may differ from those in `base`:
    /// those of the keys of which `may` says so. All others are as they are there.
    pub fn export_changes<C: Value>(
        &mut self,
        base: Option<&View<C>>,
        may: impl Fn(usize) -> bool,
        value: impl Fn(usize) -> C,
    ) -> View<C> {
        let base = base.filter(|view| *view.hash_key() == self.seed);
        let Some(mut view) = base.and_then(|view| view.stretched(self.geometry)) else {
            return self.export_whole(value);
        };
        let mask = C::mask(self.geometry.bits);
        let edges: Vec<u32> = (0..self.graph.len() as u32).filter(|n| may(*n as usize)).collect();
        for step in 0..edges.len() + AHEAD[0] {
            let ahead = |by: usize| {
                let at = step.checked_sub(AHEAD[0] - by)?;
                edges.get(at).map(|edge| *edge as usize)
            };
            if let Some(edge) = ahead(AHEAD[0]) {
                self.graph.fetch_edge(edge);
            }
            if let Some(edge) = ahead(AHEAD[1]) {
                self.graph.fetch(self.graph.ends(edge));
            }
            if let Some(edge) = ahead(AHEAD[2]) {
                self.graph.fetch_neighbours(self.graph.ends(edge));
            }
            let Some(edge) = ahead(0) else { continue };
            let (a, b) = self.graph.ends(edge);
            let delta = view.cell(a) ^ view.cell(b) ^ (value(edge) & mask);
            if delta != C::default() {
                // All other keys of the tree have both ends on one side of this edge.
                let side = self.graph.smaller_side(edge);
                for node in self.graph.nodes_of(side) {
                    view.flip(node, delta);
                }
            }
        }
        view
    }

    /// One pass over every tree, from a random root value.
    fn export_whole<C: Value>(&mut self, value: impl Fn(usize) -> C) -> View<C> {
        let mask = C::mask(self.geometry.bits);
        let mut cells = random_cells(&mut self.rng, self.geometry, mask);
        for step in self.graph.order() {
            cells[step.node as usize] = cells[step.up as usize] ^ value(step.edge as usize);
        }
        let mut view = View::zeroed(self.seed, self.geometry);
        for (node, &cell) in cells.iter().enumerate() {
            view.flip(node as u32, cell);
        }
        view
    }

    /// All values, by key number.
    fn values(&self) -> Vec<V> {
        (0..self.graph.len())
            .map(|edge| {
                let (a, b) = self.graph.ends(edge);
                self.graph.value(a) ^ self.graph.value(b)
            })
            .collect()
    }

    /// Rebuilds after `self.keys` got one more key than the graph has, with that key's value.
    fn rebuild(&mut self, capacity: usize, last: V) -> Result<(), Error> {
        let mut values = self.values();
        values.push(last & self.mask);
        let placed = self.place(capacity, &values);
        if placed.is_err() {
            self.keys.pop();
        }
        placed
    }

    /// Finds a seed under which `self.keys` form a forest, and assigns the values. On an error the
    /// old table stays.
    fn place(&mut self, capacity: usize, values: &[V]) -> Result<(), Error> {
        let geometry = geometry(self.geometry.bits, capacity.max(self.keys.len()));
        for _ in 0..MAX_TRIES {
            let seed = HashKey::from_rng(&mut self.rng);
            let ends = || self.keys.iter().map(|key| geometry.nodes(key.hash(&seed)));
            if !is_forest(geometry.cells(), ends()) {
                continue;
            }
            let cells = random_cells(&mut self.rng, geometry, self.mask);
            let mut graph = Graph::new(cells, capacity_of(geometry));
            ends().for_each(|(a, b)| graph.push(a, b));
            graph.assign(values);
            self.seed = seed;
            self.geometry = geometry;
            self.capacity = capacity_of(geometry);
            self.graph = graph;
            self.rebuilds += 1;
            return Ok(());
        }
        Err(Error::NoAcyclicGraph { keys: self.keys.len(), tries: MAX_TRIES })
    }

    /// Bytes of the control structure's own allocations.
    pub fn control_bytes(&self) -> usize {
        self.keys.capacity() * size_of::<K>() + self.graph.bytes()
    }
}

fn random_cells<V: Value>(rng: &mut ChaCha8Rng, geometry: Geometry, mask: V) -> Vec<V> {
    let mut cells = vec![V::default(); geometry.cells()];
    V::fill(&mut cells, rng);
    cells.iter_mut().for_each(|cell| *cell = *cell & mask);
    cells
}

/// From so many keys on, a cycle is told apart by more cells rather than by another hash key: from a quarter of
/// what the cells have room for, so that there are at most 18.7 for a key that is there when they are doubled. With
/// fewer keys, n, an insertion closes a cycle with a probability of less than 0.05 / n: it is c / (1 - c^2) / m for c
/// keys for each of the m cells of an array, as a path of one edge, three, five, ... leads from the one end to the
/// other.
pub(super) fn crowded_from(capacity: usize) -> usize {
    capacity / 4
}

/// What the last key that fits must find for the bound of a map's shapes, which is as tight as it can be where
/// cells are doubled.
fn nearly_full(capacity: usize) -> usize {
    capacity / 4 * 3
}

impl Geometry {
    /// The largest shape that the views of an [`OthelloMap`](crate::OthelloMap) come to which was
    /// [told](crate::OthelloMap::never_beyond) that it never has more keys than so many, and is not asked for room for
    /// more, whatever smaller shape it goes on from. There is room in it to double any shape that so many keys fill
    /// to three quarters. Its cells are numbered by 32 bits; where that is too few, it is the largest shape that they
    /// number.
    pub fn largest_for_keys(bits: u32, keys: usize) -> Self {
        let of = |chunks| Self { bits, chunks_a: chunks, chunks_b: chunks };
        let most = u32::MAX / (4 * cells_per_chunk(bits));
        let keys = keys.min(capacity_of(of(2 * most)));
        // The largest that the last of the keys may find nearly full.
        let (mut doubled, mut beyond) = (0, most + 1);
        while beyond - doubled > 1 {
            let middle = doubled + (beyond - doubled) / 2;
            if nearly_full(capacity_of(of(middle))) < keys {
                doubled = middle;
            } else {
                beyond = middle;
            }
        }
        of((2 * doubled).max(geometry(bits, keys).chunks_a))
    }
}

fn geometry(view_bits: u32, capacity: usize) -> Geometry {
    let cells = (capacity as f64 * CELLS_PER_KEY / 2.0).ceil() as u64;
    Geometry::for_cells(view_bits, cells)
}

/// Whole chunks hold a few more keys than were asked for.
fn capacity_of(geometry: Geometry) -> usize {
    (geometry.cells() as f64 / CELLS_PER_KEY) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_keys_are_an_error_and_change_nothing() {
        let mut table = Othello::new(8, 100, 1);
        table.insert(7u64, 3u32).unwrap();
        assert!(matches!(table.insert(7, 4), Err(Error::NoAcyclicGraph { keys: 2, .. })));
        assert_eq!(table.len(), 1);
        assert_eq!(table.get(&7), 3);
    }

    #[test]
    fn view_and_control_agree_for_every_width() {
        fn check<V: Value>(bits: u32) {
            let mut table = Othello::<u64, V>::new(bits, 10, u64::from(bits));
            let value = |k: u64| V::of_word(k.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits));
            for key in 0..5000u64 {
                table.insert(key, value(key)).unwrap();
            }
            let view = table.view();
            for key in 0..5000u64 {
                assert_eq!(table.get(&key), value(key));
                assert_eq!(view.get(&key), value(key));
            }
            for alien in 5000..6000u64 {
                assert_eq!(view.get(&alien), table.get(&alien));
            }
        }
        (1..=32).for_each(check::<u32>);
        (1..=64).for_each(check::<u64>);
    }

    /// A step of an export changes the answers of few unknown keys: only those that meet a
    /// changed cell.
    #[test]
    fn export_over_a_base_disturbs_few_unknown_keys() {
        let mut table = Othello::new(12, 20_000, 3);
        for key in 0..20_000u64 {
            table.insert(key, 0u32).unwrap();
        }
        let first = table.export(None, |i| i as u32 & 0xfff);
        let second = table.export(Some(&first), |i| (i as u32 & 0xfff) ^ u32::from(i < 20));
        for key in 0..20_000u32 {
            let want = (key & 0xfff) ^ u32::from(key < 20);
            assert_eq!(second.get(&u64::from(key)), want);
        }
        let moved = (1u64 << 40..(1u64 << 40) + 100_000)
            .filter(|alien| first.get(alien) != second.get(alien))
            .count();
        assert!(moved < 2_000, "{moved} of 100,000 unknown keys moved for 20 changes in 20,000");
    }
}
