//! Resets of TCP connections whose backend is gone, in the place of their packets.
//!
//! A reset is what a host without the connection answers (RFC 9293 section 3.10.7.1): its sequence number is
//! what the packet acknowledges, so that the client takes it for its peer's (RFC 5961 section 3.2), and
//! nothing has to be known of the connection. A packet that acknowledges nothing is acknowledged itself. No
//! reset is answered. The reset has no options, so it is never larger than what came. The twin of
//! `bpf/forward/reset.h`.

use crate::FIRST_TTL;
use crate::checksum::Checksum;
use crate::parse::{IPV6_LENGTH, parse};

const TCP: u8 = 6;
const TCP_LENGTH: usize = 20;
const IPV4_LENGTH: usize = 20;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// A reset that may be sent in the place of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reset {
    /// Where the packet begins in the frame.
    l3: usize,
    ipv4: bool,
    /// The TCP header, without its checksum.
    tcp: [u8; TCP_LENGTH],
}

impl Reset {
    /// The reset that answers a frame. None if nothing does: if the packet is no whole one of TCP, is a reset
    /// itself, or has extension headers; if it was for a group or came from no single host.
    pub fn about(frame: &[u8]) -> Option<Self> {
        let packet = parse(frame).ok()?;
        let (l3, flow) = (usize::from(packet.l3_offset), packet.flow);
        let header = &frame[l3..];
        if (frame[0] | frame[6]) & 1 != 0 || flow.src == flow.dst {
            return None;
        }
        let ipv4 = flow.is_ipv4();
        let (protocol, before, host) = if ipv4 {
            let before = usize::from(header[0] & 0xf) * 4;
            (header[9], before, !matches!(header[12], 0 | 127 | 224..))
        } else {
            (header[6], IPV6_LENGTH, header[8..16] != [0; 8] && header[8] != 0xff)
        };
        let segment = &header[before..packet.ip_length as usize];
        if protocol != TCP || !host || segment[13] & RST != 0 {
            return None;
        }
        let mut tcp = [0; TCP_LENGTH];
        tcp[..2].copy_from_slice(&segment[2..4]);
        tcp[2..4].copy_from_slice(&segment[..2]);
        tcp[12] = (TCP_LENGTH as u8 / 4) << 4;
        let flags = segment[13];
        if flags & ACK != 0 {
            tcp[4..8].copy_from_slice(&segment[8..12]);
            tcp[13] = RST;
        } else {
            let data = segment.len() - usize::from(segment[12] >> 4) * 4;
            let length = data as u32 + u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
            let first = segment[4..8].first_chunk().map_or(0, |word| u32::from_be_bytes(*word));
            tcp[8..12].copy_from_slice(&first.wrapping_add(length).to_be_bytes());
            tcp[13] = RST | ACK;
        }
        Some(Self { l3, ipv4, tcp })
    }

    /// Makes a frame the reset that answers it. VLAN tags stay; the MAC addresses change places.
    pub fn put(&self, frame: &mut Vec<u8>) {
        let Self { l3, ipv4, mut tcp } = *self;
        let header = if ipv4 { self.ipv4(&frame[l3..]) } else { self.ipv6(&frame[l3..]) };
        let ends = if ipv4 { &header[12..] } else { &header[8..] };
        let sum = Checksum::default().add_bytes(ends).add_bytes(&[0, TCP]);
        let sum = sum.add_bytes(&(TCP_LENGTH as u16).to_be_bytes()).add_bytes(&tcp).finish();
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        let macs = [&frame[6..12], &frame[..6]].concat();
        frame[..12].copy_from_slice(&macs);
        frame.truncate(l3);
        frame.extend(header);
        frame.extend(tcp);
    }

    fn ipv4(&self, packet: &[u8]) -> Vec<u8> {
        let length = (IPV4_LENGTH + TCP_LENGTH) as u8;
        let start = [0x45, 0, 0, length, 0, 0, 0x40, 0, FIRST_TTL, TCP, 0, 0];
        let mut header = [&start[..], &packet[16..20], &packet[12..16]].concat();
        let sum = Checksum::default().add_bytes(&header).finish();
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header
    }

