/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* From destination to service: a two-choice table without chains, so at most two lines are read. Prefixes
 * and blocks of ports stand in the same table, and are asked for where no service has the very address and
 * port, one kind after the other; the twin of crates/plane/src/listen.rs. */
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

static __always_inline __u64 word_of(__u64 high, __u64 low, __u32 port_protocol)
{
	return low ^ high * VIP_HIGH ^ port_protocol;
}

static __always_inline struct vip *find_vip(__u64 high, __u64 low, __u32 port_protocol)
{
	__u64 word = word_of(high, low, port_protocol);
	struct vip *vip = probe(word * VIP_FIRST >> vip_shift, high, low, port_protocol);

	if (likely(vip != NULL))
		return vip; /* rule: service.first_slot */
	return probe(word * VIP_SECOND >> vip_shift, high, low, port_protocol);
}

/* The entry of the most exact of all kinds, plus one; 0 if there is none. Global, so that the verifier goes
 * through it once. */
__noinline __u32 find_wide(__u64 high, __u64 low, __u32 port_protocol)
{
	__u32 first = control->kind_side ? KINDS : 0;

	for (__u32 i = 0; i < KINDS; i++) {
		const struct kind *kind = &control->kinds[first + i];

		if (!kind->bits)
			return 0; /* rule: service.no_kind */
		__u64 left_high = high & kind->high, left_low = low & kind->low;
		__u32 left = (port_protocol & kind->mask) | kind->number;
		__u64 word = word_of(left_high, left_low, left);
		__u32 slot = word * VIP_FIRST >> vip_shift;

		if (probe(slot, left_high, left_low, left))
			return slot + 1; /* rule: service.kind */
		slot = word * VIP_SECOND >> vip_shift;
		if (probe(slot, left_high, left_low, left))
			return slot + 1; /* rule: service.kind_second */
	}
	return 0;
}

/* The same as an entry. */
static __always_inline struct vip *wide_vip(__u64 high, __u64 low, __u32 port_protocol)
{
	__u32 found = find_wide(high, low, port_protocol);

	return found ? AT(vips, found - 1, vip_slots) : NULL;
}

/* What takes packets that no service has the very address and port of. */
static __always_inline struct vip *find_unusual_vip(__u32 unusual, __u64 high, __u64 low,
						    __u32 port_protocol)
{
	if (unusual & UNUSUAL_WIDE)
		return wide_vip(high, low, port_protocol); /* rule: service.wide */
	if (unusual & UNUSUAL_ANY_PORT)
		return find_vip(high, low, port_protocol & 0xff0000); /* rule: service.any_port */
	return NULL;
}

/* The port of the service that alone listens at an address on a protocol, as on the wire, if later fragments are led
 * by their source there. It stands in the entry of the address. */
static __always_inline __u32 port_of_fragments(__u64 high, __u64 low, __u32 protocol)
{
	struct vip *address = find_vip(high, low, 0);
	__u32 shift = protocol == PROTOCOL_TCP ? 0 : protocol == PROTOCOL_UDP ? 16 : 32;

	return address ? address->id_lengths >> shift & 0xffff : 0;
}

/* What the destination port of a state is XORed with, as it stands on the wire. */
static __always_inline __u32 salt_of(const struct vip *vip, __u64 low)
{
	__u32 others = 64 - vip->host_bits;
	__u64 host = 0;

	if (vip->host_bits)
		host = bpf_be64_to_cpu(low) << (others & 63) >> (others & 63); /* rule: service.host */
	host ^= host >> 32;
	return bpf_htons((__u16)(vip->salt ^ host ^ host >> 16));
}

/* Whether an address belongs to any service at all: off the fast path. */
static __noinline int is_vip(__u64 high, __u64 low)
{
	if (find_vip(high, low, 0))
		return 1;
	return control->unusual & UNUSUAL_WIDE && find_wide(high, low, 0);
}

#endif
