/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* JET (docs/jet.md): rows, and a connection table of the flows that a foreseen change could move.
 * A packet of a row without such flows reads its row and nothing else (rows.h).
 * The twin of crates/steering/src/methods/jet/decide.rs. */
#ifndef WEIR_METHODS_JET_H
#define WEIR_METHODS_JET_H

#include "../connections.h"

/* The mark of an owner: flows of the row may be in the connection table. That of a start: flows that the
 * connection table does not know get there. */
static __always_inline __u32 steer_jet(const struct table *table, const struct packet *p,
				       struct question *q)
{
	tell_first_datagram_apart(p, q);

	__u32 row = scale(q->hash, table->slots);
	__u32 owner = read_slot(table, row);

	q->counts = starts(q);
	q->reason = REASON_NO_BACKEND; /* if the row names none */
	if (likely(!(owner & ROW_MARK)))
		return owner; /* rule: jet.row */
	struct flow_key key;
	__u32 id;

	tracked_key(p, table, &key);
	if (find_connection(&key, q, &id))
		return id; /* rule: jet.known */
	__u32 start = read_slot_of(table->first_a, row);
	/* The packets after a first one would follow the entry that an earlier connection left. */
	int replaces = id != NO_BACKEND;

	id = (starts(q) ? start : owner) & SLOT_BACKEND;
	if (id == NO_BACKEND || !(start & ROW_MARK || replaces))
		return id;
	if (q->flags & QUOTED) {
		q->reason = REASON_UNKNOWN_QUOTE; /* rule: jet.unknown_quote */
		return NO_BACKEND;
	}
	struct backend *backend = present(id);

	if (backend && !replaces)
		__sync_fetch_and_add(AT(entered, q->service, table_count / 2), 1);
	if (backend)
		track(&key, (struct tracked){ .backend = id, .incarnation = backend->incarnation });
	return id;
}

#endif
