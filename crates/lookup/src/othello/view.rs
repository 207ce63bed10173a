//! Bit-packed cells in chunks, and the lookup-only view made of two such arrays.

use crate::memory::bits::{Batch, Cells, load_bytes, narrow_load, read, read_by};
use crate::memory::pages::Pages;
use crate::{HashKey, Key, Value, vectorised};
use std::marker::PhantomData;
use weir_hash::scale;

/// Bytes of a chunk. A kernel array map hands out memory by elements of one size; 4,096 keeps the
/// waste at the end of each array small and the number of elements moderate.
pub const CHUNK_BYTES: usize = 4096;

/// How many `bits`-wide cells a chunk holds, so that a load of 4 bytes (8 from 26 bits on, 9 for 59,
/// 61, 62 and 63 bits) at the byte where the cell begins stays inside the chunk. For 12 bits: 2,729,
/// 0.06 % under the ideal; 0.38 % at most.
///
/// # Panics
/// If `bits` exceeds 64.
#[inline(always)]
pub const fn cells_per_chunk(bits: u32) -> u32 {
    PER_CHUNK[bits as usize]
}

/// By width, since a maintainer asks at every key and would divide; none for a width of 0.
const PER_CHUNK: [u32; 65] = {
    let mut table = [0; 65];
    let mut bits = 1;
    while bits < table.len() {
        table[bits] = count_per_chunk(bits as u32);
        bits += 1;
    }
    table
};

const fn count_per_chunk(bits: u32) -> u32 {
    let load = load_bytes(bits);
    let last_start = ((CHUNK_BYTES as u32 - load) * 8 + 7) / bits;
    let whole = CHUNK_BYTES as u32 * 8 / bits;
    if last_start + 1 < whole { last_start + 1 } else { whole }
}

/// Shape of a table of two arrays: how wide a cell is, and how many there are.
///
/// ```
/// use weir_lookup::{Geometry, HashKey, Key, cells_per_chunk};
///
/// let shape = Geometry::for_cells(12, 10_000); // of 12 bits, in whole chunks of 4,096 bytes
/// assert_eq!((shape.chunks_a, shape.cells_a()), (4, 4 * cells_per_chunk(12)));
/// // A hash chooses a cell of each array; all are numbered, those of A first.
/// let (a, b) = shape.nodes(7u64.hash(&HashKey::from_seed(1)));
/// assert!(a < shape.cells_a() && (shape.cells_a()..shape.cells() as u32).contains(&b));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Width of a cell, 1..=64 bits.
    pub bits: u32,
    /// Chunks of array A, which the low 32 bits of a hash choose a cell of.
    pub chunks_a: u32,
    /// Chunks of array B, which the high 32 bits choose a cell of.
    pub chunks_b: u32,
}

impl Geometry {
    /// The smallest shape whose arrays hold at least `cells` cells each.
    pub fn for_cells(bits: u32, cells: u64) -> Self {
        u64::assert_width(bits);
        let chunks = cells.div_ceil(u64::from(cells_per_chunk(bits))).max(1) as u32;
        Self { bits, chunks_a: chunks, chunks_b: chunks }
    }

    /// Number of cells in array A.
    pub fn cells_a(&self) -> u32 {
        self.chunks_a * cells_per_chunk(self.bits)
    }

    /// Number of cells in array B.
    pub fn cells_b(&self) -> u32 {
        self.chunks_b * cells_per_chunk(self.bits)
    }

    /// With each array twice as long.
    pub(crate) fn doubled(self) -> Self {
        Self { chunks_a: self.chunks_a * 2, chunks_b: self.chunks_b * 2, ..self }
    }

    /// Node numbers of a hash: A's cells first, then B's.
    #[inline(always)]
    pub fn nodes(&self, hash: u64) -> (u32, u32) {
        let a = scale(hash as u32, self.cells_a());
        let b = scale((hash >> 32) as u32, self.cells_b());
        (a, self.cells_a() + b)
    }

    /// Number of cells in both arrays; a node of the graph is a cell.
    pub fn cells(&self) -> usize {
        (self.cells_a() + self.cells_b()) as usize
    }
}

