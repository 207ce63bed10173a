/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Other addresses and ports in the packet itself, for backends that know nothing of the service: those of
 * the destination on the way there, those of the source on the way back. The twin of
 * crates/plane/src/forward/nat.rs. */
#ifndef WEIR_FORWARD_NAT_H
#define WEIR_FORWARD_NAT_H

#include "../icmp.h"
#include "l2.h"

int translate_full(struct xdp_md *ctx, struct lane *lane, __u32 id, __u32 bytes);

/* How a packet is translated. */
#define NAT_SOURCE 1 /* its source, and not its destination */
#define NAT_KEEPS_TTL 2 /* the kernel, which forwards it, takes one */

/* What translate_outside answers of an ICMP error. */
#define TRANSLATED_OUTSIDE (1ULL << 63)

/* RFC 1624, equation 3. change: of the words that it is a sum of, each with its complement before. They
 * are summed as they stand in memory. */
static __always_inline __u16 amended(__u16 check, __u64 change)
{
	__u64 sum = (__u16)~check + change;

	/* Of fewer than 2^16 words: less than 2^32 + 2^16, then than 2^17, then 16 bits. */
	sum = (sum >> 32) + (sum & 0xffffffff);
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	return ~sum;
}

/* In UDP, 0 says that there is none: such a one stays, and no other becomes one (RFC 768). */
static __always_inline __u16 amended_udp(__u16 check, __u64 change)
{
	if (!check)
		return 0; /* rule: nat.udp_unsummed */
	check = amended(check, change);
	return check ? check : 0xffff; /* rule: nat.udp_summed */
}

static __always_inline __u64 changed(__u16 before, __u16 after)
{
	return (__u32)(__u16)~before + after;
}

/* Puts other four bytes there; what a sum changes by. */
static __always_inline __u64 exchange(__u32 *at, __u32 new)
{
	__u64 change = (__u64)~*at + new;

	*at = new;
	return change;
}

static __always_inline __u64 exchange_ipv4(struct ipv4 *ip, int source,
					   const struct translation *to)
{
	return exchange(source ? &ip->src : &ip->dst, to->address[1] >> 32);
}

static __always_inline __u64 exchange_ipv6(struct ipv6 *ip, int source,
					   const struct translation *to)
{
	__u32 *at = source ? (__u32 *)ip->src : (__u32 *)ip->dst;

	return exchange(at, to->address[0]) + exchange(at + 1, to->address[0] >> 32) +
	       exchange(at + 2, to->address[1]) + exchange(at + 3, to->address[1] >> 32);
}

/* Both ports are read and written as one word: Linux 6.1 does not follow an address that varies. */
static __always_inline __u64 exchange_port(__u32 *ports, int source, __u32 to)
{
	__u32 word = *ports, shift = source ? 0 : 16;
	__u16 before = word >> shift, port = to;

	if (!to)
		return 0; /* rule: nat.same_port */
	*ports = (word & ~(0xffffU << shift)) | (__u32)port << shift;
	return changed(before, port); /* rule: nat.port */
}

/* Takes one from the TTL; what the sum changes by. */
static __always_inline __u64 age_ipv4(struct ipv4 *ip)
{
	ip->ttl--;
	/* The word of TTL and protocol is less by 0x0100; that is, plus its complement. */
	return (__u16)~bpf_htons(0x0100); /* rule: nat.aged4 */
}

/* Port and checksum; change: of the addresses. */
static __always_inline enum reason exchange_tcp(struct tcp *tcp, int source, __u32 port, __u64 change)
{
	change += exchange_port(&tcp->ports, source, port);
	tcp->check = amended(tcp->check, change);
	return REASON_OK; /* rule: nat.tcp */
}

static __always_inline enum reason exchange_udp(struct udp *udp, int source, __u32 port, __u64 change)
{
	change += exchange_port(&udp->ports, source, port);
	udp->check = amended_udp(udp->check, change);
	return REASON_OK; /* rule: nat.udp */
}

/* The packet that an ICMP error quotes, the other way round, and the error's checksum. outside: what the
 * addresses in front of it have changed by. Global, so that the verifier goes through it once. */
