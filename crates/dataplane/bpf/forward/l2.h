/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* L2 direct server return: new MAC addresses, nothing else. The next hop comes from the kernel's
 * FIB and neighbour table, is kept per CPU and backend, and is asked for again every 64 jiffies
 * (64 to 640 ms): asking costs ten times what the rest of the packet does. */
#ifndef WEIR_FORWARD_L2_H
#define WEIR_FORWARD_L2_H

#include "../maps.h"
#include "../outcome.h"
#include "../parse.h"

#define AF_INET 2
#define AF_INET6 10
#define RESOLVE_JIFFIES 64
/* No verdict: the frame is not one of those that nearly all are. */
#define NOT_PLAIN (-1)

/* The MTU of a tunnel's way, as far as routers on it have said that it is smaller. */
static __always_inline __u32 path_mtu(const struct backend *backend, __u32 mtu)
{
	struct path *path = bpf_map_lookup_elem(&paths, backend->address);

	if (!path || bpf_ktime_get_ns() - path->since >= PATH_NANOSECONDS)
		return mtu;
	return mtu && mtu < path->mtu ? mtu : path->mtu;
}

/* Fills in a lane what leaves by an interface needs; returns why it cannot, or REASON_OK. */
static __always_inline int leave_by(struct lane *lane, const __u8 *mac, const __u8 *source,
				    __u32 ifindex, __u64 now)
{
	struct device *device = bpf_map_lookup_elem(&devices, &ifindex);
	__u32 vlan = 0;

	if (device) {
		if (device->flags & DEVICE_REFUSED)
			return REASON_NO_WAY_OUT; /* rule: resolve.refused */
		ifindex = device->lower; /* rule: resolve.device */
		vlan = device->vlan;
	}
	__builtin_memcpy(lane->mac, mac, 6);
	__builtin_memcpy(lane->source_mac, source, 6);
	lane->ifindex = ifindex;
	lane->vlan = vlan;
	lane->resolved = now ? now : 1; /* 0 is never; one ahead of now would be long ago */ /* rule: resolve.kept */
	return REASON_OK;
}

/* Whether packets may come in that are longer than what this interface takes: the kernel would lose them there.
 * Those that are forwarded as they are have no route that says less. */
static __always_inline void note_narrow(struct xdp_md *ctx, struct lane *lane, __u32 ifindex)
{
	__u32 mtu = 1; /* of a packet that fits; the interface's takes its place */

	if (!control->widest || !ifindex || bpf_check_mtu(ctx, ifindex, &mtu, 0, 0) != 0 ||
	    mtu >= control->widest)
		return;
	lane->beyond |= LANE_NARROW; /* rule: resolve.narrow */
	lane->link_mtu = mtu;
}

/* The same of a backend's lane. */
static __always_inline int keep(struct xdp_md *ctx, struct lane *lane,
				const struct backend *backend, const __u8 *mac, const __u8 *source,
				__u32 ifindex, __u32 mtu, __u64 now)
{
	int reason = leave_by(lane, mac, source, ifindex, now);

	if (reason != REASON_OK)
		return reason;
	lane->beyond = lane->vlan ? LANE_TAGGED : 0;
	if (backend->tunnel)
		lane->beyond |= backend->tunnel >= TUNNEL_NAT ? LANE_NAT : LANE_TUNNEL;
	if (backend->flags >> BACKEND_MSS_SHIFT)
		lane->beyond |= LANE_MSS;
	lane->mtu = mtu ? mtu : backend->mtu;
	if (lane->beyond & LANE_TUNNEL)
		lane->mtu = path_mtu(backend, lane->mtu);
	if (!backend->tunnel)
		note_narrow(ctx, lane, ifindex);
	else if (backend->tunnel == TUNNEL_NAT ? lane->beyond == LANE_NAT :
						 lane->beyond == LANE_TUNNEL && !(backend->flags & BACKEND_IPV6))
		lane->beyond |= LANE_PLAIN; /* rule: resolve.plain */
	return REASON_OK;
}

/* The lookup has written where the next hop is into the place of the destination. Another one than the
 * backend is a router, and what it gets has the service's address, but in a tunnel: it would send that
 * here again. */
static __always_inline int is_gateway(const struct bpf_fib_lookup *fib,
				      const struct backend *backend)
{
	if (backend->flags & BACKEND_IPV6)
		return fib->family != AF_INET6 ||
		       __builtin_memcmp(fib->ipv6_dst, backend->address, 16) != 0;
	return fib->family != AF_INET ||
	       __builtin_memcmp(&fib->ipv4_dst, backend->address + 12, 4) != 0;
}

