//! What a filter can be put in front of.

use super::{Lookup, MapReader, SharedMap};
use crate::{
    BATCH, Cuckoo, Error, FiltableView, Fuse, Key, Ludo, LudoReader, LudoShared, LudoView,
    OthelloReader, OthelloShared, PartialCuckoo, SetReader, SetSep, SetView, View,
};

/// Values of a map that has one for every key.
fn total<K, V: Copy + Default>(
    keys: &[K],
    out: &mut [Option<V>],
    mut get: impl FnMut(&[K], &mut [V]),
) {
    assert_eq!(keys.len(), out.len(), "one result per key");
    const BLOCK: usize = 8 * BATCH;
    let mut found = [V::default(); BLOCK];
    for (keys, out) in keys.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
        get(keys, &mut found[..keys.len()]);
        out.iter_mut().zip(found).for_each(|(out, found)| *out = Some(found));
    }
}

macro_rules! retrievals {
    ($($map:ty: $value:ty),* $(,)?) => {$(
        impl<K: Key> Lookup<K> for $map {
            type Value = $value;

            #[inline]
            fn get(&self, key: &K) -> Option<$value> {
                Some(self.get(key))
            }

            fn get_batch(&self, keys: &[K], out: &mut [Option<$value>]) {
                total(keys, out, |keys, found| self.get_batch(keys, found));
            }
        }
    )*};
}

retrievals!(View: u32, View<u64>: u64, Fuse: u32, Fuse<u64>: u64, LudoView: u64, SetSep: u64);

/// Maps that give some keys no value.
macro_rules! partial {
    ($($map:ty: $value:ty),* $(,)?) => {$(
        impl<K: Key> Lookup<K> for $map {
            type Value = $value;

            #[inline]
            fn get(&self, key: &K) -> Option<$value> {
                self.get(key)
            }

            fn get_batch(&self, keys: &[K], out: &mut [Option<$value>]) {
                self.get_batch(keys, out);
            }
        }
    )*};
}

partial!(
    Cuckoo<K>: u64,
    PartialCuckoo: u64,
    FiltableView<K>: u64,
    SetView: u32,
);

macro_rules! readers {
    ($($reader:ty),*) => {$(
        impl<K: Key> MapReader<K> for $reader {
            type Value = u64;

            #[inline]
            fn get(&mut self, key: &K) -> Option<u64> {
                Some(self.get(key))
            }

            fn get_batch(&mut self, keys: &[K], out: &mut [Option<u64>]) {
                total(keys, out, |keys, found| self.get_batch(keys, found));
            }
        }
    )*};
}

readers!(LudoReader, OthelloReader);

impl<K: Key> MapReader<K> for SetReader {
    type Value = u32;

    #[inline]
    fn get(&mut self, key: &K) -> Option<u32> {
        self.get(key)
    }

    fn get_batch(&mut self, keys: &[K], out: &mut [Option<u32>]) {
        self.get_batch(keys, out);
    }
}

impl<K: Key> SharedMap<K> for OthelloShared<K> {
    type Reader = OthelloReader;

    fn reader(&self) -> OthelloReader {
        self.reader()
    }

    fn capacity(&self) -> usize {
        self.capacity()
    }

    fn get(&self, key: &K) -> Option<u64> {
        self.get(key)
    }

    fn insert(&mut self, key: K, value: u64) -> Result<Option<u64>, Error> {
        self.insert(key, value)
    }

    fn remove(&mut self, key: &K) -> Result<Option<u64>, Error> {
        Ok(self.remove(key))
    }

    fn each_key(&self, visit: impl FnMut(&K)) {
        self.iter().map(|(key, _)| key).for_each(visit);
    }
}

/// A [`Ludo`] table and the shared view of it, which gets each of its messages: what one process
/// needs that changes a table while its other threads read it.
///
/// ```
/// use weir_lookup::{Ludo, LudoWriter};
///
/// let mut writer = LudoWriter::new(Ludo::<u64>::new(12, 1000, 1)?);
/// let mut reader = writer.reader();
/// writer.insert(7, 300)?;
/// assert_eq!(std::thread::spawn(move || reader.get(&7u64)).join().unwrap(), 300);
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Debug)]
pub struct LudoWriter<K> {
    table: Ludo<K>,
    shared: LudoShared,
}

impl<K: Key> LudoWriter<K> {
    /// Shares the view of a table.
    pub fn new(table: Ludo<K>) -> Self {
        let shared = LudoShared::new(table.view().clone());
        Self { table, shared }
    }

    /// A reader for another thread.
    pub fn reader(&self) -> LudoReader {
        self.shared.reader()
    }

    /// The table that the readers' view follows.
    pub fn table(&self) -> &Ludo<K> {
        &self.table
    }

    /// As [`Ludo::insert`]; lookups that begin after this has returned see it.
    ///
    /// # Errors
    /// As [`Ludo::insert`]; nothing is changed then.
    pub fn insert(&mut self, key: K, value: u64) -> Result<Option<u64>, Error> {
        let former = self.table.insert(key, value)?;
        self.shared.apply(self.table.update())?;
        Ok(former)
    }

    /// As [`Ludo::remove`].
    ///
    /// # Errors
    /// None, as the view is the table's own.
    pub fn remove(&mut self, key: &K) -> Result<Option<u64>, Error> {
        let former = self.table.remove(key);
        if former.is_some() {
            self.shared.apply(self.table.update())?;
        }
        Ok(former)
    }
}

impl<K: Key> SharedMap<K> for LudoWriter<K> {
    type Reader = LudoReader;

    fn reader(&self) -> LudoReader {
        self.reader()
    }

    fn capacity(&self) -> usize {
        self.table.capacity()
    }

    fn get(&self, key: &K) -> Option<u64> {
        self.table.get(key)
    }

    fn insert(&mut self, key: K, value: u64) -> Result<Option<u64>, Error> {
        self.insert(key, value)
    }

    fn remove(&mut self, key: &K) -> Result<Option<u64>, Error> {
        self.remove(key)
    }

    fn each_key(&self, mut visit: impl FnMut(&K)) {
        self.table.iter().for_each(|(key, _)| visit(&key));
    }
}
