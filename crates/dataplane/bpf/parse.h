/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* From frame to flow. The twin of crates/wire/src/parse.rs: same checks in the same order. */
#ifndef WEIR_PARSE_H
#define WEIR_PARSE_H

#include "abi.h"
#include <linux/if_ether.h>

/* What a program is given; another one than the balancer's may say so before. */
#ifndef WEIR_CONTEXT
#define WEIR_CONTEXT struct xdp_md
#endif

/* Frames may come in several buffers (Linux 5.18), as jumbo frames do. Set before loading. */
const volatile __u32 has_frags = 0;

/* As <linux/if_ether.h> has it, but two-byte aligned as frames are, so that the EtherType is one
 * load. */
struct ethernet {
	__u8 destination[6];
	__u8 source[6];
	__be16 type;
} __attribute__((aligned(2)));

struct vlan_tag {
	__be16 tci;
	__be16 next;
};

/* Addresses are pairs of little-endian words, IPv4 as ::ffff:a.b.c.d; ports as on the wire. */
struct packet {
	__u64 src[2];
	__u64 dst[2];
	__u32 ports;
	__u32 ip_length;
	__u8 protocol;
	__u8 tcp_flags; /* of SCTP what stands for them (sctp.h) */
	__u8 has_dst;
	__u8 quoted; /* QUOTED if an ICMP error quotes it (icmp.h) */
	__u32 fragment; /* its identification, if it is fragmented */
	__u32 fragmented; /* 0: it is not; else what the identification is of: the protocol, 44 in IPv6 */
};

struct ipv4 {
	__u8 version_ihl;
	__u8 tos;
	__be16 total_length;
	__be16 id;
	__be16 fragment;
	__u8 ttl;
	__u8 protocol;
	__be16 check;
	__u32 src;
	__u32 dst;
};

struct ipv6 {
	__u32 version_flow;
	__be16 payload_length;
	__u8 next;
	__u8 hop_limit;
	__u64 src[2];
	__u64 dst[2];
} __attribute__((packed, aligned(4)));

struct extension {
	__u8 next;
	__u8 length;
	__be16 fragment;
	__u32 rest;
};

struct tcp {
	__u32 ports;
	__u32 seq;
	__u32 ack;
	__u8 offset;
	__u8 flags;
	__be16 window;
	__be16 check;
	__be16 urgent;
};

struct udp {
	__u32 ports;
	__be16 length;
	__be16 check;
};

/* left: bytes from l4 to the end of the IP packet. */
static __always_inline enum reason parse_l4(void *l4, __u32 left, void *end, struct packet *p)
{
	if (p->protocol == PROTOCOL_TCP) {
		struct tcp *tcp = l4;

		if (left < sizeof(*tcp) || (void *)(tcp + 1) > end)
			return REASON_TRUNCATED_TCP; /* rule: tcp.truncated */
		__u32 header = (tcp->offset >> 4) * 4;
		if (header < sizeof(*tcp) || header > left)
			return REASON_BAD_TCP_OFFSET; /* rule: tcp.offset */
		p->ports = tcp->ports;
		p->tcp_flags = tcp->flags;
		return REASON_OK; /* rule: tcp.good */
	}
	if (p->protocol == PROTOCOL_UDP) {
		struct udp *udp = l4;

		if (left < sizeof(*udp) || (void *)(udp + 1) > end)
			return REASON_TRUNCATED_UDP; /* rule: udp.truncated */
		__u32 length = bpf_ntohs(udp->length);
		if (length < sizeof(*udp) || length > left)
			return REASON_BAD_UDP_LENGTH; /* rule: udp.length */
		p->ports = udp->ports;
		p->tcp_flags = 0;
		return REASON_OK; /* rule: udp.good */
	}
	return REASON_OTHER_PROTOCOL; /* rule: protocol.other */
}

/* What nearly every packet is: TCP without IP options, not a fragment. Fixed offsets need fewer
 * checks. Returns whether it was; if not, the general parser finds out what it is. */
