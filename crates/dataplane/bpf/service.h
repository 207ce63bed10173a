/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* From destination to service: a two-choice table without chains, so at most two lines are read. */
#ifndef WEIR_SERVICE_H
#define WEIR_SERVICE_H

#include "maps.h"

/* One multiplication for a slot: the keys are the operator's own, so there is nobody to defend
 * against, and the first choice nearly always hits. weir_dataplane's vips.rs does the same. */
static __always_inline struct vip *probe(__u32 slot, __u64 high, __u64 low, __u32 port_protocol)
{
	struct vip *vip = AT(vips, slot, vip_slots);

	if (vip->low == low && vip->port_protocol == (port_protocol | VIP_IN_USE) &&
	    vip->high == high)
		return vip;
	return NULL;
}

static __always_inline struct vip *find_vip(__u64 high, __u64 low, __u32 port_protocol)
{
	__u64 word = low ^ high * VIP_HIGH ^ port_protocol;
	struct vip *vip = probe(word * VIP_FIRST >> vip_shift, high, low, port_protocol);

	if (likely(vip != NULL))
		return vip; /* rule: service.first_slot */
	return probe(word * VIP_SECOND >> vip_shift, high, low, port_protocol);
}

/* Whether an address belongs to any service at all: off the fast path. */
static __noinline int is_vip(__u64 high, __u64 low)
{
	return find_vip(high, low, 0) != NULL;
}

#endif
