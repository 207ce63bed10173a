// From bytes to headers. What is a fault is said in service.p4, in the order in which all planes look: the
// parser only notes where it stopped, and reads as far as the frame goes.

const bit<16> KIND_IPV4 = 0x0800;
const bit<16> KIND_IPV6 = 0x86dd;
const bit<16> KIND_VLAN = 0x8100;
const bit<16> KIND_SERVICE_VLAN = 0x88a8;

parser WeirParser(packet_in packet, out headers_t hdr, inout meta_t meta,
              inout standard_metadata_t standard) {
    bit<8> walked;

    state start {
        // Of a frame that ends in the middle of a header, this is what stays.
        meta.wrong = TRUNCATED_ETHERNET;
        meta.l3 = 14;
        meta.extensions = 0;
        walked = 0;
        packet.extract(hdr.ethernet);
        meta.wrong = TRUNCATED_VLAN;
        transition select(hdr.ethernet.kind) {
            KIND_VLAN: vlan;
            KIND_SERVICE_VLAN: vlan;
            KIND_IPV4: ipv4;
            KIND_IPV6: ipv6;
            default: not_ip;
        }
    }

    state vlan {
        packet.extract(hdr.vlan[0]);
        meta.l3 = 18;
        transition select(hdr.vlan[0].kind) {
            KIND_VLAN: second_vlan;
            KIND_SERVICE_VLAN: second_vlan;
            KIND_IPV4: ipv4;
            KIND_IPV6: ipv6;
            default: not_ip;
        }
    }

    state second_vlan {
        packet.extract(hdr.vlan[1]);
        meta.l3 = 22;
        transition select(hdr.vlan[1].kind) {
            KIND_VLAN: third_vlan;
            KIND_SERVICE_VLAN: third_vlan;
            KIND_IPV4: ipv4;
            KIND_IPV6: ipv6;
            default: not_ip;
        }
    }

    state third_vlan {
        meta.wrong = TOO_MANY_VLANS;
        transition accept;
    }

    state not_ip {
        meta.wrong = NOT_IP;
        transition accept;
    }

    state ipv4 {
        meta.wrong = TRUNCATED_IPV4;
        packet.extract(hdr.ipv4);
        meta.wrong = 0;
        meta.next = hdr.ipv4.protocol;
        transition select(hdr.ipv4.version, hdr.ipv4.words) {
            (4, 0 .. 4): accept;
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
        meta.wrong = TRUNCATED_IPV6;
        packet.extract(hdr.ipv6);
        meta.wrong = 0;
        meta.next = hdr.ipv6.next;
        transition select(hdr.ipv6.version) {
            6: next_header;
            default: accept;
        }
    }

    state next_header {
        transition select(meta.next) {
            TCP: tcp;
            UDP: udp;
            0: extension;
            43: extension;
            44: fragment;
            51: authentication;
            60: extension;
            default: other_header;
        }
    }

    state other_header {
        meta.wrong = OTHER_PROTOCOL;
        transition accept;
    }

    state extension {
        transition select(walked) {
            6: too_many;
            default: read_extension;
        }
    }

    state too_many {
        meta.wrong = TOO_MANY_IPV6_EXTENSIONS;
        transition accept;
    }

    state read_extension {
        meta.wrong = TRUNCATED_IPV6_EXTENSION;
        bit<16> ahead = packet.lookahead<bit<16>>();
        bit<32> bits = ((bit<32>)ahead[7:0] << 6) + 48;
        packet.extract(hdr.extension.next, bits);
        meta.extensions = meta.extensions + (bit<16>)((bits + 16) >> 3);
        meta.next = ahead[15:8];
        walked = walked + 1;
        meta.wrong = 0;
        transition next_header;
    }

    // RFC 4302 section 2.2: in units of 4 bytes, minus 2.
    state authentication {
        transition select(walked) {
            6: too_many;
            default: read_authentication;
        }
    }

    state read_authentication {
        meta.wrong = TRUNCATED_IPV6_EXTENSION;
        bit<16> ahead = packet.lookahead<bit<16>>();
        bit<32> bits = ((bit<32>)ahead[7:0] << 5) + 48;
        packet.extract(hdr.extension.next, bits);
        meta.extensions = meta.extensions + (bit<16>)((bits + 16) >> 3);
        meta.next = ahead[15:8];
        walked = walked + 1;
        meta.wrong = 0;
        transition next_header;
    }

    state fragment {
        transition select(walked) {
            6: too_many;
            default: read_fragment;
        }
    }

    // A packet in one fragment (RFC 6946) is whole.
    state read_fragment {
        meta.wrong = TRUNCATED_IPV6_EXTENSION;
        bit<64> ahead = packet.lookahead<bit<64>>();
        packet.extract(hdr.extension.next, 48);
        meta.extensions = meta.extensions + 8;
        meta.next = ahead[63:56];
        walked = walked + 1;
        meta.wrong = 0;
        transition select(ahead[47:35], ahead[32:32]) {
            (0, 0): next_header;
            (0, 1): first_fragment;
            default: later_fragment;
        }
    }

    state first_fragment {
        meta.wrong = FIRST_FRAGMENT;
        transition accept;
    }

    state later_fragment {
        meta.wrong = LATER_FRAGMENT;
        transition accept;
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
