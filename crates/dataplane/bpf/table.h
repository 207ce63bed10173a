/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Reading a published table: chunks, slots, cells. */
#ifndef WEIR_TABLE_H
#define WEIR_TABLE_H

#include "maps.h"
#include "hash.h"

/* What a steering method is asked, and what it answers. */
struct question {
	struct service_state state; /* service and key; the key only where it is needed */
	__u64 hash;
	__u8 starts;
	__u8 ends;
	__u8 reason; /* enum reason, if there is no backend */
	__u8 counts; /* the flow is new at its backend */
};

static __always_inline __u32 read_slot(void *table, __u32 slot)
{
	__u32 element = 1 + slot / SLOTS_PER_CHUNK;
	struct chunk *chunk = bpf_map_lookup_elem(table, &element);

	if (unlikely(!chunk))
		return NO_BACKEND;
	return *(__u16 *)&chunk->bytes[(slot % SLOTS_PER_CHUNK) * 2];
}

/* A cell without a division: the product's high half is the chunk, its fraction the cell. The
 * caller masks the result. */
static __always_inline __u32 read_cell(void *table, const struct table_header *header, __u32 first,
				       __u32 chunks, __u32 hash32)
{
	__u64 product = (__u64)hash32 * chunks;
	__u32 element = first + (product >> 32);
	struct chunk *chunk = bpf_map_lookup_elem(table, &element);
	__u32 bit = scale(product, header->per_chunk) * header->bits;
	__u32 at = bit >> 3;

	if (unlikely(!chunk || at > CHUNK_BYTES - 4))
		return 0;
	return *(__u32 *)&chunk->bytes[at] >> (bit & 7);
}

#endif
