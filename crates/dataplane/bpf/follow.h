/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Whether packets of one connection go to two backends: some connections are followed for their life, drawn
 * by a hash under a salt, in a table of bounded size. Only in the program that takes notes (trace.h), for as
 * long as somebody wants it (docs/consistency.md); nothing here has a say in where a packet goes. */
#ifndef WEIR_FOLLOW_H
#define WEIR_FOLLOW_H

#ifdef WEIR_TRACED

#include "maps.h"
#include "trace.h"

#define FOLLOWED 65536

struct followed_flow {
	__u64 src[2];
	__u64 dst[2];
	__u32 ports;
	__u32 service;
};

/* Where its last packet went. */
struct followed_at {
	__u32 backend;
	__u32 incarnation;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FOLLOWED);
	__type(key, struct followed_flow);
	__type(value, struct followed_at);
} followed SEC(".maps");

/* One flow in mask + 1, another one in so many under each salt. Not the hash that leads to backends: a fault
 * of that one is looked for, too. */
static __always_inline int is_drawn(const struct trail *trail, __u64 salt, __u32 mask)
{
	__u64 hash = salt ^ trail->ports;

	hash = (hash ^ trail->src[0]) * 0x9e3779b97f4a7c15ULL;
	hash = (hash ^ hash >> 32 ^ trail->src[1]) * 0x9e3779b97f4a7c15ULL;
	hash = (hash ^ hash >> 32 ^ trail->dst[0]) * 0x9e3779b97f4a7c15ULL;
	hash = (hash ^ hash >> 32 ^ trail->dst[1]) * 0x9e3779b97f4a7c15ULL;
	return !((__u32)(hash >> 32) & mask);
}

/* A packet that was sent to a backend. */
static __noinline void follow(const struct wanted *what, const struct trail *trail,
			      struct trace_counts *counts)
{
	/* Datagrams have no beginning: that a flow of them goes elsewhere after a silence is no fault. */
	if (trail->protocol != PROTOCOL_TCP || trail->backend >= NO_BACKEND)
		return;
	__u32 mask = what->follow - 1;
	int drawn = is_drawn(trail, what->salt, mask);

	/* Those that were drawn under the salt before are followed on, and no new ones. */
	if (!drawn && !is_drawn(trail, what->salt_before, mask))
		return;
	struct followed_flow flow = {
		.src = {trail->src[0], trail->src[1]},
		.dst = {trail->dst[0], trail->dst[1]},
		.ports = trail->ports,
		.service = trail->service,
	};
	struct backend *backend = AT(backends, trail->backend, backend_count);
	struct followed_at at = {trail->backend, backend->incarnation};
	struct followed_at *was = bpf_map_lookup_elem(&followed, &flow);

	counts->checked++;
	/* A connection begins, or begins anew: it may go anywhere. */
	if (!was || (trail->tcp_flags & TCP_SYN && !(trail->tcp_flags & TCP_ACK))) {
		if (!drawn && !was)
			return;
		counts->followed += !was;
		bpf_map_update_elem(&followed, &flow, &at, BPF_ANY);
		return;
	}
	if (was->backend == at.backend && was->incarnation == at.incarnation)
		return;
	struct backend *former = AT(backends, was->backend, backend_count);

	if (former->flags & BACKEND_PRESENT && former->incarnation == was->incarnation)
		counts->moved++;
	else
		counts->orphaned++;
	bpf_map_update_elem(&followed, &flow, &at, BPF_ANY);
}

#endif
#endif
