//! Bytes of whole views.

use super::tables::{Extras, Tables};
use super::view::LudoView;
use super::{MAX_CELLS, SEEDS_PER_WORD, Shape};
use crate::memory::packed::{Packed, ones};
use crate::message::{BitReader, Kind, Message, MessageError, out_of_range, seal_into};

impl LudoView {
    /// The whole view in the common format ([`crate::message`]). Body: bits of a value, buckets and
    /// cells of a side (4 bytes each), hash key (32), lengths of the overflow and the fallback table
    /// (8 each), cells, buckets, and these two tables.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.tables.bytes() + self.extras.bytes() + 128);
        let names = (self.table, self.number);
        seal_into(&mut out, Kind::LUDO_VIEW, names, |out| self.put_body(out));
        out
    }

    fn put_body(&self, out: &mut Vec<u8>) {
        let Tables { key, shape, cells, buckets } = &self.tables;
        for number in [shape.value_bits, shape.buckets, shape.cells] {
            out.extend(number.to_le_bytes());
        }
        out.extend(key.to_bytes());
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
    }

    /// Reads a view that fills `bytes`.
    ///
    /// # Errors
    /// [`MessageError`] says what is wrong with the bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MessageError> {
        let Message { table, number, body, .. } = Message::read(bytes)?.expect(Kind::LUDO_VIEW)?;
        let mut input = BitReader::new(body);
        let [value_bits, buckets, cells] =
            [input.get(32)?, input.get(32)?, input.get(32)?].map(|field| field as u32);
        let shape = Shape { value_bits, buckets, cells };
        let in_range = (1..=64).contains(&shape.value_bits)
            && shape.buckets > 0
            && (1..MAX_CELLS).contains(&shape.cells);
        if !in_range {
            return out_of_range("a snapshot's shape");
        }
        let key = input.hash_key()?;
        let lengths = [input.get(64)?, input.get(64)?];
        let cells = read_words(&mut input, 2 * u64::from(shape.cells))?;
        let buckets = read_words(&mut input, u64::from(shape.buckets) * shape.bucket_bits())?;
        let extras = read_extras(&mut input, &shape, lengths)?;
        input.end()?;
        Ok(Self { table, number, tables: Tables { key, shape, cells, buckets }, extras })
    }
}

/// The words of an array of so many bits.
fn read_words(input: &mut BitReader<'_>, bits: u64) -> Result<Packed, MessageError> {
    let bytes = input.bytes(Packed::words_for(bits).saturating_mul(8))?;
    let words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
    Ok(Packed::from_words(words.collect()))
}

/// The overflow and the fallback table. Their lengths are not trusted with memory: entries are read
/// one by one.
fn read_extras(
    input: &mut BitReader<'_>,
    shape: &Shape,
    [overflowed, fallen]: [u64; 2],
) -> Result<Extras, MessageError> {
    let mut extras = Extras::default();
    for _ in 0..overflowed {
        let (bucket, seed) = (input.get(32)? as u32, input.get(8)? as u8);
        let sorted = extras.overflow.last().is_none_or(|&(last, _)| last < bucket);
        if !sorted || bucket >= shape.buckets || u32::from(seed) < SEEDS_PER_WORD {
            return out_of_range("a snapshot's overflow seed");
        }
        extras.overflow.push((bucket, seed));
    }
    for _ in 0..fallen {
        let (hash, value) = (input.get(64)?, input.get(64)?);
        let sorted = extras.fallback.last().is_none_or(|&(last, _)| last < hash);
        if !sorted || value & !ones(shape.value_bits) != 0 {
            return out_of_range("a snapshot's fallback entry");
        }
        extras.fallback.push((hash, value));
        extras.filter |= 1 << (hash & 63);
    }
    Ok(extras)
}
