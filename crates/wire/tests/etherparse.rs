//! The parser against `etherparse`, an independent implementation, in both directions:
//! what etherparse builds must parse to the same fields, and on damaged frames the two
//! may differ only where `parse`'s documentation says that weir's policy does.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::IpAddr;

use etherparse::err::ip_auth::HeaderError as AuthError;
use etherparse::err::ipv6_exts::HeaderError as ExtensionError;
use etherparse::err::packet::SliceError;
use etherparse::{
    IpAuthHeader, IpFragOffset, IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, Ipv6Extensions,
    Ipv6FragmentHeader, Ipv6Header, Ipv6RawExtHeader, Ipv6RoutingExtensions, NetSlice,
    PacketBuilder, SlicedPacket, TcpHeader, TransportSlice, VlanId,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Packet, Protocol, Reason, TcpFlags, parse, unmap_address};

/// Whether and how the built packet is fragmented: the offset in 8-byte units, and the MF flag.
#[derive(Clone, Copy, Debug)]
struct Fragment {
    offset: u16,
    more: bool,
}

/// A packet for etherparse to build.
#[derive(Clone, Debug)]
struct Shape {
    flow: FlowKey,
    vlans: usize,
    /// In units of 4 bytes: IPv4 options, TCP options, authentication data.
    option_words: [usize; 3],
    /// Which IPv6 extension headers there are: hop-by-hop, destination, routing, AH.
    extensions: [bool; 4],
    fragment: Option<Fragment>,
    tcp_flags: u8,
    payload: usize,
    padding: usize,
}

fn flow() -> impl Strategy<Value = FlowKey> {
    let addresses = prop_oneof![
        any::<[[u8; 4]; 2]>().prop_map(|pair| pair.map(IpAddr::from)),
        // 2000::/3, where no address is an IPv4-mapped one.
        any::<[[u8; 16]; 2]>().prop_map(|pair| pair.map(|mut octets| {
            octets[0] = 0x20 | octets[0] & 0x1f;
            IpAddr::from(octets)
        })),
    ];
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp), Just(Protocol::Sctp)];
    (addresses, any::<[u16; 2]>(), protocol).prop_map(|([src, dst], [from, to], protocol)| {
        FlowKey::new((src, from).into(), (dst, to).into(), protocol)
    })
}

fn shape() -> impl Strategy<Value = Shape> {
    let fragment = (prop_oneof![Just(0), 1..=0x1fff_u16], any::<bool>())
        .prop_map(|(offset, more)| Fragment { offset, more });
    (
        flow(),
        0..=2_usize,
        [0..=10_usize, 0..=10_usize, 0..=10_usize],
        any::<[bool; 4]>(),
        proptest::option::weighted(0.3, fragment),
        any::<u8>(),
        0..200_usize,
        0..50_usize,
    )
        .prop_map(
            |(flow, vlans, option_words, extensions, fragment, tcp_flags, payload, padding)| {
                Shape {
                    flow,
                    vlans,
                    option_words,
                    extensions,
                    fragment,
                    tcp_flags,
                    payload,
                    padding,
                }
            },
        )
}

impl Shape {
    fn ip_headers(&self) -> IpHeaders {
        let offset = self.fragment.map_or(0, |f| f.offset);
        let fragment_offset = IpFragOffset::try_new(offset).unwrap();
        let more_fragments = self.fragment.is_some_and(|f| f.more);
        let (src, dst) = (self.flow.src_socket().ip(), self.flow.dst_socket().ip());
        let (IpAddr::V4(src), IpAddr::V4(dst)) = (src, dst) else {
            let extensions = self.ipv6_extensions(self.fragment.map(|_| {
                Ipv6FragmentHeader::new(IpNumber::TCP, fragment_offset, more_fragments, 7)
            }));
            let header = Ipv6Header {
                source: self.flow.src,
                destination: self.flow.dst,
                ..Default::default()
            };
            return IpHeaders::Ipv6(header, extensions);
        };
        let header = Ipv4Header {
            source: src.octets(),
            destination: dst.octets(),
            fragment_offset,
            more_fragments,
            options: vec![1; self.option_words[0] * 4][..].try_into().unwrap(),
            ..Default::default()
        };
        IpHeaders::Ipv4(header, Ipv4Extensions::default())
    }

