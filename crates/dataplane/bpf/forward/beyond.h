/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* What a frame may need beside other addresses. */
#ifndef WEIR_FORWARD_BEYOND_H
#define WEIR_FORWARD_BEYOND_H

#include "l2.h"
#include "tunnel.h"

/* Forwards a frame with a VLAN tag, to one, or through a tunnel. Global, so that the verifier goes through
 * it once, and plain frames have nothing to keep for it. It is counted here, as it may yet be dropped. */
__noinline int forward_beyond(struct xdp_md *ctx, struct lane *lane, __u32 id, __u32 bytes,
			      __u32 flows)
{
	if (!lane)
		return leave(REASON_NO_NEXT_HOP, XDP_DROP); /* rule: beyond.no_lane */
	enum reason reason = lane->beyond & LANE_TUNNEL ? encapsulate(ctx, lane, id, bytes) :
							  retag(ctx, lane);
	if (reason != REASON_OK)
		return leave(reason, XDP_DROP); /* rule: beyond.refused */
	count(lane, bytes, flows);
	return send(ctx, lane); /* rule: beyond.sent */
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
	if (unlikely(lane->beyond) || (unlikely(is_vlan(eth->type)) && lane->ifindex))
		return forward_beyond(ctx, lane, *(const volatile __u32 *)id, bytes, flows); /* rule: beyond.entered */
	count(lane, bytes, flows);
	readdress(data, lane);
	return send(ctx, lane); /* rule: l2.plain */
}

#endif
