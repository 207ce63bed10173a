/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* The timestamps of connections whose answers pass here: cookies in, the backend's own back. */
#ifndef WEIR_ANSWERS_H
#define WEIR_ANSWERS_H

#include "maps.h"
#include "stamps.h"
#include "tcp_options.h"

/* Puts a value in place of the four bytes at `field` of the option, and into the checksum (RFC 1624,
 * equation 3), whose words are summed as they stand in memory. */
static __always_inline void replace(struct xdp_md *ctx, __u64 stamps, __u32 field, __u32 value)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u32 in_frame = (stamps >> 32 & 0x3fff) + field;
	__u32 l4 = stamps >> 48 & 0x3fff;
	__u32 *at = data + in_frame;
	__u16 *check = data + (l4 + CHECK_AT);

	if ((void *)(at + 1) > end || (void *)(check + 1) > end)
		return;
	__u32 new = bpf_htonl(value);
	__u32 old = *at;

	*at = new;
	if ((in_frame - l4) & 1) {
		new = new << 8 | new >> 24;
		old = old << 8 | old >> 24;
	}
	__u32 sum = (__u16)~*check + (~old >> 16) + (~old & 0xffff) + (new >> 16) + (new & 0xffff);

	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	*check = ~sum;
}

static __always_inline void watch(const struct flow_key *key, struct answer fresh)
{
	bpf_map_update_elem(&answers, key, &fresh, BPF_ANY);
	if (twins)
		bpf_map_update_elem(&answers_twin, key, &fresh, BPF_ANY);
}

static __always_inline void forget(const struct flow_key *key)
{
	bpf_map_delete_elem(&answers, key);
	if (twins)
		bpf_map_delete_elem(&answers_twin, key);
}

#endif
