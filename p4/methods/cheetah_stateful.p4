// Stateful Cheetah (section 3.2): ConnTable and ConnStack. The twin of crates/steering/src/methods/cheetah/table.rs.

// Of each slot the flow's hash in two halves; and seconds, how far the connection is, its server's number and backend.
register<bit<32>>(CONNECTIONS) slot_high;
register<bit<32>>(CONNECTIONS) slot_low;
register<bit<63>>(CONNECTIONS) slot_words;
// Free slots of each partition, from the number of those in use on: each xor its place, so that zeros are all of them.
register<bit<16>>(CONNECTIONS) free_slots;
register<bit<16>>(PARTITIONS) slots_used;
register<bit<16>>(PARTITIONS) hands;
// Of each service: connections that found no slot, cookies that named a free one, and those that named another flow's;
// and where its partitions are, for the next control plane.
register<bit<48>>(SLOT_COUNTS) slot_counts;

const bit<2> OPENING = 1; const bit<2> OPEN = 2; const bit<2> CLOSING = 3;
const bit<32> OPENING_SECONDS = 65; const bit<32> LINGER_SECONDS = 60;
const bit<16> PARTITION_SLOTS = 32768;

// The backend of a server's number, with its bit; NO_BACKEND for none.
action server(in bit<32> base, in bit<32> count, in bit<16> number, out bit<16> entry) {
    bool known = (bit<32>)number < count;
    cells_a.read(entry, base + (known ? (bit<32>)number : 0));
    entry = known ? entry : NO_BACKEND;
}

// What a slot says, and whether it is the flow's: by all 64 bits of its hash.
action find_slot(in bit<32> at, in bit<64> flow, out bit<63> word, out bool is_own) {
    bit<32> high; bit<32> low;
    slot_high.read(high, at);
    slot_low.read(low, at);
    slot_words.read(word, at);
    is_own = word[31:30] != 0 && high ++ low == flow;
}

// Gives a slot back to its stack.
action release(in bit<32> partition, in bit<32> first_slot, in bit<16> index) {
    bit<16> used;
    slots_used.read(used, partition);
    used = used - 1;
    slots_used.write(partition, used);
    free_slots.write(first_slot + (bit<32>)used, index ^ used);
    slot_words.write(first_slot + (bit<32>)index, 0);
}

// Looks over the next slot, and gives it back if its time is up. The control plane gives none back: it would race.
control SweepSlot(inout meta_t meta) { apply {
    bit<16> hand; bit<63> word;
    hands.read(hand, meta.partition);
    hands.write(meta.partition, (hand + 1) & (PARTITION_SLOTS - 1));
    slot_words.read(word, meta.first_slot + (bit<32>)hand);
    bit<31> age = meta.now - word[62:32];
    bit<32> limit = word[31:30] == OPENING ? OPENING_SECONDS : LINGER_SECONDS;
    limit = word[31:30] == OPEN || limit > meta.idle ? meta.idle : limit;
    // A clock that was set back makes nobody old.
    if (word[31:30] != 0 && (bit<32>)age > limit && age[30:30] == 0) {
        release(meta.partition, meta.first_slot, hand);
    }
} }

// Takes a slot for a connection that begins: its place plus one, 0 if there is none.
control OpenSlot(inout meta_t meta, out bit<16> place) {
    SweepSlot() sweep;
    apply {
        bit<16> used; bit<48> count;
#define SWEEP sweep.apply(meta);
        SWEEP SWEEP
        slots_used.read(used, meta.partition);
        if (used == PARTITION_SLOTS) {
            SIX(SWEEP) SIX(SWEEP) SWEEP SWEEP SWEEP SWEEP
            slots_used.read(used, meta.partition);
        }
        place = 0;
        if (used == PARTITION_SLOTS) {
            ADD(slot_counts, (bit<32>)meta.service * 4, 1)
        } else {
            free_slots.read(meta.index, meta.first_slot + (bit<32>)used);
            meta.index = meta.index ^ used;
            place = meta.index + 1;
            slots_used.write(meta.partition, used + 1);
            bit<32> at = meta.first_slot + (bit<32>)meta.index;
            slot_high.write(at, meta.hash[63:32]);
            slot_low.write(at, meta.hash[31:0]);
            slot_words.write(at, meta.now ++ OPENING ++ meta.number[14:0] ++ meta.backend[14:0]);
        }
    }
}

// A packet with a cookie: to the backend of the slot that it names. A cookie that names none, or another flow's, is
// counted, and nobody's slot notices.
control FollowSlot(inout meta_t meta) { apply {
    bit<63> word; bool is_own; bit<16> entry; bit<48> count;
    find_slot(meta.first_slot + (bit<32>)meta.index, meta.hash, word, is_own);
    server(meta.a_base, meta.a_cells, (bit<16>)word[29:15], entry);
    if (!is_own) {
        ADD(slot_counts, (bit<32>)meta.service * 4 + (word[31:30] == 0 ? 32w1 : 32w2), 1)
    } else if (entry & NUMBER == (bit<16>)word[14:0]) {
        meta.backend = (bit<16>)word[14:0];
        bit<2> state = meta.ends ? CLOSING : (word[31:30] == OPENING ? OPEN : word[31:30]);
        slot_words.write(meta.first_slot + (bit<32>)meta.index, meta.now ++ state ++ word[29:0]);
    } else {
        // Its backend is gone, and so is the connection.
        release(meta.partition, meta.first_slot, meta.index);
    }
} }
