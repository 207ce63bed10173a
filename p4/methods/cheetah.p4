// Cheetah (section 3) where backends write the cookies: the upper half of TSecr hides the number of a server, or
// the place of the connection's slot (cheetah_stateful.p4). `cells_a` has the servers by number, those RESERVED that
// take no new connections; `slots` the numbers of the others. The twin of decide.rs in crates/steering's cheetah.

// Of each service, how many turns there were.
register<bit<48>>(SERVICES) turns;
// The lower half of a TSecr that tells a cookie.
const bit<16> TOLD_MARK = 0x7765;

// Who gets a new connection, unless that was found: the hash says, or whose turn it is. Turns go on to the next one
// while backends are down.
control Draw(inout meta_t meta, inout bool found) { apply {
    if (!found) {
        bit<32> at; bit<16> entry; bit<32> down;
        scale(meta.hash[31:0], meta.slots, at);
        if (meta.flags & TURNS != 0) {
            bit<48> turn; bit<64> place;
            turns.read(turn, (bit<32>)meta.service);
            turns.write((bit<32>)meta.service, turn + 1);
            rest((bit<64>)turn, (bit<64>)meta.slots, meta.inverse, place);
            // So far from one turn to the next that those of one backend are spread.
            rest(place * (bit<64>)meta.fallback, (bit<64>)meta.slots, meta.inverse, place);
            at = place[31:0];
        }
        slots.read(meta.number, meta.slot_base + at);
        server(meta.a_base, meta.a_cells, meta.number, entry);
        meta.backend = entry & NUMBER;
        is_down(meta.backend, down);
        found = down == 0 || meta.flags & TURNS == 0;
    }
} }

// Tells a backend the cookie that its timestamps must carry, in the TSecr of a SYN (RFC 7323 section 3.2).
control Tell(inout headers_t hdr, inout meta_t meta, in bit<16> number) { apply {
    bit<32> old = hdr.stamps.echo;
    bit<32> new = 1w1 ++ (number[14:0] ^ meta.hash[62:48]) ++ TOLD_MARK;
    hdr.stamps.echo = new;
    // Words at odd offsets have their bytes swapped in the sum (RFC 1071 section 2 (B)).
    if (meta.left[0:0] == 1) {
        old = old[23:0] ++ old[31:24];
        new = new[23:0] ++ new[31:24];
    }
    bit<32> sum = (bit<32>)(~hdr.tcp.checksum) + (bit<32>)(~old[31:16]) + (bit<32>)(~old[15:0])
        + (bit<32>)new[31:16] + (bit<32>)new[15:0];
    sum = (sum >> 16) + (sum & 0xffff);
    sum = (sum >> 16) + (sum & 0xffff);
    hdr.tcp.checksum = ~sum[15:0];
} }

control Cheetah(inout headers_t hdr, inout meta_t meta) {
    FollowSlot() follow; OpenSlot() open; FindPending() find; NotePending() note_it; Draw() draw; Tell() tell;

    apply {
        bool by_slot = meta.method == CHEETAH_STATEFUL;
        bool told = meta.starts && hdr.stamps.isValid();
        // Until its cookie is found to be good.
        bool lost = hdr.stamps.isValid() && hdr.tcp.flags[4:4] == 1;
        bool resets = hdr.tcp.isValid() && hdr.tcp.flags[2:2] == 1;
        bit<48> now; bit<16> entry; bit<32> state;
        clock.read(now, 0);
        meta.now = now[30:0];
        scale(meta.hash[47:16], meta.b_cells, meta.partition);
        meta.partition = meta.partition + meta.b_base;
        meta.first_slot = meta.partition * (bit<32>)PARTITION_SLOTS;
        meta.index = (bit<16>)(hdr.stamps.echo[30:16] ^ meta.hash[62:48]);
        meta.backend = NO_BACKEND;
        if (lost && by_slot) {
            follow.apply(meta);
        } else if (lost) {
            server(meta.a_base, meta.a_cells, meta.index, entry);
            meta.backend = entry & NUMBER;
        }
        if (meta.backend == NO_BACKEND) {
            // Is it known without a cookie? Nothing begins at a backend that is down, or takes no new connections; but
            // with slots it stays there, for whoever sends a SYN in a connection's name must not move it.
            find.apply(meta);
            server(meta.a_base, meta.a_cells, meta.known, entry);
            states.read(state, (bit<32>)entry & (BACKENDS - 1));
            bool known = meta.is_pending && entry & NUMBER != NO_BACKEND && state[0:0] == 1
                && state[31:16] == meta.noted[46:31]
                && !(meta.starts && (state[1:1] == 1 || !by_slot && entry & RESERVED != 0));
            bit<16> place = known ? meta.noted[62:47] : 0;
            bool note = !known && !lost && !resets;
            meta.is_new = meta.starts || note;
            if (known) {
                meta.number = meta.known;
                meta.backend = entry & NUMBER;
            } else if (lost && meta.refuses) {
                REFUSE(NO_COOKIE)
            } else if (meta.slots == 0) {
                REFUSE(NO_BACKEND_REASON)
            } else {
                bool found = false;
#define DRAW draw.apply(meta, found);
                SIX(DRAW) SIX(DRAW) SIX(DRAW) SIX(DRAW)
            }
            if (meta.verdict == UNDECIDED && told && by_slot) {
                bit<63> word; bool there;
                meta.index = place == 0 ? 0 : place - 1;
                find_slot(meta.first_slot + (bit<32>)meta.index, meta.hash, word, there);
                if (place == 0 || !there || word[31:30] == CLOSING || (bit<16>)word[14:0] != meta.backend) {
                    open.apply(meta, place);
                    note = true;
                }
                told = place != 0;
            }
            if (meta.verdict == UNDECIDED && (known || note)) {
                states.read(state, (bit<32>)meta.backend & (BACKENDS - 1));
                note_it.apply(meta, meta.number);
                tracked.write(meta.place - PENDING_PLACES, place ++ state[31:16] ++ meta.now);
            }
            if (meta.verdict == UNDECIDED && told) { tell.apply(hdr, meta, by_slot ? meta.index : meta.number); }
        }
    }
}
