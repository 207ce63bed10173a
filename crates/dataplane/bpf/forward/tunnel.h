/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* The packet as it is, in another one to the backend: IP in IP, GRE, FOU, GUE; each family in each. The
 * twin of crates/plane/src/forward/tunnel.rs. */
#ifndef WEIR_FORWARD_TUNNEL_H
#define WEIR_FORWARD_TUNNEL_H

#include "l2.h"

#define PROTOCOL_IPIP 4
#define PROTOCOL_IPV6 41
#define PROTOCOL_GRE 47
#define DONT_FRAGMENT 0x4000
#define GRE_HEADER 4
#define UDP_HEADER 8
#define GUE_HEADER 4
/* Of the dynamic ports, RFC 6335; their last bits are the flow's. */
#define SOURCE_PORTS 0xc000
#define SOURCE_PORT 0x3fff
#define FLOW_LABEL 0xfffff

/* What the outer headers take from the frame, in a word: a function of its own finds it, so that the
 * registers of both do with less of the stack, of which little is left. */
#define INSIDE_REASON 0xff       /* enum reason; with one nothing else counts */
#define INSIDE_BEFORE(word) ((word) >> 8 & 31) /* bytes in front of the packet */
#define INSIDE_IPV6 (1 << 13)
#define INSIDE_KEPT(word) (((word) >> 14 & 15) << 20) /* TAG_KEPT of its tag */
#define INSIDE_TOS(word) ((word) >> 18 & 0xff)
#define INSIDE_HASH(word) ((__u32)((word) >> 32)) /* of the flow */

/* Spreads flows over queues, for which no secret is needed: crates/wire/src/spread.rs. */
static __always_inline __u32 flow_hash(__u64 high, __u64 low, __u64 dst, __u32 ports)
{
	__u64 hash = (high ^ low * SPREAD_LOW ^ dst ^ ports) * SPREAD_FIRST;

	return (hash ^ hash >> 32) * SPREAD_SECOND >> 32;
}

/* Whether anything outside varies with the flow; else nobody asks for its hash. */
static __always_inline int varies(const struct backend *backend)
{
	return backend->tunnel > TUNNEL_GRE || backend->flags & BACKEND_IPV6 || backend->spread;
}

/* Looks at the packet, and takes one from its TTL as a router does: whatever loop it may be in ends. hashed: whether
 * the flow's hash is asked for. */
static __always_inline __u64 look_inside_ipv6(struct ipv6 *ip, void *end, int hashed)
{
	__u32 ports = 0;
	__u64 hash = 0;

	if ((void *)(ip + 1) > end)
		return REASON_TRUNCATED_IPV6; /* rule: tunnel.truncated6 */
	if (ip->hop_limit <= 1)
		return REASON_TTL_EXCEEDED; /* rule: tunnel.ttl6 */
	if (hashed) {
		if ((ip->next == PROTOCOL_TCP || ip->next == PROTOCOL_UDP ||
		     ip->next == PROTOCOL_SCTP) &&
		    (void *)(ip + 1) + sizeof(ports) <= end)
			ports = *(__u32 *)(ip + 1); /* rule: tunnel.ports6 */
		hash = flow_hash(ip->src[0], ip->src[1], ip->dst[1], ports);
	}
	__u64 tos = bpf_ntohl(ip->version_flow) >> 20 & 0xff;

	ip->hop_limit--; /* rule: tunnel.in6 */
	return hash << 32 | tos << 18 | INSIDE_IPV6;
}

