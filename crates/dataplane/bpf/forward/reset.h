/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Resets the connection of a packet whose backend is down: a RST in the packet's place, from the address that
 * it was for, as a host without the connection answers (RFC 9293 section 3.10.7.1). The twin of
 * crates/wire/src/reset.rs. */
#ifndef WEIR_FORWARD_RESET_H
#define WEIR_FORWARD_RESET_H

#include "../messages.h"

#define RESET_OFFSET 0x50 /* five words */

/* The header of TCP that answers: its ports, and either what the packet acknowledges or what it would have
 * acknowledged. */
struct reset {
	__u32 ports;
	__be32 sequence;
	__be32 acknowledged;
	__u32 flags;
};

/* What is answered, of a segment of so many bytes. */
static __always_inline int answer_segment(struct reset *reset, const struct tcp *tcp, void *end,
					  __u32 bytes)
{
	if ((void *)(tcp + 1) > end)
		return 0; /* rule: reset.truncated */
	if (tcp->flags & TCP_RST)
		return 0; /* rule: reset.of_reset */
	reset->ports = tcp->ports << 16 | tcp->ports >> 16;
	if (tcp->flags & TCP_ACK) { /* rule: reset.acknowledges */
		reset->sequence = tcp->ack;
		reset->acknowledged = 0;
		reset->flags = TCP_RST;
	} else { /* rule: reset.acknowledged */
		__u32 length = bytes - (tcp->offset >> 4) * 4;

		length += !!(tcp->flags & TCP_SYN) + !!(tcp->flags & TCP_FIN);
		reset->sequence = 0;
		reset->acknowledged = bpf_htonl(bpf_ntohl(tcp->seq) + length);
		reset->flags = TCP_RST | TCP_ACK;
	}
	return 1;
}

static __always_inline __u64 halves(__u64 word)
{
	return (word >> 32) + (__u32)word;
}

static __always_inline void put_reset(struct tcp *tcp, const struct reset *reset, __u64 ends)
{
	__u16 word = bpf_htons(RESET_OFFSET << 8 | reset->flags);

	tcp->ports = reset->ports;
	tcp->seq = reset->sequence;
	tcp->ack = reset->acknowledged;
	tcp->offset = RESET_OFFSET;
	tcp->flags = reset->flags;
	tcp->window = 0;
	tcp->urgent = 0;
	tcp->check = ~fold(ends + reset->ports + reset->sequence + reset->acknowledged + word +
			   bpf_htonl(PROTOCOL_TCP << 16 | sizeof(*tcp)));
}

/* Makes the frame of a packet whose backend is down the reset of its connection. Returns the reason to be
 * counted; with REASON_RESET_SENT the frame is to be sent back where it came from. Global, so that the verifier
 * goes through it once. */
