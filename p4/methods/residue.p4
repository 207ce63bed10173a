// residue: a row names the backend; a mark on it says that some of its flows are exceptions, which an exact
// table knows by their hashes. The twin of crates/steering/src/methods/residue/decide.rs; the flags in front of
// the exceptions there save memory reads, and an exact table is one lookup anyway.

control DecideResidue(inout meta_t meta) {
    FindPending() find;
    NotePending() note_it;
    bit<16> exception;

    @name(".set_exception")
    action set_exception(bit<16> backend) {
        exception = backend;
    }
    @name(".exceptions")
    table exceptions {
        key = {
            meta.table_number: exact;
            meta.hash: exact;
        }
        actions = { set_exception; NoAction; }
        default_action = NoAction();
        size = 262144;
    }
    @name(".set_residue_pin")
    action set_residue_pin(bit<16> backend) {
        meta.backend = backend;
    }
    @name(".residue_pins")
    table residue_pins {
        key = {
            meta.service: exact;
            meta.src: exact;
            meta.ports: exact;
        }
        actions = { set_residue_pin; NoAction; }
        default_action = NoAction();
        size = 65536;
    }

    apply {
        bit<16> row;
        bit<32> at;
        bit<32> down;
        bool note = false;
        exception = NO_BACKEND;
        scale(meta.hash[31:0], meta.slots, at);
        slots.read(row, meta.slot_base + at);
        if (row & RESERVED != 0) {
            exceptions.apply();
        }
        bool excepted = exception != NO_BACKEND;
        meta.backend = excepted ? exception : row & NUMBER;
        bool asked = excepted || meta.flags & PENDING != 0;
        if (asked || meta.starts) {
            find.apply(meta);
            note = meta.starts && meta.flags & RECORD != 0;
        }
        is_down(meta.backend, down);
        if (asked && meta.is_pending) {
            meta.backend = meta.known;
            note = false;
        } else if (meta.starts && down != 0 && excepted) {
            if (!residue_pins.apply().hit) {
                // The exception would lead its later packets back: it has to be noted.
                meta.backend = row & NUMBER;
                note = true;
            }
        } else if (meta.starts && down != 0 && meta.flags & PENDING != 0) {
            // No table may have been published that says so.
            bit<64> value = meta.hash;
            bool found = false;
            for (bit<32> attempt = 0; attempt < SECOND_TRIES; attempt = attempt + 1) {
                if (!found) {
                    bit<16> other;
                    bit<32> state;
                    value = value + NEXT_TRY;
                    mix(value, meta.key);
                    scale(value[31:0], meta.slots, at);
                    slots.read(other, meta.slot_base + at);
                    is_down(other & NUMBER, state);
                    if (other & NUMBER != NO_BACKEND && state == 0) {
                        found = true;
                        meta.backend = other & NUMBER;
                    }
                }
            }
            note = true;
        }
        if (meta.backend == NO_BACKEND) {
            meta.verdict = DROP;
            meta.reason = NO_BACKEND_REASON;
        } else if (note) {
            note_it.apply(meta);
        }
    }
}
