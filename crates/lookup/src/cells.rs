//! Bit-packed cells in chunks, and the lookup-only view made of two such arrays.

use crate::batch::Passes;
use crate::bits::{Cells, Packed, fetch, is_narrow, load_bytes, mask, narrow_load, read};
use crate::pages::Pages;
use crate::{HashKey, Key, Work, pipeline, vectorised};
use weir_wire::hash::scale;

/// Bytes of a chunk. A kernel array map hands out memory by elements of one size; 4,096 keeps the
/// waste at the end of each array small and the number of elements moderate.
pub const CHUNK_BYTES: usize = 4096;

/// How many `bits`-wide cells a chunk holds, so that a load of 4 bytes (8 from 26 bits on) at the
/// byte where the cell begins stays inside the chunk. For 12 bits: 2,729, 0.06 % under the ideal.
pub const fn cells_per_chunk(bits: u32) -> u32 {
    let load = load_bytes(bits);
    let last_start = ((CHUNK_BYTES as u32 - load) * 8 + 7) / bits;
    let whole = CHUNK_BYTES as u32 * 8 / bits;
    if last_start + 1 < whole { last_start + 1 } else { whole }
}

/// Shape of a two-array table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Width of a cell, 1..=32 bits.
    pub bits: u32,
    /// Chunks of array A.
    pub chunks_a: u32,
    /// Chunks of array B.
    pub chunks_b: u32,
}

impl Geometry {
    /// The smallest shape whose arrays hold at least `cells` cells each.
    pub fn for_cells(bits: u32, cells: u64) -> Self {
        assert!((1..=32).contains(&bits), "a cell has 1..=32 bits");
        let chunks = cells.div_ceil(u64::from(cells_per_chunk(bits))).max(1) as u32;
        Self { bits, chunks_a: chunks, chunks_b: chunks }
    }

    /// Cells of array A.
    pub fn cells_a(&self) -> u32 {
        self.chunks_a * cells_per_chunk(self.bits)
    }

    /// Cells of array B.
    pub fn cells_b(&self) -> u32 {
        self.chunks_b * cells_per_chunk(self.bits)
    }

    /// Node numbers of a hash: A's cells first, then B's.
    #[inline(always)]
    pub fn nodes(&self, hash: u64) -> (u32, u32) {
        let a = scale(hash as u32, self.cells_a());
        let b = scale((hash >> 32) as u32, self.cells_b());
        (a, self.cells_a() + b)
    }

    /// All nodes, which is all cells.
    pub fn cells(&self) -> usize {
        (self.cells_a() + self.cells_b()) as usize
    }
}

/// The lookup face of an [`Othello`](crate::Othello): two bit-packed arrays and a hash key.
///
/// Chunks of A, then chunks of B, each [`CHUNK_BYTES`] long. Cell `i` of an array stands in chunk
/// `i / cells_per_chunk` from bit `bits * (i % cells_per_chunk)` on, little-endian.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    key: HashKey,
    geometry: Geometry,
    per_chunk: u32,
    /// Bytes of the load that reads a single cell.
    load: u32,
    bytes: Pages<u8>,
}

impl View {
    pub(crate) fn zeroed(key: HashKey, geometry: Geometry) -> Self {
        let chunks = (geometry.chunks_a + geometry.chunks_b) as usize;
        Self {
            key,
            geometry,
            per_chunk: cells_per_chunk(geometry.bits),
            load: narrow_load(geometry.bits),
            bytes: Pages::filled(0, chunks * CHUNK_BYTES),
        }
    }

    /// A view from the bytes of a published table.
    ///
    /// # Panics
    /// If the number of bytes does not match the shape.
    pub fn from_bytes(key: HashKey, geometry: Geometry, bytes: Vec<u8>) -> Self {
        let chunks = (geometry.chunks_a + geometry.chunks_b) as usize;
        assert_eq!(bytes.len(), chunks * CHUNK_BYTES, "bytes of a view");
        Self {
            key,
            geometry,
            per_chunk: cells_per_chunk(geometry.bits),
            load: narrow_load(geometry.bits),
            bytes: Pages::of(bytes),
        }
    }

