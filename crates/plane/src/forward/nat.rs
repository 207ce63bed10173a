//! Other addresses and ports in the packet, for backends that know nothing of the service: those of the
//! destination on the way to the backend, those of the source on the way back. The twin of
//! `bpf/forward/nat.h`; `docs/forwarding.md` says what it means for the network.
//!
//! Nothing is remembered of a connection. A backend's address, port and protocol tell the service that its
//! answers are of, so no two services may have the same.

use super::mapping::Ports;
use std::net::IpAddr;
use weir_wire::icmp_error::{Cause, IcmpError};
use weir_wire::{Fragment, Packet, Protocol, Reason, fragment, icmp, map_address, parse};

const ETHERNET: usize = 14;
const TAG: usize = 4;
const IPV6: usize = 40;
const PROTOCOL_TCP: u8 = 6;
const FRAGMENT: u8 = 44;
const FRAGMENT_BYTES: usize = 8;
/// Priority and drop eligibility of a tag, which stay.
const TAG_KEPT: u8 = 0xf0;

/// How a backend's packets are made its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Translation {
    /// The port that it listens on; none: the one that the client has sent to.
    pub port: Option<u16>,
    /// The largest packet that the way there takes, in bytes; 0: not known.
    pub mtu: u32,
    /// The sources that they get under full NAT; none: they keep their own.
    pub ports: Option<Ports>,
}

impl Translation {
    /// Why a frame that was parsed cannot be sent so.
    pub fn refuses(&self, frame: &[u8]) -> Option<Reason> {
        let place = match place(frame) {
            Ok(place) => place,
            Err(reason) => return Some(reason),
        };
        if place.bytes > self.most() {
            return Some(Reason::TooBig);
        }
        (place.ttl(frame) <= 1).then_some(Reason::TtlExceeded)
    }

    /// The largest packet on the way.
    fn most(&self) -> u32 {
        match self.mtu {
            0 => u16::MAX.into(),
            mtu => mtu.min(u16::MAX.into()),
        }
    }

    /// The message to the sender of a frame that was refused for this reason, and the reason if it is sent;
    /// none if nobody is told.
    pub fn message(&self, frame: &[u8], refused: Reason) -> Option<(IcmpError, Reason)> {
        let (cause, told) = match refused {
            Reason::TooBig => (Cause::TooBig(self.most()), Reason::TooBigTold),
            Reason::TtlExceeded => (Cause::TtlExceeded, Reason::TtlTold),
            _ => return None,
        };
        IcmpError::about(frame, cause).map(|message| (message, told))
    }

    /// Makes a frame that was refused the message to its sender.
    pub fn tell(&self, frame: &mut Vec<u8>) {
        let refused = self.refuses(frame).and_then(|refused| self.message(frame, refused));
        if let Some((message, _)) = refused {
            message.put(frame);
        }
    }
}

/// Which of a packet's ends is another from here on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// On the way back from a backend.
    Source,
    /// On the way to one.
    Destination,
}

impl End {
    fn other(self) -> Self {
        match self {
            Self::Source => Self::Destination,
            Self::Destination => Self::Source,
        }
    }
}

/// Puts an address, and a port if there is one, in the place of those of one end of a frame's packet, or of
/// an ICMP error and the packet that it quotes; takes one from its TTL as a router does. VLAN tags go, and
/// `tag` comes in front, as on the wire.
///
/// # Errors
/// Why it cannot, if the frame is none of a flow, or its TTL is used up; it is as it was then.
pub fn translate(
    frame: &mut Vec<u8>,
    end: End,
    to: (IpAddr, Option<u16>),
    tag: Option<[u8; TAG]>,
) -> Result<(), Reason> {
    let place = age(frame)?;
    exchange_end(frame, &place, end, to);
    if place.l3 > ETHERNET || tag.is_some() {
        retag(frame, place.l3, tag);
    }
    Ok(())
}

/// As [`translate`], of both ends: what becomes of the source, and of the destination.
///
/// # Errors
/// As [`translate`].
pub fn translate_both(
    frame: &mut Vec<u8>,
    source: (IpAddr, Option<u16>),
    destination: (IpAddr, Option<u16>),
    tag: Option<[u8; TAG]>,
) -> Result<(), Reason> {
    let place = age(frame)?;
    exchange_end(frame, &place, End::Destination, destination);
    exchange_end(frame, &place, End::Source, source);
    if place.l3 > ETHERNET || tag.is_some() {
        retag(frame, place.l3, tag);
    }
    Ok(())
}

/// Takes one from its TTL as a router does.
fn age(frame: &mut [u8]) -> Result<Place, Reason> {
    let place = place(frame)?;
    if place.ttl(frame) <= 1 {
        return Err(Reason::TtlExceeded);
    }
    let at = place.l3;
    if place.ipv4 {
        let sum = exchange(frame, at + 8, |word| [word[0] - 1, word[1]]);
        amend(frame, at + 10, sum);
    } else {
        frame[at + 7] -= 1;
    }
    Ok(place)
}

