// SPDX-License-Identifier: (GPL-2.0-only OR MIT)
/* In front of weir_balance, where a plane in user space takes part (docs/planes.md): segments in the
 * middle of connections go to its AF_XDP socket, all else goes on in weir_balance, as does everything
 * while there is no socket. It decides nothing, and counts nothing. */
/* It needs a little of what these have. */
#pragma clang diagnostic ignored "-Wunused-function"
#include "abi.h"
#include "maps.h"
#include "parse.h"
#include "service.h"
#include "sources.h"
#include "ours.h"
#include "methods/registry.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Queues that have a socket; made as large as that. */
#define QUEUES 256
/* A socket's chunks have room for so much. */
#define FRONT_BYTES 1792
/* One for each number that a backend can have. */
#define FRONT_LANES 32768
#define FRONT_COUNTERS 32

#pragma clang diagnostic push
#pragma clang diagnostic error "-Wpadded"

/* What the control plane and the plane in user space tell each other. Other versions read what stands before `turns`,
 * so that stays where it is. */
struct front {
	__u32 memory;  /* which memory is in use; odd while that changes */
	__u32 ready;   /* the one that the plane in user space reads; 0: none */
	__u64 turn;    /* odd while its first thread is at a burst; each burst adds two */
	__u64 process; /* its number */
	__u64 started; /* when it began */
	__u64 turns[4]; /* the same of its other threads */
	__u64 counters[FRONT_COUNTERS]; /* what it counts; crates/dataplane/src/user.rs has their names */
	__u64 edges; /* whether it is told of what begins or ends a connection, as a card has rules for some */
	__u64 past;  /* how often it may not have been told, although it wanted to be */
};

/* What it has forwarded, by the backend's number. */
struct front_lane {
	__u64 packets;
	__u64 bytes;
};

#pragma clang diagnostic pop

struct front front[1] SEC(".data.front");
struct front_lane front_lanes[FRONT_LANES] SEC(".data.front_lanes");

/* Where in `sockets` that of a receive queue stands: interface << 32 | queue. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, QUEUES);
	__type(key, __u64);
	__type(value, __u32);
} queues SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, QUEUES);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* Who decides all other packets. Pinned, as the kernel empties it when only programs hold it. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} behind SEC(".maps");

/* Whether the plane in user space decides packets of this service: they read the table, and it is not
 * being changed. */
static __always_inline int reads_table_only(const struct table *table, const struct packet *p)
{
	if (table->flags & TABLE_PENDING)
		return 0;
	if (table->method == METHOD_CONCURY || table->method == METHOD_RESIDUE)
		return 1;
	if (table->method != METHOD_JET)
		return 0;
	__u32 ports = table->flags & TABLE_CLIENT ? 0 : p->ports;
	__u64 hash = hash_address(&table->key, p->src[0], p->src[1], ports);

	/* A row with a mark asks the connection table, which only programs reach. */
	return read_slot(table, scale(hash, table->slots)) < NO_BACKEND;
}

/* What a frame is to the plane in user space. */
enum to_plane {
	NOTHING, /* weir_balance decides it */
	PLAIN,   /* it decides it */
	EDGE,    /* it is told, and gives it back to weir_balance: something begins or ends */
	HIDDEN,  /* something may begin or end, and it cannot be told what */
};

#define EDGES (TCP_FIN | TCP_SYN | TCP_RST)

/* Whether the TCP header at l4 is of what begins or ends a connection of a service under the very address and port:
 * only these have connections with rules. Whether all of the packet is as it should be, the plane finds out. */
static __always_inline int is_edge_at(void *l4, void *end, const struct packet *p)
{
	struct tcp *tcp = l4;

	/* The pointer that is checked is the one that is read by. */
	barrier_var(tcp);
	if ((void *)(tcp + 1) > end || !(tcp->flags & EDGES))
		return 0;
	return find_vip(p->dst[0], p->dst[1], tcp->ports >> 16 | (__u32)PROTOCOL_TCP << 16) != NULL;
}