__noinline int reset_connection(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = data;
	void *l3 = eth + 1;
	struct reset reset = {};

	if (l3 > end)
		return REASON_DEAD_BACKEND; /* rule: reset.short */
	__be16 type = eth->type;

	if (skip_vlans(&l3, end, &type) != REASON_OK)
		return REASON_DEAD_BACKEND; /* rule: reset.vlan */
	/* Neither what was for a group, nor back to one. */
	if ((eth->destination[0] | eth->source[0]) & 1)
		return REASON_DEAD_BACKEND; /* rule: reset.group */
	__u64 before = l3 - data;

	/* The verifier takes no shorter arithmetic on pointers. */
	asm volatile("" : "+r"(before));
	before &= 31;
	__u32 left;

	if (type == bpf_htons(ETH_P_IP)) {
		struct ipv4 *ip = data + before;

		if ((void *)(ip + 1) > end)
			return REASON_DEAD_BACKEND; /* rule: reset.truncated4 */
		__u64 header = (ip->version_ihl & 15) * 4;
		__u32 bytes = bpf_ntohs(ip->total_length);

		if (ip->protocol != PROTOCOL_TCP || ip->fragment & bpf_htons(0x3fff) ||
		    !is_host_ipv4(ip))
			return REASON_DEAD_BACKEND; /* rule: reset.not4 */
		if (!answer_segment(&reset, (void *)ip + header, end, bytes - header))
			return REASON_DEAD_BACKEND;
		left = before + sizeof(*ip) + sizeof(struct tcp); /* rule: reset.ipv4 */
	} else {
		struct ipv6 *ip = data + before;

		if ((void *)(ip + 1) > end)
			return REASON_DEAD_BACKEND; /* rule: reset.truncated6 */
		if (ip->next != PROTOCOL_TCP || !is_host_ipv6(ip))
			return REASON_DEAD_BACKEND; /* rule: reset.not6 */
		if (!answer_segment(&reset, (void *)(ip + 1), end, bpf_ntohs(ip->payload_length)))
			return REASON_DEAD_BACKEND;
		left = before + sizeof(*ip) + sizeof(struct tcp); /* rule: reset.ipv6 */
	}
	if (!may_send(RESETS))
		return REASON_RESET_LIMITED; /* rule: reset.limited */
	if (!cut(ctx, left))
		return REASON_DEAD_BACKEND; /* rule: reset.not_cut */
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	__u16 *macs = data;

	if ((void *)(macs + 6) > end)
		return REASON_DEAD_BACKEND; /* rule: reset.no_macs */
#pragma unroll
	for (int i = 0; i < 3; i++) {
		__u16 mac = macs[i];

		macs[i] = macs[i + 3];
		macs[i + 3] = mac;
	}
	if (type == bpf_htons(ETH_P_IP)) {
		struct ipv4 *ip = data + before;
		struct tcp *tcp = (void *)(ip + 1);

		if ((void *)(tcp + 1) > end)
			return REASON_DEAD_BACKEND; /* rule: reset.no_room4 */
		__be32 source = ip->src;

		ip->version_ihl = 0x45;
		ip->tos = 0;
		ip->total_length = bpf_htons(sizeof(*ip) + sizeof(*tcp));
		ip->id = 0;
		ip->fragment = bpf_htons(DONT_FRAGMENT);
		ip->ttl = FIRST_TTL;
		ip->src = ip->dst;
		ip->dst = source;
		ip->check = 0;
		ip->check = ~fold(sum_of_ipv4(ip));
		put_reset(tcp, &reset, (__u64)ip->src + ip->dst); /* rule: reset.put4 */
	} else {
		struct ipv6 *ip = data + before;
		struct tcp *tcp = (void *)(ip + 1);

		if ((void *)(tcp + 1) > end)
			return REASON_DEAD_BACKEND; /* rule: reset.no_room6 */
		__u64 high = ip->src[0], low = ip->src[1];

		ip->version_flow = bpf_htonl(0x60000000);
		ip->payload_length = bpf_htons(sizeof(*tcp));
		ip->hop_limit = FIRST_TTL;
		ip->src[0] = ip->dst[0];
		ip->src[1] = ip->dst[1];
		ip->dst[0] = high;
		ip->dst[1] = low;
		put_reset(tcp, &reset, halves(high) + halves(low) + halves(ip->src[0]) + halves(ip->src[1])); /* rule: reset.put6 */
	}
	return REASON_RESET_SENT; /* rule: reset.sent */
}

/* Reports that the connection of a reset that was made is over, as its client's RST would have: where the control
 * plane keeps the states, it forgets it. ctx: the reset, as it goes back; id: the backend that is down. Global, so
 * that the verifier goes through it once. The twin of Soft::report_reset in crates/plane. */
__noinline int report_reset(struct xdp_md *ctx, __u32 id)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = (void *)(long)ctx->data;
	void *l3 = eth + 1;
	struct service_state state = {};
	__u64 from[2], to[2];
	__u32 ports;

	if (l3 > end)
		return 0;
	__be16 type = eth->type;

	if (skip_vlans(&l3, end, &type) != REASON_OK)
		return 0;
	if (type == bpf_htons(ETH_P_IP)) {
		struct ipv4 *ip = l3;
		struct tcp *tcp = (void *)(ip + 1);

		if ((void *)(tcp + 1) > end)
			return 0;
		from[0] = to[0] = 0;
		from[1] = (__u64)ip->src << 32 | IPV4_MAPPED;
		to[1] = (__u64)ip->dst << 32 | IPV4_MAPPED;
		ports = tcp->ports;
	} else {
		struct ipv6 *ip = l3;
		struct tcp *tcp = (void *)(ip + 1);

		if ((void *)(tcp + 1) > end)
			return 0;
		from[0] = ip->src[0];
		from[1] = ip->src[1];
		to[0] = ip->dst[0];
		to[1] = ip->dst[1];
		ports = tcp->ports;
	}
	/* A reset comes from the service. */
	__u32 port = (ports & 0xffff) | PROTOCOL_TCP << 16;
	struct vip *vip = find_vip(from[0], from[1], port);

	if (!vip)
		vip = find_unusual_vip(control->unusual, from[0], from[1], port);
	if (!vip)
		return 0;
	__u32 number = *(volatile __u32 *)&vip->table;
	__u32 salt = number & TABLE_SALTED ? salt_of(vip, from[1]) : 0;

	number &= ~(JUDGED_FLAGS | TABLE_BY_ID | TABLE_SALTED);
	if (number >= table_count)
		return 0;
	/* The tables of methods whose states the control plane keeps have their flows marked. Clients outlive their
	 * connections. */
	if ((AT(tables, number, table_count)->flags & (TABLE_MARK | TABLE_CLIENT)) != TABLE_MARK)
		return 0;
	state.service = number / 2;
	__builtin_memcpy(state.key.address, to, 16);
	state.key.src_port = ports >> 16;
	state.key.dst_port = ports ^ salt;
	report(&state, id, EVENT_END); /* rule: reset.ended */
	return 0;
}

#endif
