//! OthelloMap: an exact map whose graph can carry other values to the data plane.

use crate::othello::Othello;
use crate::othello::table::crowded_from;
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
    /// Keys for which room was asked: so many fit into the cells that they were promised, as long as there is no
    /// view by which unknown keys have values that are to stay.
    reserved: usize,
    /// No cycle makes the cells more than in this shape.
    largest: Geometry,
}

impl<K: Key, V> OthelloMap<K, V> {
    /// A map whose exported views have cells of `export_bits` (1..=64).
    pub fn new(export_bits: u32, capacity: usize, seed: u64) -> Self {
        Self {
            index: Othello::with_geometry_bits(32, export_bits, capacity, seed),
            values: Vec::new(),
            reserved: capacity,
            largest: Geometry::largest_for_keys(export_bits, usize::MAX),
        }
    }

    /// An empty map with the hash key and the shape of a view that was exported earlier, so that a
    /// program that is started again can go on from there: once its keys are back, exports over
    /// that view change only what has changed.
    pub fn in_shape_of<C: Value>(view: &View<C>, seed: u64) -> Self {
        Self {
            index: Othello::in_shape_of(32, view, seed),
            values: Vec::new(),
            reserved: 0,
            largest: Geometry::largest_for_keys(view.geometry().bits, usize::MAX),
        }
    }

