// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/* Counts frames that the balancer's program has sent and that were lost before they left.
 *
 * A program is told nothing of what becomes of a frame that it redirects or sends back: the interface
 * may be down, its driver may take no frames from XDP programs, its ring may be full. The kernel says so
 * in tracepoints, where these programs stand. None of them is on the path of a packet that the program
 * decides; where frames are redirected, weir_lost_in_bulk runs once for each bulk of up to 16. */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* What is read of the kernel's own structures; libbpf finds the offsets. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct ns_common {
	unsigned int inum;
};
struct net {
	struct ns_common ns;
};
typedef struct {
	struct net *net;
} possible_net_t;
struct net_device {
	int ifindex;
	possible_net_t nd_net;
};
#pragma clang attribute pop

/* The network namespace of the balancer: others have interfaces of the same numbers. */
const volatile __u32 netns = 0;

/* The interfaces that the balancer's program is on. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u32);
} ours SEC(".maps");

/* Frames, by the number of the interface that they were to leave by; 0: there were too many of those. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u64);
} frames SEC(".maps");

static __always_inline int is_ours(const struct net_device *dev)
{
	__u32 ifindex = dev->ifindex;

	return dev->nd_net.net->ns.inum == netns && bpf_map_lookup_elem(&ours, &ifindex);
}

static __always_inline __u64 *counter(__u32 ifindex)
{
	__u64 none = 0;
	__u64 *found = bpf_map_lookup_elem(&frames, &ifindex);

	if (found)
		return found;
	bpf_map_update_elem(&frames, &ifindex, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&frames, &ifindex);
}

static __always_inline int count(__u32 ifindex, __u64 more)
{
	__u64 *lost = counter(ifindex);

	if (!lost)
		lost = counter(0);
	if (lost)
		*lost += more;
	return 0;
}

/* A frame that could not be handed to the other interface at all. */
SEC("tp_btf/xdp_redirect_err")
int weir_lost_redirect(__u64 *ctx)
{
	const struct net_device *dev = (void *)ctx[0];

	/* dev, program, target, error, kind of map, its number, index: without a map an interface's. Through a map
	 * frames go to sockets (front.bpf.c), whose own statistics say what they have lost. */
	return (__u32)ctx[4] == BPF_MAP_TYPE_UNSPEC && is_ours(dev) ? count(ctx[6], 1) : 0;
}

/* What the other interface's driver did not take of a bulk. */
SEC("tp_btf/xdp_devmap_xmit")
int weir_lost_in_bulk(__u64 *ctx)
{
	const struct net_device *from = (void *)ctx[0];
	const struct net_device *to = (void *)ctx[1];
	int drops = ctx[3];

	return drops > 0 && is_ours(from) ? count(to->ifindex, drops) : 0;
}

/* The same of frames that go back by the interface that they came by. */
SEC("tp_btf/xdp_bulk_tx")
int weir_lost_back(__u64 *ctx)
{
	const struct net_device *dev = (void *)ctx[0];
	int drops = ctx[2];

	return drops > 0 && is_ours(dev) ? count(dev->ifindex, drops) : 0;
}

/* Drivers without bulks say so of each frame; of redirected ones, which were counted above, too. */
SEC("tp_btf/xdp_exception")
int weir_lost_exception(__u64 *ctx)
{
	const struct net_device *dev = (void *)ctx[0];

	return (__u32)ctx[2] == XDP_TX && is_ours(dev) ? count(dev->ifindex, 1) : 0;
}
