/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Shapes that the program shares with the control plane.
 *
 * Structures stand here; the build makes Rust types of them. Numbers, reasons, methods and the header
 * of a table (struct table) stand in Rust; the build writes <weir/shared.h> of them. So nothing is
 * declared twice. Padding is an error: what the maps hold is copied byte by byte. */
#ifndef WEIR_ABI_H
#define WEIR_ABI_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "hash.h"

#pragma clang diagnostic push
#pragma clang diagnostic error "-Wpadded"

#include <weir/shared.h>

/* What identifies a state within a service: the flow, or with client affinity its source. */
struct state_key {
	__u8 address[16];
	__u16 src_port;
	__u16 dst_port;
};

struct service_state {
	__u32 service;
	struct state_key key;
};

struct event {
	__u32 service;
	__u16 backend;
	__u8 kind;
	__u8 reserved;
	struct state_key key;
	__u32 reserved2;
};

struct unreported {
	__u16 backend;
	__u8 kind;
	__u8 reserved;
};

/* Exact match of (address, protocol, port); port 0 stands for any port, protocol 0 for "this
 * address belongs to a service", which decides whether a malformed packet is dropped. */
struct vip {
	__u64 high;
	__u64 low;
	__u32 port_protocol; /* port as on the wire, protocol << 16, VIP_IN_USE */
	__u32 table;         /* service * 2 + side; storing it publishes the table */
	__u64 reserved;
};

struct backend {
	__u8 address[16];
	__u8 mac[6];
	__u8 source_mac[6];
	__u32 ifindex;
	__u32 flags;       /* BACKEND_ */
	__u32 incarnation; /* counts the uses of this id, so that a tracked flow outlives no backend */
	__u32 reserved[6];
};

/* Per CPU and backend, one cache line: what the fast path writes and the next hop that it needs. */
struct lane {
	__u64 packets;
	__u64 bytes;
	__u64 flows;
	__u64 resolved; /* jiffies of the last resolution, 0: never */
	__u8 mac[6];
	__u8 source_mac[6];
	__u32 ifindex;
	__u32 vlan; /* the tag as it stands on the wire, 0: none */
	__u32 reserved;
	__u64 reserved2;
};

/* An interface that is not sent by as it is: a VLAN, whose frames leave tagged by the one underneath;
 * or one that the program cannot send by at all. */
struct device {
	__u32 lower;
	__u32 vlan; /* the tag as it stands on the wire, 0: none */
	__u32 flags; /* DEVICE_ */
	__u32 reserved;
};

struct outcome {
	__u64 passed;
	__u64 dropped;
};

/* What the control plane sets for the whole data plane while it runs. */
struct control {
	__u64 own_macs[OWN_MACS]; /* 0 ends the list; an empty list accepts any destination */
	__u64 mark_side;          /* the marks that are written: first << 32 | number less one */
	__u32 seen_generation;    /* 1..3; entries of the generation before are still known */
	__u32 any_port;           /* some service takes any port */
	__u64 unrecorded;         /* flows that neither ring nor unreported map could take */
};

/* "Seen recently": eight tags in one cache line. */
struct seen_line {
	__u64 tags[SEEN_WAYS]; /* low 2 bits: generation, the rest: hash */
};

struct tracked {
	__u32 incarnation;
	__u16 backend;
	__u16 reserved;
};

/* Key of the connection table: the whole five-tuple. */
struct flow_key {
	__u64 src[2];
	__u64 dst[2];
	__u32 ports;
	__u32 protocol;
};

#pragma clang diagnostic pop

#endif
