//! The arrays that lookups read, and how an update changes them.

use super::update::{LudoUpdate, Node};
use super::{OVERFLOW, SEED_BITS, SEEDS_PER_WORD, Shape, slot_of};
use crate::HashKey;
use crate::memory::packed::{Packed, ones};
use crate::message::{MessageError, out_of_range};

/// Locator cells and buckets of one table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tables {
    pub(crate) key: HashKey,
    pub(crate) shape: Shape,
    pub(crate) cells: Packed,
    pub(crate) buckets: Packed,
}

/// Seeds that need more than five bits, and keys that stand in no bucket: few, sorted.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Extras {
    /// Bucket and seed, in the order of buckets.
    pub(crate) overflow: Vec<(u32, u8)>,
    /// Hash and value, in the order of hashes.
    pub(crate) fallback: Vec<(u64, u64)>,
    /// Bit `hash % 64` is set for the hashes in the fallback table.
    pub(crate) filter: u64,
}

impl Extras {
    #[inline(always)]
    pub(crate) fn may_hold(&self, hash: u64) -> bool {
        self.filter >> (hash & 63) & 1 != 0
    }

    #[cold]
    pub(crate) fn fallback(&self, hash: u64) -> Option<u64> {
        let at = self.fallback.binary_search_by_key(&hash, |&(hash, _)| hash).ok()?;
        Some(self.fallback[at].1)
    }

    /// The seed of a bucket marked [`OVERFLOW`]; 0 if it has just lost the mark.
    #[cold]
    pub(crate) fn seed(&self, bucket: u32) -> u32 {
        match self.overflow.binary_search_by_key(&bucket, |&(bucket, _)| bucket) {
            Ok(at) => u32::from(self.overflow[at].1),
            Err(_) => 0,
        }
    }

    pub(crate) fn set_seed(&mut self, bucket: u32, seed: Option<u8>) {
        let place = self.overflow.binary_search_by_key(&bucket, |&(bucket, _)| bucket);
        match (place, seed) {
            (Ok(at), Some(seed)) => self.overflow[at].1 = seed,
            (Err(at), Some(seed)) => self.overflow.insert(at, (bucket, seed)),
            (Ok(at), None) => drop(self.overflow.remove(at)),
            (Err(_), None) => {}
        }
    }

    pub(crate) fn set_fallback(&mut self, hash: u64, value: Option<u64>) {
        let place = self.fallback.binary_search_by_key(&hash, |&(hash, _)| hash);
        match (place, value) {
            (Ok(at), Some(value)) => self.fallback[at].1 = value,
            (Err(at), Some(value)) => self.fallback.insert(at, (hash, value)),
            (Ok(at), None) => drop(self.fallback.remove(at)),
            (Err(_), None) => {}
        }
        self.filter = self.fallback.iter().fold(0, |bits, (hash, _)| bits | 1 << (hash & 63));
    }

    pub(crate) fn bytes(&self) -> usize {
        self.overflow.capacity() * size_of::<(u32, u8)>()
            + self.fallback.capacity() * size_of::<(u64, u64)>()
    }
}

/// The order of a bucket that keeps its seed.
pub(crate) const IDENTITY: u8 = 0b11_10_01_00;

/// What an update does to the overflow table.
type SeedChange = (u32, Option<u8>);

impl Tables {
    pub(crate) fn new(key: HashKey, shape: Shape) -> Self {
        let cells = Packed::new(2 * u64::from(shape.cells));
        let buckets = Packed::new(u64::from(shape.buckets) * shape.bucket_bits());
        Self { key, shape, cells, buckets }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.cells.bytes() + self.buckets.bytes()
    }

    /// Asks for the two locator cells of a hash.
    #[inline(always)]
    pub(crate) fn fetch_cells(&self, hash: u64) {
        let (a, b) = self.shape.cells_of(hash);
        self.cells.fetch_bit(a.into());
        self.cells.fetch_bit(b.into());
    }

    /// Asks for a bucket.
    #[inline(always)]
    pub(crate) fn fetch_bucket(&self, bucket: u32) {
        self.buckets.fetch(self.bucket_bit(bucket), self.shape.bucket_bits());
    }

    /// The bucket in which a hash stands, if its key is in the table.
    #[inline(always)]
    pub(crate) fn bucket_of(&self, hash: u64) -> u32 {
        let (a, b) = self.shape.cells_of(hash);
        let bit = self.cells.bit(a.into()) ^ self.cells.bit(b.into());
        self.shape.buckets_of(hash)[bit as usize]
    }

    #[inline(always)]
    pub(crate) fn bucket_bit(&self, bucket: u32) -> u64 {
        u64::from(bucket) * self.shape.bucket_bits()
    }

