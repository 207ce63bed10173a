/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Tells the sender of a packet why it goes nowhere: an ICMP error in the packet's place, from the address
 * that it was for, back to where it came from (RFC 792, RFC 1191, RFC 4443). The twin of
 * crates/wire/src/icmp_error.rs. */
#ifndef WEIR_FORWARD_TELL_H
#define WEIR_FORWARD_TELL_H

#include "../icmp.h"
#include "../messages.h"

/* Bytes of the packet that are quoted at most: the message is no larger than what every host takes
 * (RFC 1812 section 4.3.2.3, RFC 4443 section 2.4). */
#define TOLD_IPV4 (576 - sizeof(struct ipv4) - sizeof(struct icmp))
#define TOLD_IPV6 (1280 - sizeof(struct ipv6) - sizeof(struct icmp))
/* Nobody need send smaller packets (RFC 791, RFC 8200). */
#define LEAST_MTU_IPV4 68
#define LEAST_MTU_IPV6 1280

/* Bytes of a packet that its message quotes, 0 if its sender is not to be told (RFC 1812 section 4.3.2.7):
 * not of an ICMP error, of a fragment, of what no single host has sent, and of what may
 * be made into fragments. */
static __always_inline __u32 told_of_ipv4(struct ipv4 *ip, void *end, __u32 reason, __u32 mtu)
{
	if ((void *)(ip + 1) > end)
		return 0; /* rule: tell.truncated4 */
	__u32 left = end - (void *)ip;
	__u32 length = bpf_ntohs(ip->total_length);

	if (reason == REASON_TOO_BIG &&
	    (!(ip->fragment & bpf_htons(DONT_FRAGMENT)) || mtu < LEAST_MTU_IPV4))
		return 0; /* rule: tell.may_be_cut */
	if (ip->protocol == PROTOCOL_ICMP || ip->fragment & bpf_htons(0x3fff) || !is_host_ipv4(ip))
		return 0; /* rule: tell.not_told4 */
	length = length < left ? length : left;
	return (length < TOLD_IPV4 ? length : TOLD_IPV4) & ~3U; /* rule: tell.ipv4 */
}

static __always_inline __u32 told_of_ipv6(struct xdp_md *ctx, struct ipv6 *ip, void *end,
					  __u32 before, __u32 reason)
{
	if ((void *)(ip + 1) > end)
		return 0; /* rule: tell.truncated6 */
	__u32 left = end - (void *)ip;
	__u32 length = sizeof(*ip) + bpf_ntohs(ip->payload_length);

	/* Its sender need not send smaller ones, and there are no fragments of it (RFC 2473 section 7.1). */
	if (reason == REASON_TOO_BIG && length <= LEAST_MTU_IPV6)
		return 0; /* rule: tell.small6 */
	if (!is_host_ipv6(ip))
		return 0; /* rule: tell.no_host6 */
	__u32 skipped = skip_extensions(ctx, before, length, ip->next);
	enum reason walked = SKIPPED_REASON(skipped);

	/* Nobody but its sender makes other fragments of a packet (RFC 8200 section 5). */
	if ((walked != REASON_OK && walked != REASON_FIRST_FRAGMENT && walked != REASON_LATER_FRAGMENT) ||
	    SKIPPED_TO(skipped) == PROTOCOL_ICMPV6)
		return 0; /* rule: tell.not_told6 */
	length = length < left ? length : left;
	return (length < TOLD_IPV6 ? length : TOLD_IPV6) & ~3U; /* rule: tell.ipv6 */
}

/* The message, but for its checksum and what it quotes. */
static __always_inline void put_told(struct icmp *icmp, __u32 reason, int is_ipv6, __u32 mtu)
{
	if (reason == REASON_TOO_BIG) { /* rule: tell.too_big */
		icmp->type = is_ipv6 ? ICMPV6_TOO_BIG : ICMP_UNREACHABLE;
		icmp->code = is_ipv6 ? 0 : ICMP_NEEDS_FRAGMENTS;
		if (is_ipv6 && mtu < LEAST_MTU_IPV6)
			mtu = LEAST_MTU_IPV6; /* rule: tell.least_mtu */
		icmp->rest = bpf_htonl(mtu);
	} else { /* rule: tell.ttl */
		icmp->type = is_ipv6 ? ICMPV6_TIME_EXCEEDED : ICMP_TIME_EXCEEDED;
		icmp->code = 0;
		icmp->rest = 0;
	}
	icmp->check = 0;
}

