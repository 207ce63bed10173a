/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Full connection tracking in a bounded LRU table over a Maglev table (docs/tracked.md).
 * The twin of crates/steering/src/methods/tracked/decide.rs. */
#ifndef WEIR_METHODS_TRACKED_H
#define WEIR_METHODS_TRACKED_H

#include "../connections.h"

/* The slot of a new flow. */
static __always_inline __u32 place_new(const struct table *table, __u64 hash)
{
	__u32 id = read_slot(table, scale(hash, table->slots)) & SLOT_BACKEND;

	if (id == NO_BACKEND || !is_down(id))
		return id;
	return another_row(table - tables, hash, id);
}

/* What it answers beside the backend. */
#define TRACKED_NEW (1 << 16)
#define TRACKED_REASON_SHIFT 24

/* While the service is given a table of another method, a new flow is noted as pending besides; and
 * after that, one that began under the former method is found there. */
static __always_inline __u32 place_tracked(const struct table *table, const struct flow_key *key,
					   __u64 hash, __u32 tcp_flags, __u32 ports)
{
	__u32 flags = table->flags;
	int opens = !(tcp_flags & (TCP_FIN | TCP_RST));
	struct service_state state = { .service = (__u32)(table - tables) / 2 };
	__u32 *before = NULL;
	__u32 id;

	__builtin_memcpy(state.key.address, key->src, 16);
	state.key.src_port = ports;
	state.key.dst_port = ports >> 16;
	if (flags & TABLE_PENDING)
		before = bpf_map_lookup_elem(&pending, &state);
	if (before)
		id = *before & SLOT_BACKEND; /* rule: tracked.before */
	else if (tcp_flags & QUOTED)
		return NO_BACKEND | REASON_UNKNOWN_QUOTE << TRACKED_REASON_SHIFT; /* rule: tracked.unknown_quote */
	else if (flags & TABLE_SCHEDULER && opens)
		id = scheduled(table - tables, hash, BY_BACKEND) & SLOT_BACKEND; /* rule: tracked.scheduled */
	else
		id = place_new(table, hash);
	struct backend *backend = id == NO_BACKEND ? NULL : present(id);

	if (!backend)
		return NO_BACKEND | REASON_NO_BACKEND << TRACKED_REASON_SHIFT; /* rule: tracked.no_backend_apart */
	if (flags & TABLE_RECORD && !before && note_pending(&state, &id))
		return NO_BACKEND | REASON_PENDING_FULL << TRACKED_REASON_SHIFT; /* rule: tracked.pending_full */
	int counts = flags & TABLE_COUNTS && opens;

	track(key, (struct tracked){ .backend = id,
				     .incarnation = backend->incarnation,
				     .number = counts ? TRACKED_OPEN : 0 });
	if (counts)
		count_connection(id, 1);
	return id | TRACKED_NEW; /* rule: tracked.placed */
}

/* All that a packet may need; ports: those of its state. Global, so that the verifier goes through it once, and not for each way that
 * a packet is parsed. What ends a flow that nobody knows begins none: no scheduler is asked for it. */
__noinline __u32 track_apart(const struct flow_key *given, __u32 number, __u64 hash, __u32 tcp_flags,
			     __u32 ports)
{
	struct question q = { .flags = tcp_flags };
	const struct table *table = AT(tables, number, table_count);
	__u32 id;

	if (!given)
		return NO_BACKEND;
	OWN_KEY(key, given);
	if (!find_connection(key, &q, &id))
		return place_tracked(table, key, hash, tcp_flags, ports);
	if (starts(&q) || ends(&q))
		recount(key, starts(&q), table->flags); /* rule: tracked.counted */
	return id;
}

static __always_inline __u32 steer_tracked(const struct table *table, const struct packet *p,
					   struct question *q)
{
	struct flow_key key;

	tracked_key(p, table, &key);
	__u32 found = track_apart(&key, table - tables, q->hash, q->flags, q->ports);

	q->counts = starts(q) || found & TRACKED_NEW;
	q->reason = found >> TRACKED_REASON_SHIFT;
	return found & SLOT_BACKEND;
}

/* Of a known flow, a packet that may open it again or end it, which its entry says from then on: where open
 * connections are counted, that is done apart. On its own, so that all other packets have nothing to keep for
 * it. */
static __noinline __u32 unless_counted(const struct table *table, const struct flow_key *key,
				       __u32 tcp_flags, __u32 id)
{
	struct question q = { .flags = tcp_flags };

	if (table->flags & TABLE_COUNTS)
		return ASK_APART;
	if (starts(&q) || ends(&q))
		recount(key, starts(&q), table->flags);
	return id;
}

/* The same for nearly all packets; ASK_APART for the others. */
static __always_inline __u32 steer_tracked_plain(const struct table *table, const struct packet *p,
						 struct question *q)
{
	struct flow_key key;
	__u32 id;

	q->counts = starts(q);
	tracked_key(p, table, &key);
	if (likely(find_connection(&key, q, &id))) {
		if (unlikely(q->flags & TCP_SPECIAL))
			return unless_counted(table, &key, q->flags, id); /* rule: tracked.special */
		return id; /* rule: tracked.known */
	}
	if (unlikely(table->flags & (TABLE_PENDING | TABLE_RECORD | TABLE_SCHEDULER)))
		return ASK_APART;
	id = read_slot(table, scale(q->hash, table->slots)) & SLOT_BACKEND;
	struct backend *backend = id == NO_BACKEND ? NULL : present(id);

	if (!backend) {
		q->reason = REASON_NO_BACKEND;
		return NO_BACKEND; /* rule: tracked.no_backend */
	}
	if (unlikely(backend->flags & BACKEND_DOWN))
		return ASK_APART;
	track(&key, (struct tracked){ .backend = id, .incarnation = backend->incarnation });
	q->counts = 1; /* rule: tracked.new */
	return id;
}

#endif