    /// The hash key of this table.
    pub fn key(&self) -> &HashKey {
        &self.key
    }

    /// The shape of this table.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The packed bytes, as they are copied into the kernel.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Value of a key: the stored one if the key was built in, else an arbitrary one.
    ///
    /// Two reads at random places; `geometry().bits` wide result.
    #[inline]
    pub fn lookup<K: Key>(&self, key: &K) -> u32 {
        self.lookup_hash(key.hash(&self.key))
    }

    /// As [`lookup`](Self::lookup), with the hash at hand.
    #[inline]
    pub fn lookup_hash(&self, hash: u64) -> u32 {
        let [a, b] = self.bits_of(hash);
        if self.load == 2 {
            // The usual case, decided once for both.
            return (read::<2>(&self.bytes, a) ^ read::<2>(&self.bytes, b))
                & mask(self.geometry.bits);
        }
        self.read(a) ^ self.read(b)
    }

    /// Values of many keys, with the cache misses of 32 lookups under way at a time.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn lookup_batch<K: Key>(&self, keys: &[K], out: &mut [u32]) {
        self.lookup_batch_with(keys, out, |key| key.hash(&self.key), |value| value);
    }

    /// As [`lookup_batch`](Self::lookup_batch) for a caller who hashes keys in a way of its own and
    /// goes on from the values: `out[i] = finish(lookup_hash(hash(&keys[i])))`, in order.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn lookup_batch_with<K, R>(
        &self,
        keys: &[K],
        out: &mut [R],
        hash: impl Fn(&K) -> u64,
        finish: impl FnMut(u32) -> R,
    ) {
        vectorised(Batch { table: self, keys, out, hash, finish });
    }

    /// Cells that only a load of eight bytes covers, and tables of 512 MB or more.
    #[inline(always)]
    fn batch_wide<K, R>(
        &self,
        keys: &[K],
        out: &mut [R],
        hash: impl Fn(&K) -> u64,
        mut finish: impl FnMut(u32) -> R,
    ) {
        let bytes = &self.bytes[..];
        let mask = mask(self.geometry.bits);
        let locate = |key: &K| self.bits_of(hash(key));
        let fetch = |places: [u64; 2]| places.iter().for_each(|&bit| fetch::<8>(bytes, bit));
        let value = |[a, b]: [u64; 2]| (read::<8>(bytes, a) ^ read::<8>(bytes, b)) & mask;
        pipeline(keys, out, locate, fetch, |places| finish(value(places)));
    }

    /// The bit at which a cell begins.
    #[inline(always)]
    fn bit(&self, chunk: u32, cell: u32) -> u64 {
        u64::from(chunk) * (CHUNK_BYTES as u64 * 8) + u64::from(cell * self.geometry.bits)
    }

    #[inline(always)]
    fn read(&self, bit: u64) -> u32 {
        let cell = match self.load {
            2 => read::<2>(&self.bytes, bit),
            4 => read::<4>(&self.bytes, bit),
            _ => read::<8>(&self.bytes, bit),
        };
        cell & mask(self.geometry.bits)
    }

    /// Chunk and cell of a node number.
    fn place(&self, node: u32) -> (u32, u32) {
        let a = self.geometry.cells_a();
        let (first, cell) = if node < a { (0, node) } else { (self.geometry.chunks_a, node - a) };
        (first + cell / self.per_chunk, cell % self.per_chunk)
    }

    /// Reads the cell of a node.
    #[inline]
    pub(crate) fn cell(&self, node: u32) -> u32 {
        let (chunk, cell) = self.place(node);
        self.read(self.bit(chunk, cell))
    }

    /// Xors `delta` into the cell of a node.
    pub(crate) fn flip(&mut self, node: u32, delta: u32) {
        let (chunk, cell) = self.place(node);
        let bit = self.bit(chunk, cell);
        let at = (bit >> 3) as usize;
        let shifted = u64::from(delta & mask(self.geometry.bits)) << (bit & 7);
        for (offset, byte) in shifted.to_le_bytes().into_iter().enumerate() {
            // The bytes past the cell are zero in `shifted` and may lie outside the array.
            if byte != 0 {
                self.bytes[at + offset] ^= byte;
            }
        }
    }
}

