/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* How many new flows a service takes, in all and from each prefix of sources, and how many connections a prefix
 * may hold. The twin of crates/plane/src/caps.rs and held.rs, which say what buckets and counters promise. A
 * service with such caps is told by the number of its table, as one with a list of sources, so that the packets
 * of all others have nothing to ask for them; and of its own packets only those that begin a flow do. */
#ifndef WEIR_CAPS_H
#define WEIR_CAPS_H

#include "hash.h"
#include "maps.h"
#include "parse.h"
#include "question.h"
#include "sources.h"

/* Whether a packet begins a flow: a SYN without ACK, or what stands for one in SCTP. No other packet says by itself
 * that it does. */
static __always_inline int begins_flow(const struct packet *p)
{
	return (p->tcp_flags & (TCP_SPECIAL | TCP_ACK)) == TCP_SYN;
}

/* Whether a packet that weir_balance has read may begin one. The frame is read again: to have the flags at hand
 * for this would cost the packets of all services. Global, so that the verifier goes through it once. */
__noinline int may_begin_flow(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = (void *)(long)ctx->data;
	void *l3 = eth + 1;

	if (l3 > end)
		return 1;
	__be16 type = eth->type;

	if (skip_vlans(&l3, end, &type) != REASON_OK)
		return 1;
	struct ipv4 *ip = l3;
	__u64 header = sizeof(struct ipv6);

	if ((void *)(ip + 1) > end)
		return 1;
	if (type == bpf_htons(ETH_P_IP))
		header = (ip->version_ihl & 15) * 4; /* rule: caps.options */
	struct tcp *tcp = l3 + header;

	if ((void *)(tcp + 1) > end)
		return 1;
	return (tcp->flags & (TCP_SPECIAL | TCP_ACK)) == TCP_SYN; /* rule: caps.looked */
}

/* Takes one out of a bucket; `whole`: if there is a whole one, or else what there is. A bucket is the time at
 * which it is full, so one store changes it, and no two processors take the same. */
static __always_inline int take_flow(__u64 *bucket, __u64 now, __u64 interval, __u64 room,
				     const int whole)
{
	for (int i = 0; i < CAP_TRIES; i++) {
		__u64 before = *(volatile __u64 *)bucket;
		__u64 owed = before > now ? before - now : 0;

		if (owed > room)
			owed = room; /* rule: caps.other_rate */
		__u64 after = owed + interval;

		if (after > room) {
			if (whole) {
				/* Other rates held when it was written. */
				if (before > now + room)
					__sync_val_compare_and_swap(bucket, before, now + room);
				return 0; /* rule: caps.empty */
			}
			after = room;
		}
		if (__sync_val_compare_and_swap(bucket, before, now + after) == before)
			return 1; /* rule: caps.taken */
	}
	/* Others have taken out of it all the time. */
	return 0;
}

/* Where the buckets and counters of a source's prefix are. */
static __always_inline __u64 hash_of_prefix(const struct cap *cap, __u64 high, __u64 low)
{
	if (high == 0 && (__u32)low == IPV4_MAPPED) {
		low &= cap->mask4; /* rule: caps.ipv4 */
	} else {
		high &= cap->mask6[0];
		low &= cap->mask6[1]; /* rule: caps.ipv6 */
	}
	return hash_address(&cap->key, high, low, 0);
}

/* The same of the two buckets that a prefix has: out of both, if either has a whole one. */
static __always_inline int take_of_source(const struct cap *cap, __u64 hash, __u64 now)
{
	__u64 interval = cap->source_interval, room = cap->source_room;
	__u32 first = hash & (CAP_ROW - 1);
	__u32 second = CAP_ROW + (hash >> 32 & (CAP_ROW - 1));
	__u64 *one = bpf_map_lookup_elem(&source_buckets, &first);
	__u64 *other = bpf_map_lookup_elem(&source_buckets, &second);

	if (!one || !other)
		return 1;
	if (take_flow(one, now, interval, room, 1)) {
		take_flow(other, now, interval, room, 0);
		return 1; /* rule: caps.first_bucket */
	}
	if (take_flow(other, now, interval, room, 1)) {
		take_flow(one, now, interval, room, 0);
		return 1; /* rule: caps.second_bucket */
	}
	return 0;
}

/* What holds of the connections of each prefix just now; 0: they may be any number. A count that is too old says
 * nothing: no control plane is there that takes out what has ended. */
