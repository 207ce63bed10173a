//! Bit-packed messages under a digest: what control and data planes send each other.

use xxhash_rust::xxh3::xxh3_64;

/// Bytes that [`seal`] adds to a body: plane, number and digest.
pub const ENVELOPE: usize = 24;

/// Why a message was refused. Whoever refuses one has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The bytes end too early, or go on after the end.
    #[error("a message of {bytes} bytes does not hold what it says")]
    Length {
        /// Bytes that are there.
        bytes: usize,
    },
    /// The digest does not agree with the bytes.
    #[error("digest {found:#018x} instead of {expected:#018x}")]
    Digest {
        /// The digest that came with the bytes.
        found: u64,
        /// The digest of the bytes.
        expected: u64,
    },
    /// The message is for another plane, or of another table.
    #[error("message for {found:#x}, this is {expected:#x}")]
    OtherPlane {
        /// Whom the message is for.
        found: u64,
        /// Who reads it.
        expected: u64,
    },
    /// A message is missing, or came twice.
    #[error("message number {found}, expected {expected}")]
    OutOfSequence {
        /// The message's number.
        found: u64,
        /// The number of the next message.
        expected: u64,
    },
    /// A field has a value that it cannot have here.
    #[error("{what} is out of range")]
    OutOfRange {
        /// The field.
        what: &'static str,
    },
}

/// Puts a body into an envelope: plane, number, body, digest of all of it; little-endian.
pub fn seal(plane: u64, number: u64, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + ENVELOPE);
    out.extend(plane.to_le_bytes());
    out.extend(number.to_le_bytes());
    out.extend(body);
    let digest = xxh3_64(&out);
    out.extend(digest.to_le_bytes());
    out
}

/// Plane, number and body of a message whose digest is right.
///
/// # Errors
/// [`MessageError::Length`] and [`MessageError::Digest`].
pub fn open(bytes: &[u8]) -> Result<(u64, u64, &[u8]), MessageError> {
    let short = MessageError::Length { bytes: bytes.len() };
    let (sealed, digest) = bytes.split_last_chunk::<8>().ok_or(short.clone())?;
    let (plane, rest) = sealed.split_first_chunk::<8>().ok_or(short.clone())?;
    let (number, body) = rest.split_first_chunk::<8>().ok_or(short)?;
    let (found, expected) = (u64::from_le_bytes(*digest), xxh3_64(sealed));
    if found != expected {
        return Err(MessageError::Digest { found, expected });
    }
    Ok((u64::from_le_bytes(*plane), u64::from_le_bytes(*number), body))
}

/// Opens a message that has to be the one after number `number` of this plane; returns its body.
///
/// # Errors
/// As [`open`]; [`MessageError::OtherPlane`] and [`MessageError::OutOfSequence`].
pub fn open_next(bytes: &[u8], plane: u64, number: u64) -> Result<&[u8], MessageError> {
    let (for_plane, found, body) = open(bytes)?;
    if for_plane != plane {
        return Err(MessageError::OtherPlane { found: for_plane, expected: plane });
    }
    let expected = number + 1;
    if found != expected {
        return Err(MessageError::OutOfSequence { found, expected });
    }
    Ok(body)
}

/// Appends fields of any width, low bits first.
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
        bytes.iter().for_each(|&byte| self.put(byte.into(), 8));
    }

    /// The bytes, the last one filled up with zeros.
    pub fn finish(mut self) -> Vec<u8> {
        if self.bits > 0 {
            self.bytes.push(self.pending as u8);
        }
        self.bytes
    }
}

/// Reads what a [`BitWriter`] wrote.
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
        let mut value = 0u64;
        let mut have = 0;
        while have < width {
            let byte = u64::from(self.bytes[self.at / 8]) >> (self.at % 8);
            let take = (8 - (self.at % 8) as u32).min(width - have);
            value |= (byte & ((1 << take) - 1)) << have;
            have += take;
            self.at += take as usize;
        }
        Ok(value)
    }

    /// The next `out.len()` whole bytes.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_bytes(&mut self, out: &mut [u8]) -> Result<(), MessageError> {
        for byte in out {
            *byte = self.get(8)? as u8;
        }
        Ok(())
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
}
