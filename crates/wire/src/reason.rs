//! Why a packet was not forwarded: one code, name and sentence for each cause.
//!
//! The codes index the data plane's counters and are shared with the C programs,
//! so a code is never reused or renumbered. Codes below 32 say what is wrong with
//! the packet; codes from 32 on say why a good packet could not be steered.

use std::fmt;

/// Declares the enum and its tables from one list, so that they cannot disagree.
macro_rules! reasons {
    ($($code:literal $variant:ident $name:literal $description:literal;)*) => {
        /// Why a packet was not forwarded. Each variant's sentence is what `weir status` prints.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Reason {
            $(#[doc = $description] $variant = $code,)*
        }

        impl Reason {
            /// Every reason, in the order of the codes.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The reason in snake case, as `weir status` and JSON have it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The reason as one English sentence, for a person.
            pub const fn description(self) -> &'static str {
                match self { $(Self::$variant => $description,)* }
            }

            /// The reason with this code; `None` for a number that is no reason's.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

reasons! {
    1 NotIp "not_ip" "The frame carries neither IPv4 nor IPv6.";
    2 NoService "no_service" "No service is configured at the destination.";
    3 OtherProtocol "other_protocol" "The IP packet carries none of TCP, UDP and SCTP.";
    4 TruncatedEthernet "truncated_ethernet" "The frame is shorter than an Ethernet header.";
    5 TruncatedVlan "truncated_vlan" "The frame ends inside a VLAN tag.";
    6 TooManyVlans "too_many_vlans" "The frame has more than two VLAN tags.";
    7 TruncatedIpv4 "truncated_ipv4" "The frame ends inside the IPv4 header.";
    8 BadIpv4Version "bad_ipv4_version" "The EtherType says IPv4 but the version field is not 4.";
    9 BadIpv4HeaderLength "bad_ipv4_header_length" "The IPv4 header length is less than 20 bytes.";
    10 BadIpv4Length "bad_ipv4_length" "The IPv4 total length is less than the header or more than the frame.";
    11 TruncatedIpv6 "truncated_ipv6" "The frame ends inside the IPv6 header.";
    12 BadIpv6Version "bad_ipv6_version" "The EtherType says IPv6 but the version field is not 6.";
    13 BadIpv6Length "bad_ipv6_length" "The IPv6 payload length is more than the frame.";
    14 TruncatedIpv6Extension "truncated_ipv6_extension" "The IPv6 packet ends inside an extension header.";
    15 TooManyIpv6Extensions "too_many_ipv6_extensions" "The IPv6 packet has more than six extension headers.";
    16 FirstFragment "first_fragment" "The packet is the first fragment of a fragmented packet.";
    17 LaterFragment "later_fragment" "The packet is a fragment without the transport header.";
    18 TruncatedTcp "truncated_tcp" "The IP packet ends inside the TCP header.";
    19 BadTcpOffset "bad_tcp_offset" "The TCP data offset is less than the header or more than the packet.";
    20 TruncatedUdp "truncated_udp" "The IP packet ends inside the UDP header.";
    21 BadUdpLength "bad_udp_length" "The UDP length is less than the header or more than the packet.";
    22 OtherHost "other_host" "The frame is addressed to another host: a switch flooded it.";
    23 MappedAddress "mapped_address" "An IPv6 packet has an IPv4-mapped address, which is not for the wire.";
    24 Answer "answer" "A backend's answer, which the kernel forwards with what the balancer has written into it.";
    25 TtlExceeded "ttl_exceeded" "The packet's TTL or hop limit is used up, and a tunnel or NAT takes one like a router.";
    26 TruncatedSctp "truncated_sctp" "The IP packet ends inside the SCTP header, or inside that of its first chunk.";
    27 BadSctpChunk "bad_sctp_chunk" "The length of the first SCTP chunk is less than its header or more than the packet.";
    32 NoBackend "no_backend" "The service has no backend for this packet.";
    33 NoNextHop "no_next_hop" "The kernel knows no next hop to the backend.";
    34 PendingFull "pending_full" "The table of flows that wait for a decision is full.";
    35 NoTable "no_table" "The service has no published table yet.";
    36 UnknownMethod "unknown_method" "The service's table is of a method that the data plane does not know.";
    37 InTransition "in_transition" "The flow's row is changing hands, and no flow may start there or none can be told.";
    38 NoCookie "no_cookie" "The packet's cookie leads nowhere, and the service drops such packets.";
    39 BehindGateway "behind_gateway" "The way to the backend leads through a router, which would send the packet back.";
    40 PastProgram "past_program" "The packet came to the host past the program, by an interface without it.";
    41 NoWayOut "no_way_out" "The way to the backend leads through an interface that the program cannot send by.";
    42 TooBig "too_big" "The packet is larger, with a tunnel's headers if it has one, than the way to the backend takes.";
    43 NoHeadroom "no_headroom" "The frame has no room in front of it for the tunnel's headers.";
    44 NoTunnelSource "no_tunnel_source" "This host has no address of the backend's family that a tunnel could begin at.";
    45 NoProgram "no_program" "A part of the program is missing; the control plane loads it anew when it starts.";
    46 UnknownQuote "unknown_quote" "An ICMP error quotes a packet of a connection that the service does not know.";
    47 NoPort "no_port" "All ports of the balancer that the connection could have had towards its backend are in use.";
    48 NoMapping "no_mapping" "A packet to a port of the balancer's, or about one, that no connection has.";
    49 ResetSent "reset_sent" "The packet's backend is down, and the service has connections there reset: its frame went back as the reset.";
    50 ResetLimited "reset_limited" "The packet would be answered by a reset, as its backend is down, but no more may be sent at the moment.";
    51 DeadBackend "dead_backend" "The packet's backend is down, and the service has connections there reset, but this is none that a reset answers.";
    52 TooBigTold "too_big_told" "The packet is larger, with a tunnel's headers if it has one, than the way to the backend takes; its sender was told by ICMP.";
    53 TtlTold "ttl_told" "The packet's TTL or hop limit is used up, and a tunnel or NAT takes one like a router; its sender was told by ICMP.";
    54 Untold "untold" "The packet's sender would be told by ICMP why it goes nowhere, but no more messages may be sent at the moment.";
    55 PathMtu "path_mtu" "A router says what the way to a backend behind a tunnel takes; the next packets follow it.";
    56 EchoAnswered "echo_answered" "An echo request to a service's address; its frame went back as the reply.";
    57 EchoLimited "echo_limited" "An echo request to a service's address, when no more could be answered at the moment.";
    58 DeniedSource "denied_source" "The service's lists of sources deny the packet's.";
    59 NewFlowCap "new_flow_cap" "The packet would begin a flow, and the service takes no more new ones at the moment.";
    60 SourceFlowCap "source_flow_cap" "The packet would begin a flow, and the service takes no more new ones of its source's prefix at the moment.";
    61 SourceConnectionCap "source_connection_cap" "The packet would begin a connection, and its source's prefix holds as many of the service's as it may.";
    62 NoClient "no_client" "The packet's source is none that a client has: no single host's, or its own backend's, and full NAT would hide that.";
}

impl Reason {
    /// The first code of the reasons that steering gives.
    const FIRST_STEERING_CODE: u8 = 32;

    /// Counters that a data plane keeps, one for each code below this.
    pub const SLOTS: u32 = 64;

    /// The code that counters and the C programs use.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Whether the packet was good and steering is what failed.
    pub const fn is_steering(self) -> bool {
        self.code() >= Self::FIRST_STEERING_CODE
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn codes_are_ordered_and_round_trip() {
        assert!(Reason::ALL.is_sorted_by(|a, b| a.code() < b.code()));
        for &reason in Reason::ALL {
            assert_eq!(Reason::from_code(reason.code()), Some(reason));
        }
        let known = (0..=u8::MAX).filter_map(Reason::from_code).count();
        assert_eq!(known, Reason::ALL.len());
        assert_eq!(Reason::from_code(0), None);
    }

    #[test]
    fn names_are_the_variants_in_snake_case() {
        for &reason in Reason::ALL {
            let mut snake = String::new();
            for letter in format!("{reason:?}").chars() {
                if letter.is_uppercase() && !snake.is_empty() {
                    snake.push('_');
                }
                snake.extend(letter.to_lowercase());
            }
            assert_eq!(reason.name(), snake);
        }
        let names: HashSet<_> = Reason::ALL.iter().map(|r| r.name()).collect();
        assert_eq!(names.len(), Reason::ALL.len());
    }

    #[test]
    fn steering_reasons_start_at_32() {
        assert!(!Reason::BadUdpLength.is_steering());
        assert!(Reason::NoBackend.is_steering());
        assert_eq!(Reason::NoBackend.code(), 32);
    }
}
