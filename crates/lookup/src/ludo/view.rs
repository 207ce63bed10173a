//! The lookup face of a Ludo table.

use super::Shape;
use super::tables::{Extras, Tables};
use super::update::{LudoKind, LudoUpdate};
use crate::message::{MessageError, check_next, out_of_range};
use crate::{BATCH, HashKey, Key};

/// Bucket locator, buckets, overflow and fallback tables: what lookups need, and no keys.
///
/// A lookup reads two bits of the locator, which stays in the cache up to some millions of keys,
/// and one bucket. A key that is not in the table gets an arbitrary value.
///
/// ```
/// use weir_lookup::{Ludo, LudoView};
///
/// let table = Ludo::build(20, &[(1u64, 100), (2, 200)], 1)?;
/// let view = LudoView::from_bytes(&table.view().to_bytes())?;
/// let mut found = [0; 2];
/// view.get_batch(&[1u64, 2], &mut found);
/// assert_eq!(found, [100, 200]);
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LudoView {
    pub(crate) table: u64,
    pub(crate) number: u64,
    pub(crate) tables: Tables,
    pub(crate) extras: Extras,
}

impl LudoView {
    pub(crate) fn empty(table: u64, key: HashKey, shape: Shape) -> Self {
        Self { table, number: 0, tables: Tables::new(key, shape), extras: Extras::default() }
    }

    /// The number of the last update that it has seen.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The table that it belongs to.
    pub fn table(&self) -> u64 {
        self.table
    }

    /// Width of a value in bits, 1 to 64.
    pub fn value_bits(&self) -> u32 {
        self.tables.shape.value_bits
    }

    /// Bytes of all allocations.
    pub fn bytes(&self) -> usize {
        self.tables.bytes() + self.extras.bytes()
    }

    /// Bytes of the bucket locator, the part that every lookup reads twice.
    pub fn locator_bytes(&self) -> usize {
        self.tables.cells.bytes()
    }

    /// Value of a key.
    #[inline]
    pub fn get<K: Key>(&self, key: &K) -> u64 {
        self.get_hash(key.hash(&self.tables.key))
    }

    #[inline]
    pub(crate) fn get_hash(&self, hash: u64) -> u64 {
        let bucket = self.tables.bucket_of(hash);
        if self.tables.is_narrow() {
            self.value::<true>(hash, bucket)
        } else {
            self.value::<false>(hash, bucket)
        }
    }

    #[inline(always)]
    fn value<const NARROW: bool>(&self, hash: u64, bucket: u32) -> u64 {
        if self.extras.may_hold(hash)
            && let Some(value) = self.extras.fallback(hash)
        {
            return value;
        }
        self.tables.find::<NARROW>(hash, bucket, |bucket| self.extras.seed(bucket))
    }

    /// Values of many keys, in three stages of [`BATCH`] keys: while the buckets of one batch are
    /// read, those of the next and the locator cells of the one after are on their way.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn get_batch<K: Key>(&self, keys: &[K], out: &mut [u64]) {
        assert_eq!(keys.len(), out.len(), "one result per key");
        let value = |hash, bucket, narrow| {
            if narrow {
                self.value::<true>(hash, bucket)
            } else {
                self.value::<false>(hash, bucket)
            }
        };
        // The branch on the width stands outside the loop.
        if self.tables.is_narrow() {
            staged(&self.tables, keys, out, |hash, bucket| value(hash, bucket, true));
        } else {
            staged(&self.tables, keys, out, |hash, bucket| value(hash, bucket, false));
        }
    }

    /// Applies the next update.
    ///
    /// # Errors
    /// [`MessageError`] if the update belongs to another table, is not the next one, or does not fit;
    /// the view is unchanged then.
    pub fn apply(&mut self, update: &LudoUpdate) -> Result<(), MessageError> {
        check_next((update.table, update.number), (self.table, self.number))?;
        if update.kind == LudoKind::Rebuild {
            *self = whole(update)?;
            return Ok(());
        }
        self.tables.check(update)?;
        self.tables.apply_cells(update);
        self.apply_rest(update);
        Ok(())
    }

    /// Applies a trusted update, the cells of which are inverted already.
    pub(crate) fn apply_rest(&mut self, update: &LudoUpdate) {
        let extras = &mut self.extras;
        self.tables.apply_buckets(update, |(bucket, seed)| extras.set_seed(bucket, seed));
        if let Some(hash) = update.fallback {
            let value = (update.kind != LudoKind::Remove).then_some(update.value);
            extras.set_fallback(hash, value);
        }
        self.number = update.number;
    }

    /// Reads an update from bytes and applies it.
    ///
    /// # Errors
    /// As [`LudoUpdate::from_bytes`] and [`apply`](Self::apply).
    pub fn apply_bytes(&mut self, bytes: &[u8]) -> Result<(), MessageError> {
        self.apply(&LudoUpdate::from_bytes(bytes)?)
    }
}

/// The view that a rebuild message holds.
pub(crate) fn whole(update: &LudoUpdate) -> Result<LudoView, MessageError> {
    let view = LudoView::from_bytes(update.whole.as_deref().unwrap_or_default())?;
    if view.table != update.table || view.number != update.number {
        return out_of_range("the view of a rebuild");
    }
    Ok(view)
}

/// One batch between two stages.
#[derive(Clone, Copy)]
struct Stage {
    hashes: [u64; BATCH],
    buckets: [u32; BATCH],
}

/// Runs keys through hash, locator and bucket in three stages.
#[inline(always)]
pub(crate) fn staged<K: Key>(
    tables: &Tables,
    keys: &[K],
    out: &mut [u64],
    value: impl Fn(u64, u32) -> u64,
) {
    let hash = |keys: &[K], stage: &mut Stage| {
        for (slot, key) in stage.hashes.iter_mut().zip(keys) {
            *slot = key.hash(&tables.key);
            tables.fetch_cells(*slot);
        }
    };
    let locate = |stage: &mut Stage, count: usize| {
        for (hash, bucket) in stage.hashes.iter().zip(&mut stage.buckets).take(count) {
            *bucket = tables.bucket_of(*hash);
            tables.fetch_bucket(*bucket);
        }
    };
    let answer = |stage: &Stage, out: &mut [u64]| {
        for ((out, &hash), &bucket) in out.iter_mut().zip(&stage.hashes).zip(&stage.buckets) {
            *out = value(hash, bucket);
        }
    };
    let mut stages = [Stage { hashes: [0; BATCH], buckets: [0; BATCH] }; 3];
    let batches = keys.len().div_ceil(BATCH);
    let range = |batch: usize| batch * BATCH..keys.len().min((batch + 1) * BATCH);
    for step in 0..batches + 2 {
        if step < batches {
            hash(&keys[range(step)], &mut stages[step % 3]);
        }
        if (1..=batches).contains(&step) {
            locate(&mut stages[(step - 1) % 3], range(step - 1).len());
        }
        if step >= 2 {
            answer(&stages[(step - 2) % 3], &mut out[range(step - 2)]);
        }
    }
}
