//! The TCP timestamp option: RFC 7323 section 3, found and rewritten in place.
//!
//! The field that carries a [Cheetah](../../../docs/cheetah.md) cookie. Nearly every packet has
//! its options in one of five layouts (Cheetah, Table 1), and each of them is recognised by one
//! comparison of 32 or 64 bits, or two. Every other packet goes through a parser that looks at 40
//! bytes at most. Both give the same answer; the layouts are only faster.
//!
//! ```text
//! NOP NOP TS                   |01 01 08 0a|                                 32 bits
//! MSS SACK-permitted TS        |02 04 .. .. 04 02 08 0a|                     64 bits
//! MSS NOP NOP TS               |02 04 .. .. 01 01 08 0a|                     64 bits
//! MSS NOP WS NOP NOP TS        |02 04 .. .. 01 03 03 ..|01 01 08 0a|         64 and 32
//! MSS NOP WS SACK-permitted TS |02 04 .. .. 01 03 03 ..|04 02 08 0a|         64 and 32
//! ```
//!
//! What is refused is what would leave it open where the timestamp is: a length that ends outside
//! of the options, or is less than 2, or is not 10 for a timestamp. The length of any other option
//! is used to step over it and not otherwise judged, because the end hosts' kernels do the same: a
//! balancer that found no timestamp where the backend finds one would lose the connection.
//! If there are several timestamps the first one counts.

/// The most bytes of options that a TCP header can have: 15 words of header less the fixed part.
pub const MAX_OPTION_BYTES: usize = 40;

const FIXED_HEADER: usize = 20;
const CHECKSUM: usize = 16;
const END: u8 = 0;
const NOP: u8 = 1;
const TIMESTAMP: u8 = 8;
const TIMESTAMP_LENGTH: usize = 10;

/// NOP, NOP, timestamp, 10.
const NOP_NOP_TS: u32 = 0x0101_080a;
/// SACK permitted, 2, timestamp, 10.
const SACK_TS: u32 = 0x0402_080a;
/// MSS, 4, any value, then the four bytes named above.
const MSS_VALUE: u64 = 0xffff_0000_ffff_ffff;
const MSS_SACK_TS: u64 = 0x0204_0000_0000_0000 | SACK_TS as u64;
const MSS_NOP_NOP_TS: u64 = 0x0204_0000_0000_0000 | NOP_NOP_TS as u64;
/// MSS, 4, any value, NOP, window scale, 3, any shift.
const MSS_WS_VALUES: u64 = 0xffff_0000_ffff_ff00;
const MSS_NOP_WS: u64 = 0x0204_0000_0103_0300;

/// Why the options of a TCP header cannot be trusted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum OptionError {
    /// The bytes end inside the header that they announce, or the data offset is less than 5.
    #[error("the TCP data offset is less than the header or more than the segment")]
    BadOffset,
    /// The options end between an option's kind and its length.
    #[error("TCP option {kind} has no length byte")]
    NoLength {
        /// Kind of the option.
        kind: u8,
    },
    /// The length does not even cover kind and length.
    #[error("TCP option {kind} has length {length}, less than 2")]
    LengthTooSmall {
        /// Kind of the option, its first byte.
        kind: u8,
        /// The option's length byte, 0 or 1.
        length: u8,
    },
    /// The option goes on behind the end of the options.
    #[error("TCP option {kind} has length {length}, more than is left of the header")]
    LengthPastEnd {
        /// Kind of the option, its first byte.
        kind: u8,
        /// The option's length byte, which leads past the header.
        length: u8,
    },
    /// A timestamp option whose length is not 10.
    #[error("the TCP timestamp option has length {length}, not 10")]
    TimestampLength {
        /// The option's length byte, not 10.
        length: u8,
    },
}

/// By which layout of the options the timestamp was found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Layout {
    /// NOP, NOP, timestamp: 99.95 % of all packets that are no SYN.
    NopNop,
    /// MSS, SACK permitted, timestamp: what Linux sends in a SYN.
    MssSack,
    /// MSS, NOP, NOP, timestamp.
    MssNopNop,
    /// MSS, NOP, window scale, NOP, NOP, timestamp.
    MssScaleNopNop,
    /// MSS, NOP, window scale, SACK permitted, timestamp.
    MssScaleSack,
    /// None of the five: the options were read one by one.
    Parsed,
}

/// A timestamp option: its two values and where it stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Timestamps {
    /// TSval, the sender's clock.
    pub value: u32,
    /// TSecr, the newest TSval that the sender has received. Meaningless unless ACK is set.
    pub echo: u32,
    /// Where the option's kind byte is, from the start of the TCP header: 20 to 50.
    pub offset: u8,
    /// How it was found.
    pub layout: Layout,
}

/// Finds the timestamp option of a TCP segment, which starts at the TCP header.
///
/// `Ok(None)`: there is none.
///
/// # Errors
/// [`OptionError`] if the options are malformed before a timestamp is found.
pub fn find(segment: &[u8]) -> Result<Option<Timestamps>, OptionError> {
    let options = options(segment)?;
    match find_by_layout(options) {
        Some(found) => Ok(Some(found)),
        None => find_by_parsing(options),
    }
}