static __always_inline int parse_plain_tcp(void *l3, void *end, struct packet *p)
{
	struct ipv4 *ip = l3;
	struct tcp *tcp = (void *)(ip + 1);

	if ((void *)(tcp + 1) > end || ip->version_ihl != 0x45 || ip->protocol != PROTOCOL_TCP ||
	    ip->fragment & bpf_htons(0x3fff))
		return 0;
	__u32 total = bpf_ntohs(ip->total_length);
	__u32 header = (tcp->offset >> 4) * 4;
	if (total > (__u32)(end - l3) || header < sizeof(*tcp) || sizeof(*ip) + header > total)
		return 0;
	p->src[0] = 0;
	p->src[1] = (__u64)ip->src << 32 | IPV4_MAPPED;
	p->dst[0] = 0;
	p->dst[1] = (__u64)ip->dst << 32 | IPV4_MAPPED;
	p->ip_length = total;
	p->protocol = PROTOCOL_TCP;
	p->ports = tcp->ports;
	p->tcp_flags = tcp->flags;
	return 1;
}

/* bytes: of the frame from l3 on; more than there are up to `end` if it comes in several buffers. All
 * headers are in the first. */
static __always_inline enum reason parse_ipv4(void *l3, void *end, __u32 bytes, struct packet *p)
{
	struct ipv4 *ip = l3;

	if ((void *)(ip + 1) > end)
		return REASON_TRUNCATED_IPV4; /* rule: ipv4.truncated */
	if (ip->version_ihl >> 4 != 4)
		return REASON_BAD_IPV4_VERSION; /* rule: ipv4.version */
	__u32 header = (ip->version_ihl & 15) * 4;
	if (header < sizeof(*ip))
		return REASON_BAD_IPV4_HEADER_LENGTH; /* rule: ipv4.header_length */
	p->src[0] = 0;
	p->src[1] = (__u64)ip->src << 32 | IPV4_MAPPED;
	p->dst[0] = 0;
	p->dst[1] = (__u64)ip->dst << 32 | IPV4_MAPPED;
	p->has_dst = 1;
	if (l3 + header > end)
		return REASON_TRUNCATED_IPV4; /* rule: ipv4.truncated_options */
	__u32 total = bpf_ntohs(ip->total_length);
	if (total < header || total > bytes)
		return REASON_BAD_IPV4_LENGTH; /* rule: ipv4.length */
	p->ip_length = total;
	if (unlikely(ip->fragment & bpf_htons(0x3fff)))
		return ip->fragment & bpf_htons(0x1fff) ? REASON_LATER_FRAGMENT : REASON_FIRST_FRAGMENT; /* rule: ipv4.fragment */
	p->protocol = ip->protocol;
	return parse_l4(l3 + header, total - header, end, p); /* rule: ipv4.options */
}

/* What skip_extensions answers. */
#define SKIPPED_AT(skipped) ((skipped) & 0x3fff)
#define SKIPPED_TO(skipped) ((__u8)((skipped) >> 16))
#define SKIPPED_REASON(skipped) ((enum reason)((skipped) >> 24))

/* Walks the extension headers of the IPv6 packet at an offset of the frame, of which they are `length` bytes
 * at most, its header included, from the one of the kind `next` on. Returns where the upper-layer header
 * stands in the packet, its protocol << 16, and a reason << 24, which is REASON_OK if there is one. Of a
 * fragment: where the fragment header stands, what follows it, and the reason. Global, as few packets have
 * any, and the verifier then goes through it once. */
