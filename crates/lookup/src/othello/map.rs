//! OthelloMap: an exact map whose graph can carry other values to the data plane.

use crate::othello::Othello;
use crate::othello::view::{Geometry, View};
use crate::{Error, HashKey, Key, Value};

/// Key -> value, exact, with a view of other values over the same graph (Concury section 5.4).
///
/// An array of (key, value) and an [`Othello`] from keys to positions in it. A *set query* looks
/// the position up and compares the key that stands there. Deleting moves the last entry into the
/// gap. [`export`](Self::export) re-assigns l-bit values on the existing acyclic graph: what a
/// rebuild would cost most, finding that graph, was paid when the keys came.
///
/// ```
/// use weir_lookup::OthelloMap;
///
/// let mut map: OthelloMap<u64, &str> = OthelloMap::new(8, 1000, 1);
/// map.insert(7, "seven")?;
/// map.insert(8, "eight")?;
/// assert_eq!(map.get(&7), Some(&"seven"));
/// assert_eq!(map.get(&9), None); // exact: it compares whole keys
///
/// let lengths = map.export::<u32>(None, |text| text.len() as u32);
/// assert_eq!(lengths.get(&7u64), 5);
/// map.remove(&7);
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct OthelloMap<K, V> {
    index: Othello<K>,
    values: Vec<V>,
    /// Keys for which room was asked: so many fit into the cells that they were promised.
    reserved: usize,
}

impl<K: Key, V> OthelloMap<K, V> {
    /// A map whose exported views have cells of `export_bits` (1..=64).
    pub fn new(export_bits: u32, capacity: usize, seed: u64) -> Self {
        Self {
            index: Othello::with_geometry_bits(32, export_bits, capacity, seed),
            values: Vec::new(),
            reserved: capacity,
        }
    }

    /// An empty map with the hash key and the shape of a view that was exported earlier, so that a
    /// program that is started again can go on from there: once its keys are back, exports over
    /// that view change only what has changed.
    pub fn in_shape_of<C: Value>(view: &View<C>, seed: u64) -> Self {
        Self { index: Othello::in_shape_of(32, view, seed), values: Vec::new(), reserved: 0 }
    }

    /// Number of entries in the map.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The position of a key, or `None` if it is not in the map.
    #[inline]
    fn position(&self, key: &K) -> Option<usize> {
        self.index.number_of(key)
    }

    /// The value of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.position(key).map(|at| &self.values[at])
    }

    /// The value of a key, to be changed in place.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.position(key).map(|at| &mut self.values[at])
    }

    /// Adds a key or replaces its value; returns the former value. The map doubles its cells when it
    /// is full; views that are exported over the one before keep the values of unknown keys then.
    ///
    /// # Errors
    /// [`Error::NoAcyclicGraph`] if the key type's hash is broken; the map is unchanged then.
    pub fn insert(&mut self, key: K, value: V) -> Result<Option<V>, Error> {
        if let Some(at) = self.position(&key) {
            return Ok(Some(std::mem::replace(&mut self.values[at], value)));
        }
        // A rebuild under another hash key would give every unknown key another value.
        if self.len() >= self.reserved && self.index.is_crowded_for(&key) {
            self.index.double();
        }
        self.index.insert(key, self.values.len() as u32)?;
        self.values.push(value);
        Ok(None)
    }

    /// Removes a key and returns its value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.position(key)?;
        self.index.remove_number(at);
        Some(self.values.swap_remove(at))
    }

    /// Removes every entry for which `keep` says no; returns how many went.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) -> usize {
        let before = self.len();
        let mut at = 0;
        while at < self.values.len() {
            let key = self.index.keys()[at];
            if keep(&key, &mut self.values[at]) {
                at += 1;
            } else {
                self.remove(&key);
            }
        }
        before - self.len()
    }

    /// The keys, in the order of their positions.
    pub fn keys(&self) -> &[K] {
        self.index.keys()
    }

    /// The values, in the order of their positions.
    pub fn values(&self) -> &[V] {
        &self.values
    }

    /// The keys, and the values to be changed in place, in the order of their positions.
    pub fn entries_mut(&mut self) -> (&[K], &mut [V]) {
        (self.index.keys(), &mut self.values)
    }

    /// All entries, in the order of their positions.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.index.keys().iter().zip(&self.values)
    }

    /// Makes room for `keys` keys in all, in one rebuild.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn reserve(&mut self, keys: usize) -> Result<(), Error> {
        self.index.reserve(keys)?;
        self.reserved = self.reserved.max(keys);
        Ok(())
    }

    /// Produces the data-plane view in which each key has the value that `value` gives it; see
    /// [`Othello::export`] for `base`. O(n), without rebuilding the graph.
    ///
    /// # Panics
    /// If a `C` has fewer bits than a cell of the views.
    pub fn export<C: Value>(&mut self, base: Option<&View<C>>, value: impl Fn(&V) -> C) -> View<C> {
        let values = &self.values;
        self.index.export(base, |at| value(&values[at]))
    }

    /// The shape of the exported views.
    pub fn geometry(&self) -> Geometry {
        self.index.geometry()
    }

    /// The hash key now in use.
    pub fn hash_key(&self) -> &HashKey {
        self.index.hash_key()
    }

    /// How often the graph was rebuilt under a new seed.
    pub fn rebuilds(&self) -> u64 {
        self.index.rebuilds()
    }

    /// Bytes of the control structure's own allocations.
    pub fn control_bytes(&self) -> usize {
        self.index.control_bytes() + self.values.capacity() * size_of::<V>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys that come with the value that they have already move nobody while the cells are doubled.
    #[test]
    fn growth_moves_no_unknown_key() {
        let unknown: Vec<u64> = (0..20_000).map(|n| n | 1 << 40).collect();
        let (mut grown, mut rebuilt) = (0, 0);
        for seed in 0..4 {
            let mut map: OthelloMap<u64, u32> = OthelloMap::new(12, 1000, seed);
            let mut view = map.export::<u32>(None, |value| *value);
            for step in 0..60u64 {
                let values = |view: &View| unknown.iter().map(|key| view.get(key)).collect();
                let before: Vec<u32> = values(&view);
                for key in step * 1000..(step + 1) * 1000 {
                    map.insert(key, view.get(&key)).expect("keys differ");
                }
                let next = map.export(Some(&view), |value| *value);
                if next.hash_key() == view.hash_key() {
                    assert_eq!(values(&next), before, "seed {seed}, step {step}");
                    grown += u32::from(next.geometry() != view.geometry());
                } else {
                    rebuilt += 1;
                }
                for key in 0..(step + 1) * 1000 {
                    assert_eq!(Some(&next.get(&key)), map.get(&key), "seed {seed}, step {step}");
                }
                view = next;
            }
        }
        // From 2,729 cells to some 280,000 in each of four runs.
        assert!(grown >= 10, "{grown} times grown, {rebuilt} times rebuilt");
    }
}
