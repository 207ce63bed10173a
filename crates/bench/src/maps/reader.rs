//! A map under measurement, whatever its type: loops that know the type, and the bound.

use std::sync::Arc;
use weir_lookup::simd::gather::Gather;

/// One thread's way to look keys up. A call is a block of many keys, so that the loop over them is
/// compiled for the map.
pub trait Reader: Send {
    /// Looks keys up in bursts.
    fn batched(&mut self, burst: usize, keys: &[u64]);
    /// Looks keys up one at a time.
    fn single(&mut self, keys: &[u64]);
    /// What the last call found for its key number `at`; `None` if it found nothing.
    fn answer(&self, at: usize) -> Option<u64>;
}

/// Makes a reader for another thread.
pub type MakeReader = Box<dyn Fn() -> Box<dyn Reader>>;

struct Of<T, O, S, B, W> {
    table: T,
    out: Vec<O>,
    empty: O,
    single: S,
    batch: B,
    word: W,
}

impl<T, O, S, B, W> Reader for Of<T, O, S, B, W>
where
    T: Send,
    O: Copy + Send,
    S: Fn(&mut T, &u64) -> O + Send,
    B: Fn(&mut T, &[u64], &mut [O]) + Send,
    W: Fn(O) -> Option<u64> + Send,
{
    fn batched(&mut self, burst: usize, keys: &[u64]) {
        self.out.resize(keys.len(), self.empty);
        for (keys, out) in keys.chunks(burst).zip(self.out.chunks_mut(burst)) {
            (self.batch)(&mut self.table, keys, out);
        }
    }

    fn single(&mut self, keys: &[u64]) {
        self.out.resize(keys.len(), self.empty);
        for (key, out) in keys.iter().zip(&mut self.out) {
            *out = (self.single)(&mut self.table, key);
        }
    }

    fn answer(&self, at: usize) -> Option<u64> {
        (self.word)(self.out[at])
    }
}

/// Readers of a map. `table` is a thread's handle of it, `empty` an answer to begin with, `word`
/// an answer as a number.
pub fn readers<T, O>(
    table: T,
    empty: O,
    single: impl Fn(&mut T, &u64) -> O + Copy + Send + 'static,
    batch: impl Fn(&mut T, &[u64], &mut [O]) + Copy + Send + 'static,
    word: impl Fn(O) -> Option<u64> + Copy + Send + 'static,
) -> MakeReader
where
    T: Clone + Send + 'static,
    O: Copy + Send + 'static,
{
    Box::new(move || {
        let table = table.clone();
        Box::new(Of { table, out: Vec::new(), empty, single, batch, word })
    })
}

/// What a lookup must at least read.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Reads {
    /// Reads at random places that follow from the key alone: 1, 2, 3 or 7.
    pub first: usize,
    /// Bytes in which these are.
    pub bytes: usize,
    /// Bytes in which one more read is, at a place that the first ones tell.
    pub then: Option<usize>,
}

impl Reads {
    /// So many reads of one array.
    pub fn of(first: usize, bytes: usize) -> Self {
        Self { first, bytes, then: None }
    }

    /// Readers that make these reads and nothing else.
    pub fn readers(self) -> MakeReader {
        match self.first {
            1 => self.made::<1>(),
            2 => self.made::<2>(),
            3 => self.made::<3>(),
            _ => self.made::<7>(),
        }
    }

    fn made<const READS: usize>(self) -> MakeReader {
        let first = Arc::new(Gather::<READS>::new(self.bytes));
        match self.then.map(|bytes| Arc::new(Gather::<1>::new(bytes))) {
            None => readers(
                first,
                0u32,
                |table, key| table.get(*key),
                |table, keys, out| table.get_batch(keys, out),
                |found| Some(found.into()),
            ),
            Some(then) => readers(
                (first, then, Vec::new()),
                0u32,
                |(first, then, _), key| then.get(key ^ u64::from(first.get(*key))),
                |(first, then, places), keys, out| {
                    first.get_batch(keys, out);
                    places.clear();
                    places
                        .extend(keys.iter().zip(&*out).map(|(key, &found)| key ^ u64::from(found)));
                    then.get_batch(places, out);
                },
                |found| Some(found.into()),
            ),
        }
    }
}
