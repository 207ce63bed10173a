// How a packet gets to its backend: as it is, with other MAC addresses, or inside another packet.

// Packets, bytes from the IP header on, and flows that began, of each backend.
register<bit<48>>(BACKENDS) lane_packets;
register<bit<48>>(BACKENDS) lane_bytes;
register<bit<48>>(BACKENDS) lane_flows;
// Packets that were not forwarded, by reason.
register<bit<48>>(REASONS) passed;
register<bit<48>>(REASONS) dropped;

const bit<64> SPREAD_LOW = 0xaef17502108ef2d9;
const bit<64> SPREAD_FIRST = 0x9e3779b97f4a7c15; const bit<64> SPREAD_SECOND = 0xd1b54a32d192ed03;

// IPIP (RFC 2003, RFC 2473, RFC 4213). One is taken from the TTL, as a router does, so that a loop ends.
control Encapsulate(inout headers_t hdr, inout meta_t meta, in bit<128> source,
                    in bit<128> destination, in bool outer_is_ipv6, in bit<32> most) { apply {
    bit<8> ttl = hdr.ipv4.isValid() ? hdr.ipv4.ttl : hdr.ipv6.hops;
    bit<8> tos = hdr.ipv4.isValid() ? hdr.ipv4.tos : hdr.ipv6.tos;
    bit<8> protocol = hdr.ipv4.isValid() ? 8w4 : 8w41;
    bit<32> larger = (bit<32>)meta.bytes + (outer_is_ipv6 ? 32w40 : 32w20);
    if (ttl <= 1) {
        REFUSE(TTL_EXCEEDED)
    } else if (larger > most) {
        REFUSE(TOO_BIG)
    } else {
        if (hdr.ipv4.isValid()) {
            // RFC 1624, as all planes have it.
            bit<32> sum = (bit<32>)(hdr.ipv4.checksum[7:0] ++ hdr.ipv4.checksum[15:8]) + 1;
            if (sum >= 0xffff) { sum = sum + 1; }
            hdr.ipv4.checksum = sum[7:0] ++ sum[15:8];
            hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        } else {
            hdr.ipv6.hops = hdr.ipv6.hops - 1;
        }
        hdr.vlan[0].setInvalid(); hdr.vlan[1].setInvalid();
        if (outer_is_ipv6) {
            // The label tells flows apart, as the outer addresses do not.
            bit<64> high; bit<64> low; bit<64> to;
            swap64(meta.src[127:64], high);
            swap64(meta.src[63:0], low);
            swap64(meta.dst[63:0], to);
            if (hdr.ipv4.isValid()) {
                low = low >> 32;
                to = to >> 32;
            }
            bit<32> ports = meta.src_port ++ meta.dst_port;
            // In IPv6 the ports count where they follow the header at once.
            if (hdr.ipv6.isValid() && meta.extensions != 0) { ports = 0; }
            bit<64> mixed = high ^ (low * SPREAD_LOW) ^ to
                ^ (bit<64>)(ports[7:0] ++ ports[15:8] ++ ports[23:16] ++ ports[31:24]);
            mixed = mixed * SPREAD_FIRST;
            mixed = (mixed ^ (mixed >> 32)) * SPREAD_SECOND;
            hdr.ethernet.kind = KIND_IPV6;
            hdr.outer6 = { 6, tos, mixed[51:32], meta.bytes, protocol, 64, source, destination };
        } else {
            hdr.ethernet.kind = KIND_IPV4;
            hdr.outer4 = { 4, 5, tos, meta.bytes + 20, 0, 2, 0, 64, protocol, 0, source[31:0], destination[31:0] };
        }
    }
} }

control Forward(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    Encapsulate() encapsulate;
    bit<8> how = 0; bit<128> source = 0; bit<128> destination = 0; bit<32> most = 0;

    @name(".send") action send(bit<9> port, bit<48> next_hop, bit<48> own) {
        // Without one of its own, it goes back by the port that it came in by.
        standard.egress_spec = port == 0 ? standard.ingress_port : port;
        hdr.ethernet.dst = next_hop;
        hdr.ethernet.src = own;
    }
    @name(".tunnel") action tunnel(bit<9> port, bit<48> next_hop, bit<48> own, bit<8> version, bit<128> from,
                                   bit<128> to, bit<32> mtu) {
        send(port, next_hop, own);
        source = from; destination = to; most = mtu; how = version;
    }
    @name(".nowhere") action nowhere() { REFUSE(NO_NEXT_HOP) }
    @name(".backends") table backends {
        key = { meta.backend: exact; }
        actions = { send; tunnel; nowhere; } default_action = nowhere(); size = 4096;
    }

    apply {
        backends.apply();
        if (how != 0) { encapsulate.apply(hdr, meta, source, destination, how == 6, most); }
    }
}

control Count(in meta_t meta) { apply {
    bit<48> count;
    bit<32> lane = (bit<32>)meta.backend;
    if (meta.verdict == FORWARD) {
        ADD(lane_packets, lane, 1)
        ADD(lane_bytes, lane, (bit<48>)meta.bytes)
        if (meta.is_new) { ADD(lane_flows, lane, 1) }
    } else if (meta.verdict == DROP) {
        ADD(dropped, (bit<32>)meta.reason, 1)
    } else {
        ADD(passed, (bit<32>)meta.reason, 1)
    }
} }
