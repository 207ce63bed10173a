// What the packet is, whose, and which table decides it.

// Of each service: in the low half 1 if there is a table and 2 if it is the second of its two; above, its flags.
register<bit<48>>(SERVICES) selectors;

// The fault of a packet whose IP header is credible; 0 for none. In the order of crates/wire/src/parse.rs.
control Check(in headers_t hdr, inout meta_t meta, in bit<32> frame) {
    apply {
        bit<32> head;
        bit<32> end;
        if (hdr.ipv4.isValid()) {
            head = (bit<32>)hdr.ipv4.words << 2;
            end = (bit<32>)hdr.ipv4.length;
            if (frame < (bit<32>)meta.l3 + head) {
                meta.wrong = TRUNCATED_IPV4;
            } else if (end < head || (bit<32>)meta.l3 + end > frame) {
                meta.wrong = BAD_IPV4_LENGTH;
            } else if (hdr.ipv4.offset != 0) {
                meta.wrong = LATER_FRAGMENT;
            } else if (hdr.ipv4.flags[0:0] == 1) {
                meta.wrong = FIRST_FRAGMENT;
            } else if (meta.next != TCP && meta.next != UDP) {
                meta.wrong = OTHER_PROTOCOL;
            } else {
                meta.wrong = 0;
            }
        } else {
            head = 40 + (bit<32>)meta.extensions;
            end = 40 + (bit<32>)hdr.ipv6.length;
            if ((bit<32>)meta.l3 + end > frame) {
                meta.wrong = BAD_IPV6_LENGTH;
            } else if (head > end) {
                meta.wrong = TRUNCATED_IPV6_EXTENSION;
            }
        }
        meta.bytes = (bit<16>)end;
        if (meta.wrong == 0) {
            bit<32> segment = end - head;
            if (meta.next == TCP) {
                bit<32> offset = (bit<32>)hdr.tcp.words << 2;
                if (segment < 20) {
                    meta.wrong = TRUNCATED_TCP;
                } else if (offset < 20 || offset > segment) {
                    meta.wrong = BAD_TCP_OFFSET;
                }
            } else {
                bit<32> length = (bit<32>)hdr.udp.length;
                if (segment < 8) {
                    meta.wrong = TRUNCATED_UDP;
                } else if (length < 8 || length > segment) {
                    meta.wrong = BAD_UDP_LENGTH;
                }
            }
        }
    }
}

