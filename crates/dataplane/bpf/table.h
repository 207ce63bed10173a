/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Reading a published table: chunks, slots, cells. */
#ifndef WEIR_TABLE_H
#define WEIR_TABLE_H

#include "maps.h"

/* By its health check. */
static __always_inline int is_down(__u32 id)
{
	return AT(backends, id, backend_count)->flags & BACKEND_DOWN;
}

/* While packets ask for pending flows anyway, a backend that is down gets no new one, even if no
 * table can be published that says so. */
static __always_inline int takes_none(__u32 flags, __u32 backend)
{
	return flags & TABLE_PENDING && backend != NO_BACKEND && is_down(backend);
}

/* Of a slot that is a row: there is more to know. */
#define ROW_MARK SLOT_RESERVED

/* Of the slots that begin at this element of the pool. */
static __always_inline __u32 read_slot_of(__u32 first, __u32 slot)
{
	__u64 at = (__u64)first * CHUNK_BYTES + slot * 2;

	return *(__u16 *)AT(pool, at, pool_bytes - 1);
}

static __always_inline __u32 read_slot(const struct table *table, __u32 slot)
{
	return read_slot_of(table->first_slot, slot);
}

/* Numbers of servers that a table of cookies has. One with keys that cookies tell apart (COOKIES_KEYED) counts them
 * in `chunks_b`; its `slots` are 0. Without branches, as the verifier would follow each. */
static __always_inline __u32 numbers_in(const struct table *table)
{
	return table->slots + table->chunks_b * (table->segment_bits / COOKIES_KEYED & 1);
}

/* A new flow whose row leads to a backend that is down, as the table may be older than that: further
 * rows come from its hash. Global, so that the verifier goes through it once. */
__noinline __u32 another_row(__u32 number, __u64 hash, __u32 otherwise)
{
	const struct table *table = AT(tables, number, table_count);

	for (int i = 0; i < SECOND_TRIES; i++) {
		hash = mix(&table->key, hash + NEXT_TRY);
		__u32 id = read_slot(table, scale(hash, table->slots)) & SLOT_BACKEND;

		if (id != NO_BACKEND && !is_down(id))
			return id; /* rule: table.another_row */
	}
	return otherwise;
}

/* A cell without a division: the product's high half is the chunk, its fraction the cell. The
 * caller masks the result. */
static __always_inline __u32 read_cell(const struct table *table, __u32 first, __u32 chunks,
				       __u32 hash32)
{
	__u64 product = (__u64)hash32 * chunks;
	__u32 bit = scale(product, table->per_chunk) * table->bits;
	__u64 at = (first + (product >> 32)) * CHUNK_BYTES + (bit >> 3);

	return *(__u32 *)AT(pool, at, pool_bytes - 3) >> (bit & 7);
}

#endif