    /// There are never more keys than so many, so that views are never larger than
    /// [`Geometry::largest_for_keys`] says of them, or than they are already.
    pub fn never_beyond(&mut self, keys: usize) {
        self.largest = Geometry::largest_for_keys(self.geometry().bits, keys);
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
    /// is full, and when a key closes a cycle while there is room for that; views that are exported over the one
    /// before keep the values of unknown keys then. Where there is no room, a cycle makes another hash key.
    ///
    /// # Errors
    /// [`Error::NoAcyclicGraph`] if the key type's hash is broken; the map is unchanged then, but for room.
    pub fn insert(&mut self, key: K, value: V) -> Result<Option<V>, Error> {
        if let Some(at) = self.position(&key) {
            return Ok(Some(std::mem::replace(&mut self.values[at], value)));
        }
        let number = self.values.len() as u32;
        // Of two keys in the same two cells one in four still shares them when these are doubled.
        while !self.index.insert_as_it_is(key, number) {
            if !self.may_double() {
                // A rebuild under another hash key gives every unknown key another value.
                self.index.insert(key, number)?;
                break;
            }
            self.index.double();
        }
        self.values.push(value);
        Ok(None)
    }

    /// Whether a key for which there is no room as the cells are gets it by twice the cells.
    fn may_double(&self) -> bool {
        let (keys, capacity) = (self.len(), self.index.capacity());
        let fits = self.geometry().doubled().chunks_a <= self.largest.chunks_a;
        keys >= self.reserved && (keys == capacity || keys >= crowded_from(capacity) && fits)
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
        self.reserved = 0;
        let values = &self.values;
        self.index.export(base, |at| value(&values[at]))
    }

    /// As [`export`](Self::export), by a caller who knows which keys may have another value than in `base`:
    /// those of which `may` says so, all that came since among them. Much faster where these are few.
    ///
    /// # Panics
    /// As [`export`](Self::export).
    pub fn export_changes<C: Value>(
        &mut self,
        base: Option<&View<C>>,
        may: impl Fn(&V) -> bool,
        value: impl Fn(&V) -> C,
    ) -> View<C> {
        self.reserved = 0;
        let values = &self.values;
        self.index.export_changes(base, |at| may(&values[at]), |at| value(&values[at]))
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

    /// Exports of what has changed alone are whole: whatever came, went, came again or was given another
    /// value, also through growth and rebuilds.
    #[test]
    fn an_export_of_changes_lacks_nothing() {
        for seed in 0..6 {
            let mut map: OthelloMap<u64, (u32, bool)> = OthelloMap::new(12, 100, seed);
            let mut view = map.export::<u32>(None, |(value, _)| *value);
            let mut random = seed | 1;
            let mut next = move |below: u64| {
                random =
                    random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                (random >> 33) % below
            };
            for step in 0..120u64 {
                for _ in 0..next(400) {
                    let (key, value) = (next(4000 + step * 40), next(4096) as u32);
                    match next(4) {
                        0 => drop(map.remove(&key)),
                        1 => map.get_mut(&key).into_iter().for_each(|held| *held = (value, true)),
                        _ if map.get(&key).is_none() => {
                            map.insert(key, (value, true)).expect("keys differ");
                        }
                        _ => {}
                    }
                }
                let draft = map.export_changes(Some(&view), |(_, may)| *may, |(value, _)| *value);
                for (key, (value, _)) in map.iter() {
                    assert_eq!(draft.get(key), *value, "seed {seed}, step {step}, key {key}");
                }
                // Now and then a draft is thrown away, and what had changed stays so.
                if next(3) > 0 {
                    map.entries_mut().1.iter_mut().for_each(|(_, may)| *may = false);
                    view = draft;
                }
            }
        }
    }

    /// Whatever a map was made for, whatever comes and goes, and wherever it goes on from: its views are
    /// never larger than what was said of so many keys, however many cycles they close. And it is not said of much
    /// fewer.
    #[test]
    fn no_history_has_larger_views_than_its_keys_allow() {
        let mut doubled = 0;
        for seed in 0..40u64 {
            let bits = [4, 9, 12, 15][seed as usize % 4];
            let mut random = seed | 1;
            let mut next = move |below: usize| {
                random =
                    random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                (random >> 33) as usize % below
            };
            let most = 1 + next(12_000);
            let largest = Geometry::largest_for_keys(bits, most);
            let mut map: OthelloMap<u64, u32> = OthelloMap::new(bits, next(most + 1), seed);
            map.never_beyond(most);
            let mut view = map.export::<u32>(None, |value| *value);
            for round in 0..6u64 {
                // To the brim each other time.
                let wanted = if round % 2 == 1 { most } else { next(most + 1) };
                let keys: Vec<u64> = map.keys().to_vec();
                for key in keys.iter().skip(wanted) {
                    map.remove(key);
                }
                while map.len() < wanted {
                    map.insert(next(1 << 30) as u64, 1).expect("keys differ");
                }
                doubled += u32::from(map.geometry().chunks_a > view.geometry().chunks_a);
                view = map.export(Some(&view), |value| *value);
                let chunks = view.geometry().chunks_a;
                let told = format!("seed {seed}, {bits} bits, {most} keys, round {round}");
                assert!(chunks <= largest.chunks_a && chunks == view.geometry().chunks_b, "{told}");
                if next(3) == 0 {
                    // Begun again: the keys come back one by one.
                    let keys: Vec<u64> = map.keys().to_vec();
                    map = OthelloMap::in_shape_of(&view, seed + round);
                    map.never_beyond(most);
                    for key in keys {
                        map.insert(key, 1).expect("keys differ");
                    }
                }
            }
            let least = OthelloMap::<u64, u32>::new(bits, most, 1).geometry().chunks_a;
            assert!(largest.chunks_a <= least * 8 / 3 + 2, "{most} keys: {largest:?}");
        }
        assert!(doubled > 5, "{doubled}");
        // One chunk of cells of 12 bits is full with 2,342 keys, and three quarters full with 1,755.
        assert_eq!(Geometry::largest_for_keys(12, 1_755).chunks_a, 1);
        assert_eq!(Geometry::largest_for_keys(12, 1_756).chunks_a, 2);
        assert!(Geometry::largest_for_keys(12, usize::MAX >> 8).cells() > 3 << 30);
    }

    /// Keys that come with the value that they have already move nobody while the cells are doubled, and other hash
    /// keys are rare.
    #[test]
    fn growth_moves_no_unknown_key() {
        let unknown: Vec<u64> = (0..20_000).map(|n| n | 1 << 40).collect();
        let (mut grown, mut rebuilt) = (0, 0);
        for seed in 0..12 {
            let mut map: OthelloMap<u64, u32> = OthelloMap::new(12, 1000, seed);
            map.never_beyond(40_000);
            let mut view = map.export::<u32>(None, |value| *value);
            for step in 0..40u64 {
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
        // From 2,729 cells to some 90,000 or 180,000 in each of twelve runs. One in eight meets a cycle where a table
        // has just been doubled and is less than a quarter full; it is one in each run if only tables that
        // are nearly full are doubled.
        assert!(grown >= 30 && rebuilt <= 4, "{grown} times grown, {rebuilt} times rebuilt");
    }

    /// Keys come and go for so long that hundreds would close a cycle in the least cells: these are doubled, up to
    /// the bound of so many keys or that of how few there are, and then cycles are rare.
    #[test]
    fn cycles_are_told_apart_by_cells() {
        const KEYS: u64 = 1_500;
        const TURNS: u64 = 200;
        for (most, rekeyed) in [(20_000, 8), (2_000, 40)] {
            let mut map: OthelloMap<u64, u32> = OthelloMap::new(12, 0, 1);
            map.never_beyond(most);
            map.export::<u32>(None, |value| *value);
            for key in 0..KEYS * TURNS {
                if key >= KEYS {
                    map.remove(&(key - KEYS));
                }
                map.insert(key, 1).expect("keys differ");
            }
            let (chunks, rebuilds) = (map.geometry().chunks_a, map.rebuilds());
            println!("{most} keys at most: {chunks} chunks, {rebuilds} times another key");
            assert!(rebuilds <= rekeyed, "{most}: {rebuilds} times another hash key");
            assert!(chunks <= Geometry::largest_for_keys(12, most).chunks_a, "{most}: {chunks}");
            assert!(map.index.capacity() <= KEYS as usize * 8 + 1, "{most}: {chunks} chunks");
        }
    }
}
