/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Concury (docs/concury.md): Dcode = A[ha(k)] xor B[hb(k)], backend = DIP array[Dcode].
 * The twin of crates/steering/src/methods/concury/decide.rs. */
#ifndef WEIR_METHODS_CONCURY_H
#define WEIR_METHODS_CONCURY_H

#include "../question.h"
#include "../table.h"

/* A new flow that fell on the Dcode of a backend that takes none: further Dcodes from its hash. Global,
 * so that the verifier goes through it once, however many ways lead here. */
__noinline __u32 place_again(__u32 number, __u64 hash)
{
	const struct table *table = AT(tables, number, table_count);

	for (int i = 0; i < SECOND_TRIES; i++) {
		hash = mix(&table->key, hash + NEXT_TRY);
		__u32 entry = read_slot(table, hash & (table->slots - 1));

		if (!(entry & SLOT_RESERVED) && (entry == NO_BACKEND || !is_down(entry)))
			return entry; /* rule: concury.again */
	}
	return table->fallback;
}

/* Starts, ends, reserved Dcodes, and any packet while the pending table is in use. */
static __always_inline __u32 concury_slow(const struct table *table, struct question *q, __u32 entry)
{
	__u32 flags = table->flags;
	__u32 backend = entry & SLOT_BACKEND;
	__u32 *known = NULL;
	int note = starts(q) && (flags & TABLE_RECORD);
	struct service_state state;

	state_of(q, &state);
	if (flags & TABLE_PENDING || entry & SLOT_RESERVED)
		known = bpf_map_lookup_elem(&pending, &state);
	if (known) {
		backend = *known; /* rule: concury.pending */
		note = 0;
	} else if (starts(q) && flags & TABLE_FROZEN) {
		q->reason = REASON_IN_TRANSITION; /* rule: concury.frozen */
		return NO_BACKEND;
	} else if (entry & SLOT_RESERVED && flags & TABLE_EXACT) {
		/* Every packet of a flow that is not pinned is placed alike, here and at every balancer with
		 * this table. One that is pinned would find its pin again: where that is not to be, it is noted. */
		known = bpf_map_lookup_elem(&pinned, &state);
		note |= known && starts(q) && is_down(*known);
		if (known && !(starts(q) && is_down(*known)))
			backend = *known; /* rule: concury.exact */
		else
			backend = place_again(table - tables, q->hash);
	} else if (starts(q) && (entry & SLOT_RESERVED || takes_none(flags, backend))) {
		known = bpf_map_lookup_elem(&pinned, &state);
		if (known) {
			backend = *known; /* rule: concury.pinned */
		} else if (flags & TABLE_MARK && is_armed(q->hash) && !is_down(backend)) {
			/* A connection lives there: whoever sent this SYN must not move it. */
		} else {
			backend = place_again(table - tables, q->hash);
			note = 1;
		}
	}
	return conclude(q, &state, backend & SLOT_BACKEND, note);
}

static __always_inline __u32 steer_concury(const struct table *table, const struct packet *p,
					   struct question *q)
{
	tell_first_datagram(p, q);

	__u32 a = read_cell(table, table->first_a, table->chunks_a, q->hash);
	__u32 b = read_cell(table, table->first_a + table->chunks_a, table->chunks_b,
			    q->hash >> 32);
	__u32 entry = read_slot(table, (a ^ b) & (table->slots - 1));
	__u32 flags = table->flags;

	/* Below NO_BACKEND there is neither the reserved bit nor the lack of a backend. */
	if (likely(!(q->flags & TCP_SPECIAL) && !(flags & TABLE_PENDING) && entry < NO_BACKEND)) {
		if (flags & TABLE_MARK)
			mark(q->hash);
		return entry; /* rule: concury.middle */
	}
	if (flags & TABLE_MARK && !starts(q))
		mark(q->hash);
	q->counts = starts(q);
	return concury_slow(table, q, entry); /* rule: concury.slow */
}

#endif
