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
 * address belongs to a service", which decides whether a malformed packet is dropped. Of a prefix or a
 * block of ports, the first address and the first port, and the number of its kind. */
struct vip {
	__u64 high;
	__u64 low;
	__u32 port_protocol; /* port as on the wire, protocol << 16, VIP_IN_USE, kind << VIP_KIND_SHIFT */
	__u32 table;         /* service * 2 + side, TABLE_ flags; storing it publishes the table */
	__u64 id_lengths;    /* of QUIC ids: a byte for each configuration, 0: there is none; of an address its
			      * ports whose later fragments are led by source: 16 bits for TCP, UDP and SCTP */
	__u32 salt;          /* of 16 bits: what tells this address from the service's others; above them 1 if
			      * fragments are led so */
	__u32 host_bits;     /* the last bits of an address that tell those of a prefix apart, 0..64 */
};

/* How much of an address and a port services listen on: what is left of a packet's, and the number by which
 * such entries of the service table are told. */
struct kind {
	__u64 high;
	__u64 low;
	__u32 mask;   /* of the port, and of the protocol */
	__u32 number; /* << VIP_KIND_SHIFT */
	__u32 bits;   /* of the address << 8 | of the port; 0 ends the list */
	__u32 reserved;
};

/* Where a table of sources stands among their words, two for each service (sources.h). */
struct source_list {
	__u32 first4;   /* the word that its nodes begin at, with those of IPv4 */
	__u32 shift4;   /* an address shifted right by so many bits is a first node and a bit of it */
	__u32 first6;   /* where those of IPv6 begin */
	__u32 shift6;   /* of the first 64 bits of an address */
	__u32 children; /* the first word of their children, two to a word */
	__u32 words;    /* in all; 0: there is none */
	__u64 digest;   /* of its contents */
};

/* How many new flows a service takes (caps.h): as the nanoseconds from one to the next, 0: any number, and as
 * those in which an empty bucket becomes full. */
struct cap {
	__u64 full;     /* the service's bucket: when it will be, on the monotonic clock */
	__u64 capped;   /* new flows that were not taken as it was empty */
	__u64 capped_source; /* as the buckets of their prefix were */
	__u64 interval;
	__u64 room;
	__u64 source_interval; /* of each prefix of sources */
	__u64 source_room;
	__u64 mask4;    /* what is left of an address to be a prefix, of the lower half in IPv4 */
	__u64 mask6[2];
	struct hash_key key; /* which buckets a prefix has is known to who has it */
	__u64 limit;    /* connections of each prefix (HELD_MOST), 0: any number; the number of their latest count
			 * << HELD_COUNT_SHIFT; the tick at which that is too old << 32 */
	__u64 capped_connections; /* new flows that were not taken as their prefix held as many */
};

struct backend {
	__u8 address[16];
	__u8 mac[6];
	__u8 source_mac[6];
	__u32 ifindex;
	__u32 flags;       /* BACKEND_ */
	__u32 incarnation; /* counts the uses of this id, so that a tracked flow outlives no backend */
	__u8 source[16];   /* of its tunnel, IPv4 mapped */
	__u32 mtu;         /* of the way to it, if the FIB does not say; 0: not known */
	__u16 port;        /* of a tunnel over UDP, as on the wire */
	__u8 tunnel;       /* TUNNEL_ */
	__u8 spread;       /* last bits of an IPv4 source that vary with the flow */
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
	__u32 beyond; /* LANE_: what else a frame needs; 0: only addresses */
	__u32 vlan;   /* the tag as it stands on the wire, 0: none */
	__u32 mtu;    /* of the way out, 0: not known */
	__u32 link_mtu; /* with LANE_NARROW: of the interface that frames leave by */
};

/* An interface that is not sent by as it is: a VLAN, whose frames leave tagged by the one underneath;
 * or one that the program cannot send by at all. */
struct device {
	__u32 lower;
	__u32 vlan; /* the tag as it stands on the wire, 0: none */
	__u32 flags; /* DEVICE_ */
	__u32 reserved;
};

