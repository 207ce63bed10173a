/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Full NAT: both ends of a packet are others, those of the backend and of a source of the balancer's on the way
 * there, those of the client and of the service on the way back. The twin of
 * crates/plane/src/forward/full_nat.rs. */
#ifndef WEIR_FORWARD_FULL_NAT_H
#define WEIR_FORWARD_FULL_NAT_H

#include "../fragment.h"
#include "mapping.h"
#include "nat.h"

/* One end after the other: few packets need both, and this is as much code as there is for one. The TTL is less
 * by one, but with NAT_KEEPS_TTL. */
static __always_inline int translate_both(struct xdp_md *ctx, const struct ends *ends, __u32 how)
{
	int reason = translate(ctx, &ends->target, how);

	return reason == REASON_OK ?
		       translate(ctx, &ends->source, NAT_SOURCE | NAT_KEEPS_TTL) : /* rule: full.both */
		       reason;
}

/* What flow the packet is of that is to be forwarded: one that was decided, so its lengths were checked. Of an
 * ICMP error the one that it quotes, the other way. Returns REASON_FIRST_FRAGMENT for any fragment, or the reason
 * why it goes nowhere. Global, so that the verifier goes through it once. */
__noinline int read_flow(struct xdp_md *ctx, struct packet *p)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = data;
	void *l3 = eth + 1;
	__u32 at;

	if (!p || l3 > end)
		return REASON_TRUNCATED_ETHERNET; /* rule: full.truncated */
	__be16 type = eth->type;

	if (skip_vlans(&l3, end, &type) != REASON_OK)
		return REASON_TRUNCATED_VLAN; /* rule: full.vlan */
	__u32 before = l3 - data;

	if (type == bpf_htons(ETH_P_IPV6)) {
		struct ipv6 *ip = l3;

		if ((void *)(ip + 1) > end)
			return REASON_TRUNCATED_IPV6; /* rule: full.truncated6 */
		p->src[0] = ip->src[0];
		p->src[1] = ip->src[1];
		p->dst[0] = ip->dst[0];
		p->dst[1] = ip->dst[1];
		p->protocol = ip->next;
		at = sizeof(*ip);
		if (ip->hop_limit <= 1)
			return REASON_TTL_EXCEEDED; /* rule: full.ttl6 */
		if (p->protocol != PROTOCOL_TCP && p->protocol != PROTOCOL_UDP) { /* rule: full.extension */
			__u32 length = sizeof(*ip) + bpf_ntohs(ip->payload_length);
			__u32 skipped = skip_extensions(ctx, before, length, p->protocol);

			if (SKIPPED_REASON(skipped) != REASON_OK)
				return REASON_FIRST_FRAGMENT; /* rule: full.fragment6 */
			at = SKIPPED_AT(skipped);
			p->protocol = SKIPPED_TO(skipped);
		}
	} else {
		struct ipv4 *ip = l3;

		if ((void *)(ip + 1) > end)
			return REASON_TRUNCATED_IPV4; /* rule: full.truncated4 */
		p->src[0] = p->dst[0] = 0;
		p->src[1] = (__u64)ip->src << 32 | IPV4_MAPPED;
		p->dst[1] = (__u64)ip->dst << 32 | IPV4_MAPPED;
		p->protocol = ip->protocol;
		at = (ip->version_ihl & 15) * 4;
		if (ip->ttl <= 1)
			return REASON_TTL_EXCEEDED; /* rule: full.ttl4 */
		if (ip->fragment & bpf_htons(0x3fff))
			return REASON_FIRST_FRAGMENT; /* rule: full.fragment4 */
	}
	if (is_icmp(p->protocol))
		return quoted(ctx, p) ? REASON_OK : REASON_UNKNOWN_QUOTE; /* rule: full.quoted */
	void *l4 = data + ((before + at) & 0x3fff);

	asm volatile("" : "+r"(l4));
	if (l4 + QUOTED_BYTES > end)
		return REASON_TRUNCATED_UDP; /* rule: full.short */
	p->ports = *(__u32 *)l4;
	if (p->protocol == PROTOCOL_TCP && l4 + sizeof(struct tcp) <= end)
		p->tcp_flags = ((struct tcp *)l4)->flags; /* rule: full.tcp */
	return REASON_OK;
}

/* Where fragments of the packet come from. Its number is with what is known of the first one. */
static __always_inline struct fragment *fragments_of(const struct packet *p)
{
	struct fragment_key key = fragment_key(p);

	return bpf_map_lookup_elem(&fragments, &key);
}

