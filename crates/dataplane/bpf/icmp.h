/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* ICMP errors about packets that a service's backends have sent: they quote the packet, so they lead to its
 * backend (RFC 792, RFC 1122 section 3.2.2; RFC 4443 section 2.4). The twin of crates/wire/src/icmp.rs. */
#ifndef WEIR_ICMP_H
#define WEIR_ICMP_H

#include "parse.h"
#include "question.h"
#include "tcp_options.h"

#define PROTOCOL_ICMP 1
#define PROTOCOL_ICMPV6 58
#define PROTOCOL_FRAGMENT 44

#define ICMP_UNREACHABLE 3
#define ICMP_NEEDS_FRAGMENTS 4 /* its code */
#define ICMP_TIME_EXCEEDED 11
#define ICMPV6_TOO_BIG 2
#define ICMPV6_TIME_EXCEEDED 3

/* What is quoted of a transport header at least: its ports, and four bytes more. */
#define QUOTED_BYTES 8

struct icmp {
	__u8 type;
	__u8 code;
	__be16 check;
	__u32 rest;
};

static __always_inline int is_icmp(__u8 protocol)
{
	return protocol == PROTOCOL_ICMP || protocol == PROTOCOL_ICMPV6;
}

/* Destination unreachable (too big is one of them), time exceeded, parameter problem. */
static __always_inline int is_error_ipv4(__u8 type)
{
	return type == 3 || type == 11 || type == 12;
}

/* The same and packet too big. */
static __always_inline int is_error_ipv6(__u8 type)
{
	return type >= 1 && type <= 4;
}

/* Where the IP header stands that an ICMP error quotes, from the frame's first byte on, and the length of
 * the frame up to the end of its IP packet << 16; 0 if the frame is no such error. Lengths were checked. */
static __always_inline __u32 find_quote(struct xdp_md *ctx, int *is_ipv6)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = data;
	void *l3 = eth + 1;

	if (l3 > end)
		return 0;
	__be16 type = eth->type;

	if (skip_vlans(&l3, end, &type) != REASON_OK)
		return 0;
	__u32 at, length;

	*is_ipv6 = type != bpf_htons(ETH_P_IP);
	if (*is_ipv6) {
		struct ipv6 *ip = l3;

		if ((void *)(ip + 1) > end)
			return 0;

		length = sizeof(*ip) + bpf_ntohs(ip->payload_length);
		__u32 skipped = skip_extensions(ctx, l3 - data, length, ip->next);

		if (SKIPPED_REASON(skipped) != REASON_OK || SKIPPED_TO(skipped) != PROTOCOL_ICMPV6)
			return 0; /* rule: icmp.wrong_family6 */
		at = SKIPPED_AT(skipped);
	} else {
		struct ipv4 *ip = l3;

		if ((void *)(ip + 1) > end || ip->protocol != PROTOCOL_ICMP)
			return 0; /* rule: icmp.wrong_family4 */
		at = (ip->version_ihl & 15) * 4;
		length = bpf_ntohs(ip->total_length);
	}
	struct icmp *icmp = l3 + at;

	if ((void *)(icmp + 1) > end || at + sizeof(*icmp) > length)
		return 0; /* rule: icmp.truncated */
	if (!(*is_ipv6 ? is_error_ipv6(icmp->type) : is_error_ipv4(icmp->type)))
		return 0; /* rule: icmp.no_error */
	at += sizeof(*icmp);
	__u32 before = l3 - data;
	__u32 until = before + length;

	return (before + at) | (until < 0xffff ? until : 0xffff) << 16; /* rule: icmp.error */
}

/* Of an ICMP error: where the transport header stands that it quotes, from the frame's first byte on, and
 * the end of what is quoted << 16; 0 if there is none. `p`, if it is not NULL, becomes a packet of the
 * quoted one's flow, the other way. */
static __always_inline __u32 read_quote(struct xdp_md *ctx, struct packet *p)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	int is_ipv6;
	__u32 found = find_quote(ctx, &is_ipv6);
	__u32 at = found & 0x3fff, until = found >> 16;
	__u64 src[2], dst[2];
	__u8 next;

	if (!found)
		return 0;
	if (is_ipv6) {
		struct ipv6 *ip = data + at;

		if ((void *)(ip + 1) > end || (ip->version_flow & 0xf0) != 0x60)
			return 0; /* rule: icmp.quote6 */
		src[0] = ip->src[0];
		src[1] = ip->src[1];
		dst[0] = ip->dst[0];
		dst[1] = ip->dst[1];
		next = ip->next;
		at += sizeof(*ip);
		if (next == PROTOCOL_FRAGMENT) {
			struct extension *fragment = data + at;

			if ((void *)(fragment + 1) > end || fragment->fragment & bpf_htons(0xfff8))
				return 0; /* rule: icmp.quote_fragment6 */
			next = fragment->next; /* rule: icmp.quote_first_fragment6 */
			at += sizeof(*fragment);
		}
	} else {
		struct ipv4 *ip = data + at;

		if ((void *)(ip + 1) > end || ip->version_ihl >> 4 != 4 ||
		    ip->fragment & bpf_htons(0x1fff))
			return 0; /* rule: icmp.quote4 */
		__u32 header = (ip->version_ihl & 15) * 4;

		if (header < sizeof(*ip))
			return 0; /* rule: icmp.quote_header_length */
		src[0] = dst[0] = 0;
		src[1] = (__u64)ip->src << 32 | IPV4_MAPPED;
		dst[1] = (__u64)ip->dst << 32 | IPV4_MAPPED;
		next = ip->protocol;
		at += header;
	}
	__u32 *ports = data + (at & 0x3fff);

	if ((next != PROTOCOL_TCP && next != PROTOCOL_UDP && next != PROTOCOL_SCTP) ||
	    at + QUOTED_BYTES > until || (void *)ports + QUOTED_BYTES > end)
		return 0; /* rule: icmp.quote_short */
	if (p) {
		/* An error about somebody else's packets is nobody's here. */
		if (src[0] != p->dst[0] || src[1] != p->dst[1])
			return 0; /* rule: icmp.foreign */
		p->src[0] = dst[0];
		p->src[1] = dst[1];
		p->ports = *ports >> 16 | *ports << 16;
		p->protocol = next;
		p->tcp_flags = TCP_ACK;
		p->quoted = QUOTED; /* rule: icmp.quoted */
	}
	return at | until << 16;
}

/* Whether the frame of a packet that was parsed is an ICMP error about a packet from its destination; the
 * packet is then one of the quoted one's flow, the other way. Global, so that the verifier goes through it
 * once. */
__noinline int quoted(struct xdp_md *ctx, struct packet *p)
{
	return p && read_quote(ctx, p) != 0;
}

/* As find_timestamps, of a quoted TCP packet, with TSval in place of TSecr. What is not quoted whole has
 * none. */
__noinline __u64 quoted_timestamps(struct xdp_md *ctx)
{
	__u32 found = read_quote(ctx, NULL);
	__u32 l4 = found & 0xffff;
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct tcp *tcp = data + (l4 & 0x3fff);

	if (!found || (void *)(tcp + 1) > end || l4 + (tcp->offset >> 4) * 4 > found >> 16)
		return 0;
	__u64 stamps = timestamps_of(ctx, tcp);
	struct timestamps *option = data + (stamps >> 32 & 0x3fff);

	if (!stamps || (void *)(option + 1) > end)
		return 0;
	return (stamps & ~0xffffffffULL) | bpf_ntohl(option->value);
}

#endif