/* Where answers come from that are translated: a backend's address, port and protocol. */
struct translated {
	__u64 address[2];
	__u32 port_protocol; /* port as on the wire, 0: any; protocol << 16 */
	__u32 reserved;
};

/* Beside a port: also 0 is one. */
#define PORT_GIVEN 0x10000

/* What is put in the place of an address and a port. */
struct translation {
	__u64 address[2];
	__u32 port; /* as on the wire, with or without PORT_GIVEN; 0: it stays */
	__u32 limits; /* one more than the number of the backend whose service limits segments: those that its SYN+ACKs ask for are limited, too; 0: no such */
};

/* The sources that packets to a backend get under full NAT. Stands in the place of its tunnel's source. */
struct port_pool {
	__u32 ports;      /* of each address */
	__u16 first_port; /* the first of them */
	__u16 first;      /* the first address, among the origins */
	__u16 addresses;
	__u16 reserved;
	__u32 reserved2;
};

/* An address of the balancer's that packets under full NAT come from. */
struct origin {
	__u64 address[2];
};

/* A connection under full NAT: whose packets from a port of the balancer's to a backend are. One cache line.
 * Its place says the backend's end and ours (forward/mapping.h). */
struct mapping {
	__u64 word;  /* ticks of its latest packet << 32, MAPPING_ flags, how often it was claimed */
	__u64 client[2];
	__u64 vip[2];
	__u32 ports; /* the client's and the service's, as on the wire */
	__u16 port;  /* ours, as on the wire */
	__u16 origin; /* number of our address */
	__u16 backend;
	__u8 protocol;
	__u8 reserved;
	__u32 since; /* ticks when it began */
	__u32 incarnation; /* of the backend */
	__u32 reserved2;
};

/* Answers that were translated. */
struct returned {
	__u64 packets;
	__u64 bytes;
};

/* The MTU of the way to a backend, as a router on it has said, and when, in nanoseconds. */
struct path {
	__u64 since;
	__u32 mtu;
	__u32 reserved;
};

/* How many messages a processor may send now, and when it was filled last, in nanoseconds. */
struct bucket {
	__u64 filled;
	__u64 tokens;
};

struct outcome {
	__u64 passed;
	__u64 dropped;
};

/* What the control plane sets for the whole data plane while it runs. */
struct control {
	__u64 own_macs[OWN_MACS]; /* 0 ends the list; an empty list accepts any destination */
	__u64 mark_side;          /* the marks that are written: first << 32 | number less one */
	__u64 watched_side;       /* the filter of the flows that are watched, in the same form */
	__u64 watched_next;       /* and the one that takes its place */
	__u32 seen_generation;    /* 1..3; entries of the generation before are still known */
	__u32 unusual;            /* UNUSUAL_: what else a destination without a service may be */
	__u64 unrecorded;         /* flows that neither ring nor unreported map could take */
	__s64 untold;             /* flows in the map, of all services */
	__u32 clock;              /* seconds, by which slots grow old; they stop with the control plane */
	__u32 bare;               /* packets that did not echo the cookie that their backend was told */
	__u64 quic_generation;    /* raised when configurations or servers of QUIC ids have changed */
	__u64 intervals[BUCKETS]; /* nanoseconds between ICMP messages that a processor sends; 0: none is */
	struct kind kinds[2 * KINDS]; /* most exact first, two lists */
	struct hash_key mapping_key; /* which ports connections get is known to who has it */
	__u32 mapping_ticks[MAPPING_TIMES]; /* mappings are kept so long, by MAPPING_ number */
	__u32 kind_side;                    /* which of both lists of kinds counts, 0 or 1 */
	__u32 tunnels;                      /* backends that are behind tunnels */
	__u32 widest;                       /* the largest MTU of the interfaces that packets come in by; 0: not known */
	__u32 reserved;
};