/* As keep, of what the FIB or the control plane says. */
static __noinline int resolve(struct xdp_md *ctx, struct lane *lane, __u32 id)
{
	struct bpf_fib_lookup fib = {};
	__u64 now = bpf_jiffies64();

	if (!lane)
		return REASON_NO_NEXT_HOP;
	struct backend *backend = AT(backends, id, backend_count);

	if (!(backend->flags & BACKEND_PRESENT))
		return REASON_NO_NEXT_HOP; /* rule: resolve.gone */
	/* Nothing is kept, so that the next packet finds at once that it is up again. */
	if (backend->flags & BACKEND_RESETS)
		return REASON_DEAD_BACKEND; /* rule: resolve.dead */
	if (!(backend->flags & BACKEND_STATIC)) {
		fib.ifindex = ctx->ingress_ifindex;
		if (backend->flags & BACKEND_IPV6) {
			fib.family = AF_INET6;
			__builtin_memcpy(fib.ipv6_dst, backend->address, 16);
		} else {
			fib.family = AF_INET;
			__builtin_memcpy(&fib.ipv4_dst, backend->address + 12, 4);
		}
		int found = bpf_fib_lookup(ctx, &fib, sizeof(fib), 0);

		/* A neighbour that is not known yet has its address written, too. */
		if ((found == BPF_FIB_LKUP_RET_SUCCESS || found == BPF_FIB_LKUP_RET_NO_NEIGH) &&
		    !backend->tunnel && is_gateway(&fib, backend))
			return REASON_BEHIND_GATEWAY; /* rule: resolve.gateway */
		/* The MTU stands where a length was asked for, which was 0: before Linux 5.12 it still is. */
		if (found == BPF_FIB_LKUP_RET_SUCCESS)
			return keep(ctx, lane, backend, fib.dmac, fib.smac, fib.ifindex, fib.tot_len, now); /* rule: resolve.fib */
	}
	if (!(backend->flags & (BACKEND_HAS_MAC | BACKEND_STATIC)))
		return REASON_NO_NEXT_HOP; /* rule: resolve.unknown */
	return keep(ctx, lane, backend, backend->mac, backend->source_mac, backend->ifindex, 0, now); /* rule: resolve.told */
}

static __always_inline int is_vlan(__be16 type)
{
	return type == bpf_htons(ETH_P_8021Q) || type == bpf_htons(ETH_P_8021AD);
}

/* Both addresses at once: they stand beside each other, in the lane as in the frame. */
static __always_inline void readdress(void *data, const struct lane *lane)
{
	*(__u64 *)data = *(__u64 *)lane->mac;
	*(__u32 *)(data + 8) = *(__u32 *)(lane->mac + 8);
}

static __always_inline enum reason readdress_checked(struct xdp_md *ctx, const struct lane *lane)
{
	void *data = (void *)(long)ctx->data;

	if (data + sizeof(struct ethernet) > (void *)(long)ctx->data_end)
		return REASON_TRUNCATED_ETHERNET;
	readdress(data, lane);
	return REASON_OK;
}

static __always_inline int send(struct xdp_md *ctx, const struct lane *lane)
{
	NOTE_WAY(lane->ifindex);
	if (lane->ifindex == ctx->ingress_ifindex || lane->ifindex == 0)
		return XDP_TX; /* rule: l2.back */
	return bpf_redirect(lane->ifindex, 0); /* rule: l2.redirect */
}

#define TAG 4
/* Priority and drop eligibility of a tag, which stay; of its four bytes on the wire, read as they
 * stand. */
#define TAG_KEPT 0x00f00000

/* The frame has a tag, or is to leave with one. It comes out with the lane's, or with none. */
static __always_inline enum reason retag(struct xdp_md *ctx, const struct lane *lane)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u32 kept = 0;
	int more = lane->vlan ? TAG : 0;

	if (data + 14 > end)
		return REASON_TRUNCATED_ETHERNET;
	if (is_vlan(*(__be16 *)(data + 12))) {
		if (data + 18 > end)
			return REASON_TRUNCATED_VLAN;
		kept = *(__u32 *)(data + 12) & TAG_KEPT;
		more -= TAG; /* rule: l2.untag */
		if (is_vlan(*(__be16 *)(data + 16)))
			more -= TAG; /* rule: l2.untag_second */
	}
	if (more) {
		if (bpf_xdp_adjust_head(ctx, -more))
			return REASON_NO_WAY_OUT;
		data = (void *)(long)ctx->data;
		end = (void *)(long)ctx->data_end;
	}
	if (data + 18 > end)
		return REASON_NO_WAY_OUT;
	if (lane->vlan)
		*(__u32 *)(data + 12) = lane->vlan | kept; /* rule: l2.tag */
	readdress(data, lane);
	return REASON_OK;
}

static __always_inline void count(struct lane *lane, __u32 bytes, __u32 flows)
{
	lane->packets++;
	lane->bytes += bytes;
	lane->flows += flows;
}

#endif
