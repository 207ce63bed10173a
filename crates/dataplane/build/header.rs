//! The C header of what Rust declares: numbers, reasons, methods, and the header of a table.

use crate::numbers;
use std::fmt::Write;
use std::path::Path;
use weir_steering::cheetah::SlotState;
use weir_steering::residue::{LINE_ENTRIES, LINE_PROBES};
use weir_steering::{
    ELEMENT_BYTES, EventKind, Flags, LANE_ACTIVE, LANE_ONES, LANE_TAGS, LEAST_MOST, MOST_LOAD,
    MOST_WATCHED_WORDS, MethodId, NEXT_TRY, NO_BACKEND, RawHeader, SECOND_TRIES, SEEN_STRIDE,
    SEEN_WAYS, SLOT_BACKEND, SLOT_RESERVED, TAG_BITS, cheetah,
};
use weir_wire::{
    FIRST_TTL, MAX_IPV6_EXTENSIONS, MAX_VLAN_TAGS, Protocol, Reason, SCTP_ABORT, SCTP_INIT,
    SCTP_SHUTDOWN_ACK, SCTP_SHUTDOWN_COMPLETE, SPREAD_FIRST, SPREAD_LOW, SPREAD_SECOND, TcpFlags,
    aes, quic,
};

/// Name, value, and what a reader of the header should know.
type Number = (&'static str, u64, &'static str);

/// Numbers on which the meaning of pinned memory depends.
fn kept() -> Vec<Number> {
    let mut all: Vec<Number> = numbers::KEPT.to_vec();
    all.extend([
        ("CHUNK_BYTES", ELEMENT_BYTES as u64, "one element of the pool of slots and cells"),
        ("SLOT_RESERVED", SLOT_RESERVED.into(), "the slot is kept for a backend without new flows"),
        ("SLOT_BACKEND", SLOT_BACKEND.into(), "the bits of a slot that hold the backend"),
        ("NO_BACKEND", NO_BACKEND.into(), "a slot without a backend"),
        ("TABLE_RECORD", Flags::RECORD.into(), "an update is being built: note where new flows go"),
        ("TABLE_PENDING", Flags::PENDING.into(), "the pending table may hold flows of the service"),
        ("TABLE_MARK", Flags::MARK.into(), "mark active flows, so that idle ones can be told"),
        (
            "TABLE_ANSWERS",
            Flags::ANSWERS.into(),
            "answers pass here, and their timestamps are written",
        ),
        ("TABLE_TELLS", Flags::TELLS.into(), "backends write them: SYNs tell them their cookies"),
        ("TABLE_TURNS", Flags::TURNS.into(), "new flows go to backends by turns"),
        ("TABLE_TWO_CHOICES", Flags::TWO_CHOICES.into(), "to the less loaded of two"),
        ("TABLE_LEAST", Flags::LEAST.into(), "to the least loaded"),
        ("TABLE_SCHEDULER", Flags::SCHEDULER.into(), "all of these; without, their hash says"),
        ("TABLE_COUNTS", Flags::COUNTS.into(), "open connections are counted"),
        ("TABLE_CLIENT", Flags::CLIENT.into(), "affinity by client: no ports in the key"),
        ("EVENT_START", EventKind::Start as u64, "the first packet of a flow"),
        ("EVENT_END", EventKind::End as u64, "FIN or RST"),
        ("SEEN_WAYS", SEEN_WAYS as u64, "tags in a line of the filter of flows seen recently"),
        ("SEEN_STRIDE", SEEN_STRIDE, "keeps equal hashes of two services apart in it"),
        ("TAG_BITS", TAG_BITS.into(), "of a lane of the activity marks"),
        ("LANE_ONES", LANE_ONES, "a one in each lane"),
        ("WATCHED_WORDS", MOST_WATCHED_WORDS as u64 * 2 + 1, "of the filters of watched flows"),
        ("LANE_TAGS", LANE_TAGS, "the tags"),
        ("LANE_ACTIVE", LANE_ACTIVE, "the bits beside them, which packets set"),
        ("REASONS", Reason::SLOTS.into(), "counters, one for each reason"),
        (
            "MOST_TIER_BITS",
            cheetah::MOST_TIER_BITS.into(),
            "bits of a cookie that name a balancer of the second tier",
        ),
        (
            "PARTITION_SLOTS",
            cheetah::PARTITION_SLOTS.into(),
            "slots that a cookie's index tells apart",
        ),
        ("PARTITION_SHIFT", cheetah::PARTITION_SHIFT.into(), "of the bits of a hash that pick one"),
        ("PAD_SHIFT", cheetah::PAD_SHIFT.into(), "of the bits of a hash that hide a number"),
        ("SLOT_OPENING", SlotState::Opening as u64, "of a slot: only a SYN was seen"),
        ("SLOT_OPEN", SlotState::Open as u64, "a packet with the cookie was seen"),
        ("SLOT_CLOSING", SlotState::Closing as u64, "a FIN or RST was seen"),
    ]);
    all
}

