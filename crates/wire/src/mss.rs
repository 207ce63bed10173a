//! The largest segment that a SYN asks for (RFC 9293 section 3.7.1), made smaller. The twin of
//! `bpf/forward/mss.h`.

use crate::parse::{TcpFlags, be16, parse};
use crate::{FlowKey, Protocol};

const TCP_LENGTH: usize = 20;
const CHECK_AT: usize = 16;
const END: u8 = 0;
const NOP: u8 = 1;
const MSS: [u8; 2] = [2, 4];
const TIMESTAMPS: u8 = 8;
const TIMESTAMPS_LENGTH: usize = 10;

/// Lets the SYN of a frame ask for segments of at most so many bytes, as `most` says of its flow. Others
/// stay as they are, and so do smaller ones, and one that says nothing. The checksum follows (RFC 1624).
/// Returns whether the frame has changed.
pub fn clamp(frame: &mut [u8], most: impl FnOnce(&FlowKey) -> u16) -> bool {
    let Ok(packet) = parse(frame) else { return false };
    let syn = packet.flow.protocol == Protocol::Tcp && packet.tcp_flags.intersects(TcpFlags::SYN);
    let l4 = usize::from(packet.l4_offset);
    let Some(at) = syn.then(|| find(&frame[l4..])).flatten() else { return false };
    let most = most(&packet.flow);
    let segment = &mut frame[l4..];
    let old = be16(segment[at + 2], segment[at + 3]);
    if old <= most {
        return false;
    }
    segment[at + 2..at + 4].copy_from_slice(&most.to_be_bytes());
    // Where the option stands at an odd place, its bytes are in words the other way round.
    let word = |value: u16| u32::from(if at & 1 == 1 { value.swap_bytes() } else { value });
    let check = be16(segment[CHECK_AT], segment[CHECK_AT + 1]);
    let mut sum = u32::from(!check) + (!word(old) & 0xffff) + word(most);
    sum = (sum >> 16) + (sum & 0xffff);
    sum = (sum >> 16) + (sum & 0xffff);
    segment[CHECK_AT..CHECK_AT + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    true
}

/// Where the option stands in a TCP segment, whose header is whole. What is behind damaged options is not
/// looked at.
fn find(segment: &[u8]) -> Option<usize> {
    let until = usize::from(segment[12] >> 4) * 4;
    let options = segment.get(..until)?;
    let mut at = TCP_LENGTH;
    loop {
        let rest = options.get(at..).filter(|rest| rest.len() >= 4)?;
        if rest[..2] == MSS {
            return Some(at);
        }
        at += match (rest[0], usize::from(rest[1])) {
            (END, _) => return None,
            (NOP, _) => 1,
            (TIMESTAMPS, length) if length != TIMESTAMPS_LENGTH => return None,
            (_, length) if length < 2 || length > rest.len() => return None,
            (_, length) => length,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::Checksum;
    use crate::craft::Frame;

    fn syn(ipv6: bool, flags: TcpFlags, options: &[u8]) -> Vec<u8> {
        let ends = if ipv6 {
            ("[2001:db8::1]:5555", "[2001:db8::2]:80")
        } else {
            ("10.0.0.1:5555", "10.0.0.2:80")
        };
        let parse = |text: &str| text.parse().expect("an address");
        let flow = FlowKey::new(parse(ends.0), parse(ends.1), Protocol::Tcp);
        let mut frame = Frame::new(flow).tcp_flags(flags).build();
        let (ip, l4) = if ipv6 { (18, 54) } else { (16, 34) };
        frame.splice(l4 + 20..l4 + 20, options.iter().copied());
        frame[l4 + 12] += (options.len() / 4 * 16) as u8;
        frame[ip + 1] += options.len() as u8;
        frame[l4 + 16..l4 + 18].fill(0);
        let check = sum(&frame, &flow, l4);
        frame[l4 + 16..l4 + 18].copy_from_slice(&check.to_be_bytes());
        frame
    }

    fn sum(frame: &[u8], flow: &FlowKey, l4: usize) -> u16 {
        let segment = &frame[l4..];
        Checksum::default()
            .add_pseudo_header(flow, segment.len() as u32)
            .add_bytes(segment)
            .finish()
    }

    /// At even places and odd ones, whatever else there is; and the checksum holds.
    #[test]
    fn it_is_lowered_and_never_raised() {
        let options: [(&[u8], usize); 4] = [
            (&[2, 4, 5, 180], 2),
            (&[1, 2, 4, 5, 180, 0, 0, 0], 3),
            (&[1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0, 2, 4, 5, 180], 14),
            (&[3, 3, 7, 4, 2, 2, 4, 5, 180, 1, 1, 1], 7),
        ];
        for ipv6 in [false, true] {
            let l4 = if ipv6 { 54 } else { 34 };
            for (options, at) in options {
                for flags in [TcpFlags::SYN, TcpFlags::SYN | TcpFlags::ACK] {
                    let before = syn(ipv6, flags, options);
                    let flow = parse(&before).expect("it is good").flow;
                    for most in [1460, 1459, 1380, 536, 0] {
                        let mut after = before.clone();
                        assert_eq!(clamp(&mut after, |_| most), most < 1460);
                        let value = l4 + 20 + at;
                        assert_eq!(after[value..value + 2], most.min(1460).to_be_bytes());
                        assert_eq!(sum(&after, &flow, l4), 0, "{options:?}");
                        after[value..value + 2].copy_from_slice(&before[value..value + 2]);
                        after[l4 + 16..l4 + 18].copy_from_slice(&before[l4 + 16..l4 + 18]);
                        assert_eq!(after, before, "nothing else has changed");
                    }
                    let mut same = before.clone();
                    assert!(!clamp(&mut same, |_| 9000) && same == before);
                }
            }
        }
    }

    #[test]
    fn others_stay_as_they_are() {
        let good: &[u8] = &[2, 4, 5, 180];
        for (flags, options) in [
            (TcpFlags::ACK, good),
            (TcpFlags::SYN, &[]),
            (TcpFlags::SYN, &[0, 1, 1, 1, 2, 4, 5, 180]),
            (TcpFlags::SYN, &[9, 1, 1, 1, 2, 4, 5, 180]),
            (TcpFlags::SYN, &[9, 9, 1, 1, 2, 4, 5, 180]),
            (TcpFlags::SYN, &[2, 3, 5, 1]),
        ] {
            let before = syn(false, flags, options);
            let mut after = before.clone();
            assert!(!clamp(&mut after, |_| 500), "{options:?}");
            assert_eq!(after, before);
        }
    }
}
