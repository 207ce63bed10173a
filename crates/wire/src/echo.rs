//! Echo requests and what answers them (RFC 792, RFC 4443 section 4.2). The twin of `bpf/echo.h`.

use crate::FIRST_TTL;
use crate::checksum::Checksum;
use crate::parse::{IPV6_LENGTH, be16, icmp_of};

const ICMP_LENGTH: usize = 8;
const IPV4_LENGTH: usize = 20;
const ICMPV6: u8 = 58;
const REQUEST_IPV4: u8 = 8;
const REPLY_IPV4: u8 = 0;
const REQUEST_IPV6: u8 = 128;
const REPLY_IPV6: u8 = 129;

/// Where the IP header of a request stands that may be answered, and whether it is of IPv6: one without
/// options or extension headers, between single hosts.
fn request(frame: &[u8]) -> Option<(usize, bool)> {
    let icmp = icmp_of(frame)?;
    let (l3, ipv6) = (icmp.l3, icmp.ipv6);
    let header = &frame[l3..];
    let plain = if ipv6 { header[6] == ICMPV6 } else { header[0] == 0x45 };
    let kind = if ipv6 { REQUEST_IPV6 } else { REQUEST_IPV4 };
    let message = frame.get(icmp.start..icmp.end)?.first_chunk::<ICMP_LENGTH>()?;
    let hosts = if ipv6 {
        header[8..16] != [0; 8] && header[8] != 0xff && header[8..24] != header[24..40]
    } else {
        !matches!(header[12], 0 | 127 | 224..) && header[12..16] != header[16..20]
    };
    let single = (frame[0] | frame[6]) & 1 == 0;
    (plain && hosts && single && message[..2] == [kind, 0]).then_some((l3, ipv6))
}

/// Whether a frame is an echo request that may be answered.
pub fn is_request(frame: &[u8]) -> bool {
    request(frame).is_some()
}

/// Makes the frame of a request the reply: what it carries and its VLAN tags stay, addresses change
/// places, the TTL is a new one. Other frames stay as they are.
pub fn reply(frame: &mut [u8]) {
    let Some((l3, ipv6)) = request(frame) else { return };
    let (destination, source) = frame[..12].split_at_mut(6);
    destination.swap_with_slice(source);
    let header = if ipv6 {
        let (src, dst) = frame[l3 + 8..l3 + 40].split_at_mut(16);
        src.swap_with_slice(dst);
        frame[l3 + 7] = FIRST_TTL;
        IPV6_LENGTH
    } else {
        let (src, dst) = frame[l3 + 12..l3 + 20].split_at_mut(4);
        src.swap_with_slice(dst);
        frame[l3 + 8] = FIRST_TTL;
        frame[l3 + 10..l3 + 12].fill(0);
        let sum = Checksum::default().add_bytes(&frame[l3..l3 + IPV4_LENGTH]).finish();
        frame[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
        IPV4_LENGTH
    };
    let message = &mut frame[l3 + header..];
    let kind = if ipv6 { REPLY_IPV6 } else { REPLY_IPV4 };
    // RFC 1624, equation 3.
    let (old, new) = (u16::from(message[0]) << 8, u16::from(kind) << 8);
    let mut sum = u32::from(!be16(message[2], message[3])) + u32::from(!old) + u32::from(new);
    sum = (sum >> 16) + (sum & 0xffff);
    sum = (sum >> 16) + (sum & 0xffff);
    message[0] = kind;
    // Of what is all zeros the sum is 0, and its complement; here they cannot be told apart, and the
    // complement is right for both.
    let check = if sum == 0xffff { 0xffff } else { !(sum as u16) };
    message[2..4].copy_from_slice(&check.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::craft;
    use crate::map_address;

    fn ends(ipv6: bool) -> ([u8; 16], [u8; 16]) {
        let (src, dst) = if ipv6 { ("fd00::1", "fd00::2") } else { ("10.0.0.1", "10.0.0.2") };
        let mapped = |text: &str| map_address(text.parse().expect("an address"));
        (mapped(src), mapped(dst))
    }

    #[test]
    fn a_reply_has_what_the_request_had() {
        for (ipv6, request, reply) in [(false, 8, 0), (true, 128, 129)] {
            for body in [&b""[..], b"what it carries", &[0xff; 300]] {
                let (src, dst) = ends(ipv6);
                let sent = craft::icmp((src, dst), [request, 0], 0x1234_0001, body);
                let mut wanted = craft::icmp((dst, src), [reply, 0], 0x1234_0001, body);
                let macs = [&sent[6..12], &sent[..6]].concat();
                wanted[..12].copy_from_slice(&macs);
                let mut frame = sent.clone();
                super::reply(&mut frame);
                assert_eq!(frame, wanted, "{body:?}");
            }
        }
    }

    #[test]
    fn a_reply_of_nothing_but_zeros_has_a_checksum() {
        let (src, dst) = ends(false);
        let mut frame = craft::icmp((src, dst), [8, 0], 0, &[0; 6]);
        super::reply(&mut frame);
        assert_eq!(frame, {
            let mut wanted = craft::icmp((dst, src), [0, 0], 0, &[0; 6]);
            wanted[..12].copy_from_slice(&frame[..12]);
            wanted
        });
        assert_eq!(frame[36..38], [0xff; 2], "no sum of zeros");
    }

    #[test]
    fn others_stay_as_they_are() {
        let (src, dst) = ends(false);
        let good = craft::icmp((src, dst), [8, 0], 1, b"");
        assert!(is_request(&good));
        for (at, byte) in
            [(0, 1), (6, 1), (14, 0x46), (26, 127), (26, 239), (29, 2), (34, 0), (35, 1)]
        {
            let mut frame = good.clone();
            frame[at] = byte;
            let before = frame.clone();
            reply(&mut frame);
            assert_eq!(frame, before, "{at}");
        }
    }
}