/// The lookup face of an [`Othello`](crate::Othello): two bit-packed arrays and a hash key.
///
/// Chunks of A, then chunks of B, each [`CHUNK_BYTES`] long. Cell `i` of an array stands in chunk
/// `i / cells_per_chunk` from bit `bits * (i % cells_per_chunk)` on, little-endian. The bytes do not
/// depend on `V`, the type of the values.
///
/// ```
/// use weir_lookup::{Othello, View};
///
/// let mut table: Othello<u64> = Othello::new(8, 1000, 1);
/// table.insert(7, 200)?;
/// let view = table.view();
/// assert_eq!(view.get(&7u64), 200);
///
/// // The bytes go elsewhere, with shape and hash key, and answer there.
/// let copy = View::from_bytes(*view.hash_key(), view.geometry(), view.as_bytes().to_vec());
/// assert!(copy == view);
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View<V = u32> {
    key: HashKey,
    geometry: Geometry,
    per_chunk: u32,
    /// Bytes of the load that reads a single cell.
    load: u32,
    bytes: Pages<u8>,
    values: PhantomData<V>,
}

impl<V: Value> View<V> {
    pub(crate) fn zeroed(key: HashKey, geometry: Geometry) -> Self {
        let chunks = (geometry.chunks_a + geometry.chunks_b) as usize;
        Self::of(key, geometry, Pages::filled(0, chunks * CHUNK_BYTES))
    }

    /// A view from the bytes of a published table.
    ///
    /// # Panics
    /// If the number of bytes does not match the shape, or its cells are wider than a `V`.
    pub fn from_bytes(key: HashKey, geometry: Geometry, bytes: Vec<u8>) -> Self {
        let chunks = (geometry.chunks_a + geometry.chunks_b) as usize;
        assert_eq!(bytes.len(), chunks * CHUNK_BYTES, "bytes of a view");
        Self::of(key, geometry, Pages::of(bytes))
    }

    /// The view with its cells doubled until they have this shape; `None` if they never do.
    pub(crate) fn stretched(&self, geometry: Geometry) -> Option<Self> {
        let (mut shape, mut times) = (self.geometry, 0);
        while shape.chunks_a < geometry.chunks_a {
            (shape, times) = (shape.doubled(), times + 1);
        }
        if shape != geometry {
            return None;
        }
        if times == 0 {
            return Some(self.clone());
        }
        let mut view = Self::zeroed(self.key, geometry);
        for node in 0..geometry.cells() as u32 {
            view.flip(node, self.cell(node >> times));
        }
        Some(view)
    }

    fn of(key: HashKey, geometry: Geometry, bytes: Pages<u8>) -> Self {
        let bits = geometry.bits;
        V::assert_width(bits);
        let (per_chunk, load) = (cells_per_chunk(bits), narrow_load(bits));
        Self { key, geometry, per_chunk, load, bytes, values: PhantomData }
    }

    /// The hash key of this table.
    pub fn hash_key(&self) -> &HashKey {
        &self.key
    }

    /// The shape of this table.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The packed bytes, as they are copied into the kernel.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes of the packed cells.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Value of a key: the stored one if the key was built in, else an arbitrary one.
    ///
    /// Two reads at random places; `geometry().bits` wide result.
    #[inline]
    pub fn get<K: Key>(&self, key: &K) -> V {
        self.get_hash(key.hash(&self.key))
    }

    /// As [`get`](Self::get), with the hash at hand.
    #[inline]
    pub fn get_hash(&self, hash: u64) -> V {
        self.value_at(self.bits_of(hash))
    }

    /// Values of many keys, with the cache misses of 32 lookups under way at a time.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn get_batch<K: Key>(&self, keys: &[K], out: &mut [V]) {
        self.get_batch_with(keys, out, |key| key.hash(&self.key), |value| value);
    }

    /// As [`get_batch`](Self::get_batch) for a caller who hashes keys in a way of its own and
    /// goes on from the values: `out[i] = finish(get_hash(hash(&keys[i])))`, in order.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn get_batch_with<K, R>(
        &self,
        keys: &[K],
        out: &mut [R],
        hash: impl Fn(&K) -> u64,
        finish: impl FnMut(V) -> R,
    ) {
        vectorised(Batch { table: self, keys, out, hash, finish });
    }

    /// The bit at which a cell begins.
    #[inline(always)]
    fn bit(&self, chunk: u32, cell: u32) -> u64 {
        u64::from(chunk) * (CHUNK_BYTES as u64 * 8) + u64::from(cell * self.geometry.bits)
    }

    /// Chunk and cell of a node number.
    fn place(&self, node: u32) -> (u32, u32) {
        let a = self.geometry.cells_a();
        let (first, cell) = if node < a { (0, node) } else { (self.geometry.chunks_a, node - a) };
        (first + cell / self.per_chunk, cell % self.per_chunk)
    }

    /// Reads the cell of a node.
    #[inline]
    pub fn cell(&self, node: u32) -> V {
        let (chunk, cell) = self.place(node);
        read_by::<V>(self.load, &self.bytes, self.bit(chunk, cell)) & V::mask(self.geometry.bits)
    }

    /// Xors `delta` into the cell of a node.
    pub(crate) fn flip(&mut self, node: u32, delta: V) {
        let (chunk, cell) = self.place(node);
        let bit = self.bit(chunk, cell);
        let (at, shift) = ((bit >> 3) as usize, bit & 7);
        let delta: u64 = (delta & V::mask(self.geometry.bits)).into();
        for (offset, byte) in (delta << shift).to_le_bytes().into_iter().enumerate() {
            // The bytes past the cell are zero and may lie outside the array.
            if byte != 0 {
                self.bytes[at + offset] ^= byte;
            }
        }
        if V::BITS > 32 && shift > 0 && delta >> (64 - shift) != 0 {
            self.bytes[at + 8] ^= (delta >> (64 - shift)) as u8;
        }
    }
}