    fn ipv6_extensions(&self, fragment: Option<Ipv6FragmentHeader>) -> Ipv6Extensions {
        let options = || Ipv6RawExtHeader::new_raw(IpNumber::TCP, &[0; 14]).unwrap();
        let authentication = vec![0; self.option_words[2] * 4 + 4];
        let [hop_by_hop, destination, routing, auth] = self.extensions;
        Ipv6Extensions {
            hop_by_hop_options: hop_by_hop.then(options),
            destination_options: destination.then(options),
            routing: routing.then(|| Ipv6RoutingExtensions {
                routing: options(),
                final_destination_options: destination.then(options),
            }),
            fragment,
            auth: auth.then(|| IpAuthHeader::new(IpNumber::TCP, 1, 2, &authentication).unwrap()),
        }
    }

    fn tcp_header(&self) -> TcpHeader {
        let FlowKey { src_port, dst_port, .. } = self.flow;
        let mut header = TcpHeader::new(src_port, dst_port, 1, 1000);
        let flag = |bit: u8| self.tcp_flags & bit != 0;
        header.fin = flag(1);
        header.syn = flag(2);
        header.rst = flag(4);
        header.psh = flag(8);
        header.ack = flag(16);
        header.urg = flag(32);
        header.ece = flag(64);
        header.cwr = flag(128);
        header.set_options_raw(&vec![1; self.option_words[1] * 4]).unwrap();
        header
    }

    /// Ports, tag, checksum, and the header of a chunk.
    fn sctp_header(&self) -> [u8; 16] {
        let mut header = [0; 16];
        header[..2].copy_from_slice(&self.flow.src_port.to_be_bytes());
        header[2..4].copy_from_slice(&self.flow.dst_port.to_be_bytes());
        header[12] = self.tcp_flags;
        header[14..].copy_from_slice(&(4 + self.payload as u16).to_be_bytes());
        header
    }

    /// The frame as etherparse builds it, and the packet that it must parse to.
    fn build(&self) -> (Vec<u8>, Packet) {
        let ip = self.ip_headers();
        let l3_offset = 14 + 4 * self.vlans;
        let l4_offset = l3_offset + ip.header_len();

        let link = PacketBuilder::ethernet2([2; 6], [4; 6]);
        let vlan = |id| VlanId::try_new(id).unwrap();
        let network = match self.vlans {
            0 => link.ip(ip),
            1 => link.single_vlan(vlan(1)).ip(ip),
            _ => link.double_vlan(vlan(1), vlan(2)).ip(ip),
        };
        let mut frame = Vec::new();
        let payload = vec![0x5a; self.payload];
        match self.flow.protocol {
            Protocol::Tcp => network.tcp_header(self.tcp_header()).write(&mut frame, &payload),
            Protocol::Udp => {
                network.udp(self.flow.src_port, self.flow.dst_port).write(&mut frame, &payload)
            }
            // etherparse knows nothing of SCTP, but what carries it.
            Protocol::Sctp => network.write(
                &mut frame,
                IpNumber::SCTP,
                &[&self.sctp_header(), &payload[..]].concat(),
            ),
        }
        .unwrap();

        let ip_length = (frame.len() - l3_offset) as u32;
        frame.resize(frame.len() + self.padding, 0xee);
        let packet = Packet {
            flow: self.flow,
            tcp_flags: match self.flow.protocol {
                Protocol::Tcp => TcpFlags(self.tcp_flags),
                Protocol::Udp => TcpFlags(0),
                Protocol::Sctp => TcpFlags::of_sctp(self.tcp_flags, 0),
            },
            l3_offset: l3_offset as u16,
            l4_offset: l4_offset as u16,
            vlan_tags: self.vlans as u8,
            ip_length,
        };
        (frame, packet)
    }
}