/// Numbers of packets and of decisions.
fn others() -> Vec<Number> {
    let mut all: Vec<Number> = numbers::PASSING.to_vec();
    all.extend([
        // Whoever does not know it lets flows start, as before there was such a flag.
        (
            "TABLE_EXACT",
            Flags::EXACT.into(),
            "whoever is on a reserved row and not pinned is placed again",
        ),
        // Whoever knows no keys finds no number in such a table, and refuses its configuration before.
        (
            "COOKIES_KEYED",
            cheetah::KEYED.into(),
            "of segment_bits: cookies say under which of two keys their numbers are hidden",
        ),
        ("COOKIES_SECOND", cheetah::SECOND.into(), "of segment_bits: the second one issues"),
        (
            "TABLE_FROZEN",
            Flags::FROZEN.into(),
            "in a change of several balancers no flow may start",
        ),
        ("QUIC_FROM_ID", quic::LEAST_FROM_ID as u64, "bytes from an id's first on"),
        (
            "QUIC_CONFIG_SHIFT",
            quic::ROTATION_SHIFT.into(),
            "of an id's configuration, in its first byte",
        ),
        ("QUIC_LENGTH", quic::LOW_BITS.into(), "bits of that byte that may say how long the id is"),
        ("QUIC_ID", quic::MAX_ID_LENGTH as u64, "bytes of the longest id"),
        ("SPREAD_LOW", SPREAD_LOW, "odd factors of a flow's number by which tunnels spread flows"),
        ("SPREAD_FIRST", SPREAD_FIRST, ""),
        ("SPREAD_SECOND", SPREAD_SECOND, ""),
        ("MAX_VLANS", MAX_VLAN_TAGS.into(), "tags that are skipped"),
        ("MAX_IPV6_EXTENSIONS", MAX_IPV6_EXTENSIONS.into(), "headers that are skipped"),
        ("SECOND_TRIES", SECOND_TRIES as u64, "Dcodes that a new flow tries after a reserved one"),
        ("NEXT_TRY", NEXT_TRY, "what its hash is increased by before each"),
        ("MOST_LOAD", MOST_LOAD, "loads are less, so that they can be multiplied by a weight"),
        ("LEAST_MOST", LEAST_MOST as u64, "backends that the scheduler `least` looks at"),
        ("LINE_ENTRIES", LINE_ENTRIES as u64, "exceptions in a line of residue's map"),
        ("LINE_PROBES", LINE_PROBES as u64, "lines that a search reads at most"),
        ("ANSWER_PATIENCE", cheetah::PATIENCE.into(), "ticks without an echo: the client is deaf"),
        ("ANSWER_SAME_CLOCK", cheetah::SAME_CLOCK.into(), "ticks between two SYNs of a connection"),
        ("TOLD", cheetah::TOLD.into(), "in the TSecr of a SYN that tells its cookie"),
        ("TOLD_MARK", cheetah::TOLD_MARK.into(), "the lower half of that TSecr"),
        ("COOKIE_NUMBERS", (cheetah::NUMBERS - 1).into(), "bits of a cookie that hide a number"),
        (
            "OPENING_SECONDS",
            cheetah::OPENING_SECONDS.into(),
            "from a SYN to the packet with its cookie",
        ),
        ("LINGER_SECONDS", cheetah::LINGER_SECONDS.into(), "of a slot after FIN or RST"),
        ("SLOTS_SWEPT", cheetah::SWEEP.into(), "slots that each new connection looks over"),
        ("SLOTS_SWEPT_FULL", cheetah::SWEEP_FULL.into(), "the same if none is free"),
        ("TCP_FIN", TcpFlags::FIN.0.into(), "RFC 9293 section 3.1"),
        ("TCP_SYN", TcpFlags::SYN.0.into(), ""),
        ("TCP_RST", TcpFlags::RST.0.into(), ""),
        ("TCP_ACK", TcpFlags::ACK.0.into(), ""),
        ("PROTOCOL_TCP", Protocol::Tcp.number().into(), ""),
        ("PROTOCOL_UDP", Protocol::Udp.number().into(), ""),
        ("PROTOCOL_SCTP", Protocol::Sctp.number().into(), ""),
        ("SCTP_INIT", SCTP_INIT.into(), "chunks of RFC 9260 section 3.2"),
        ("SCTP_ABORT", SCTP_ABORT.into(), ""),
        ("SCTP_SHUTDOWN_ACK", SCTP_SHUTDOWN_ACK.into(), ""),
        ("SCTP_SHUTDOWN_COMPLETE", SCTP_SHUTDOWN_COMPLETE.into(), ""),
        ("FIRST_TTL", FIRST_TTL.into(), "of packets that begin here"),
    ]);
    all
}

