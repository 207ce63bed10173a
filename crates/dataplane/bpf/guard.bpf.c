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

/* Fragments are whole again here for IPv4. What carries a service's address and cannot be told from
 * its packets is dropped as the XDP program would. */
static __always_inline int judge(const struct bpf_dynptr *packet, __u64 high, __u64 low,
				 __u8 protocol, __u32 at)
{
	__u32 buffer;
	__u32 *ports;

	if (protocol != PROTOCOL_TCP && protocol != PROTOCOL_UDP && protocol != PROTOCOL_SCTP)
		return (protocol == 0 || protocol == 43 || protocol == 44 || protocol == 51 ||
			protocol == 60) && is_vip(high, low) ? drop() : NF_ACCEPT;
	ports = bpf_dynptr_slice(packet, at, &buffer, sizeof(buffer));
	if (!ports)
		return is_vip(high, low) ? drop() : NF_ACCEPT;
	__u32 kind = (__u32)protocol << 16;

	kind |= *ports >> 16;
	if (find_vip(high, low, kind) || find_unusual_vip(control->unusual, high, low, kind))
		return drop();
	return NF_ACCEPT;
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
		return judge(&packet, v6->dst[0], v6->dst[1], v6->next, sizeof(*v6));
	}
	v4 = bpf_dynptr_slice(&packet, 0, &room4, sizeof(room4));
	if (!v4)
		return NF_ACCEPT;
	return judge(&packet, 0, (__u64)v4->dst << 32 | IPV4_MAPPED, v4->protocol,
		     (v4->version_ihl & 15) * 4);
}
