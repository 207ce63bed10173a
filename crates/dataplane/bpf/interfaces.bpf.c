// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/* Counts what became of frames, by the interface that they came in by.
 *
 * It stands behind the program in the links (fexit), and only while several interfaces have that. So the program
 * has nothing to ask for it, and a balancer with one interface takes no instruction more. It sees the verdict of
 * whichever program the frame has gone on in. */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* What is read of the kernel's own structures; libbpf finds the offsets. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct net_device {
	int ifindex;
};
struct xdp_rxq_info {
	struct net_device *dev;
};
struct xdp_buff {
	struct xdp_rxq_info *rxq;
};
#pragma clang attribute pop

/* Beyond so many interfaces frames count as those of interface 0. */
#define INTERFACES 1024

/* By verdict: sent, left to the kernel, dropped. */
struct counts {
	__u64 sent;
	__u64 passed;
	__u64 dropped;
};

/* By the number of the interface. Pinned: another program in the links counts on. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, INTERFACES);
	__type(key, __u32);
	__type(value, struct counts);
} interfaces SEC(".maps");

static __always_inline struct counts *counts_of(__u32 ifindex)
{
	struct counts none = {};
	struct counts *found = bpf_map_lookup_elem(&interfaces, &ifindex);

	if (found)
		return found;
	bpf_map_update_elem(&interfaces, &ifindex, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&interfaces, &ifindex);
}

/* What the links have is told at the load. */
SEC("fexit/weir_balance")
int weir_by_interface(__u64 *ctx)
{
	const struct xdp_buff *xdp = (void *)ctx[0];
	__u32 verdict = ctx[1];
	struct counts *counts = counts_of(xdp->rxq->dev->ifindex);

	if (!counts)
		counts = counts_of(0);
	if (!counts)
		return 0;
	if (verdict == XDP_TX || verdict == XDP_REDIRECT)
		counts->sent++;
	else if (verdict == XDP_PASS)
		counts->passed++;
	else
		counts->dropped++;
	return 0;
}
