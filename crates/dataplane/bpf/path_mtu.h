/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Routers between here and a backend say what their next link takes, to where the tunnel begins. The twin of
 * weir_wire::icmp::too_big and weir_plane::Paths. */
#ifndef WEIR_PATH_MTU_H
#define WEIR_PATH_MTU_H

#include "forward/tell.h"

/* Whether a protocol is a tunnel's. */
static __always_inline int is_outer(__u8 protocol)
{
	return protocol == PROTOCOL_IPIP || protocol == PROTOCOL_IPV6 ||
	       protocol == PROTOCOL_GRE || protocol == PROTOCOL_UDP;
}

/* Of an ICMP error that stands there: what it says of the MTU, and the ends of the packet that it quotes;
 * 0 if it says nothing. */
static __always_inline __u32 read_mtu(struct xdp_md *ctx, __u64 *src, __u64 *dst)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	int is_ipv6;
	__u32 found = find_quote(ctx, &is_ipv6);
	__u32 at = found & 0x3fff, until = found >> 16;

	if (at < sizeof(struct icmp))
		return 0; /* rule: path.no_error */
	void *message = data + ((at - sizeof(struct icmp)) & 0x3fff);

	/* One pointer, of which the verifier knows how much is behind it. */
	asm volatile("" : "+r"(message));
	struct icmp *icmp = message;

	if ((void *)(icmp + 1) > end)
		return 0; /* rule: path.truncated */
	__u32 mtu = bpf_ntohl(icmp->rest);

	if (is_ipv6) {
		struct ipv6 *ip = (void *)(icmp + 1);

		if (icmp->type != ICMPV6_TOO_BIG || at + sizeof(*ip) > until ||
		    (void *)(ip + 1) > end || (ip->version_flow & 0xf0) != 0x60 || !is_outer(ip->next))
			return 0; /* rule: path.other6 */
		src[0] = ip->src[0];
		src[1] = ip->src[1];
		dst[0] = ip->dst[0];
		dst[1] = ip->dst[1];
		return mtu < LEAST_MTU_IPV6 ? LEAST_MTU_IPV6 : mtu; /* rule: path.ipv6 */
	}
	struct ipv4 *ip = (void *)(icmp + 1);

	if (icmp->type != ICMP_UNREACHABLE || icmp->code != ICMP_NEEDS_FRAGMENTS ||
	    at + sizeof(*ip) > until || (void *)(ip + 1) > end || ip->version_ihl >> 4 != 4 ||
	    !is_outer(ip->protocol))
		return 0; /* rule: path.other4 */
	src[0] = dst[0] = 0;
	src[1] = (__u64)ip->src << 32 | IPV4_MAPPED;
	dst[1] = (__u64)ip->dst << 32 | IPV4_MAPPED;
	mtu &= 0xffff;
	/* Routers of before RFC 1191 do not say it. */
	if (!mtu)
		return 0; /* rule: path.unsaid */
	return mtu < LEAST_PATH_IPV4 ? LEAST_PATH_IPV4 : mtu; /* rule: path.ipv4 */
}

/* Whether the frame of a packet that was parsed says what a tunnel's way takes; that is noted. It is only
 * ever lowered, until it is too old (RFC 1191 section 6.3, RFC 8201 section 4). Global, so that the verifier
 * goes through it once. */
__noinline int learn_mtu(struct xdp_md *ctx, struct packet *p)
{
	__u64 src[2] = {}, dst[2] = {};

	if (!control->tunnels)
		return 0; /* rule: path.no_tunnel */
	__u32 mtu = read_mtu(ctx, src, dst);

	/* One about somebody else's packets is nobody's here. */
	if (!mtu || !p || src[0] != p->dst[0] || src[1] != p->dst[1])
		return 0; /* rule: path.foreign */
	struct path path = { .since = bpf_ktime_get_ns(), .mtu = mtu };
	struct path *known = bpf_map_lookup_elem(&paths, dst);

	if (known && known->mtu < mtu && path.since - known->since < PATH_NANOSECONDS)
		return 1; /* rule: path.known */
	bpf_map_update_elem(&paths, dst, &path, BPF_ANY);
	return 1; /* rule: path.learned */
}

#endif
