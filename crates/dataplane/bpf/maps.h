/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* All memory. Sizes of 1 are placeholders: the loader sets them from the configuration. */
#ifndef WEIR_MAPS_H
#define WEIR_MAPS_H

#include "abi.h"
#include "array.h"

/* What the control plane sets for the whole data plane while it runs. */
RESIZED(struct control, control);

/* What each service listens on, and which of its tables is published. */
RESIZED(struct vip, vips);

/* Two tables for each service, the published one and the one being made (or being left by the last
 * packets). A packet takes the number of its table from the service's entry in `vips`, once, so it
 * sees one table, whole. */
RESIZED(struct table, tables);

/* The slots and cells of all tables. The control plane hands out ranges of it. */
RESIZED(__u8, pool);

RESIZED(struct backend, backends);

/* The sources that services take packets from: two for each service, of which its entry in `vips` names
 * one, as ranges of the words. */
RESIZED(struct source_list, lists);
RESIZED(__u64, sources);

/* How many new flows each service takes. */
RESIZED(struct cap, caps);

/* The marks of active flows, those written and those being read: lanes of the flows that are armed,
 * and bits for all others. */
RESIZED(__u64, marks);
RESIZED(__u64, strangers);

/* Filters of the flows whose packets are to be noticed, the one in use and the next; and a word that has
 * every flow. */
RESIZED(__u64, watched);

RESIZED(struct seen_line, seen);

/* Of services with stateful Cheetah: connections by index, and the stacks of free ones (slots.h). A service
 * has partitions of its own, which its table names. */
RESIZED(struct slot, slots);
RESIZED(struct stack, stacks);

/* What schedulers remember: how loaded each backend is, and how many turns each service has had. */
RESIZED(struct load, loads);
RESIZED(__u64, turns);

/* How many flows of each service with JET were put into the connection table, so that the control plane can
 * tell how many of them are there no more. */
RESIZED(__u64, entered);

/* How many flows of each service stand in the map of those that are not reported yet. */
RESIZED(__s64, untold);

/* Connections under full NAT, and the addresses that they have towards backends (forward/mapping.h). */
RESIZED(struct mapping, mappings);
RESIZED(struct origin, origins);

/* What stands in a backend's entry, for the control plane's copy of it. */
const volatile struct port_pool as_pooled = {};

/* Their sizes, set before loading; the verifier folds them into the program. */
const volatile __u32 vip_slots = 1;
const volatile __u32 vip_shift = 63; /* 64 - log2 of it */
const volatile __u32 table_count = 1;
const volatile __u32 pool_bytes = 1;
const volatile __u32 backend_count = 1;
const volatile __u32 mark_words = 1; /* of one half */
const volatile __u32 stranger_words = 1; /* of one half; a power of two */
const volatile __u32 seen_lines = 1;
const volatile __u32 partition_count = 1;
const volatile __u32 source_count = 2; /* words of all sources */
const volatile __u32 untold_room = 1; /* entries of `unreported` */
const volatile __u32 known_ids = 1; /* entries of `quic_known`; a power of two */
const volatile __u32 mapping_count = 1;
/* While maps of another size take the place of these: what is noted here is noted in their twins, too
 * (crates/dataplane/src/kernel/resize). */
const volatile __u32 twins = 0;
/* Whether frames are counted by interface, for the program that takes notes (interfaces.h). */
const volatile __u32 by_interface = 0;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lane);
} lanes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASONS);
	__type(key, __u32);
	__type(value, struct outcome);
} outcomes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BUCKETS);
	__type(key, __u32);
	__type(value, struct bucket);
} buckets SEC(".maps");

/* By the backend's address, IPv4 mapped. Who knows of more ways than there is room for learns anew. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, __u64[2]);
	__type(value, struct path);
} paths SEC(".maps");

/* Flows that started while an update was being built, or on a reserved Dcode. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct service_state);
	__type(value, __u32);
} pending SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct service_state);
	__type(value, __u32);
} pending_twin SEC(".maps");

/* States on reserved Dcodes whose next packet may look like a first one. Written from above only. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct service_state);
	__type(value, __u32);
} pinned SEC(".maps");

/* What stands in the ring. A ring does not name the type of its records; this does, for the control
 * plane's copy of it. */
const volatile struct event as_reported = {};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} events SEC(".maps");

/* Where a flow is noted when the ring is full or nobody drains it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct service_state);
	__type(value, struct unreported);
} unreported SEC(".maps");

/* By the interface's number; those that are sent by as they are have no entry. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct device);
} devices SEC(".maps");

/* The services that answers are of; only while a service is translated. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct translated);
	__type(value, struct translation);
} translations SEC(".maps");

/* The ways to clients that answers went by lately: lanes whose packets and bytes are the client's
 * address. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1); /* WAYS, while a service is translated */
	__type(key, __u32);
	__type(value, struct lane);
} ways SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct returned);
} returned SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow_key);
	__type(value, struct tracked);
} connections SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow_key);
	__type(value, struct tracked);
} connections_twin SEC(".maps");

/* Where first fragments went. Of no size that anybody sets: the others follow within milliseconds. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FRAGMENTS);
	__type(key, struct fragment_key);
	__type(value, struct fragment);
} fragments SEC(".maps");

/* The buckets of prefixes of sources, of all services (caps.h): when each is full. Not pinned: what is taken
 * out comes back within the time of a burst. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, CAP_ROW * 2);
	__type(key, __u32);
	__type(value, __u64);
} source_buckets SEC(".maps");

/* How many connections prefixes of sources hold, of all services, in two rows of counters that stand beside each
 * other (caps.h), and behind them how many all hold together. Not pinned: the control plane counts anew. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, HELD_ROW + 1);
	__type(key, __u32);
	__type(value, __u32[2]);
} held SEC(".maps");

/* Connections that were counted there lately, so that a SYN that is sent again does not count again: the hash of
 * each, with the number of the count in its last eight bits. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, HELD_FLOWS);
	__type(key, __u32);
	__type(value, __u64);
} held_flows SEC(".maps");

/* How QUIC ids are taken apart, and the backends that they lead to. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct quic_config);
} quic_configs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct quic_server);
	__type(value, __u32);
} quic_servers SEC(".maps");

/* What was found out of ids lately, and what became of the ids of all packets. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, QUIC_KNOWN); /* at least (known_ids) */
	__type(key, __u32);
	__type(value, struct quic_known);
} quic_known SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, QUIC_OUTCOMES);
	__type(key, __u32);
	__type(value, __u64);
} quic_outcomes SEC(".maps");

/* Of connections whose answers pass here; from the client to the service. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow_key);
	__type(value, struct answer);
} answers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow_key);
	__type(value, struct answer);
} answers_twin SEC(".maps");

#endif