static __always_inline __u64 limit_now(const struct cap *cap, __u64 now)
{
	__u64 limit = *(const volatile __u64 *)&cap->limit;
	__u32 left = (__u32)(limit >> 32) - (__u32)(now >> HELD_TICK_SHIFT);

	if (!(limit & HELD_MOST) || left - 1 >= 1U << 31)
		return 0;
	return limit; /* rule: caps.limited */
}

/* The counters of a prefix, one in each row. Those of others are in either, so that the smaller one is no smaller
 * than what the prefix holds. */
static __always_inline __u32 *held_first(__u64 prefix)
{
	__u32 at = prefix & (HELD_ROW - 1);

	return bpf_map_lookup_elem(&held, &at);
}

static __always_inline __u32 *held_second(__u64 prefix)
{
	__u32 at = prefix >> 32 & (HELD_ROW - 1);
	__u32 *both = bpf_map_lookup_elem(&held, &at);

	return both ? both + 1 : NULL;
}

static __always_inline __u32 *held_in_all(void)
{
	__u32 at = HELD_ROW;

	return bpf_map_lookup_elem(&held, &at);
}

/* Whether a prefix holds as many connections as it may. With so many of all that the counters would say so of others
 * nobody does. */
static __always_inline int holds_most(__u64 prefix, __u32 most)
{
	volatile __u32 *one = held_first(prefix), *other = held_second(prefix);
	volatile __u32 *all = held_in_all();

	if (!one || !other || !all || *one < most || *other < most)
		return 0;
	return *all < (__u64)most * HELD_CROWD; /* rule: caps.crowd */
}

/* Where a connection stands that was counted lately. */
static __always_inline __u64 *counted_at(__u64 flow)
{
	__u32 at = flow & (HELD_FLOWS - 1);

	return bpf_map_lookup_elem(&held_flows, &at);
}

static __always_inline int was_counted(__u64 flow)
{
	volatile __u64 *known = counted_at(flow);
	__u64 word = known ? *known : 0;

	return word && !((word ^ flow) >> 8);
}

/* Counts a connection that a prefix holds from now on. */
static __always_inline void count_held(__u64 prefix, __u64 flow, __u64 limit)
{
	__u32 *one = held_first(prefix), *other = held_second(prefix), *all = held_in_all();
	volatile __u64 *known = counted_at(flow);

	if (!one || !other || !all || !known)
		return;
	__sync_fetch_and_add(all, 1);
	__sync_fetch_and_add(one, 1);
	__sync_fetch_and_add(other, 1);
	*known = (flow & ~0xffULL) | (limit >> HELD_COUNT_SHIFT & 0xff); /* rule: caps.counted */
}

/* Takes a new flow from a source of a service, whose `number` of a table says TABLE_CAPPED. Returns why its packet is
 * dropped, or REASON_OK. `ports`: those of its state. A rate of 0 is none. What is refused by one rule takes nothing by
 * those after it. Global, so that the verifier goes through it once. */
__noinline int is_capped(__u32 number, __u64 high, __u64 low, __u32 ports)
{
	number &= ~(JUDGED_FLAGS | TABLE_BY_ID | TABLE_SALTED);
	NOTE_SERVICE(number / 2);
	struct cap *cap = AT(caps, number / 2, table_count / 2);
	__u64 now = bpf_ktime_get_ns(), prefix = 0, flow = 0, limit = limit_now(cap, now);

	if (cap->source_interval || limit)
		prefix = hash_of_prefix(cap, high, low);
	if (limit) {
		flow = hash_address(&cap->key, high, low, ports);
		if (was_counted(flow)) {
			limit = 0; /* rule: caps.repeated */
		} else if (holds_most(prefix, limit & HELD_MOST)) {
			__sync_fetch_and_add(&cap->capped_connections, 1);
			return REASON_SOURCE_CONNECTION_CAP; /* rule: caps.held */
		}
	}
	if (cap->source_interval && !take_of_source(cap, prefix, now)) {
		__sync_fetch_and_add(&cap->capped_source, 1);
		return REASON_SOURCE_FLOW_CAP; /* rule: caps.source */
	}
	__u64 interval = cap->interval;

	if (interval && !take_flow(&cap->full, now, interval, cap->room, 1)) {
		__sync_fetch_and_add(&cap->capped, 1);
		return REASON_NEW_FLOW_CAP; /* rule: caps.service */
	}
	if (limit)
		count_held(prefix, flow, limit);
	return REASON_OK; /* rule: caps.passed */
}

#endif
