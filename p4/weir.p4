// weir on a programmable switch: one packet's way from a service's address to a backend, for the architecture
// v1model (the simple switch of P4's behavioral model). docs/p4.md says what it does, and what it does not.

#include <core.p4>
#include <v1model.p4>

#define REFUSE(why) meta.verdict = DROP; meta.reason = why;
#define SIX(x) x x x x x x
#define ADD(counter, at, by) counter.read(count, at); counter.write(at, count + by);

#include "sizes.p4"
#include "headers.p4"
#include "parser.p4"
#include "hash.p4"
#include "memory.p4"

// Entries of DIP arrays, rows of residue.
register<bit<16>>(SLOTS) slots;
// Added to a hash before it is mixed again for the next try.
const bit<64> NEXT_TRY = 0x9e3779b97f4a7c15;

// Not 0 for a backend that is down; one that is none is not.
action is_down(in bit<16> backend, out bit<32> down) {
    states.read(down, (bit<32>)backend & (BACKENDS - 1));
    down = backend == NO_BACKEND ? 0 : down & 2;
}

#include "service.p4"
#include "methods/concury.p4"
#include "methods/residue.p4"
#include "methods/cheetah_stateful.p4"
#include "methods/cheetah.p4"
#include "settle.p4"
#include "forward.p4"

// Packets whose processing has begun, and has ended: a control plane that reads the first and waits until the
// second has reached it knows that no packet is under way with what it saw before (docs/p4.md).
register<bit<48>>(1) begun;
register<bit<48>>(1) ended;
// What the control plane has written here when it filled the registers: a switch that was started anew has 0.
register<bit<48>>(1) epoch;
// By port, the index of the interface whose packets are taken, or 0; behind these, of which interface the port is.
register<bit<32>>(1024) links;

control VerifyChecksums(inout headers_t hdr, inout meta_t meta) { apply { } }

control WeirIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    FindService() service; HashState() hash_state; SeenBefore() seen; MarkActive() mark;
    ConcuryRow() concury; ResidueRow() residue; Cheetah() cheetah; Settle() settle;
    Report() report_start; Report() report_end; Forward() forward; Count() count;

    apply {
        bit<48> number; bit<32> link;
        links.read(link, (bit<32>)standard.ingress_port);
        if (link == 0) { mark_to_drop(standard); exit; }
        begun.read(number, 0); number = number + 1; begun.write(0, number);
        service.apply(hdr, meta, standard.packet_length);
        if (meta.verdict == UNDECIDED) {
            meta.ports = meta.flags & CLIENT != 0 ? 0 : meta.src_port ++ meta.dst_port;
            hash_state.apply(meta.src, meta.ports, meta.key, meta.hash);
            if (meta.protocol == UDP && meta.asks_seen) { seen.apply(meta); }
            if (meta.flags & MARK != 0 && !meta.starts) { mark.apply(meta); }
            meta.is_new = meta.starts;
            bool has_rows = meta.method == CONCURY || meta.method == RESIDUE;
            if (meta.method == CONCURY) { concury.apply(meta); }
            else if (meta.method == RESIDUE) { residue.apply(meta); }
            else if (meta.method == CHEETAH || meta.method == CHEETAH_STATEFUL) { cheetah.apply(hdr, meta); }
            else { REFUSE(UNKNOWN_METHOD) }
            if (has_rows) { settle.apply(meta); }
            if (has_rows && meta.verdict == UNDECIDED && meta.starts) { report_start.apply(meta, 0); }
            if (has_rows && meta.verdict == UNDECIDED && meta.ends) { report_end.apply(meta, RESERVED); }
        }
        if (meta.verdict == UNDECIDED) {
            meta.verdict = FORWARD;
            forward.apply(hdr, meta, standard);
        }
        if (meta.verdict != FORWARD) { mark_to_drop(standard); }
        count.apply(meta);
        ended.write(0, number);
    }
}

control WeirEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) { apply { } }

control ComputeChecksums(inout headers_t hdr, inout meta_t meta) { apply {
    update_checksum(hdr.outer4.isValid(),
        { hdr.outer4.version, hdr.outer4.words, hdr.outer4.tos, hdr.outer4.length, hdr.outer4.id, hdr.outer4.flags,
          hdr.outer4.offset, hdr.outer4.ttl, hdr.outer4.protocol, hdr.outer4.src, hdr.outer4.dst },
        hdr.outer4.checksum, HashAlgorithm.csum16);
} }

control WeirDeparser(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }

V1Switch(WeirParser(), VerifyChecksums(), WeirIngress(), WeirEgress(), ComputeChecksums(),
         WeirDeparser()) main;