/* Whether a client can have sent the packet. What no single host has sent, as is_host_ipv4 and is_host_ipv6 say it
 * of headers, is answered to nobody; what the backend itself has sent, from the port that it is to come to, would be
 * answered by the backend to itself without end. From another port its host is a client like others. Global, so that
 * find_source keeps nothing of it on its stack. */
__noinline int has_client(const struct being_translated *now)
{
	if (!now)
		return 0;
	const struct packet *p = &now->packet;
	const __u64 *backend = now->ends.target.address;

	if (p->src[0] == p->dst[0] && p->src[1] == p->dst[1])
		return 0; /* rule: full.own_address */
	if (is_mapped(p->dst)) {
		__u8 first = p->src[1] >> 32;

		if (first == 0 || first == 127 || first >= 224)
			return 0; /* rule: full.no_host4 */
	} else if (p->src[0] == 0 || (__u8)p->src[0] == 0xff) {
		return 0; /* rule: full.no_host6 */
	}
	__u16 port = now->ends.target.port ? now->ends.target.port : p->ports >> 16;

	if (p->src[0] == backend[0] && p->src[1] == backend[1] && (__u16)p->ports == port)
		return 0; /* rule: full.itself */
	return 1; /* rule: full.client */
}

/* The source that a packet to this backend gets: its address, and its port if it has ports; `reason`: what
 * read_flow has said of it. Global, so that the verifier goes through it once. */
__noinline int find_source(struct being_translated *now, __u32 id, __u32 reason)
{
	if (!now)
		return REASON_NO_MAPPING;
	struct packet *p = &now->packet;
	__u32 origin;

	if (reason == REASON_LATER_FRAGMENT) {
		struct fragment *first = fragments_of(p);

		if (!first || !first->origin)
			return REASON_NO_MAPPING; /* rule: full.lost_fragment */
		origin = first->origin - 1; /* rule: full.later_fragment */
	} else if (reason == REASON_OK) {
		/* Of an error the client is the one that it is for. */
		if (!p->quoted && !has_client(now))
			return REASON_NO_CLIENT; /* rule: full.no_client */
		now->flow.src[0] = p->src[0];
		now->flow.src[1] = p->src[1];
		now->flow.dst[0] = p->dst[0];
		now->flow.dst[1] = p->dst[1];
		now->flow.ports = p->ports;
		now->flow.protocol = p->protocol;
		now->id = id;
		now->signs = p->quoted ? SIGN_QUOTED :
					 p->tcp_flags & (SIGN_FIN | SIGN_SYN | SIGN_RST);
		__u32 at = mapping_there(now);

		if (at == NO_MAPPING)
			return p->quoted ? REASON_NO_MAPPING : REASON_NO_PORT; /* rule: full.no_port */
		now->ends.source.port = now->port;
		origin = now->origin;
		if (p->fragmented) {
			struct fragment *first = fragments_of(p);

			if (first)
				first->origin = origin + 1; /* rule: full.first_fragment */
		}
	} else {
		return reason; /* rule: full.refused */
	}
	const struct origin *from = AT(origins, origin, ORIGINS);

	now->ends.source.address[0] = from->address[0];
	now->ends.source.address[1] = from->address[1];
	return REASON_OK;
}

/* Makes the packet one of the balancer's to the backend, and gives the frame the lane's addresses. Returns what
 * translate_to does. Global, so that the verifier goes through it once. */
__noinline int translate_full(struct xdp_md *ctx, struct lane *lane, __u32 id, __u32 bytes)
{
	__u32 key = 0;

	if (!lane)
		return REASON_NO_NEXT_HOP; /* rule: full.no_lane */
	__u32 most = lane->mtu && lane->mtu < 0xffff ? lane->mtu : 0xffff;

	if (bytes > most)
		return REASON_TOO_BIG | most << 8; /* rule: full.too_big */
	struct being_translated *now = bpf_map_lookup_elem(&being_translated, &key);

	if (!now)
		return REASON_NO_NEXT_HOP; /* rule: full.no_scratch */
	const struct backend *backend = AT(backends, id, backend_count);

	*now = (struct being_translated){
		.ends.target.address = { *(__u64 *)backend->address,
					 *(__u64 *)(backend->address + 8) },
		.ends.target.port = backend->port,
	};
	enum reason reason = read_flow(ctx, &now->packet);

	/* From here, as there is no stack for one function in the other. */
	if (reason == REASON_FIRST_FRAGMENT)
		reason = read_fragment(ctx, &now->packet); /* rule: full.fragment */
	reason = find_source(now, id, reason);
	if (reason == REASON_OK)
		reason = translate_both(ctx, &now->ends, 0);
	return reason == REASON_OK ? retag(ctx, lane) : reason; /* rule: full.there */
}

#endif
