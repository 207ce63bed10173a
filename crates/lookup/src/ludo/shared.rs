//! A view that many threads read while one applies updates.

use super::tables::{Extras, Tables};
use super::update::{LudoKind, LudoUpdate};
use super::view::{LudoView, whole};
use crate::message::{MessageError, check_next};
use crate::shared::hub::{Publisher, Subscriber};
use crate::shared::version::{Version, is_marked, order_reads, try_read, write};
use crate::{BATCH, Key};
use std::hint::spin_loop;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{PoisonError, RwLock};

/// Versions of buckets; a bucket has version `bucket % STRIPES`. 4 KB stay in the first-level
/// cache, and two buckets that share one cost a needless retry at worst.
const STRIPES: usize = 1024;

/// A table as readers see it.
#[derive(Debug)]
struct Published {
    tables: Tables,
    extras: RwLock<Extras>,
    /// The filter of the fallback table, to be asked without the lock.
    filter: AtomicU64,
    /// Odd while locator cells are being inverted.
    locator: Version,
    /// Odd while a bucket of the stripe is being written, or a key is moving to it or from it.
    versions: Box<[Version]>,
}

/// The writer's handle of a shared view: it applies updates while [`LudoReader`]s look up
/// (dissertation 4.4.8, "Consistency under concurrent read/write").
///
/// Readers take no lock, but for a key whose seed overflowed or that may be in the fallback table.
/// They note versions, read, and read again if a version has changed. A rebuild is published as a
/// new table; readers that are in the old one finish there.
///
/// ```
/// use weir_lookup::{Ludo, LudoShared};
///
/// let mut table: Ludo<u64> = Ludo::new(12, 1000, 1)?;
/// let mut shared = LudoShared::new(table.view().clone());
/// let mut reader = shared.reader();
/// table.insert(7, 300)?;
/// shared.apply(table.update())?;
/// let found = std::thread::spawn(move || reader.get(&7u64)).join().unwrap();
/// assert_eq!(found, 300);
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Debug)]
pub struct LudoShared {
    published: Publisher<Published>,
    table: u64,
    number: u64,
}

/// A reader of a [`LudoShared`]; each thread has its own.
///
/// ```
/// use weir_lookup::{Ludo, LudoShared};
///
/// let mut table: Ludo<u64> = Ludo::new(12, 1000, 1)?;
/// table.insert(7, 300)?;
/// table.insert(8, 301)?;
/// let shared = LudoShared::new(table.view().clone());
/// let mut reader = shared.reader();
/// let mut values = [0; 2];
/// reader.get_batch(&[7u64, 8], &mut values);
/// assert_eq!(values, [300, 301]);
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LudoReader(Subscriber<Published>);

impl LudoShared {
    /// Shares a view with readers on other threads; updates go through this handle.
    pub fn new(view: LudoView) -> Self {
        let (table, number) = (view.table, view.number);
        Self { published: Publisher::new(Published::new(view)), table, number }
    }

    /// A reader for another thread.
    pub fn reader(&self) -> LudoReader {
        LudoReader(self.published.subscribe())
    }

    /// The number of the last update that was applied.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Applies the next update. Lookups that begin after it has returned see it.
    ///
    /// # Errors
    /// As [`LudoView::apply`]; nothing is changed then.
    pub fn apply(&mut self, update: &LudoUpdate) -> Result<(), MessageError> {
        check_next((update.table, update.number), (self.table, self.number))?;
        if update.kind == LudoKind::Rebuild {
            self.published.publish(Published::new(whole(update)?));
        } else {
            self.published.current().tables.check(update)?;
            self.published.current().apply(update);
        }
        self.number = update.number;
        Ok(())
    }

    /// The view as it is now.
    pub fn to_view(&self) -> LudoView {
        let published = self.published.current();
        LudoView {
            table: self.table,
            number: self.number,
            tables: published.tables.clone(),
            extras: published.read_extras(|extras| extras.clone()),
        }
    }
}

impl Published {
    fn new(view: LudoView) -> Self {
        Self {
            tables: view.tables,
            filter: AtomicU64::new(view.extras.filter),
            extras: RwLock::new(view.extras),
            locator: Version::new(),
            versions: (0..STRIPES).map(|_| Version::new()).collect(),
        }
    }