static __always_inline __u64 look_inside_ipv4(struct ipv4 *ip, void *end, int hashed)
{
	__u32 ports = 0;
	__u64 hash = 0;

	if ((void *)(ip + 1) > end)
		return REASON_TRUNCATED_IPV4; /* rule: tunnel.truncated4 */
	if (ip->ttl <= 1)
		return REASON_TTL_EXCEEDED; /* rule: tunnel.ttl4 */
	if (hashed) {
		__u32 *l4 = (void *)ip + (ip->version_ihl & 15) * 4;

		/* All fragments of a packet go one way. */
		if ((void *)(l4 + 1) <= end && !(ip->fragment & bpf_htons(0x3fff)))
			ports = *l4; /* rule: tunnel.ports4 */
		hash = flow_hash(0, ip->src, ip->dst, ports);
	}
	/* RFC 1624: the word of TTL and protocol is less by 0x0100, so the sum is more. */
	__u32 check = ip->check + bpf_htons(0x0100);

	ip->check = check + (check >= 0xffff);
	ip->ttl--; /* rule: tunnel.in4 */
	return hash << 32 | (__u64)ip->tos << 18;
}

static __noinline __u64 look_inside(struct xdp_md *ctx, int hashed)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = data;
	void *l3 = eth + 1;
	__u64 kept = 0;

	if (l3 > end)
		return REASON_TRUNCATED_ETHERNET;
	__be16 type = eth->type;

	if (unlikely(is_vlan(type))) {
		if (data + sizeof(*eth) + TAG <= end)
			kept = (*(__u32 *)(data + 12) & TAG_KEPT) >> 20; /* rule: tunnel.untag */
		enum reason reason = skip_vlans(&l3, end, &type);

		if (reason != REASON_OK)
			return reason;
	}
	__u64 inside = type == bpf_htons(ETH_P_IPV6) ? look_inside_ipv6(l3, end, hashed) :
						       look_inside_ipv4(l3, end, hashed);
	__u64 before = l3 - data;

	/* The verifier takes no shorter arithmetic on pointers. */
	asm volatile("" : "+r"(before));
	return inside | before << 8 | kept << 14;
}

/* Bytes between the outer IP header and the packet: each kind has four more than the one before it. */
static __always_inline __u32 tunnel_header(__u32 kind)
{
	_Static_assert(TUNNEL_IPIP == 1 && TUNNEL_GRE == 2 && TUNNEL_FOU == 3 && TUNNEL_GUE == 4 && GRE_HEADER == 4 &&
			       UDP_HEADER == 8 && GUE_HEADER == 4,
		       "another order of the kinds");
	return (kind - TUNNEL_IPIP) * 4 & 15;
}

/* DF is set, whether or not it is inside (RFC 2003 section 3.1): nobody is to put fragments together. So
 * the identification may be anything (RFC 6864), and is 0. DSCP and ECN are those inside (RFC 2983, and
 * RFC 6040 in normal mode). */
static __always_inline void put_ipv4(struct ipv4 *ip, const struct backend *backend,
				     __u64 inside, __u32 length, __u32 protocol)
{
	__u32 *words = (__u32 *)ip;
	__u32 source = *(__u32 *)(backend->source + 12);

	words[0] = bpf_htonl(0x45000000 | (__u32)INSIDE_TOS(inside) << 16 | length);
	words[1] = bpf_htonl(DONT_FRAGMENT);
	words[2] = bpf_htonl((__u32)FIRST_TTL << 24 | protocol << 16);
	words[3] = source;
	if (backend->spread)
		words[3] |= bpf_htonl(INSIDE_HASH(inside) & ((1U << (backend->spread & 31)) - 1));
	words[4] = *(__u32 *)(backend->address + 12);
	__u64 sum = (__u64)words[0] + words[1] + words[2] + words[3] + words[4];

	/* Of five words: 2^32 + 3 at most, then less than 2^17, then 16 bits. */
	sum = (sum >> 32) + (sum & 0xffffffff);
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	ip->check = ~sum; /* rule: tunnel.outer4 */
}

/* The flow label is the flow's (RFC 6438). */
static __always_inline void put_ipv6(struct ipv6 *ip, const struct backend *backend,
				     __u64 inside, __u32 payload, __u32 protocol)
{
	ip->version_flow = bpf_htonl(0x60000000 | (__u32)INSIDE_TOS(inside) << 20 |
				     (INSIDE_HASH(inside) & FLOW_LABEL));
	ip->payload_length = bpf_htons(payload);
	ip->next = protocol;
	ip->hop_limit = FIRST_TTL; /* rule: tunnel.outer6 */
	ip->src[0] = *(__u64 *)backend->source;
	ip->src[1] = *(__u64 *)(backend->source + 8);
	ip->dst[0] = *(__u64 *)backend->address;
	ip->dst[1] = *(__u64 *)(backend->address + 8);
}