/// Frames that PacketBuilder would not build: up to four tags of any type, and IPv6
/// extension headers in any number and order, with lengths that may lie.
fn chain() -> impl Strategy<Value = Vec<u8>> {
    let tag = prop_oneof![Just(0x8100_u16), Just(0x88a8), Just(0x9100)];
    let extension = (
        prop_oneof![4 => Just(60_u8), 1 => Just(0), 2 => Just(43), 2 => Just(51), 2 => Just(44)],
        prop_oneof![8 => Just(None), 1 => any::<u8>().prop_map(Some)],
        prop_oneof![6 => Just(0_u16), 1 => any::<u16>()],
    );
    let last = prop_oneof![Just(6_u8), Just(17), Just(58), Just(59), Just(132)];
    (prop::collection::vec(tag, 0..=3), prop::collection::vec(extension, 0..=8), last, shape())
        .prop_map(|(tags, extensions, last, shape)| {
            let mut frame = vec![2; 12];
            for tag in tags {
                frame.extend(tag.to_be_bytes());
                frame.extend([0, 9]);
            }
            frame.extend(0x86dd_u16.to_be_bytes());
            let mut payload = Vec::new();
            for (i, (kind, lie, fragment)) in extensions.iter().enumerate() {
                payload.push(extensions.get(i + 1).map_or(last, |next| next.0));
                // 12 bytes for AH, 8 for the others, unless the length lies.
                payload.push(lie.unwrap_or(u8::from(*kind == 51)));
                payload.extend(if *kind == 44 { *fragment } else { 0 }.to_be_bytes());
                payload.extend(vec![0; if *kind == 51 { 8 } else { 4 }]);
            }
            let transport = Frame::new(shape.flow).payload(30).build();
            let headers = if shape.flow.is_ipv4() { 34 } else { 54 };
            payload.extend(&transport[headers..]);
            let first = extensions.first().map_or(last, |next| next.0);
            frame.extend([0x60, 0, 0, 0]);
            frame.extend((payload.len() as u16).to_be_bytes());
            frame.extend([first, 64]);
            frame.extend(shape.flow.src);
            frame.extend(shape.flow.dst);
            frame.extend(payload);
            frame
        })
}

/// A frame with up to three header bytes overwritten and the end cut or extended.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let whole = prop_oneof![shape().prop_map(|shape| shape.build().0), chain()];
    let value = prop_oneof![
        any::<u8>(),
        prop::sample::select(vec![
            0, 1, 4, 6, 7, 8, 17, 43, 44, 51, 60, 132, 0x45, 0x46, 0x81, 0xff
        ]),
    ];
    let edit = prop_oneof![
        4 => (0..90_usize, value),
        // The version and header length, where the IP header may start.
        1 => (prop::sample::select(vec![14, 18, 22]), 0x40..=0x4f_u8),
        // The low byte of an IP length, there.
        1 => (prop::sample::select(vec![17, 19, 21, 23, 25, 27]), 0..80_u8),
    ];
    let edits = prop::collection::vec(edit, 0..=3);
    let resize = prop_oneof![
        3 => Just(None),
        1 => (0..150_usize).prop_map(Some),
    ];
    (whole, edits, resize).prop_map(|(mut frame, edits, resize)| {
        for (at, value) in edits {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        if let Some(length) = resize {
            frame.resize(length, 0);
        }
        frame
    })
}

/// The bytes from the start of `frame` to the start of its part `slice`.
fn offset_of(slice: &[u8], frame: &[u8]) -> u16 {
    (slice.as_ptr() as usize - frame.as_ptr() as usize) as u16
}

