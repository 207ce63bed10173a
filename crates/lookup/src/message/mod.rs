//! One format for all that structures send each other: changes, and views whole.
//!
//! A message is a header of 24 bytes, a body, and a digest of 8 bytes over both; numbers are
//! little-endian:
//!
//! | bytes | |
//! |---|---|
//! | 0 | what it is: the structure, and whether it is a change or a whole view ([`Kind`]) |
//! | 1 | version of that body's layout |
//! | 2..8 | length of the message in bytes, header and digest included |
//! | 8..16 | the table that it belongs to; where each data plane has values of its own, the plane |
//! | 16..24 | its number: a change has the number after the last one, a view that of the last change in it |
//! | 24.. | the body, whose layout is the structure's (`to_bytes` of its update or view says it) |
//! | last 8 | digest: XXH3 of all bytes before, against accidents and not against forgers |
//!
//! So a message that was damaged, lost, swapped, repeated, sent to another table, or made for
//! another structure or version is refused with a reason, and what refuses it has changed nothing.
//!
//! ```
//! use weir_lookup::{Ludo, LudoView, message::MessageError};
//!
//! let mut table: Ludo<u64> = Ludo::new(12, 100, 1).unwrap();
//! let mut view = LudoView::from_bytes(&table.view().to_bytes()).unwrap();
//! table.insert(7, 300).unwrap();
//! let message = table.update().to_bytes();
//! view.apply_bytes(&message).unwrap();
//! assert_eq!(view.get(&7u64), 300);
//! let again = view.apply_bytes(&message);
//! assert_eq!(again, Err(MessageError::OutOfSequence { found: 1, expected: 2 }));
//! ```

mod bits;
mod error;

pub use bits::{BitReader, BitWriter};
pub use error::MessageError;

use xxhash_rust::xxh3::xxh3_64;

/// Bytes of a message beside its body: header and digest.
pub const ENVELOPE: usize = HEADER + DIGEST;

const HEADER: usize = 24;
const DIGEST: usize = 8;

/// What a message is: a structure's change or whole view, and the version of its layout.
///
/// ```
/// use weir_lookup::message::{Kind, Message};
/// use weir_lookup::Ludo;
///
/// let mut table: Ludo<u64> = Ludo::new(12, 100, 1)?;
/// table.insert(7, 300)?;
/// assert_eq!(Message::read(&table.update().to_bytes())?.kind, Kind::LUDO_UPDATE);
/// assert_eq!(Message::read(&table.view().to_bytes())?.kind, Kind::LUDO_VIEW);
/// # Ok::<(), weir_lookup::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Kind {
    /// Number of the structure and of the role. Those below 64 are this crate's.
    pub code: u8,
    /// Version of the body's layout.
    pub version: u8,
}

impl Kind {
    /// A change of an [`OthelloSet`](crate::OthelloSet), for one data plane.
    pub const SET_UPDATE: Self = Self::new(1, 1);
    /// A whole [`SetView`](crate::SetView).
    pub const SET_VIEW: Self = Self::new(2, 1);
    /// A change of a [`Ludo`](crate::Ludo) table.
    pub const LUDO_UPDATE: Self = Self::new(3, 1);
    /// A whole [`LudoView`](crate::LudoView).
    pub const LUDO_VIEW: Self = Self::new(4, 1);
    /// A change of a [`Filtable`](crate::Filtable).
    pub const FILTABLE_UPDATE: Self = Self::new(5, 1);
    /// A whole [`FiltableView`](crate::FiltableView).
    pub const FILTABLE_VIEW: Self = Self::new(6, 1);
    /// A change of a [`BloomFeed`](crate::BloomFeed).
    pub const BLOOM_UPDATE: Self = Self::new(7, 1);
    /// A whole [`BloomView`](crate::BloomView).
    pub const BLOOM_VIEW: Self = Self::new(8, 1);

    /// A kind with this number and version. Other crates number theirs from 64 on.
    pub const fn new(code: u8, version: u8) -> Self {
        Self { code, version }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (version {})", self.code, self.version)
    }
}

