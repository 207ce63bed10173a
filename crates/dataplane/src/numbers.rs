//! Numbers of the kernel plane. They are declared here for Rust; the build script, which includes
//! this file, writes them into a header for C.

/// Declares the constants and a list of them, which the build script reads.
macro_rules! numbers {
    ($list:ident: $($(#[doc = $doc:literal])+ $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[doc = $doc])+ pub const $name: $type = $value;)*

        /// Name, value and meaning of each.
        #[allow(dead_code, reason = "for the build script")]
        pub const $list: &[(&str, u64, &str)] =
            &[$((stringify!($name), $name as u64, concat!($($doc),+))),*];
    };
}

// The meaning of pinned memory depends on these: they are part of its stamp.
numbers! {
    KEPT:
    /// raised when something in the maps keeps its place and changes its meaning
    LAYOUT_REVISION: u32 = 2;

    /// MAC addresses that are compared with a frame's; with more interfaces any is accepted
    OWN_MACS: usize = 8;

    /// the entry of the service table is in use; beside port and protocol in `port_protocol`
    VIP_IN_USE: u32 = 1 << 24;
    /// which kind of prefix or block of ports it is of: above these bits; 0 is that of one address, and one
    /// port or any
    VIP_KIND_SHIFT: u32 = 25;
    /// kinds that there may be
    KINDS: u32 = 64;
    /// odd factor of a service's first slot
    VIP_FIRST: u64 = 0x9e37_79b9_7f4a_7c15;
    /// odd factor of its second slot
    VIP_SECOND: u64 = 0xd1b5_4a32_d192_ed03;
    /// odd factor of the upper half of the address
    VIP_HIGH: u64 = 0xaef1_7502_108e_f2d9;

    /// the backend's entry is in use
    BACKEND_PRESENT: u32 = 1;
    /// mac, source_mac and ifindex are usable when the FIB has no answer
    BACKEND_HAS_MAC: u32 = 2;
    /// never ask the FIB
    BACKEND_STATIC: u32 = 4;
    /// its address is IPv6
    BACKEND_IPV6: u32 = 8;
    /// down by its health check: what may start a flow goes elsewhere
    BACKEND_DOWN: u32 = 16;
    /// its tunnel has an address to begin at
    BACKEND_HAS_SOURCE: u32 = 32;
    /// it is down, and what comes for it is answered by resets
    BACKEND_RESETS: u32 = 64;

    /// the upper half of the flags: the largest segment that SYNs to it may ask for; 0: any
    BACKEND_MSS_SHIFT: u32 = 16;
    /// what the way takes
    MSS_AUTO: u32 = 0xffff;

    /// packets reach it as they are, with other MAC addresses
    TUNNEL_NONE: u8 = 0;
    /// IP in IP: RFC 2003, 2473 and 4213
    TUNNEL_IPIP: u8 = 1;
    /// RFC 2784 without options
    TUNNEL_GRE: u8 = 2;
    /// IP in UDP, where the port says of which family
    TUNNEL_FOU: u8 = 3;
    /// the same with a header that says it (draft-ietf-intarea-gue-09)
    TUNNEL_GUE: u8 = 4;
    /// no tunnel: the packet itself gets the backend's address and port
    TUNNEL_NAT: u8 = 5;
    /// the same, and a source of the balancer's own
    TUNNEL_FULL_NAT: u8 = 6;

    /// frames to the backend leave with a VLAN tag
    LANE_TAGGED: u32 = 1;
    /// they leave through a tunnel
    LANE_TUNNEL: u32 = 2;
    /// they leave with the backend's address in them
    LANE_NAT: u32 = 8;
    /// they leave by an interface that takes less than may come in
    LANE_NARROW: u32 = 16;
    /// ways to clients that each processor remembers; a power of two
    WAYS: u32 = 4096;
    /// 64 - log2 of it
    WAYS_SHIFT: u32 = 52;
    /// SYNs may ask for segments of a certain size at most
    LANE_MSS: u32 = 4;
    /// they leave without a tag in a tunnel over IPv4, or with the backend's address in them, and need nothing else
    LANE_PLAIN: u32 = 32;

    /// addresses of the balancer's that sources are taken from, of all services
    ORIGINS: u32 = 256;
    /// beside the protocol in a key of `translations`: it is such an address
    TRANSLATED_ORIGIN: u32 = 1 << 24;
    /// ports that are tried for a connection
    MAPPING_TRIES: u32 = 16;
    /// log2 of the nanoseconds of a tick, by which mappings grow old: 1.07 seconds
    MAPPING_TICK_SHIFT: u32 = 30;
    /// somebody is writing the mapping
    MAPPING_BUSY: u32 = 1 << 24;
    /// it is a connection's, or was
    MAPPING_HELD: u32 = 1 << 25;
    /// the backend has answered
    MAPPING_ANSWERED: u32 = 1 << 26;
    /// the client has sent FIN
    MAPPING_CLIENT_ENDED: u32 = 1 << 27;
    /// the backend has
    MAPPING_BACKEND_ENDED: u32 = 1 << 28;
    /// one of them has sent RST
    MAPPING_RESET: u32 = 1 << 29;
    /// those of nobody yet, or of a connection that has ended, change their bearer; how often it did
    MAPPING_CLAIMS: u32 = 0x00ff_ffff;
    /// how long a mapping is kept, by what is known of its connection: nobody has answered
    MAPPING_OPENING: u32 = 0;
    /// it has ended
    MAPPING_CLOSED: u32 = 1;
    /// it is one of TCP
    MAPPING_TCP: u32 = 2;
    /// it is one of UDP
    MAPPING_UDP: u32 = 3;
    /// times that are set
    MAPPING_TIMES: usize = 4;

    /// ICMP errors that the program sends have a rate of their own
    ERRORS: u32 = 0;
    /// replies to echo requests
    ECHOES: u32 = 1;
    /// resets of connections whose backend is down
    RESETS: u32 = 2;
    /// rates
    BUCKETS: usize = 3;
    /// ICMP messages that a processor sends at once, before the rate that is set
    MESSAGE_BURST: u64 = 50;

    /// what a router has said of a way's MTU holds so long: ten minutes (RFC 1191, RFC 8201)
    PATH_NANOSECONDS: u64 = 600_000_000_000;
    /// the smallest MTU of a way over IPv4 that is believed: 552 bytes in the largest tunnel
    LEAST_PATH_IPV4: u32 = 584;

    /// what a redirect there is given is lost
    DEVICE_REFUSED: u32 = 1;

    /// beside the number of a service's table: its packets are led by their QUIC ids first
    TABLE_BY_ID: u32 = 1 << 30;
    /// not all sources are taken
    TABLE_LISTED: u32 = 1 << 29;
    /// which of the service's two lists of sources says so
    TABLE_LIST_SIDE: u32 = 1 << 28;
    /// bits of an address that a node of such a list decides
    SOURCE_STRIDE: u32 = 6;
    /// its address is one of several: the state of a flow depends on which
    TABLE_SALTED: u32 = 1 << 27;
    /// not all new flows are taken
    TABLE_CAPPED: u32 = 1 << 26;
    /// more nodes are passed by no source
    SOURCE_STEPS: u32 = 22;
    /// of a node that passes over bits: the answer for sources with others
    SOURCE_OTHERS_ALLOWED: u64 = 1 << 8;
    /// words of an expanded AES key
    AES_WORDS: usize = 44;
    /// configurations of a service, by the first three bits of an id; the last one is none
    QUIC_CONFIGS: u32 = 8;
    /// the server id stands there as it is
    QUIC_PLAIN: u8 = 0;
    /// the block is one of AES
    QUIC_SINGLE: u8 = 1;
    /// three passes make the left half, which has the server id
    QUIC_THREE: u8 = 2;
    /// four passes make both halves
    QUIC_FOUR: u8 = 3;
    /// packets of which a first fragment is remembered
    FRAGMENTS: u32 = 16_384;
    /// so long: hosts put fragments together within 30 seconds (Linux), or 60 (RFC 8200)
    FRAGMENT_SECONDS: u32 = 60;
    /// ids whose backend each processor remembers, at least; a power of two
    QUIC_KNOWN: u32 = 8192;
    /// outcomes that are counted of ids; their order is weir_plane's
    QUIC_OUTCOMES: u32 = 7;

    /// some service takes any port
    UNUSUAL_ANY_PORT: u32 = 1;
    /// answers of some service pass here
    UNUSUAL_ANSWERS: u32 = 2;
    /// answers of some service are translated
    UNUSUAL_NAT: u32 = 4;
    /// those of some backend from any port
    UNUSUAL_NAT_ANY: u32 = 8;
    /// some service takes a prefix or a block of ports: what takes any port stands among these, too
    UNUSUAL_WIDE: u32 = 32;
    /// or come to an address of the balancer's, beside UNUSUAL_NAT
    UNUSUAL_FULL_NAT: u32 = 16;

    /// a timestamp of the backend was seen
    ANSWER_STARTED: u8 = 1;
    /// no timestamp of the backend was seen, but an echo of the client
    ANSWER_HEARD: u8 = 2;
    /// the client has not echoed anything new since `unheard`
    ANSWER_UNHEARD: u8 = 4;
    /// an end has sent FIN or RST
    ANSWER_ENDED: u8 = 8;
    /// it counts among the open connections of its backend
    ANSWER_COUNTED: u8 = 16;

    /// a tracked connection that counts among the open ones of its backend; no number of Cheetah's
    TRACKED_OPEN: u16 = 0xffff;
    /// one that has ended, as FIN or RST has said since its last first packet; no number of Cheetah's
    TRACKED_ENDED: u16 = 0xfffe;

    /// a packet of a flow that is known at the backend did not echo the cookie that it was told
    ECHOES_BARE: u32 = 1;
    /// one did, since somebody's did not
    ECHOES_OWN: u32 = 2;

    /// the word of a slot of connections by index: the second of its latest packet, from this bit on
    SLOT_LAST_SHIFT: u32 = 32;
    /// its state, from this bit on
    SLOT_STATE_SHIFT: u32 = 30;
    /// the number of its server, from this bit on
    SLOT_SERVER_SHIFT: u32 = 15;
    /// bits of the backend, which are the lowest, and of the server's number
    SLOT_WHO: u32 = 0x7fff;
    /// the head of a stack of free slots: how often it has changed, from this bit on
    HEAD_TAG_SHIFT: u32 = 32;
    /// bits of the slot on top; and of how far the next free one is behind a slot
    HEAD_TOP: u32 = 0xffff;
    /// bits of the number of slots in use
    HEAD_USED: u32 = 0xffff_0000;
    /// a slot more in use
    HEAD_ONE_USED: u32 = 0x1_0000;

    /// nanoseconds shifted right by so many bits are the ticks until which counts of connections are believed
    HELD_TICK_SHIFT: u32 = 30;
    /// the bits of a limit that say how many connections a prefix may hold
    HELD_MOST: u32 = 0xff_ffff;
    /// where the number of the latest count stands in a limit, and above it the tick
    HELD_COUNT_SHIFT: u32 = 24;
}

// These are made anew with each program.
numbers! {
    PASSING:
    /// while memory becomes another's: the old program decides
    HOLD_FORMER: u32 = 0;
    /// nobody does; IP frames are dropped until then
    HOLD_NOBODY: u32 = 1;
    /// the new program does
    HOLD_NEXT: u32 = 2;
    /// where the old program stands among the parts; not where others have what sees the packets that they pass on
    SIDE_FORMER: u32 = 2;
    /// where the new one does
    SIDE_NEXT: u32 = 3;

    /// in a note, or in what is looked for: none, or any
    TRACE_NONE: u32 = 0xffff_ffff;

    /// buckets of each of both rows that prefixes of sources have, of all services; a power of two
    CAP_ROW: u32 = 1 << 16;
    /// a bucket that others take out of is tried so often
    CAP_TRIES: u32 = 8;
    /// counters of each of both rows that tell how many connections prefixes hold; a power of two
    HELD_ROW: u32 = 1 << 18;
    /// while so many connections are counted for each one that a prefix may hold, none is refused
    HELD_CROWD: u32 = 1 << 16;
    /// places for connections that were counted lately; a power of two
    HELD_FLOWS: u32 = 1 << 17;

    /// backends of the programs that measure bounds; a power of two
    BOUND_BACKENDS: u32 = 64;
    /// slots that the one of concury reads; a power of two
    BOUND_SLOTS: u32 = 4096;
    /// bytes of an entry of the connection table, if it were one line and had no chain
    BOUND_ENTRY: u32 = 64;
}
