// residue: a row names the backend; a mark on it says that some of its flows are exceptions, which an exact
// table knows by their hashes. Other planes have flags in front of the exceptions, which save them memory reads;
// here it is one lookup anyway.

control ResidueRow(inout meta_t meta) {
    @name(".set_exception") action set_exception(bit<16> backend) {
        meta.backend = backend;
        meta.kept = true;
    }
    @name(".exceptions") table exceptions {
        key = { meta.table_number: exact; meta.hash: exact; }
        actions = { set_exception; NoAction; } size = 262144;
    }

    apply {
        bit<16> entry; bit<32> at;
        scale(meta.hash[31:0], meta.slots, at);
        slots.read(entry, meta.slot_base + at);
        meta.backend = entry & NUMBER;
        meta.row = meta.backend;
        meta.kept = false;
        if (entry & RESERVED != 0) { exceptions.apply(); }
    }
}