/// A message whose digest is right.
///
/// ```
/// use weir_lookup::message::{Kind, Message, MessageError, seal};
///
/// const OURS: Kind = Kind::new(64, 1);
/// let mut bytes = seal(OURS, 5, 1, b"a change");
/// let message = Message::read(&bytes)?.expect(OURS)?.follows(5, 0)?;
/// assert_eq!(message.body, b"a change");
/// let later = Message::read(&bytes)?.follows(5, 7);
/// assert_eq!(later, Err(MessageError::OutOfSequence { found: 1, expected: 8 }));
///
/// bytes[30] ^= 1;
/// assert!(matches!(Message::read(&bytes), Err(MessageError::Digest { .. })));
/// # Ok::<(), MessageError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// The structure that it is for, and the version of its layout.
    pub kind: Kind,
    /// The table that it belongs to.
    pub table: u64,
    /// Its number in the order of the table's messages.
    pub number: u64,
    /// The change itself, as the structure lays it out.
    pub body: &'a [u8],
}

impl<'a> Message<'a> {
    /// Reads the message that fills `bytes`.
    ///
    /// # Errors
    /// [`MessageError::Length`] and [`MessageError::Digest`].
    pub fn read(bytes: &'a [u8]) -> Result<Self, MessageError> {
        let short = MessageError::Length { bytes: bytes.len() };
        let (sealed, digest) = bytes.split_last_chunk::<DIGEST>().ok_or(short.clone())?;
        let (header, body) = sealed.split_first_chunk::<HEADER>().ok_or(short.clone())?;
        let [first, table, number] = words(header);
        if first >> 16 != bytes.len() as u64 {
            return Err(short);
        }
        let (found, expected) = (u64::from_le_bytes(*digest), xxh3_64(sealed));
        if found != expected {
            return Err(MessageError::Digest { found, expected });
        }
        let kind = Kind::new(first as u8, (first >> 8) as u8);
        Ok(Self { kind, table, number, body })
    }

    /// Whether it is what the reader takes.
    ///
    /// # Errors
    /// [`MessageError::OtherKind`].
    pub fn expect(self, kind: Kind) -> Result<Self, MessageError> {
        if self.kind == kind {
            return Ok(self);
        }
        Err(MessageError::OtherKind { found: self.kind, expected: kind })
    }

    /// Whether it is the message after number `number` of this table.
    ///
    /// # Errors
    /// [`MessageError::OtherTable`] and [`MessageError::OutOfSequence`].
    pub fn follows(self, table: u64, number: u64) -> Result<Self, MessageError> {
        check_next((self.table, self.number), (table, number))?;
        Ok(self)
    }
}

/// The three words of a header.
fn words(header: &[u8; HEADER]) -> [u64; 3] {
    let words = header.as_chunks().0;
    [0, 1, 2].map(|at| u64::from_le_bytes(words[at]))
}

/// Makes a message of a body.
pub fn seal(kind: Kind, table: u64, number: u64, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + ENVELOPE);
    seal_into(&mut out, kind, (table, number), |out| out.extend(body));
    out
}

/// Appends a message of this table with this number, whose body `body` appends.
pub fn seal_into(
    out: &mut Vec<u8>,
    kind: Kind,
    (table, number): (u64, u64),
    body: impl FnOnce(&mut Vec<u8>),
) {
    let start = out.len();
    out.extend([0; 8]);
    out.extend(table.to_le_bytes());
    out.extend(number.to_le_bytes());
    body(out);
    let length = (out.len() - start + DIGEST) as u64;
    let first = u64::from(kind.code) | u64::from(kind.version) << 8 | length << 16;
    out[start..start + 8].copy_from_slice(&first.to_le_bytes());
    let digest = xxh3_64(&out[start..]);
    out.extend(digest.to_le_bytes());
}

