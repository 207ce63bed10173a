/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Full connection tracking in a bounded LRU table over a Maglev table (docs/tracked.md).
 * The twin of crates/steering/src/tracked.rs. */
#ifndef WEIR_METHODS_TRACKED_H
#define WEIR_METHODS_TRACKED_H

#include "../question.h"
#include "../table.h"

/* id: of a slot or an entry that names one. */
static __always_inline struct backend *present(__u32 id)
{
	struct backend *backend = AT(backends, id, backend_count);

	return backend->flags & BACKEND_PRESENT ? backend : NULL;
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

static __always_inline __u32 steer_tracked(const struct table *table, const struct packet *p,
					   struct question *q)
{
	struct flow_key key;

	q->counts = starts(q);
	tracked_key(p, table, &key);
	struct tracked *known = bpf_map_lookup_elem(&connections, &key);

	if (likely(known != NULL)) {
		__u32 id = known->backend;
		struct backend *backend = present(id);

		if (likely(backend && backend->incarnation == known->incarnation &&
			   !(starts(q) && backend->flags & BACKEND_DOWN)))
			return id;
	}
	__u32 id = read_slot(table, scale(q->hash, table->slots)) & SLOT_BACKEND;
	struct backend *backend = id == NO_BACKEND ? NULL : present(id);

	if (!backend) {
		q->reason = REASON_NO_BACKEND;
		return NO_BACKEND;
	}
	struct tracked entry = { .backend = id, .incarnation = backend->incarnation };

	/* A full LRU map evicts; an update fails only when every entry is in use by a CPU. */
	bpf_map_update_elem(&connections, &key, &entry, BPF_ANY);
	if (twins)
		bpf_map_update_elem(&connections_twin, &key, &entry, BPF_ANY);
	q->counts = 1;
	return id;
}

#endif
