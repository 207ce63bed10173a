//! Fields of any width, one after the other, low bits first.

use super::MessageError;
use crate::{FixedKey, HashKey};

/// Appends fields of any width, low bits first.
///
/// ```
/// use weir_lookup::message::{BitReader, BitWriter};
///
/// let mut out = BitWriter::default();
/// out.put(5, 3);
/// out.put(1000, 10);
/// let bytes = out.finish();
/// assert_eq!(bytes.len(), 2);
/// let mut input = BitReader::new(&bytes);
/// assert_eq!((input.get(3)?, input.get(10)?), (5, 1000));
/// input.end()?;
/// # Ok::<(), weir_lookup::message::MessageError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct BitWriter {
    bytes: Vec<u8>,
    pending: u128,
    bits: u32,
}

impl BitWriter {
    /// Appends the low `width` (0..=64) bits of a number.
    pub fn put(&mut self, value: u64, width: u32) {
        let kept = if width == 64 { value } else { value & ((1 << width) - 1) };
        self.pending |= u128::from(kept) << self.bits;
        self.bits += width;
        while self.bits >= 8 {
            self.bytes.push(self.pending as u8);
            self.pending >>= 8;
            self.bits -= 8;
        }
    }

    /// Appends whole bytes.
    pub fn put_bytes(&mut self, bytes: &[u8]) {
        if self.bits == 0 {
            self.bytes.extend(bytes);
            return;
        }
        bytes.iter().for_each(|&byte| self.put(byte.into(), 8));
    }

    /// The bytes that were written; the last one is filled up with zeros.
    pub fn finish(mut self) -> Vec<u8> {
        if self.bits > 0 {
            self.bytes.push(self.pending as u8);
        }
        self.bytes
    }
}

/// Reads what a [`BitWriter`] wrote. What is not there is an error, and nothing is read then.
///
/// ```
/// use weir_lookup::message::{BitReader, MessageError};
///
/// let mut input = BitReader::new(&[0b1010_0101, 7]);
/// assert_eq!(input.get(4)?, 0b0101); // low bits first
/// assert_eq!(input.left(), 12);
/// assert_eq!(input.get(13), Err(MessageError::Length { bytes: 2 }));
/// assert_eq!(input.rest(), [7]); // from the next whole byte on
/// # Ok::<(), MessageError>(())
/// ```
#[derive(Clone, Debug)]
pub struct BitReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> BitReader<'a> {
    /// Reads from the first bit on.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// How many bits are left.
    pub fn left(&self) -> usize {
        self.bytes.len() * 8 - self.at
    }

    /// The next `width` (0..=64) bits.
    ///
    /// # Errors
    /// [`MessageError::Length`] if they are not there.
    pub fn get(&mut self, width: u32) -> Result<u64, MessageError> {
        if self.left() < width as usize {
            return Err(MessageError::Length { bytes: self.bytes.len() });
        }
        let (first, shift) = (self.at / 8, self.at % 8);
        // Nine bytes cover 64 bits from any bit on; at the end there may be fewer.
        let there = &self.bytes[first..self.bytes.len().min(first + 9)];
        let mut window = [0; 16];
        window[..there.len()].copy_from_slice(there);
        let kept = if width == 64 { u64::MAX } else { (1 << width) - 1 };
        let value = (u128::from_le_bytes(window) >> shift) as u64 & kept;
        self.at += width as usize;
        Ok(value)
    }

    /// The next `len` bytes, where a byte begins.
    ///
    /// # Errors
    /// [`MessageError::Length`] if they are not there, or none begins here.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], MessageError> {
        let all = self.bytes;
        let rest = self.at.is_multiple_of(8).then(|| &all[self.at / 8..]);
        let taken = rest.and_then(|rest| rest.get(..len));
        self.at += 8 * taken.map_or(0, <[u8]>::len);
        taken.ok_or(MessageError::Length { bytes: all.len() })
    }

    /// All that is left, from the next whole byte on.
    pub fn rest(&mut self) -> &'a [u8] {
        let rest = &self.bytes[self.at.div_ceil(8)..];
        self.at = self.bytes.len() * 8;
        rest
    }

    /// The next `out.len()` times 8 bits.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_bytes(&mut self, out: &mut [u8]) -> Result<(), MessageError> {
        for byte in out {
            *byte = self.get(8)? as u8;
        }
        Ok(())
    }

    /// The next 32 bytes, as [`HashKey::to_bytes`] writes them.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub(crate) fn hash_key(&mut self) -> Result<HashKey, MessageError> {
        let mut bytes = [0; 32];
        self.get_bytes(&mut bytes)?;
        Ok(HashKey::from_bytes(&bytes))
    }

    /// The next key.
    ///
    /// # Errors
    /// As [`get`](Self::get); [`MessageError::OutOfRange`] if the bytes are no key.
    pub(crate) fn key<K: FixedKey>(&mut self) -> Result<K, MessageError> {
        if self.left() < 8 * K::BYTES {
            return Err(MessageError::Length { bytes: self.bytes.len() });
        }
        let mut bytes = vec![0; K::BYTES];
        self.get_bytes(&mut bytes)?;
        K::from_bytes(&bytes).ok_or(MessageError::OutOfRange { what: "a key" })
    }

    /// Checks that nothing but the filling of the last byte is left.
    ///
    /// # Errors
    /// [`MessageError::Length`].
    pub fn end(mut self) -> Result<(), MessageError> {
        let left = self.left();
        if left < 8 && self.get(left as u32)? == 0 {
            return Ok(());
        }
        Err(MessageError::Length { bytes: self.bytes.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_every_width_come_back() {
        let mut out = BitWriter::default();
        let value = |width: u32| 0x9e37_79b9_7f4a_7c15u64.rotate_left(width);
        let kept = |width: u32| {
            if width == 64 { value(width) } else { value(width) & ((1 << width) - 1) }
        };
        (0..=64).for_each(|width| out.put(value(width), width));
        out.put_bytes(b"whole");
        let bytes = out.finish();
        let mut input = BitReader::new(&bytes);
        for width in 0..=64 {
            assert_eq!(input.get(width).unwrap(), kept(width), "{width} bits");
        }
        let mut whole = [0; 5];
        input.get_bytes(&mut whole).unwrap();
        assert_eq!(&whole, b"whole");
        input.clone().end().unwrap();
        assert!(input.get(16).is_err());
    }

    #[test]
    fn whole_bytes_are_borrowed_where_one_begins() {
        let mut input = BitReader::new(b"ab12345");
        assert_eq!(input.bytes(2), Ok(&b"ab"[..]));
        assert_eq!(input.get(4), Ok(1));
        assert!(input.bytes(1).is_err());
        assert_eq!(input.get(4), Ok(3));
        assert!(input.bytes(5).is_err());
        assert_eq!(input.rest(), b"2345");
        assert_eq!(input.bytes(0), Ok(&b""[..]));
        input.end().unwrap();
    }
}