    fn ipv6(&self, packet: &[u8]) -> Vec<u8> {
        let start = [0x60, 0, 0, 0, 0, TCP_LENGTH as u8, TCP, FIRST_TTL];
        [&start[..], &packet[24..40], &packet[8..24]].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::craft::Frame;
    use crate::{FlowKey, Protocol};

    fn flow(ipv6: bool, protocol: Protocol) -> FlowKey {
        let ends = if ipv6 {
            ("[2001:db8::1]:5555", "[2001:db8::2]:80")
        } else {
            ("10.0.0.1:5555", "10.0.0.2:80")
        };
        let parse = |text: &str| text.parse().expect("an address");
        FlowKey::new(parse(ends.0), parse(ends.1), protocol)
    }

    fn word(bytes: &[u8]) -> u32 {
        u32::from_be_bytes(*bytes.first_chunk().unwrap())
    }

    /// RFC 9293 section 3.10.7.1: "If the incoming segment has an ACK field, the reset takes its sequence
    /// number from the ACK field of the segment; otherwise [...] the ACK field is set to the sum of the
    /// sequence number and segment length".
    #[test]
    fn it_answers_as_a_host_without_the_connection() {
        for ipv6 in [false, true] {
            for (flags, payload) in [(ACK, 0), (ACK | 8, 100), (SYN, 0), (SYN, 7), (FIN, 3), (0, 9)]
            {
                let made = Frame::new(flow(ipv6, Protocol::Tcp)).payload(payload).vlan(7);
                let mut frame = made.build();
                let at = 18 + if ipv6 { 40 } else { 20 };
                frame[at + 4..at + 8].copy_from_slice(&0xffff_fffd_u32.to_be_bytes());
                frame[at + 8..at + 12].copy_from_slice(&77_u32.to_be_bytes());
                frame[at + 13] = flags;
                let before = frame.clone();
                let reset = Reset::about(&frame).expect("it is answered");
                reset.put(&mut frame);
                assert!(frame.len() <= before.len(), "it is not larger");
                assert_eq!((&frame[..6], &frame[6..12]), (&before[6..12], &before[..6]));
                assert_eq!(frame[12..18], before[12..18], "tags stay");
                let packet = parse(&frame).expect("it is a packet");
                let back = flow(ipv6, Protocol::Tcp);
                assert_eq!((packet.flow.src, packet.flow.dst), (back.dst, back.src));
                assert_eq!(
                    (packet.flow.src_port, packet.flow.dst_port),
                    (back.dst_port, back.src_port)
                );
                let tcp = &frame[at..];
                if flags & ACK != 0 {
                    assert_eq!((tcp[13], word(&tcp[4..])), (RST, 77));
                } else {
                    let length = u32::from(payload)
                        + u32::from(flags & SYN != 0)
                        + u32::from(flags & FIN != 0);
                    let acknowledged = 0xffff_fffd_u32.wrapping_add(length);
                    assert_eq!((tcp[13], word(&tcp[8..])), (RST | ACK, acknowledged));
                }
                let ends = &frame[18 + if ipv6 { 8 } else { 12 }..at];
                let sum = Checksum::default().add_bytes(ends).add_bytes(&[0, TCP, 0, 20]);
                assert_eq!(sum.add_bytes(tcp).finish(), 0, "the checksum is right");
            }
        }
    }

    #[test]
    fn nothing_else_is_answered() {
        let tcp = |ipv6| Frame::new(flow(ipv6, Protocol::Tcp)).build();
        for ipv6 in [false, true] {
            assert!(Reset::about(&Frame::new(flow(ipv6, Protocol::Udp)).build()).is_none());
            let at = 14 + if ipv6 { 40 } else { 20 };
            let mut reset = tcp(ipv6);
            reset[at + 13] |= RST;
            assert!(Reset::about(&reset).is_none(), "resets would go to and fro");
            let mut group = tcp(ipv6);
            group[0] |= 1;
            assert!(Reset::about(&group).is_none());
            let mut short = tcp(ipv6);
            short.truncate(at + 19);
            assert!(Reset::about(&short).is_none());
        }
        for first in [0, 127, 224, 255] {
            let mut frame = tcp(false);
            frame[26] = first;
            assert!(Reset::about(&frame).is_none(), "{first} is no host");
        }
        for first in [0, 0xff] {
            let mut frame = tcp(true);
            frame[22..30].fill(first);
            assert!(Reset::about(&frame).is_none());
        }
    }
}
