// What stands in frames, and what is known of a packet on its way.

header ethernet_t { bit<48> dst; bit<48> src; bit<16> kind; }

header vlan_t { bit<16> tag; bit<16> kind; }

header ipv4_t {
    bit<4> version; bit<4> words; bit<8> tos; bit<16> length;
    bit<16> id; bit<3> flags; bit<13> offset;
    bit<8> ttl; bit<8> protocol; bit<16> checksum;
    bit<32> src; bit<32> dst;
}

header ipv4_options_t { varbit<320> bytes; }

header ipv6_t {
    bit<4> version; bit<8> tos; bit<20> label;
    bit<16> length; bit<8> next; bit<8> hops;
    bit<128> src; bit<128> dst;
}

// An extension header of 2,048 bytes at most.
header extension_t { bit<8> next; bit<8> units; varbit<16368> bytes; }

header tcp_t {
    bit<16> src; bit<16> dst;
    bit<32> sequence; bit<32> acknowledged;
    bit<4> words; bit<4> reserved; bit<8> flags; bit<16> window;
    bit<16> checksum; bit<16> urgent;
}

// A TCP option in front of the timestamps, and these (RFC 7323 section 3). What follows them is not looked at.
header option_t { varbit<320> bytes; }

header stamps_t { bit<8> kind; bit<8> length; bit<32> value; bit<32> echo; }

header udp_t { bit<16> src; bit<16> dst; bit<16> length; bit<16> checksum; }

// In the order in which they leave.
struct headers_t {
    ethernet_t ethernet;
    vlan_t[2] vlan;
    ipv4_t outer4;
    ipv6_t outer6;
    ipv4_t ipv4;
    ipv4_options_t ipv4_options;
    ipv6_t ipv6;
    extension_t[6] extension;
    tcp_t tcp;
    option_t[31] options;
    stamps_t stamps;
    udp_t udp;
}

// What is to become of a packet.
const bit<2> UNDECIDED = 0; const bit<2> FORWARD = 1; const bit<2> DROP = 2; const bit<2> PASS = 3;

// Reasons, by the numbers that all planes have (crates/wire/src/reason.rs; a test compares them).
const bit<8> NOT_IP = 1; const bit<8> NO_SERVICE = 2; const bit<8> OTHER_PROTOCOL = 3;
const bit<8> TRUNCATED_ETHERNET = 4; const bit<8> TRUNCATED_VLAN = 5; const bit<8> TOO_MANY_VLANS = 6;
const bit<8> TRUNCATED_IPV4 = 7; const bit<8> BAD_IPV4_VERSION = 8; const bit<8> BAD_IPV4_HEADER_LENGTH = 9;
const bit<8> BAD_IPV4_LENGTH = 10; const bit<8> TRUNCATED_IPV6 = 11; const bit<8> BAD_IPV6_VERSION = 12;
const bit<8> BAD_IPV6_LENGTH = 13; const bit<8> TRUNCATED_IPV6_EXTENSION = 14;
const bit<8> TOO_MANY_IPV6_EXTENSIONS = 15; const bit<8> FIRST_FRAGMENT = 16; const bit<8> LATER_FRAGMENT = 17;
const bit<8> TRUNCATED_TCP = 18; const bit<8> BAD_TCP_OFFSET = 19; const bit<8> TRUNCATED_UDP = 20;
const bit<8> BAD_UDP_LENGTH = 21; const bit<8> OTHER_HOST = 22; const bit<8> MAPPED_ADDRESS = 23;
const bit<8> TTL_EXCEEDED = 25; const bit<8> NO_BACKEND_REASON = 32; const bit<8> NO_NEXT_HOP = 33;
const bit<8> PENDING_FULL = 34; const bit<8> NO_TABLE = 35; const bit<8> UNKNOWN_METHOD = 36;
const bit<8> NO_COOKIE = 38; const bit<8> TOO_BIG = 42;

// Methods, by the numbers that all planes have.
const bit<8> CONCURY = 1; const bit<8> RESIDUE = 6; const bit<8> CHEETAH = 4; const bit<8> CHEETAH_STATEFUL = 5;

// Flags of a table (crates/steering/src/table.rs).
const bit<32> RECORD = 1; const bit<32> PENDING = 2; const bit<32> MARK = 4; const bit<32> CLIENT = 8;
const bit<32> TURNS = 65536;

// An entry of a DIP array or a row: a backend's number, and a bit.
const bit<16> RESERVED = 0x8000; const bit<16> NUMBER = 0x7fff; const bit<16> NO_BACKEND = 0x7fff;

const bit<8> TCP = 6; const bit<8> UDP = 17;

// Four words that multiply and mix: see hash.p4.
struct key_t { bit<64> xor; bit<64> wide; bit<64> mul1; bit<64> mul2; }

struct meta_t {
    // How far the parser came: the last EtherType, the number of extension headers, of a fragment its offset and
    // whether more follow, the IP header's place, bytes of extension headers, the protocol that follows, and bytes
    // of TCP options that it has not looked at.
    bit<16> kind; bit<8> walked; bit<13> offset; bit<1> more;
    bit<16> l3; bit<16> extensions; bit<8> next; bit<16> left;
    // The flow, IPv4 addresses mapped into IPv6.
    bit<128> src; bit<128> dst;
    bit<16> src_port; bit<16> dst_port; bit<8> protocol;
    bit<16> bytes;
    bool starts; bool ends;
    // The service, and the table that decides this packet whatever is published meanwhile.
    bit<16> service;
    bit<32> table_number; bit<8> method; bit<32> flags;
    key_t key;
    // Of the pending table, whatever tables are published.
    key_t plane_key;
    bit<32> slot_base; bit<32> slots; bit<32> a_base; bit<32> a_cells; bit<32> b_base; bit<32> b_cells;
    bit<16> fallback; bit<64> inverse; bit<32> idle; bool asks_seen; bool refuses;
    // The state's ports after affinity, its hash under the table's key, and whether the flow is in the pending
    // table, at which place and with which backend; or a place for it.
    bit<32> ports;
    bit<64> hash;
    bool is_pending; bit<32> place; bit<16> known;
    // Among flows that are tracked: seconds, what is noted of this one, and who was silent longest, since when.
    bit<31> now; bit<63> noted; bit<32> oldest; bit<31> age;
    // The row's backend, and whether the flow's way is one that no new flow takes: on a reserved Dcode, or as an
    // exception.
    bit<16> row; bool kept;
    // The words of marks that the flow may have a lane in, and where they are.
    bit<64> word; bit<64> other_word; bit<32> word_at; bit<32> other_at;
    // The number of a server; the flow's partition, where its slots begin, and the place of one in it.
    bit<16> number; bit<32> partition; bit<32> first_slot; bit<16> index;
    // The decision.
    bit<2> verdict; bit<8> reason; bit<16> backend; bool is_new;
}
