// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/* Stands before two programs while what one of them knows becomes memory of the other's layout
 * (crates/dataplane/src/kernel/convert). One word says who decides packets, so the change from one program to the
 * other is one store, for all interfaces at once.
 *
 * While memory is filled, frames are dropped, which senders take for loss: what they would note in the old memory
 * would come too late for the new one. That ends by the clock, whatever becomes of the control plane: then the old
 * program goes on, over its memory, which is whole. */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "hash.h"
#include <weir/shared.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define ETHERTYPE_IP 0x0800
#define ETHERTYPE_IPV6 0x86dd
#define ETHERTYPE_VLAN 0x8100
#define ETHERTYPE_QINQ 0x88a8

#pragma clang diagnostic push
#pragma clang diagnostic error "-Wpadded"

struct hold {
	__u64 until; /* nanoseconds of the monotonic clock */
	__u64 held;  /* frames that were dropped */
	__u32 state; /* HOLD_: who decides */
	__u32 reserved;
};

#pragma clang diagnostic pop

struct hold hold[1] SEC(".data.hold");

/* Pinned, as the kernel empties it when only programs hold it. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 4);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} sides SEC(".maps");

/* Behind more tags all is taken for IP. */
#define TAGS 2

/* What is no IP goes on, with tags or without: neighbours are found, and aggregates stay. */
static __always_inline int is_ip(struct xdp_md *ctx)
{
	__u8 *at = (void *)(long)ctx->data + 12;
	void *end = (void *)(long)ctx->data_end;

#pragma unroll
	for (int tags = 0; tags <= TAGS; tags++) {
		if ((void *)(at + 2) > end)
			return 0;
		__be16 type = *(__be16 *)at;

		if (type == bpf_htons(ETHERTYPE_IP) || type == bpf_htons(ETHERTYPE_IPV6))
			return 1;
		if (type != bpf_htons(ETHERTYPE_VLAN) && type != bpf_htons(ETHERTYPE_QINQ))
			return 0;
		at += 4;
	}
	return 1;
}

SEC("xdp")
int weir_hold(struct xdp_md *ctx)
{
	volatile struct hold *now = hold;
	__u32 state = now->state;

	if (state == HOLD_NOBODY) {
		if (bpf_ktime_get_ns() < now->until) {
			if (!is_ip(ctx))
				return XDP_PASS;
			__sync_fetch_and_add(&hold->held, 1);
			return XDP_DROP;
		}
		/* The first one to say who goes on has said it: this, or who has filled the memory. */
		state = __sync_val_compare_and_swap(&hold->state, HOLD_NOBODY, HOLD_FORMER);
	}
	if (state == HOLD_NEXT)
		bpf_tail_call(ctx, &sides, SIDE_NEXT);
	else
		bpf_tail_call(ctx, &sides, SIDE_FORMER);
	return XDP_ABORTED;
}
