//! ICMP errors that tell a packet's sender why it goes nowhere, in the packet's place.
//!
//! They come from the address that the packet was for, and go back where it came from. They quote what
//! the RFCs ask for: of IPv4 so much that the message has 576 bytes (RFC 1812 section 4.3.2.3), of IPv6
//! so much that it has 1,280 (RFC 4443 section 2.4), in whole words of four bytes. The twin of
//! `bpf/forward/tell.h`.

use crate::FIRST_TTL;
use crate::checksum::Checksum;
use crate::fragment::{Fragment, FragmentKey, fragment};
use crate::parse::{IPV6_LENGTH, be16, parse};

/// What addresses of IPv4 begin with.
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const ICMP_LENGTH: usize = 8;
const IPV4_LENGTH: usize = 20;
const MOST_IPV4: usize = 576 - IPV4_LENGTH - ICMP_LENGTH;
const MOST_IPV6: usize = 1280 - IPV6_LENGTH - ICMP_LENGTH;
/// Nobody need send smaller packets: RFC 791, RFC 8200.
const LEAST_MTU_IPV4: u32 = 68;
const LEAST_MTU_IPV6: u32 = 1280;
/// IP precedence, of what keeps networks going (RFC 1812 section 4.3.2.5).
const INTERNETWORK_CONTROL: u8 = 0xc0;

/// What is wrong with the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// It is larger than what the way takes, which is so many bytes: RFC 1191, RFC 8201.
    TooBig(u32),
    /// Its TTL or hop limit is used up.
    TtlExceeded,
}

/// A message that may be sent in the place of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IcmpError {
    cause: Cause,
    /// Where the packet begins in the frame.
    l3: usize,
    /// So many bytes of it are quoted.
    quote: usize,
    ipv4: bool,
}

/// Where a fragment of IPv6 begins, its length, and its ends.
fn of_ipv6(fragment: Fragment) -> Option<(u16, u32, [u8; 16], [u8; 16])> {
    let Fragment { key: FragmentKey { src, dst, .. }, l3_offset, ip_length, protocol, .. } =
        fragment;
    let told = !src.starts_with(&MAPPED) && protocol != ICMPV6;
    told.then_some((l3_offset, ip_length, src, dst))
}

impl IcmpError {
    /// The message about a frame. None if its sender is not to be told (RFC 1812 section 4.3.2.7, RFC
    /// 4443 section 2.4): if the packet has no ports, and so is no ICMP error; if it is a fragment of IPv4 (one of
    /// IPv6 nobody but its sender makes smaller);
    /// if it was for a group or came from no single host; if it is too big and may be made into
    /// fragments, or its sender need not send smaller ones.
    pub fn about(frame: &[u8], cause: Cause) -> Option<Self> {
        let (l3, length, src, dst) = match parse(frame) {
            Ok(packet) => (packet.l3_offset, packet.ip_length, packet.flow.src, packet.flow.dst),
            Err(_) => of_ipv6(fragment(frame)?)?,
        };
        let (l3, header) = (usize::from(l3), frame.get(l3.into()..)?);
        if (frame[0] | frame[6]) & 1 != 0 || src == dst {
            return None;
        }
        let ipv4 = header[0] >> 4 == 4;
        let told = if ipv4 {
            let may_cut = header[6] & 0x40 == 0;
            let host = !matches!(header[12], 0 | 127 | 224..);
            host && !matches!(cause, Cause::TooBig(mtu) if may_cut || mtu < LEAST_MTU_IPV4)
        } else {
            let needless = length <= LEAST_MTU_IPV6;
            let host = header[8..16] != [0; 8] && header[8] != 0xff;
            host && !matches!(cause, Cause::TooBig(_) if needless)
        };
        let most = if ipv4 { MOST_IPV4 } else { MOST_IPV6 };
        let quote = (length as usize).min(most) & !3;
        told.then_some(Self { cause, l3, quote, ipv4 })
    }

    /// Makes a frame the message about it. VLAN tags stay; the MAC addresses change places.
    pub fn put(&self, frame: &mut Vec<u8>) {
        let Self { l3, quote, .. } = *self;
        let packet = &frame[l3..l3 + quote];
        let mut message = [&self.head()[..], packet].concat();
        let header = if self.ipv4 {
            let sum = Checksum::default().add_bytes(&message).finish();
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            self.ipv4(packet)
        } else {
            let header = self.ipv6(packet);
            let length = be16(header[4], header[5]).into();
            let sum =
                Checksum::default().add_bytes(&header[8..]).add_bytes(&u32::to_be_bytes(length));
            let sum = sum.add_bytes(&[0, ICMPV6]).add_bytes(&message).finish();
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            header
        };
        let macs = [&frame[6..12], &frame[..6]].concat();
        frame[..12].copy_from_slice(&macs);
        frame.truncate(l3);
        frame.extend(header);
        frame.extend(message);
    }

    /// The message's own header, without its checksum.
    fn head(&self) -> [u8; ICMP_LENGTH] {
        let (kind, word) = match (self.cause, self.ipv4) {
            (Cause::TooBig(mtu), true) => ([3, 4], mtu),
            (Cause::TooBig(mtu), false) => ([2, 0], mtu.max(LEAST_MTU_IPV6)),
            (Cause::TtlExceeded, true) => ([11, 0], 0),
            (Cause::TtlExceeded, false) => ([3, 0], 0),
        };
        let mut head = [0; ICMP_LENGTH];
        head[..2].copy_from_slice(&kind);
        head[4..].copy_from_slice(&word.to_be_bytes());
        head
    }

