// From bytes to headers. What is a fault is said in service.p4, in the order in which all planes look: the
// parser only notes where it stopped, and reads as far as the frame goes.

const bit<16> KIND_IPV4 = 0x0800; const bit<16> KIND_IPV6 = 0x86dd;
const bit<16> KIND_VLAN = 0x8100; const bit<16> KIND_SERVICE_VLAN = 0x88a8;

parser WeirParser(packet_in packet, out headers_t hdr, inout meta_t meta,
                  inout standard_metadata_t standard) {
    bit<16> ahead;
    bit<32> bits;

    state start {
        meta.l3 = 14;
        packet.extract(hdr.ethernet);
        meta.kind = hdr.ethernet.kind;
        transition network;
    }

    state network {
        transition select(meta.kind) {
            KIND_VLAN: vlan;
            KIND_SERVICE_VLAN: vlan;
            KIND_IPV4: ipv4;
            KIND_IPV6: ipv6;
            default: accept;
        }
    }

    // A third tag finds no room, which ends it.
    state vlan {
        packet.extract(hdr.vlan.next);
        meta.l3 = meta.l3 + 4;
        meta.kind = hdr.vlan.last.kind;
        transition network;
    }

    state ipv4 {
        packet.extract(hdr.ipv4);
        meta.next = hdr.ipv4.protocol;
        meta.offset = hdr.ipv4.offset;
        transition select(hdr.ipv4.version, hdr.ipv4.words) { (4, 5): whole; (4, 6 .. 15): options; default: accept; }
    }

    state options { packet.extract(hdr.ipv4_options, (bit<32>)(((bit<32>)hdr.ipv4.words - 5) << 5)); transition whole; }

    // Fragments have no ports that count.
    state whole {
        transition select(hdr.ipv4.flags[0:0], hdr.ipv4.offset, meta.next) {
            (0, 0, TCP): tcp;
            (0, 0, UDP): udp;
            default: accept;
        }
    }

    state ipv6 {
        packet.extract(hdr.ipv6);
        meta.next = hdr.ipv6.next;
        transition select(hdr.ipv6.version) { 6: next_header; default: accept; }
    }

    state next_header {
        transition select(meta.walked, meta.next) {
            (_, TCP): tcp;
            (_, UDP): udp;
            (0 .. 5, 0): extension;
            (0 .. 5, 43): extension;
            (0 .. 5, 60): extension;
            (0 .. 5, 44): fragment;
            (0 .. 5, 51): extension;
            default: accept;
        }
    }

    // In units of 8 bytes; an authentication header in those of 4, minus 2 (RFC 4302 section 2.2).
    state extension {
        ahead = packet.lookahead<bit<16>>();
        bits = ((bit<32>)ahead[7:0] << (meta.next == 51 ? 8w5 : 8w6)) + 48;
        packet.extract(hdr.extension.next, bits);
        meta.extensions = meta.extensions + (bit<16>)((bits + 16) >> 3);
        meta.next = ahead[15:8];
        meta.walked = meta.walked + 1;
        transition next_header;
    }

    // A packet in one fragment (RFC 6946) is whole; in others nothing that follows counts.
    state fragment {
        bit<64> whole_header = packet.lookahead<bit<64>>();
        packet.extract(hdr.extension.next, 48);
        meta.extensions = meta.extensions + 8;
        meta.next = whole_header[63:56];
        meta.walked = meta.walked + 1;
        meta.offset = whole_header[47:35];
        meta.more = whole_header[32:32];
        transition select(meta.offset, meta.more) { (0, 0): next_header; default: accept; }
    }

    // Options one by one, until the timestamps are there or it is open where they are: they take ten bytes, so that
    // there are 31 others before them at most. The twin of crates/wire/src/tcp_options.rs.
    state tcp {
        packet.extract(hdr.tcp);
        meta.left = ((bit<16>)hdr.tcp.words << 2) - 20;
        transition select(hdr.tcp.words) { 8 .. 15: option; default: accept; }
    }

    state option {
        ahead = packet.lookahead<bit<16>>();
        bits = ahead[15:8] == 1 ? 32w8 : (bit<32>)ahead[7:0] << 3;
        meta.left = meta.left - (bit<16>)(bits >> 3);
        transition select(ahead) {
            0x0100 &&& 0xff00: skip;
            0x080a: stamps;
            0x0800 &&& 0xff00: accept;
            0x0000 &&& 0xff00: accept;
            0x0000 &&& 0x00fe: accept;
            default: skip;
        }
    }

    // One that goes on behind all options leaves less than nothing.
    state skip {
        transition select(meta.left) { 10 .. 40: skip_whole; default: accept; }
    }

    state skip_whole { packet.extract(hdr.options.next, bits); transition option; }

    state stamps { packet.extract(hdr.stamps); transition accept; }

    state udp { packet.extract(hdr.udp); transition accept; }
}