__noinline __u32 skip_extensions(WEIR_CONTEXT *ctx, __u32 before, __u32 length, __u32 next)
{
	void *l3 = (void *)(long)ctx->data + (before & 0xff);
	void *end = (void *)(long)ctx->data_end;
	__u32 at = sizeof(struct ipv6);
	__u8 kind = next;

	/* Linux 6.1 takes no loop that begins in the middle, as the compiler makes one of this. */
#pragma unroll
	for (int i = 0; i <= MAX_IPV6_EXTENSIONS; i++) {
		int plain = kind == 0 || kind == 43 || kind == 60;
		__u32 least = kind == 44 ? 8 : 2;

		if (!plain && kind != 44 && kind != 51)
			return at | (__u32)kind << 16; /* rule: ext.end */
		if (i == MAX_IPV6_EXTENSIONS)
			break;
		__u32 offset = at & 0x3fff;
		if (offset + least > length || l3 + offset + 2 > end)
			return REASON_TRUNCATED_IPV6_EXTENSION << 24; /* rule: ext.truncated_packet */
		struct extension *ext = l3 + offset;
		__u32 size = kind == 51 ? (ext->length + 2) * 4 : (ext->length + 1) * 8;
		if (kind == 44) {
			if (l3 + offset + 8 > end)
				return REASON_TRUNCATED_IPV6_EXTENSION << 24; /* rule: ext.truncated_frame */
			if (ext->fragment & bpf_htons(0xfff8))
				return offset | (__u32)ext->next << 16 | REASON_LATER_FRAGMENT << 24; /* rule: ext.later_fragment */
			if (ext->fragment & bpf_htons(1))
				return offset | (__u32)ext->next << 16 | REASON_FIRST_FRAGMENT << 24; /* rule: ext.first_fragment */
			size = 8; /* rule: ext.atomic_fragment */
		}
		if (offset + size > length)
			return REASON_TRUNCATED_IPV6_EXTENSION << 24; /* rule: ext.truncated_size */
		kind = ext->next; /* rule: ext.plain */
		at = offset + size;
	}
	return REASON_TOO_MANY_IPV6_EXTENSIONS << 24; /* rule: ext.too_many */
}

/* RFC 6890: ::ffff:0:0/96 is not for the wire. It would pass for an IPv4 flow. */
static __always_inline int is_mapped(const __u64 *address)
{
	return address[0] == 0 && (__u32)address[1] == IPV4_MAPPED;
}

/* ctx: NULL where there are no extension headers. */
static __always_inline enum reason parse_ipv6(WEIR_CONTEXT *ctx, void *l3, void *end, __u32 bytes,
					      struct packet *p)
{
	struct ipv6 *ip = l3;

	if ((void *)(ip + 1) > end)
		return REASON_TRUNCATED_IPV6; /* rule: ipv6.truncated */
	if ((ip->version_flow & 0xf0) != 0x60)
		return REASON_BAD_IPV6_VERSION; /* rule: ipv6.version */
	if (is_mapped(ip->src) || is_mapped(ip->dst))
		return REASON_MAPPED_ADDRESS; /* rule: ipv6.mapped */
	p->src[0] = ip->src[0];
	p->src[1] = ip->src[1];
	p->dst[0] = ip->dst[0];
	p->dst[1] = ip->dst[1];
	p->has_dst = 1;
	__u32 length = sizeof(*ip) + bpf_ntohs(ip->payload_length);
	if (length > bytes)
		return REASON_BAD_IPV6_LENGTH; /* rule: ipv6.length */
	p->ip_length = length;
	__u32 at = sizeof(*ip);
	__u8 next = ip->next;
	if (unlikely(next != PROTOCOL_TCP && next != PROTOCOL_UDP)) {
		if (!ctx)
			return REASON_OTHER_PROTOCOL;
		__u32 skipped = skip_extensions(ctx, l3 - (void *)(long)ctx->data, length, next);

		if (SKIPPED_REASON(skipped) != REASON_OK)
			return SKIPPED_REASON(skipped); /* rule: ext.refused */
		at = SKIPPED_AT(skipped);
		next = SKIPPED_TO(skipped);
	}
	p->protocol = next;
	return parse_l4(l3 + at, length - at, end, p); /* rule: ipv6.walked */
}

/* Walks the VLAN tags. Returns REASON_OK with *l3 behind the EtherType and *type that type. */
static __always_inline enum reason skip_vlans(void **l3, void *end, __be16 *type)
{
#pragma unroll
	for (int i = 0; i <= MAX_VLANS; i++) {
		struct vlan_tag *tag = *l3;

		if (*type != bpf_htons(ETH_P_8021Q) && *type != bpf_htons(ETH_P_8021AD))
			return REASON_OK;
		if (i == MAX_VLANS)
			return REASON_TOO_MANY_VLANS; /* rule: vlan.too_many */
		if ((void *)(tag + 1) > end)
			return REASON_TRUNCATED_VLAN; /* rule: vlan.truncated */
		*type = tag->next;
		*l3 = tag + 1; /* rule: vlan.skipped */
	}
	return REASON_OK;
}

#endif
