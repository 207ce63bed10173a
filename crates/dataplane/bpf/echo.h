/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Answers echo requests to the services' addresses (RFC 792, RFC 4443 section 4.2). The twin of
 * crates/wire/src/echo.rs. */
#ifndef WEIR_ECHO_H
#define WEIR_ECHO_H

#include "icmp.h"
#include "messages.h"

#define ECHO_REPLY_IPV4 0
#define ECHO_REQUEST_IPV4 8
#define ECHO_REQUEST_IPV6 128
#define ECHO_REPLY_IPV6 129

/* Another type, which stands in the high byte of a word, and the checksum with it (RFC 1624, equation 3). */
static __always_inline void become(struct icmp *icmp, __u8 type)
{
	__u32 sum = (__u16)~bpf_ntohs(icmp->check) + (__u16)~(icmp->type << 8) + (type << 8);

	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	/* Of what is all zeros the sum is 0, and its complement; here they cannot be told apart, and the
	 * complement is right for both. */
	icmp->check = sum == 0xffff ? 0xffff : bpf_htons((__u16)~sum);
	icmp->type = type;
}

static __always_inline void swap_macs(struct ethernet *eth)
{
	__u16 *macs = (__u16 *)eth;

#pragma unroll
	for (int i = 0; i < 3; i++) {
		__u16 kept = macs[i];

		macs[i] = macs[i + 3];
		macs[i + 3] = kept;
	}
}

/* A request of IPv4 without options; what has some is the kernel's. Where it may be answered the packet
 * becomes the reply. */
static __always_inline __u32 echo_ipv4(struct ipv4 *ip, void *end)
{
	struct icmp *icmp = (void *)(ip + 1);

	if ((void *)(icmp + 1) > end || ip->version_ihl != 0x45 || ip->protocol != PROTOCOL_ICMP ||
	    bpf_ntohs(ip->total_length) < sizeof(*ip) + sizeof(*icmp))
		return REASON_OTHER_PROTOCOL; /* rule: echo.not_plain4 */
	if (icmp->type != ECHO_REQUEST_IPV4 || icmp->code != 0 || !is_host_ipv4(ip))
		return REASON_OTHER_PROTOCOL; /* rule: echo.no_request4 */
	if (!may_send(ECHOES))
		return REASON_ECHO_LIMITED; /* rule: echo.limited4 */
	__u32 src = ip->src;

	ip->src = ip->dst;
	ip->dst = src;
	ip->ttl = FIRST_TTL;
	ip->check = 0;
	ip->check = ~fold(sum_of_ipv4(ip));
	become(icmp, ECHO_REPLY_IPV4);
	return REASON_ECHO_ANSWERED; /* rule: echo.answered4 */
}

static __always_inline __u32 echo_ipv6(struct ipv6 *ip, void *end)
{
	struct icmp *icmp = (void *)(ip + 1);

	if ((void *)(icmp + 1) > end || ip->next != PROTOCOL_ICMPV6 ||
	    bpf_ntohs(ip->payload_length) < sizeof(*icmp))
		return REASON_OTHER_PROTOCOL; /* rule: echo.not_plain6 */
	if (icmp->type != ECHO_REQUEST_IPV6 || icmp->code != 0 || !is_host_ipv6(ip))
		return REASON_OTHER_PROTOCOL; /* rule: echo.no_request6 */
	if (!may_send(ECHOES))
		return REASON_ECHO_LIMITED; /* rule: echo.limited6 */
	__u64 high = ip->src[0], low = ip->src[1];

	ip->src[0] = ip->dst[0];
	ip->src[1] = ip->dst[1];
	ip->dst[0] = high;
	ip->dst[1] = low;
	ip->hop_limit = FIRST_TTL;
	become(icmp, ECHO_REPLY_IPV6);
	return REASON_ECHO_ANSWERED; /* rule: echo.answered6 */
}

/* What becomes of a packet to a service's address that was parsed, has neither TCP nor UDP, and is no error:
 * REASON_ECHO_ANSWERED if its frame is to be sent back where it came from; REASON_ECHO_LIMITED;
 * REASON_OTHER_PROTOCOL if it is the kernel's. Global, so that the verifier goes through it once. */
__noinline int echo(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = data;
	void *l3 = eth + 1;

	if (!control->intervals[ECHOES] || l3 > end)
		return REASON_OTHER_PROTOCOL; /* rule: echo.off */
	__be16 type = eth->type;

	if (skip_vlans(&l3, end, &type) != REASON_OK)
		return REASON_OTHER_PROTOCOL; /* rule: echo.vlan */
	/* Neither what was for a group, nor back to one. */
	if ((eth->destination[0] | eth->source[0]) & 1)
		return REASON_OTHER_PROTOCOL; /* rule: echo.group */
	__u32 reason = type == bpf_htons(ETH_P_IP) ? echo_ipv4(l3, end) : echo_ipv6(l3, end);

	if (reason == REASON_ECHO_ANSWERED)
		swap_macs(eth);
	return reason;
}

#endif