// Leaves a verdict, or a table to decide by.
control FindService(in headers_t hdr, inout meta_t meta, in bit<32> frame) {
    Check() check;
    bool is_ours;
    bool is_address;

    @name(".set_service")
    action set_service(bit<16> service) {
        meta.service = service;
    }
    @name(".no_service")
    action no_service() {
        meta.verdict = PASS;
        meta.reason = NO_SERVICE;
    }
    @name(".services")
    table services {
        key = {
            meta.dst: exact;
            meta.protocol: exact;
            meta.dst_port: exact;
        }
        actions = { set_service; NoAction; }
        default_action = NoAction();
        size = 1024;
    }
    // Those that take any port.
    @name(".any_port")
    table any_port {
        key = {
            meta.dst: exact;
            meta.protocol: exact;
        }
        actions = { set_service; no_service; }
        default_action = no_service();
        size = 1024;
    }
    @name(".known_address")
    action known_address() {
        is_address = true;
    }
    @name(".addresses")
    table addresses {
        key = { meta.dst: exact; }
        actions = { known_address; NoAction; }
        default_action = NoAction();
        size = 1024;
    }
    @name(".ours")
    action ours() {
        is_ours = true;
    }
    // Our MAC addresses. The default action takes any, until the control plane says otherwise.
    @name(".not_ours")
    action not_ours() {
        is_ours = false;
    }
    @name(".own_macs")
    table own_macs {
        key = { hdr.ethernet.dst: exact; }
        actions = { ours; not_ours; }
        default_action = ours();
        size = 64;
    }
    @name(".set_image")
    action set_image(bit<8> method, bit<8> asks_seen, bit<64> xor, bit<64> wide, bit<64> mul1,
                     bit<64> mul2, bit<32> slot_base, bit<32> slot_count, bit<32> a_base,
                     bit<32> a_cells, bit<32> b_base, bit<32> b_cells, bit<16> fallback) {
        meta.method = method;
        meta.asks_seen = asks_seen != 0;
        meta.key.xor = xor;
        meta.key.wide = wide;
        meta.key.mul1 = mul1;
        meta.key.mul2 = mul2;
        meta.slot_base = slot_base;
        meta.slots = slot_count;
        meta.a_base = a_base;
        meta.a_cells = a_cells;
        meta.b_base = b_base;
        meta.b_cells = b_cells;
        meta.fallback = fallback;
    }
    @name(".no_image")
    action no_image() {
        meta.verdict = DROP;
        meta.reason = NO_TABLE;
    }
    @name(".images")
    table images {
        key = { meta.table_number: exact; }
        actions = { set_image; no_image; }
        default_action = no_image();
        size = 512;
    }
    @name(".set_plane_key")
    action set_plane_key(bit<64> xor, bit<64> wide, bit<64> mul1, bit<64> mul2) {
        meta.plane_key.xor = xor;
        meta.plane_key.wide = wide;
        meta.plane_key.mul1 = mul1;
        meta.plane_key.mul2 = mul2;
    }
    // Until the control plane has set it, nothing is decided: a switch that was started anew is empty.
    @name(".not_filled")
    action not_filled() {
        meta.verdict = DROP;
        meta.reason = NO_TABLE;
    }
    @name(".plane_keys")
    table plane_keys {
        actions = { set_plane_key; not_filled; }
        default_action = not_filled();
    }

    apply {
        if (meta.wrong != 0 && !hdr.ipv4.isValid() && !hdr.ipv6.isValid()) {
            meta.verdict = PASS;
            meta.reason = meta.wrong;
        } else if (hdr.ipv4.isValid()) {
            meta.src = 96w0xffff ++ hdr.ipv4.src;
            meta.dst = 96w0xffff ++ hdr.ipv4.dst;
            if (hdr.ipv4.version != 4) {
                meta.verdict = PASS;
                meta.reason = BAD_IPV4_VERSION;
            } else if (hdr.ipv4.words < 5) {
                meta.verdict = PASS;
                meta.reason = BAD_IPV4_HEADER_LENGTH;
            }
        } else {
            meta.src = hdr.ipv6.src;
            meta.dst = hdr.ipv6.dst;
            if (hdr.ipv6.version != 6) {
                meta.verdict = PASS;
                meta.reason = BAD_IPV6_VERSION;
            } else if (meta.src[127:32] == 0xffff || meta.dst[127:32] == 0xffff) {
                meta.verdict = PASS;
                meta.reason = MAPPED_ADDRESS;
            }
        }
        if (meta.verdict == UNDECIDED) {
            check.apply(hdr, meta, frame);
            if (meta.wrong != 0) {
                is_address = false;
                addresses.apply();
                meta.reason = meta.wrong;
                meta.verdict = is_address && meta.wrong != OTHER_PROTOCOL ? DROP : PASS;
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
            if (!services.apply().hit) {
                any_port.apply();
            }
        }
        if (meta.verdict == UNDECIDED) {
            is_ours = true;
            own_macs.apply();
            if (!is_ours) {
                meta.verdict = DROP;
                meta.reason = OTHER_HOST;
            }
        }
        if (meta.verdict == UNDECIDED) {
            plane_keys.apply();
        }
        if (meta.verdict == UNDECIDED) {
            // All that may change while tables are published is in this one word.
            bit<48> word;
            selectors.read(word, (bit<32>)meta.service);
            meta.flags = word[47:16];
            meta.table_number = (bit<32>)(meta.service ++ word[1:1]);
            if (word[0:0] == 0) {
                meta.verdict = DROP;
                meta.reason = NO_TABLE;
            } else {
                images.apply();
            }
        }
    }
}