/// The options of a segment: 0 to 40 bytes.
fn options(segment: &[u8]) -> Result<&[u8], OptionError> {
    let offset = segment.get(12).ok_or(OptionError::BadOffset)?;
    // A data offset below 5 makes the range run backwards, and `get` refuses that.
    segment.get(FIXED_HEADER..usize::from(offset >> 4) * 4).ok_or(OptionError::BadOffset)
}

/// The five layouts that nearly all packets have.
fn find_by_layout(options: &[u8]) -> Option<Timestamps> {
    let word = |at: usize| Some(u32::from_be_bytes(*options.get(at..)?.first_chunk()?));
    if word(0)? == NOP_NOP_TS {
        return timestamps(options, 2, Layout::NopNop);
    }
    let start = u64::from_be_bytes(*options.first_chunk()?);
    let mss = start & MSS_VALUE;
    if mss == MSS_SACK_TS {
        return timestamps(options, 6, Layout::MssSack);
    }
    if mss == MSS_NOP_NOP_TS {
        return timestamps(options, 6, Layout::MssNopNop);
    }
    if start & MSS_WS_VALUES != MSS_NOP_WS {
        return None;
    }
    match word(8)? {
        NOP_NOP_TS => timestamps(options, 10, Layout::MssScaleNopNop),
        SACK_TS => timestamps(options, 10, Layout::MssScaleSack),
        _ => None,
    }
}

/// Option by option. Each turn moves at least one byte on, so there are at most 40.
fn find_by_parsing(options: &[u8]) -> Result<Option<Timestamps>, OptionError> {
    let mut at = 0;
    while let Some(&kind) = options.get(at) {
        match kind {
            END => return Ok(None),
            NOP => {
                at += 1;
                continue;
            }
            _ => {}
        }
        let length = *options.get(at + 1).ok_or(OptionError::NoLength { kind })?;
        if length < 2 {
            return Err(OptionError::LengthTooSmall { kind, length });
        }
        if at + usize::from(length) > options.len() {
            return Err(OptionError::LengthPastEnd { kind, length });
        }
        if kind == TIMESTAMP {
            if usize::from(length) != TIMESTAMP_LENGTH {
                return Err(OptionError::TimestampLength { length });
            }
            return Ok(timestamps(options, at, Layout::Parsed));
        }
        at += usize::from(length);
    }
    Ok(None)
}

/// The option whose kind byte is at `at`, if all ten bytes of it are there.
fn timestamps(options: &[u8], at: usize, layout: Layout) -> Option<Timestamps> {
    let &[_, _, v0, v1, v2, v3, e0, e1, e2, e3] =
        options.get(at..)?.first_chunk::<TIMESTAMP_LENGTH>()?;
    Some(Timestamps {
        value: u32::from_be_bytes([v0, v1, v2, v3]),
        echo: u32::from_be_bytes([e0, e1, e2, e3]),
        offset: (FIXED_HEADER + at) as u8, // at most 20 + 30
        layout,
    })
}

/// A segment whose timestamp can be rewritten. The checksum follows every change.
#[derive(Debug)]
pub struct TimestampsMut<'a> {
    segment: &'a mut [u8],
    found: Timestamps,
}

impl<'a> TimestampsMut<'a> {
    /// Finds the timestamp option, as [`find`] does.
    ///
    /// # Errors
    /// Those of [`find`].
    pub fn find(segment: &'a mut [u8]) -> Result<Option<Self>, OptionError> {
        Ok(find(segment)?.map(|found| Self { segment, found }))
    }

    /// The option as it stands in the segment now.
    pub fn get(&self) -> Timestamps {
        self.found
    }

    /// Sets TSval, the sender's clock.
    pub fn set_value(&mut self, value: u32) {
        self.replace(2, self.found.value, value);
        self.found.value = value;
    }

    /// Sets TSecr, the clock value that the sender returns.
    pub fn set_echo(&mut self, echo: u32) {
        self.replace(6, self.found.echo, echo);
        self.found.echo = echo;
    }

