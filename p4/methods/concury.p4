// Concury (section 4): the xor of two cells is a Dcode, and the DIP array names its backend. The twin of
// crates/steering/src/methods/concury/decide.rs.

register<bit<16>>(CELLS) cells_a;
register<bit<16>>(CELLS) cells_b;

control ConcuryRow(inout meta_t meta, out bit<16> entry) {
    apply {
        bit<32> a;
        bit<32> b;
        bit<16> cell_a;
        bit<16> cell_b;
        scale(meta.hash[31:0], meta.a_cells, a);
        scale(meta.hash[63:32], meta.b_cells, b);
        cells_a.read(cell_a, meta.a_base + a);
        cells_b.read(cell_b, meta.b_base + b);
        slots.read(entry, meta.slot_base + ((bit<32>)(cell_a ^ cell_b) & (meta.slots - 1)));
    }
}

// A new flow on a Dcode that takes none: further Dcodes from its hash.
control PlaceAgain(inout meta_t meta) {
    apply {
        bit<64> value = meta.hash;
        bool found = false;
        meta.backend = meta.fallback;
        for (bit<32> attempt = 0; attempt < SECOND_TRIES; attempt = attempt + 1) {
            if (!found) {
                bit<16> entry;
                bit<32> state;
                value = value + NEXT_TRY;
                mix(value, meta.key);
                slots.read(entry, meta.slot_base + (value[31:0] & (meta.slots - 1)));
                is_down(entry & NUMBER, state);
                if (entry & RESERVED == 0 && state == 0) {
                    found = true;
                    meta.backend = entry;
                }
            }
        }
    }
}

control DecideConcury(inout meta_t meta) {
    ConcuryRow() row;
    FindPending() find;
    FindLane() lanes;
    PlaceAgain() again;
    NotePending() note_it;

    @name(".set_pin")
    action set_pin(bit<16> backend) {
        meta.backend = backend;
    }
    // States on reserved Dcodes whose first packets may be repeated.
    @name(".pins")
    table pins {
        key = {
            meta.service: exact;
            meta.src: exact;
            meta.ports: exact;
        }
        actions = { set_pin; NoAction; }
        default_action = NoAction();
        size = 65536;
    }

    apply {
        bit<16> entry;
        bool note = false;
        row.apply(meta, entry);
        meta.backend = entry & NUMBER;
        bool reserved = entry & RESERVED != 0;
        bool asked = reserved || meta.flags & PENDING != 0;
        if (asked || meta.starts && meta.flags & RECORD != 0) {
            find.apply(meta);
            note = meta.starts && meta.flags & RECORD != 0;
        }
        if (asked && meta.is_pending) {
            meta.backend = meta.known;
            note = false;
        } else if (meta.starts && asked) {
            bit<32> down;
            is_down(meta.backend, down);
            if (reserved || down != 0) {
                if (!pins.apply().hit) {
                    bit<32> first;
                    bit<32> second;
                    bit<32> base;
                    bit<64> word;
                    bit<64> other;
                    bit<64> lane = 0;
                    bit<64> other_lane = 0;
                    if (meta.flags & MARK != 0) {
                        lanes.apply(meta.hash, first, second, word, other, lane, other_lane, base);
                    }
                    // A connection lives there: whoever sent this SYN must not move it.
                    bool lives = lane | other_lane != 0 && meta.backend != NO_BACKEND && down == 0;
                    if (!lives) {
                        again.apply(meta);
                        note = true;
                    }
                }
            }
        }
        if (meta.backend == NO_BACKEND) {
            meta.verdict = DROP;
            meta.reason = NO_BACKEND_REASON;
        } else if (note) {
            note_it.apply(meta);
        }
    }
}
