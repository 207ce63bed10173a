// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/* The bench's own programs: a generator, a reflector that is the floor, and a sink. */
#include "types.h"
#include "hash.h"
#include "parse.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Which flow comes next is drawn at random from `flows`; `draws` makes the sequence. Per CPU there
 * is only one generator, so plain variables do. */
const volatile __u32 flows = 1;
const volatile __u8 destination_mac[6] = {};
const volatile __u8 own_mac[6] = {};
const volatile __u32 vip = 0;
const volatile __u16 vip_port = 0;
const volatile __u32 egress = 0;

__u64 draws = 0;
__u64 sunk = 0;

/* SplitMix64 */
static __always_inline __u64 draw(void)
{
	__u64 z = (draws += 0x9e3779b97f4a7c15ULL);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return z ^ (z >> 31);
}

/* Writes every header byte: in live-frames mode a frame comes back with whatever the far end wrote
 * into it. Flow n has source 10.(n >> 16).(n >> 8).n with the bits above 24 in the port. */
SEC("xdp")
int bench_generate(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	struct ethhdr *eth = data;
	struct ipv4 *ip = (void *)(eth + 1);
	struct tcp *tcp = (void *)(ip + 1);

	if ((void *)(tcp + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	__u32 flow = scale(draw(), flows);

	__builtin_memcpy(eth->h_dest, (const void *)destination_mac, 6);
	__builtin_memcpy(eth->h_source, (const void *)own_mac, 6);
	eth->h_proto = bpf_htons(ETH_P_IP);
	ip->version_ihl = 0x45;
	ip->tos = 0;
	ip->total_length = bpf_htons(sizeof(*ip) + sizeof(*tcp));
	ip->id = 0;
	ip->fragment = 0;
	ip->ttl = 64;
	ip->protocol = PROTOCOL_TCP;
	ip->check = 0;
	ip->src = bpf_htonl(0x0a000000 | (flow & 0xffffff));
	ip->dst = vip;
	tcp->ports = bpf_htons(1024 + (flow >> 24)) | (__u32)vip_port << 16;
	tcp->seq = 0;
	tcp->ack = 0;
	tcp->offset = 0x50;
	tcp->flags = TCP_ACK;
	tcp->window = 0;
	tcp->check = 0;
	tcp->urgent = 0;
	return bpf_redirect(egress, 0);
}

/* The floor: what it costs to take a frame and send it back with new MAC addresses. */
SEC("xdp")
int bench_reflect(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	__u8 mac[6];

	__builtin_memcpy(mac, eth->h_dest, 6);
	__builtin_memcpy(eth->h_dest, eth->h_source, 6);
	__builtin_memcpy(eth->h_source, mac, 6);
	return XDP_TX;
}

/* Takes what comes back. */
SEC("xdp")
int bench_sink(struct xdp_md *ctx)
{
	sunk++;
	return XDP_DROP;
}
