//! An exact map whose entries stand one after the other, for states that no graph holds.

use weir_hash::{HashKey, Key};

/// An empty place of the index.
const EMPTY: u32 = u32::MAX;

/// Key -> value. Keys and values are numbered densely in the order of insertion, and removing one
/// moves the last into the gap, as in `OthelloMap`; an open-addressing index of 32-bit numbers, at
/// most three quarters full, finds them.
#[derive(Clone, Debug)]
pub(crate) struct DenseMap<K, V> {
    key: HashKey,
    keys: Vec<K>,
    values: Vec<V>,
    /// Numbers of entries; a power of two of places. An entry stands at the first place from its
    /// hash on that was empty.
    index: Vec<u32>,
}

impl<K: Key, V> DenseMap<K, V> {
    /// Room for `capacity` entries at first, found by their hashes under `key`.
    pub fn new(key: HashKey, capacity: usize) -> Self {
        let mut map = Self { key, keys: Vec::new(), values: Vec::new(), index: Vec::new() };
        map.reserve(capacity);
        map
    }

    /// The key of the hash that picks a flow's cells.
    pub fn hash_key(&self) -> &HashKey {
        &self.key
    }

    /// Takes another hash key.
    pub fn rekey(&mut self, key: HashKey) {
        self.key = key;
        self.fill_index(self.index.len());
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn keys(&self) -> &[K] {
        &self.keys
    }

    pub fn values(&self) -> &[V] {
        &self.values
    }

    /// The keys, and the values to be changed in place.
    pub fn entries_mut(&mut self) -> (&[K], &mut [V]) {
        (&self.keys, &mut self.values)
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        self.place(key).map(|at| &self.values[self.index[at] as usize])
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.place(key).map(|at| &mut self.values[self.index[at] as usize])
    }

    /// Adds a key or replaces its value.
    pub fn insert(&mut self, key: K, value: V) {
        if let Some(known) = self.get_mut(&key) {
            *known = value;
            return;
        }
        self.reserve(self.len() + 1);
        let number = self.keys.len() as u32;
        let mut at = self.home(&key);
        while self.index[at] != EMPTY {
            at = self.after(at);
        }
        self.index[at] = number;
        self.keys.push(key);
        self.values.push(value);
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.place(key)?;
        let number = self.index[at];
        let last = self.keys.len() as u32 - 1;
        if number != last {
            let moved = self.home(&self.keys[last as usize]);
            let moved = self.probe(moved, |other| other == last)?;
            self.index[moved] = number;
        }
        // Before the gap is closed: that looks at the keys of the numbers which are left.
        self.keys.swap_remove(number as usize);
        self.close_gap(at);
        Some(self.values.swap_remove(number as usize))
    }

    /// Removes every entry for which `keep` says no; returns how many went.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) -> usize {
        let before = self.len();
        let mut at = 0;
        while at < self.len() {
            let key = self.keys[at];
            if keep(&key, &mut self.values[at]) {
                at += 1;
            } else {
                self.remove(&key);
            }
        }
        before - self.len()
    }

    /// Makes room for `entries` entries in all.
    pub fn reserve(&mut self, entries: usize) {
        assert!(entries < EMPTY as usize, "entries are numbered by 32 bits");
        let places = (entries * 4).div_ceil(3).max(8).next_power_of_two();
        if places > self.index.len() {
            self.fill_index(places);
        }
    }

    /// Bytes of the allocations.
    pub fn bytes(&self) -> usize {
        self.keys.capacity() * size_of::<K>()
            + self.values.capacity() * size_of::<V>()
            + self.index.capacity() * size_of::<u32>()
    }

    fn fill_index(&mut self, places: usize) {
        self.index = vec![EMPTY; places];
        for number in 0..self.keys.len() {
            let mut at = self.home(&self.keys[number]);
            while self.index[at] != EMPTY {
                at = self.after(at);
            }
            self.index[at] = number as u32;
        }
    }

    /// Where a key would stand if nothing were in its way.
    #[inline]
    fn home(&self, key: &K) -> usize {
        (key.hash(&self.key) >> (64 - self.index.len().trailing_zeros())) as usize
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.index.len() - 1)
    }

    /// The place in the index at which a key stands.
    #[inline]
    fn place(&self, key: &K) -> Option<usize> {
        self.probe(self.home(key), |number| self.keys[number as usize] == *key)
    }

    /// The first place from `at` on whose number is `right`; `None` if an empty one comes first.
    #[inline]
    fn probe(&self, mut at: usize, right: impl Fn(u32) -> bool) -> Option<usize> {
        while self.index[at] != EMPTY {
            if right(self.index[at]) {
                return Some(at);
            }
            at = self.after(at);
        }
        None
    }

    /// Empties a place, and moves up what would no more be found behind it.
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.index.len() - 1;
        let mut at = gap;
        loop {
            self.index[gap] = EMPTY;
            loop {
                at = self.after(at);
                if self.index[at] == EMPTY {
                    return;
                }
                let home = self.home(&self.keys[self.index[at] as usize]);
                // Its home lies at or before the gap, seen from where it stands.
                if at.wrapping_sub(home) & mask >= at.wrapping_sub(gap) & mask {
                    break;
                }
            }
            self.index[gap] = self.index[at];
            gap = at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;
    use std::collections::BTreeMap;

    /// A key whose hash has few values, so that long runs of the index are full.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
    struct Crowded(u16);

    impl Key for Crowded {
        fn hash(&self, key: &HashKey) -> u64 {
            // The last of the places too, so that runs go around the end.
            (key.hash_word(u64::from(self.0 % 7)) & 3).wrapping_sub(1) << 60
        }
    }

    #[test]
    fn it_agrees_with_a_tree_map_under_random_changes() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut map = DenseMap::new(HashKey::from_seed(1), 0);
        let mut model = BTreeMap::new();
        for step in 0..20_000u32 {
            let key = Crowded(rng.random_range(0..200));
            if rng.random_bool(0.55) {
                map.insert(key, step);
                model.insert(key, step);
            } else {
                assert_eq!(map.remove(&key), model.remove(&key));
            }
            match step % 4_000 {
                1_000 => map.rekey(HashKey::from_seed(step.into())),
                3_000 => {
                    let gone = map.retain(|_, value| *value % 3 != 0);
                    let before = model.len();
                    model.retain(|_, value| *value % 3 != 0);
                    assert_eq!(gone, before - model.len());
                }
                _ => {}
            }
            assert_eq!(map.len(), model.len());
            let asked = Crowded(rng.random_range(0..200));
            assert_eq!(map.get(&asked), model.get(&asked));
        }
        let mut entries: Vec<_> = map.keys().iter().copied().zip(map.values().to_vec()).collect();
        entries.sort_unstable();
        assert_eq!(entries, model.into_iter().collect::<Vec<_>>());
    }
}