fn exchange_end(frame: &mut [u8], place: &Place, end: End, to: (IpAddr, Option<u16>)) {
    let (address, port) = (map_address(to.0), to.1);
    let at = place.l3;
    let mut change = exchange_address(frame, at, place.ipv4, end, &address);
    if place.ipv4 {
        amend(frame, at + 10, change);
    }
    match place.upper {
        Upper::Segment { at, protocol } => {
            change += exchange_port(frame, at, end, port);
            let check = at + if protocol == Protocol::Tcp { 16 } else { 6 };
            amend_l4(frame, check, protocol, change);
        }
        Upper::Error { icmp, quoted, until } => {
            // Without a pseudo-header, addresses outside are no part of its checksum.
            let outside = if place.ipv4 { 0 } else { change };
            let to = (&address, port);
            let inside = translate_quote(frame, (icmp, quoted, until), place.ipv4, end.other(), to);
            amend(frame, icmp + 2, outside + inside);
        }
        // It has no ports; the sum over the whole packet is in the first fragment.
        Upper::Later => {}
    }
}

/// The same in the packet that an error quotes. Returns what the error's checksum changes by.
fn translate_quote(
    frame: &mut [u8],
    (icmp, quoted, until): (usize, usize, usize),
    ipv4: bool,
    end: End,
    (address, port): (&[u8; 16], Option<u16>),
) -> u64 {
    let at = icmp + icmp::HEADER_BYTES;
    let mut inside = exchange_address(frame, at, ipv4, end, address);
    let mut all = inside;
    let protocol = if ipv4 {
        let before = word(frame, at + 10);
        amend(frame, at + 10, inside);
        all += changed(before, word(frame, at + 10));
        frame[at + 9]
    } else if frame[at + 6] == FRAGMENT && quoted == at + IPV6 + FRAGMENT_BYTES {
        frame[at + IPV6]
    } else {
        frame[at + 6]
    };
    let ports = exchange_port(frame, quoted, end, port);
    (inside, all) = (inside + ports, all + ports);
    let (protocol, check) = match protocol {
        PROTOCOL_TCP => (Protocol::Tcp, quoted + 16),
        _ => (Protocol::Udp, quoted + 6),
    };
    // As much of the packet as there is.
    if check + 2 <= until {
        let before = word(frame, check);
        amend_l4(frame, check, protocol, inside);
        all += changed(before, word(frame, check));
    }
    all
}

/// Where a frame's packet is, and what is in it.
struct Place {
    l3: usize,
    ipv4: bool,
    bytes: u32,
    upper: Upper,
}

enum Upper {
    Segment { at: usize, protocol: Protocol },
    Error { icmp: usize, quoted: usize, until: usize },
    Later,
}

impl Place {
    fn ttl(&self, frame: &[u8]) -> u8 {
        frame[self.l3 + if self.ipv4 { 8 } else { 7 }]
    }
}

fn place(frame: &[u8]) -> Result<Place, Reason> {
    let segment = |packet: &Packet| Upper::Segment {
        at: packet.l4_offset.into(),
        protocol: packet.flow.protocol,
    };
    let (l3, bytes, upper) = match parse(frame) {
        Ok(packet) => (packet.l3_offset, packet.ip_length, segment(&packet)),
        Err(rejected) => match (fragment(frame), icmp::quoted(frame)) {
            (Some(Fragment { packet, l3_offset, ip_length, .. }), _) => {
                let upper = packet.as_ref().map_or(Upper::Later, segment);
                (l3_offset, ip_length, upper)
            }
            (_, Some(error)) => {
                let until = usize::from(error.l3_offset) + error.ip_length as usize;
                let (icmp, quoted) = (error.icmp_offset.into(), error.quoted_l4_offset.into());
                (error.l3_offset, error.ip_length, Upper::Error { icmp, quoted, until })
            }
            _ => return Err(rejected.reason),
        },
    };
    let l3 = usize::from(l3);
    Ok(Place { l3, ipv4: frame[l3] >> 4 == 4, bytes, upper })
}

fn retag(frame: &mut Vec<u8>, l3: usize, tag: Option<[u8; TAG]>) {
    let kept = if l3 > ETHERNET { frame[ETHERNET] & TAG_KEPT } else { 0 };
    let tag = tag.map(|[first, second, third, last]| [first, second, third | kept, last]);
    frame.splice(12..l3 - 2, tag.into_iter().flatten());
}

fn word(frame: &[u8], at: usize) -> [u8; 2] {
    [frame[at], frame[at + 1]]
}

