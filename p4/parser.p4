// From bytes to headers. What is a fault is said in service.p4, in the order in which all planes look: the
// parser only notes where it stopped, and reads as far as the frame goes.

const bit<16> KIND_IPV4 = 0x0800;
const bit<16> KIND_IPV6 = 0x86dd;
const bit<16> KIND_VLAN = 0x8100;
const bit<16> KIND_SERVICE_VLAN = 0x88a8;

parser WeirParser(packet_in packet, out headers_t hdr, inout meta_t meta,
                  inout standard_metadata_t standard) {
    bit<16> ahead;
    bit<32> bits;

    state start {
        meta.l3 = 14;
        meta.extensions = 0;
        meta.walked = 0;
        meta.offset = 0;
        packet.extract(hdr.ethernet);
        meta.kind = hdr.ethernet.kind;
        transition select(hdr.ethernet.kind) {
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
        transition select(hdr.vlan.last.kind) {
            KIND_VLAN: vlan;
            KIND_SERVICE_VLAN: vlan;
            KIND_IPV4: ipv4;
            KIND_IPV6: ipv6;
            default: accept;
        }
    }

    state ipv4 {
        packet.extract(hdr.ipv4);
        meta.next = hdr.ipv4.protocol;
        meta.offset = hdr.ipv4.offset;
        transition select(hdr.ipv4.version, hdr.ipv4.words) {
            (4, 5): whole;
            (4, 6 .. 15): options;
            default: accept;
        }
    }

    state options {
        packet.extract(hdr.ipv4_options, (bit<32>)(((bit<32>)hdr.ipv4.words - 5) << 5));
        transition whole;
    }

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
        transition select(hdr.ipv6.version) {
            6: next_header;
            default: accept;
        }
    }

    state next_header {
        transition select(meta.walked, meta.next) {
            (_, TCP): tcp;
            (_, UDP): udp;
            (0 .. 5, 0): extension;
            (0 .. 5, 43): extension;
            (0 .. 5, 60): extension;
            (0 .. 5, 44): fragment;
            (0 .. 5, 51): authentication;
            default: accept;
        }
    }

    state extension {
        ahead = packet.lookahead<bit<16>>();
        bits = ((bit<32>)ahead[7:0] << 6) + 48;
        transition step;
    }

    // RFC 4302 section 2.2: in units of 4 bytes, minus 2.
    state authentication {
        ahead = packet.lookahead<bit<16>>();
        bits = ((bit<32>)ahead[7:0] << 5) + 48;
        transition step;
    }

    state step {
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
        transition select(meta.offset, meta.more) {
            (0, 0): next_header;
            default: accept;
        }
    }

    state tcp {
        packet.extract(hdr.tcp);
        transition accept;
    }

    state udp {
        packet.extract(hdr.udp);
        transition accept;
    }
}
