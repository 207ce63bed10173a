/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Concury (docs/concury.md): Dcode = A[ha(k)] xor B[hb(k)], backend = DIP array[Dcode].
 * The twin of crates/steering/src/concury/decide.rs. */
#ifndef WEIR_STEER_CONCURY_H
#define WEIR_STEER_CONCURY_H

#include "table.h"
#include "report.h"

#define SECOND_TRIES 8

/* A new flow that fell on a draining backend's Dcode: further Dcodes from its hash. */
static __always_inline __u32 place_again(void *table, const struct table_header *header, __u64 hash)
{
	for (int i = 0; i < SECOND_TRIES; i++) {
		hash = mix(&header->key, hash + 0x9e3779b97f4a7c15ULL);
		__u32 entry = read_slot(table, hash & (header->slots - 1));

		if (!(entry & SLOT_RESERVED))
			return entry;
	}
	return header->fallback;
}

/* Starts, ends, reserved Dcodes, and any packet while the pending table is in use. */
static __noinline __u32 concury_slow(void *table, const struct table_header *header,
				     struct question *q, __u32 entry)
{
	__u32 flags = header->flags;
	__u32 backend = entry & SLOT_BACKEND;
	__u32 *known = NULL;
	int note = q->starts && (flags & TABLE_RECORD);

	if (flags & TABLE_PENDING || entry & SLOT_RESERVED)
		known = bpf_map_lookup_elem(&pending, &q->state);
	if (known) {
		backend = *known;
		note = 0;
	} else if (q->starts && entry & SLOT_RESERVED) {
		known = bpf_map_lookup_elem(&pinned, &q->state);
		if (known) {
			backend = *known;
		} else {
			backend = place_again(table, header, q->hash);
			note = 1;
		}
	}
	backend &= SLOT_BACKEND;
	if (backend == NO_BACKEND) {
		q->reason = NO_LIVE_BACKEND;
		return backend;
	}
	if (note && bpf_map_update_elem(&pending, &q->state, &backend, BPF_ANY)) {
		/* Forwarding it unrecorded could break it at the next change; its sender repeats
		 * a SYN that was dropped. */
		q->reason = PENDING_FULL;
		return NO_BACKEND;
	}
	if (q->starts)
		report(&q->state, backend, EVENT_START);
	if (q->ends)
		report(&q->state, backend, EVENT_END);
	return backend;
}

static __always_inline __u32 steer_concury(void *table, const struct table_header *header,
					   struct question *q)
{
	__u32 a = read_cell(table, header, header->first_a, header->chunks_a, q->hash);
	__u32 b = read_cell(table, header, header->first_a + header->chunks_a, header->chunks_b,
			    q->hash >> 32);
	__u32 entry = read_slot(table, (a ^ b) & (header->slots - 1));

	if (header->flags & TABLE_MARK && !q->starts)
		mark(q->hash);
	if (likely(!q->starts && !q->ends && !(header->flags & TABLE_PENDING) &&
		   !(entry & SLOT_RESERVED) && entry != NO_BACKEND))
		return entry;
	return concury_slow(table, header, q, entry);
}

#endif
