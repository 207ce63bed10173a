// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/* The bench's own programs: a generator, a reflector that is the floor, bounds, and a sink. */
#include "abi.h"
#include "array.h"
#include "hash.h"
#include "parse.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* The generator's settings, and what makes the sequence of flows. One generator runs at a time, so
 * plain variables do. */
struct settings {
	__u64 draws;
	__u32 flows; /* drawn from uniformly */
	__u32 vip;
	__u32 egress;
	__u16 vip_port;
	__u8 destination_mac[6];
	__u8 own_mac[6];
	__u8 tcp_flags;
	__u8 in_order; /* one flow after the other, from `draws` on, in place of any */
	__u32 stamps; /* whether packets have timestamps, as those of a usual connection; 2: with their cookies */
	__u32 first_id; /* of QUIC packets, which these are if there are ids: where theirs begin */
	__u32 ids;      /* and how many there are, flow after flow */
	__u32 back;     /* whether they are answers: what is the destination else is the source */
	__u32 tunnel;   /* what they come in, TUNNEL_*, as the balancer sends it over IPv4 */
	__be32 tunnel_source;
	__be32 tunnel_end;
	__be16 tunnel_port;
	__u16 tunnel_check; /* of the outer header, which is the same for all */
	__u32 first_cookie; /* the entry of the first cookies of these flows */
	__u32 learns;   /* whether what comes back tells cookies, which are kept */
	__u32 scatter;  /* odd factor that makes sources of any network of the flows' numbers; 0: one network's */
};

struct settings settings = {};

/* The timestamps of most packets: the same echo for all, which is another cookie for each. */
struct stamps {
	__be32 kind;
	__be32 value;
	__be32 echo;
};

/* Of each flow, four in an entry; first those that the bench's own tables have, then those that a running
 * balancer has told, of each of its methods with cookies. */
struct cookies {
	__u16 of[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cookies);
} cookies SEC(".maps");

/* QUIC ids of each kind, one kind after the other. */
struct quic_id {
	__u64 words[3];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct quic_id);
} ids SEC(".maps");

/* A datagram with a short header in place of the segment. */
static __always_inline int datagram(struct xdp_md *ctx, struct ipv4 *ip, __u32 flow)
{
	struct udp *udp = (void *)(ip + 1);
	__u8 *payload = (void *)(udp + 1);
	__u32 length = sizeof(*udp) + 1 + QUIC_FROM_ID;
	__u32 at = settings.first_id + flow % settings.ids;
	struct quic_id *id = bpf_map_lookup_elem(&ids, &at);

	if (!id || (void *)payload + 1 + QUIC_FROM_ID > (void *)(long)ctx->data_end)
		return XDP_DROP;
	ip->protocol = PROTOCOL_UDP;
	ip->total_length = bpf_htons(sizeof(*ip) + length);
	udp->length = bpf_htons(length);
	udp->check = 0;
	payload[0] = 0x40;
	__builtin_memcpy(payload + 1, id, sizeof(*id));
	__builtin_memset(payload + 1 + sizeof(*id), 0, QUIC_FROM_ID - sizeof(*id));
	return bpf_redirect(settings.egress, 0);
}

/* SplitMix64 */
static __always_inline __u64 draw(void)
{
	__u64 z = (settings.draws += 0x9e3779b97f4a7c15ULL);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return z ^ (z >> 31);
}

/* A packet of a flow, without options. */
static __always_inline void write_packet(struct ipv4 *ip, struct tcp *tcp, __u32 flow)
{
	ip->version_ihl = 0x45;
	ip->tos = 0;
	ip->total_length = bpf_htons(sizeof(*ip) + sizeof(*tcp));
	ip->id = 0;
	ip->fragment = 0;
	ip->ttl = FIRST_TTL;
	ip->protocol = PROTOCOL_TCP;
	ip->check = 0;
	ip->src = bpf_htonl(settings.scatter ? flow * settings.scatter :
					       0x0a000000 | (flow & 0xffffff));
	ip->dst = settings.vip;
	tcp->ports = bpf_htons(1024 + (flow >> 24)) | (__u32)settings.vip_port << 16;
	tcp->seq = 0;
	tcp->ack = 0;
	tcp->offset = 0x50;
	tcp->flags = settings.tcp_flags;
	tcp->window = 0;
	tcp->check = 0;
	tcp->urgent = 0;
}

/* Bytes between the outer header and the packet. */
static __always_inline __u32 between(__u32 tunnel)
{
	switch (tunnel) {
	case TUNNEL_GRE:
		return 4;
	case TUNNEL_FOU:
		return 8;
	case TUNNEL_GUE:
		return 12;
	}
	return 0;
}