    /// Replaces the four bytes at `at` in the option. All indices were checked by [`find`].
    fn replace(&mut self, at: usize, old: u32, new: u32) {
        let at = usize::from(self.found.offset) + at;
        let checksum = u16::from_be_bytes([self.segment[CHECKSUM], self.segment[CHECKSUM + 1]]);
        // The sum is over 16-bit words: a field at an odd offset has its bytes swapped in it
        // (RFC 1071 section 2 (B)).
        let words = |value: u32| if at.is_multiple_of(2) { value } else { value.rotate_left(8) };
        let checksum = update_checksum(checksum, words(old), words(new));
        self.segment[CHECKSUM..CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
        self.segment[at..at + 4].copy_from_slice(&new.to_be_bytes());
    }
}

/// The checksum field after four bytes on a 16-bit boundary have changed: RFC 1624, equation 3.
///
/// It is what a sum over everything would give, bit for bit, wherever the sum is not zero; with a
/// pseudo-header in it, it never is.
#[must_use]
pub fn update_checksum(checksum: u16, old: u32, new: u32) -> u16 {
    let halves = |value: u32| (value >> 16) + (value & 0xffff);
    let mut sum = u32::from(!checksum) + halves(!old) + halves(new);
    sum = (sum >> 16) + (sum & 0xffff);
    sum = (sum >> 16) + (sum & 0xffff);
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A TCP header with these options, which are padded with zeros (end of options).
    fn header(options: &[u8]) -> Vec<u8> {
        let mut header = vec![0; FIXED_HEADER];
        header.extend(options);
        header.resize(header.len().next_multiple_of(4), END);
        header[12] = (header.len() as u8 / 4) << 4;
        header
    }

    const TS: [u8; 10] = [8, 10, 1, 2, 3, 4, 5, 6, 7, 8];
    const MSS: [u8; 4] = [2, 4, 5, 180];
    const WS: [u8; 3] = [3, 3, 7];
    const SACK: [u8; 2] = [4, 2];
    const NO: [u8; 1] = [1];

    fn found(offset: u8, layout: Layout) -> Timestamps {
        Timestamps { value: 0x0102_0304, echo: 0x0506_0708, offset, layout }
    }

    #[test]
    fn each_row_of_table_1_takes_its_fast_path() {
        use Layout::*;
        let sack_block: &[u8] = &[1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2];
        let rows: [(&[&[u8]], u8, Layout); 9] = [
            (&[&MSS, &SACK, &TS], 26, MssSack),
            (&[&MSS, &SACK, &TS, &NO, &WS], 26, MssSack),
            (&[&MSS, &NO, &WS, &NO, &NO, &TS], 30, MssScaleNopNop),
            (&[&MSS, &NO, &WS, &NO, &NO, &TS, &SACK, &[0]], 30, MssScaleNopNop),
            (&[&MSS, &NO, &WS, &SACK, &TS], 30, MssScaleSack),
            (&[&MSS, &NO, &NO, &TS], 26, MssNopNop),
            (&[&MSS, &NO, &NO, &TS, &SACK, &[0]], 26, MssNopNop),
            (&[&NO, &NO, &TS], 22, NopNop),
            (&[&NO, &NO, &TS, sack_block], 22, NopNop),
        ];
        for (row, offset, layout) in rows {
            let segment = header(&row.concat());
            assert_eq!(find(&segment), Ok(Some(found(offset, layout))), "{row:?}");
            // The parser behind finds the same at the same place.
            let parsed = find_by_parsing(options(&segment).unwrap());
            assert_eq!(parsed, Ok(Some(found(offset, Parsed))), "{row:?}");
        }
    }

    #[test]
    fn other_orders_are_parsed() {
        for (before, offset) in [
            (&[][..], 20),
            (&[1], 21),
            (&[3, 3, 7], 23),
            (&[254, 4, 0, 0, 1], 25), // an experiment of somebody's
            (&[5, 10, 0, 0, 0, 1, 0, 0, 0, 2], 30),
            (&[2, 3, 0], 23), // an MSS of three bytes is stepped over
            (&[2, 4, 5, 180, 1, 3, 3, 7, 1, 1, 1], 31),
            (&[1; 30], 50),
        ] {
            let segment = header(&[before, &TS].concat());
            assert_eq!(find(&segment), Ok(Some(found(offset, Layout::Parsed))), "{before:?}");
        }
    }

    #[test]
    fn no_timestamp_is_no_error() {
        for options in [&[][..], &[0], &[2, 4, 5, 180], &[1; 40], &[0, 8, 10, 1]] {
            assert_eq!(find(&header(options)), Ok(None), "{options:?}");
        }
    }

    #[test]
    fn every_refusal_has_its_name() {
        use OptionError::*;
        let cases: [(&[u8], OptionError); 9] = [
            (&[1, 1, 1, 8], NoLength { kind: 8 }),
            (&[1, 1, 1, 77], NoLength { kind: 77 }),
            (&[8, 0, 0, 0], LengthTooSmall { kind: 8, length: 0 }),
            (&[2, 1, 0, 0], LengthTooSmall { kind: 2, length: 1 }),
            (&[1, 1, 8, 10], LengthPastEnd { kind: 8, length: 10 }),
            (&[1, 1, 8, 10, 0, 0, 0, 0], LengthPastEnd { kind: 8, length: 10 }),
            (&[5, 255, 0, 0], LengthPastEnd { kind: 5, length: 255 }),
            (&[8, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], TimestampLength { length: 9 }),
            (&[8, 2, 0, 0], TimestampLength { length: 2 }),
        ];
        for (options, error) in cases {
            assert_eq!(find(&header(options)), Err(error), "{options:?}");
        }
        for offset in [0, 4, 15] {
            let mut segment = header(&TS);
            segment[12] = offset << 4;
            assert_eq!(find(&segment), Err(BadOffset), "offset {offset}");
        }
        assert_eq!(find(&[0; 12]), Err(BadOffset));
    }

    /// The example of RFC 1624 section 4, where equation 2 of RFC 1141 gives -0.
    #[test]
    fn rfc_1624_example() {
        assert_eq!(update_checksum(0xdd2f, 0x5555, 0x3285), 0x0000);
    }
}
