/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* L2 direct server return: new MAC addresses, nothing else. The next hop comes from the kernel's
 * FIB and neighbour table, is kept per CPU and backend, and is asked for again every 64 jiffies
 * (64 to 640 ms): asking costs ten times what the rest of the packet does. */
#ifndef WEIR_FORWARD_L2_H
#define WEIR_FORWARD_L2_H

#include "../maps.h"
#include "../parse.h"

#define AF_INET 2
#define AF_INET6 10
#define RESOLVE_JIFFIES 64

static __always_inline void keep(struct lane *lane, const __u8 *mac, const __u8 *source,
				 __u32 ifindex, __u64 now)
{
	__builtin_memcpy(lane->mac, mac, 6);
	__builtin_memcpy(lane->source_mac, source, 6);
	lane->ifindex = ifindex;
	lane->resolved = now ? now : 1; /* 0 is never; one ahead of now would be long ago */
}

/* Fills the lane; returns 0 if there is no next hop. */
static __noinline int resolve(struct xdp_md *ctx, struct lane *lane, __u32 id)
{
	struct bpf_fib_lookup fib = {};
	__u64 now = bpf_jiffies64();

	if (!lane)
		return 0;
	struct backend *backend = AT(backends, id, backend_count);

	if (!(backend->flags & BACKEND_PRESENT))
		return 0;
	if (!(backend->flags & BACKEND_STATIC)) {
		fib.ifindex = ctx->ingress_ifindex;
		if (backend->flags & BACKEND_IPV6) {
			fib.family = AF_INET6;
			__builtin_memcpy(fib.ipv6_dst, backend->address, 16);
		} else {
			fib.family = AF_INET;
			__builtin_memcpy(&fib.ipv4_dst, backend->address + 12, 4);
		}
		if (bpf_fib_lookup(ctx, &fib, sizeof(fib), 0) == BPF_FIB_LKUP_RET_SUCCESS) {
			keep(lane, fib.dmac, fib.smac, fib.ifindex, now);
			return 1;
		}
	}
	if (!(backend->flags & (BACKEND_HAS_MAC | BACKEND_STATIC)))
		return 0;
	keep(lane, backend->mac, backend->source_mac, backend->ifindex, now);
	return 1;
}

static __always_inline int forward(struct xdp_md *ctx, struct lane *lane)
{
	void *data = (void *)(long)ctx->data;
	struct ethernet *eth = data;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	__builtin_memcpy(eth->destination, lane->mac, 6);
	__builtin_memcpy(eth->source, lane->source_mac, 6);
	if (lane->ifindex == ctx->ingress_ifindex || lane->ifindex == 0)
		return XDP_TX;
	return bpf_redirect(lane->ifindex, 0);
}

#endif
