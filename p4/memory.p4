// What packets leave behind and ask: registers that the data plane itself writes. One thread runs all ingress
// pipelines of the simple switch, so what a packet reads and writes here is one step for all others.
//
// A state takes 192 bits in four words of 48: address, ports, service, backend. A word of a register comes back
// over Thrift as a signed number of 64 bits, so none has more than 63.

register<bit<48>>(PLACES) pending_0;
register<bit<48>>(PLACES) pending_1;
register<bit<48>>(PLACES) pending_2;
// Ports' second half, service, and the backend plus one: 0 where nobody is.
register<bit<48>>(PLACES) pending_3;
// Of tracked flows, which have the number of a server in its place: that of its slot plus one, the use of the backend's
// number, and when there was a packet last.
register<bit<63>>(TRACKED_PLACES) tracked;
// Seconds, which the control plane turns.
register<bit<48>>(1) clock;

register<bit<48>>(RING) ring_0;
register<bit<48>>(RING) ring_1;
register<bit<48>>(RING) ring_2;
register<bit<48>>(RING) ring_3;
// Reports written so far; those that the control plane has taken; those that found no room.
register<bit<48>>(1) ring_head;
register<bit<48>>(1) ring_tail;
register<bit<48>>(1) ring_lost;

// Of each half, words of three lanes: a tag of 20 bits and a bit that says that its flow sent something.
register<bit<64>>(MARK_WORDS * 2) marks;
// Two halves of each word of strangers, which have no lane.
register<bit<32>>(STRANGER_WORDS * 4) strangers;
// The first word of the half that is written, and how many of it there are, less one: 24 bits each.
register<bit<48>>(1) mark_side;

// Tags of datagrams' flows, the generation in the two last bits.
register<bit<32>>(SEEN_LINES * SEEN_WAYS) seen_high;
register<bit<32>>(SEEN_LINES * SEEN_WAYS) seen_low;
register<bit<48>>(1) seen_generation;

// Of a backend: 1 if it is present, 2 if its health check has it down; above, which use of its number it is.
register<bit<32>>(BACKENDS) states;

const bit<64> LANE_ONES = 0x40000200001; const bit<64> LANE_TAGS = 0x3ffffdffffefffff;
const bit<64> LANE_ACTIVE = 0x4000020000100000;
const bit<32> NO_PLACE = 0xffffffff;
const bit<64> SEEN_STRIDE = 0x9e3779b97f4a7c15;

// One place of the pending table: is it the flow's, another's, or free?
control LookAt(inout meta_t meta, in bit<32> at, inout bit<32> flows, inout bit<32> free) { apply {
    bit<48> last;
    pending_3.read(last, at);
    if (last[15:0] != 0) {
        bit<63> noted = 0;
        flows = flows + 1;
        if (at >= PENDING_PLACES) {
            tracked.read(noted, at - PENDING_PLACES);
            if (meta.now - noted[30:0] >= meta.age) {
                meta.age = meta.now - noted[30:0];
                meta.oldest = at;
            }
        }
        if (last[47:16] == meta.ports[15:0] ++ meta.service) {
            bit<48> first; bit<48> second; bit<48> third;
            pending_0.read(first, at);
            pending_1.read(second, at);
            pending_2.read(third, at);
            if (first ++ second ++ third == meta.src ++ meta.ports[31:16]) {
                meta.is_pending = true;
                meta.place = at;
                meta.known = last[15:0] - 1;
                meta.noted = noted;
            }
        }
    } else if (free == NO_PLACE) {
        free = at;
    }
} }

// Where a flow is in the pending table; if it is not there, a place for it: of two sets in the one with fewer
// flows, so that hardly any is full before nearly all are. Of tracked flows the one that was silent longest goes.
control FindPending(inout meta_t meta) {
    HashState() hash_state; LookAt() look;
    apply {
        bit<64> value;
        bit<32> flows = 0; bit<32> others = 0; bit<32> free = NO_PLACE; bit<32> other = NO_PLACE;
        bool tracks = meta.method == CHEETAH || meta.method == CHEETAH_STATEFUL;
        bit<32> first = tracks ? PENDING_SETS : 0;
        bit<32> mask = (tracks ? TRACKED_SETS : PENDING_SETS) - 1;
        meta.is_pending = false;
        meta.oldest = NO_PLACE;
        hash_state.apply(meta.src, meta.ports, meta.plane_key, value);
        bit<32> set = (first + (value[31:0] & mask)) * PENDING_WAYS;
#define LOOK(way, flows, free) look.apply(meta, set + way, flows, free);
        LOOK(0, flows, free) LOOK(1, flows, free) LOOK(2, flows, free) LOOK(3, flows, free)
        set = (first + (value[63:32] & mask)) * PENDING_WAYS;
        LOOK(0, others, other) LOOK(1, others, other) LOOK(2, others, other) LOOK(3, others, other)
        if (!meta.is_pending) {
            meta.place = others < flows ? other : free;
            meta.place = meta.place == NO_PLACE ? meta.oldest : meta.place;
        }
    }
}

