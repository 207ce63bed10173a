/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* What a frame may need beside other addresses. */
#ifndef WEIR_FORWARD_BEYOND_H
#define WEIR_FORWARD_BEYOND_H

#include "l2.h"
#include "nat.h"
#include "full_nat.h"
#include "tunnel.h"
#include "tell.h"
#include "mss.h"

/* Forwards a frame with a VLAN tag, to one, through a tunnel, with other addresses inside, with other segments, or
 * by a link that may be too narrow. Global, so that the verifier goes through
 * it once, and plain frames have nothing to keep for it. It is counted here, as it may yet be dropped. */
__noinline int forward_beyond(struct xdp_md *ctx, struct lane *lane, __u32 id, __u32 bytes,
			      __u32 flows)
{
	if (!lane)
		return leave(REASON_NO_NEXT_HOP, XDP_DROP); /* rule: beyond.no_lane */
	if (lane->beyond & LANE_MSS)
		limit_segments(ctx, id, lane->mtu, lane->beyond & LANE_TUNNEL);
	__u32 done;

	if (lane->beyond & LANE_NAT)
		done = translate_to(ctx, lane, id, bytes);
	else if (lane->beyond & LANE_TUNNEL)
		done = encapsulate(ctx, lane, id, bytes);
	else if (lane->beyond & LANE_NARROW && bytes > lane->link_mtu)
		done = REASON_TOO_BIG | lane->link_mtu << 8; /* rule: l2.too_big */
	else if (lane->beyond & LANE_TAGGED || lane->ifindex)
		done = retag(ctx, lane);
	else /* Without an interface a frame goes back with the tags that it has. */
		done = readdress_checked(ctx, lane);
	__u32 reason = done & REFUSED_REASON;

	if (likely(reason == REASON_OK)) {
		count(lane, bytes, flows);
		return send(ctx, lane); /* rule: beyond.sent */
	}
	if (reason == REASON_TOO_BIG || reason == REASON_TTL_EXCEEDED) {
		reason = tell(ctx, reason, REFUSED_MTU(done));
		if (reason == REASON_TOO_BIG_TOLD || reason == REASON_TTL_TOLD)
			return leave(reason, XDP_TX); /* rule: beyond.told */
	}
	return leave(reason, XDP_DROP); /* rule: beyond.refused */
}

/* `id` stands in memory, as the key that the lane was found by: from there it is read again if it is
 * needed, so that plain frames have no register to keep for it. */
static __always_inline int forward(struct xdp_md *ctx, struct lane *lane, const __u32 *id,
				   __u32 bytes, __u32 flows)
{
	void *data = (void *)(long)ctx->data;
	struct ethernet *eth = data;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	/* Without an interface the frame goes back as it came. */
	if (unlikely(lane->beyond) || (unlikely(is_vlan(eth->type)) && lane->ifindex)) {
		int verdict = NOT_PLAIN;

		if (lane->beyond & LANE_PLAIN && eth->type == bpf_htons(ETH_P_IP))
			verdict = lane->beyond & LANE_NAT ?
					  forward_nat(ctx, lane, *(const volatile __u32 *)id, bytes, flows) :
					  forward_tunnel(ctx, lane, *(const volatile __u32 *)id, bytes, flows);
		if (verdict != NOT_PLAIN)
			return verdict;
		return forward_beyond(ctx, lane, *(const volatile __u32 *)id, bytes, flows); /* rule: beyond.entered */
	}
	count(lane, bytes, flows);
	readdress(data, lane);
	return send(ctx, lane); /* rule: l2.plain */
}

#endif