/// What etherparse found, as weir would say it. `None` unless it found TCP, UDP or whole SCTP.
fn as_packet(sliced: &SlicedPacket<'_>, frame: &[u8]) -> Option<Packet> {
    let (ip, src, dst, ip_length) = match sliced.net.as_ref()? {
        NetSlice::Ipv4(v4) => {
            let header = v4.header();
            let (src, dst) = (header.source_addr(), header.destination_addr());
            let length = u32::from(header.total_len());
            (header.slice(), src.into(), dst.into(), length)
        }
        NetSlice::Ipv6(v6) => {
            let header = v6.header();
            let (src, dst) = (header.source_addr(), header.destination_addr());
            let length = 40 + u32::from(header.payload_length());
            (header.slice(), IpAddr::V6(src), IpAddr::V6(dst), length)
        }
        NetSlice::Arp(_) => return None,
    };
    let (segment, protocol, ports, tcp_flags) = match sliced.transport.as_ref() {
        None => sctp(sliced.net.as_ref()?)?,
        Some(TransportSlice::Tcp(tcp)) => {
            let ports = (tcp.source_port(), tcp.destination_port());
            (tcp.slice(), Protocol::Tcp, ports, flag_byte(&tcp.to_header()))
        }
        Some(TransportSlice::Udp(udp)) => {
            let ports = (udp.source_port(), udp.destination_port());
            (udp.slice(), Protocol::Udp, ports, 0)
        }
        _ => return None,
    };
    Some(Packet {
        flow: FlowKey::new((src, ports.0).into(), (dst, ports.1).into(), protocol),
        tcp_flags: TcpFlags(tcp_flags),
        l3_offset: offset_of(ip, frame),
        l4_offset: offset_of(segment, frame),
        vlan_tags: sliced.link_exts.len() as u8,
        ip_length,
    })
}

/// What there is of a packet from its transport header on, protocol, ports and flags.
type Upper<'a> = (&'a [u8], Protocol, (u16, u16), u8);

/// The same of a packet that carries SCTP, with what its first chunk says as flags.
fn sctp<'a>(net: &NetSlice<'a>) -> Option<Upper<'a>> {
    let ip = net.ip_payload_ref().filter(|ip| ip.ip_number == IpNumber::SCTP && !ip.fragmented)?;
    let header: &[u8; 16] = ip.payload.first_chunk()?;
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    (4..=ip.payload.len() - 12).contains(&word(14).into()).then_some(())?;
    let tag = u32::from(word(4)) << 16 | u32::from(word(6));
    let flags = TcpFlags::of_sctp(header[12], tag).0;
    Some((ip.payload, Protocol::Sctp, (word(0), word(2)), flags))
}

fn flag_byte(tcp: &TcpHeader) -> u8 {
    let bits = [tcp.fin, tcp.syn, tcp.rst, tcp.psh, tcp.ack, tcp.urg, tcp.ece, tcp.cwr];
    bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit))
}

/// Whether the documentation of `parse` says that weir refuses such a packet, which
/// etherparse read as TCP or UDP or as a fragment, for this reason.
fn is_policy(reason: Reason, sliced: &SlicedPacket<'_>, frame: &[u8]) -> bool {
    let ipv6 = match &sliced.net {
        Some(NetSlice::Ipv6(v6)) => Some(v6),
        _ => None,
    };
    match reason {
        // A tag of a type that weir does not take: MACsec or 0x9100.
        Reason::NotIp => (0..sliced.link_exts.len()).any(|depth| {
            let ethertype = &frame[12 + 4 * depth..][..2];
            ethertype != [0x81, 0x00] && ethertype != [0x88, 0xa8]
        }),
        Reason::TooManyVlans => sliced.link_exts.len() > 2,
        Reason::OtherProtocol => {
            matches!(&sliced.net, Some(NetSlice::Ipv4(v4)) if v4.extensions().auth.is_some())
        }
        Reason::BadUdpLength => {
            matches!(&sliced.transport, Some(TransportSlice::Udp(udp)) if udp.length() == 0)
        }
        Reason::TooManyIpv6Extensions => {
            ipv6.is_some_and(|v6| v6.extensions().clone().into_iter().count() > 6)
        }
        // etherparse reads a payload length of 0 as "all that the frame has".
        Reason::TruncatedIpv6Extension
        | Reason::TruncatedTcp
        | Reason::TruncatedUdp
        | Reason::TruncatedSctp => ipv6.is_some_and(|v6| v6.header().payload_length() == 0),
        Reason::MappedAddress => ipv6.is_some_and(|v6| {
            let header = v6.header();
            [header.source_addr(), header.destination_addr()]
                .iter()
                .any(|address| address.to_ipv4_mapped().is_some())
        }),
        Reason::FirstFragment | Reason::LaterFragment => is_fragmented(sliced),
        _ => false,
    }
}