// Notes where a new flow goes. Without room the packet is dropped: it will come again.
control NotePending(inout meta_t meta, in bit<16> backend) { apply {
    if (meta.place == NO_PLACE) {
        REFUSE(PENDING_FULL)
    } else {
        pending_0.write(meta.place, meta.src[127:80]);
        pending_1.write(meta.place, meta.src[79:32]);
        pending_2.write(meta.place, meta.src[31:0] ++ meta.ports[31:16]);
        pending_3.write(meta.place, meta.ports[15:0] ++ meta.service ++ (backend + 1));
    }
} }

// A report for the control plane, in a ring that it reads. A digest or a cloned packet may be lost on its way
// without anybody knowing; what is written here waits. Without room a flow must not start, since nobody would
// know of it: its first packet is dropped and comes again. Last packets go on.
control Report(inout meta_t meta, in bit<16> last) { apply {
    bit<48> head; bit<48> tail; bit<48> count;
    ring_head.read(head, 0);
    ring_tail.read(tail, 0);
    if (head - tail >= (bit<48>)RING) {
        ADD(ring_lost, 0, 1)
        if (last == 0 && meta.protocol == TCP) { REFUSE(PENDING_FULL) }
    } else {
        bit<32> at = head[31:0] & (RING - 1);
        ring_0.write(at, meta.src[127:80]);
        ring_1.write(at, meta.src[79:32]);
        ring_2.write(at, meta.src[31:0] ++ meta.ports[31:16]);
        ring_3.write(at, meta.ports[15:0] ++ meta.service ++ (meta.backend | last));
        ring_head.write(0, head + 1);
    }
} }

// The bits of a flow's lane in each of its two words; none in a word where it has no lane.
control FindLane(inout meta_t meta, out bit<64> lane, out bit<64> other_lane, out bit<32> base) { apply {
    bit<48> side;
    mark_side.read(side, 0);
    base = (bit<32>)side[47:24];
    meta.word_at = base + (meta.hash[31:0] & (bit<32>)side[23:0]);
    meta.other_at = base + (meta.hash[53:22] & (bit<32>)side[23:0]);
    bit<64> tag = meta.hash >> 44;
    bit<64> tags = LANE_ONES * (tag == 0 ? 64w1 : tag);
    marks.read(meta.word, meta.word_at);
    marks.read(meta.other_word, meta.other_at);
    lane = ~(((meta.word ^ tags) & LANE_TAGS) + LANE_TAGS) & LANE_ACTIVE;
    other_lane = ~(((meta.other_word ^ tags) & LANE_TAGS) + LANE_TAGS) & LANE_ACTIVE;
} }

// A packet in the middle of its flow was seen.
control MarkActive(inout meta_t meta) {
    FindLane() find;
    apply {
        bit<32> base; bit<64> lane; bit<64> other_lane;
        find.apply(meta, lane, other_lane, base);
        if (lane != 0) {
            marks.write(meta.word_at, meta.word | lane);
        } else if (other_lane != 0) {
            marks.write(meta.other_at, meta.other_word | other_lane);
        } else {
            bit<32> at = ((meta.hash[39:8] & (STRANGER_WORDS - 1)) << 1)
                + (base == 0 ? 0 : STRANGER_WORDS * 2);
            bit<32> half = at + (bit<32>)meta.hash[63:63];
            bit<32> bits;
            strangers.read(bits, half);
            strangers.write(half, bits | ((bit<32>)1 << (bit<8>)meta.hash[62:58]));
            half = at + (bit<32>)meta.hash[57:57];
            strangers.read(bits, half);
            strangers.write(half, bits | ((bit<32>)1 << (bit<8>)meta.hash[56:52]));
        }
    }
}

// One tag of a line of datagrams' flows.
control SeenAt(in bit<64> tag, in bit<2> now, in bit<32> at, inout bit<32> place, inout bool free,
               inout bool found, inout bool known) { apply {
    bit<32> high; bit<32> low;
    seen_high.read(high, at);
    seen_low.read(low, at);
    bool alive = low[1:0] == now || low[1:0] == (now == 1 ? 2w3 : now - 1);
    if (!found && high == tag[63:32] && low[31:2] == tag[31:2]) {
        found = true;
        known = alive;
        place = at;
    } else if (!found && !free && !alive) {
        free = true;
        place = at;
    }
} }

// Whether the flow of a datagram was seen recently; it is from now on.
control SeenBefore(inout meta_t meta) {
    SeenAt() seen;
    apply {
        bit<48> generation;
        seen_generation.read(generation, 0);
        bit<2> now = generation[1:0];
        bit<64> tag = meta.hash + (bit<64>)meta.service * SEEN_STRIDE;
        bit<32> line;
        scale(tag[63:32], SEEN_LINES, line);
        line = line * SEEN_WAYS;
        bit<32> place = line + (bit<32>)tag[31:29];
        bool free = false; bool found = false; bool known = false;
#define SEEN(way) seen.apply(tag, now, line + way, place, free, found, known);
        SEEN(0) SEEN(1) SEEN(2) SEEN(3) SEEN(4) SEEN(5) SEEN(6) SEEN(7)
        seen_high.write(place, tag[63:32]);
        seen_low.write(place, tag[31:2] ++ now);
        meta.starts = !known;
    }
}
