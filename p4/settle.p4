// Where a flow goes whose row is known: there, unless it is pending or pinned elsewhere, or new and its row takes
// no new flows. The twin of crates/steering/src/methods/{concury,residue}/decide.rs.

// One further row from the hash, if none was found yet that takes the flow.
control TryAgain(inout meta_t meta, inout bit<64> value, inout bool found) { apply {
    if (!found) {
        bit<16> entry; bit<32> down; bit<32> at;
        value = value + NEXT_TRY;
        mix(value, meta.key);
        scale(value[31:0], meta.slots, at);
        if (meta.method == CONCURY) { at = value[31:0] & (meta.slots - 1); }
        slots.read(entry, meta.slot_base + at);
        is_down(entry & NUMBER, down);
        // A mark of residue's rows says nothing about new flows.
        bool takes = meta.method == CONCURY ? entry & RESERVED == 0 : entry & NUMBER != NO_BACKEND;
        if (takes && down == 0) {
            found = true;
            meta.backend = entry & NUMBER;
        }
    }
} }

control Settle(inout meta_t meta) {
    FindPending() find; NotePending() note_it; FindLane() lanes; TryAgain() try;

    @name(".set_pin") action set_pin(bit<16> backend) { meta.backend = backend; }
    // States that are kept and whose first packets may be repeated.
    @name(".pins") table pins {
        key = { meta.service: exact; meta.src: exact; meta.ports: exact; }
        actions = { set_pin; NoAction; } size = 65536;
    }

    apply {
        bool note = meta.starts && meta.flags & RECORD != 0;
        bool asked = meta.kept || meta.flags & PENDING != 0;
        bit<32> down;
        if (asked || note) { find.apply(meta); }
        is_down(meta.backend, down);
        if (asked && meta.is_pending) {
            meta.backend = meta.known;
            note = false;
        } else if (asked && meta.starts && (down != 0 || meta.kept && meta.method == CONCURY)) {
            bool settled = false;
            if (meta.kept || meta.method == CONCURY) { settled = pins.apply().hit; }
            if (!settled && meta.method == CONCURY && down == 0 && meta.flags & MARK != 0) {
                bit<32> base; bit<64> lane; bit<64> other_lane;
                lanes.apply(meta, lane, other_lane, base);
                // A connection lives there: whoever sent this SYN must not move it.
                settled = (lane | other_lane) != 0 && meta.backend != NO_BACKEND;
            }
            if (!settled) {
                note = true;
                // The row of an exception; else another one, or if there is none the same, or the fallback.
                bit<64> value = meta.hash;
                bool found = meta.kept && meta.method != CONCURY;
                meta.backend = meta.method == CONCURY ? meta.fallback : meta.row;
#define TRY try.apply(meta, value, found);
                SIX(TRY) SIX(TRY) SIX(TRY) SIX(TRY)
            }
        }
        if (meta.backend == NO_BACKEND) { REFUSE(NO_BACKEND_REASON) }
        else if (note) { note_it.apply(meta, meta.backend); }
    }
}
