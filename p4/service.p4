// What the packet is, whose, and which table decides it.

// Of each service: in the low half 1 if there is a table and 2 if it is the second of its two; above, its flags.
register<bit<48>>(SERVICES) selectors;

// The fault of a packet whose IP header is credible; 0 for none. In the order of crates/wire/src/parse.rs.
control Check(in headers_t hdr, inout meta_t meta, in bit<32> frame) { apply {
    bool is_ipv4 = hdr.ipv4.isValid();
    bit<32> head = is_ipv4 ? (bit<32>)hdr.ipv4.words << 2 : 40 + (bit<32>)meta.extensions;
    bit<32> end = is_ipv4 ? (bit<32>)hdr.ipv4.length : 40 + (bit<32>)hdr.ipv6.length;
    bool beyond = (bit<32>)meta.l3 + end > frame;
    bool fragments = meta.offset != 0 || (is_ipv4 ? hdr.ipv4.flags[0:0] : meta.more) != 0;
    bool extends = meta.next == 0 || meta.next == 43 || meta.next == 44 || meta.next == 51
        || meta.next == 60;
    bit<32> segment = end - head;
    meta.bytes = (bit<16>)end;
    bit<32> offset = (bit<32>)hdr.tcp.words << 2;
    meta.reason = meta.next == TCP || meta.next == UDP ? 8w0 : OTHER_PROTOCOL;
    if (is_ipv4 && frame < (bit<32>)meta.l3 + head) { meta.reason = TRUNCATED_IPV4; }
    else if (is_ipv4 && (end < head || beyond)) { meta.reason = BAD_IPV4_LENGTH; }
    else if (beyond) { meta.reason = BAD_IPV6_LENGTH; }
    else if (head > end) { meta.reason = TRUNCATED_IPV6_EXTENSION; }
    else if (fragments) { meta.reason = meta.offset != 0 ? LATER_FRAGMENT : FIRST_FRAGMENT; }
    // One that is not there as a whole was not read.
    else if (!is_ipv4 && extends) {
        meta.reason = meta.walked == 6 ? TOO_MANY_IPV6_EXTENSIONS : TRUNCATED_IPV6_EXTENSION;
    }
    else if (meta.next == TCP && segment < 20) { meta.reason = TRUNCATED_TCP; }
    else if (meta.next == TCP && (offset < 20 || offset > segment)) { meta.reason = BAD_TCP_OFFSET; }
    else if (meta.next == UDP && segment < 8) { meta.reason = TRUNCATED_UDP; }
    else if (meta.next == UDP && (hdr.udp.length < 8 || (bit<32>)hdr.udp.length > segment)) {
        meta.reason = BAD_UDP_LENGTH;
    }
} }

// The fault of a frame without a credible IP header, or 0; and the addresses, IPv4 mapped into IPv6.
control Addresses(in headers_t hdr, inout meta_t meta) { apply {
    meta.reason = 0;
    if (hdr.ipv4.isValid()) {
        meta.src = 96w0xffff ++ hdr.ipv4.src;
        meta.dst = 96w0xffff ++ hdr.ipv4.dst;
        if (hdr.ipv4.version != 4) { meta.reason = BAD_IPV4_VERSION; }
        else if (hdr.ipv4.words < 5) { meta.reason = BAD_IPV4_HEADER_LENGTH; }
    } else if (hdr.ipv6.isValid()) {
        meta.src = hdr.ipv6.src;
        meta.dst = hdr.ipv6.dst;
        bool mapped = meta.src[127:32] == 0xffff || meta.dst[127:32] == 0xffff;
        if (hdr.ipv6.version != 6) { meta.reason = BAD_IPV6_VERSION; }
        else if (mapped) { meta.reason = MAPPED_ADDRESS; }
    }
    else if (!hdr.ethernet.isValid()) { meta.reason = TRUNCATED_ETHERNET; }
    else if (meta.kind == KIND_IPV4) { meta.reason = TRUNCATED_IPV4; }
    else if (meta.kind == KIND_IPV6) { meta.reason = TRUNCATED_IPV6; }
    else if (meta.kind != KIND_VLAN && meta.kind != KIND_SERVICE_VLAN) { meta.reason = NOT_IP; }
    else { meta.reason = hdr.vlan[1].isValid() ? TOO_MANY_VLANS : TRUNCATED_VLAN; }
} }

