//! The lookup face of a Filtable.

use super::slots::{Slots, batched};
use super::update::FiltableUpdate;
use crate::cuckoo::{Cuckoo, pair};
use crate::message::{MessageError, check_next};
use crate::{FixedKey, HashKey, Key};

/// The lookup face of a [`Filtable`](super::Filtable): digests and values, and a table of whole keys
/// behind them.
///
/// ```
/// use weir_lookup::{Filtable, FiltableView, Octets};
///
/// let mut table: Filtable<Octets<4>> = Filtable::new(10, 12, 1000, 1);
/// table.insert(Octets(*b"name"), 300)?;
/// let view = FiltableView::from_bytes(&table.view().to_bytes())?;
/// assert_eq!(view.get(&Octets(*b"name")), Some(300));
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct FiltableView<K> {
    pub(super) table: u64,
    pub(super) number: u64,
    pub(super) key: HashKey,
    pub(super) slots: Slots,
    pub(super) level2: Cuckoo<K>,
}

impl<K: Key> FiltableView<K> {
    /// The value of a key. An unknown key gets one with the chance of
    /// [`false_positive_rate`](super::Filtable::false_positive_rate).
    #[inline]
    pub fn get(&self, key: &K) -> Option<u64> {
        let hash = key.hash(&self.key);
        self.answer(key, hash, pair(hash, self.slots.buckets))
    }

    #[inline(always)]
    fn answer(&self, key: &K, hash: u64, pair: [u32; 2]) -> Option<u64> {
        match self.slots.find(self.slots.digest_of(hash), pair) {
            Some((bucket, slot)) => Some(self.slots.value(bucket, slot)),
            None if self.level2.is_empty() => None,
            None => self.level2.get(key),
        }
    }

    /// The values of many keys.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn get_batch(&self, keys: &[K], out: &mut [Option<u64>]) {
        batched(
            (&self.key, &self.slots),
            keys,
            out,
            |hash| pair(hash, self.slots.buckets),
            |key, hash, pair| self.answer(key, hash, pair),
        );
    }

    /// Applies the next update.
    ///
    /// # Errors
    /// [`MessageError`] if the update belongs to another table, is not the next one, or does not
    /// fit; the view is unchanged then.
    pub fn apply(&mut self, update: &FiltableUpdate<K>) -> Result<(), MessageError> {
        check_next((update.table, update.number), (self.table, self.number))?;
        update.check(self)?;
        update.perform(self);
        Ok(())
    }

    /// The number of the last update that it has seen.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The table that it belongs to.
    pub fn table(&self) -> u64 {
        self.table
    }

    /// Bits of a digest and of a value.
    pub(super) fn widths(&self) -> (u32, u32) {
        (self.slots.digest_bits, self.slots.value_bits)
    }

    /// Number of keys on level 2, where whole keys stand.
    pub fn level2_len(&self) -> usize {
        self.level2.len()
    }

    /// Bytes of all allocations.
    pub fn bytes(&self) -> usize {
        self.slots.packed.bytes() + self.level2.bytes()
    }
}

impl<K: FixedKey> FiltableView<K> {
    /// Reads an update from bytes and applies it.
    ///
    /// # Errors
    /// As [`FiltableUpdate::from_bytes`] and [`apply`](Self::apply).
    pub fn apply_bytes(&mut self, bytes: &[u8]) -> Result<(), MessageError> {
        self.apply(&FiltableUpdate::from_bytes(bytes)?)
    }
}

/// Slot for slot, and the same keys in level 2: equal views have the same bytes.
impl<K: Key> PartialEq for FiltableView<K> {
    fn eq(&self, other: &Self) -> bool {
        let same = |(key, value): (K, u64)| other.level2.get(&key) == Some(value);
        (self.table, self.number, self.key) == (other.table, other.number, other.key)
            && self.slots == other.slots
            && self.level2.len() == other.level2.len()
            && self.level2.iter().all(same)
    }
}
