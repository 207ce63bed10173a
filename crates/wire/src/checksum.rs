//! The Internet checksum (RFC 1071).

use crate::flow::FlowKey;

/// A running ones' complement sum. Pieces are added in order; every piece but the
/// last must have an even length, because the sum is over 16-bit words.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checksum(u64);

impl Checksum {
    /// Adds the 16-bit words of `data`, an odd last byte as if a zero followed.
    #[must_use]
    pub fn add_bytes(self, data: &[u8]) -> Self {
        let (words, rest) = data.as_chunks::<2>();
        let mut sum = self.0;
        for word in words {
            sum += u64::from(u16::from_be_bytes(*word));
        }
        if let [last] = rest {
            sum += u64::from(u16::from_be_bytes([*last, 0]));
        }
        Self(sum)
    }

    /// Adds the pseudo-header of TCP and UDP: RFC 9293 section 3.1, RFC 8200 section 8.1.
    ///
    /// `length` is that of the transport header and its payload, in bytes.
    #[must_use]
    pub fn add_pseudo_header(self, flow: &FlowKey, length: u32) -> Self {
        let sum = if flow.is_ipv4() {
            self.add_bytes(&flow.src[12..]).add_bytes(&flow.dst[12..])
        } else {
            self.add_bytes(&flow.src).add_bytes(&flow.dst)
        };
        sum.add_bytes(&length.to_be_bytes()).add_bytes(&[0, flow.protocol.number()])
    }

    /// The value of the checksum field.
    #[must_use]
    pub fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_1071_example() {
        let data = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Checksum::default().add_bytes(&data).finish(), !0xddf2);
    }

    #[test]
    fn odd_byte_counts_as_the_high_byte() {
        assert_eq!(Checksum::default().add_bytes(&[0x12]).finish(), !0x1200);
    }
}
