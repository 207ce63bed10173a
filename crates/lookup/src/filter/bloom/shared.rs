//! A fed Bloom filter that many threads ask while one applies updates.

use super::update::{BloomKind, BloomUpdate};
use super::view::{BloomView, check, len_after};
use super::{Bloom, Places};
use crate::memory::packed::Packed;
use crate::message::MessageError;
use crate::shared::hub::{Publisher, Subscriber};
use crate::{BATCH, Key};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicU64, fence};

/// The bits as readers see them. A bit is changed by one store to its word, so there is nothing
/// that could be seen half done.
#[derive(Debug)]
struct Published {
    places: Places,
    bits: Packed,
}

/// The writer's handle of a filter: it applies updates while [`BloomReader`]s ask.
///
/// A key that is in the set all the time passes all the time. What a thread wrote before a key is
/// let in can be seen by those who let it pass, and what it writes after a key was shut out cannot
/// be seen without [`BloomReader`] noticing: so a map may stand behind the filter
/// ([`GuardedShared`](crate::GuardedShared)).
///
/// ```
/// use weir_lookup::{BloomFeed, BloomShared};
///
/// let mut feed = BloomFeed::new(1000, 10.0, 1);
/// let mut shared = BloomShared::new(feed.view());
/// let mut reader = shared.reader();
/// feed.insert(&7u64);
/// shared.apply(feed.update())?;
/// assert!(std::thread::spawn(move || reader.contains(&7u64)).join().unwrap());
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Debug)]
pub struct BloomShared {
    published: Publisher<Published>,
    /// How often a key was shut out, or the filter built anew.
    departures: Arc<AtomicU64>,
    table: u64,
    number: u64,
    len: usize,
}

/// A reader of a [`BloomShared`]; each thread has its own.
///
/// ```
/// use weir_lookup::{BloomFeed, BloomShared};
///
/// let mut feed = BloomFeed::new(1000, 10.0, 1);
/// let mut shared = BloomShared::new(feed.view());
/// let mut reader = shared.reader();
/// feed.insert(&7u64);
/// shared.apply(feed.update())?;
/// let mut passes = [false; 2];
/// reader.contains_batch(&[7u64, 7], &mut passes);
/// assert_eq!(passes, [true, true]);
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct BloomReader {
    published: Subscriber<Published>,
    departures: Arc<AtomicU64>,
}

impl Published {
    fn new(bloom: Bloom) -> Self {
        Self { places: bloom.places, bits: bloom.bits }
    }

    #[inline(always)]
    fn has(&self, hash: u64) -> bool {
        self.places.of(hash).all(|bit| self.bits.bit(bit) != 0)
    }
}

impl BloomShared {
    /// Shares a view with readers on other threads; updates go through this handle.
    pub fn new(view: BloomView) -> Self {
        let BloomView { table, number, bloom } = view;
        let len = bloom.len;
        let departures = Arc::new(AtomicU64::new(0));
        Self { published: Publisher::new(Published::new(bloom)), departures, table, number, len }
    }

    /// A reader for another thread.
    pub fn reader(&self) -> BloomReader {
        let departures = self.departures.clone();
        BloomReader { published: self.published.subscribe(), departures }
    }

    /// The number of the last update that was applied.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Bytes of what readers read.
    pub fn bytes(&self) -> usize {
        self.published.current().bits.bytes()
    }

    /// Applies the next update. Who asks after it has returned sees it.
    ///
    /// # Errors
    /// As [`BloomView::apply`]; nothing is changed then.
    pub fn apply(&mut self, update: &BloomUpdate) -> Result<(), MessageError> {
        let Published { places, bits } = self.published.current();
        check(update, (self.table, self.number), (places, self.len, bits))?;
        self.perform(update);
        Ok(())
    }

    /// Applies a trusted update.
    pub(crate) fn perform(&mut self, update: &BloomUpdate) {
        self.number = update.number;
        // What was written before stands behind the bits that let a key in.
        fence(Release);
        if let Some(whole) = &update.whole {
            self.len = whole.bloom.len;
            self.published.publish(Published::new(whole.bloom.clone()));
        } else {
            let Published { bits, .. } = self.published.current();
            update.bits.iter().for_each(|&bit| bits.flip(bit));
            self.len = len_after(update, self.len);
        }
        if update.kind != BloomKind::Insert {
            self.departures.fetch_add(1, Release);
            // What will be written after cannot be seen before this.
            fence(Release);
        }
    }
}

impl BloomReader {
    /// Whether a key may be in the set; never `false` for one that is.
    #[inline]
    pub fn contains<K: Key>(&mut self, key: &K) -> bool {
        let filter = self.published.current();
        let found = filter.has(key.hash(&filter.places.key));
        fence(Acquire);
        found
    }

    /// Asks for many keys at once, as [`Bloom::contains_batch`].
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn contains_batch<K: Key>(&mut self, keys: &[K], out: &mut [bool]) {
        assert_eq!(keys.len(), out.len(), "one result per key");
        let Published { places, bits } = self.published.current();
        for (keys, out) in keys.chunks(BATCH).zip(out.chunks_mut(BATCH)) {
            places.ask(bits, keys, out);
        }
        fence(Acquire);
    }

    /// How many departures there were, before asking the filter.
    #[inline(always)]
    pub(crate) fn departures(&self) -> u64 {
        self.departures.load(Acquire)
    }

    /// Whether there was a departure since then, after reading what stands behind the filter.
    #[inline(always)]
    pub(crate) fn departed_since(&self, before: u64) -> bool {
        fence(Acquire);
        self.departures.load(Acquire) != before
    }
}