/// What a sum of words changes by.
fn changed(before: [u8; 2], after: [u8; 2]) -> u64 {
    u64::from(!u16::from_be_bytes(before)) + u64::from(u16::from_be_bytes(after))
}

/// Puts another word there.
fn exchange(frame: &mut [u8], at: usize, new: impl FnOnce([u8; 2]) -> [u8; 2]) -> u64 {
    let before = word(frame, at);
    let after = new(before);
    frame[at..at + 2].copy_from_slice(&after);
    changed(before, after)
}

/// Of the IP header there.
fn exchange_address(frame: &mut [u8], ip: usize, ipv4: bool, end: End, address: &[u8; 16]) -> u64 {
    let (source, destination) = if ipv4 { (12, 16) } else { (8, 24) };
    let at = ip + if end == End::Source { source } else { destination };
    let address = if ipv4 { &address[12..] } else { address };
    let words = address.as_chunks::<2>().0.iter().enumerate();
    words.map(|(number, new)| exchange(frame, at + number * 2, |_| *new)).sum()
}

fn exchange_port(frame: &mut [u8], l4: usize, end: End, port: Option<u16>) -> u64 {
    let at = l4 + if end == End::Source { 0 } else { 2 };
    port.map_or(0, |port| exchange(frame, at, |_| port.to_be_bytes()))
}

