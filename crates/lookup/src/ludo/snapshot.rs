//! Bytes of whole views, and the tools that messages share with them.

use super::packed::Packed;
use super::tables::{Extras, Tables};
use super::view::LudoView;
use super::{LudoError, MAX_CELLS, SEEDS_PER_WORD, Shape};
use crate::HashKey;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: u32 = u32::from_le_bytes(*b"LUs1");
const WHAT: &str = "Ludo snapshot";

/// The checksum of messages and snapshots: against accidents, not against forgers.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// Reads little-endian fields of untrusted bytes.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    total: usize,
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// What stands between a magic number and a checksum, once both are found right.
    pub(crate) fn checked(
        bytes: &'a [u8],
        magic: u32,
        what: &'static str,
    ) -> Result<Self, LudoError> {
        let Some((body, sum)) = bytes.split_last_chunk::<8>() else {
            return Err(LudoError::Length { what, bytes: bytes.len() });
        };
        let mut reader = Self { bytes: body, total: bytes.len(), what };
        if reader.u32()? != magic {
            return Err(LudoError::Format { what });
        }
        let (found, expected) = (u64::from_le_bytes(*sum), checksum(body));
        if found != expected {
            return Err(LudoError::Checksum { what, found, expected });
        }
        Ok(reader)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], LudoError> {
        let Some((array, rest)) = self.bytes.split_first_chunk::<N>() else {
            return Err(LudoError::Length { what: self.what, bytes: self.total });
        };
        self.bytes = rest;
        Ok(*array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, LudoError> {
        self.array().map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, LudoError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, LudoError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }

    /// How many items of `size` bytes can still come, at most `claimed`.
    fn count(&self, claimed: u64, size: usize) -> Result<usize, LudoError> {
        match usize::try_from(claimed) {
            Ok(count) if count <= self.bytes.len() / size => Ok(count),
            _ => Err(LudoError::Length { what: self.what, bytes: self.total }),
        }
    }

    pub(crate) fn end(self) -> Result<(), LudoError> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        Err(LudoError::Length { what: self.what, bytes: self.total })
    }

    fn words(&mut self, bits: u64) -> Result<Packed, LudoError> {
        let count = self.count(Packed::words_for(bits) as u64, 8)?;
        (0..count).map(|_| self.u64()).collect::<Result<Vec<_>, _>>().map(Packed::from_words)
    }
}

impl LudoView {
    /// The whole view, little-endian: magic, table, number, shape, hash key, counts, cells,
    /// buckets, overflow table, fallback table, checksum.
    pub fn to_bytes(&self) -> Vec<u8> {
        let Tables { key, shape, cells, buckets } = &self.tables;
        let mut out = Vec::with_capacity(self.tables.bytes() + self.extras.bytes() + 128);
        out.extend(MAGIC.to_le_bytes());
        for word in [self.table, self.number] {
            out.extend(word.to_le_bytes());
        }
        for number in [shape.value_bits, shape.buckets, shape.cells] {
            out.extend(number.to_le_bytes());
        }
        for word in [key.xor, key.xor_wide, key.mul1, key.mul2] {
            out.extend(word.to_le_bytes());
        }
        for count in [self.extras.overflow.len(), self.extras.fallback.len()] {
            out.extend((count as u64).to_le_bytes());
        }
        for word in cells.words().chain(buckets.words()) {
            out.extend(word.to_le_bytes());
        }
        for &(bucket, seed) in &self.extras.overflow {
            out.extend(bucket.to_le_bytes());
            out.push(seed);
        }
        for &(hash, value) in &self.extras.fallback {
            out.extend(hash.to_le_bytes());
            out.extend(value.to_le_bytes());
        }
        let sum = checksum(&out);
        out.extend(sum.to_le_bytes());
        out
    }

    /// Reads a view that fills `bytes`.
    ///
    /// # Errors
    /// [`LudoError`] says what is wrong with the bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, LudoError> {
        let mut input = Reader::checked(bytes, MAGIC, WHAT)?;
        let (table, number) = (input.u64()?, input.u64()?);
        let shape = Shape { value_bits: input.u32()?, buckets: input.u32()?, cells: input.u32()? };
        let in_range = (1..=64).contains(&shape.value_bits)
            && shape.buckets > 0
            && (1..MAX_CELLS).contains(&shape.cells);
        if !in_range {
            return Err(LudoError::OutOfRange { what: "a snapshot's shape" });
        }
        let [xor, xor_wide, mul1, mul2] = [input.u64()?, input.u64()?, input.u64()?, input.u64()?];
        let key = HashKey { xor, xor_wide, mul1, mul2 };
        let (overflowed, fallen) = (input.u64()?, input.u64()?);
        let cells = input.words(2 * u64::from(shape.cells))?;
        let buckets = input.words(u64::from(shape.buckets) * shape.bucket_bits())?;
        let extras = read_extras(&mut input, &shape, overflowed, fallen)?;
        input.end()?;
        Ok(Self { table, number, tables: Tables { key, shape, cells, buckets }, extras })
    }
}

fn read_extras(
    input: &mut Reader<'_>,
    shape: &Shape,
    overflowed: u64,
    fallen: u64,
) -> Result<Extras, LudoError> {
    let mut extras = Extras::default();
    for _ in 0..input.count(overflowed, 5)? {
        let (bucket, seed) = (input.u32()?, input.u8()?);
        let sorted = extras.overflow.last().is_none_or(|&(last, _)| last < bucket);
        if !sorted || bucket >= shape.buckets || u32::from(seed) < SEEDS_PER_WORD {
            return Err(LudoError::OutOfRange { what: "a snapshot's overflow seed" });
        }
        extras.overflow.push((bucket, seed));
    }
    for _ in 0..input.count(fallen, 16)? {
        let (hash, value) = (input.u64()?, input.u64()?);
        let sorted = extras.fallback.last().is_none_or(|&(last, _)| last < hash);
        if !sorted || value & !super::packed::ones(shape.value_bits) != 0 {
            return Err(LudoError::OutOfRange { what: "a snapshot's fallback entry" });
        }
        extras.fallback.push((hash, value));
        extras.filter |= 1 << (hash & 63);
    }
    Ok(extras)
}
