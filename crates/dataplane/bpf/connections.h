/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* The connection table: of a flow, where it lives. For methods that track all flows, or some. */
#ifndef WEIR_CONNECTIONS_H
#define WEIR_CONNECTIONS_H

#include "question.h"
#include "schedulers.h"
#include "table.h"

/* id: of a slot or an entry that names one. */
static __always_inline struct backend *present(__u32 id)
{
	struct backend *backend = AT(backends, id, backend_count);

	return backend->flags & BACKEND_PRESENT ? backend : NULL;
}

/* Whether an entry is of this use of the backend's number. */
static __always_inline int is_of(const struct backend *backend, const struct tracked *entry)
{
	/* The lower half is read alone: cutting the word would take an instruction. */
	return *(const volatile __u16 *)&backend->incarnation == entry->incarnation;
}

/* With affinity by client the ports are not part of what is tracked. */
static __always_inline void tracked_key(const struct packet *p, const struct table *table,
					struct flow_key *key)
{
	key->src[0] = p->src[0];
	key->src[1] = p->src[1];
	key->dst[0] = p->dst[0];
	key->dst[1] = p->dst[1];
	key->ports = table->flags & TABLE_CLIENT ? 0 : p->ports;
	key->protocol = p->protocol;
}

/* A key of its own of a function whose argument is one: before Linux 6.2 a map takes no key that a global
 * function was given. */
#define OWN_KEY(key, given)                                                                        \
	struct flow_key own_key = *(given);                                                        \
	const struct flow_key *key = &own_key

/* Whether the table has the flow at a backend that is present, in the same incarnation. A first packet
 * does not follow an entry to a backend that is down. id: the entry's; NO_BACKEND without one. */
static __always_inline int find_connection(const struct flow_key *key, const struct question *q,
					   __u32 *id)
{
	struct tracked *known = bpf_map_lookup_elem(&connections, key);

	if (unlikely(!known)) {
		*id = NO_BACKEND;
		return 0;
	}
	*id = known->backend;
	struct backend *backend = present(*id);

	return likely(backend && is_of(backend, known) &&
		      !(starts(q) && backend->flags & BACKEND_DOWN));
}

/* A first packet opens a connection, FIN and RST end it, each once: its entry says so, and where open ones are
 * counted the backend's load. What was counted once is left to those that count. A client outlives its
 * connections. */
static __always_inline void recount(const struct flow_key *key, int opens, __u32 flags)
{
	int counts = !!(flags & TABLE_COUNTS);
	struct tracked *known = bpf_map_lookup_elem(&connections, key);

	if (!known)
		return;
	int open = known->number == TRACKED_OPEN;

	if (open && !counts)
		return;
	if (opens)
		known->number = counts ? TRACKED_OPEN : 0;
	else
		known->number = flags & TABLE_CLIENT ? 0 : TRACKED_ENDED;
	if (counts && open != opens)
		count_connection(known->backend, opens ? 1 : -1);
}

/* A full LRU map evicts; an update fails only when every entry is in use by a CPU. */
static __always_inline void track(const struct flow_key *key, struct tracked entry)
{
	bpf_map_update_elem(&connections, key, &entry, BPF_ANY);
	if (twins)
		bpf_map_update_elem(&connections_twin, key, &entry, BPF_ANY);
}

#endif
