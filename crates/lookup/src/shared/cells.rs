//! Two arrays of cells that one thread changes while others look keys up.

use crate::memory::packed::Packed;
use crate::shared::version::{Version, try_read, write};
use crate::{BATCH, Geometry, HashKey, Key, Work, vectorised};
use std::hint::spin_loop;
use weir_hash::scale;

/// Versions of cells; a cell has version `cell % STRIPES`. 4 KB stay in the first-level cache.
const STRIPES: usize = 1024;

/// Cells as readers see them.
///
/// The versions of all cells of a change are marked until the last of them is written, so a reader,
/// who checks the versions of its two cells before and after, never sees half of it.
#[derive(Debug)]
pub(crate) struct SharedCells {
    key: HashKey,
    geometry: Geometry,
    /// Cells of A and of B, so that no lookup divides.
    sides: [u32; 2],
    cell_bits: u32,
    /// Cell `i` begins at bit `i * cell_bits`; A's first, then B's.
    cells: Packed,
    /// Odd while any cell is being written.
    all: Version,
    /// Odd while a cell of the stripe is being written.
    stripes: Box<[Version]>,
}

impl SharedCells {
    /// The cells of a table, all of them, each of `cell_bits` (1..=64).
    pub(crate) fn new(
        key: HashKey,
        geometry: Geometry,
        cell_bits: u32,
        cells: impl Iterator<Item = u64>,
    ) -> Self {
        let packed = Packed::new(geometry.cells() as u64 * u64::from(cell_bits));
        for (at, cell) in (0u64..).zip(cells) {
            packed.write(at * u64::from(cell_bits), cell_bits, cell);
        }
        let stripes = (0..STRIPES).map(|_| Version::new()).collect();
        let sides = [geometry.cells_a(), geometry.cells_b()];
        Self { key, geometry, sides, cell_bits, cells: packed, all: Version::new(), stripes }
    }

    /// The hash key of the table.
    pub(crate) fn key(&self) -> &HashKey {
        &self.key
    }

    /// The shape of the table.
    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Bytes of the cells and of their versions.
    pub(crate) fn bytes(&self) -> usize {
        self.cells.bytes() + size_of_val(&self.stripes[..])
    }

    #[inline(always)]
    fn bit(&self, cell: u32) -> u64 {
        u64::from(cell) * u64::from(self.cell_bits)
    }

    /// What a cell holds. For the writer: readers have to look at versions.
    #[inline(always)]
    pub(crate) fn cell(&self, cell: u32) -> u64 {
        self.cells.read(self.bit(cell), self.cell_bits)
    }

    #[inline(always)]
    fn stripe(&self, cell: u32) -> &Version {
        &self.stripes[cell as usize & (STRIPES - 1)]
    }

    /// The writer's side: xors into some cells, all at once for those who look.
    pub(crate) fn flip(&self, changes: impl Iterator<Item = (u32, u64)> + Clone) {
        let versions = || changes.clone().map(|(cell, _)| self.stripe(cell)).chain([&self.all]);
        write(versions, || {
            for (cell, delta) in changes.clone() {
                self.cells.write(self.bit(cell), self.cell_bits, self.cell(cell) ^ delta);
            }
        });
    }

    #[inline(always)]
    fn place(&self, hash: u64) -> Place {
        let [a, b] = self.sides;
        let second = a + scale((hash >> 32) as u32, b);
        Place { hash, cells: [scale(hash as u32, a), second] }
    }

    /// What a key's hash and two cells give.
    #[inline]
    pub(crate) fn get<K: Key, R>(&self, key: &K, give: impl Fn(u64, [u64; 2]) -> R) -> R {
        self.answer_one(&self.place(key.hash(&self.key)), &give)
    }

    #[inline(always)]
    fn give<R>(&self, place: &Place, give: impl Fn(u64, [u64; 2]) -> R) -> R {
        give(place.hash, place.cells.map(|cell| self.cell(cell)))
    }

    fn answer_one<R>(&self, place: &Place, give: &impl Fn(u64, [u64; 2]) -> R) -> R {
        let versions = place.cells.map(|cell| self.stripe(cell));
        loop {
            if let Some(found) = try_read(versions, || self.give(place, give)) {
                return found;
            }
            spin_loop();
        }
    }

    /// As [`get`](Self::get) for many keys, with the cache misses of a batch under way at a
    /// time.
    ///
    /// # Panics
    /// If the lengths differ.
    pub(crate) fn get_batch<K: Key, R>(
        &self,
        keys: &[K],
        out: &mut [R],
        give: impl Fn(u64, [u64; 2]) -> R,
    ) {
        assert_eq!(keys.len(), out.len(), "one result per key");
        vectorised(Batch { table: self, keys, out, give });
    }

    #[inline(always)]
    fn ask<K: Key>(&self, keys: &[K], places: &mut [Place; BATCH]) {
        for (place, key) in places.iter_mut().zip(keys) {
            *place = self.place(key.hash(&self.key));
        }
        // A cell reaches into a second line too seldom to ask for that one as well.
        for cell in places[..keys.len()].iter().flat_map(|place| place.cells) {
            self.cells.fetch_bit(self.bit(cell));
        }
    }

    /// Answers from cells that were asked for: all under the one version of all cells; if a write
    /// came between, each under its own two.
    #[inline(always)]
    fn answer<R>(
        &self,
        places: &[Place; BATCH],
        out: &mut [R],
        give: &impl Fn(u64, [u64; 2]) -> R,
    ) {
        let read_all = || {
            out.iter_mut().zip(places).for_each(|(out, place)| *out = self.give(place, give));
        };
        if try_read([&self.all], read_all).is_none() {
            out.iter_mut().zip(places).for_each(|(out, place)| *out = self.answer_one(place, give));
        }
    }
}

/// Where a key's value stands.
#[derive(Clone, Copy, Default)]
struct Place {
    hash: u64,
    cells: [u32; 2],
}

/// The work of [`SharedCells::get_batch`]: the cells of a batch are read after those of the next
/// one were asked for.
struct Batch<'a, K, R, G> {
    table: &'a SharedCells,
    keys: &'a [K],
    out: &'a mut [R],
    give: G,
}

impl<K: Key, R, G: Fn(u64, [u64; 2]) -> R> Work for Batch<'_, K, R, G> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { table, keys, out, give } = self;
        let mut places = [[Place::default(); BATCH]; 2];
        let batches = keys.len().div_ceil(BATCH);
        let range = |batch: usize| batch * BATCH..keys.len().min((batch + 1) * BATCH);
        for step in 0..=batches {
            if step < batches {
                table.ask(&keys[range(step)], &mut places[step % 2]);
            }
            if step > 0 {
                table.answer(&places[(step - 1) % 2], &mut out[range(step - 1)], &give);
            }
        }
    }
}