/* What begins or ends a connection in a packet that is not plain: with tags, options, or in several buffers. */
__noinline int odd_edge(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = data;
	void *l3 = eth + 1;
	struct packet p = {};

	if (l3 > end)
		return NOTHING;
	__be16 type = eth->type;
	if (skip_vlans(&l3, end, &type) != REASON_OK)
		return NOTHING;
	if (type == bpf_htons(ETH_P_IP)) {
		struct ipv4 *ip = l3;

		if ((void *)(ip + 1) > end || ip->protocol != PROTOCOL_TCP)
			return NOTHING;
		if (ip->fragment & bpf_htons(0x1fff))
			return NOTHING;
		if (ip->fragment & bpf_htons(0x2000))
			return HIDDEN;
		p.dst[1] = (__u64)ip->dst << 32 | IPV4_MAPPED;
		return is_edge_at(l3 + (ip->version_ihl & 15) * 4, end, &p) ? EDGE : NOTHING;
	}
	if (type == bpf_htons(ETH_P_IPV6)) {
		struct ipv6 *ip = l3;

		if ((void *)(ip + 1) > end)
			return NOTHING;
		__u32 length = sizeof(*ip) + bpf_ntohs(ip->payload_length);
		__u32 skipped = skip_extensions(ctx, l3 - data, length, ip->next);

		if (SKIPPED_REASON(skipped) == REASON_FIRST_FRAGMENT)
			return HIDDEN;
		if (SKIPPED_REASON(skipped) != REASON_OK || SKIPPED_TO(skipped) != PROTOCOL_TCP)
			return NOTHING;
		p.dst[0] = ip->dst[0];
		p.dst[1] = ip->dst[1];
		return is_edge_at(l3 + SKIPPED_AT(skipped), end, &p) ? EDGE : NOTHING;
	}
	return NOTHING;
}

/* What a frame is; `edges`: whether it may be one. */
static __always_inline enum to_plane is_for_plane(struct xdp_md *ctx, int edges)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethernet *eth = data;
	void *l3 = eth + 1;
	struct packet p = {};

	if (l3 > end)
		return NOTHING;
	if (end - data > FRONT_BYTES || (has_frags && bpf_xdp_get_buff_len(ctx) != end - data))
		return edges ? odd_edge(ctx) : NOTHING;
	if (eth->type == bpf_htons(ETH_P_IP)) {
		if (!parse_plain_tcp(l3, end, &p))
			return edges ? odd_edge(ctx) : NOTHING;
	} else if (eth->type == bpf_htons(ETH_P_IPV6)) {
		struct ipv6 *ip = l3;

		if ((void *)(ip + 1) > end || ip->next != PROTOCOL_TCP ||
		    parse_ipv6(NULL, l3, end, end - l3, &p) != REASON_OK)
			return edges ? odd_edge(ctx) : NOTHING;
	} else {
		return edges ? odd_edge(ctx) : NOTHING;
	}
	int middle = (p.tcp_flags & (EDGES | TCP_ACK)) == TCP_ACK;

	if ((!middle && !(edges && p.tcp_flags & EDGES)) || !is_ours(data, end))
		return NOTHING;
	struct vip *vip = find_vip(p.dst[0], p.dst[1], p.ports >> 16 | (__u32)PROTOCOL_TCP << 16);

	if (!middle)
		return vip ? EDGE : NOTHING;
	/* Prefixes and blocks of ports are weir_balance's, and may be more exact than any port of an address. */
	if (!vip && (control->unusual & (UNUSUAL_ANY_PORT | UNUSUAL_WIDE)) == UNUSUAL_ANY_PORT)
		vip = find_vip(p.dst[0], p.dst[1], (__u32)PROTOCOL_TCP << 16);
	if (!vip)
		return NOTHING;
	__u32 number = *(volatile __u32 *)&vip->table;

	/* What is beyond has lists of sources or caps, or one of several addresses, or no table. */
	if (number >= table_count)
		return NOTHING;
	return reads_table_only(AT(tables, number, table_count), &p) ? PLAIN : NOTHING;
}

/* Leads a frame to the socket of its queue. */
static __always_inline int is_handed_over(struct xdp_md *ctx)
{
	__u64 queue = (__u64)ctx->ingress_ifindex << 32 | ctx->rx_queue_index;
	__u32 *socket;

	__u64 bytes = ctx->data_end - ctx->data;

	/* Sockets take frames in one buffer; what is in several goes on, and is counted as past. */
	if (bytes > FRONT_BYTES || (has_frags && bpf_xdp_get_buff_len(ctx) != bytes))
		return 0;
	socket = bpf_map_lookup_elem(&queues, &queue);
	/* Without a socket it returns the last argument. */
	return socket && bpf_redirect_map(&sockets, *socket, XDP_ABORTED) == XDP_REDIRECT;
}

SEC("xdp")
int weir_front(struct xdp_md *ctx)
{
	volatile struct front *now = front;

	if (now->ready == now->memory) {
		enum to_plane what = is_for_plane(ctx, now->edges != 0);

		if ((what == PLAIN || what == EDGE) && is_handed_over(ctx))
			return XDP_REDIRECT;
		if (what == EDGE || what == HIDDEN)
			__sync_fetch_and_add(&front->past, 1);
	}
	bpf_tail_call(ctx, &behind, 0);
	return XDP_ABORTED;
}