impl<V: Value> Cells<2> for View<V> {
    type Value = V;

    const NEAR: bool = false;

    #[inline(always)]
    fn cells(&self) -> (&[u8], u32) {
        (&self.bytes, self.geometry.bits)
    }

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

    #[inline(always)]
    fn value_at(&self, [a, b]: [u64; 2]) -> V {
        let bytes = &self.bytes[..];
        let xor = if self.load == 2 {
            // The usual case, decided once for both.
            read::<2, V>(bytes, a) ^ read::<2, V>(bytes, b)
        } else {
            read_by::<V>(self.load, bytes, a) ^ read_by(self.load, bytes, b)
        };
        xor & V::mask(self.geometry.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::bits::large;

    #[test]
    fn last_cell_of_a_chunk_is_readable_for_every_width() {
        for bits in 1..=64 {
            let per_chunk = cells_per_chunk(bits);
            let last_byte = (per_chunk - 1) * bits / 8;
            assert!((last_byte + load_bytes(bits)) as usize <= CHUNK_BYTES, "{bits} bits");
            assert!(load_bytes(bits) >= narrow_load(bits), "{bits} bits");
            assert!((per_chunk * bits) as usize <= CHUNK_BYTES * 8, "{bits} bits");
        }
        assert_eq!(cells_per_chunk(12), 2729);
    }

    #[test]
    fn cells_are_independent_for_every_width() {
        fn check<V: Value>(bits: u32) {
            let geometry = Geometry::for_cells(bits, u64::from(cells_per_chunk(bits)) + 1);
            let mut view = View::<V>::zeroed(HashKey::from_seed(1), geometry);
            let value = |node: u32| {
                V::of_word(u64::from(node + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)) & V::mask(bits)
            };
            for node in 0..geometry.cells() as u32 {
                view.flip(node, value(node));
            }
            for node in 0..geometry.cells() as u32 {
                assert_eq!(view.cell(node), value(node), "{bits} bits, node {node}");
            }
        }
        (1..=32).for_each(check::<u32>);
        (1..=64).for_each(check::<u64>);
    }

    #[test]
    fn division_free_position_equals_the_plain_one() {
        let geometry = Geometry::for_cells(12, 100_000);
        let mut view = View::<u32>::zeroed(HashKey::from_seed(1), geometry);
        for node in 0..geometry.cells() as u32 {
            view.flip(node, node);
        }
        for i in 0..100_000u64 {
            let hash = HashKey::from_seed(7).hash_word(i);
            let (a, b) = geometry.nodes(hash);
            assert_eq!(view.get_hash(hash), (a ^ b) & 0xfff);
        }
    }

    /// As tables of 512 MB and more are read in batches.
    #[test]
    fn large_tables_are_read_as_others() {
        fn check<V: Value>(bits: u32) {
            let mut view =
                View::<V>::zeroed(HashKey::from_seed(1), Geometry::for_cells(bits, 2_000));
            for node in 0..view.geometry().cells() as u32 {
                let word = u64::from(node + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                view.flip(node, V::of_word(word >> 7));
            }
            let keys: Vec<u64> = (0..20_001).collect();
            let mut out = vec![V::default(); keys.len()];
            large(&view, &keys, &mut out, |key| key.hash(view.hash_key()), |value| value);
            assert!(keys.iter().zip(out).all(|(key, found)| found == view.get(key)), "{bits}");
        }
        (1..=32).for_each(check::<u32>);
        (1..=64).for_each(check::<u64>);
    }
}
