// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/* Keeps the packets of services from the host's own sockets, whatever way they came in by.
 *
 * The XDP program takes them at the interfaces. An interface that is made anew has no program until
 * it is attached again, and the host, which has no socket for a service, would answer with a reset.
 * So this program stands where the kernel delivers packets to the host itself (netfilter's
 * LOCAL_IN), reads the same table of services, and drops what is for one of them. It is on nobody's
 * fast path: packets that are forwarded never come here. */
#include "outcome.h"
#include "service.h"
#include "parse.h"

#define NF_DROP 0
#define NF_ACCEPT 1
#define PF_IPV6 10
#define LOOPBACK 8 /* IFF_LOOPBACK */

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* What is read of the kernel's own structures; libbpf finds the offsets. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct net_device {
	unsigned int flags;
};
struct nf_hook_state {
	__u8 hook;
	__u8 pf;
	struct net_device *in;
};
/* Not only declared: libbpf compares the types that a function of the kernel's takes. */
struct sk_buff {
	unsigned int len;
};
struct bpf_nf_ctx {
	const struct nf_hook_state *state;
	struct sk_buff *skb;
};
#pragma clang attribute pop

extern int bpf_dynptr_from_skb(struct sk_buff *skb, __u64 flags,
			       struct bpf_dynptr *ptr) __ksym __weak;
extern void *bpf_dynptr_slice(const struct bpf_dynptr *ptr, __u32 offset, void *buffer,
			      __u32 size) __ksym __weak;

static __always_inline int drop(void)
{
	leave(REASON_PAST_PROGRAM, XDP_DROP);
	return NF_DROP;
}

/* What has a service's address and no flow is dropped, as the XDP program does. */
static __always_inline int refuse(__u64 high, __u64 low)
{
	return is_vip(high, low) ? drop() : NF_ACCEPT;
}

/* What the XDP program leaves to the kernel is the kernel's here, too: other protocols, and ports of no
 * service. first: of a first fragment, whose protocol has to have ports (fragment.h). */
static __always_inline int judge(const struct bpf_dynptr *packet, __u64 high, __u64 low,
				 __u8 protocol, __u32 at, int first)
{
	__u32 buffer;
	__u32 *ports;

	if (protocol != PROTOCOL_TCP && protocol != PROTOCOL_UDP && protocol != PROTOCOL_SCTP)
		return first ? refuse(high, low) : NF_ACCEPT;
	ports = bpf_dynptr_slice(packet, at, &buffer, sizeof(buffer));
	if (!ports)
		return refuse(high, low);
	__u32 kind = (__u32)protocol << 16;

	kind |= *ports >> 16;
	if (find_vip(high, low, kind) || find_unusual_vip(control->unusual, high, low, kind))
		return drop();
	return NF_ACCEPT;
}

/* Walks the extension headers as skip_extensions does (parse.h). Fragments are not put together yet here, if
 * connection tracking has not done it. A later one may belong to a packet of the kernel's, and is nothing
 * without the first one: of a packet for a service the kernel never gets that. */
static __always_inline int judge_ipv6(const struct bpf_dynptr *packet, const struct ipv6 *ip)
{
	__u64 high = ip->dst[0], low = ip->dst[1];
	__u32 at = sizeof(*ip);
	__u8 kind = ip->next;
	int first = 0;

	/* An IPv4 service's address, which is not for the wire. */
	if (is_mapped(ip->src) || is_mapped(ip->dst))
		return NF_ACCEPT;
#pragma unroll
	for (int i = 0; i <= MAX_IPV6_EXTENSIONS; i++) {
		struct extension buffer, *ext;

		if (first || (kind != 0 && kind != 43 && kind != 44 && kind != 51 && kind != 60))
			goto upper;
		if (i == MAX_IPV6_EXTENSIONS)
			break;
		ext = bpf_dynptr_slice(packet, at, &buffer, sizeof(buffer));
		if (!ext)
			break;
		__u32 size = kind == 51 ? (ext->length + 2) * 4 : (ext->length + 1) * 8;

		if (kind == 44) {
			if (ext->fragment & bpf_htons(0xfff8))
				return NF_ACCEPT;
			first = ext->fragment & bpf_htons(1);
			size = sizeof(*ext);
		}
		kind = ext->next;
		at += size;
	}
	return refuse(high, low);
upper:
	return judge(packet, high, low, kind, at, first);
}

SEC("netfilter")
int weir_guard(struct bpf_nf_ctx *ctx)
{
	const struct nf_hook_state *state = ctx->state;
	struct net_device *in = state->in;
	struct bpf_dynptr packet;
	struct ipv4 room4, *v4;
	struct ipv6 room6, *v6;

	/* The host's own programs are told at once that nobody listens here. */
	if (in && in->flags & LOOPBACK)
		return NF_ACCEPT;
	if (bpf_dynptr_from_skb(ctx->skb, 0, &packet))
		return NF_ACCEPT;
	if (state->pf == PF_IPV6) {
		v6 = bpf_dynptr_slice(&packet, 0, &room6, sizeof(room6));
		if (!v6)
			return NF_ACCEPT;
		return judge_ipv6(&packet, v6);
	}
	v4 = bpf_dynptr_slice(&packet, 0, &room4, sizeof(room4));
	if (!v4)
		return NF_ACCEPT;
	/* Fragments are whole again here. */
	return judge(&packet, 0, (__u64)v4->dst << 32 | IPV4_MAPPED, v4->protocol,
		     (v4->version_ihl & 15) * 4, 0);
}