__noinline int translate_quote(struct xdp_md *ctx, const struct translation *to, __u32 how,
			       __u64 outside)
{
	int source = !(how & NAT_SOURCE), is_ipv6;
	__u32 found = find_quote(ctx, &is_ipv6);
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u32 at = found & 0x3fff, until = found >> 16;
	__u64 inside, all;
	__u8 next;

	if (!found || !to)
		return REASON_UNKNOWN_QUOTE; /* rule: nat.no_quote */
	struct icmp *icmp = data + ((at - sizeof(*icmp)) & 0x3fff);

	if (is_ipv6) {
		struct ipv6 *ip = data + at;
		struct extension *fragment = (void *)(ip + 1);

		if ((void *)(icmp + 1) > end || (void *)(fragment + 1) > end)
			return REASON_UNKNOWN_QUOTE; /* rule: nat.quote_truncated6 */
		inside = exchange_ipv6(ip, source, to);
		all = inside + outside; /* rule: nat.quote6 */
		at += sizeof(*ip);
		next = ip->next;
		if (next == PROTOCOL_FRAGMENT) {
			next = fragment->next; /* rule: nat.quote_fragment6 */
			at += sizeof(*fragment);
		}
	} else {
		struct ipv4 *ip = data + at;

		if ((void *)(icmp + 1) > end || (void *)(ip + 1) > end)
			return REASON_UNKNOWN_QUOTE; /* rule: nat.quote_truncated4 */
		inside = exchange_ipv4(ip, source, to);
		/* It has no pseudo-header, so that addresses outside are no part of its checksum. */
		__u16 check = amended(ip->check, inside);

		all = inside + changed(ip->check, check);
		ip->check = check; /* rule: nat.quote4 */
		at += (ip->version_ihl & 15) * 4;
		next = ip->protocol;
	}
	void *l4 = data + (at & 0x3fff);

	/* What was checked is what is read: Linux 6.1 does not follow a second sum. */
	asm volatile("" : "+r"(l4));

	if (l4 + QUOTED_BYTES > end)
		return REASON_UNKNOWN_QUOTE; /* rule: nat.quote_short */
	__u64 port = exchange_port(l4, source, to->port);

	inside += port;
	all += port;
	/* As much of the packet as there is. */
	if (next == PROTOCOL_UDP) { /* rule: nat.quote_udp */
		struct udp *udp = l4;
		__u16 check = amended_udp(udp->check, inside);

		all += changed(udp->check, check);
		udp->check = check;
	} else if (at + 18 <= until && l4 + 18 <= end) { /* rule: nat.quote_tcp */
		__u16 *at_check = l4 + 16;
		__u16 check = amended(*at_check, inside);

		all += changed(*at_check, check);
		*at_check = check;
	}
	icmp->check = amended(icmp->check, all);
	return REASON_OK; /* rule: nat.quoted */
}

/* Puts address and port in the place of those of one end of the packet; takes one from its TTL as a router
 * does. The reason why it cannot, if its TTL is used up: it is as it was then. Of an ICMP error
 * TRANSLATED_OUTSIDE, and what its addresses have changed by. Global, so that the verifier goes through it
 * once. */
__noinline __u64 translate_outside(struct xdp_md *ctx, const struct translation *to, __u32 how)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = data;
	void *l3 = eth + 1;
	int source = how & NAT_SOURCE;
	__u64 change;
	__u32 at, later = 0;
	__u8 protocol;

	if (!to || l3 > end)
		return REASON_TRUNCATED_ETHERNET; /* rule: nat.truncated */
	__be16 type = eth->type;
	enum reason reason = skip_vlans(&l3, end, &type);

	if (reason != REASON_OK)
		return reason; /* rule: nat.vlan */
	__u32 before = l3 - data;

	if (type == bpf_htons(ETH_P_IPV6)) {
		struct ipv6 *ip = l3;

		if ((void *)(ip + 1) > end)
			return REASON_TRUNCATED_IPV6; /* rule: nat.truncated6 */
		at = sizeof(*ip);
		protocol = ip->next;
		if (protocol != PROTOCOL_TCP && protocol != PROTOCOL_UDP) { /* rule: nat.extension */
			__u32 length = sizeof(*ip) + bpf_ntohs(ip->payload_length);
			__u32 skipped = skip_extensions(ctx, before, length, protocol);

			at = SKIPPED_AT(skipped);
			protocol = SKIPPED_TO(skipped);
			later = SKIPPED_REASON(skipped) == REASON_LATER_FRAGMENT;
			if (SKIPPED_REASON(skipped) == REASON_FIRST_FRAGMENT)
				at += sizeof(struct extension); /* rule: nat.first_fragment6 */
		}
		if (!(how & NAT_KEEPS_TTL)) {
			if (ip->hop_limit <= 1)
				return REASON_TTL_EXCEEDED; /* rule: nat.ttl6 */
			ip->hop_limit--; /* rule: nat.aged6 */
		}
		change = exchange_ipv6(ip, source, to); /* rule: nat.ipv6 */
	} else {
		struct ipv4 *ip = l3;

		if ((void *)(ip + 1) > end)
			return REASON_TRUNCATED_IPV4; /* rule: nat.truncated4 */
		at = (ip->version_ihl & 15) * 4;
		protocol = ip->protocol;
		later = ip->fragment & bpf_htons(0x1fff);
		__u64 aged = 0;

		if (!(how & NAT_KEEPS_TTL)) {
			if (ip->ttl <= 1)
				return REASON_TTL_EXCEEDED; /* rule: nat.ttl4 */
			aged = age_ipv4(ip);
		}
		change = exchange_ipv4(ip, source, to); /* rule: nat.ipv4 */
		ip->check = amended(ip->check, change + aged);
	}
	/* It has no ports; the sum over the whole packet is in the first fragment. */
	if (later)
		return REASON_OK; /* rule: nat.later */
	void *l4 = data + ((before + at) & 0x3fff);

	asm volatile("" : "+r"(l4));

	if (protocol == PROTOCOL_TCP) {
		struct tcp *tcp = l4;

		if ((void *)(tcp + 1) > end)
			return REASON_TRUNCATED_TCP; /* rule: nat.truncated_tcp */
		return exchange_tcp(tcp, source, to->port, change);
	}
	if (protocol == PROTOCOL_UDP) {
		struct udp *udp = l4;

		if ((void *)(udp + 1) > end)
			return REASON_TRUNCATED_UDP; /* rule: nat.truncated_udp */
		return exchange_udp(udp, source, to->port, change);
	}
	return TRANSLATED_OUTSIDE | change; /* rule: nat.icmp */
}