fn is_fragmented(sliced: &SlicedPacket<'_>) -> bool {
    match &sliced.net {
        Some(NetSlice::Ipv4(v4)) => v4.is_payload_fragmented(),
        Some(NetSlice::Ipv6(v6)) => v6.is_payload_fragmented(),
        _ => false,
    }
}

/// Parses with both and compares. Returns weir's result.
fn compare(frame: &[u8]) -> Result<Packet, Reason> {
    let ours = parse(frame);
    match (ours, SlicedPacket::from_ethernet(frame)) {
        (Ok(packet), Ok(sliced)) => {
            let theirs = as_packet(&sliced, frame).expect("etherparse found no flow");
            assert_eq!(packet, theirs);
        }
        // RFC 8200 section 4.1: a receiver must take the headers in any order; and
        // nothing depends on the content of an authentication header.
        (
            Ok(_),
            Err(SliceError::Ipv6Exts(
                ExtensionError::HopByHopNotAtStart
                | ExtensionError::IpAuth(AuthError::ZeroPayloadLen),
            )),
        ) => {}
        (Ok(packet), Err(error)) => panic!("accepted {packet:?}, etherparse: {error}"),
        (Err(rejected), Ok(sliced)) => {
            if as_packet(&sliced, frame).is_some() || is_fragmented(&sliced) {
                let reason = rejected.reason;
                assert!(is_policy(reason, &sliced, frame), "{reason} for {sliced:?}");
            }
            if let (Some(dst), Some(net)) = (rejected.dst, &sliced.net) {
                let theirs = match net {
                    NetSlice::Ipv4(v4) => v4.header().destination_addr().into(),
                    NetSlice::Ipv6(v6) => v6.header().destination_addr().to_canonical(),
                    NetSlice::Arp(_) => panic!("{rejected} of an ARP frame has a destination"),
                };
                assert_eq!(unmap_address(&dst), theirs);
            }
        }
        (Err(_), Err(_)) => {}
    }
    ours.map_err(|rejected| rejected.reason)
}

/// A failure prints the smallest frame or shape that fails: it belongs into the table
/// in `parse.rs`, by hand, and not into a file of seeds.
fn config(cases: u32) -> Config {
    Config { cases, failure_persistence: None, ..Config::default() }
}

proptest! {
    #![proptest_config(config(2000))]

    #[test]
    fn parses_what_etherparse_builds(shape in shape()) {
        let (frame, packet) = shape.build();
        let expected = match shape.fragment {
            Some(Fragment { offset: 1.., .. }) => Err(Reason::LaterFragment),
            Some(Fragment { more: true, .. }) => Err(Reason::FirstFragment),
            _ => Ok(packet),
        };
        prop_assert_eq!(parse(&frame).map_err(|rejected| rejected.reason), expected);
    }

    #[test]
    fn every_cut_of_a_frame_is_refused(shape in shape()) {
        let shape = Shape { padding: 0, ..shape };
        let (frame, _) = shape.build();
        for length in 0..frame.len() {
            prop_assert!(parse(&frame[..length]).is_err(), "{} bytes", length);
        }
    }

    #[test]
    fn noise_does_not_panic(frame in prop::collection::vec(any::<u8>(), 0..200)) {
        compare(&frame).ok();
    }

    #[test]
    fn crafted_frames_have_the_checksums_of_etherparse(
        flow in flow(), flags in any::<u8>(), payload in 0..300_u16, vlans in 0..=2_usize,
    ) {
        let plain = Frame::new(flow).tcp_flags(TcpFlags(flags)).payload(payload);
        let frame = (0..vlans).fold(plain, |frame, _| frame.vlan(5)).build();
        let packet = parse(&frame).unwrap();
        prop_assert_eq!(packet.flow, flow);
        prop_assert_eq!(usize::from(packet.vlan_tags), vlans);
        prop_assert_eq!(usize::from(packet.l3_offset) + packet.ip_length as usize, frame.len());
        check_checksums(&SlicedPacket::from_ethernet(&frame).unwrap());
    }
}

