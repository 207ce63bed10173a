/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Shapes shared with the control plane (crates/steering/src/image.rs, crates/dataplane/src/abi.rs). */
#ifndef WEIR_TYPES_H
#define WEIR_TYPES_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>


/* One element of the pool that holds the tables' slots and cells; see crates/lookup/src/cells.rs. */
#define CHUNK_BYTES 4096
#define SLOTS_PER_CHUNK (CHUNK_BYTES / 2)

/* A slot of a DIP array or of a Maglev table: 15 bits of backend, and bit 15 for a reserved Dcode. */
#define SLOT_RESERVED 0x8000
#define SLOT_BACKEND 0x7fff
#define NO_BACKEND 0x7fff

enum method {
	METHOD_CONCURY = 1,
	METHOD_TRACKED = 2,
};

enum table_flags {
	TABLE_RECORD = 1 << 0,   /* an update is being built: note where new flows go */
	TABLE_PENDING = 1 << 1,  /* the pending table may hold flows of this service */
	TABLE_MARK = 1 << 2,     /* mark active flows, so that idle ones can be told */
	TABLE_CLIENT = 1 << 3,   /* affinity by client: ports are not part of the key */
};

/* Why a packet was not forwarded. The same numbers as crates/wire/src/reason.rs. */
enum reason {
	OK = 0,
	NOT_IP = 1,
	NO_SERVICE = 2,
	OTHER_PROTOCOL = 3,
	TRUNCATED_ETHERNET = 4,
	TRUNCATED_VLAN = 5,
	TOO_MANY_VLANS = 6,
	TRUNCATED_IPV4 = 7,
	BAD_IPV4_VERSION = 8,
	BAD_IPV4_HEADER_LENGTH = 9,
	BAD_IPV4_LENGTH = 10,
	TRUNCATED_IPV6 = 11,
	BAD_IPV6_VERSION = 12,
	BAD_IPV6_LENGTH = 13,
	TRUNCATED_IPV6_EXTENSION = 14,
	TOO_MANY_IPV6_EXTENSIONS = 15,
	FIRST_FRAGMENT = 16,
	LATER_FRAGMENT = 17,
	TRUNCATED_TCP = 18,
	BAD_TCP_OFFSET = 19,
	TRUNCATED_UDP = 20,
	BAD_UDP_LENGTH = 21,
	OTHER_HOST = 22,
	MAPPED_ADDRESS = 23,
	NO_LIVE_BACKEND = 32,
	NO_NEXT_HOP = 33,
	PENDING_FULL = 34,
	NO_TABLE = 35,
	REASONS = 64,
};

struct hash_key {
	__u64 xor;
	__u64 xor_wide;
	__u64 mul1;
	__u64 mul2;
};

/* A published table. The first 64 bytes, one cache line, are all that a packet needs. */
struct table {
	struct hash_key key;
	__u32 first_slot; /* element of the pool where the slots begin */
	__u32 first_a;    /* element where array A begins; B follows it */
	__u32 chunks_a;   /* elements of array A */
	__u32 chunks_b;   /* elements of array B */
	__u32 slots;      /* entries of the DIP array (a power of two) or of the Maglev table */
	__u32 per_chunk;  /* cells in an element */
	__u32 flags;      /* enum table_flags; the one field that changes in a published table */
	__u16 fallback;   /* backend of a new flow when every Dcode that it tries is reserved */
	__u8 bits;        /* width of a cell */
	__u8 method;      /* enum method */
	/* second line: for people and for the control plane */
	__u64 generation;
	__u64 digest;
	__u64 states;
	__u64 reserved[5];
};

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

enum event_kind {
	EVENT_START = 1,
	EVENT_END = 2,
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
	__u32 port_protocol; /* port as on the wire, protocol << 16, 1 << 24: in use */
	__u32 table;         /* service * 2 + side; storing it publishes the table */
	__u64 reserved;
};

#define VIP_IN_USE (1u << 24)

enum backend_flags {
	BACKEND_PRESENT = 1 << 0,
	BACKEND_HAS_MAC = 1 << 1, /* mac, source_mac, ifindex are usable when the FIB has no answer */
	BACKEND_STATIC = 1 << 2,  /* never ask the FIB */
	BACKEND_IPV6 = 1 << 3,
	BACKEND_DOWN = 1 << 4,    /* by its health check: what may start a flow goes elsewhere */
};

struct backend {
	__u8 address[16];
	__u8 mac[6];
	__u8 source_mac[6];
	__u32 ifindex;
	__u32 flags;
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
	__u64 reserved[2];
};

struct outcome {
	__u64 passed;
	__u64 dropped;
};

#define OWN_MACS 8

/* What the control plane sets for the whole data plane while it runs. */
struct control {
	__u64 own_macs[OWN_MACS]; /* 0 ends the list; an empty list accepts any destination */
	__u32 mark_side;          /* which half of the marks is written: 0 or 1 */
	__u32 seen_generation;    /* 1..3; entries of the generation before are still known */
	__u32 any_port;           /* some service takes any port */
	__u32 reserved;
	__u64 unrecorded;         /* flows that neither ring nor unreported map could take */
};

/* "Seen recently": eight tags in one cache line. */
#define SEEN_WAYS 8
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

#endif