/// RFC 1624, equation 3.
fn amend(frame: &mut [u8], check: usize, change: u64) {
    let mut sum = u64::from(!u16::from_be_bytes(word(frame, check))) + change;
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    frame[check..check + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// In UDP, 0 says that there is none: such a one stays, and no other becomes one (RFC 768).
fn amend_l4(frame: &mut [u8], check: usize, protocol: Protocol, change: u64) {
    if protocol == Protocol::Udp && word(frame, check) == [0, 0] {
        return;
    }
    amend(frame, check, change);
    if protocol == Protocol::Udp && word(frame, check) == [0, 0] {
        frame[check..check + 2].fill(0xff);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_wire::FlowKey;
    use weir_wire::checksum::Checksum;
    use weir_wire::craft::{self, Frame};

    const ENDS: [(&str, &str, &str); 2] = [
        ("10.0.0.1:5555", "10.0.0.2:80", "198.51.100.7:8080"),
        ("[2001:db8::1]:5555", "[2001:db8::2]:80", "[2001:db8:2::7]:8080"),
    ];

    fn flow(from: &str, to: &str, protocol: Protocol) -> FlowKey {
        FlowKey::new(from.parse().expect("an address"), to.parse().expect("an address"), protocol)
    }

    fn target(text: &str) -> (IpAddr, Option<u16>) {
        let address: std::net::SocketAddr = text.parse().expect("an address");
        (address.ip(), Some(address.port()))
    }

    /// One less, with a checksum that holds.
    fn age(frame: &mut [u8], l3: usize) {
        if frame[l3] >> 4 == 6 {
            frame[l3 + 7] -= 1;
            return;
        }
        frame[l3 + 8] -= 1;
        frame[l3 + 10..l3 + 12].fill(0);
        let check = Checksum::default().add_bytes(&frame[l3..l3 + 20]).finish();
        frame[l3 + 10..l3 + 12].copy_from_slice(&check.to_be_bytes());
    }

    /// The frame is the very one that a sender with the other addresses would have made, one hop on.
    #[test]
    fn what_comes_out_is_what_such_a_sender_makes() {
        for (client, service, backend) in ENDS {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                for payload in [0, 1, 63, 700] {
                    let make =
                        |from, to| Frame::new(flow(from, to, protocol)).payload(payload).build();
                    let mut there = make(client, service);
                    translate(&mut there, End::Destination, target(backend), None).expect("it can");
                    let mut wanted = make(client, backend);
                    age(&mut wanted, 14);
                    assert_eq!(there, wanted, "{protocol:?} {payload}");
                    let mut back = make(backend, client);
                    translate(&mut back, End::Source, target(service), None).expect("it can");
                    let mut wanted = make(service, client);
                    age(&mut wanted, 14);
                    assert_eq!(back, wanted, "{protocol:?} {payload}");
                }
            }
        }
    }

    #[test]
    fn the_port_stays_if_there_is_no_other() {
        let (client, service, backend) = ENDS[0];
        let mut frame = Frame::new(flow(client, service, Protocol::Tcp)).build();
        translate(&mut frame, End::Destination, (target(backend).0, None), None).expect("it can");
        let mut wanted = Frame::new(flow(client, "198.51.100.7:80", Protocol::Tcp)).build();
        age(&mut wanted, 14);
        assert_eq!(frame, wanted);
    }

    /// RFC 768: a sender that has computed 0 sends ffff, and 0 says that it has computed none.
    #[test]
    fn a_checksum_of_udp_that_is_none_stays_so_and_no_other_becomes_one() {
        for (client, service, backend) in ENDS {
            let frame = Frame::new(flow(client, service, Protocol::Udp)).payload(2).build();
            let check = frame.len() - 2 - 2;
            let mut none = frame.clone();
            none[check..check + 2].fill(0);
            translate(&mut none, End::Destination, target(backend), None).expect("it can");
            assert_eq!(word(&none, check), [0, 0]);
            // All payloads: some have a sum of 0 behind.
            let mut zeros = 0;
            for payload in 0..=u16::MAX {
                let mut frame = frame.clone();
                let at = frame.len() - 2;
                let sum = exchange(&mut frame, at, |_| payload.to_be_bytes());
                amend_l4(&mut frame, check, Protocol::Udp, sum);
                translate(&mut frame, End::Destination, target(backend), None).expect("it can");
                assert_ne!(word(&frame, check), [0, 0]);
                zeros += u32::from(word(&frame, check) == [0xff, 0xff]);
            }
            assert_eq!(zeros, 1);
        }
    }

    /// An error of a router outside about an answer reaches the backend as if the answer had gone out as the
    /// backend has sent it; and one of a router inside, the client. Whole, and cut behind 8 bytes.
    #[test]
    fn errors_are_translated_with_what_they_quote() {
        for (client, service, backend) in ENDS {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                for length in [8, 12, 20, 60] {
                    let v4 = client.starts_with('1');
                    let whole = if v4 { 20 } else { 40 } + length;
                    let quote = |from, to| {
                        let frame = Frame::new(flow(from, to, protocol)).payload(60).build();
                        frame[14..14 + whole].to_vec()
                    };
                    let ip = |text: &str| map_address(target(text).0);
                    let (router, kind) = if v4 {
                        (map_address([192, 0, 2, 9].into()), [3, 4])
                    } else {
                        (ip("[2001:db8:9::9]:1"), [2, 0])
                    };
                    let mut in_ =
                        craft::icmp((router, ip(service)), kind, 1280, &quote(service, client));
                    translate(&mut in_, End::Destination, target(backend), None).expect("it can");
                    let mut wanted =
                        craft::icmp((router, ip(backend)), kind, 1280, &quote(backend, client));
                    age(&mut wanted, 14);
                    assert_eq!(in_, wanted, "{protocol:?} {length}");

                    let mut out =
                        craft::icmp((router, ip(client)), kind, 1280, &quote(client, backend));
                    translate(&mut out, End::Source, target(service), None).expect("it can");
                    let mut wanted =
                        craft::icmp((ip(service), ip(client)), kind, 1280, &quote(client, service));
                    age(&mut wanted, 14);
                    assert_eq!(out, wanted, "{protocol:?} {length}");
                }
            }
        }
    }

    #[test]
    fn a_loop_ends_and_large_packets_do_not_get_lost() {
        for (client, service, backend) in ENDS {
            let frame = Frame::new(flow(client, service, Protocol::Tcp)).build();
            let ttl = if client.starts_with('1') { 22 } else { 21 };
            let bytes = frame.len() as u32 - 14;
            for (left, mtu, refused) in [
                (0, 0, Some(Reason::TtlExceeded)),
                (1, 0, Some(Reason::TtlExceeded)),
                (2, 0, None),
                (64, bytes, None),
                (64, bytes - 1, Some(Reason::TooBig)),
            ] {
                let mut frame = frame.clone();
                frame[ttl] = left;
                let before = frame.clone();
                assert_eq!(
                    Translation { port: Some(8080), mtu, ports: None }.refuses(&frame),
                    refused
                );
                let done = translate(&mut frame, End::Destination, target(backend), None);
                assert_eq!(done.is_err(), left <= 1);
                assert_eq!(frame == before, left <= 1);
            }
        }
    }

    #[test]
    fn tags_come_off_and_the_way_s_goes_on_with_the_priority() {
        let (client, service, backend) = ENDS[0];
        let plain = Frame::new(flow(client, service, Protocol::Tcp)).build();
        let mut tagged = plain.clone();
        tagged.splice(12..12, [0x88, 0xa8, 0xa0, 7, 0x81, 0, 0, 9]);
        let mut bare = tagged.clone();
        translate(&mut bare, End::Destination, target(backend), None).expect("it can");
        let mut wanted = plain.clone();
        translate(&mut wanted, End::Destination, target(backend), None).expect("it can");
        assert_eq!(bare, wanted);
        let tag = Some([0x81, 0, 1, 0x23]);
        translate(&mut tagged, End::Destination, target(backend), tag).expect("it can");
        assert_eq!(tagged[12..18], [0x81, 0, 0xa1, 0x23, 8, 0]);
        assert_eq!(tagged[18..], wanted[14..]);
    }
}