// Leaves a verdict, or a table to decide by.
control FindService(in headers_t hdr, inout meta_t meta, in bit<32> frame) {
    Addresses() find;
    Check() check;
    bool is_ours;

    @name(".set_service") action set_service(bit<16> service) { meta.service = service; }
    @name(".no_service") action no_service() { meta.verdict = PASS; meta.reason = NO_SERVICE; }
    @name(".services") table services {
        key = { meta.dst: exact; meta.protocol: exact; meta.dst_port: exact; }
        actions = { set_service; NoAction; } size = 1024;
    }
    // Those that take any port.
    @name(".any_port") table any_port {
        key = { meta.dst: exact; meta.protocol: exact; }
        actions = { set_service; no_service; } default_action = no_service(); size = 1024;
    }
    @name(".known_address") action known_address() { }
    @name(".addresses") table addresses {
        key = { meta.dst: exact; }
        actions = { known_address; NoAction; } size = 1024;
    }
    @name(".ours") action ours() { is_ours = true; }
    // Our MAC addresses. The default action takes any, until the control plane says otherwise.
    @name(".not_ours") action not_ours() { is_ours = false; }
    @name(".own_macs") table own_macs {
        key = { hdr.ethernet.dst: exact; }
        actions = { ours; not_ours; } default_action = ours(); size = 64;
    }
    @name(".no_table") action no_table() { REFUSE(NO_TABLE) }
    @name(".set_image") action set_image(bit<8> method, bit<8> asks_seen, bit<64> xor, bit<64> wide, bit<64> mul1,
                     bit<64> mul2, bit<32> slot_base, bit<32> slot_count, bit<32> a_base,
                     bit<32> a_cells, bit<32> b_base, bit<32> b_cells, bit<16> fallback, bit<64> inverse,
                     bit<32> idle, bit<8> refuses) {
        meta.method = method;
        meta.asks_seen = asks_seen != 0;
        meta.key = { xor, wide, mul1, mul2 };
        meta.slot_base = slot_base; meta.slots = slot_count;
        meta.a_base = a_base; meta.a_cells = a_cells; meta.b_base = b_base; meta.b_cells = b_cells;
        meta.fallback = fallback; meta.inverse = inverse; meta.idle = idle; meta.refuses = refuses != 0;
    }
    @name(".images") table images {
        key = { meta.table_number: exact; }
        actions = { set_image; no_table; } default_action = no_table(); size = 512;
    }
    @name(".set_plane_key") action set_plane_key(bit<64> xor, bit<64> wide, bit<64> mul1, bit<64> mul2) {
        meta.plane_key = { xor, wide, mul1, mul2 };
    }
    // Until the control plane has set it, nothing is decided: a switch that was started anew is empty.
    @name(".plane_keys") table plane_keys {
        actions = { set_plane_key; no_table; } default_action = no_table();
    }

    apply {
        find.apply(hdr, meta);
        if (meta.reason != 0) {
            meta.verdict = PASS;
        } else {
            check.apply(hdr, meta, frame);
            if (meta.reason != 0) {
                bool is_address = addresses.apply().hit;
                meta.verdict = is_address && meta.reason != OTHER_PROTOCOL ? DROP : PASS;
            }
        }
        if (meta.verdict == UNDECIDED) {
            meta.protocol = meta.next;
            if (hdr.tcp.isValid()) {
                meta.src_port = hdr.tcp.src;
                meta.dst_port = hdr.tcp.dst;
                meta.starts = hdr.tcp.flags & 0x17 == 2;
                meta.ends = hdr.tcp.flags & 5 != 0;
            } else {
                meta.src_port = hdr.udp.src;
                meta.dst_port = hdr.udp.dst;
            }
            if (!services.apply().hit) { any_port.apply(); }
        }
        if (meta.verdict == UNDECIDED) {
            is_ours = true;
            own_macs.apply();
            if (!is_ours) { REFUSE(OTHER_HOST) }
        }
        if (meta.verdict == UNDECIDED) { plane_keys.apply(); }
        if (meta.verdict == UNDECIDED) {
            // All that may change while tables are published is in this one word.
            bit<48> word;
            selectors.read(word, (bit<32>)meta.service);
            meta.flags = word[47:16];
            meta.table_number = (bit<32>)(meta.service ++ word[1:1]);
            if (word[0:0] == 0) { REFUSE(NO_TABLE) }
            else { images.apply(); }
        }
    }
}