static __always_inline __u32 tell_ipv4(struct xdp_md *ctx, __u32 before, __u32 quote,
				       __u32 reason, __u32 mtu)
{
	const __u32 more = sizeof(struct ipv4) + sizeof(struct icmp);

	if (!turn_round(ctx, before, more))
		return REASON_NO_HEADROOM; /* rule: tell.no_headroom4 */
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ipv4 *ip = data + (before & 31);
	struct icmp *icmp = (void *)(ip + 1);
	struct ipv4 *told = (void *)(icmp + 1);

	if ((void *)(told + 1) > end)
		return REASON_NO_HEADROOM; /* rule: tell.no_room4 */
	ip->version_ihl = 0x45;
	ip->tos = INTERNETWORK_CONTROL;
	ip->total_length = bpf_htons(more + quote);
	ip->id = 0;
	ip->fragment = bpf_htons(DONT_FRAGMENT);
	ip->ttl = FIRST_TTL;
	ip->protocol = PROTOCOL_ICMP;
	ip->src = told->dst;
	ip->dst = told->src;
	ip->check = 0;
	ip->check = ~fold(sum_of_ipv4(ip));
	put_told(icmp, reason, 0, mtu);
	return finish_message(ctx, (before & 31) + sizeof(*ip), 0, sizeof(*icmp) + quote) ? REASON_OK : /* rule: tell.put4 */
		REASON_NO_HEADROOM;
}

static __always_inline __u32 tell_ipv6(struct xdp_md *ctx, __u32 before, __u32 quote,
				       __u32 reason, __u32 mtu)
{
	const __u32 more = sizeof(struct ipv6) + sizeof(struct icmp);

	if (!turn_round(ctx, before, more))
		return REASON_NO_HEADROOM; /* rule: tell.no_headroom6 */
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ipv6 *ip = data + (before & 31);
	struct icmp *icmp = (void *)(ip + 1);
	struct ipv6 *told = (void *)(icmp + 1);

	if ((void *)(told + 1) > end)
		return REASON_NO_HEADROOM; /* rule: tell.no_room6 */
	ip->version_flow = bpf_htonl(0x60000000);
	ip->payload_length = bpf_htons(sizeof(*icmp) + quote);
	ip->next = PROTOCOL_ICMPV6;
	ip->hop_limit = FIRST_TTL;
	ip->src[0] = told->dst[0];
	ip->src[1] = told->dst[1];
	ip->dst[0] = told->src[0];
	ip->dst[1] = told->src[1];
	put_told(icmp, reason, 1, mtu);
	return finish_message(ctx, (before & 31) + sizeof(*ip), sum_of_ends(ip), /* rule: tell.put6 */
			      sizeof(*icmp) + quote) ? REASON_OK : REASON_NO_HEADROOM;
}

/* Makes the frame of a packet that goes nowhere the message to its sender. Returns the reason to be counted;
 * if that is one of those that say so, the frame is to be sent back where it came from. mtu: the largest
 * packet that fits, if this one is too big. Global, so that the verifier goes through it once. */
__noinline int tell(struct xdp_md *ctx, __u32 reason, __u32 mtu)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = data;
	void *l3 = eth + 1;

	if (l3 > end)
		return reason; /* rule: tell.truncated */
	__be16 type = eth->type;

	if (skip_vlans(&l3, end, &type) != REASON_OK)
		return reason; /* rule: tell.vlan */
	/* Neither what was for a group, nor back to one. */
	if ((eth->destination[0] | eth->source[0]) & 1)
		return reason; /* rule: tell.group */
	int is_ipv6 = type != bpf_htons(ETH_P_IP);
	__u64 before = l3 - data;

	/* The verifier takes no shorter arithmetic on pointers. */
	asm volatile("" : "+r"(before));
	__u32 quote = is_ipv6 ? told_of_ipv6(ctx, l3, end, before, reason) :
				told_of_ipv4(l3, end, reason, mtu);
	if (!quote)
		return reason; /* rule: tell.not_told */
	if (!may_send(ERRORS))
		return REASON_UNTOLD; /* rule: tell.untold */
	if (!cut(ctx, before + quote))
		return reason; /* rule: tell.not_cut */
	__u32 failed = is_ipv6 ? tell_ipv6(ctx, before, quote, reason, mtu) :
				 tell_ipv4(ctx, before, quote, reason, mtu);

	if (failed != REASON_OK)
		return failed; /* rule: tell.failed */
	return reason == REASON_TOO_BIG ? REASON_TOO_BIG_TOLD : REASON_TTL_TOLD; /* rule: tell.told */
}

#endif