/* "Seen recently": eight tags in one cache line. */
struct seen_line {
	__u64 tags[SEEN_WAYS]; /* low 2 bits: generation, the rest: hash */
};

struct tracked {
	__u16 incarnation; /* of the backend, as far as it fits */
	__u16 former;      /* of Cheetah's server that the flow was at before, plus one; 0: none */
	__u16 backend;
	__u16 number; /* of Cheetah's server, plus one; TRACKED_OPEN, TRACKED_ENDED; 0: any method's */
};

/* A connection whose answers pass the balancer: the upper halves of its timestamps that cookies
 * displace, as crates/steering/src/methods/cheetah/repair.rs says. */
struct answer {
	__u32 newest;  /* timestamp of the backend */
	__u32 heard;   /* the last echo, without the cookie */
	__u32 unheard; /* the first timestamp of the backend since then */
	__u16 uppers[2];
	__u16 number; /* of the server */
	__u8 version; /* which of the upper halves is the newer one */
	__u8 flags;   /* ANSWER_ */
};

/* A connection of stateful Cheetah, or a free place for one. */
struct slot {
	__u64 hash; /* of the flow */
	__u64 word; /* seconds of its latest packet << 32, state << 30, server << 15, backend; 0..3 << 30:
		     * free, opening, open, closing; free: how far the next free one is behind it */
};

/* The free slots of a partition, and what it has refused: one cache line. */
struct stack {
	__u64 head; /* tag << 32, slots in use << 16, the slot on top */
	__u32 hand; /* where the sweep goes on */
	__u32 reserved;
	__u64 full;    /* connections that found no slot */
	__u64 stale;   /* cookies that named a free slot */
	__u64 foreign; /* cookies that named another flow's */
	__u64 reserved2[3];
};

/* How loaded a backend is, for schedulers: connections, or what the control plane says; and what its
 * connections echo. */
struct load {
	__s64 value;
	__u32 weight;
	__u32 echoes; /* ECHOES_ */
};

/* Key of the connection table: the whole five-tuple. */
struct flow_key {
	__u64 src[2];
	__u64 dst[2];
	__u32 ports;
	__u32 protocol;
};

/* Which packet a fragment is of. */
struct fragment_key {
	__u64 src[2];
	__u64 dst[2];
	__u32 id;
	__u32 protocol; /* 44 in IPv6, where the id alone says it */
};

/* Where its first fragment went. */
struct fragment {
	__u32 backend; /* NO_BACKEND: to the kernel; ANSWERED: it is a backend's, and was translated */
	__u32 incarnation; /* of the backend; of an answer its ports */
	__u32 clock; /* when it did: fragment_clock (fragment.h) */
	__u32 origin; /* number of the source that it got, plus one; 0: its own; of an answer its protocol */
};

/* A configuration of QUIC-LB, by service * 8 + its number: how an id is taken apart. Pairs of words are
 * up to 16 bytes as they stand in memory. */
struct quic_config {
	__u64 left[2];  /* the bits of the left half, in what begins the block */
	__u64 right[2]; /* of the right half, in what begins where that does */
	__u64 server[2]; /* of the server id, in the decrypted block */
	__u32 keys[AES_WORDS];
	__u8 way;      /* QUIC_ */
	__u8 block;    /* bytes of server id and nonce */
	__u8 right_at; /* where the right half begins */
	__u8 least;    /* the id's first byte has at least this length in it */
	__u32 reserved;
};

/* Up to 19 bytes of server id and nonce; the server id when they are decoded; a block of AES. */
struct quic_block {
	__u64 words[3];
};

struct quic_server {
	__u64 id[2];
	__u32 config; /* service * 8 + number */
	__u32 reserved;
};

/* The backend that an id was found to lead to. */
struct quic_known {
	__u64 id[2];
	__u32 rest; /* of the id */
	__u32 service;
	__u32 generation; /* control's, when that was found out */
	__u32 backend;
};

#pragma clang diagnostic pop

#include "trace.h"

#endif
