//! Queries and answers: a number, then names, or locations of two bytes each; big-endian.

use weir_fib::ContentName;

/// Bytes of a name.
pub const NAME: usize = 45;

/// Most names in a datagram, so that it fits into an Ethernet frame.
pub const MOST: usize = 32;

/// Most bytes of a query.
pub const LONGEST: usize = 4 + MOST * NAME;

pub fn put_query(number: u32, names: impl Iterator<Item = ContentName>, out: &mut Vec<u8>) {
    out.clear();
    out.extend(number.to_be_bytes());
    names.for_each(|name| out.extend(name.0));
}

/// Number and names of a query; none if it is not one.
pub fn read_query(bytes: &[u8], names: &mut Vec<ContentName>) -> Option<u32> {
    let (number, rest) = bytes.split_first_chunk::<4>()?;
    let (whole, rest) = rest.as_chunks::<NAME>();
    if !rest.is_empty() || whole.is_empty() || whole.len() > MOST {
        return None;
    }
    names.clear();
    names.extend(whole.iter().map(|&name| weir_hash::Octets(name)));
    Some(u32::from_be_bytes(*number))
}

pub fn put_answer(number: u32, locations: &[u16], out: &mut Vec<u8>) {
    out.clear();
    out.extend(number.to_be_bytes());
    locations.iter().for_each(|location| out.extend(location.to_be_bytes()));
}

/// Number and locations of an answer; none if it is not one.
pub fn read_answer(bytes: &[u8], locations: &mut Vec<u16>) -> Option<u32> {
    let (number, rest) = bytes.split_first_chunk::<4>()?;
    let (whole, rest) = rest.as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    locations.clear();
    locations.extend(whole.iter().map(|&location| u16::from_be_bytes(location)));
    Some(u32::from_be_bytes(*number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_fib::FibKey;

    #[test]
    fn queries_and_answers_come_back_and_others_do_not() {
        let sent: Vec<ContentName> = (0..5).map(|n| ContentName::numbered(0, n)).collect();
        let (mut bytes, mut names, mut found) = (Vec::new(), Vec::new(), Vec::new());
        put_query(7, sent.iter().copied(), &mut bytes);
        assert_eq!(read_query(&bytes, &mut names), Some(7));
        assert_eq!(names, sent);
        for cut in 0..bytes.len() {
            let whole = cut > 4 && (cut - 4) % NAME == 0;
            assert_eq!(read_query(&bytes[..cut], &mut names).is_some(), whole, "{cut}");
        }
        put_answer(9, &[1, 65535], &mut bytes);
        assert_eq!(read_answer(&bytes, &mut found), Some(9));
        assert_eq!(found, [1, 65535]);
        assert_eq!(read_answer(&bytes[..5], &mut found), None);
    }
}