    fn read_extras<R>(&self, read: impl FnOnce(&Extras) -> R) -> R {
        read(&self.extras.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change_extras(&self, change: impl FnOnce(&mut Extras)) {
        change(&mut self.extras.write().unwrap_or_else(PoisonError::into_inner));
    }

    #[inline(always)]
    fn version(&self, bucket: u32) -> &Version {
        &self.versions[bucket as usize & (STRIPES - 1)]
    }

    /// The writer's side. Every bucket of the update is marked until all of it is written, so a
    /// key that moves is never seen half moved: its two buckets are both on the path.
    fn apply(&self, update: &LudoUpdate) {
        let slot = update.slot.map(|(bucket, _)| bucket);
        let buckets = || update.nodes.iter().map(|node| node.bucket).chain(slot);
        let versions = || buckets().map(|bucket| self.version(bucket));
        write(versions, || self.write_marked(update));
    }

    fn write_marked(&self, update: &LudoUpdate) {
        if !update.cells.is_empty() {
            write(|| [&self.locator].into_iter(), || self.tables.apply_cells(update));
        }
        self.tables.apply_buckets(update, |(bucket, seed)| {
            self.change_extras(|extras| extras.set_seed(bucket, seed));
        });
        if let Some(hash) = update.fallback {
            let value = (update.kind != LudoKind::Remove).then_some(update.value);
            self.change_extras(|extras| {
                extras.set_fallback(hash, value);
                self.filter.store(extras.filter, Release);
            });
        }
    }

    /// The versions of a hash's two buckets.
    #[inline(always)]
    fn versions_of(&self, hash: u64) -> [&Version; 2] {
        self.tables.shape.buckets_of(hash).map(|bucket| self.version(bucket))
    }

    fn get(&self, hash: u64) -> u64 {
        loop {
            let found = try_read(self.versions_of(hash), || {
                let bucket = try_read([&self.locator], || self.tables.bucket_of(hash))?;
                Some(self.value(hash, bucket))
            });
            if let Some(Some(value)) = found {
                return value;
            }
            spin_loop();
        }
    }

    #[inline(always)]
    fn value(&self, hash: u64, bucket: u32) -> u64 {
        if self.filter.load(Acquire) >> (hash & 63) & 1 != 0
            && let Some(value) = self.read_extras(|extras| extras.fallback(hash))
        {
            return value;
        }
        let overflow = |bucket| self.read_extras(|extras| extras.seed(bucket));
        if self.tables.is_narrow() {
            self.tables.find::<true>(hash, bucket, overflow)
        } else {
            self.tables.find::<false>(hash, bucket, overflow)
        }
    }
}

/// A batch under way, with the versions of its buckets before they were read.
#[derive(Clone, Copy)]
struct Stage {
    hashes: [u64; BATCH],
    buckets: [u32; BATCH],
    versions: [[u32; 2]; BATCH],
}

impl Stage {
    const EMPTY: Self = Self { hashes: [0; BATCH], buckets: [0; BATCH], versions: [[0; 2]; BATCH] };

    #[inline(always)]
    fn hash<K: Key>(&mut self, tables: &Tables, keys: &[K]) {
        for (slot, key) in self.hashes.iter_mut().zip(keys) {
            *slot = key.hash(&tables.key);
            tables.fetch_cells(*slot);
        }
    }

    /// Reads the locator for the whole batch under one version of it.
    #[inline(always)]
    fn locate(&mut self, table: &Published, count: usize) {
        let tables = &table.tables;
        let mut locate_all = || {
            for at in 0..count {
                let hash = self.hashes[at];
                self.versions[at] = table.versions_of(hash).map(Version::load);
                self.buckets[at] = tables.bucket_of(hash);
            }
        };
        while try_read([&table.locator], &mut locate_all).is_none() {
            spin_loop();
        }
        for &bucket in &self.buckets[..count] {
            tables.fetch_bucket(bucket);
        }
    }

    #[inline(always)]
    fn answer(&self, table: &Published, out: &mut [u64]) {
        for ((out, &hash), &bucket) in out.iter_mut().zip(&self.hashes).zip(&self.buckets) {
            *out = table.value(hash, bucket);
        }
        order_reads();
        for ((out, &hash), before) in out.iter_mut().zip(&self.hashes).zip(self.versions) {
            let [first, second] = table.versions_of(hash);
            let same = first.is(before[0]) && second.is(before[1]);
            if !same || is_marked(before[0] | before[1]) {
                *out = table.get(hash);
            }
        }
    }
}

impl LudoReader {
    /// Value of a key; an arbitrary value for a key that is not in the table.
    #[inline]
    pub fn get<K: Key>(&mut self, key: &K) -> u64 {
        let table = self.0.current();
        table.get(key.hash(&table.tables.key))
    }

    /// Values of many keys, as [`LudoView::get_batch`]. All come from one generation of the
    /// table; each is the value that its key had at some time during the call.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn get_batch<K: Key>(&mut self, keys: &[K], out: &mut [u64]) {
        assert_eq!(keys.len(), out.len(), "one result per key");
        let table = self.0.current();
        let mut stages = [Stage::EMPTY; 3];
        let batches = keys.len().div_ceil(BATCH);
        let range = |batch: usize| batch * BATCH..keys.len().min((batch + 1) * BATCH);
        for step in 0..batches + 2 {
            if step < batches {
                stages[step % 3].hash(&table.tables, &keys[range(step)]);
            }
            if (1..=batches).contains(&step) {
                stages[(step - 1) % 3].locate(table, range(step - 1).len());
            }
            if step >= 2 {
                stages[(step - 2) % 3].answer(table, &mut out[range(step - 2)]);
            }
        }
    }
}