/// The bytes of the first of several messages, and those behind it.
///
/// # Errors
/// [`MessageError::Length`] if the first one is not whole.
pub fn split_first(bytes: &[u8]) -> Result<(&[u8], &[u8]), MessageError> {
    let short = || MessageError::Length { bytes: bytes.len() };
    let (first, _) = bytes.split_first_chunk::<8>().ok_or_else(short)?;
    let length = usize::try_from(u64::from_le_bytes(*first) >> 16).map_err(|_| short())?;
    bytes.split_at_checked(length.max(ENVELOPE)).ok_or_else(short)
}

/// Whether a message (its table and number) is the next one of a table that has seen `number`.
pub(crate) fn check_next(
    (of_table, found): (u64, u64),
    (table, number): (u64, u64),
) -> Result<(), MessageError> {
    if of_table != table {
        return Err(MessageError::OtherTable { found: of_table, expected: table });
    }
    let expected = number.wrapping_add(1);
    if found != expected {
        return Err(MessageError::OutOfSequence { found, expected });
    }
    Ok(())
}

/// That a field has a value that it cannot have here.
pub(crate) fn out_of_range<T>(what: &'static str) -> Result<T, MessageError> {
    Err(MessageError::OutOfRange { what })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_back_and_any_flipped_bit_is_noticed() {
        let kind = Kind::new(99, 7);
        let bytes = seal(kind, 0x1234_5678_9abc_def0, 42, b"a body");
        assert_eq!(bytes.len(), ENVELOPE + 6);
        let message = Message::read(&bytes).unwrap();
        let expected = Message { kind, table: 0x1234_5678_9abc_def0, number: 42, body: b"a body" };
        assert_eq!(message, expected);
        for bit in 0..8 * bytes.len() {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            match Message::read(&damaged) {
                Err(MessageError::Length { .. }) => assert!((16..64).contains(&bit)),
                Err(MessageError::Digest { .. }) => assert!(!(16..64).contains(&bit)),
                other => panic!("bit {bit}: {other:?}"),
            }
        }
        for len in 0..bytes.len() {
            assert_eq!(Message::read(&bytes[..len]), Err(MessageError::Length { bytes: len }));
        }
    }

    #[test]
    fn kind_version_table_and_number_are_asked_for() {
        let (kind, newer) = (Kind::new(70, 1), Kind::new(70, 2));
        let bytes = seal(newer, 5, 9, &[]);
        let message = Message::read(&bytes).unwrap();
        let other = MessageError::OtherKind { found: newer, expected: kind };
        assert_eq!(message.expect(kind), Err(other));
        assert_eq!(message.expect(newer), Ok(message));
        assert_eq!(message.follows(5, 8), Ok(message));
        let table = MessageError::OtherTable { found: 5, expected: 6 };
        assert_eq!(message.follows(6, 8), Err(table));
        let number = MessageError::OutOfSequence { found: 9, expected: 10 };
        assert_eq!(message.follows(5, 9), Err(number));
    }

    /// The length counts as well as the digest: what is sealed with another one is refused.
    #[test]
    fn messages_in_a_row_are_taken_apart() {
        let mut bytes = Vec::new();
        for number in 0..5u8 {
            seal_into(&mut bytes, Kind::new(64, 1), (1, number.into()), |out| {
                out.extend(vec![number; usize::from(number)]);
            });
        }
        let mut rest = &bytes[..];
        for number in 0..5 {
            let first;
            (first, rest) = split_first(rest).unwrap();
            let message = Message::read(first).unwrap();
            assert_eq!((message.number, message.body.len()), (number, number as usize));
            assert!(split_first(&first[..first.len() - 1]).is_err());
        }
        assert!(rest.is_empty() && split_first(rest).is_err());
        let mut longer = bytes[..ENVELOPE].to_vec();
        longer[2] += 1;
        let digest = xxh3_64(&longer[..HEADER]);
        longer[HEADER..].copy_from_slice(&digest.to_le_bytes());
        assert_eq!(Message::read(&longer), Err(MessageError::Length { bytes: ENVELOPE }));
    }
}