/* What stands between the two IP headers. There is no checksum over UDP, in IPv6 either: RFC 6935 lets
 * tunnels do without, as the packet inside has its own. */
static __always_inline void put_header(void *at, const struct backend *backend, __u64 inside,
				       __u32 length)
{
	__u32 kind = backend->tunnel;
	int ipv6 = inside & INSIDE_IPV6;

	if (kind == TUNNEL_GRE) {
		*(__u32 *)at = (__u32)(ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP)) << 16;
		return;
	}
	struct udp *udp = at;

	udp->ports = bpf_htons(SOURCE_PORTS | (INSIDE_HASH(inside) & SOURCE_PORT)) |
		     (__u32)backend->port << 16;
	udp->length = bpf_htons(length);
	udp->check = 0; /* rule: tunnel.udp */
	if (kind == TUNNEL_GUE)
		*(__u32 *)(udp + 1) = (ipv6 ? PROTOCOL_IPV6 : PROTOCOL_IPIP) << 8; /* rule: tunnel.gue */
}

static __always_inline __u32 outer_protocol(__u32 kind, __u64 inside)
{
	if (kind == TUNNEL_GRE)
		return PROTOCOL_GRE; /* rule: tunnel.gre */
	if (kind != TUNNEL_IPIP)
		return PROTOCOL_UDP;
	return inside & INSIDE_IPV6 ? PROTOCOL_IPV6 : PROTOCOL_IPIP; /* rule: tunnel.ipip */
}

/* Writes all headers in front of the packet; there is room for them. */
static __always_inline enum reason put_outer(struct xdp_md *ctx, const struct lane *lane,
					     const struct backend *backend, __u64 inside,
					     __u32 bytes)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u32 header = tunnel_header(backend->tunnel);
	__u32 protocol = outer_protocol(backend->tunnel, inside);
	void *at = data + sizeof(struct ethernet);
	__be16 *type = data + 12;

	/* The shortest that there can be. */
	if (data + sizeof(struct ethernet) + TAG + sizeof(struct ipv4) > end)
		return REASON_NO_HEADROOM; /* rule: tunnel.no_room */
	readdress(data, lane);
	if (lane->vlan) { /* rule: tunnel.tag */
		*(__u32 *)(data + 12) = lane->vlan | INSIDE_KEPT(inside);
		type = data + 16;
		at += TAG;
	}
	if (backend->flags & BACKEND_IPV6) {
		struct ipv6 *ip = at;

		at += sizeof(*ip);
		if (at > end)
			return REASON_NO_HEADROOM;
		*type = bpf_htons(ETH_P_IPV6);
		put_ipv6(ip, backend, inside, bytes + header, protocol);
	} else {
		struct ipv4 *ip = at;

		at += sizeof(*ip);
		*type = bpf_htons(ETH_P_IP);
		put_ipv4(ip, backend, inside, sizeof(*ip) + bytes + header, protocol);
	}
	if (header) {
		if (at + UDP_HEADER + GUE_HEADER > end)
			return REASON_NO_HEADROOM;
		put_header(at, backend, inside, bytes + header);
	}
	return REASON_OK;
}

/* What encapsulate answers: a reason, and with REASON_TOO_BIG the largest packet that would fit. */
#define REFUSED_REASON 0xff
#define REFUSED_MTU(word) ((word) >> 8)

/* Bytes in front of the packet. */
static __always_inline __u32 outer_bytes(const struct backend *backend)
{
	return (backend->flags & BACKEND_IPV6 ? sizeof(struct ipv6) : sizeof(struct ipv4)) +
	       tunnel_header(backend->tunnel);
}

