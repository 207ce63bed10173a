/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* residue (docs/residue.md): rows, and an exact map of the flows that live elsewhere than their rows say.
 * Packets in the middle of a flow whose row has no such flows read their row and nothing else (rows.h).
 * The twin of crates/steering/src/methods/residue/{decide,body,lines}.rs. */
#ifndef WEIR_METHODS_RESIDUE_H
#define WEIR_METHODS_RESIDUE_H

#include "../question.h"
#include "../table.h"

/* A line of the map. */
struct exceptions {
	__u64 hashes[LINE_ENTRIES];
	__u16 backends[LINE_ENTRIES];
	__u32 past; /* entries went past it */
};

#define LINES_PER_CHUNK (CHUNK_BYTES / sizeof(struct exceptions))

/* Byte of the pool where a unit of so many bytes stands, in elements from this one on. */
static __always_inline __u64 place_in(__u32 first, __u32 bytes, __u32 unit)
{
	return (__u64)first * CHUNK_BYTES + (__u64)unit * bytes;
}

/* Two bits of one word tell most flows that are no exceptions. */
static __always_inline int may_be_exception(const struct table *table, __u64 hash)
{
	__u32 word = scale(hash >> 32, table->chunks_a * (CHUNK_BYTES / 8));
	__u64 at = place_in(table->first_a, 8, word);
	__u64 flags = *(__u64 *)AT(pool, at, pool_bytes - 7);

	return flags >> (hash & 63) & flags >> (hash >> 6 & 63) & 1;
}

/* Where a flow lives by the map, or NO_BACKEND. Its entry stands in the line that its hash leads to, or
 * in one of the next if that was full. Global, so that the verifier goes through it once. */
__noinline int find_exception(__u32 first, __u32 lines, __u64 hash)
{
	__u32 home = scale(hash >> 32, lines);

	for (int probe = 0; probe < LINE_PROBES; probe++) {
		__u64 at = place_in(first, sizeof(struct exceptions), home);
		struct exceptions *line = (void *)AT(pool, at, pool_bytes - 63);

#pragma unroll
		for (int i = 0; i < LINE_ENTRIES; i++)
			if (line->hashes[i] == hash && line->backends[i] != NO_BACKEND)
				return line->backends[i] < NO_BACKEND ? line->backends[i] :
									NO_BACKEND;
		if (!line->past)
			break;
		home = home + 1 == lines ? 0 : home + 1;
	}
	return NO_BACKEND;
}

static __always_inline __u32 residue_slow(const struct table *table, struct question *q, __u32 row)
{
	__u32 exception = NO_BACKEND;
	__u32 backend = row & SLOT_BACKEND;
	__u32 *known = NULL;
	int note = starts(q) && table->flags & TABLE_RECORD;
	struct service_state state;

	state_of(q, &state);
	if (row & ROW_MARK && may_be_exception(table, q->hash))
		exception = find_exception(table->first_a + table->chunks_a,
					   table->chunks_b * LINES_PER_CHUNK, q->hash);
	if (table->flags & TABLE_PENDING || exception != NO_BACKEND)
		known = bpf_map_lookup_elem(&pending, &state);
	if (known)
		return conclude(q, &state, *known & SLOT_BACKEND, 0); /* rule: residue.pending */
	if (starts(q) && table->flags & TABLE_FROZEN) {
		q->reason = REASON_IN_TRANSITION; /* rule: residue.frozen */
		return NO_BACKEND;
	}
	if (exception == NO_BACKEND) {
		if (starts(q) && takes_none(table->flags, backend)) {
			backend = another_row(table - tables, q->hash, backend);
			note = 1;
		}
		return conclude(q, &state, backend, note);
	}
	if (!starts(q) || !is_down(exception))
		return conclude(q, &state, exception, note); /* rule: residue.exception */
	known = bpf_map_lookup_elem(&pinned, &state);
	if (known)
		return conclude(q, &state, *known & SLOT_BACKEND, note);
	/* The exception would lead its later packets back: it has to be noted. */
	return conclude(q, &state, backend, 1);
}

static __always_inline __u32 steer_residue(const struct table *table, const struct packet *p,
					   struct question *q)
{
	tell_first_datagram_apart(p, q);

	__u32 row = read_slot(table, scale(q->hash, table->slots));

	if (table->flags & TABLE_MARK && !starts(q))
		mark(q->hash);
	q->counts = starts(q);
	if (likely(!(q->flags & TCP_SPECIAL) && !(table->flags & TABLE_PENDING) && row < NO_BACKEND))
		return row; /* rule: residue.row */
	return residue_slow(table, q, row); /* rule: residue.slow */
}

#endif
