/* SPDX-License-Identifier: (GPL-2.0-only OR MIT) */
/* Answers of backends whose packets are translated (forward/nat.h): back to the client, as the service's.
 * Nothing is remembered of a connection: the backend's address, port and protocol say whose they are. */
#ifndef WEIR_BACK_H
#define WEIR_BACK_H

#include "forward/full_nat.h"
#include "forward/mss.h"
#include "forward/nat.h"
#include "forward/tell.h"
#include "ours.h"

/* No verdict: it is no such answer. */
#define NO_ANSWER (-1)

/* Fills the way to a client; what the FIB has answered. */
static __noinline int find_way(struct xdp_md *ctx, struct lane *way, __u64 high, __u64 low)
{
	struct bpf_fib_lookup fib = { .ifindex = ctx->ingress_ifindex };

	if (!way)
		return BPF_FIB_LKUP_RET_NOT_FWDED; /* rule: back.no_lane */
	way->resolved = 0;
	if (high == 0 && (__u32)low == IPV4_MAPPED) {
		fib.family = AF_INET; /* rule: back.ipv4 */
		fib.ipv4_dst = low >> 32;
	} else {
		fib.family = AF_INET6; /* rule: back.ipv6 */
		*(__u64 *)fib.ipv6_dst = high;
		*(__u64 *)(fib.ipv6_dst + 2) = low;
	}
	int found = bpf_fib_lookup(ctx, &fib, sizeof(fib), 0);

	if (found != BPF_FIB_LKUP_RET_SUCCESS)
		return found; /* rule: back.unknown */
	way->packets = high;
	way->bytes = low;
	way->mtu = fib.tot_len;
	return leave_by(way, fib.dmac, fib.smac, fib.ifindex, bpf_jiffies64()) == REASON_OK ? /* rule: back.way */
		       BPF_FIB_LKUP_RET_SUCCESS :
		       BPF_FIB_LKUP_RET_UNSUPP_LWT;
}

/* Whether the packet may be cut in pieces. */
static __always_inline int may_be_cut(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = data;
	void *l3 = eth + 1;

	if (l3 > end)
		return 0; /* rule: back.truncated */
	__be16 type = eth->type;

	if (skip_vlans(&l3, end, &type) != REASON_OK)
		return 0; /* rule: back.vlan */
	struct ipv4 *ip = l3;

	return type == bpf_htons(ETH_P_IP) && (void *)(ip + 1) <= end && /* rule: back.cut */
	       !(ip->fragment & bpf_htons(0x4000));
}

static __always_inline void count_returned(__u32 bytes)
{
	__u32 key = 0;
	struct returned *all = bpf_map_lookup_elem(&returned, &key);

	if (all) { /* rule: back.counted */
		all->packets++;
		all->bytes += bytes;
	}
}

/* The packet as the service's, by a way that is known. */
static __always_inline int send_by(struct xdp_md *ctx, struct lane *way,
				   const struct translation *to, __u32 bytes)
{
	enum reason reason = translate(ctx, to, NAT_SOURCE);

	/* The kernel tells the sender. */
	if (reason == REASON_TTL_EXCEEDED)
		return leave(reason, XDP_PASS); /* rule: back.ttl */
	if (reason == REASON_OK) {
		if (to->limits)
			limit_answer(ctx, to->limits - 1); /* rule: back.limited */
		reason = retag(ctx, way); /* rule: back.translated */
	}
	if (reason != REASON_OK)
		return leave(reason, XDP_DROP); /* rule: back.refused */
	count_returned(bytes);
	return send(ctx, way); /* rule: back.sent */
}

/* A packet of a backend, or an ICMP error about one that was sent to it; given: its flow, towards the
 * client. Returns a verdict, or NO_ANSWER. Global, so that the verifier goes through it once. */