fn check_checksums(sliced: &SlicedPacket<'_>) {
    let net = sliced.net.as_ref().unwrap();
    // etherparse has no CRC; craft.rs holds its own to the published answer.
    let Some(transport) = sliced.transport.as_ref() else {
        assert_eq!(net.ip_payload_ref().map(|ip| ip.ip_number), Some(IpNumber::SCTP));
        return;
    };
    match (net, transport) {
        (NetSlice::Ipv4(ip), transport) => {
            let ip = ip.header().to_header();
            assert_eq!(ip.header_checksum, ip.calc_header_checksum());
            match transport {
                TransportSlice::Tcp(tcp) => {
                    let expected = tcp.to_header().calc_checksum_ipv4(&ip, tcp.payload());
                    assert_eq!(Ok(tcp.checksum()), expected);
                }
                TransportSlice::Udp(udp) => {
                    let expected = udp.to_header().calc_checksum_ipv4(&ip, udp.payload());
                    assert_eq!(Ok(udp.checksum()), expected);
                }
                other => panic!("{other:?}"),
            }
        }
        (NetSlice::Ipv6(ip), transport) => {
            let ip = ip.header().to_header();
            match transport {
                TransportSlice::Tcp(tcp) => {
                    let expected = tcp.to_header().calc_checksum_ipv6(&ip, tcp.payload());
                    assert_eq!(Ok(tcp.checksum()), expected);
                }
                TransportSlice::Udp(udp) => {
                    let expected = udp.to_header().calc_checksum_ipv6(&ip, udp.payload());
                    assert_eq!(Ok(udp.checksum()), expected);
                }
                other => panic!("{other:?}"),
            }
        }
        other => panic!("{other:?}"),
    }
}

/// Not written with `proptest!`, because it also checks that the generator is worth
/// something: that it reaches acceptance and every reason that `parse` can give.
#[test]
fn agrees_with_etherparse_on_damaged_frames() {
    const CASES: u32 = 100_000;
    let accepted = Cell::new(0);
    let reasons = RefCell::new(BTreeMap::<Reason, u32>::new());
    TestRunner::new(config(CASES))
        .run(&damaged(), |frame| {
            match compare(&frame) {
                Ok(_) => accepted.set(accepted.get() + 1),
                Err(reason) => *reasons.borrow_mut().entry(reason).or_default() += 1,
            }
            Ok(())
        })
        .unwrap();
    let reasons = reasons.into_inner();
    println!("accepted {}, refused {reasons:?}", accepted.get());
    assert!(accepted.get() > CASES / 10);
    for &reason in Reason::ALL {
        // Four are not parse's own; ten damaged bytes in a row would be needed for the fifth, and a
        // packet of SCTP that is shorter than any other is for the sixth, which have their frames in parse.rs.
        let others = [Reason::NoService, Reason::OtherHost, Reason::Answer, Reason::TtlExceeded];
        let others = [&others[..], &[Reason::MappedAddress, Reason::TruncatedSctp]].concat();
        if !reason.is_steering() && !others.contains(&reason) {
            assert!(reasons.contains_key(&reason), "never reached {reason}");
        }
    }
}
