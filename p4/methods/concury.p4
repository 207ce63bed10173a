// Concury (section 4): the xor of two cells is a Dcode, and the DIP array names its backend.

register<bit<16>>(CELLS) cells_a;
register<bit<16>>(CELLS) cells_b;

control ConcuryRow(inout meta_t meta) { apply {
    bit<32> a; bit<32> b; bit<16> cell_a; bit<16> cell_b; bit<16> entry;
    scale(meta.hash[31:0], meta.a_cells, a);
    scale(meta.hash[63:32], meta.b_cells, b);
    cells_a.read(cell_a, meta.a_base + a);
    cells_b.read(cell_b, meta.b_base + b);
    slots.read(entry, meta.slot_base + ((bit<32>)(cell_a ^ cell_b) & (meta.slots - 1)));
    meta.backend = entry & NUMBER;
    meta.row = meta.backend;
    // The Dcode of a backend that takes no new flows.
    meta.kept = entry & RESERVED != 0;
} }