__noinline int send_back(struct xdp_md *ctx, const struct flow_key *given, __u32 bytes)
{
	if (!given || !is_ours((void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return NO_ANSWER; /* rule: back.other_host */
	struct translated key = {
		.address = { given->src[0], given->src[1] },
		.port_protocol = (given->ports & 0xffff) | given->protocol << 16,
	};
	struct translation *to = bpf_map_lookup_elem(&translations, &key);

	if (!to && control->unusual & UNUSUAL_NAT_ANY) {
		key.port_protocol &= 0xff0000; /* rule: back.any_port */
		to = bpf_map_lookup_elem(&translations, &key);
	}
	if (!to)
		return NO_ANSWER; /* rule: back.none */
	const __u64 client[2] = { given->dst[0], given->dst[1] };
	__u32 number = (client[1] ^ client[0] * VIP_HIGH) * VIP_FIRST >> WAYS_SHIFT;
	struct lane *way = bpf_map_lookup_elem(&ways, &number);
	int found = BPF_FIB_LKUP_RET_SUCCESS;

	if (!way)
		return NO_ANSWER; /* rule: back.no_way */
	if (way->packets != client[0] || way->bytes != client[1] || !way->resolved ||
	    bpf_jiffies64() - way->resolved > RESOLVE_JIFFIES)
		found = find_way(ctx, way, client[0], client[1]); /* rule: back.asked */
	if (found == BPF_FIB_LKUP_RET_SUCCESS) {
		if (likely(!way->mtu || bytes <= way->mtu))
			return send_by(ctx, way, to, bytes); /* rule: back.fits */
		/* The kernel tells the sender what would fit, or makes pieces of it. */
		if (!may_be_cut(ctx))
			return leave(REASON_TOO_BIG, XDP_PASS); /* rule: back.too_big */
	} else if (found != BPF_FIB_LKUP_RET_NO_NEIGH && found != BPF_FIB_LKUP_RET_UNSUPP_LWT) {
		/* To this host itself, as what answers a health check; or nowhere. */
		return NO_ANSWER; /* rule: back.nowhere */
	}
	/* The kernel asks for the neighbour, and forwards the packet then. */
	enum reason reason = translate(ctx, to, NAT_SOURCE | NAT_KEEPS_TTL);

	if (reason == REASON_OK && to->limits)
		limit_answer(ctx, to->limits - 1); /* rule: back.kernels_limited */
	return reason == REASON_OK ? leave(REASON_ANSWER, XDP_PASS) : leave(reason, XDP_DROP); /* rule: back.kernels */
}

/* The same, without the way apart, of the answers that nearly all are: TCP or UDP over IPv4 without options, not in
 * fragments, without a tag, from a port that is one service's, to a client whose way has no tag. The
 * verdict, or NOT_PLAIN, and the packet is as it was. bytes: of the packet. Global, so that the verifier goes through
 * it once. */
__noinline int send_back_plain(struct xdp_md *ctx, __u32 bytes)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = data;
	struct ipv4 *ip = (void *)(eth + 1);
	struct udp *udp = (void *)(ip + 1);
	struct tcp *tcp = (void *)(ip + 1);

	/* Answers under full NAT are looked for first. */
	if (control->unusual & UNUSUAL_FULL_NAT || (void *)(udp + 1) > end || eth->type != bpf_htons(ETH_P_IP) ||
	    ip->version_ihl != 0x45 || ip->fragment & bpf_htons(0x3fff) || ip->ttl <= 1)
		return NOT_PLAIN;
	int is_tcp = ip->protocol == PROTOCOL_TCP;

	if (is_tcp ? (void *)(tcp + 1) > end : ip->protocol != PROTOCOL_UDP)
		return NOT_PLAIN;
	const __u64 client = (__u64)ip->dst << 32 | IPV4_MAPPED;
	struct translated key = {
		.address = { 0, (__u64)ip->src << 32 | IPV4_MAPPED },
		.port_protocol = (udp->ports & 0xffff) | ip->protocol << 16,
	};
	struct translation *to = bpf_map_lookup_elem(&translations, &key);

	if (!to || !is_ours(data, end) || (to->limits && is_tcp && tcp->flags & TCP_SYN))
		return NOT_PLAIN;
	__u32 number = client * VIP_FIRST >> WAYS_SHIFT;
	struct lane *way = bpf_map_lookup_elem(&ways, &number);

	if (!way)
		return NOT_PLAIN;
	if ((way->packets != 0 || way->bytes != client || !way->resolved ||
	     bpf_jiffies64() - way->resolved > RESOLVE_JIFFIES) &&
	    find_way(ctx, way, 0, client) != BPF_FIB_LKUP_RET_SUCCESS)
		return NOT_PLAIN; /* rule: back.plain_no_way */
	/* 0 is no limit. */
	if (way->vlan || bytes - 1 > way->mtu - 1)
		return NOT_PLAIN;
	__u64 change = exchange(&ip->src, to->address[1] >> 32);

	ip->check = amended(ip->check, change + age_ipv4(ip));
	if (is_tcp)
		exchange_tcp(tcp, NAT_SOURCE, to->port, change);
	else
		exchange_udp(udp, NAT_SOURCE, to->port, change);
	readdress(eth, way);
	count_returned(bytes);
	return send(ctx, way); /* rule: back.plain */
}

/* The way to a client, which may have been asked of the FIB just now; what it said. */
static __always_inline int way_to(struct xdp_md *ctx, const __u64 *client, struct lane **way)
{
	__u32 number = (client[1] ^ client[0] * VIP_HIGH) * VIP_FIRST >> WAYS_SHIFT;
	struct lane *found = bpf_map_lookup_elem(&ways, &number);

	*way = found;
	if (!found)
		return BPF_FIB_LKUP_RET_NOT_FWDED; /* rule: back.full_no_way */
	if (found->packets != client[0] || found->bytes != client[1] || !found->resolved ||
	    bpf_jiffies64() - found->resolved > RESOLVE_JIFFIES)
		return find_way(ctx, found, client[0], client[1]); /* rule: back.full_asked */
	return BPF_FIB_LKUP_RET_SUCCESS;
}

/* Whether the frame of a packet that was parsed is an ICMP error about a packet that was sent to a backend with
 * other addresses: so about none of a tunnel's, which may be a datagram, too. Global, so that the verifier goes
 * through it once. */
__noinline int is_about_translated(struct xdp_md *ctx, const struct packet *given)
{
	if (!given || !(control->unusual & UNUSUAL_NAT))
		return 0;
	struct packet p = { .dst = { given->dst[0], given->dst[1] } };

	if (!quoted(ctx, &p))
		return 0; /* rule: back.about_nothing */
	struct translated key = {
		.address = { p.src[0], p.src[1] },
		.port_protocol = (p.ports & 0xffff) | p.protocol << 16,
	};

	if (bpf_map_lookup_elem(&translations, &key))
		return 1; /* rule: back.about_nat */
	key.port_protocol &= 0xff0000;
	if (bpf_map_lookup_elem(&translations, &key))
		return 1; /* rule: back.about_any_port */
	key.address[0] = p.dst[0];
	key.address[1] = p.dst[1];
	key.port_protocol = TRANSLATED_ORIGIN;
	struct translation *own = bpf_map_lookup_elem(&translations, &key);
	__u16 port = bpf_ntohs(p.ports >> 16);

	return own && port >= (__u16)own->address[0] && port <= (__u16)(own->address[0] >> 16); /* rule: back.about_full_nat */
}

/* A packet to an address of the balancer's, from a backend under full NAT, or an error about one that was sent
 * to it from there; given: its flow. The kernel is no help with what goes nowhere: it is this host that it is
 * for, as far as the kernel knows. Returns a verdict, or NO_ANSWER. Global, so that the verifier goes through it
 * once. */
__noinline int send_back_full(struct xdp_md *ctx, const struct flow_key *given, __u32 bytes,
			      __u32 signs)
{
	if (!given || !is_ours((void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return NO_ANSWER; /* rule: back.full_other_host */
	__u32 first = 0, how = NAT_KEEPS_TTL;
	struct being_translated *now = bpf_map_lookup_elem(&being_translated, &first);
	struct lane *way;

	if (!now)
		return NO_ANSWER;
	now->key = (struct translated){
		.address = { given->dst[0], given->dst[1] },
		.port_protocol = TRANSLATED_ORIGIN,
	};
	struct translation *own = bpf_map_lookup_elem(&translations, &now->key);
	__u16 port = bpf_ntohs(given->ports >> 16);

	/* Other ports are this host's own. */
	if (!own || port < (__u16)own->address[0] || port > (__u16)(own->address[0] >> 16))
		return NO_ANSWER; /* rule: back.full_own_port */
	if (!mapping_back(given, own->port, signs, &now->ends))
		return leave(REASON_NO_MAPPING, XDP_DROP); /* rule: back.full_unknown */
	int found = way_to(ctx, now->ends.target.address, &way);

	if (found == BPF_FIB_LKUP_RET_SUCCESS && way) {
		if (!way->mtu || bytes <= way->mtu) {
			how = 0; /* rule: back.full_fits */
		} else if (!may_be_cut(ctx)) {
			enum reason told = tell(ctx, REASON_TOO_BIG, way->mtu);

			return leave(told, told == REASON_TOO_BIG_TOLD ? XDP_TX : XDP_DROP); /* rule: back.full_too_big */
		}
	} else if (found != BPF_FIB_LKUP_RET_NO_NEIGH && found != BPF_FIB_LKUP_RET_UNSUPP_LWT) {
		return leave(REASON_NO_NEXT_HOP, XDP_DROP); /* rule: back.full_nowhere */
	}
	enum reason reason = translate_both(ctx, &now->ends, how);

	if (reason == REASON_OK && now->ends.source.limits)
		limit_answer(ctx, now->ends.source.limits - 1); /* rule: back.full_limited */
	if (reason == REASON_OK && how)
		return leave(REASON_ANSWER, XDP_PASS); /* rule: back.full_kernels */
	if (reason == REASON_OK)
		reason = way ? retag(ctx, way) : REASON_NO_NEXT_HOP;
	if (reason != REASON_OK || !way)
		return leave(reason, XDP_DROP); /* rule: back.full_refused */
	count_returned(bytes);
	return send(ctx, way); /* rule: back.full_sent */
}

#endif
