// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/* Plays a network card that has rules, at the far end of a veth device: *emulated* (docs/hnlb.md).
 *
 * What leaves by transmit queue n there comes in by receive queue n here. A frame without a socket is given the queue
 * that it is recorded to have come by, so this writes there what the rule of its flow says, or the first queue. When
 * rules come and go, and how late, is decided by whoever fills the map. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define TCP 6
#define MAPPED 0xffff0000u

/* Addresses as they are on the wire, IPv4 as ::ffff:a.b.c.d; ports as on the wire. */
struct card_flow {
	__u64 src[2];
	__u64 dst[2];
	__u32 ports;
	__u32 protocol;
};

/* Where frames of a flow go: the check of its key, then two queues, between which chance decides; they are the same
 * but while a rule changes. One word, as the kernel gives the memory of a rule that was removed to the next one at
 * once: whoever still reads it finds another flow's check, which stands where it is written first. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set before loading */
	__type(key, struct card_flow);
	__type(value, __u64);
} card_rules SEC(".maps");

/* What became of frames; crates/dataplane/src/card.rs has their names. */
enum card_count {
	CARD_HIT,     /* a rule led them */
	CARD_MISS,    /* none did */
	CARD_DROPPED, /* a socket had sent them, and there was no memory for a copy without it */
	CARD_COUNTS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, CARD_COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} card_counts SEC(".maps");

static __always_inline void count(__u32 what)
{
	__u64 *counter = bpf_map_lookup_elem(&card_counts, &what);

	if (counter)
		*counter += 1;
}

static __always_inline __u64 mix(__u64 state, __u64 word)
{
	state = (state ^ word) * 0x9e3779b97f4a7c15ull;
	return state ^ state >> 32;
}

static __always_inline __u32 check_of(const struct card_flow *flow)
{
	__u64 state = mix(0, (__u64)flow->protocol << 32 | flow->ports);

	state = mix(mix(state, flow->src[0]), flow->src[1]);
	return mix(mix(state, flow->dst[0]), flow->dst[1]);
}

/* Whether a frame has a flow that rules can match, and which: TCP, in one piece, without tags. */
static __always_inline int read_flow(struct __sk_buff *skb, struct card_flow *flow)
{
	__u32 l4;
	__be16 type;

	if (skb->vlan_present || bpf_skb_load_bytes(skb, ETH_HLEN - 2, &type, sizeof(type)) < 0)
		return 0;
	if (type == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) < 0)
			return 0;
		if (ip.protocol != TCP || ip.frag_off & bpf_htons(0x3fff))
			return 0;
		flow->src[1] = (__u64)ip.saddr << 32 | MAPPED;
		flow->dst[1] = (__u64)ip.daddr << 32 | MAPPED;
		l4 = ETH_HLEN + ip.ihl * 4;
	} else if (type == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) < 0 || ip.nexthdr != TCP)
			return 0;
		__builtin_memcpy(flow->src, &ip.saddr, sizeof(flow->src));
		__builtin_memcpy(flow->dst, &ip.daddr, sizeof(flow->dst));
		l4 = ETH_HLEN + sizeof(ip);
	} else {
		return 0;
	}
	flow->protocol = TCP;
	return bpf_skb_load_bytes(skb, l4, &flow->ports, sizeof(flow->ports)) == 0;
}

/* The queue of a flow; the first one if no rule says another. */
static __always_inline __u32 lead(const struct card_flow *flow)
{
	__u64 *rule = bpf_map_lookup_elem(&card_rules, flow);

	if (!rule)
		return 0;
	__u64 word = *(volatile __u64 *)rule;

	if ((__u32)word != check_of(flow))
		return 0;
	__u16 before = word >> 32, after = word >> 48;

	return before == after || bpf_get_prandom_u32() & 1 ? before : after;
}

SEC("tc")
int weir_card(struct __sk_buff *skb)
{
	struct card_flow flow = {};
	__u32 queue = 0;

	/* The kernel goes by the queue that a frame's socket had, also where the socket is in another network namespace,
	 * and a frame that no rule has led would be taken for a backend's there. A copy has no socket; it comes here
	 * again. */
	if (skb->sk) {
		if (bpf_clone_redirect(skb, skb->ifindex, 0) == 0)
			return TC_ACT_STOLEN;
		count(CARD_DROPPED);
		return TC_ACT_SHOT;
	}
	if (read_flow(skb, &flow))
		queue = lead(&flow);
	count(queue ? CARD_HIT : CARD_MISS);
	/* Recorded numbers begin with one. */
	skb->queue_mapping = queue + 1;
	return TC_ACT_UNSPEC;
}