/// The work of [`View::lookup_batch_with`].
struct Batch<'a, K, R, H, F> {
    table: &'a View,
    keys: &'a [K],
    out: &'a mut [R],
    hash: H,
    finish: F,
}

impl<K, R, H: Fn(&K) -> u64, F: FnMut(u32) -> R> Work for Batch<'_, K, R, H, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { table, keys, out, hash, finish } = self;
        let (bytes, bits) = (&table.bytes[..], table.geometry.bits);
        let load = if is_narrow(bytes) { narrow_load(bits) } else { 8 };
        // The branch on the width stands outside the loop.
        match load {
            2 => {
                Packed::<_, u16, _, 2, false>::new(table, bytes, bits, &hash).run(keys, out, finish)
            }
            4 => {
                Packed::<_, u32, _, 2, false>::new(table, bytes, bits, &hash).run(keys, out, finish)
            }
            _ => table.batch_wide(keys, out, &hash, finish),
        }
    }
}

impl Cells<2> for View {
    // The bits at which the two cells of a hash begin, computed as the BPF program does: chunk
    // from the product with the number of chunks, cell from the fraction that is left. Equal to
    // `scale(hash32, chunks * per_chunk)` exactly, without a division.
    //
    // Both cells go through the same products of 32 bits in lanes of 64, so that they share
    // vector instructions.
    #[inline(always)]
    fn bits_of(&self, hash: u64) -> [u64; 2] {
        const LOW: u64 = u32::MAX as u64;
        let Geometry { bits, chunks_a, chunks_b } = self.geometry;
        let chunks = [u64::from(chunks_a), u64::from(chunks_b)];
        let first = [0, u64::from(chunks_a)];
        let halves = [hash & LOW, hash >> 32];
        std::array::from_fn(|side| {
            let product = halves[side] * chunks[side];
            let cell = ((product & LOW) * u64::from(self.per_chunk)) >> 32;
            let chunk = first[side] + (product >> 32);
            chunk * (CHUNK_BYTES as u64 * 8) + cell * u64::from(bits)
        })
    }

    #[inline]
    fn value_of(&self, hash: u64) -> u32 {
        self.lookup_hash(hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_cell_of_a_chunk_is_readable_for_every_width() {
        for bits in 1..=32 {
            let per_chunk = cells_per_chunk(bits);
            let last_byte = (per_chunk - 1) * bits / 8;
            assert!((last_byte + load_bytes(bits)) as usize <= CHUNK_BYTES, "{bits} bits");
            assert!((per_chunk * bits) as usize <= CHUNK_BYTES * 8, "{bits} bits");
        }
        assert_eq!(cells_per_chunk(12), 2729);
    }

    #[test]
    fn cells_are_independent_for_every_width() {
        for bits in 1..=32 {
            let geometry = Geometry::for_cells(bits, u64::from(cells_per_chunk(bits)) + 1);
            let mut view = View::zeroed(HashKey::from_seed(1), geometry);
            let value = |node: u32| node.wrapping_mul(0x9e37_79b9) & mask(bits);
            for node in 0..geometry.cells() as u32 {
                view.flip(node, value(node));
            }
            for node in 0..geometry.cells() as u32 {
                assert_eq!(view.cell(node), value(node), "{bits} bits, node {node}");
            }
        }
    }

    #[test]
    fn division_free_position_equals_the_plain_one() {
        let geometry = Geometry::for_cells(12, 100_000);
        let mut view = View::zeroed(HashKey::from_seed(1), geometry);
        for node in 0..geometry.cells() as u32 {
            view.flip(node, node);
        }
        for i in 0..100_000u64 {
            let hash = HashKey::from_seed(7).hash_word(i);
            let (a, b) = geometry.nodes(hash);
            assert_eq!(view.lookup_hash(hash), (a ^ b) & 0xfff);
        }
    }
}