/// What the layout of pinned memory depends on, beside the structures of C. Methods are not part of
/// it: a table carries its method's own version.
pub fn layout() -> String {
    kept()
        .iter()
        .fold(String::new(), |text, (name, value, _)| text + &format!("{name}={value:#x}\n"))
}

/// The header's text.
pub fn shared() -> String {
    let mut out = "/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */\n\
         /* Written by crates/dataplane/build from what the Rust crates declare. */\n\
         #ifndef WEIR_SHARED_H\n#define WEIR_SHARED_H\n\n"
        .to_owned();
    for (name, value, doc) in kept().into_iter().chain(others()) {
        // Small ones may meet signed numbers in C.
        let suffix = if value > u64::from(u32::MAX) { "ULL" } else { "" };
        let doc = doc.trim();
        let comment = if doc.is_empty() { String::new() } else { format!(" /* {doc} */") };
        writeln!(out, "#define {name} {value:#x}{suffix}{comment}").expect("a string grows");
    }
    out.push('\n');
    reasons(&mut out);
    table(&mut out);
    out.push_str("#endif\n");
    out
}

fn reasons(out: &mut String) {
    out.push_str("/* Why a packet was not forwarded. */\nenum reason {\n\tREASON_OK = 0,\n");
    for reason in Reason::ALL {
        let name = reason.name().to_uppercase();
        writeln!(out, "\tREASON_{name} = {}, /* {} */", reason.code(), reason.description())
            .expect("a string grows");
    }
    out.push_str("};\n\n");
}

/// The methods of the registry that have a header in `directory`, by their names as C can spell
/// them, and their numbers.
fn programs(directory: &Path) -> Vec<(String, u8)> {
    let all =
        MethodId::published().map(|method| (method.name().replace('-', "_"), method.number()));
    all.filter(|(name, _)| directory.join(format!("{name}.h")).exists()).collect()
}

/// The numbers of these methods, as an array in Rust.
pub fn method_numbers(directory: &Path) -> String {
    let numbers: Vec<u8> = programs(directory).into_iter().map(|(_, number)| number).collect();
    format!("{numbers:?}")
}

/// The numbers of these methods, their headers, and a list.
pub fn methods(directory: &Path) -> String {
    let here = programs(directory);
    let mut out = "/* Written by crates/dataplane/build. */\n".to_owned();
    for (name, number) in &here {
        let upper = name.to_uppercase();
        writeln!(out, "#define METHOD_{upper} {number}\n#include \"methods/{name}.h\"")
            .expect("a string grows");
    }
    out.push_str("\n#define METHODS(METHOD)");
    for (name, _) in &here {
        let upper = name.to_uppercase();
        write!(out, " \\\n\tMETHOD(METHOD_{upper}, steer_{name})").expect("a string grows");
    }
    out.push('\n');
    out
}

/// The tables of AES, as a program without instructions for it needs them.
pub fn aes() -> String {
    let mut out = "/* Written by crates/dataplane/build of crates/wire/src/aes.rs. */\n".to_owned();
    let mut array = |kind: &str, name: &str, values: Vec<u32>| {
        let values: Vec<String> = values.iter().map(|value| format!("{value:#x}")).collect();
        let (count, lines) = (values.len(), values.join(","));
        writeln!(out, "static const {kind} {name}[{count}] SEC(\".rodata.aes\") = {{ {lines} }};")
            .expect("a string grows");
    };
    array("__u32", "aes_rounds", aes::encryption().concat());
    array("__u32", "aes_inverse_rounds", aes::decryption().concat());
    array("__u8", "aes_last", aes::substitution().map(u32::from).to_vec());
    array("__u8", "aes_inverse_last", aes::inverse_substitution().map(u32::from).to_vec());
    out
}

fn table(out: &mut String) {
    out.push_str(
        "/* The header of a published table. The first 64 bytes, one cache line, are all that a\n \
         * packet needs. */\nstruct table {\n",
    );
    for field in RawHeader::FIELDS {
        let array = field.count.map_or(String::new(), |count| format!("[{count}]"));
        writeln!(out, "\t{} {}{array}; /* {} */", field.c_type, field.name, field.doc.trim())
            .expect("a string grows");
    }
    out.push_str("};\n\n");
}
