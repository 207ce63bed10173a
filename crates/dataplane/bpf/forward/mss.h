/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* The largest segment that a SYN asks for, made smaller (RFC 9293 section 3.7.1). The twin of
 * crates/wire/src/mss.rs. */
#ifndef WEIR_FORWARD_MSS_H
#define WEIR_FORWARD_MSS_H

#include "../tcp_options.h"
#include "tunnel.h"

#define OPTION_MSS 2
#define OPTION_MSS_BYTES 4
#define TCP_CHECK_AT 16

/* Where the TCP header of a SYN stands in the frame; 0 if it is none. Bytes of that
 * header << 16. */
static __always_inline __u32 find_syn(struct xdp_md *ctx, int *is_ipv6)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = data;
	void *l3 = eth + 1;

	if (l3 > end)
		return 0; /* rule: mss.truncated */
	__be16 type = eth->type;

	if (skip_vlans(&l3, end, &type) != REASON_OK)
		return 0; /* rule: mss.vlan */
	__u64 before = l3 - data;
	__u32 at;

	/* The verifier takes no shorter arithmetic on pointers. */
	asm volatile("" : "+r"(before));
	*is_ipv6 = type != bpf_htons(ETH_P_IP);
	if (*is_ipv6) {
		struct ipv6 *ip = l3;

		if ((void *)(ip + 1) > end)
			return 0; /* rule: mss.truncated6 */
		__u32 length = sizeof(*ip) + bpf_ntohs(ip->payload_length);
		__u32 skipped = skip_extensions(ctx, before, length, ip->next);

		if (SKIPPED_REASON(skipped) != REASON_OK || SKIPPED_TO(skipped) != PROTOCOL_TCP)
			return 0; /* rule: mss.not_tcp6 */
		at = SKIPPED_AT(skipped); /* rule: mss.ipv6 */
	} else {
		struct ipv4 *ip = l3;

		if ((void *)(ip + 1) > end || ip->protocol != PROTOCOL_TCP ||
		    ip->fragment & bpf_htons(0x3fff))
			return 0; /* rule: mss.not_tcp4 */
		at = (ip->version_ihl & 15) * 4; /* rule: mss.ipv4 */
	}
	at += before;
	void *there = data + (at & 0x3fff);

	asm volatile("" : "+r"(there));
	struct tcp *tcp = there;

	if ((void *)(tcp + 1) > end || !(tcp->flags & TCP_SYN))
		return 0; /* rule: mss.no_syn */
	return (at & 0x3fff) | (tcp->offset >> 4) << 18; /* rule: mss.syn */
}

/* Puts a smaller number in the place of the option's, and into the checksum (RFC 1624, equation 3). */
static __always_inline int put_mss(struct xdp_md *ctx, __u32 l4, __u32 at, __u32 most)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u8 *option = data + (at & 0x3fff);
	void *tcp = data + (l4 & 0x3fff);

	asm volatile("" : "+r"(option), "+r"(tcp));
	if (option + OPTION_MSS_BYTES > (__u8 *)end || tcp + TCP_CHECK_AT + 2 > end)
		return 0; /* rule: mss.option_truncated */
	if (option[0] != OPTION_MSS || option[1] != OPTION_MSS_BYTES)
		return 0; /* rule: mss.other_option */
	__u32 old = option[2] << 8 | option[3];

	if (old > most) { /* rule: mss.lowered */
		__u16 *check = tcp + TCP_CHECK_AT;
		/* Where the option stands at an odd place, its bytes are in words the other way round. */
		__u32 less = (at - l4) & 1 ? bpf_htons(old) : old;
		__u32 more = (at - l4) & 1 ? bpf_htons(most) : most;
		__u32 sum = (__u16)~bpf_ntohs(*check) + (__u16)~less + more;

		sum = (sum >> 16) + (sum & 0xffff);
		sum = (sum >> 16) + (sum & 0xffff);
		*check = bpf_htons((__u16)~sum);
		option[2] = most >> 8;
		option[3] = most;
	}
	return 1; /* rule: mss.found */
}

/* Lets a SYN ask for segments of at most so many bytes, `ipv4` or `ipv6` by what it is; others stay as they
 * are, and so does one that says nothing. Global, so that the verifier goes through it once. */
__noinline int clamp_mss(struct xdp_md *ctx, __u32 ipv4, __u32 ipv6)
{
	int is_ipv6;
	__u32 found = find_syn(ctx, &is_ipv6);
	__u32 l4 = found & 0xffff;
	__u32 at = l4 + sizeof(struct tcp);
	__u32 until = l4 + (found >> 16);

	if (!found)
		return 0; /* rule: mss.none */
	for (int i = 0; i <= MAX_OPTION_BYTES; i++) {
		if (at + OPTION_MSS_BYTES > until)
			return 0; /* rule: mss.without */
		if (put_mss(ctx, l4, at, is_ipv6 ? ipv6 : ipv4))
			return 1; /* rule: mss.done */
		__u32 next = next_option(ctx, at, until);

		if (next == OPTION_FOUND)
			next = at + sizeof(struct timestamps); /* rule: mss.stamps */
		if (next >= OPTION_FOUND)
			return 0; /* rule: mss.walk_ended */
		at = next; /* rule: mss.next */
	}
	return 0; /* rule: mss.too_many */
}

/* The smallest that is asked for. */
#define LEAST_MSS 64

/* As the service of the backend has it: a number, or what the way to the backend takes, of this MTU, 0 if that
 * is not known; `tunnel`: whether the packet goes into one. */
static __always_inline void limit_segments(struct xdp_md *ctx, __u32 id, __u32 mtu, __u32 tunnel)
{
	const struct backend *backend = AT(backends, id, backend_count);
	__u32 ipv4 = backend->flags >> BACKEND_MSS_SHIFT;
	__u32 ipv6 = ipv4;

	if (ipv4 == MSS_AUTO) {
		__u32 most = mtu < 0xffff ? mtu : 0xffff;
		__u32 headers = tunnel ? outer_bytes(backend) : 0;

		ipv4 = headers + sizeof(struct ipv4) + sizeof(struct tcp);
		ipv6 = headers + sizeof(struct ipv6) + sizeof(struct tcp);
		if (most < ipv6 + LEAST_MSS)
			return; /* rule: mss.way_unknown */
		ipv4 = most - ipv4; /* rule: mss.auto */
		ipv6 = most - ipv6;
	}
	clamp_mss(ctx, ipv4, ipv6); /* rule: mss.limited */
}

/* The same for an answer of that backend, which has been translated: what its SYN+ACK asks for comes by the same way
 * as what the client's SYN does. Global, so that the verifier goes through it once. */
__noinline int limit_answer(struct xdp_md *ctx, __u32 id)
{
	const struct lane *lane = bpf_map_lookup_elem(&lanes, &id);
	const struct backend *backend = AT(backends, id, backend_count);
	__u32 mtu = lane ? lane->mtu : 0;

	if (!(backend->flags >> BACKEND_MSS_SHIFT))
		return 0; /* rule: mss.gone */
	/* Another processor may have sent all that went there. */
	limit_segments(ctx, id, mtu ? mtu : backend->mtu, 0); /* rule: mss.answer */
	return 0;
}

#endif
