/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Methods whose tables begin with rows of 16 bits: a backend, and a mark if there is more to know. */
#ifndef WEIR_ROWS_H
#define WEIR_ROWS_H

#include "connections.h"
#include "methods/residue.h"
#include "question.h"
#include "table.h"

/* What the connection table knows of the segment that weir_balance has read: the backend of its flow, NO_BACKEND if
 * it has no entry, ASK_APART if its entry counts no more. The frame is read again: to have its addresses at hand
 * for this would cost the packets of all rows. Global, so that the verifier goes through it once. */
__noinline int known_connection(struct xdp_md *ctx, __u32 flags)
{
	struct question q = { .flags = TCP_ACK };
	struct flow_key key = { .protocol = PROTOCOL_TCP };
	void *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = (void *)(long)ctx->data;
	void *l3 = eth + 1;
	__u64 header = sizeof(struct ipv6);
	__u32 id;

	if (l3 > end)
		return ASK_APART;
	__be16 type = eth->type;

	if (skip_vlans(&l3, end, &type) != REASON_OK)
		return ASK_APART;
	if (type == bpf_htons(ETH_P_IP)) {
		struct ipv4 *ip = l3;

		if ((void *)(ip + 1) > end)
			return ASK_APART;
		header = (ip->version_ihl & 15) * 4;
		key.src[1] = (__u64)ip->src << 32 | IPV4_MAPPED;
		key.dst[1] = (__u64)ip->dst << 32 | IPV4_MAPPED;
	} else {
		struct ipv6 *ip = l3;

		if ((void *)(ip + 1) > end)
			return ASK_APART;
		key.src[0] = ip->src[0];
		key.src[1] = ip->src[1];
		key.dst[0] = ip->dst[0];
		key.dst[1] = ip->dst[1];
	}
	struct tcp *tcp = l3 + header;

	/* The pointer that is checked is the one that is read by. */
	barrier_var(tcp);
	if ((void *)(tcp + 1) > end)
		return ASK_APART;
	if (!(flags & TABLE_CLIENT))
		key.ports = tcp->ports;
	if (find_connection(&key, &q, &id))
		return id;
	return id == NO_BACKEND ? NO_BACKEND : ASK_APART;
}

/* The same as row_of, on a row whose mark says that there is more to know: as far as nothing has to be noted. That
 * is a flow that is none of residue's exceptions, one that JET's connection table knows, and one that it does not
 * and need not. Decided as in steer_residue and steer_jet. On its own, so that rows that decide alone have nothing
 * to keep for it. */
static __noinline int beside_row(struct xdp_md *ctx, const struct table *table, __u64 hash,
				 __u32 row)
{
	__u32 owner = row & SLOT_BACKEND;

	if (owner == NO_BACKEND)
		return ASK_APART;
	if (table->method == METHOD_JET) {
		__u32 known = known_connection(ctx, table->flags);

		if (known < NO_BACKEND)
			return known; /* rule: rows.connection */
		if (known != NO_BACKEND)
			return ASK_APART;
		/* It has no entry, and is to get one if the start is marked. */
		__u32 start = read_slot_of(table->first_a, scale(hash, table->slots));

		return start & ROW_MARK ? ASK_APART : owner;
	}
	if (may_be_exception(table, hash))
		return ASK_APART;
	if (table->flags & TABLE_MARK)
		mark(hash);
	return owner; /* rule: rows.no_exception */
}

/* The backend of a segment in the middle of its connection, if the row alone decides, as it does for
 * nearly all, or what it reads beside it; else ASK_APART. On its own, so that the ways of other methods have
 * nothing to keep for it. */
static __noinline int row_of(struct xdp_md *ctx, const struct table *table, __u64 hash, __u32 flags)
{
	if (table->method != METHOD_JET && table->method != METHOD_RESIDUE)
		return ASK_APART;
	if (flags & TCP_SPECIAL || table->flags & TABLE_PENDING)
		return ASK_APART; /* rule: rows.special */
	__u32 id = read_slot(table, scale(hash, table->slots));

	/* Below NO_BACKEND there is neither the mark nor the lack of a backend. */
	if (unlikely(id >= NO_BACKEND)) {
		if (id & ROW_MARK)
			return beside_row(ctx, table, hash, id);
		return ASK_APART; /* rule: rows.empty */
	}
	if (table->flags & TABLE_MARK)
		mark(hash);
	return id; /* rule: rows.plain */
}

#endif