/* The packet in a tunnel. */
static __always_inline int tunnelled(struct xdp_md *ctx, struct ipv4 *outer, __u32 flow)
{
	__be32 *words = (void *)(outer + 1);
	__u32 bytes = between(settings.tunnel) & 12;
	struct ipv4 *ip = (void *)words + bytes;
	struct tcp *tcp = (void *)(ip + 1);
	__u32 length = bytes + sizeof(*ip) + sizeof(*tcp);

	if ((void *)(words + 3) > (void *)(long)ctx->data_end ||
	    (void *)(tcp + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	outer->version_ihl = 0x45;
	outer->tos = 0;
	outer->total_length = bpf_htons(sizeof(*outer) + length);
	outer->id = 0;
	outer->fragment = bpf_htons(0x4000);
	outer->ttl = FIRST_TTL;
	outer->protocol = settings.tunnel == TUNNEL_IPIP ? 4 : settings.tunnel == TUNNEL_GRE ? 47 : PROTOCOL_UDP;
	outer->check = settings.tunnel_check;
	outer->src = settings.tunnel_source;
	outer->dst = settings.tunnel_end;
	if (settings.tunnel == TUNNEL_GRE) {
		words[0] = bpf_htonl(ETH_P_IP);
	} else if (settings.tunnel != TUNNEL_IPIP) {
		words[0] = bpf_htons(0xc000 | (flow & 0x3fff)) | (__u32)settings.tunnel_port << 16;
		words[1] = bpf_htonl(length << 16);
		words[2] = bpf_htonl(4 << 16);
	}
	write_packet(ip, tcp, flow);
	return bpf_redirect(settings.egress, 0);
}

/* Writes every header byte: in live-frames mode a frame comes back with whatever the far end wrote
 * into it. Flow n has source 10.(n >> 16).(n >> 8).n with the bits above 24 in the port. */
SEC("xdp")
int bench_generate(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	struct ethernet *eth = data;
	struct ipv4 *ip = (void *)(eth + 1);
	struct tcp *tcp = (void *)(ip + 1);

	if ((void *)(tcp + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	__u32 flow = settings.in_order ? settings.draws++ : scale(draw(), settings.flows);

	__builtin_memcpy(eth->destination, settings.destination_mac, 6);
	__builtin_memcpy(eth->source, settings.own_mac, 6);
	eth->type = bpf_htons(ETH_P_IP);
	if (settings.tunnel)
		return tunnelled(ctx, ip, flow);
	write_packet(ip, tcp, flow);
	if (settings.ids)
		return datagram(ctx, ip, flow);
	if (settings.stamps) {
		struct stamps *stamps = (void *)(tcp + 1);

		if ((void *)(stamps + 1) > (void *)(long)ctx->data_end)
			return XDP_DROP;
		stamps->kind = bpf_htonl(0x0101080a);
		stamps->value = 0;
		stamps->echo = 0;
		if (settings.stamps == 2) {
			__u32 entry = settings.first_cookie + flow / 4;
			struct cookies *found = bpf_map_lookup_elem(&cookies, &entry);

			if (found)
				stamps->echo = bpf_htonl((__u32)found->of[flow & 3] << 16);
		}
		tcp->offset = 0x80;
		ip->total_length = bpf_htons(sizeof(*ip) + sizeof(*tcp) + sizeof(*stamps));
	}
	if (settings.back) {
		__u32 client = ip->src;

		ip->src = ip->dst;
		ip->dst = client;
		tcp->ports = tcp->ports >> 16 | tcp->ports << 16;
	}
	return bpf_redirect(settings.egress, 0);
}

/* The floor: what it costs to take a frame and send it back with new MAC addresses. */
SEC("xdp")
int bench_reflect(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	struct ethernet *eth = data;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	__u8 mac[6];

	__builtin_memcpy(mac, eth->destination, 6);
	__builtin_memcpy(eth->destination, eth->source, 6);
	__builtin_memcpy(eth->source, mac, 6);
	return XDP_TX;
}

#include "bounds.h"

__u64 sunk = 0;

/* What the SYN of a flow tells its backend, and all packets of its client will echo. */
static __always_inline void learn(struct xdp_md *ctx)
{
	struct ethernet *eth = (void *)(long)ctx->data;
	struct ipv4 *ip = (void *)(eth + 1);
	struct tcp *tcp = (void *)(ip + 1);
	struct stamps *stamps = (void *)(tcp + 1);

	if ((void *)(stamps + 1) > (void *)(long)ctx->data_end)
		return;
	__u32 port = bpf_ntohs((__u16)tcp->ports);
	__u32 flow = (bpf_ntohl(ip->src) & 0xffffff) | (port - 1024) << 24;
	__u32 entry = settings.first_cookie + flow / 4;
	struct cookies *found = bpf_map_lookup_elem(&cookies, &entry);

	/* Without the bit that says that it is told. */
	if (found)
		found->of[flow & 3] = bpf_ntohl(stamps->echo) >> 16 & 0x7fff;
}

/* Takes what comes back. */
SEC("xdp")
int bench_sink(struct xdp_md *ctx)
{
	sunk++;
	if (settings.learns)
		learn(ctx);
	return XDP_DROP;
}