    /// The seed that stands in a bucket.
    #[inline(always)]
    pub(crate) fn seed(&self, bucket: u32) -> u64 {
        self.buckets.read(self.bucket_bit(bucket), SEED_BITS)
    }

    #[inline(always)]
    fn slot_bit(&self, bucket: u32, slot: u32) -> u64 {
        self.bucket_bit(bucket) + u64::from(SEED_BITS + slot * self.shape.value_bits)
    }

    #[inline(always)]
    pub(crate) fn value(&self, bucket: u32, slot: u32) -> u64 {
        self.buckets.read(self.slot_bit(bucket, slot), self.shape.value_bits)
    }

    /// The value of a hash whose bucket is known. `overflow` finds a seed that is not in the bucket.
    #[inline(always)]
    pub(crate) fn find<const NARROW: bool>(
        &self,
        hash: u64,
        bucket: u32,
        overflow: impl Fn(u32) -> u32,
    ) -> u64 {
        let bits = self.shape.value_bits;
        let start = self.bucket_bit(bucket);
        let window = self.buckets.window(start);
        let seed = window & OVERFLOW;
        let word = super::slot_word(hash, 0);
        let mut slot = (word >> (2 * seed)) as u32 & 3;
        if seed == OVERFLOW {
            slot = slot_of(hash, overflow(bucket));
        }
        let offset = u64::from(SEED_BITS + slot * bits);
        let field = if NARROW { window >> offset } else { self.buckets.window(start + offset) };
        field & ones(bits)
    }

    /// Whether a bucket fits into one window.
    #[inline(always)]
    pub(crate) fn is_narrow(&self) -> bool {
        self.shape.bucket_bits() <= 64
    }

    /// Checks every field of an update against the sizes of this table.
    pub(crate) fn check(&self, update: &LudoUpdate) -> Result<(), MessageError> {
        let shape = &self.shape;
        if update.value & !ones(shape.value_bits) != 0 {
            return out_of_range("a message's value");
        }
        if update.nodes.iter().any(|node| node.bucket >= shape.buckets) {
            return out_of_range("a message's bucket");
        }
        if update.cells.iter().any(|&cell| cell >= 2 * shape.cells) {
            return out_of_range("a message's locator cell");
        }
        if update.slot.is_some_and(|(bucket, slot)| bucket >= shape.buckets || slot > 3) {
            return out_of_range("a message's slot");
        }
        Ok(())
    }

    /// Inverts the cells of an update.
    pub(crate) fn apply_cells(&self, update: &LudoUpdate) {
        for &cell in &update.cells {
            self.cells.flip(cell.into());
        }
    }

    /// Writes the buckets of an update, last one first, so that a value is copied before the place
    /// where it stood is written. `note` is told what changes in the overflow table, before the
    /// bucket that is concerned.
    pub(crate) fn apply_buckets(&self, update: &LudoUpdate, mut note: impl FnMut(SeedChange)) {
        if let Some((bucket, slot)) = update.slot {
            let bit = self.slot_bit(bucket, u32::from(slot));
            self.buckets.write(bit, self.shape.value_bits, update.value);
        }
        for (at, node) in update.nodes.iter().enumerate().rev() {
            let carried = match at.checked_sub(1).map(|before| &update.nodes[before]) {
                Some(before) => self.value(before.bucket, u32::from(before.leaves)),
                None => update.value,
            };
            self.write_node(node, carried, &mut note);
        }
    }

    fn write_node(&self, node: &Node, carried: u64, note: &mut impl FnMut(SeedChange)) {
        let bits = self.shape.value_bits;
        let start = self.bucket_bit(node.bucket);
        let long = u32::from(node.seed) >= SEEDS_PER_WORD;
        if long || self.seed(node.bucket) == OVERFLOW {
            note((node.bucket, long.then_some(node.seed)));
        }
        let seed = u64::from(node.seed).min(OVERFLOW);
        if node.order == IDENTITY {
            self.buckets.write(start, SEED_BITS, seed);
            self.buckets.write(self.slot_bit(node.bucket, node.takes.into()), bits, carried);
            return;
        }
        let old: [u64; 4] = std::array::from_fn(|slot| self.value(node.bucket, slot as u32));
        let mut new: [u64; 4] =
            std::array::from_fn(|slot| old[usize::from(node.order >> (2 * slot) & 3)]);
        new[usize::from(node.takes & 3)] = carried;
        if self.is_narrow() {
            let at = |slot: usize| SEED_BITS + slot as u32 * bits;
            let bucket = (0..4).fold(seed, |bucket, slot| bucket | new[slot] << at(slot));
            self.buckets.write(start, self.shape.bucket_bits() as u32, bucket);
            return;
        }
        self.buckets.write(start, SEED_BITS, seed);
        for (slot, &value) in new.iter().enumerate() {
            self.buckets.write(self.slot_bit(node.bucket, slot as u32), bits, value);
        }
    }
}