    fn ipv4(&self, packet: &[u8]) -> Vec<u8> {
        let length = (IPV4_LENGTH + ICMP_LENGTH + self.quote) as u16;
        let [high, low] = length.to_be_bytes();
        let start = [0x45, INTERNETWORK_CONTROL, high, low, 0, 0, 0x40, 0, FIRST_TTL, ICMP, 0, 0];
        let mut header = [&start[..], &packet[16..20], &packet[12..16]].concat();
        let sum = Checksum::default().add_bytes(&header).finish();
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header
    }

    fn ipv6(&self, packet: &[u8]) -> Vec<u8> {
        let [high, low] = ((ICMP_LENGTH + self.quote) as u16).to_be_bytes();
        let start = [0x60, 0, 0, 0, high, low, ICMPV6, FIRST_TTL];
        [&start[..], &packet[24..40], &packet[8..24]].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::craft::Frame;
    use crate::{FlowKey, Protocol};

    fn frame(ipv6: bool, payload: u16) -> Vec<u8> {
        let ends = if ipv6 {
            ("[2001:db8::1]:5555", "[2001:db8::2]:80")
        } else {
            ("10.0.0.1:5555", "10.0.0.2:80")
        };
        let parse = |text: &str| text.parse().expect("an address");
        let flow = FlowKey::new(parse(ends.0), parse(ends.1), Protocol::Tcp);
        let mut frame = Frame::new(flow).payload(payload).vlan(7).build();
        if !ipv6 {
            frame[24] |= 0x40;
        }
        frame
    }

    /// RFC 1191 section 4: the next hop's MTU stands in the low half of the second word.
    #[test]
    fn a_packet_too_big_is_answered_as_rfc_1191_says() {
        let before = frame(false, 1400);
        let mut after = before.clone();
        IcmpError::about(&before, Cause::TooBig(1380)).expect("it is told").put(&mut after);
        assert_eq!(after.len(), 18 + 576);
        assert_eq!((&after[..6], &after[6..12]), (&before[6..12], &before[..6]));
        assert_eq!(after[12..18], before[12..18], "the tag stays");
        assert_eq!(after[18..28], [0x45, 0xc0, 2, 64, 0, 0, 0x40, 0, 64, 1]);
        assert_eq!(after[30..38], [10, 0, 0, 2, 10, 0, 0, 1]);
        assert_eq!((&after[38..40], &after[42..46]), (&[3, 4][..], &[0, 0, 5, 100][..]));
        assert_eq!(after[46..], before[18..18 + 548]);
        assert_eq!(Checksum::default().add_bytes(&after[18..38]).finish(), 0);
        assert_eq!(Checksum::default().add_bytes(&after[38..]).finish(), 0);
    }

    /// RFC 4443 section 3.2.
    #[test]
    fn a_packet_too_big_is_answered_as_rfc_4443_says() {
        let before = frame(true, 1400);
        for (mtu, told) in [(1380, 1380u32), (1000, 1280)] {
            let mut after = before.clone();
            IcmpError::about(&before, Cause::TooBig(mtu)).expect("it is told").put(&mut after);
            assert_eq!(after.len(), 18 + 1280);
            assert_eq!(after[18..26], [0x60, 0, 0, 0, 4, 216, 58, 64]);
            assert_eq!((&after[26..42], &after[42..58]), (&before[42..58], &before[26..42]));
            assert_eq!((&after[58..60], &after[62..66]), (&[2, 0][..], &told.to_be_bytes()[..]));
            assert_eq!(after[66..], before[18..18 + 1232]);
            let sum = Checksum::default().add_bytes(&after[26..58]).add_bytes(&[4, 216, 0, 58]);
            assert_eq!(sum.add_bytes(&after[58..]).finish(), 0);
        }
        let small = frame(true, 1220);
        assert_eq!(IcmpError::about(&small, Cause::TooBig(1000)), None, "it has 1280 bytes");
    }

    #[test]
    fn a_used_up_ttl_is_answered() {
        for (ipv6, kind) in [(false, 11), (true, 3)] {
            let before = frame(ipv6, 3);
            let mut after = before.clone();
            IcmpError::about(&before, Cause::TtlExceeded).expect("it is told").put(&mut after);
            let (ip, packet) = if ipv6 { (40, 60) } else { (20, 40) };
            assert_eq!(after[18 + ip..18 + ip + 2], [kind, 0]);
            assert_eq!(after[18 + ip + 8..], before[18..18 + packet], "whole words of what came");
        }
    }

    /// RFC 1812 section 4.3.2.7: what no message may be sent about.
    #[test]
    fn nobody_is_told_who_must_not_be() {
        let good = frame(false, 1400);
        let cause = Cause::TooBig(1380);
        assert!(IcmpError::about(&good, cause).is_some());
        let changed: [(&str, &[(usize, u8)]); 8] = [
            ("may be made into fragments", &[(24, 0)]),
            ("a later fragment", &[(25, 1)]),
            ("to a group of hosts", &[(0, 1)]),
            ("from a group of hosts", &[(6, 1)]),
            ("from a multicast address", &[(30, 224)]),
            ("from this host", &[(30, 127)]),
            ("from nowhere", &[(30, 0)]),
            ("from itself", &[(33, 2)]),
        ];
        for (what, bytes) in changed {
            let mut frame = good.clone();
            bytes.iter().for_each(|(at, byte)| frame[*at] = *byte);
            assert_eq!(IcmpError::about(&frame, cause), None, "{what}");
        }
        let mut icmp = good.clone();
        icmp[27] = ICMP;
        assert_eq!(IcmpError::about(&icmp, cause), None);
        assert_eq!(IcmpError::about(&good, Cause::TooBig(67)), None);
        let good = frame(true, 1400);
        for (at, byte) in [(26, 0xff), (44, 0)] {
            let mut frame = good.clone();
            frame[at] = byte;
            assert_eq!(IcmpError::about(&frame, cause).is_none(), at == 26);
        }
    }
}
