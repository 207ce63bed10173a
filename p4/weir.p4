// weir on a programmable switch: one packet's way from a service's address to a backend, for the architecture
// v1model (the simple switch of P4's behavioral model). docs/p4.md says what it does, and what it does not.
//
//   headers.p4   what stands in frames, reasons, what is known of a packet on its way
//   parser.p4    from bytes to headers
//   hash.p4      the keyed hash of all planes
//   memory.p4    pending flows, reports, marks: registers that packets write
//   service.p4   faults, services, whose frame it is, and which table decides
//   methods/     to a flow's row
//   settle.p4    where it goes
//   forward.p4   to the backend, and counters

#include <core.p4>
#include <v1model.p4>

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
#include "settle.p4"
#include "forward.p4"

// Packets whose processing has begun, and has ended: a control plane that reads the first and waits until the
// second has reached it knows that no packet is under way with what it saw before (docs/p4.md).
register<bit<48>>(1) begun;
register<bit<48>>(1) ended;
// What the control plane has written here when it filled the registers: a switch that was started anew has 0.
register<bit<48>>(1) epoch;

control VerifyChecksums(inout headers_t hdr, inout meta_t meta) {
    apply { }
}

control WeirIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    FindService() service;
    SeenBefore() seen;
    MarkActive() mark;
    ConcuryRow() concury;
    ResidueRow() residue;
    Settle() settle;
    Report() report_start;
    Report() report_end;
    Forward() forward;
    Count() count;

    apply {
        bit<48> number;
        begun.read(number, 0);
        number = number + 1;
        begun.write(0, number);
        service.apply(hdr, meta, standard.packet_length);
        if (meta.verdict == UNDECIDED) {
            meta.ports = meta.flags & CLIENT != 0 ? 0 : meta.src_port ++ meta.dst_port;
            hash_state(meta.src, meta.ports, meta.key, meta.hash);
            if (meta.protocol == UDP && meta.asks_seen) {
                seen.apply(meta);
            }
            if (meta.flags & MARK != 0 && !meta.starts) {
                mark.apply(meta);
            }
            if (meta.method == CONCURY) {
                concury.apply(meta);
            } else if (meta.method == RESIDUE) {
                residue.apply(meta);
            } else {
                meta.verdict = DROP;
                meta.reason = UNKNOWN_METHOD;
            }
            if (meta.verdict == UNDECIDED) {
                settle.apply(meta);
            }
            if (meta.verdict == UNDECIDED && meta.starts) {
                report_start.apply(meta, 0);
            }
            if (meta.verdict == UNDECIDED && meta.ends) {
                report_end.apply(meta, RESERVED);
            }
            meta.is_new = meta.starts;
        }
        if (meta.verdict == UNDECIDED) {
            meta.verdict = FORWARD;
            forward.apply(hdr, meta, standard);
        }
        if (meta.verdict != FORWARD) {
            mark_to_drop(standard);
        }
        count.apply(meta);
        ended.write(0, number);
    }
}

control WeirEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    apply { }
}

control ComputeChecksums(inout headers_t hdr, inout meta_t meta) {
    apply {
        update_checksum(hdr.outer4.isValid(),
            { hdr.outer4.version, hdr.outer4.words, hdr.outer4.tos, hdr.outer4.length, hdr.outer4.id,
              hdr.outer4.flags, hdr.outer4.offset, hdr.outer4.ttl, hdr.outer4.protocol,
              hdr.outer4.src, hdr.outer4.dst },
            hdr.outer4.checksum, HashAlgorithm.csum16);
    }
}

control WeirDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.vlan);
        packet.emit(hdr.outer4);
        packet.emit(hdr.outer6);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.ipv4_options);
        packet.emit(hdr.ipv6);
        packet.emit(hdr.extension);
        packet.emit(hdr.tcp);
        packet.emit(hdr.udp);
    }
}

V1Switch(WeirParser(), VerifyChecksums(), WeirIngress(), WeirEgress(), ComputeChecksums(),
         WeirDeparser()) main;
