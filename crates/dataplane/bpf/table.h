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

static __always_inline __u32 read_slot(const struct table *table, __u32 slot)
{
	__u64 at = (__u64)table->first_slot * CHUNK_BYTES + slot * 2;

	return *(__u16 *)AT(pool, at, pool_bytes - 1);
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