/* The whole packet, and of an ICMP error also what it quotes. Not one in the other: Linux 6.1 has no room
 * on the stack for so many. */
static __always_inline int translate(struct xdp_md *ctx, const struct translation *to, __u32 how)
{
	__u64 done = translate_outside(ctx, to, how);

	if (likely(!(done & TRANSLATED_OUTSIDE)))
		return done; /* rule: nat.whole */
	return translate_quote(ctx, to, how, done & ~TRANSLATED_OUTSIDE); /* rule: nat.with_quote */
}

/* Makes the packet the backend's without state. Global, as it has a translation on its stack, for which there is
 * no room in `forward_beyond` before Linux 6.8. */
__noinline int translate_there(struct xdp_md *ctx, __u32 id)
{
	const struct backend *backend = AT(backends, id, backend_count);
	struct translation to = {
		.address = { *(__u64 *)backend->address, *(__u64 *)(backend->address + 8) },
		.port = backend->port,
	};

	return translate(ctx, &to, 0);
}

/* Makes the packet the backend's, and gives the frame the lane's addresses. bytes: of the packet. Returns a reason,
 * and with REASON_TOO_BIG the largest packet that would fit, as encapsulate does; the packet is as it was then. */
static __always_inline __u32 translate_to(struct xdp_md *ctx, struct lane *lane, __u32 id,
						__u32 bytes)
{
	const struct backend *backend = AT(backends, id, backend_count);
	__u32 most = lane->mtu && lane->mtu < 0xffff ? lane->mtu : 0xffff;

	if (backend->tunnel != TUNNEL_NAT) {
		if (backend->tunnel == TUNNEL_FULL_NAT)
			return translate_full(ctx, lane, id, bytes); /* rule: nat.full */
		/* It was so until just now. */
		lane->resolved = 0;
		return REASON_NO_NEXT_HOP; /* rule: nat.was_plain */
	}
	if (bytes > most)
		return REASON_TOO_BIG | most << 8; /* rule: nat.too_big */
	enum reason reason = translate_there(ctx, id);

	return reason == REASON_OK ? retag(ctx, lane) : reason; /* rule: nat.there */
}

/* The same of the packets that nearly all are, TCP or UDP over IPv4 without options, not in fragments, without a tag,
 * to a link without tags. The verdict, or NOT_PLAIN, and the packet is as it was. Global, as forward_tunnel is. */
__noinline int forward_nat(struct xdp_md *ctx, struct lane *lane, __u32 id, __u32 bytes, __u32 flows)
{
	const struct backend *backend = AT(backends, id, backend_count);
	void *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = (void *)(long)ctx->data;
	struct ipv4 *ip = (void *)(eth + 1);
	struct udp *udp = (void *)(ip + 1);
	struct tcp *tcp = (void *)(ip + 1);

	/* 0 is no limit. Whoever is to be told of that, or of the TTL, is told by forward_beyond. */
	if (!lane || (void *)(udp + 1) > end ||
	    backend->tunnel != TUNNEL_NAT || bytes - 1 > lane->mtu - 1 || ip->version_ihl != 0x45 ||
	    ip->fragment & bpf_htons(0x3fff) || ip->ttl <= 1)
		return NOT_PLAIN;
	int is_tcp = ip->protocol == PROTOCOL_TCP;

	if (is_tcp ? (void *)(tcp + 1) > end : ip->protocol != PROTOCOL_UDP)
		return NOT_PLAIN;
	__u64 change = exchange(&ip->dst, *(__u32 *)(backend->address + 12));

	ip->check = amended(ip->check, change + age_ipv4(ip));
	if (is_tcp)
		exchange_tcp(tcp, 0, backend->port, change);
	else
		exchange_udp(udp, 0, backend->port, change);
	readdress(eth, lane);
	count(lane, bytes, flows);
	return send(ctx, lane); /* rule: nat.plain */
}

#endif