/* Room in front of the frame. */
static __always_inline enum reason make_room(struct xdp_md *ctx, int more)
{
	if (bpf_xdp_adjust_head(ctx, -more))
		return REASON_NO_HEADROOM;
	return REASON_OK; /* rule: tunnel.fits */
}

/* Leaves the packet in the backend's tunnel, with the lane's addresses. bytes: of the packet. */
static INLINE_UNTRACED __u32 encapsulate(struct xdp_md *ctx, struct lane *lane, __u32 id,
					       __u32 bytes)
{
	const struct backend *backend = AT(backends, id, backend_count);

	if (!backend->tunnel || backend->tunnel >= TUNNEL_NAT) {
		/* It had one until just now. */
		lane->resolved = 0; /* rule: tunnel.was_plain */
		return REASON_NO_NEXT_HOP;
	}
	if (!(backend->flags & BACKEND_HAS_SOURCE))
		return REASON_NO_TUNNEL_SOURCE; /* rule: tunnel.no_source */
	__u64 inside = look_inside(ctx, varies(backend));

	if (inside & INSIDE_REASON)
		return inside & INSIDE_REASON; /* rule: tunnel.refused */
	__u32 outer = outer_bytes(backend);
	__u32 most = lane->mtu && lane->mtu < 0xffff ? lane->mtu : 0xffff;

	if (bytes + outer > most)
		return REASON_TOO_BIG | (most > outer ? most - outer : 0) << 8; /* rule: tunnel.too_big */
	int more = (lane->vlan ? TAG : 0) + sizeof(struct ethernet) + outer - INSIDE_BEFORE(inside);

	enum reason reason = make_room(ctx, more);

	return reason == REASON_OK ? put_outer(ctx, lane, backend, inside, bytes) : reason;
}

/* The same of the frames that nearly all are, IPv4 without a tag, through a tunnel over IPv4 to a link without tags:
 * of a third of the instructions, as nothing is asked twice. The verdict, or NOT_PLAIN, and the frame is as it was.
 * Global, so that the verifier goes through it once, and it has all registers to itself. */
__noinline int forward_tunnel(struct xdp_md *ctx, struct lane *lane, __u32 id, __u32 bytes, __u32 flows)
{
	const struct backend *backend = AT(backends, id, backend_count);
	struct ethernet *eth = (void *)(long)ctx->data;
	struct ipv4 *ip = (void *)(eth + 1);
	void *end = (void *)(long)ctx->data_end;
	__u32 kind = backend->tunnel;

	if (!lane || (void *)(ip + 1) > end ||
	    kind - TUNNEL_IPIP > TUNNEL_GUE - TUNNEL_IPIP ||
	    (backend->flags & (BACKEND_HAS_SOURCE | BACKEND_IPV6)) != BACKEND_HAS_SOURCE)
		return NOT_PLAIN;
	__u32 header = tunnel_header(kind), outer = sizeof(*ip) + header, length = bytes + outer;

	/* 0 is no limit. Whoever is to be told of either is told by forward_beyond. */
	if (length > 0xffff || length - 1 > lane->mtu - 1 || ip->ttl <= 1)
		return NOT_PLAIN;
	__u64 inside = look_inside_ipv4(ip, end, varies(backend));

	if (make_room(ctx, outer) != REASON_OK)
		return leave(REASON_NO_HEADROOM, XDP_DROP); /* rule: tunnel.plain_no_headroom */
	eth = (void *)(long)ctx->data;
	ip = (void *)(eth + 1);
	end = (void *)(long)ctx->data_end;
	if ((void *)(ip + 1) + UDP_HEADER + GUE_HEADER > end)
		return leave(REASON_NO_HEADROOM, XDP_DROP); /* rule: tunnel.plain_no_room */
	readdress(eth, lane);
	eth->type = bpf_htons(ETH_P_IP);
	put_ipv4(ip, backend, inside, length, outer_protocol(kind, inside));
	if (header)
		put_header(ip + 1, backend, inside, bytes + header);
	count(lane, bytes, flows);
	return send(ctx, lane); /* rule: tunnel.plain */
}

#endif
