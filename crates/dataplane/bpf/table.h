/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Reading a published table: chunks, slots, cells. */
#ifndef WEIR_TABLE_H
#define WEIR_TABLE_H

#include "maps.h"
#include "parse.h"
#include "hash.h"

/* What a steering method is asked, and what it answers. Plain words, so that the compiler keeps them
 * in registers: the key of a state is put together only where a map is asked. */
struct question {
	__u64 src[2];
	__u32 ports; /* 0 with affinity by client */
	__u32 service;
	__u64 hash;
	__u8 flags;  /* SYN, ACK, FIN, RST; a UDP flow's first datagram counts as SYN, others as ACK */
	__u8 reason; /* enum reason, if there is no backend */
	__u8 counts; /* the flow is new at its backend */
};

/* Neither of these is set in nearly every packet, which one comparison tells. */
#define TCP_SPECIAL (TCP_SYN | TCP_FIN | TCP_RST)

static __always_inline int starts(const struct question *q)
{
	return q->flags == TCP_SYN;
}

static __always_inline int ends(const struct question *q)
{
	return q->flags & (TCP_FIN | TCP_RST);
}

static __always_inline void state_of(const struct question *q, struct service_state *state)
{
	state->service = q->service;
	__builtin_memcpy(state->key.address, q->src, 16);
	state->key.src_port = q->ports;
	state->key.dst_port = q->ports >> 16;
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
