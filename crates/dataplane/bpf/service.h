/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* From destination to service: a two-choice table without chains, so at most two lines are read. */
#ifndef WEIR_SERVICE_H
#define WEIR_SERVICE_H

#include "maps.h"
#include "hash.h"

/* weir_wire::hash::SERVICE_KEY */
static const struct hash_key service_key = {
	.xor = 0x243f6a8885a308d3ULL,
	.xor_wide = 0x13198a2e03707344ULL,
	.mul1 = 0xff51afd7ed558ccdULL,
	.mul2 = 0xc4ceb9fe1a85ec53ULL,
};

static __always_inline struct vip *probe(__u32 slot, __u64 high, __u64 low, __u32 port_protocol)
{
	struct vip *vip = bpf_map_lookup_elem(&vips, &slot);

	if (vip && vip->low == low && vip->port_protocol == (port_protocol | VIP_IN_USE) &&
	    vip->high == high)
		return vip;
	return NULL;
}

static __always_inline struct vip *find_vip(__u64 high, __u64 low, __u32 port_protocol)
{
	__u64 hash = hash_address(&service_key, high, low, port_protocol);
	struct vip *vip = probe(scale(hash, vip_slots), high, low, port_protocol);

	return vip ? vip : probe(scale(hash >> 32, vip_slots), high, low, port_protocol);
}

/* Whether an address belongs to any service at all: off the fast path. */
static __noinline int is_vip(__u64 high, __u64 low)
{
	return find_vip(high, low, 0) != NULL;
}

#endif
